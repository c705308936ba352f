import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tablegate.gateway.access.gate import Gate
from tablegate.gateway.http.rpc.calls import CallLimits, Calls, ServedCall
from tablegate.gateway.query.call import Call, DuplexMethod, Parked, StreamMethod, UnaryMethod
from tablegate.gateway.query.errors import NotAllowed, Overloaded, QueryError, ShuttingDown
from tests.kit.gateways_in_process.tenants import write_access
from tests.kit.table.filled import catalogue_of


class RecordedCall(ServedCall):
    """Keeps how it ended."""

    def __init__(self, calls: Calls, address: str = "") -> None:
        exchange = SimpleNamespace(on_gone=None, principal=None, address=address, body=b"", headers={})
        super().__init__(calls, cast(Any, exchange))
        self.sent: list[bytes] = []
        self.ended: list[object] = []

    def answer(self, message: bytes) -> None:
        self.ended.append(message)

    def fail(self, error: QueryError) -> None:
        self.ended.append(error)

    async def send(self, message: bytes) -> None:
        self.sent.append(message)

    def end(self) -> None:
        self.ended.append("end")


async def _wait() -> bytes:
    await asyncio.sleep(30)
    return b""


def test_a_call_whose_client_goes_before_it_begins_leaves_nothing_behind() -> None:
    answer = _wait()

    async def run() -> RecordedCall:
        calls = Calls()
        call = RecordedCall(calls)
        calls.unary(call, "/test.Service/Wait", UnaryMethod(lambda _data, _call: answer, 20.0, 20.0), b"")
        assert call.exchange.on_gone is not None
        call.exchange.on_gone()  # in the same turn: its task has not run yet
        await calls.finish(5)
        return call

    assert asyncio.run(run()).ended == []
    assert inspect.getcoroutinestate(answer) == inspect.CORO_CLOSED


def test_a_call_that_has_yet_to_wait_hears_of_a_new_policy(tmp_path: Path) -> None:
    policy = '[api_keys]\nfile = "keys.toml"\n\n[[rule]]\ntables = ["ratings"]\n'
    file = write_access(tmp_path, policy)
    path, method = (
        "/examples.ratings.v1.RatingsService/GetRating",
        UnaryMethod(lambda _data, _call: _wait(), 20.0, 20.0),
    )

    async def run() -> RecordedCall:
        gate = Gate(file, catalogue_of())
        calls = Calls(gate=gate)
        call = RecordedCall(calls)
        cast(Any, call.exchange).headers, cast(Any, call.exchange).method = {b"authorization": b"Bearer ann"}, b"POST"
        calls.admit(call, path, method)
        calls.unary(call, path, method, b"")
        file.write_text(f'{policy}hide = ["average_rating"]\n')
        for _ in range(2):  # once it sees the file, once that nobody writes it any more
            gate.refresh()
        calls.check_streams()  # before the task of the call has run
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)
        gate.close()
        return call

    [error] = asyncio.run(run()).ended
    assert isinstance(error, NotAllowed)


def test_a_drain_ends_streams_that_wait_for_their_client() -> None:
    async def echo(messages: AsyncIterator[bytes], _call: Call) -> AsyncIterator[bytes]:
        async for message in messages:
            yield message

    async def never() -> AsyncIterator[bytes]:
        await asyncio.sleep(30)
        yield b""

    async def run() -> RecordedCall:
        calls = Calls()
        call = RecordedCall(calls)
        calls.duplex(call, "/test.Service/Echo", DuplexMethod(echo), never())
        await asyncio.sleep(0)
        calls.drain()
        await calls.finish(20)
        return call

    [error] = asyncio.run(run()).ended
    assert isinstance(error, ShuttingDown)


class _Waiting:
    """A stream that sends a message, is parked, sends another one once it is woken, and ends."""

    def __init__(self) -> None:
        self.left = 0
        self._wake: Callable[[], None] = lambda: None

    def handler(self, _data: bytes, _call: Call) -> AsyncIterator[bytes]:
        return self._begin()

    async def _begin(self) -> AsyncIterator[bytes]:
        yield b"first"
        raise Parked(self)

    def wait(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    async def messages(self) -> AsyncIterator[bytes]:
        yield b"second"

    def leave(self) -> None:
        self.left += 1

    def wake(self) -> None:
        self._wake()


async def _parked(calls: Calls, waiting: _Waiting) -> RecordedCall:
    call = RecordedCall(calls)
    calls.stream(call, "/test.Service/Wait", StreamMethod(waiting.handler), b"")
    while call.sent != [b"first"] or len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0)
    assert calls.streams == 1
    return call


def test_a_parked_stream_has_no_task_and_goes_on_when_it_is_woken() -> None:
    async def run() -> None:
        calls, waiting = Calls(), _Waiting()
        call = await _parked(calls, waiting)
        waiting.wake()
        await calls.finish(20)
        assert (call.sent, call.ended, waiting.left) == ([b"first", b"second"], ["end"], 0)
        assert calls.streams == 0
        assert call.exchange.on_gone is None

    asyncio.run(run())


def test_a_parked_stream_whose_client_goes_is_left() -> None:
    async def run(*, rounds: int | None) -> None:
        calls, waiting = Calls(), _Waiting()
        call = await _parked(calls, waiting)
        if rounds is not None:
            waiting.wake()
            for _ in range(rounds):  # none: its task has not begun; one: it waits for its turn
                await asyncio.sleep(0)
        assert call.exchange.on_gone is not None
        call.exchange.on_gone()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (call.sent, call.ended, waiting.left) == ([b"first"], [], 1)
        assert calls.streams == 0
        assert [code for _, code in calls.measures.calls] == ["CANCELLED"]

    asyncio.run(run(rounds=None))
    asyncio.run(run(rounds=0))
    asyncio.run(run(rounds=1))


def test_a_parked_stream_makes_room_for_another_client() -> None:
    async def run() -> None:
        calls, mine, others = Calls(CallLimits(streams_max=2)), _Waiting(), _Waiting()
        first, second = await _parked(calls, _Waiting()), RecordedCall(calls)
        calls.stream(second, "/test.Service/Wait", StreamMethod(mine.handler), b"")
        while calls.streams < 2 or len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)
        other = RecordedCall(calls, address="192.0.2.7")
        calls.stream(other, "/test.Service/Wait", StreamMethod(others.handler), b"")
        while not other.sent:
            await asyncio.sleep(0)
        [error] = second.ended
        assert isinstance(error, Overloaded)
        assert (first.ended, mine.left, calls.streams) == ([], 1, 2)

    asyncio.run(run())


def test_parked_streams_go_on_when_the_gateway_ends() -> None:
    async def run() -> None:
        calls, waiting = Calls(), _Waiting()
        call = await _parked(calls, waiting)
        await calls.finish(20)
        assert (call.sent, call.ended) == ([b"first", b"second"], ["end"])

    asyncio.run(run())


def test_answers_at_once_take_no_task() -> None:
    calls = Calls()  # and no event loop
    call = RecordedCall(calls)
    calls.unary(call, "/test.Service/Now", UnaryMethod(lambda data, _call: data, 2.0, 5.0), b"now")
    assert call.ended == [b"now"]


def test_a_client_gets_no_more_time_than_the_method_allows() -> None:
    calls = Calls()
    for asked_s, given_s in ((None, 2.0), (3.0, 3.0), (9.0, 5.0)):
        call = RecordedCall(calls)
        call.timeout_s = asked_s
        calls.unary(call, "/test.Service/Now", UnaryMethod(lambda data, _call: data, 2.0, 5.0), b"")
        assert call.timeout_s == given_s
