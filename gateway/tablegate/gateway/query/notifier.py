"""The bell: rings whenever the store has changed, so that nobody polls. One event loop."""

import asyncio
from collections.abc import Callable


class Notifier:
    """Wakes whoever waits. What happened is for them to look up: rings may be joined, or for nothing."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()
        self._listeners: list[Callable[[], None]] = []
        self._sleepers: list[Callable[[], None]] = []

    def listen(self, *, on_ring: Callable[[], None], on_toll: Callable[[], None]) -> None:
        """Call these at each ring and each toll, from now on."""
        self._listeners.append(on_ring)
        self._sleepers.append(on_toll)

    def ring(self) -> None:
        """Wake all who wait."""
        for waiting in self._waiting:
            _end(waiting)
        for on_ring in self._listeners:
            on_ring()

    def toll(self) -> None:
        """Wake everyone, those too whom a change would not: the process is to end."""
        self.ring()
        for on_toll in self._sleepers:
            on_toll()

    async def wait(self, timeout_s: float) -> None:
        """Return at the next ring, or after `timeout_s`.

        Whoever looks first, and waits without another await in between, misses none.
        """
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()
        self._waiting.add(waiting)
        timer = loop.call_later(timeout_s, _end, waiting)
        try:
            await waiting
        finally:
            timer.cancel()
            self._waiting.discard(waiting)


def _end(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
