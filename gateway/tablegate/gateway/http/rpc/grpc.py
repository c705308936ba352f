"""gRPC over HTTP/2 (the protocol of gRPC's PROTOCOL-HTTP2.md), and the way from it to the other protocols."""

import base64
from collections.abc import AsyncIterator, Callable, Mapping, Set
from urllib.parse import quote

from google.rpc import code_pb2
from typing_extensions import override

from tablegate.gateway.cluster.forward_token import FORWARDED
from tablegate.gateway.http.exchange import (
    MESSAGE_BYTES_MAX,
    TEXT,
    Excess,
    Exchange,
    HeaderCache,
    ResponseHeaders,
    Trailer,
)
from tablegate.gateway.http.rpc.calls import (
    GZIP,
    Calls,
    LastMade,
    ServedCall,
    as_query_error,
    checked_encoding,
    retry_after,
    unzipped,
)
from tablegate.gateway.http.rpc.compression import SMALL_BYTES, answer_zipped, zipped
from tablegate.gateway.query.call import DuplexMethod, Fields, Method, Methods, StreamMethod, UnaryMethod
from tablegate.gateway.query.errors import (
    InvalidField,
    NotServed,
    Overloaded,
    QueryError,
    RequestTooLarge,
    code_of,
    status_of,
)

COMPRESSED = 1  # the flag
_PREFIX = 5

CONTENT_TYPE = b"application/grpc"
CONTENT_TYPES = frozenset({CONTENT_TYPE, CONTENT_TYPE + b"+proto"})

OK: Fields = ((b"grpc-status", b"0"),)
_FIELDS: Fields = ((b"content-type", CONTENT_TYPE),)
_HEADERS = ResponseHeaders(200, _FIELDS)
_ZIPPED_HEADERS = ResponseHeaders(200, (*_FIELDS, (b"grpc-encoding", GZIP)))
_ERROR_FIELDS: Fields = (*_FIELDS, (b"grpc-accept-encoding", b"identity,gzip"))
_NEEDS_HTTP2 = ResponseHeaders(505, (TEXT,))
_BROKEN = ResponseHeaders(500, (TEXT,))
_TOO_MUCH: Mapping[Excess, str] = {
    Excess.KEPT: "your connection makes this process hold too much, and others need the room; read your answers, and "
    "have fewer calls at work",
    Excess.WAITED: "more is asked of this process than it has time for; have fewer calls at work, and try again later",
}
_FORWARDED = FORWARDED.encode("ascii")
_UNIT_S: Mapping[int, float] = {
    ord("H"): 3600.0,
    ord("M"): 60.0,
    ord("S"): 1.0,
    ord("m"): 1e-3,
    ord("u"): 1e-6,
    ord("n"): 1e-9,
}
_TIMEOUT_DIGITS_MAX = 8
_MESSAGE_SAFE = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"  # printable, without the % that escapes


def envelope(message: bytes, flags: int = 0) -> bytes:
    """Return `message` with its prefix."""
    return b"%c%b%b" % (flags, len(message).to_bytes(4, "big"), message)


def zipped_envelope(message: bytes, coding: bytes = GZIP) -> bytes:
    """Return `message` compressed, with its prefix; as it is where it is short."""
    return envelope(message) if len(message) < SMALL_BYTES else envelope(zipped(message, coding), COMPRESSED)


def only_message(body: bytes, encoding: bytes | None, bytes_max: int) -> bytes:
    """Return the one message of a request; raise a `QueryError` where the body is something else.

    `encoding`: that of compressed messages, by `checked_encoding`.
    """
    if body and len(body) < _PREFIX:
        raise InvalidField("", "the request ends inside its message; send the whole message")
    if not body:
        raise NotServed("the request has no whole message, but the method takes one; send one")
    length = int.from_bytes(body[1:_PREFIX], "big")
    if length > bytes_max:
        raise RequestTooLarge(bytes_max)
    if length != len(body) - _PREFIX:
        if length < len(body) - _PREFIX:
            raise NotServed("the request has more than one message, but the method takes one; send one")
        raise InvalidField("", "the request ends inside its message; send the whole message")
    return _plain(body[0], body[_PREFIX:], encoding, bytes_max)


