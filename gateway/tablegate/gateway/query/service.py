"""Every method of the contracts as a handler, made once from the catalogue, and once for each view of its table.

Decision: docs/decisions/0101-a-view-is-compiled-into-its-queries.md
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from functools import lru_cache, partial

from tablegate.gateway.access.views import View
from tablegate.gateway.cluster.scatter import Router
from tablegate.gateway.contract.catalogue import (
    BatchGetQuery,
    Catalogue,
    CountQuery,
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
    TopicEnds,
    UnaryHandler,
    UnaryMethod,
)
from tablegate.gateway.query.count import count_handler
from tablegate.gateway.query.errors import NotServed
from tablegate.gateway.query.get import get_handler
from tablegate.gateway.query.limits import DEFAULT_LIMITS, QueryLimits
from tablegate.gateway.query.range import range_handler
from tablegate.gateway.query.scan import scan_handler
from tablegate.gateway.query.serving import NowMs, TableAccess, error_for_store, wall_clock_ms
from tablegate.gateway.query.subscribe.open_streams import OpenStreams
from tablegate.gateway.query.subscribe.publisher import TablePublisher
from tablegate.gateway.query.subscribe.subscription import subscribe_handler
from tablegate.gateway.stores.base import StoreReader, StoreUnavailable
from tablegate.gateway.stores.notifier import Notifier
from tablegate.gateway.stores.traced import TracedReader
from tablegate.gateway.telemetry.measures import Measures

OTHER_METHOD_TIMEOUT_S = 5.0
VIEWS_MAX = 4_096  # whose queries are kept compiled; each takes some kilobytes


def table_accesses(
    catalogue: Catalogue,
    store: StoreReader,
    signer: TokenSigner,
    notifier: Notifier,
    *,
    ends: TopicEnds | None,
    router: Router | None,
    now_ms: NowMs,
    limits: QueryLimits = DEFAULT_LIMITS,
    measures: Measures | None = None,
    is_traced: bool = False,
) -> Mapping[str, TableAccess]:
    """Return how the tables of a catalogue are accessed, by name; the arguments are those of `query_methods`."""
    router = Router.alone() if router is None else router
    return {
        name: TableAccess(
            table,
            TracedReader(store, name) if is_traced else store,
            signer,
            notifier,
            now_ms,
            ends,
            router,
            limits,
            measures,
        )
        for name, table in catalogue.tables.items()
    }


class ViewedAccess:
    """A table as all see it, and as those do whose view it is: a query is compiled once for each of them."""

    def __init__(self, whole: TableAccess) -> None:
        self.whole = whole
        self.seen = lru_cache(VIEWS_MAX)(whole.seen)

    def view(self, call: Call) -> View | None:
        """Return what of the table a call is for; raise `ForeignForward`."""
        forwarded = call.forwarded
        return call.view if forwarded is None else self.whole.forwarded_view(forwarded)


def query_methods(
    catalogue: Catalogue,
    store: StoreReader,
    signer: TokenSigner,
    notifier: Notifier,
    *,
    ends: TopicEnds | None = None,
    router: Router | None = None,
    now_ms: NowMs = wall_clock_ms,
    limits: QueryLimits = DEFAULT_LIMITS,
    measures: Measures | None = None,
    is_traced: bool = False,
    streams: OpenStreams | None = None,
) -> Methods:
    """Return the methods of the contracts' services, by path.

    `notifier` says when the store has changed; `ends` asks Kafka what `latest` means; `router` asks other gateways,
    None where this one stands alone; `limits` bounds answers, messages and waits; `measures` has how fresh and how late
    answers are; `is_traced`: what they read is in their spans; `streams` gets the Subscribe streams that are open.
    """
    accesses = table_accesses(
        catalogue,
        store,
        signer,
        notifier,
        ends=ends,
        router=router,
        now_ms=now_ms,
        limits=limits,
        measures=measures,
        is_traced=is_traced,
    )
    streams = OpenStreams() if streams is None else streams
    publishers = {name: TablePublisher(access, streams) for name, access in accesses.items()}
    viewed = {name: ViewedAccess(access) for name, access in accesses.items()}
    methods: dict[str, Method] = {
        path: _method(query, viewed[query.table.name], publishers[query.table.name])
        for path, query in catalogue.queries.items()
    }
    for path, is_stream in catalogue.other_methods.items():
        text = f'method "{path}" is no query: its contract has no (tablegate.v1.query) option on it'
        methods[path] = StreamMethod(_refuse_stream(text)) if is_stream else _refuse_unary(text)
    return methods


def _method(query: Query, access: ViewedAccess, publisher: TablePublisher) -> UnaryMethod | StreamMethod:
    make: Callable[[TableAccess], UnaryHandler]
    match query:
        case GetQuery():
            make = partial(get_handler, query)
        case BatchGetQuery():
            make = partial(batch_get_handler, query)
        case RangeQuery():
            make = partial(range_handler, query)
        case CountQuery():
            make = partial(count_handler, query)
        case ScanQuery():
            scan = _stream(access, partial(scan_handler, query))
            return StreamMethod(scan, checks_forward_token=True, is_bulk=True)
        case SubscribeQuery():
            subscribe = partial(subscribe_handler, query, publisher=publisher)
            return StreamMethod(_stream(access, subscribe), checks_forward_token=True)
        case _:
            raise TypeError(query)
    return UnaryMethod(
        make(access.whole),
        query.default_timeout_s,
        query.max_timeout_s,
        checks_forward_token=True,
        handler_for=_handler_for(access, make),
    )


def _handler_for(access: ViewedAccess, make: Callable[[TableAccess], UnaryHandler]) -> Callable[[Call], UnaryHandler]:
    whole = make(access.whole)
    seen = lru_cache(VIEWS_MAX)(lambda view: make(access.seen(view)))

    def handler_for(call: Call) -> UnaryHandler:
        view = access.view(call)
        return whole if view is None else seen(view)

    return handler_for


def _stream(access: ViewedAccess, make: Callable[[TableAccess], StreamHandler]) -> StreamHandler:
    """Return the handler, whose clients get a `QueryError` where the store cannot be read."""
    whole = make(access.whole)
    seen = lru_cache(VIEWS_MAX)(lambda view: make(access.seen(view)))

    async def handle(data: bytes, call: Call) -> AsyncIterator[bytes]:
        view = access.view(call)
        handler = whole if view is None else seen(view)
        try:
            async with aclosing(handler(data, call)) as messages:  # type: ignore[type-var]
                async for message in messages:
                    yield message
        except StoreUnavailable as error:
            raise error_for_store(error) from error

    return handle


def _refuse_unary(text: str) -> UnaryMethod:
    def handle(_data: bytes, _call: Call) -> bytes:
        raise NotServed(text)

    return UnaryMethod(handle, OTHER_METHOD_TIMEOUT_S, OTHER_METHOD_TIMEOUT_S)


def _refuse_stream(text: str) -> StreamHandler:
    async def handle(_data: bytes, _call: Call) -> AsyncIterator[bytes]:
        raise NotServed(text)
        yield b""  # an async iterator has a yield

    return handle
