"""Subscribers whose client takes messages at once, past the stream's task: the copy is the same, and its tokens are."""

import asyncio
import gc
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from typing_extensions import override

from tablegate.gateway.http.rpc.calls import Calls, ServedCall
from tablegate.gateway.http.rpc.turns import TURN_S, StreamTurns
from tablegate.gateway.query.call import AtTurn, Parked, StreamMethod
from tablegate.gateway.query.errors import QueryError
from tablegate.gateway.query.limits import DEFAULT_LIMITS, QueryLimits
from tablegate.gateway.query.subscribe import broadcaster as feed
from tablegate.gateway.query.subscribe.local import Pace
from tablegate.gateway.stores.base import StoreUnavailable
from tablegate.v1.query_pb2 import SUBSCRIBE_PHASE_CURRENT
from tests.kit.call.asker import Ratings, make_ratings
from tests.kit.call.subscribe_world import TurnsByHand
from tests.kit.call.subscribing import METHOD, OFTEN, TIMEOUT_S, Copy, Writer, options
from tests.kit.seeds import seeds
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import LocalCall


class Taker(LocalCall):
    """A client's side of a stream: takes what is offered as often as `willing` says, and what the handler yields.

    `turns` are given where there is no task; None: in the next round of the event loop.
    """

    def __init__(self, willing: random.Random | None, *, parks: bool = False, turns: TurnsByHand | None = None) -> None:
        super().__init__(None)
        self._turns = turns
        self.parked = 0
        self._parks = parks
        self.messages: asyncio.Queue[bytes] = asyncio.Queue()
        self.taken = 0
        self._willing = willing

    @property
    def parks(self) -> bool:
        return self._parks

    @property
    def at_turn(self) -> AtTurn:
        return super().at_turn if self._turns is None else self._turns

    def offer(self, message: bytes) -> bool:
        if self._willing is not None and self._willing.random() < 0.3:
            return False
        self.messages.put_nowait(message)
        self.taken += 1
        return True


@asynccontextmanager
async def taking(
    ratings: Ratings,
    token: str,
    willing: random.Random | None = None,
    *,
    parks: bool = False,
    turns: TurnsByHand | None = None,
    call: Taker | None = None,
    **selected: int,
) -> AsyncIterator[Taker]:
    """Open a stream, whose task ends with the block."""
    asker, call = ratings.asker, call or Taker(willing, parks=parks, turns=turns)
    handler = asker.methods[f"{asker.service}/{METHOD}"]
    assert isinstance(handler, StreamMethod)
    request = asker.request(METHOD, subscribe_options=options(token, **OFTEN), **selected)
    messages = handler.handler(request.SerializeToString(), call)

    async def pass_on(messages: AsyncIterator[bytes]) -> None:
        while True:
            try:
                async for message in messages:
                    call.messages.put_nowait(message)
                return
            except Parked as parked:
                stream = parked.stream
            call.parked += 1
            woken = asyncio.Event()
            stream.wait(woken.set)
            try:
                await woken.wait()
            except asyncio.CancelledError:
                stream.leave()
                raise
            messages = stream.messages()

    task = asyncio.ensure_future(pass_on(messages))
    try:
        yield call
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await messages.aclose()  # type: ignore[attr-defined]


async def take(call: Taker, copy: Copy, ratings: Ratings) -> None:
    data = await asyncio.wait_for(call.messages.get(), TIMEOUT_S)
    response_class = ratings.asker.catalogue.queries[f"{ratings.asker.service}/{METHOD}"].response_class
    copy.take(response_class.FromString(data))


async def until(call: Taker, copy: Copy, ratings: Ratings, writer: Writer) -> None:
    while copy.phase != SUBSCRIBE_PHASE_CURRENT or copy.counts != writer.counts:
        await take(call, copy, ratings)


@pytest.mark.parametrize("parks", [False, True], ids=["task", "parked"])
@pytest.mark.parametrize("seed", seeds(5, in_check=2))
def test_a_copy_is_right_whoever_took_its_messages_and_wherever_it_broke(seed: int, *, parks: bool) -> None:
    ratings = make_ratings()
    writer, choice = Writer(ratings, seed), random.Random(seed)
    writer.put(*range(30))

    async def talk() -> None:
        copy, offers_taken, parked = Copy(), 0, 0
        for _ in range(15):
            async with taking(ratings, copy.token, choice, parks=parks) as call:
                await until(call, copy, ratings, writer)
                for _ in range(choice.randrange(8)):
                    for _ in range(choice.randrange(1, 4)):
                        writer.anything()
                    await asyncio.sleep(choice.choice((0.0, 0.0, 0.012)))
                    if not call.messages.empty():
                        await take(call, copy, ratings)
                offers_taken, parked = offers_taken + call.taken, parked + call.parked
        async with taking(ratings, copy.token) as call:
            await until(call, copy, ratings, writer)
        assert copy.resets == 1
        assert offers_taken > 0
        assert (parked > 5) == parks

    asyncio.run(talk())


