"""An event loop whose time a world moves: nothing waits, and the same seed runs the same steps."""

import asyncio
import contextvars
import gc
import heapq
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from unittest import mock

PASSES_MAX = 20_000  # without time passing: more is a loop that waits for nothing


def _number_of(future: Any) -> int:
    """Return the hash of a future: a number, so that a set of them has the same order in any process."""
    try:
        return int(future.number)
    except AttributeError:
        future.number = next(future.get_loop().numbers)
        return int(future.number)


class _NumberedFuture(asyncio.Future[Any]):
    __hash__ = _number_of


class _NumberedTask(asyncio.Task[Any]):
    __hash__ = _number_of


class _Handle:
    """A callback that is to run, unless it is cancelled before."""

    __slots__ = ("arguments", "callback", "context", "is_cancelled")

    def __init__(
        self, callback: Callable[..., object], arguments: tuple[Any, ...], context: contextvars.Context | None
    ) -> None:
        self.callback = callback
        self.arguments = arguments
        self.context = contextvars.copy_context() if context is None else context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled


class StillLoop(asyncio.BaseEventLoop):
    """An event loop with the time of `now_s`; `turn` does everything that can be done at this moment.

    It has no sockets and no threads, and half the cost of a loop that looks for them.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        super().__init__()
        self.numbers = count(1)  # of futures
        self._now_s = now_s
        self._soon: deque[_Handle] = deque()
        self._later: list[tuple[float, int, _Handle]] = []  # a heap
        self._timers = count(1)

    def create_future(self) -> asyncio.Future[Any]:
        return _NumberedFuture(loop=self)

    def create_task(self, coroutine: Any, **more: Any) -> asyncio.Task[Any]:
        return _NumberedTask(coroutine, loop=self, **more)

    def time(self) -> float:
        return self._now_s()

    def call_soon(
        self, callback: Callable[..., object], *arguments: Any, context: contextvars.Context | None = None
    ) -> Any:
        handle = _Handle(callback, arguments, context)
        self._soon.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # there is one thread

    def call_at(
        self, when: float, callback: Callable[..., object], *arguments: Any, context: contextvars.Context | None = None
    ) -> Any:
        handle = _Handle(callback, arguments, context)
        heapq.heappush(self._later, (when, next(self._timers), handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *arguments: Any, context: contextvars.Context | None = None
    ) -> Any:
        return self.call_at(self._now_s() + delay, callback, *arguments, context=context)

    def turn(self) -> None:
        """Run until there is nothing to do before time passes."""
        soon, later = self._soon, self._later
        for _ in range(PASSES_MAX):
            # One that is due at this very moment waits: who is called might wait again and again, as no time passes.
            now_s = self._now_s()
            while later and later[0][0] < now_s:
                soon.append(heapq.heappop(later)[2])
            if not soon:
                return
            for _ in range(len(soon)):
                handle = soon.popleft()
                if handle.is_cancelled:
                    continue
                try:
                    handle.context.run(handle.callback, *handle.arguments)
                except Exception as error:  # noqa: BLE001 - as each event loop does
                    self.call_exception_handler({"message": f"error in {handle.callback}", "exception": error})
        raise AssertionError("something runs on and on, though no time passes")

    def run_until_complete(self, future: Any) -> Any:
        """Return the result of what ends before time passes."""
        task = asyncio.ensure_future(future, loop=self)
        self.turn()
        assert task.done(), "it waits for time to pass"
        return task.result()


@contextmanager
def still_time(now_s: Callable[[], float], seed: int) -> Iterator[StillLoop]:
    """Give an event loop for one world, with one time and one source of chance for all that runs meanwhile.

    Queries read `time.monotonic` and draw from `random` themselves. Both are the process's own again afterwards.
    """
    state = random.getstate()
    loop = StillLoop(now_s)
    hooks, collects = sys.get_asyncgen_hooks(), gc.isenabled()
    try:
        gc.disable()  # it takes a tenth of the time, and closes generators at moments that no seed knows
        random.seed(seed)
        asyncio._set_running_loop(loop)
        sys.set_asyncgen_hooks(firstiter=loop._asyncgen_firstiter_hook, finalizer=loop._asyncgen_finalizer_hook)
        with mock.patch.object(time, "monotonic", now_s):
            yield loop
    finally:
        sys.set_asyncgen_hooks(*hooks)
        asyncio._set_running_loop(None)
        random.setstate(state)
        loop.close()
        if collects:
            gc.enable()
