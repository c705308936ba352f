"""What `streams.py` needs of threads. `concurrency_aio.py` has the same names for asyncio.

Decision: docs/decisions/0056-the-client-for-threads-is-generated.md
"""

import threading
import time
from collections.abc import Callable, Generator
from typing import Any

import grpc

STARTS_AT_ONCE = True
"""Whether a live table starts when it is made."""

Channel = grpc.Channel
Lock = threading.Lock

CHECKS = 4  # of a silent stream, in the time of a silence


class StopSignal:
    """Says that something has been closed, to whoever waits. Any thread may use it."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Close it."""
        self._event.set()

    def is_set(self) -> bool:
        """Return whether it is closed."""
        return self._event.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is closed, or so long; return whether it is closed."""
        return self._event.wait(timeout_s)


class Condition(threading.Condition):
    """A condition, by the name that the one of asyncio has."""

    def wait_until(self, is_met: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until `is_met`, or so long; return whether it is met. The caller holds the condition."""
        return self.wait_for(is_met, timeout_s)


class Task:
    """A function that runs in a thread of its own. It starts when this is made, and does not keep the process alive."""

    def __init__(self, run: Callable[..., None], *arguments: Any, name: str) -> None:
        self._thread = threading.Thread(target=run, args=arguments, name=name, daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Nothing: a thread ends when its call is cancelled, or when it sees that it is closed."""

    def join(self) -> None:
        """Wait until it has ended; in the thread itself, return at once."""
        if threading.current_thread() is not self._thread:
            self._thread.join()


class MessageReader:
    """Reads the messages of one stream after the other, and gives up on a stream that is silent for `silence_s`.

    A blocking read has no time limit of its own. So a thread cancels the call of a read that lasts too long.
    """

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._call: Any = None
        self._reading_since_s: float | None = None  # None between two reads: a slow consumer is no silence
        self._is_silent = False
        self._stopped = threading.Event()
        threading.Thread(target=self._cancel_silent_calls, name="tablegate-watch", daemon=True).start()

    def begin(self, call: Any) -> None:
        """Read another stream from now on."""
        self._reading_since_s, self._call, self._is_silent = None, call, False

    def read(self) -> Any:
        """Return the next message, None at the end; raise `grpc.RpcError`, or `TimeoutError` after a silence."""
        self._reading_since_s = time.monotonic()
        try:
            return next(self._call, None)
        except grpc.RpcError:
            if self._is_silent:
                raise TimeoutError from None
            raise
        finally:
            self._reading_since_s = None

    def stop(self) -> None:
        """Read no more."""
        self._stopped.set()

    def _cancel_silent_calls(self) -> None:
        while not self._stopped.wait(self._silence_s / CHECKS):
            since_s, call = self._reading_since_s, self._call
            if since_s is None or self._is_silent or time.monotonic() - since_s < self._silence_s:
                continue
            self._is_silent = True
            call.cancel()


def finish(events: Generator[Any, None, None]) -> None:
    """Nothing: the generator may be running in another thread, and ends as its call has been cancelled."""


def begin_call(channel: Channel, path: str, timeout_s: float, on_done: Callable[[bool], None]) -> None:
    """Call a method with an empty request, and return at once; `on_done` gets whether it was answered."""
    method: Any = channel.unary_unary(path, None, None)
    call = method.future(b"", timeout=timeout_s)
    call.add_done_callback(lambda done: on_done(done.code() is grpc.StatusCode.OK))
