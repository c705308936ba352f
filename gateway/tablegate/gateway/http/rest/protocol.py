"""REST, as google.api.http in the contracts says it: paths, query parameters and JSON bodies.

Errors have Google's form, {"error": {...}}. A stream is JSON lines, or server-sent events for who accepts them. Who
accepts Arrow gets the rows of a Scan or of a page as that (`arrow.py`).
"""

import asyncio
from collections.abc import Iterable
from functools import partial

from google.protobuf import json_format
from google.rpc import code_pb2
from typing_extensions import override

from tablegate.gateway.contract.http_rules import HttpRoute
from tablegate.gateway.http.exchange import Exchange, HeaderCache, ResponseHeaders
from tablegate.gateway.http.json_codec import JSON_BYTES_MAX, JsonCodec, compact
from tablegate.gateway.http.rest.arrow import ARROW, ArrowRoute, ArrowRows, accepted_by, cut
from tablegate.gateway.http.rest.routes import Router, ServedRoute
from tablegate.gateway.http.rpc.calls import (
    GZIP,
    HTTP_STATUSES,
    Calls,
    FramedCall,
    ServedCall,
    as_query_error,
    retry_after,
    unzipped,
)
from tablegate.gateway.http.rpc.compression import (
    CODINGS,
    ZippedBody,
    answer_zipped,
    coding_for,
    coding_of_body,
)
from tablegate.gateway.query.call import DuplexMethod, Fields, Methods, StreamMethod, UnaryMethod
from tablegate.gateway.query.errors import NotServed, QueryError, RequestTooLarge, code_of, status_of

EVENTS = b"text/event-stream"
LINES = b"application/x-ndjson"

_SYSTEM = "rest"  # OpenTelemetry has no name for it
_METHOD_NOT_ALLOWED, _NOT_ACCEPTABLE, _TOO_LARGE, _UNKNOWN_CODING = 405, 406, 413, 415
_NO_STORE = (b"cache-control", b"no-store")  # an answer says how old it is, and a cache would not
_JSON: Fields = ((b"content-type", b"application/json"), _NO_STORE)
_LINES_HEADERS = ResponseHeaders(200, ((b"content-type", LINES), _NO_STORE))
_ZIPPED: dict[bytes, Fields] = {coding: ((b"content-encoding", coding),) for coding in CODINGS}
_ZIPPED_LINES_HEADERS = {
    coding: ResponseHeaders(200, ((b"content-type", LINES), _NO_STORE, *field)) for coding, field in _ZIPPED.items()
}
_EVENTS_HEADERS = ResponseHeaders(200, ((b"content-type", EVENTS), _NO_STORE))
_ARROW: Fields = ((b"content-type", ARROW), _NO_STORE)
_ARROW_HEADERS = ResponseHeaders(200, _ARROW)
_ZIPPED_ARROW_HEADERS = {coding: ResponseHeaders(200, _ARROW + field) for coding, field in _ZIPPED.items()}


