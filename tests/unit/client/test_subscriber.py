"""The subscriber without I/O: over any history of the table and of the stream, against what a gateway really says."""

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from tablegate.client import (
    CatchingUp,
    Current,
    Delete,
    Disconnected,
    Reset,
    ResumeTokenRefused,
    SubscribeError,
    TokenFile,
    Upsert,
)
from tablegate.client.failures import Failure, failure_of
from tablegate.client.rows import Rows
from tablegate.client.subscriber import BACKOFF_MAX_S, ENDED, SILENCE_MIN_S, Subscriber
from tablegate.gateway.query.call import StreamMethod
from tablegate.gateway.query.errors import InvalidResumeToken, QueryError
from tablegate.v1.query_pb2 import SUBSCRIBE_START_LIVE, SUBSCRIBE_START_SNAPSHOT
from tests.kit.call.asker import Ratings, make_ratings
from tests.kit.seeds import seeds
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import LocalCall, rating

PATH = "/examples.ratings.v1.RatingsService/SubscribeRatings"
TIMEOUT_S = 60.0


def _request(ratings: Ratings, **fields: Any) -> Any:
    return ratings.asker.request("SubscribeRatings", **fields)


async def _stream(ratings: Ratings, subscriber: Subscriber) -> AsyncIterator[Any]:
    """Yield what the gateway says to the subscriber's next request."""
    method = ratings.asker.methods[PATH]
    assert isinstance(method, StreamMethod)
    messages = method.handler(subscriber.request().SerializeToString(), LocalCall(None))
    try:
        async for message in messages:
            yield ratings.asker.catalogue.queries[PATH].response_class.FromString(message)
    finally:
        await messages.aclose()  # type: ignore[attr-defined]


async def _receive(rows: Rows, subscriber: Subscriber, messages: AsyncIterator[Any], applied: dict[int, int]) -> None:
    """Apply one message; `applied` follows the changes that `apply` returns."""
    for event in subscriber.receive(await asyncio.wait_for(anext(messages), TIMEOUT_S)):
        for key, row in rows.apply(event):
            if row is None:
                del applied[key]  # type: ignore[arg-type]
            else:
                applied[key] = row.rating_count  # type: ignore[index]


def _counts(rows: Rows) -> dict[Any, int]:
    return {key: row.rating_count for key, row in rows.items()}


@pytest.mark.parametrize("seed", seeds(12, in_check=4))
def test_whatever_breaks_the_copy_is_the_table(seed: int) -> None:
    choice = random.Random(seed)
    ratings = make_ratings(1 + seed % 3, store=MemoryStore(history_changes_max=choice.choice([20, 100_000])))
    wanted: dict[int, int] = {}

    def change(times: int) -> None:
        for number in range(times):
            movie_id = choice.randrange(1_200)
            if choice.random() < 0.2:
                ratings.table.delete([rating(movie_id)])
                wanted.pop(movie_id, None)
            else:
                wanted[movie_id] = wanted.get(movie_id, 0) + number + 1
                ratings.table.put([rating(movie_id, count=wanted[movie_id])])
        ratings.asker.bell.notify()

    async def talk() -> None:
        rows, applied, subscriber = Rows(), dict[int, int](), Subscriber(_request(ratings))
        change(2_500)
        for _ in range(10):
            messages = _stream(ratings, subscriber)
            for _ in range(choice.randrange(1, 5)):
                await _receive(rows, subscriber, messages, applied)
                assert rows.as_of or not rows, "half of a snapshot is shown"
                change(choice.randrange(1, 30))
            await messages.aclose()  # type: ignore[attr-defined]
            rows.apply(subscriber.disconnected(ENDED))
            assert not rows.is_current
            change(choice.randrange(60))
        messages = _stream(ratings, subscriber)
        while not (rows.is_current and _counts(rows) == wanted):
            await _receive(rows, subscriber, messages, applied)
        await messages.aclose()  # type: ignore[attr-defined]
        assert applied == wanted

    asyncio.run(talk())


