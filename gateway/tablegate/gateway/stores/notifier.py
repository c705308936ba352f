"""The notifier: passes on what has changed in the store, so that nobody polls. One event loop.

Decision: docs/decisions/0054-notifications-name-what-changed.md
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable

from tablegate.gateway.stores.base import StoredPartition
from tablegate.gateway.stores.changes import StoreChanges


class Notifier:
    """Tells listeners what has changed, and wakes whoever waits for that. A notification may be for nothing."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()
        self._waiting_for: defaultdict[StoredPartition, set[asyncio.Future[None]]] = defaultdict(set)
        self._on_change: list[Callable[[StoreChanges], None]] = []
        self._on_shutdown: list[Callable[[], None]] = []

    def listen(self, *, on_change: Callable[[StoreChanges], None], on_shutdown: Callable[[], None]) -> None:
        """Call these at each notification and at the shutdown, from now on."""
        self._on_change.append(on_change)
        self._on_shutdown.append(on_shutdown)

    def notify(self, changes: StoreChanges | None = None) -> None:
        """Wake those who wait for what has changed; None: everything may have."""
        changes = StoreChanges.of_everything() if changes is None else changes
        for waiting in self._waiting:
            _end(waiting)
        if changes.everything:
            for waiting_for in self._waiting_for.values():
                for waiting in waiting_for:
                    _end(waiting)
        elif self._waiting_for:
            for partition in changes:
                for waiting in self._waiting_for.get(partition, ()):
                    _end(waiting)
        for on_change in self._on_change:
            on_change(changes)

    def shutdown(self) -> None:
        """Wake everyone, those too whom a change would not: the process is to end."""
        self.notify()
        for on_shutdown in self._on_shutdown:
            on_shutdown()

    async def wait(self, timeout_s: float, partitions: Iterable[StoredPartition] | None = None) -> None:
        """Return when one of `partitions` (None: anything at all) may have changed, or after `timeout_s`.

        Whoever reads first, and waits without another await in between, misses none.
        """
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()
        names = None if partitions is None else list(partitions)
        if names is None:
            self._waiting.add(waiting)
        else:
            for name in names:
                self._waiting_for[name].add(waiting)
        timer = loop.call_later(timeout_s, _end, waiting)
        try:
            await waiting
        finally:
            timer.cancel()
            self._waiting.discard(waiting)
            for name in names or ():
                self._leave(name, waiting)

    def _leave(self, name: StoredPartition, waiting: asyncio.Future[None]) -> None:
        others = self._waiting_for[name]
        others.discard(waiting)
        if not others:
            del self._waiting_for[name]


def _end(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