class RestProtocol:
    """Serves exchanges whose path is that of a route. `arrow`: makes Arrow of rows, where somebody accepts it."""

    def __init__(
        self, routes: Iterable[HttpRoute], methods: Methods, calls: Calls, codec: JsonCodec, arrow: ArrowRows
    ) -> None:
        self._calls = calls
        self._arrow: dict[ServedRoute, ArrowRoute | str] = {}
        self._header_cache: HeaderCache[Fields, ResponseHeaders] = HeaderCache(
            lambda trailer: ResponseHeaders(200, _JSON + trailer)
        )
        served: dict[str, list[ServedRoute]] = {}
        for route in routes:
            method = methods[route.path]
            assert not isinstance(method, DuplexMethod), "a method that takes a stream has no route"
            made = ServedRoute(route, method, codec)
            self._arrow[made] = arrow.of(route)
            served.setdefault(route.http_method, []).append(made)
        self._routers = {http_method.encode(): Router(routes) for http_method, routes in served.items()}

    def serve(self, exchange: Exchange) -> bool:
        """Serve an exchange; return whether its path was that of a route."""
        path, _, query = exchange.target.partition(b"?")
        router = self._routers.get(exchange.method)
        found = router.find(path) if router is not None else None
        if found is None:
            allowed = [method for method, other in self._routers.items() if other.find(path) is not None]
            if allowed:
                error = NotServed("the path is not served with this HTTP method; take one that allow names")
                _respond_error(exchange, error, _METHOD_NOT_ALLOWED, ((b"allow", b", ".join(allowed)),))
            return bool(allowed)
        route, values = found
        coding = exchange.headers.get(b"content-encoding", b"identity")
        if coding not in (b"identity", GZIP):
            error = NotServed("the request's content-encoding is not known here; use gzip or none")
            _respond_error(exchange, error, _UNKNOWN_CODING, ((b"accept-encoding", GZIP),))
            return True
        method, arrow = route.method, self._arrow_for(exchange, route)
        call: ServedCall
        if isinstance(method, UnaryMethod):
            call = (
                ArrowPage(self._calls, exchange, route, self._header_cache, arrow)
                if isinstance(arrow, ArrowRoute)
                else RestUnary(self._calls, exchange, route, self._header_cache)
            )
        elif isinstance(arrow, ArrowRoute):
            call, method = ArrowStream(self._calls, exchange), arrow.stream(method)
        else:
            call = RestStream(self._calls, exchange, route)
        try:
            self._calls.admit(call, route.path, method)
            if isinstance(arrow, str):
                _respond_error(exchange, NotServed(arrow), _NOT_ACCEPTABLE)
                return True
            if exchange.oversize:
                raise RequestTooLarge(JSON_BYTES_MAX)
            body = unzipped(exchange.body, JSON_BYTES_MAX) if coding == GZIP else exchange.body
            message = route.request(values, query, body)
        except QueryError as error:
            _respond_error(exchange, error)
            return True
        if isinstance(method, UnaryMethod):
            self._calls.unary(call, route.path, method, message)
        else:
            self._calls.stream(call, route.path, method, message)
        return True

    def _arrow_for(self, exchange: Exchange, route: ServedRoute) -> ArrowRoute | str | None:
        """Return what makes Arrow for a client that accepts it; why nothing does, where it accepts no JSON; or None."""
        accept = exchange.headers.get(b"accept")
        if accept is None or ARROW not in accept.lower():
            return None
        accepted, arrow = accepted_by(accept), self._arrow[route]
        if isinstance(arrow, str):
            return arrow if accepted.arrow and not accepted.json else None
        return arrow if accepted.arrow else None


class RestUnary(ServedCall):
    """A call with one answer. Its trailer goes before it, among the headers."""

    rpc_system = _SYSTEM

    __slots__ = ("_header_cache", "_route")

    def __init__(
        self, calls: Calls, exchange: Exchange, route: ServedRoute, header_cache: HeaderCache[Fields, ResponseHeaders]
    ) -> None:
        super().__init__(calls, exchange)
        self._route = route
        self._header_cache = header_cache

    @override
    def answer(self, message: bytes) -> None:
        try:
            body = self._route.answer(message)
        except Exception as error:  # noqa: BLE001  a row that JSON cannot say: the client gets a status with details
            self.fail(as_query_error(error, self._route.path))
            return
        coding = coding_of_body(self.exchange, body)
        if coding is not None:
            answer_zipped(self.exchange, body, partial(self._respond_zipped, coding), coding)
        else:
            self.exchange.respond(self._header_cache[self.trailer], body)

    def _respond_zipped(self, coding: bytes, body: bytes) -> None:
        self.exchange.respond(self._header_cache[self.trailer + _ZIPPED[coding]], body)

    @override
    def fail(self, error: QueryError) -> None:
        _respond_error(self.exchange, error, fields=self.trailer)


class ArrowPage(RestUnary):
    """A page of rows, as a stream of Arrow that is whole."""

    __slots__ = ("_arrow",)

    def __init__(
        self,
        calls: Calls,
        exchange: Exchange,
        route: ServedRoute,
        header_cache: HeaderCache[Fields, ResponseHeaders],
        arrow: ArrowRoute,
    ) -> None:
        super().__init__(calls, exchange, route, header_cache)
        self._arrow = arrow

    @override
    def answer(self, message: bytes) -> None:
        self.exchange.on_gone = asyncio.ensure_future(self._answer(message)).cancel

    async def _answer(self, message: bytes) -> None:
        try:
            body = await self._arrow.page(message, self.request or b"", self)
        except Exception as error:  # noqa: BLE001  as in `RestUnary`
            self.fail(as_query_error(error, self._route.path))
            return
        coding = coding_of_body(self.exchange, body)
        if coding is not None:
            answer_zipped(self.exchange, body, partial(self._respond_zipped, coding), coding)
        else:
            self.exchange.respond(ResponseHeaders(200, _ARROW + self.trailer), body)

    @override
    def _respond_zipped(self, coding: bytes, body: bytes) -> None:
        self.exchange.respond(ResponseHeaders(200, _ARROW + self.trailer + _ZIPPED[coding]), body)


