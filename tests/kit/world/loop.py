"""An event loop whose time a world moves: nothing waits, and the same seed runs the same steps."""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from unittest import mock

TURNS_MAX = 20_000  # without time passing: more is a loop that waits for nothing


class _NumberedFuture(asyncio.Future[Any]):
    """A future whose hash is its number: a set of them has the same order in any process."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class _NumberedTask(asyncio.Task[Any]):
    """A task whose hash is its number."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], *, number: int, **more: Any) -> None:
        self.number = number  # before the task is kept in a set
        super().__init__(coroutine, **more)

    def __hash__(self) -> int:
        return self.number


class StillLoop(asyncio.SelectorEventLoop):
    """An event loop with the time of `now_s`; `turn` does everything that can be done at this moment."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        super().__init__()
        self._now_s = now_s
        # A timer that is due in less than a nanosecond would run at once, and who waits for it might wait again and
        # again, as no time passes.
        self._clock_resolution = 0.0
        self._numbers = count(1)
        self.set_task_factory(self._make_task)

    def create_future(self) -> asyncio.Future[Any]:
        future = _NumberedFuture(loop=self)
        future.number = next(self._numbers)
        return future

    def _make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> asyncio.Task[Any]:
        return _NumberedTask(coroutine, number=next(self._numbers), loop=loop, **more)

    def time(self) -> float:
        return self._now_s()

    def turn(self) -> None:
        """Run until there is nothing to do before time passes."""
        for _ in range(TURNS_MAX):
            self.call_soon(self.stop)
            self.run_forever()
            if not self._ready:  # type: ignore[attr-defined]
                return
        raise AssertionError("something runs on and on, though no time passes")


@contextmanager
def still_time(now_s: Callable[[], float], seed: int) -> Iterator[StillLoop]:
    """Give an event loop for one world, with one time and one source of chance for all that runs meanwhile.

    Queries read `time.monotonic` and draw from `random` themselves. Both are the process's own again afterwards.
    """
    state = random.getstate()
    loop = StillLoop(now_s)
    try:
        random.seed(seed)
        with mock.patch.object(time, "monotonic", now_s):
            yield loop
    finally:
        random.setstate(state)
        loop.close()
