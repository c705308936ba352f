"""The Python client's events and calls against a server in this process; a program with generated code."""

import asyncio
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_tools import protoc

from tablegate.client import (
    CatchingUp,
    Current,
    Delete,
    Disconnected,
    Reset,
    ResumeTokenRefused,
    TokenFile,
    TokenMemory,
    Upsert,
    aio,
    open_channel,
    subscribe,
)
from tablegate.examples import CONTRACTS
from tablegate.gateway.query.errors import (
    PartitionUnavailable,
    ShuttingDown,
)
from tests.kit.gateway_processes.gateway import soon
from tests.kit.gateways_in_process.client_copies import request, stub_method
from tests.kit.gateways_in_process.ratings import Fault, RatingsServer
from tests.kit.table.filled import RATINGS, ROOT

OFTEN = {"progress_interval": {"nanos": 100_000_000}}
WAIT_S = 60.0


@pytest.fixture
def server() -> Iterator[RatingsServer]:
    with RatingsServer() as server:
        yield server


@pytest.fixture
def channel(server: RatingsServer) -> Iterator[grpc.Channel]:
    with open_channel(server.address) as channel:
        yield channel


def _through(events: Any, last: Callable[[Any], bool]) -> list[Any]:
    """Return the events up to the first that `last` is true of."""
    taken = []
    for event in events:
        taken.append(event)
        if last(event):
            return taken
    raise AssertionError("the events ended")


def _is_current(event: Any) -> bool:
    return isinstance(event, Current)


def test_events_come_in_order(server: RatingsServer, channel: grpc.Channel) -> None:
    server.put(range(5))
    with subscribe(stub_method(channel), request()) as events:
        first = _through(events, _is_current)
        assert isinstance(first[0], Reset)
        assert {event.key for event in first if isinstance(event, Upsert)} == set(range(5))
        server.delete([3])
        assert [event.key for event in _through(events, _is_current) if isinstance(event, Delete)] == [3]
        server.stop()
        [lost] = _through(events, lambda event: True)
        assert isinstance(lost, Disconnected)
        assert lost.code == "UNAVAILABLE"


class Kept:
    """A copy and its token, as a consumer keeps them beyond its process: they change together."""

    def __init__(self) -> None:
        self.rows: dict[Any, int] = {}
        self.token = ""
        self._coming: dict[Any, int] = {}

    def begin(self) -> Any:
        """Return the request of a new process: what had come of a message when the one before ended is lost."""
        self._coming = dict(self.rows)
        return request(subscribe_options={**OFTEN, "resume_token": self.token})

    def take(self, event: Any) -> None:
        match event:
            case Upsert(key, row):
                self._coming[key] = row.rating_count
            case Delete(key):
                del self._coming[key]
            case Reset(token):
                self.rows, self.token, self._coming = {}, token, {}
            case CatchingUp(token) | Current(token=token):
                self.rows, self.token = dict(self._coming), token


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_kept_copy_is_right_wherever_its_process_ended(server: RatingsServer, kind: str) -> None:
    choice = random.Random(kind)
    kept = Kept()

    async def take(most: int) -> None:
        async with (
            aio.open_channel(server.address) as channel,
            aio.subscribe(stub_method(channel), kept.begin()) as events,
        ):
            async for event in events:
                kept.take(event)
                most -= 1
                if not most or kept.rows == server.counts:
                    return

    def take_in_thread(most: int) -> None:
        with open_channel(server.address) as channel, subscribe(stub_method(channel), kept.begin()) as events:
            for event in islice(events, most):
                kept.take(event)
                if kept.rows == server.counts:
                    return

    def process(most: int) -> None:
        take_in_thread(most) if kind == "threads" else asyncio.run(take(most))

    server.put(range(1_500))
    for _ in range(15):
        process(choice.randrange(1, 1_000))
        server.put(choice.randrange(1_500) for _ in range(20))
        server.delete([choice.randrange(1_500)])
    while kept.rows != server.counts:
        process(10_000)


def test_a_token_is_stored_once_all_before_it_was_taken(server: RatingsServer, channel: grpc.Channel) -> None:
    server.put(range(5))
    tokens = TokenMemory()
    with subscribe(stub_method(channel), request(subscribe_options=OFTEN), token_store=tokens) as events:
        taken = before = ""
        for event in islice(events, 20):
            assert tokens.load() == taken
            before, taken = taken, getattr(event, "token", taken)
    assert tokens.load() == before != ""


