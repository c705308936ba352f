import asyncio
import inspect
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

from tablegate.gateway.http.rpc.calls import Calls, ServedCall
from tablegate.gateway.query.call import Call, DuplexMethod, UnaryMethod
from tablegate.gateway.query.errors import QueryError, ShuttingDown


class RecordedCall(ServedCall):
    """Keeps how it ended."""

    def __init__(self, calls: Calls) -> None:
        super().__init__(calls, cast(Any, SimpleNamespace(on_gone=None, principal=None, address="")))
        self.ended: list[object] = []

    def answer(self, message: bytes) -> None:
        self.ended.append(message)

    def fail(self, error: QueryError) -> None:
        self.ended.append(error)


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