class ArrowStream(FramedCall):
    """A Scan, as a stream of Arrow. What goes wrong after its beginning cuts it, and no reader takes it for whole."""

    rpc_system = _SYSTEM

    __slots__ = ("_zipped",)

    def __init__(self, calls: Calls, exchange: Exchange) -> None:
        coding = coding_for(exchange.headers.get(b"accept-encoding"))
        super().__init__(calls, exchange, _ARROW_HEADERS if coding is None else _ZIPPED_ARROW_HEADERS[coding])
        self._zipped = None if coding is None else ZippedBody(coding)

    @override
    def fail(self, error: QueryError) -> None:
        if not self._begun:
            _respond_error(self.exchange, error)
            return
        last = self.framed(cut(_error_body(error, _http_status(error))))
        self.exchange.on_gone = asyncio.ensure_future(self._cut(last)).cancel

    async def _cut(self, last: bytes) -> None:
        await self.exchange.send(last)
        # Over HTTP/2 a client that sees its stream reset drops what it has not read yet: the cut, of all things, and
        # what is left of the stream looks whole.
        if self.exchange.http2:
            self.exchange.end()
        else:
            self.exchange.abort()

    @override
    def framed(self, message: bytes) -> bytes:
        return message if self._zipped is None else self._zipped.piece(message)

    @override
    def end(self) -> None:
        if self._zipped is not None:
            self.end_with(self._zipped.last(b""))
        else:
            self.exchange.end()


class RestStream(FramedCall):
    """A stream, as lines or as events. What goes wrong after its beginning is its last line or event."""

    rpc_system = _SYSTEM

    __slots__ = ("_as_events", "_route", "_zipped")

    def __init__(self, calls: Calls, exchange: Exchange, route: ServedRoute) -> None:
        self._as_events = EVENTS in exchange.headers.get(b"accept", b"")
        self._zipped: ZippedBody | None = None
        headers = _EVENTS_HEADERS if self._as_events else _LINES_HEADERS
        is_bulk = isinstance(route.method, StreamMethod) and route.method.is_bulk
        is_plain = self._as_events or not is_bulk
        coding = None if is_plain else coding_for(exchange.headers.get(b"accept-encoding"))
        if coding is not None:
            self._zipped, headers = ZippedBody(coding), _ZIPPED_LINES_HEADERS[coding]
        super().__init__(calls, exchange, headers)
        self._route = route

    @override
    def fail(self, error: QueryError) -> None:
        if not self._begun:
            _respond_error(self.exchange, error)
            return
        body = _error_body(error, _http_status(error))
        if self._zipped is not None:
            self.end_with(self._zipped.last(body + b"\n"))
        else:
            self.end_with(b"event: error\ndata: %b\n\n" % body if self._as_events else body + b"\n")

    @override
    def framed(self, message: bytes) -> bytes:
        data = self._route.streamed(message)
        if self._zipped is not None:
            return self._zipped.piece(data + b"\n")
        return b"data: %b\n\n" % data if self._as_events else data + b"\n"

    @override
    def end(self) -> None:
        if self._as_events:
            # A browser's EventSource would connect again for ever: the page must learn that this was all.
            self.end_with(b"event: end\ndata: {}\n\n")
        elif self._begun and self._zipped is not None:
            self.end_with(self._zipped.last(b""))
        elif self._begun:
            self.exchange.end()
        else:
            self.exchange.respond(_LINES_HEADERS, b"")


def _http_status(error: QueryError) -> int:
    # 429 would ask to try again, and the same request stays too large.
    return _TOO_LARGE if isinstance(error, RequestTooLarge) else HTTP_STATUSES[code_of(error)]


def _error_body(error: QueryError, http_status: int) -> bytes:
    status = status_of(error)
    value = {"code": http_status, "message": status.message, "status": code_pb2.Code.Name(status.code)}
    value["details"] = [json_format.MessageToDict(detail) for detail in status.details]
    return compact({"error": value})


def _respond_error(exchange: Exchange, error: QueryError, http_status: int = 0, fields: Fields = ()) -> None:
    """Answer with an error; `http_status` where it is not the one of the error's code."""
    http_status = http_status or _http_status(error)
    exchange.respond(ResponseHeaders(http_status, _JSON + fields + retry_after(error)), _error_body(error, http_status))