def test_a_stored_token_goes_on(server: RatingsServer, channel: grpc.Channel, tmp_path: Path) -> None:
    server.put(range(5))
    for movie_ids in (range(5), [3], [8, 9]):
        server.put(movie_ids)
        with subscribe(stub_method(channel), request(), token_store=TokenFile(tmp_path / "token")) as events:
            told = {event.key for event in _through(events, _is_current) if isinstance(event, Upsert)}
            assert told == {1, *movie_ids}
            server.put([1])
            next(events)  # so what was told before is taken, and this is not


def test_a_refused_token_is_told_or_begins_anew(server: RatingsServer, channel: grpc.Channel, tmp_path: Path) -> None:
    server.put(range(5))
    path, asked = tmp_path / "token", request(subscribe_options=OFTEN)
    path.write_text("1.junk\n")
    with (
        pytest.raises(ResumeTokenRefused, match="drop your copy"),
        subscribe(stub_method(channel), request(), token_store=TokenFile(path)) as events,
    ):
        next(events)
    with subscribe(stub_method(channel), asked, token_store=TokenFile(path), restart=True) as events:
        told = _through(events, _is_current)
        assert isinstance(told[0], Disconnected)
        assert told[0].reason == "INVALID_RESUME_TOKEN"
        assert isinstance(told[1], Reset)
        assert isinstance(next(events), Current)
    assert path.read_text() != "1.junk\n"


def test_closing_ends_a_wait_of_another_thread(server: RatingsServer, channel: grpc.Channel) -> None:
    events = subscribe(stub_method(channel), request())
    taken: list[Any] = []
    thread = threading.Thread(target=lambda: taken.extend(events))
    thread.start()
    soon(lambda: any(map(_is_current, taken)), "it is current")
    events.close()
    thread.join()
    assert not any(isinstance(event, Disconnected) for event in taken)


def test_unary_calls_are_tried_again_and_have_deadlines(server: RatingsServer) -> None:
    server.put([7])
    busy = [Fault(0, ShuttingDown()), Fault(0, PartitionUnavailable("ratings", 1, "it is restored"))]
    with open_channel(server.address, deadline_s=9) as channel:
        get = stub_method(channel, "GetRating")
        server.faults.extend(busy)
        assert get(request("GetRating", movie_id=7)).rating.movie_id == 7
        assert len(server.left_s) == 3
        with pytest.raises(grpc.RpcError) as caught:
            get(request("GetRating", movie_id=8), timeout=30)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND  # type: ignore[attr-defined]

    async def ask() -> None:
        async with aio.open_channel(server.address, deadline_s=9) as channel:
            get = stub_method(channel, "GetRating")
            server.faults.extend(busy)
            assert (await get(request("GetRating", movie_id=7))).rating.movie_id == 7
            await get(request("GetRating", movie_id=7), timeout=30)

    asyncio.run(ask())
    default, longest = 2, 10  # of the contract: without the client's own deadline a call has the default
    mine = [left_s for number, left_s in enumerate(server.left_s) if number not in (3, 7)]
    assert len(mine) == 6
    # gRPC rounds what is left up, so it may be a little more than was asked for.
    assert all(left_s is not None and default < left_s < 9.5 for left_s in mine)
    assert all(left_s is not None and 9.5 < left_s <= longest for left_s in (server.left_s[3], server.left_s[7]))


PROGRAM = """
import asyncio, sys
import tablegate.client as tablegate
from tablegate.client import aio
from examples.ratings.v1 import ratings_pb2, ratings_pb2_grpc

assert not [name for name in sys.modules if name.startswith(("tablegate.gateway", "google.rpc"))]
address = sys.argv[1]
with tablegate.open_channel(address) as channel:
    stub = ratings_pb2_grpc.RatingsServiceStub(channel)
    with tablegate.LiveTable(stub.SubscribeRatings, ratings_pb2.SubscribeRatingsRequest()) as ratings:
        ratings.wait_current(timeout_s=60)
        print(ratings[7].rating_count, len(ratings))

async def ask():
    async with aio.open_channel(address) as channel:
        stub = ratings_pb2_grpc.RatingsServiceStub(channel)
        request = ratings_pb2.SubscribeRatingsRequest(movie_id=7)
        async with aio.LiveTable(stub.SubscribeRatings, request) as ratings:
            await ratings.wait_current(timeout_s=60)
            print(list(ratings))

asyncio.run(ask())
"""


def test_a_program_with_generated_code(server: RatingsServer, tmp_path: Path) -> None:
    server.put(range(10))
    includes = [f"-I{ROOT / 'proto'}", f"-I{ROOT / 'proto' / 'googleapis'}", f"-I{CONTRACTS}"]
    includes.append(f"-I{Path(protoc.__file__).parent / '_proto'}")
    words = ["protoc", *includes, f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}", str(RATINGS)]
    assert protoc.main(words) == 0
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), server.address],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{server.counts[7]} 10", "[7]"]