def test_a_snapshot_is_shown_when_it_is_whole() -> None:
    rows = Rows()
    for event in (Reset(""), Upsert(1, "a"), Upsert(2, "b"), CatchingUp("")):
        assert rows.apply(event) == ()
    assert (dict(rows), rows.is_current) == ({}, False)
    assert rows.apply(_current(1)) == [(1, "a"), (2, "b")]
    assert (dict(rows), rows.is_current) == ({1: "a", 2: "b"}, True)
    assert rows.apply(Delete(9, None)) == [(9, None)]
    for event in (Reset(""), Upsert(2, "b"), Upsert(3, "c"), Upsert(4, "d"), Delete(4, None), CatchingUp("")):
        assert rows.apply(event) == ()
    assert (dict(rows), rows.is_current) == ({1: "a", 2: "b"}, False)
    assert rows.apply(_current(2)) == [(1, None), (3, "c")]
    assert (dict(rows), len(rows), 3 in rows) == ({2: "b", 3: "c"}, 2, True)


def _current(second: int) -> Current:
    return Current(datetime.fromtimestamp(second, UTC), None, "")


def test_views_are_of_one_moment() -> None:
    rows = Rows()
    for key in range(10):
        rows.apply(Upsert(key, key))
    seen = []
    for key in rows:
        rows.apply(Delete(key, None))
        seen.append(key)
    assert (seen, len(rows)) == (list(range(10)), 0)
    for view in (rows.keys, rows.values, rows.items):
        rows.apply(Upsert(1, 1))
        for _ in view():
            rows.apply(Delete(1, None))


def _subscriber(**more: Any) -> Subscriber:
    return Subscriber(_request(make_ratings()), random_s=lambda most_s: most_s, **more)


def test_pauses_grow_to_a_bound_and_start_over_once_a_stream_got_on() -> None:
    ratings, subscriber = make_ratings(), _subscriber()
    waits = [subscriber.disconnected(ENDED).retry_after_s for _ in range(2_000)]
    assert waits[:4] == [0.1, 0.2, 0.4, 0.8]
    assert waits[-1] == BACKOFF_MAX_S
    reset, caught_up = ratings.asker.stream("SubscribeRatings", most=2)
    assert subscriber.receive(reset) == [Reset(reset.progress.resume_token)]
    assert subscriber.disconnected(ENDED).retry_after_s == BACKOFF_MAX_S
    assert isinstance(subscriber.receive(caught_up)[-1], Current)
    disconnected = subscriber.disconnected(Failure("UNAVAILABLE", "busy", "PARTITION_UNAVAILABLE", retry_after_s=0.5))
    assert disconnected == Disconnected("UNAVAILABLE", "PARTITION_UNAVAILABLE", "busy", 0.6)


@pytest.mark.parametrize(
    ("code", "reason", "passes"),
    [
        ("UNAVAILABLE", "", True),
        ("CANCELLED", "", True),
        ("RESOURCE_EXHAUSTED", "OVERLOADED", True),
        ("RESOURCE_EXHAUSTED", "SLOW_SUBSCRIBER", True),
        ("RESOURCE_EXHAUSTED", "LIMIT_EXCEEDED", True),
        ("RESOURCE_EXHAUSTED", "REQUEST_TOO_LARGE", False),
        ("RESOURCE_EXHAUSTED", "", False),
        ("INVALID_ARGUMENT", "INVALID_FIELD", False),
        ("UNIMPLEMENTED", "NOT_SERVED", False),
        ("INTERNAL", "INTERNAL", False),
        ("UNAUTHENTICATED", "", False),
    ],
)
def test_only_what_passes_is_tried_again(code: str, reason: str, passes: bool) -> None:
    failure = Failure(code, "so it is", reason)
    if passes:
        assert _subscriber().disconnected(failure).code == code
        return
    with pytest.raises(SubscribeError, match="so it is") as caught:
        _subscriber().disconnected(failure)
    assert (caught.value.code, caught.value.reason) == (code, reason)


REFUSED = Failure("INVALID_ARGUMENT", "the resume token is damaged", "INVALID_RESUME_TOKEN")


def _admitted() -> Subscriber:
    """Return a subscriber whose stream has brought a message."""
    ratings = make_ratings()
    subscriber = Subscriber(_request(ratings))

    async def read_one() -> None:
        messages = _stream(ratings, subscriber)
        subscriber.receive(await asyncio.wait_for(anext(messages), TIMEOUT_S))
        await messages.aclose()  # type: ignore[attr-defined]

    asyncio.run(read_one())
    return subscriber


@pytest.mark.parametrize("code", ["INTERNAL", "UNKNOWN"])
def test_a_stream_that_is_cut_off_is_opened_again_once_it_began(code: str) -> None:
    """A proxy has reset it, or ended it halfway: a gateway would give a reason."""
    cut_off = Failure(code, "Received RST_STREAM with error code 2")
    with pytest.raises(SubscribeError, match="RST_STREAM"):
        _subscriber().disconnected(cut_off)
    subscriber = _admitted()
    assert subscriber.disconnected(cut_off).code == code
    with pytest.raises(SubscribeError, match="its log"):
        subscriber.disconnected(Failure(code, "its log has the rest", "INTERNAL"))


