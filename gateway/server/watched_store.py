"""A worker's view of a store that may not be there yet, or be wiped and made anew under it."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

from typing_extensions import override

from gateway.stores.base import Snapshot, StoreReader, StoreUnavailable

_logger = logging.getLogger("gateway.server")


class WatchedStore(StoreReader):
    """A store reader that `refresh` opens, and opens again. One thread."""

    def __init__(self, open_reader: Callable[[], StoreReader]) -> None:
        self._open_reader = open_reader
        self._reader: StoreReader | None = None
        self._reason = "the store is not open yet"

    @override
    def snapshot(self) -> AbstractContextManager[Snapshot]:
        if self._reader is None:
            raise StoreUnavailable(self._reason)
        return self._reader.snapshot()

    @override
    def is_current(self) -> bool:
        return self._reader is not None and self._reader.is_current()

    def refresh(self) -> None:
        """Open the store where it is new, or another than before. No snapshot may be open meanwhile."""
        if self.is_current():
            return
        self.close()
        try:
            self._reader = self._open_reader()
        except StoreUnavailable as error:
            if str(error) != self._reason:
                self._reason = str(error)
                _logger.info("waiting for the store", extra={"reason": self._reason})
        else:
            _logger.info("opened the store")

    @override
    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
