"""gRPC over HTTP/2 (the protocol of gRPC's PROTOCOL-HTTP2.md)."""

import base64
from collections.abc import Mapping, Set
from urllib.parse import quote

from google.rpc import code_pb2
from tablegate.gateway.cluster.forwarding import FORWARDED
from tablegate.gateway.http.exchange import Exchange, Head, Kept, Trailer
from tablegate.gateway.http.rpc.calls import Calls, ServedCall
from tablegate.gateway.http.rpc.envelopes import (
    MESSAGE_BYTES_MAX,
    Enveloper,
    checked_encoding,
    envelope,
    messages,
    only_message,
)
from tablegate.gateway.query.call import Fields, Method, Methods, StreamMethod, UnaryMethod
from tablegate.gateway.query.errors import InvalidField, NotServed, QueryError, RequestTooLarge, code_of, status_of
from typing_extensions import override

CONTENT_TYPE = b"application/grpc"
CONTENT_TYPES = frozenset({CONTENT_TYPE, CONTENT_TYPE + b"+proto"})

OK: Fields = ((b"grpc-status", b"0"),)
_FIELDS: Fields = ((b"content-type", CONTENT_TYPE),)
_HEAD = Head(200, _FIELDS)
_ERROR_FIELDS: Fields = (*_FIELDS, (b"grpc-accept-encoding", b"identity,gzip"))
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


class GrpcCall(ServedCall):
    """A call over gRPC."""

    __slots__ = ("_begun", "_envelope", "_trailers")

    def __init__(self, calls: Calls, exchange: Exchange, trailers: Kept[Fields, Trailer], enveloper: Enveloper) -> None:
        super().__init__(calls, exchange)
        self._trailers = trailers
        self._envelope = enveloper
        self._begun = False

    @property
    @override
    def forwarded(self) -> str | None:
        text = self.exchange.headers.get(_FORWARDED)
        return None if text is None else text.decode("latin-1")

    def answer(self, message: bytes) -> None:
        """Answer a unary call."""
        self.exchange.respond(_HEAD, envelope(message), self._trailers[self.trailer])

    def fail(self, error: QueryError) -> None:
        """Answer with an error."""
        fields = error_fields(error) + self.trailer
        if self._begun:
            self.exchange.end(Trailer(fields))
        else:
            self.exchange.respond(Head(200, _ERROR_FIELDS + fields), b"")

    async def send(self, message: bytes) -> None:
        """Send a message of a stream."""
        self._begin()
        await self.exchange.send(self._envelope(message))

    def offer(self, message: bytes) -> bool:
        """Send a message of a stream, if that can be at once; else return False and send nothing."""
        return self._begun and self.exchange.offer(self._envelope(message))

    def end(self) -> None:
        """End a stream."""
        self._begin()
        self.exchange.end(self._trailers[self.trailer])

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self.exchange.begin(_HEAD)


class GrpcProtocol:
    """Serves exchanges whose content type is gRPC's."""

    def __init__(self, methods: Methods, calls: Calls) -> None:
        self._methods = MethodTable(methods)
        self._calls = calls
        self._trailers: Kept[Fields, Trailer] = Kept(lambda fields: Trailer(OK + fields))
        self._enveloper = Enveloper()

    def serve(self, exchange: Exchange) -> None:
        """Serve an exchange."""
        headers = exchange.headers
        call = GrpcCall(self._calls, exchange, self._trailers, self._enveloper)
        try:
            call.timeout_s = timeout_s(headers.get(b"grpc-timeout"))
            path, method = self._methods.find(exchange.target)
            if exchange.method != b"POST":
                raise NotServed("gRPC calls come by POST; check the client")
            encoding = checked_encoding(headers.get(b"grpc-encoding"))
            if isinstance(method, (UnaryMethod, StreamMethod)):
                if exchange.oversize:
                    raise RequestTooLarge(MESSAGE_BYTES_MAX)
                message = only_message(exchange.body, encoding)
        except QueryError as error:
            call.fail(error)
            return
        if isinstance(method, UnaryMethod):
            self._calls.unary(call, path, method, message)
        elif isinstance(method, StreamMethod):
            self._calls.stream(call, path, method, message)
        else:
            self._calls.duplex(call, path, method, messages(exchange, encoding))