async def messages(exchange: Exchange, encoding: bytes | None, bytes_max: int) -> AsyncIterator[bytes]:
    """Yield the messages of a request as they come; raise a `QueryError` at what is none.

    Over HTTP/1.1 they come together, once the client has sent them all.
    """
    pending = b"" if exchange.http2 else exchange.body
    while True:
        at = 0  # thousands of messages may come in one piece, and what follows each is not copied
        while len(pending) - at >= _PREFIX:
            begin = at + _PREFIX
            length = int.from_bytes(pending[at + 1 : begin], "big")
            if length > bytes_max:
                raise RequestTooLarge(bytes_max)
            if len(pending) < begin + length:
                break
            yield _plain(pending[at], pending[begin : begin + length], encoding, bytes_max)
            at = begin + length
        pending = pending[at:]
        piece = await exchange.read() if exchange.http2 else b""
        if not piece:
            break
        pending += piece
    if pending:
        raise InvalidField("", "the request ends inside a message; send whole messages")


def _plain(flags: int, message: bytes, encoding: bytes | None, bytes_max: int) -> bytes:
    if flags == 0:
        return message
    if flags != COMPRESSED:
        raise InvalidField("", f"a message has the unknown flags {flags:#04x}; check the client")
    if encoding is None:
        raise InvalidField("", "a message is marked as compressed, but the request names no encoding; check the client")
    return unzipped(message, bytes_max)


def services_of(methods: Methods) -> Set[str]:
    """Return the services of methods, as in "/package.Service"."""
    return frozenset(path.rpartition("/")[0] for path in methods)


def unknown_method(path: str, services: Set[str]) -> NotServed:
    """Return the error for a path that is no method; services as in "/package.Service"."""
    if path.rpartition("/")[0] in services:
        return NotServed("the service has no such method; list its methods by reflection, or look into its contract")
    return NotServed("no such service is served here; check the address and the name of the service")


class MethodTable:
    """Methods by their path as it comes over the wire."""

    def __init__(self, methods: Methods) -> None:
        self._methods = {path.encode("ascii"): (path, method) for path, method in methods.items()}
        self._services = services_of(methods)

    def find(self, target: bytes) -> tuple[str, Method]:
        """Return path and method; raise `NotServed` where there is none."""
        known = self._methods.get(target)
        if known is None:
            raise unknown_method(target.decode("latin-1"), self._services)
        return known


def timeout_s(text: bytes | None) -> float | None:
    """Return the seconds of a `grpc-timeout`; raise `InvalidField` where it is none."""
    if text is None:
        return None
    digits = text[:-1]
    unit_s = _UNIT_S.get(text[-1]) if text else None
    if unit_s is None or not digits.isdigit() or len(digits) > _TIMEOUT_DIGITS_MAX:
        raise InvalidField("", "grpc-timeout is not up to 8 digits and one of H, M, S, m, u, n; check the client")
    return int(digits) * unit_s


def error_fields(error: QueryError) -> Fields:
    """Return the trailer of an error: status, message, details, and when to try again."""
    fields = [
        (b"grpc-status", b"%d" % code_of(error)),
        (b"grpc-message", quote(error.text, safe=_MESSAGE_SAFE).encode("ascii")),
        (b"grpc-status-details-bin", base64.b64encode(status_of(error).SerializeToString()).rstrip(b"=")),
    ]
    if code_of(error) == code_pb2.UNAVAILABLE and error.retry_after_ms is not None:
        fields.append((b"grpc-retry-pushback-ms", b"%d" % error.retry_after_ms))
    return tuple(fields)


def _refusal(excess: Excess) -> tuple[ResponseHeaders, ResponseHeaders, bytes]:
    """Return the answer to who asks for too much: of gRPC, which has no body, and of all else."""
    error = Overloaded(_TOO_MUCH[excess], limit=excess.value)
    http = ResponseHeaders(429, (TEXT, *retry_after(error)))
    return ResponseHeaders(200, _ERROR_FIELDS + error_fields(error)), http, f"{error.text}\n".encode()


# Made once: where there is too much of something, there is no time for it.
_REFUSALS = {excess: _refusal(excess) for excess in Excess}


