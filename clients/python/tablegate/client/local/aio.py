"""A local table for asyncio. A read of some keys is shorter than a turn of the loop; a longer one is in a thread.

Who waits, waits in the loop: a thread that waits cannot be cancelled, and the loop has few for all that read. To open
and to close a table takes a thread of its own, so that none has to wait for those either.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import datetime
from typing import Any, Generic, Self, TypeVar

from google.protobuf.message import Message

from tablegate.client.events import Key
from tablegate.client.local.channel import AsyncLocalChannel
from tablegate.client.local.freshness import DEFAULT_LIMITS, LocalLimits
from tablegate.client.local.table import LocalTable as BlockingTable
from tablegate.client.local.table import Row
from tablegate.client.streams import Method

__all__ = ["LocalTable"]

Answer = TypeVar("Answer")


class LocalTable(Generic[Row]):
    """`tablegate.client.local.LocalTable` for asyncio: its names, its arguments, its errors.

    `method` is of a stub of `tablegate.client.open_channel`, as a thread follows the subscription. The table is opened
    by `async with`.
    """

    def __init__(
        self,
        method: Method,
        request: Message,
        directory: str | os.PathLike[str],
        *,
        row: type[Row],
        limits: LocalLimits = DEFAULT_LIMITS,
    ) -> None:
        self._open: Callable[[], BlockingTable[Row]] = lambda: BlockingTable(
            method, request, directory, row=row, limits=limits
        )
        self._opened: BlockingTable[Row] | None = None

    async def __aenter__(self) -> Self:
        opening = _begun(self._open)
        try:
            self._opened = await asyncio.wrap_future(opening)
        except asyncio.CancelledError:
            # The thread goes on, and what it opens would keep the directory.
            await asyncio.shield(asyncio.wrap_future(_begun(lambda: _close_opened(opening))))
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End it; the directory keeps the rows for the next one."""
        if self._opened is not None:
            # Also where the task is cancelled: a thread that is left behind would keep the directory.
            await asyncio.shield(asyncio.wrap_future(_begun(self._opened.close)))

    @property
    def _table(self) -> BlockingTable[Row]:
        if self._opened is None:
            raise RuntimeError("the local table is not open: use it by `async with`")
        return self._opened

    @property
    def channel(self) -> Any:
        """What stubs of asyncio are made with whose queries this table answers."""
        return AsyncLocalChannel(self._table.queries)

    @property
    def is_current(self) -> bool:
        """Whether the stream is up, and the copy was complete as of `as_of`."""
        return self._table.is_current

    @property
    def as_of(self) -> datetime | None:
        """Nothing is missing that was in the changelog before this (UTC); None before the first complete snapshot."""
        return self._table.as_of

    @property
    def consistency_token(self) -> str:
        """With it as `at_least`, a gateway answers no older than this copy is; "" before the first snapshot."""
        return self._table.consistency_token

    @property
    def age_s(self) -> float | None:
        """Seconds since `as_of`; None before this process has heard from a gateway how old the rows are."""
        return self._table.age_s

    @property
    def trouble(self) -> str:
        """Why it is not current, in a sentence; "" where it is, or nothing is known."""
        return self._table.trouble

    async def wait_current(self, timeout_s: float | None = None) -> None:
        """Return when the copy is current; raise as the other form does."""
        table = self._table
        is_over = await self._until(lambda: table.is_current or table._has_ended, timeout_s)
        table._waited_current(timeout_s, is_over=is_over)

    async def get(self, key: Key, *, max_staleness_s: float | None = None, max_wait_s: float = 0.0) -> Row | None:
        """Return the row of a key; None where there is none."""
        await self._fresh(max_staleness_s, max_wait_s)
        return self._table.get(key)

    async def batch_get(
        self, keys: Iterable[Key], *, max_staleness_s: float | None = None, max_wait_s: float = 0.0
    ) -> list[Row | None]:
        """Return the rows of keys in their order, all of one moment; None for a key without one."""
        await self._fresh(max_staleness_s, max_wait_s)
        return await asyncio.to_thread(self._table.batch_get, keys)

    async def range(
        self, *leading: Any, max_staleness_s: float | None = None, max_wait_s: float = 0.0, **bounds: Any
    ) -> list[Row]:
        """Return rows in key order, by the arguments of the other form."""
        await self._fresh(max_staleness_s, max_wait_s)
        return await asyncio.to_thread(lambda: self._table.range(*leading, **bounds))

    async def scan(self, *, max_staleness_s: float | None = None, max_wait_s: float = 0.0) -> AsyncIterator[Row]:
        """Yield all rows in key order, each as it is when it comes; a row that is there all the time comes once."""
        await self._fresh(max_staleness_s, max_wait_s)
        rows = self._table.pages()
        while (page := await asyncio.to_thread(next, rows, None)) is not None:
            for row in page:
                yield row

    async def count(self, *, max_staleness_s: float | None = None, max_wait_s: float = 0.0) -> int:
        """Return how many rows there are."""
        await self._fresh(max_staleness_s, max_wait_s)
        return await asyncio.to_thread(self._table.count)

    def key_of(self, row: Row) -> Key:
        """Return the key of a row, as `get` is given it."""
        return self._table.key_of(row)

    async def _fresh(self, max_staleness_s: float | None, max_wait_s: float) -> None:
        """Return once the copy is as fresh as that; raise `LocalReadError` after `max_wait_s`."""
        if max_staleness_s is None:
            return
        table, asked_s = self._table, max_staleness_s
        if max_wait_s > 0:
            await self._until(lambda: table._has_ended or not table._unmet_reason(asked_s), max_wait_s)
        table._require(asked_s, 0.0)

    async def _until(self, is_met: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until `is_met`, or so long; return whether it is met."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # of a loop that is closed
                loop.call_soon_threadsafe(changed.set)

        with self._table._listened(wake), suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not is_met():
                    await changed.wait()
                    changed.clear()
        return is_met()


def _begun(do: Callable[[], Answer]) -> Future[Answer]:
    """Begin it in a thread of its own, which ends with it."""
    thread = ThreadPoolExecutor(1, "tablegate-local-table-of-asyncio")
    try:
        return thread.submit(do)
    finally:
        thread.shutdown(wait=False)


def _close_opened(opening: Future[BlockingTable[Any]]) -> None:
    wait([opening])
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
