"""REST, as google.api.http in the contracts says it: paths, query parameters and JSON bodies.

Errors have Google's form, {"error": {...}}. A stream is JSON lines, or server-sent events for who accepts them.
"""

from collections.abc import Iterable

from google.protobuf import json_format
from google.rpc import code_pb2
from typing_extensions import override

from tablegate.gateway.contract.http_rules import HttpRoute
from tablegate.gateway.http.exchange import Exchange, HeaderCache, ResponseHeaders
from tablegate.gateway.http.json_codec import JSON_BYTES_MAX, JsonCodec, compact
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
from tablegate.gateway.http.rpc.compression import ZippedBody, accepts_gzip, answer_zipped, wants_zipped
from tablegate.gateway.query.call import DuplexMethod, Fields, Methods, StreamMethod, UnaryMethod
from tablegate.gateway.query.errors import NotServed, QueryError, RequestTooLarge, code_of, status_of

EVENTS = b"text/event-stream"
LINES = b"application/x-ndjson"

_SYSTEM = "rest"  # OpenTelemetry has no name for it
_METHOD_NOT_ALLOWED, _TOO_LARGE, _UNKNOWN_CODING = 405, 413, 415
_NO_STORE = (b"cache-control", b"no-store")  # an answer says how old it is, and a cache would not
_JSON: Fields = ((b"content-type", b"application/json"), _NO_STORE)
_LINES_HEADERS = ResponseHeaders(200, ((b"content-type", LINES), _NO_STORE))
_ZIPPED: Fields = ((b"content-encoding", GZIP),)
_ZIPPED_LINES_HEADERS = ResponseHeaders(200, ((b"content-type", LINES), _NO_STORE, *_ZIPPED))
_EVENTS_HEADERS = ResponseHeaders(200, ((b"content-type", EVENTS), _NO_STORE))


class RestProtocol:
    """Serves exchanges whose path is that of a route."""

    def __init__(self, routes: Iterable[HttpRoute], methods: Methods, calls: Calls, codec: JsonCodec) -> None:
        self._calls = calls
        self._header_cache: HeaderCache[Fields, ResponseHeaders] = HeaderCache(
            lambda trailer: ResponseHeaders(200, _JSON + trailer)
        )
        served: dict[str, list[ServedRoute]] = {}
        for route in routes:
            method = methods[route.path]
            assert not isinstance(method, DuplexMethod), "a method that takes a stream has no route"
            served.setdefault(route.http_method, []).append(ServedRoute(route, method, codec))
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
        call: ServedCall
        if isinstance(route.method, UnaryMethod):
            call = RestUnary(self._calls, exchange, route, self._header_cache)
        else:
            call = RestStream(self._calls, exchange, route)
        try:
            self._calls.admit(call, route.path, route.method)
            if exchange.oversize:
                raise RequestTooLarge(JSON_BYTES_MAX)
            body = unzipped(exchange.body, JSON_BYTES_MAX) if coding == GZIP else exchange.body
            message = route.request(values, query, body)
        except QueryError as error:
            _respond_error(exchange, error)
            return True
        if isinstance(route.method, UnaryMethod):
            self._calls.unary(call, route.path, route.method, message)
        else:
            self._calls.stream(call, route.path, route.method, message)
        return True


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
        if wants_zipped(self.exchange, body):
            answer_zipped(self.exchange, body, self._respond_zipped)
        else:
            self.exchange.respond(self._header_cache[self.trailer], body)

    def _respond_zipped(self, body: bytes) -> None:
        self.exchange.respond(self._header_cache[self.trailer + _ZIPPED], body)

    @override
    def fail(self, error: QueryError) -> None:
        _respond_error(self.exchange, error, fields=self.trailer)


class RestStream(FramedCall):
    """A stream, as lines or as events. What goes wrong after its beginning is its last line or event."""

    rpc_system = _SYSTEM

    __slots__ = ("_as_events", "_route", "_zipped")

    def __init__(self, calls: Calls, exchange: Exchange, route: ServedRoute) -> None:
        self._as_events = EVENTS in exchange.headers.get(b"accept", b"")
        self._zipped: ZippedBody | None = None
        headers = _EVENTS_HEADERS if self._as_events else _LINES_HEADERS
        is_bulk = isinstance(route.method, StreamMethod) and route.method.is_bulk
        if is_bulk and not self._as_events and accepts_gzip(exchange.headers.get(b"accept-encoding")):
            self._zipped, headers = ZippedBody(), _ZIPPED_LINES_HEADERS
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
        data = self._route.answer(message)
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
