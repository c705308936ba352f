"""What `streams_aio.py` needs of asyncio. `concurrency.py` has the same names for threads, without `await`.

Every object is used in one event loop. What is sync here returns at once in both.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import nullcontext
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc import aio

STARTS_AT_ONCE = False
"""Whether a live table starts when it is made. It cannot: there may be no event loop yet."""

Channel = aio.Channel
Lock = nullcontext
"""Coroutines of one event loop need no lock between two awaits."""


class StopSignal:
    """Says that something has been closed, to whoever waits."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Close it."""
        self._event.set()

    def is_set(self) -> bool:
        """Return whether it is closed."""
        return self._event.is_set()

    async def wait(self, timeout_s: float) -> bool:
        """Wait until it is closed, or so long; return whether it is closed."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


class Condition(asyncio.Condition):
    """A condition that can be awaited for a limited time."""

    async def wait_until(self, is_met: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until `is_met`, or so long; return whether it is met. The caller holds the condition."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.wait_for(is_met)
        except TimeoutError:
            return False
        return True


class Task:
    """A coroutine that runs in the background. It starts when this is made."""

    def __init__(self, run: Callable[..., Coroutine[Any, Any, None]], *arguments: Any, name: str) -> None:
        self._task = asyncio.create_task(run(*arguments), name=name)

    def cancel(self) -> None:
        """Ask it to end."""
        self._task.cancel()

    async def join(self) -> None:
        """Wait until it has ended."""
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()  # asyncio would log an exception that nobody has asked for


class MessageReader:
    """Reads the messages of one stream after the other, and gives up on a stream that is silent for `silence_s`."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._call: Any = None

    def begin(self, call: Any) -> None:
        """Read another stream from now on."""
        self._call = call

    async def read(self) -> Any:
        """Return the next message, None at the end; raise `grpc.RpcError`, or `TimeoutError` after a silence."""
        async with asyncio.timeout(self._silence_s):
            message = await self._call.read()
        return message if isinstance(message, Message) else None  # `aio.EOF`

    def stop(self) -> None:
        """Read no more."""


async def finish(events: AsyncGenerator[Any, None]) -> None:
    """Close a generator."""
    await events.aclose()


_calls: set[asyncio.Task[None]] = set()  # the event loop itself keeps no task alive


def begin_call(channel: Channel, path: str, timeout_s: float, on_done: Callable[[bool], None]) -> None:
    """Call a method with an empty request, and return at once; `on_done` gets whether it was answered."""

    async def call() -> None:
        method: Any = channel.unary_unary(path, None, None)
        try:
            await method(b"", timeout=timeout_s)
        except grpc.RpcError:
            on_done(False)
        else:
            on_done(True)

    task = asyncio.create_task(call())
    _calls.add(task)
    task.add_done_callback(_calls.discard)
