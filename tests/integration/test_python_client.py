"""The Python client against a server in this process that breaks in every way, and against a gateway that is killed."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from confluent_kafka import Producer

from tablegate.client import LiveTable, SourceRecord, SubscribeError, aio, at_least_source, open_channel
from tablegate.client.arrow import arrow_schema
from tablegate.examples.demo.kafka import Broker
from tablegate.gateway.query.errors import (
    Overloaded,
    PartitionUnavailable,
    ShuttingDown,
    SlowSubscription,
    StreamExpired,
)
from tests.kit.gateway_processes.changelog import RatingsChangelog
from tests.kit.gateway_processes.gateway import GatewayProcess, soon
from tests.kit.gateways_in_process.client_copies import Copy, for_asyncio, for_threads, request, stub_method
from tests.kit.gateways_in_process.ratings import Fault, RatingsServer
from tests.kit.programs.kafka import new_topic

Copying = Callable[..., AbstractContextManager[Copy]]
OFTEN = {"progress_interval": {"nanos": 100_000_000}}
WAIT_S = 60.0


@pytest.fixture
def server() -> Iterator[RatingsServer]:
    with RatingsServer() as server:
        yield server


@pytest.fixture(params=[for_threads, for_asyncio])
def copying(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def channel(server: RatingsServer) -> Iterator[grpc.Channel]:
    with open_channel(server.address) as channel:
        yield channel


def test_a_live_table_follows(server: RatingsServer, copying: Copying) -> None:
    server.put(range(700))
    told: dict[int, Any] = {}
    with copying(server.address, request(), told.__setitem__) as copy:
        copy.wait(WAIT_S)
        assert copy.counts() == server.counts
        assert copy.table[3].movie_id == 3
        assert copy.table.as_of is not None
        server.put([3, 9_999])
        server.delete([4])
        soon(lambda: copy.counts() == server.counts, "the changes")
        soon(lambda: told[4] is None, "the callback")
        assert {key for key, row in told.items() if row is not None} == set(server.counts)
        assert copy.table.is_current
    assert not copy.table.is_current
    assert copy.counts() == server.counts


def test_a_closed_table_is_not_waited_for(server: RatingsServer, channel: grpc.Channel) -> None:
    with LiveTable(stub_method(channel), request()) as table:
        table.wait_current(WAIT_S)
    with pytest.raises(RuntimeError, match="closed"):
        table.wait_current(WAIT_S)

    async def wait() -> None:
        async with aio.open_channel(server.address) as channel:
            async with aio.LiveTable(stub_method(channel), request()) as table:
                await table.wait_current(WAIT_S)
            with pytest.raises(RuntimeError, match="closed"):
                await table.wait_current(WAIT_S)

    asyncio.run(wait())


def test_a_live_table_as_a_table_of_arrow(server: RatingsServer, copying: Copying) -> None:
    server.put(range(10))
    with copying(server.address, request()) as copy:
        copy.wait(WAIT_S)
        before = copy.table.to_arrow()
        assert before.schema == arrow_schema(type(copy.table[3]))
        assert (
            dict(zip(*before.select(["movie_id", "rating_count"]).to_pydict().values(), strict=True)) == server.counts
        )
        server.delete(range(10))
        soon(lambda: not copy.table, "all rows are gone")
        assert copy.table.to_arrow() == before.schema.empty_table()
        assert before.num_rows == 10
    assert copy.table.to_arrow().schema == before.schema


def test_a_live_table_without_a_snapshot_is_no_table_of_arrow() -> None:
    refused = pytest.raises(RuntimeError, match="no complete snapshot yet: call wait_current before to_arrow")
    with open_channel("127.0.0.1:1") as channel, LiveTable(stub_method(channel), request()) as table, refused:
        table.to_arrow()


def test_a_table_of_arrow_without_the_extra_names_it(server: RatingsServer, copying: Copying) -> None:
    server.put([1])
    with copying(server.address, request()) as copy, pytest.MonkeyPatch.context() as patch:
        copy.wait(WAIT_S)
        patch.delitem(sys.modules, "tablegate.client.arrow", raising=False)
        patch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(ImportError, match=r"pip install 'tablegate-client\[arrow\]'"):
            copy.table.to_arrow()


def test_a_live_table_of_one_key(server: RatingsServer, copying: Copying) -> None:
    server.put(range(10))
    with copying(server.address, request(movie_id=7)) as copy:
        copy.wait(WAIT_S)
        assert set(copy.table) == {7}
        server.delete([7, 8])
        soon(lambda: not copy.table, "its row is gone")


@pytest.mark.parametrize(
    "fault",
    [
        Fault(1, ShuttingDown()),
        Fault(3, StreamExpired()),
        Fault(2, SlowSubscription("ratings")),
        Fault(0, Overloaded("too many streams", "streams")),
        Fault(0, PartitionUnavailable("ratings", 1, "it is restored")),
        Fault(0),
        Fault(2),
    ],
    ids=lambda fault: f"{type(fault.error).__name__}-{fault.after}",
)
def test_a_live_table_outlives_its_streams(server: RatingsServer, copying: Copying, fault: Fault) -> None:
    server.put(range(3_000))
    server.faults.extend([fault, fault])
    with copying(server.address, request(subscribe_options=OFTEN)) as copy:
        for _ in range(10):
            server.put(range(0, 3_000, 7))
            server.delete(range(5, 3_000, 97))
        soon(
            lambda: not server.faults and copy.table.is_current and copy.counts() == server.counts,
            "all is there",
            WAIT_S,
        )
        assert server.streams >= 3


def test_a_live_table_outlives_the_gateway(server: RatingsServer, copying: Copying) -> None:
    server.put(range(1_000))
    with copying(server.address, request()) as copy:
        copy.wait(WAIT_S)
        for _ in range(3):
            server.stop()
            soon(lambda: not copy.table.is_current, "it says so")
            assert copy.counts() == server.counts, "rows stay"
            server.put([1])
            server.delete([2])
            server.start()
            soon(lambda: copy.table.is_current and copy.counts() == server.counts, "it goes on", WAIT_S)


def test_a_new_generation_never_shows_half(server: RatingsServer, copying: Copying) -> None:
    server.put(range(2_000))
    sizes: set[int] = set()
    with copying(server.address, request()) as copy:
        copy.wait(WAIT_S)
        server.rebuild([*range(1_000), 5_000])
        while copy.counts() != server.counts:
            sizes.add(len(copy.table))
        assert sizes <= {2_000, 1_001}


def test_what_the_gateway_refuses_is_raised(server: RatingsServer, copying: Copying) -> None:
    wrong = {"subscribe_options": {"progress_interval": {"seconds": -1}}}
    with copying(server.address, request(**wrong)) as copy:
        with pytest.raises(SubscribeError, match="progress_interval") as caught:
            copy.wait(WAIT_S)
        assert (caught.value.code, caught.value.reason) == ("INVALID_ARGUMENT", "INVALID_FIELD")


def test_a_wait_for_nobody_says_why(copying: Copying) -> None:
    with copying("127.0.0.1:1", request()) as copy:
        soon(lambda: _says(copy, "UNAVAILABLE"), "the reason is told", WAIT_S)
        assert not copy.table.is_current


def _says(copy: Copy, words: str) -> bool:
    with pytest.raises(TimeoutError, match="not current after") as caught:
        copy.wait(0.2)
    return words in str(caught.value)


def test_a_callback_that_fails_ends_the_copy(server: RatingsServer, copying: Copying) -> None:
    server.put(range(10))

    def fail(key: int, row: Any) -> None:
        raise ZeroDivisionError(f"at {key}")

    with copying(server.address, request(), fail) as copy:
        soon(lambda: _failed(copy), "it ends")
        assert not copy.table.is_current


def _failed(copy: Copy) -> bool:
    try:
        copy.wait(WAIT_S)
    except ZeroDivisionError:
        return True
    return False


def test_a_table_closes_itself_in_its_callback(server: RatingsServer, channel: grpc.Channel) -> None:
    server.put(range(3))
    seen: list[int] = []
    ready = threading.Event()

    def close(key: Any, row: Any) -> None:
        ready.wait(WAIT_S)
        seen.append(key)
        table.close()

    table = LiveTable(stub_method(channel), request(), on_change=close)
    ready.set()
    soon(lambda: seen and not table.is_current, "it is closed")
    table.close()


@pytest.mark.parametrize("copying", [for_threads, for_asyncio])
def test_streams_that_a_server_cancels_or_ends_are_opened_again(server: RatingsServer, copying: Copying) -> None:
    """By a server that does what a gateway does not, and proxies do."""
    server.put(range(20))
    with open_channel(server.address) as behind:
        method = stub_method(behind)
        ways = ["cancel", "end", "cancel"]

        def relay(data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
            way = ways.pop() if ways else None
            asked = type(request()).FromString(data)
            for number, response in enumerate(method(asked)):
                if way and number == 2:
                    if way == "cancel":
                        context.abort(grpc.StatusCode.CANCELLED, "cancelled by a proxy")
                    return
                yield response.SerializeToString()
                if not context.is_active():
                    return

        handler = grpc.unary_stream_rpc_method_handler(relay)
        proxy = grpc.server(futures.ThreadPoolExecutor(8))
        service = grpc.method_handlers_generic_handler(
            "examples.ratings.v1.RatingsService", {"SubscribeRatings": handler}
        )
        proxy.add_generic_rpc_handlers((service,))
        port = proxy.add_insecure_port("127.0.0.1:0")
        proxy.start()
        try:
            with copying(f"127.0.0.1:{port}", request(subscribe_options=OFTEN)) as copy:
                soon(lambda: not ways and copy.counts() == server.counts, "it is there", WAIT_S)
        finally:
            proxy.stop(0).wait()


@pytest.mark.jvm
def test_copies_outlive_killed_workers(broker: Broker, tmp_path: Path) -> None:
    changelog = RatingsChangelog(broker.bootstrap)
    changelog.publish()
    changelog.put(dict.fromkeys(range(2000), (5.0, 1)))
    with GatewayProcess(tmp_path / "data", broker.bootstrap, tables_topic=changelog.tables_topic) as gateway:
        gateway.wait_until_serving()
        address = gateway.address()
        assert address is not None
        asked = request(subscribe_options=OFTEN)
        with for_threads(address, asked) as one, for_asyncio(address, asked) as other:
            for copy in (one, other):
                copy.wait(WAIT_S)
            for round_ in range(4):
                changelog.put(dict.fromkeys(range(round_, 2000, 3), (5.0, round_ + 2)))
                changelog.delete([round_])
                _kill_workers(gateway)
                wanted = {movie_id: count for movie_id, (_, count) in changelog.rows.items()}
                for copy in (one, other):
                    soon(partial(_is_current_as, copy, wanted), "all is there", WAIT_S)
        _asks_for_its_own_write(broker.bootstrap, changelog, address)


def _is_current_as(copy: Copy, wanted: dict[int, int]) -> bool:
    return copy.table.is_current and copy.counts() == wanted


def _kill_workers(gateway: GatewayProcess) -> None:
    """Kill all that serve, at once; the supervisor starts others."""
    for pid in set(gateway.children()) - {gateway.replicator()}:
        os.kill(pid, signal.SIGKILL)


def _asks_for_its_own_write(bootstrap: str, changelog: RatingsChangelog, address: str) -> None:
    acknowledged: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    topic = new_topic(bootstrap, 1, "elsewhere")
    producer.produce(topic, b"x", on_delivery=lambda error, message: acknowledged.append(message))
    assert producer.flush(WAIT_S) == 0
    with open_channel(address) as channel:
        get = stub_method(channel, "GetRating")
        asked = at_least_source(request("GetRating", movie_id=1_000), *acknowledged)
        with pytest.raises(grpc.RpcError) as caught:
            get(asked, timeout=WAIT_S, wait_for_ready=True)  # its workers may be starting
        assert topic in caught.value.details()  # type: ignore[attr-defined]
        changelog.mark(source_next_offset=6)
        asked = at_least_source(request("GetRating", movie_id=1_000), SourceRecord("ratings", 0, 5))
        assert get(asked, timeout=WAIT_S).rating.movie_id == 1_000
