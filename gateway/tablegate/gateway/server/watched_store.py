"""A worker's view of a store that may not be there yet, be away for a while, or be wiped and made anew under it."""

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from tablegate.gateway.stores.base import Snapshot, StoreReader, StoreUnavailable
from typing_extensions import override

SEEK_EVERY_S = 0.2  # a store that is away is tried so often

_logger = logging.getLogger("tablegate.gateway.server")


class WatchedStore(StoreReader):
    """A store reader that `refresh` opens, and opens again. One thread, but for the one that waits for the store."""

    def __init__(self, open_reader: Callable[[], StoreReader]) -> None:
        self._open_reader = open_reader
        self._reader: StoreReader | None = None
        self._reason = "the store is not open yet"
        self._seeking: _Seeking | None = None

    @override
    def snapshot(self) -> AbstractContextManager[Snapshot]:
        if self._reader is None:
            raise StoreUnavailable(self._reason)
        return self._reader.snapshot()

    @override
    def is_current(self) -> bool:
        return self._reader is not None and self._reader.is_current()

    def refresh(self) -> bool:
        """Open the store where it is new, or another than before; return whether it was opened.

        No snapshot may be open meanwhile.

        Where it is away, another thread waits for it: one that hangs would keep this one waiting again and again.
        """
        is_opened = False
        if self._seeking is not None:
            if self._seeking.is_alive():
                return False
            self._reader, self._seeking = self._seeking.found, None
            if self._reader is not None:
                is_opened = True
                _logger.info("opened the store")
        if self.is_current():
            reason = self._trouble()
        else:
            self._let_go()
            reason = self._opened()
            is_opened = not reason
        if reason:
            self._let_go()
            self._seeking = _Seeking(self._open_reader)
            if reason != self._reason:
                self._reason = reason
                _logger.info("waiting for the store", extra={"reason": reason})
        return is_opened and not reason

    def _opened(self) -> str:
        """Open the store; return why it cannot be, "" where it is."""
        try:
            self._reader = self._open_reader()
        except StoreUnavailable as error:
            return str(error)
        _logger.info("opened the store")
        return ""

    def _trouble(self) -> str:
        """Return why the store cannot be read; "" where it can."""
        try:
            with self.snapshot() as snapshot:
                snapshot.status()
        except StoreUnavailable as error:
            return str(error)
        return ""

    def _let_go(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    @override
    def close(self) -> None:
        self._let_go()
        if self._seeking is not None:
            self._seeking.ends.set()
            self._seeking = None


class _Seeking(threading.Thread):
    """Opens a store once it can be, and ends: then it is `found`. Set `ends`, and it gives up."""

    def __init__(self, open_reader: Callable[[], StoreReader]) -> None:
        super().__init__(name="store", daemon=True)
        self.found: StoreReader | None = None
        self.ends = threading.Event()
        self._open_reader = open_reader
        self.start()

    @override
    def run(self) -> None:
        while not self.ends.wait(SEEK_EVERY_S):
            try:
                self.found = self._open_reader()
            except StoreUnavailable:
                continue
            return