class BusyTaker(Taker):
    """A client's side of a stream in a process whose other streams are always ready."""

    def __init__(self, turns: StreamTurns) -> None:
        super().__init__(None, parks=True)
        self._its_turns = turns

    @property
    def at_turn(self) -> AtTurn:
        return self._its_turns.call

    @property
    def at_turn_for_many(self) -> AtTurn:
        return self._its_turns.call_for_many

    async def turn(self) -> None:
        await self._its_turns.wait()


def test_a_change_for_many_does_not_wait_for_all_streams_at_each_turn() -> None:
    ratings = make_ratings(limits=QueryLimits(publish_given_max=1))
    writer = Writer(ratings)
    writer.put(*range(10))

    async def talk() -> None:
        turns, given, others, members = StreamTurns(), 0, 200, 20

        async def other() -> None:
            nonlocal given
            while True:
                await turns.wait()
                time.sleep(TURN_S)  # as a scan, that makes a message
                given += 1

        async with AsyncExitStack() as stack:
            opened = [taking(ratings, "", call=BusyTaker(turns)) for _ in range(members)]
            calls = [await stack.enter_async_context(each) for each in opened]
            copies = [Copy() for _ in calls]
            for call, copy in zip(calls, copies, strict=True):
                await until(call, copy, ratings, writer)
            while not all(call.parked for call in calls):
                await asyncio.sleep(0)
            tasks = [asyncio.ensure_future(other()) for _ in range(others)]
            await asyncio.sleep(0.01)
            given = 0
            writer.put(3)
            for call, copy in zip(calls, copies, strict=True):
                await until(call, copy, ratings, writer)
            assert given < others  # behind all of them, the first had waited for as many
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(talk())


@pytest.mark.parametrize("parks", [False, True], ids=["task", "parked"])
def test_progress_after_offers_has_what_was_offered(*, parks: bool) -> None:
    ratings = make_ratings()
    writer = Writer(ratings)
    writer.put(*range(10))

    async def talk() -> None:
        copy = Copy()
        async with taking(ratings, "", parks=parks) as call:
            await until(call, copy, ratings, writer)
            writer.put(3)
            await until(call, copy, ratings, writer)
            assert call.taken == 1
            given = copy.given
            await take(call, copy, ratings)  # nothing changed: this is a heartbeat, which is offered, too
            assert (copy.given, call.taken) == (given, 2)
        async with taking(ratings, copy.token) as call:
            await take(call, copy, ratings)
            assert (copy.given, copy.phase) == (given, SUBSCRIBE_PHASE_CURRENT)

    asyncio.run(talk())