class GrpcCall(ServedCall):
    """A call over gRPC."""

    __slots__ = ("_begun", "_envelope", "_trailers", "is_zipped")

    def __init__(
        self, calls: Calls, exchange: Exchange, trailers: HeaderCache[Fields, Trailer], enveloped: LastMade
    ) -> None:
        super().__init__(calls, exchange)
        self._trailers = trailers
        self._envelope = enveloped
        self._begun = False
        self.is_zipped = False  # whether messages of the stream are compressed

    @property
    @override
    def forwarded(self) -> str | None:
        text = self.exchange.headers.get(_FORWARDED)
        return None if text is None else text.decode("latin-1")

    def answer(self, message: bytes) -> None:
        """Answer a unary call."""
        if len(message) >= SMALL_BYTES and self.exchange.headers.get(b"grpc-encoding") == GZIP:
            answer_zipped(self.exchange, message, self._answer_zipped)
        else:
            self.exchange.respond(_HEADERS, envelope(message), self._trailers[self.trailer])

    def _answer_zipped(self, data: bytes) -> None:
        self.exchange.respond(_ZIPPED_HEADERS, envelope(data, COMPRESSED), self._trailers[self.trailer])

    def fail(self, error: QueryError) -> None:
        """Answer with an error."""
        fields = error_fields(error) + self.trailer
        if self._begun:
            self.exchange.end(Trailer(fields))
        else:
            self.exchange.respond(ResponseHeaders(200, _ERROR_FIELDS + fields), b"")

    async def send(self, message: bytes) -> None:
        """Send a message of a stream."""
        self._begin()
        await self.exchange.send(zipped_envelope(message) if self.is_zipped else self._envelope(message))

    def offer(self, message: bytes) -> bool:
        """Send a message of a stream, if that can be at once; else return False and send nothing."""
        if self.usage.is_charged:
            return False
        return self._begun and self.exchange.offer(self._envelope(message))

    def end(self) -> None:
        """End a stream."""
        self._begin()
        self.exchange.end(self._trailers[self.trailer])

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self.exchange.begin(_ZIPPED_HEADERS if self.is_zipped else _HEADERS)


class GrpcProtocol:
    """Serves exchanges whose content type is gRPC's, as the `App` of connections; all others go to `serve_other`."""

    def __init__(
        self,
        methods: Methods,
        calls: Calls,
        *,
        serve_other: Callable[[Exchange], None],
        body_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        self.body_bytes_max = body_bytes_max  # the longest that a protocol accepts
        self._methods = MethodTable(methods)
        self._duplex = frozenset(
            path.encode("ascii") for path, method in methods.items() if isinstance(method, DuplexMethod)
        )
        self._calls = calls
        self._serve_other = serve_other
        self._trailers: HeaderCache[Fields, Trailer] = HeaderCache(lambda fields: Trailer(OK + fields))
        self._enveloped = LastMade(envelope)

    def streams_body(self, exchange: Exchange) -> bool:
        """Return whether the exchange is a stream each way."""
        return exchange.target in self._duplex and exchange.http2

    def serve(self, exchange: Exchange) -> None:
        """Serve an exchange, or give it to the protocol that does."""
        try:
            if exchange.headers.get(b"content-type") != CONTENT_TYPE and not _is_grpc(exchange):
                self._serve_other(exchange)
            elif exchange.http2:
                self._serve_grpc(exchange)
            else:
                exchange.respond(_NEEDS_HTTP2, b"gRPC needs HTTP/2; use it, or send application/grpc-web\n")
        except Exception as error:  # noqa: BLE001  the connection must go on for its other calls
            as_query_error(error, "of a protocol")
            exchange.respond(_BROKEN, b"the gateway made a mistake; its log has the rest\n")

    def refuse(self, exchange: Exchange, excess: Excess) -> None:
        """Answer that there is too much of something."""
        self._calls.count_refused(excess.value)
        grpc, http, text = _REFUSALS[excess]
        if exchange.http2 and _is_grpc(exchange):
            exchange.respond(grpc, b"")
        else:
            exchange.respond(http, text)

    def _serve_grpc(self, exchange: Exchange) -> None:
        headers = exchange.headers
        call = GrpcCall(self._calls, exchange, self._trailers, self._enveloped)
        try:
            call.timeout_s = timeout_s(headers.get(b"grpc-timeout"))
            path, method = self._methods.find(exchange.target)
            if exchange.method != b"POST":
                raise NotServed("gRPC calls come by POST; check the client")
            self._calls.admit(call, path, method)
            encoding = checked_encoding(headers.get(b"grpc-encoding"))
            if isinstance(method, (UnaryMethod, StreamMethod)):
                if exchange.oversize:
                    raise RequestTooLarge(self._calls.message_bytes_max)
                message = only_message(exchange.body, encoding, self._calls.message_bytes_max)
        except QueryError as error:
            call.fail(error)
            return
        if isinstance(method, UnaryMethod):
            self._calls.unary(call, path, method, message)
        elif isinstance(method, StreamMethod):
            call.is_zipped = method.is_bulk and encoding is not None
            self._calls.stream(call, path, method, message)
        else:
            self._calls.duplex(call, path, method, messages(exchange, encoding, self._calls.message_bytes_max))


def _is_grpc(exchange: Exchange) -> bool:
    """Return whether the content type is gRPC's, parameters aside."""
    return exchange.headers.get(b"content-type", b"").partition(b";")[0].rstrip() in CONTENT_TYPES