def test_a_stream_whose_credential_has_ended_is_opened_once_more() -> None:
    """Whoever was let in may have another credential by then; whoever is refused has none."""
    subscriber = _admitted()
    ended = Failure("UNAUTHENTICATED", "your credential has ended; show a new one", "NOT_AUTHENTICATED")
    assert subscriber.disconnected(ended).code == "UNAUTHENTICATED"
    subscriber.request()
    with pytest.raises(SubscribeError, match="show a new one"):
        subscriber.disconnected(ended)


def test_a_refused_token_is_told_or_left_behind() -> None:
    with pytest.raises(ResumeTokenRefused, match="drop your copy"):
        _subscriber(token="junk").disconnected(REFUSED)
    options = {"start": SUBSCRIBE_START_LIVE}
    subscriber = Subscriber(_request(make_ratings(), subscribe_options=options), token="junk", restarts=True)
    first: Any = subscriber.request()
    assert (first.subscribe_options.resume_token, first.subscribe_options.start) == ("junk", SUBSCRIBE_START_LIVE)
    subscriber.disconnected(REFUSED)
    anew: Any = subscriber.request()
    assert anew.subscribe_options.resume_token == ""
    assert anew.subscribe_options.start in (0, SUBSCRIBE_START_SNAPSHOT)
    with pytest.raises(ResumeTokenRefused):
        subscriber.disconnected(REFUSED)


def test_the_callers_request_is_left_as_it_is() -> None:
    ratings = make_ratings()
    request = _request(ratings, movie_id=3, subscribe_options={"resume_token": "first"})
    subscriber = Subscriber(request)
    asked: Any = subscriber.request()
    assert (asked.movie_id, asked.subscribe_options.resume_token) == (3, "first")
    for response in ratings.asker.stream("SubscribeRatings", most=2):
        subscriber.receive(response)
    asked = subscriber.request()
    assert asked.subscribe_options.resume_token == response.progress.resume_token != "first"
    assert request.subscribe_options.resume_token == "first"


@pytest.mark.parametrize(("interval_s", "silence_s"), [(None, 15), (0.1, SILENCE_MIN_S), (3, 9), (900, 180)])
def test_a_stream_is_dead_after_three_heartbeats(interval_s: float | None, silence_s: float) -> None:
    request = _request(make_ratings())
    if interval_s is not None:
        request.subscribe_options.progress_interval.FromMilliseconds(int(interval_s * 1_000))
    assert Subscriber(request).silence_s == pytest.approx(silence_s)


class Ended:
    """A call that ended with a status."""

    def __init__(self, error: QueryError, trailer: bytes | None = None) -> None:
        self._error = error
        self._trailer = trailer

    def code(self) -> Any:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return self._error.text

    def trailing_metadata(self) -> Any:
        return (("other", "x"), ("grpc-status-details-bin", self._trailer)) if self._trailer is not None else None


def _packed(*details: Any) -> bytes:
    status = status_pb2.Status(code=14)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status.SerializeToString()


def test_details_of_a_status_are_read() -> None:
    error = InvalidResumeToken("no such token")
    info = error_details_pb2.ErrorInfo(reason="SHUTTING_DOWN", domain="tablegate", metadata={"table": "ratings"})
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromMilliseconds(250)
    help_ = error_details_pb2.Help()
    assert failure_of(Ended(error, _packed(help_, info, retry))) == Failure(
        "UNAVAILABLE", "no such token", "SHUTTING_DOWN", 0.25
    )
    foreign = error_details_pb2.ErrorInfo(reason="INVALID_RESUME_TOKEN", domain="proxy.example")
    assert failure_of(Ended(error, _packed(foreign))).reason == ""
    assert failure_of(Ended(error, b"\xff\xff")) == failure_of(Ended(error)) == Failure("UNAVAILABLE", "no such token")


def test_a_token_file_holds_one_whole_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    tokens = TokenFile(path)
    assert tokens.load() == ""
    tokens.save("1.first")
    tokens.save("1.second")
    assert TokenFile(path).load() == tokens.load() == "1.second"
    assert [file.name for file in tmp_path.iterdir()] == ["token"]
