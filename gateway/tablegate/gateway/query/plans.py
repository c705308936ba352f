"""Every method of the contracts as a handler, made once from the catalogue."""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Generator, Mapping
from contextlib import aclosing
from typing import Any

from tablegate.gateway.contract.catalogue import (
    BatchGetQuery,
    Catalogue,
    GetQuery,
    Query,
    RangeQuery,
    ScanQuery,
    SubscribeQuery,
)
from tablegate.gateway.contract.tokens import TokenSigner
from tablegate.gateway.query.batch_get import batch_get_handler
from tablegate.gateway.query.call import (
    Call,
    Method,
    Methods,
    StreamHandler,
    StreamMethod,
    UnaryHandler,
    UnaryMethod,
    close_unawaited,
)
from tablegate.gateway.query.errors import CorruptRow, NotServed, QueryError, StoreAway
from tablegate.gateway.query.get import get_handler
from tablegate.gateway.query.live_table import LiveTable
from tablegate.gateway.query.notifier import Notifier
from tablegate.gateway.query.retry import patient
from tablegate.gateway.query.routed_range import range_handler
from tablegate.gateway.query.routed_scan import scan_handler
from tablegate.gateway.query.router import Router
from tablegate.gateway.query.serving import NowMs, TableAccess
from tablegate.gateway.query.subscribe.routed import subscribe_handler
from tablegate.gateway.query.topic_ends import TopicEnds
from tablegate.gateway.stores.base import StoreCorrupt, StoreReader, StoreUnavailable

OTHER_METHOD_TIMEOUT_S = 5.0

_logger = logging.getLogger("tablegate.gateway.query")


def wall_clock_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def table_accesses(
    catalogue: Catalogue,
    store: StoreReader,
    signer: TokenSigner,
    bell: Notifier,
    *,
    ends: TopicEnds | None,
    router: Router | None,
    now_ms: NowMs,
) -> Mapping[str, TableAccess]:
    """Return how the tables of a catalogue are accessed, by name; the arguments are those of `query_methods`."""
    return {
        name: TableAccess(table, store, signer, bell, now_ms, ends, router) for name, table in catalogue.tables.items()
    }


def query_methods(
    catalogue: Catalogue,
    store: StoreReader,
    signer: TokenSigner,
    bell: Notifier,
    *,
    ends: TopicEnds | None = None,
    router: Router | None = None,
    now_ms: NowMs = wall_clock_ms,
) -> Methods:
    """Return the methods of the contracts' services, by path.

    `bell` rings when the store has changed; `ends` asks Kafka what `latest` means; `router` asks other gateways.
    """
    accesses = table_accesses(catalogue, store, signer, bell, ends=ends, router=router, now_ms=now_ms)
    live = {name: LiveTable(access) for name, access in accesses.items()}
    methods: dict[str, Method] = {
        path: _method(query, accesses[query.table.name], live[query.table.name])
        for path, query in catalogue.queries.items()
    }
    for path, streams in catalogue.other_methods.items():
        text = f'method "{path}" is no query: its contract has no (tablegate.v1.query) option on it'
        methods[path] = StreamMethod(_refuse_stream(text)) if streams else _refuse_unary(text)
    return methods


def _method(query: Query, access: TableAccess, live: LiveTable) -> UnaryMethod | StreamMethod:
    handler: UnaryHandler
    match query:
        case GetQuery():
            handler = get_handler(query, access)
        case BatchGetQuery():
            handler = batch_get_handler(query, access)
        case RangeQuery():
            handler = range_handler(query, access)
        case ScanQuery():
            return StreamMethod(_guarded_stream(scan_handler(query, access)), checks_mark=True)
        case SubscribeQuery():
            return StreamMethod(_guarded_stream(subscribe_handler(query, access, live)), checks_mark=True)
        case _:
            raise TypeError(query)
    return UnaryMethod(_guarded_unary(handler, access), query.default_timeout_s, query.max_timeout_s, checks_mark=True)


def _guarded_unary(handler: UnaryHandler, access: TableAccess) -> UnaryHandler:
    def handle(data: bytes, call: Call) -> bytes | Awaitable[bytes]:
        try:
            answer = handler(data, call)
        except StoreUnavailable as error:
            raise _told(error) from error
        return answer if isinstance(answer, bytes) else _Guarded(patient(answer, handler, access, data, call))

    return handle


class _Guarded(Awaitable[bytes]):
    """An answer to wait for. Closed before anybody waited, it closes the one inside."""

    def __init__(self, answer: Awaitable[bytes]) -> None:
        self._answer = answer

    def __await__(self) -> Generator[Any, Any, bytes]:
        try:
            return (yield from self._answer.__await__())
        except StoreUnavailable as error:
            raise _told(error) from error

    def close(self) -> None:
        close_unawaited(self._answer)


def _guarded_stream(handler: StreamHandler) -> StreamHandler:
    async def handle(data: bytes, call: Call) -> AsyncIterator[bytes]:
        try:
            async with aclosing(handler(data, call)) as messages:  # type: ignore[type-var]
                async for message in messages:
                    yield message
        except StoreUnavailable as error:
            raise _told(error) from error

    return handle


def _told(error: StoreUnavailable) -> QueryError:
    """Return what the client is told of a store that cannot be read."""
    if isinstance(error, StoreCorrupt):
        _logger.error(
            "the store is damaged; stop the gateway, remove the store, start it", extra={"reason": str(error)}
        )
        return CorruptRow("the store is damaged; ask the operator to have it made anew")
    return StoreAway()


def _refuse_unary(text: str) -> UnaryMethod:
    def handle(_data: bytes, _call: Call) -> bytes:
        raise NotServed(text)

    return UnaryMethod(handle, OTHER_METHOD_TIMEOUT_S, OTHER_METHOD_TIMEOUT_S)


def _refuse_stream(text: str) -> StreamHandler:
    async def handle(_data: bytes, _call: Call) -> AsyncIterator[bytes]:
        raise NotServed(text)
        yield b""  # an async iterator has a yield

    return handle
