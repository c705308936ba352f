"""Calls at work: from a message to its answer, with deadline, limits and cancellation, for every protocol."""

import asyncio
import logging
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import aclosing, contextmanager

from gateway.door.exchange import Exchange
from gateway.query.call import DuplexMethod, Fields, StreamMethod, UnaryMethod, close_unawaited
from gateway.query.errors import DeadlineExceeded, Internal, Overloaded, QueryError, ShuttingDown

STREAMS_MAX = 2_000  # a process; each holds some 0.5 MB at worst
CALLS_MAX = 5_000  # unary calls that wait at once, a process: those that ask for freshness

_logger = logging.getLogger("gateway.door")


class ServedCall(ABC):
    """A call, as its handler sees it (`gateway.query.call.Call`), and the ways to answer it, each protocol's own.

    `timeout_s`: what the client asked for, None where it did not; set by the protocol.
    """

    __slots__ = ("_calls", "_started", "exchange", "timeout_s", "trailer")

    def __init__(self, calls: "Calls", exchange: Exchange) -> None:
        self.exchange = exchange
        self.timeout_s: float | None = None
        self.trailer: Fields = ()
        self._calls = calls
        self._started = time.monotonic()

    def time_left_s(self) -> float | None:
        """Return the seconds left to the call's deadline, 0 when it is over; None without a deadline."""
        if self.timeout_s is None:
            return None
        return max(0.0, self.timeout_s - (time.monotonic() - self._started))

    @property
    def draining(self) -> bool:
        """Return whether the gateway is going away."""
        return self._calls.draining

    def set_trailer(self, trailer: Fields) -> None:
        """Send these fields after the answer."""
        self.trailer = trailer

    @abstractmethod
    def fail(self, error: QueryError) -> None:
        """Answer with an error; of a stream, this may come after messages."""

    def answer(self, message: bytes) -> None:
        """Answer a unary call."""
        raise NotImplementedError

    async def send(self, message: bytes) -> None:
        """Send a message of a stream."""
        raise NotImplementedError

    def offer(self, message: bytes) -> bool:
        """Send a message of a stream, if that can be at once; else return False and send nothing."""
        raise NotImplementedError

    def end(self) -> None:
        """End a stream."""
        raise NotImplementedError


class Calls:
    """What is at work in this process. One event loop."""

    def __init__(self) -> None:
        self.draining = False
        self._waiting = 0
        self._streams = 0
        self._tasks: set[asyncio.Future[None]] = set()
        self._duplex: set[asyncio.Future[None]] = set()

    def unary(self, call: ServedCall, path: str, method: UnaryMethod, message: bytes) -> None:
        """Serve a unary call: now, or in a task where its handler waits."""
        timeout_s = call.timeout_s
        call.timeout_s = method.default_timeout_s if timeout_s is None else min(timeout_s, method.max_timeout_s)
        try:
            answer = method.handler(message, call)
        except Exception as error:  # noqa: BLE001  whatever it is, the client gets a status with details
            call.fail(as_query_error(error, path))
            return
        if isinstance(answer, bytes):
            call.answer(answer)
        else:
            self._start(call, self._wait(call, path, answer)).add_done_callback(lambda _: close_unawaited(answer))

    def stream(self, call: ServedCall, path: str, method: StreamMethod, message: bytes) -> None:
        """Serve a server stream, in a task."""
        self._start(call, self._stream(call, path, method.handler(message, call)))

    def duplex(self, call: ServedCall, path: str, method: DuplexMethod, messages: AsyncIterator[bytes]) -> None:
        """Serve a stream each way, in a task."""
        task = self._start(call, self._stream(call, path, method.handler(messages, call)))
        self._duplex.add(task)
        task.add_done_callback(self._duplex.discard)

    def drain(self) -> None:
        """Let streams end by themselves; end those that may wait for their client for ever."""
        self.draining = True
        for task in self._duplex:
            task.cancel()

    async def finish(self, grace_s: float) -> None:
        """Wait for what is at work, at most `grace_s`; then end it, and tell its clients."""
        self.drain()
        until = time.monotonic() + grace_s
        while self._tasks and (left_s := until - time.monotonic()) > 0:
            await asyncio.wait(self._tasks, timeout=left_s)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, call: ServedCall, work: Awaitable[None]) -> asyncio.Future[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        call.exchange.on_gone = task.cancel
        return task

    async def _wait(self, call: ServedCall, path: str, answer: Awaitable[bytes]) -> None:
        self._waiting += 1
        try:
            with self._telling(call, path):
                if self._waiting > CALLS_MAX:
                    raise Overloaded(f"more than {CALLS_MAX} calls wait; back off")
                async with asyncio.timeout(call.time_left_s()):
                    message = await answer
                call.answer(message)
        finally:
            self._waiting -= 1

    async def _stream(self, call: ServedCall, path: str, messages: AsyncIterator[bytes]) -> None:
        self._streams += 1
        try:
            with self._telling(call, path):
                if self._streams > STREAMS_MAX:
                    raise Overloaded(f"more than {STREAMS_MAX} streams are open; back off")
                if self.draining:
                    raise ShuttingDown
                async with asyncio.timeout(call.time_left_s()), aclosing(messages):  # type: ignore[type-var]
                    async for message in messages:
                        await call.send(message)
                call.end()
        finally:
            self._streams -= 1

    @contextmanager
    def _telling(self, call: ServedCall, path: str) -> Iterator[None]:
        """Tell the client what went wrong inside."""
        try:
            yield
        except TimeoutError:
            call.fail(DeadlineExceeded())
        except asyncio.CancelledError:
            if self.draining:  # otherwise its client is gone
                call.fail(ShuttingDown())
            raise
        except Exception as error:  # noqa: BLE001  as above
            call.fail(as_query_error(error, path))


def as_query_error(error: Exception, path: str) -> QueryError:
    """Return what the client is told. Our own mistakes are logged: where they were, not with which values."""
    if isinstance(error, QueryError):
        return error
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    _logger.error("a handler failed", extra={"method": path, "error": type(error).__name__, "stack": where})
    return Internal()