def test_who_is_let_go_goes_on_behind_what_progress_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not behind the change that was offered before it: the history may not reach so far."""
    ratings = make_ratings(1, store=MemoryStore(history_changes_max=6))
    writer = Writer(ratings)
    writer.put(*range(10))

    async def talk() -> None:
        copy = Copy()

        async def progress_after(*movie_ids: int) -> None:
            writer.put(*movie_ids)
            token = copy.token
            while copy.token == token:
                await take(call, copy, ratings)

        async with taking(ratings, "", parks=True, movie_id=1) as call:
            while copy.phase != SUBSCRIBE_PHASE_CURRENT:
                await take(call, copy, ratings)
            await progress_after(1)
            await progress_after(2, 3, 4, 5)
            assert copy.given == 2
            writer.put(6, 7, 8, 9)
            with monkeypatch.context() as broken:
                broken.setattr(feed, "read_changes", _no_store)
                writer.put(1)
                await asyncio.sleep(2 * DEFAULT_LIMITS.publish_flush_s)
            ratings.asker.bell.notify()
            while copy.counts != {1: writer.counts[1]}:
                await take(call, copy, ratings)
            assert copy.resets == 1

    asyncio.run(talk())


def test_a_burst_makes_nobody_slow_who_takes_what_it_is_given() -> None:
    ratings = make_ratings(limits=QueryLimits(message_rows_max=5, subscriber_bytes_max=4_000))  # a few messages
    writer = Writer(ratings)

    async def talk() -> None:
        copy = Copy()
        async with taking(ratings, "", random.Random(1)) as call:
            await until(call, copy, ratings, writer)
            writer.put(*range(200), *range(200))
            await until(call, copy, ratings, writer)
            assert copy.given == 400, "changes of a key were joined, as for a slow subscriber"

    asyncio.run(talk())


@pytest.mark.parametrize("parks", [False, True], ids=["task", "parked"])
def test_a_subscriber_that_is_let_go_goes_on_behind_what_was_offered(
    monkeypatch: pytest.MonkeyPatch, *, parks: bool
) -> None:
    ratings = make_ratings()
    writer = Writer(ratings)
    writer.put(*range(10))

    async def talk() -> None:
        copy = Copy()
        async with taking(ratings, "", parks=parks) as call:
            await until(call, copy, ratings, writer)
            for movie_id in (1, 2, 3):
                writer.put(movie_id)
                await until(call, copy, ratings, writer)
            assert (copy.given, call.taken) == (13, 3)
            with monkeypatch.context() as broken:
                broken.setattr(feed, "read_changes", _no_store)
                writer.put(4)
                await asyncio.sleep(2 * DEFAULT_LIMITS.publish_flush_s)
            ratings.asker.bell.notify()
            await until(call, copy, ratings, writer)
            assert (copy.given, call.taken) == (14, 3)

    asyncio.run(talk())


class Reader(ServedCall):
    """A call whose client accepts what it is offered while it `accepts`; all that was sent is in `messages`."""

    def __init__(self, calls: Calls) -> None:
        super().__init__(calls, cast(Any, SimpleNamespace(on_gone=None, principal=None, address="", body=b"")))
        self.messages: list[bytes] = []
        self.offered = 0
        self.accepts = True

    @override
    def fail(self, error: QueryError) -> None:
        raise AssertionError(error.text)

    @override
    async def send(self, message: bytes) -> None:
        self.messages.append(message)

    @override
    def offer(self, message: bytes) -> bool:
        if self.accepts:
            self.messages.append(message)
            self.offered += 1
        return self.accepts


def open_streams(ratings: Ratings, calls: Calls, readers: Sequence[Reader], **fields: Any) -> None:
    """Open a Subscribe stream for each reader."""
    path = f"{ratings.asker.service}/{METHOD}"
    method = ratings.asker.methods[path]
    assert isinstance(method, StreamMethod)
    request = ratings.asker.request(METHOD, **fields).SerializeToString()
    for reader in readers:
        calls.stream(reader, path, method, request)


def cut(readers: Sequence[Reader]) -> None:
    """Let the clients go."""
    for reader in readers:
        assert reader.exchange.on_gone is not None
        reader.exchange.on_gone()


def test_streams_that_wait_have_no_task_and_leave_nothing() -> None:
    ratings = make_ratings(store=(store := MemoryStore()))
    writer = Writer(ratings)
    writer.put(*range(10))

    async def until_idle() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while len(asyncio.all_tasks()) > 1:
                await asyncio.sleep(0)

    async def talk() -> None:
        calls = Calls()
        readers = [Reader(calls) for _ in range(5)]
        open_streams(ratings, calls, readers)
        await until_idle()
        sent = [len(reader.messages) for reader in readers]
        readers[0].accepts = False
        writer.put(3)
        async with asyncio.timeout(TIMEOUT_S):
            while [len(reader.messages) for reader in readers] != [each + 1 for each in sent]:
                await asyncio.sleep(0)
        assert [reader.offered for reader in readers] == [0, 1, 1, 1, 1]
        assert len(asyncio.all_tasks()) == 2, "who takes nothing has a task"
        cut(readers)
        await until_idle()
        assert calls.streams == 0
        with store.snapshot() as snapshot:
            assert not ratings.asker.streams.lags(snapshot)

    asyncio.run(talk())


class SlowReader(Reader):
    """A reader of whom each message takes a millisecond; it adds to the last of `passes`, the loop's."""

    def __init__(self, calls: Calls, passes: list[int]) -> None:
        super().__init__(calls)
        self._passes = passes

    @override
    def offer(self, message: bytes) -> bool:
        time.sleep(0.001)
        self._passes[-1] += 1
        return super().offer(message)


