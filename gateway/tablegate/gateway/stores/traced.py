"""A store's view for traces: each snapshot that a call reads is a part of its span."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from typing_extensions import override

from tablegate.gateway.stores.base import Snapshot, StoreReader
from tablegate.gateway.telemetry.spans import SPAN, STORE_READ, TABLE, Span


class TracedReader(StoreReader):
    """The view of a store that the queries of a table have."""

    def __init__(self, store: StoreReader, table: str) -> None:
        self._store = store
        self._attributes = {TABLE: table}

    @override
    def snapshot(self) -> AbstractContextManager[Snapshot]:
        span = SPAN.get()
        return self._read(span) if span.is_recorded else self._store.snapshot()

    @contextmanager
    def _read(self, span: Span) -> Iterator[Snapshot]:
        with span.part(STORE_READ, self._attributes), self._store.snapshot() as snapshot:
            yield snapshot

    @override
    def is_current(self) -> bool:
        return self._store.is_current()

    @override
    def close(self) -> None:
        self._store.close()