@pytest.mark.parametrize("timeout_s", [None, 3_600.0], ids=["parked", "task"])
def test_progress_that_is_due_at_once_comes_in_turns(timeout_s: float | None) -> None:
    """As it is after a change for all: in between others are served."""
    ratings = make_ratings()
    writer = Writer(ratings)
    writer.put(1)

    async def talk() -> None:
        calls, passes = Calls(), [0]
        readers = [SlowReader(calls, passes) for _ in range(40)]
        for reader in readers:
            reader.timeout_s = timeout_s
        open_streams(ratings, calls, readers, subscribe_options=options(**OFTEN))

        async def until_offered(count: int) -> None:
            async with asyncio.timeout(TIMEOUT_S):
                while any(reader.offered < count for reader in readers):
                    passes.append(0)
                    await asyncio.sleep(0)

        await until_offered(1)
        writer.put(1)
        await until_offered(2)
        passes.clear()
        await until_offered(5)
        assert max(passes) < 10
        cut(readers)
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)

    asyncio.run(talk())


def test_progress_of_streams_with_the_same_message_is_due_at_other_times() -> None:
    paces = [Pace(LocalCall(None), 10.0, DEFAULT_LIMITS) for _ in range(100)]
    for pace in paces:
        pace.sent_s = time.monotonic()
    due_s = [pace.seconds_to_progress() for pace in paces]
    assert min(due_s) > 8.9
    assert max(due_s) <= 10
    assert max(due_s) - min(due_s) > 0.5


def test_what_is_for_many_groups_comes_in_turns() -> None:
    """Two thousand of them took the event loop for seconds, in which no Get was answered."""
    ratings = make_ratings()
    writer = Writer(ratings)
    writer.put(0)

    async def talk() -> None:
        calls, passes = Calls(), [0]
        readers = [SlowReader(calls, passes) for _ in range(300)]
        for number, reader in enumerate(readers):
            open_streams(ratings, calls, [reader], keys=[{"movie_id": 0}, {"movie_id": 1_000 + number}])
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)
        passes[:] = [0]
        writer.put(0)
        async with asyncio.timeout(TIMEOUT_S):
            while sum(passes) < len(readers):
                passes.append(0)
                await asyncio.sleep(0)
        assert max(passes) < 100
        assert [reader.offered for reader in readers] == [1] * len(readers)
        cut(readers)

    asyncio.run(talk())


@pytest.mark.parametrize("parks", [False, True], ids=["task", "parked"])
def test_progress_comes_behind_what_has_yet_to_have_its_turn(*, parks: bool) -> None:
    """Its token says that the client has all before it."""
    ratings, turns = make_ratings(limits=QueryLimits(publish_sent_max=1)), TurnsByHand()
    writer = Writer(ratings)
    writer.put(1, 2, 3)

    async def talk() -> None:
        copies = {movie_id: Copy() for movie_id in (1, 2, 3)}
        async with AsyncExitStack() as stack:
            calls = {
                movie_id: await stack.enter_async_context(
                    taking(ratings, "", parks=parks, turns=turns, movie_id=movie_id)
                )
                for movie_id in copies
            }
            for movie_id, call in calls.items():
                while copies[movie_id].phase != SUBSCRIBE_PHASE_CURRENT:
                    await take(call, copies[movie_id], ratings)
            writer.put(1, 2, 3)
            while any(call.messages.empty() for call in calls.values()):
                await asyncio.sleep(0.001)
                while len(turns.waiting) > 2:  # of groups; progress comes before them
                    turns.waiting.pop()()
            for movie_id, call in calls.items():
                await take(call, copies[movie_id], ratings)
                assert copies[movie_id].counts == {movie_id: writer.counts[movie_id]}
            while turns.waiting:
                turns.give()
            for movie_id, call in calls.items():
                while not call.messages.empty():
                    await take(call, copies[movie_id], ratings)
                assert copies[movie_id].given == 2

    asyncio.run(talk())


@pytest.mark.parametrize("parks", [False, True], ids=["task", "parked"])
def test_the_bytes_of_a_message_that_was_accepted_are_not_kept(*, parks: bool) -> None:
    """Until the next progress, up to a minute: nothing would bound them."""
    ratings = make_ratings()
    writer = Writer(ratings)
    writer.put(1)

    async def talk() -> None:
        copy = Copy()
        async with taking(ratings, "", parks=parks) as call:
            await until(call, copy, ratings, writer)
            writer.put(1)
            await until(call, copy, ratings, writer)
            assert call.taken == 1
            assert not [each for each in gc.get_objects() if isinstance(each, feed.Message)]

    asyncio.run(talk())


def _no_store(*_: object) -> NoReturn:
    raise StoreUnavailable("away")
