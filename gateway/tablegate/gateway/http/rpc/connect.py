"""The Connect protocol (connectrpc.com/docs/protocol): unary calls by POST and GET, streams in envelopes; any HTTP.

A POST of JSON needs no more than its content type, so that curl can do it.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote_to_bytes

from google.protobuf.any_pb2 import Any as PackedAny
from google.rpc import code_pb2
from typing_extensions import override

from tablegate.gateway.http.exchange import TEXT, Exchange, HeaderCache, ResponseHeaders
from tablegate.gateway.http.json_codec import JSON_BYTES_MAX, JsonCodec, MethodTypes, compact
from tablegate.gateway.http.rpc.calls import (
    GZIP,
    HTTP_STATUSES,
    Calls,
    FramedCall,
    LastMade,
    ServedCall,
    as_query_error,
    checked_encoding,
    retry_after,
    unzipped,
)
from tablegate.gateway.http.rpc.compression import CODINGS, answer_zipped, coding_for, coding_of_body
from tablegate.gateway.http.rpc.grpc import (
    envelope,
    messages,
    only_message,
    services_of,
    unknown_method,
    zipped_envelope,
)
from tablegate.gateway.query.call import DuplexMethod, Fields, Method, Methods, StreamMethod, UnaryMethod
from tablegate.gateway.query.errors import InvalidField, QueryError, RequestTooLarge, code_of, status_of

_CODE_NAMES: Mapping[int, str] = {
    code: "canceled" if code == code_pb2.CANCELLED else code_pb2.Code.Name(code).lower() for code in HTTP_STATUSES
}

_JSON, _PROTO = b"application/json", b"application/proto"
_STREAM_JSON, _STREAM_PROTO = b"application/connect+json", b"application/connect+proto"
_UNARY_TYPES = {_JSON: True, _PROTO: False}  # content type → whether it is JSON
_STREAM_TYPES = {_STREAM_JSON: True, _STREAM_PROTO: False}
_GET_ENCODINGS = {b"json": True, b"proto": False}
_VERSION = b"1"
_TIMEOUT_DIGITS_MAX = 10
_NO_STORE = (b"cache-control", b"no-store")  # what a query answers may be other the next moment
_END_STREAM = 2  # the flag of the envelope that ends a stream


@dataclass(frozen=True, slots=True)
class _Route:
    path: str
    method: Method
    types: MethodTypes | None  # None: not in the contracts, so that there is no JSON
    json_of_stream: LastMade | None = None

    @property
    def gettable(self) -> bool:
        return isinstance(self.method, UnaryMethod) and self.types is not None and self.types.side_effect_free

    def message(self, codec: JsonCodec, data: bytes, bytes_max: int, as_json: bool) -> bytes:
        """Return the request's message, of so many bytes at most where it is no JSON; raise a `QueryError`."""
        if as_json:
            assert self.types is not None, "a method without types takes no JSON"
            return codec.from_json(self.types.request_class, data)
        if len(data) > bytes_max:
            raise RequestTooLarge(bytes_max)
        return data

    def answer(self, codec: JsonCodec, message: bytes, as_json: bool) -> bytes:
        """Return a message as the client wants it."""
        if as_json:
            assert self.types is not None, "as above"
            return codec.to_json(self.types.response_class, message)
        return message

    def streamed(self, message: bytes, as_json: bool) -> bytes:
        """Return a message of a stream as the client wants it."""
        if as_json:
            assert self.json_of_stream is not None, "as above"
            return self.json_of_stream(message)
        return message


class ConnectUnary(ServedCall):
    """A unary call: the body is the message, trailers are headers with a prefix."""

    rpc_system = "connectrpc"

    __slots__ = ("_as_json", "_protocol", "_route")

    def __init__(self, protocol: "ConnectProtocol", exchange: Exchange, route: _Route, *, as_json: bool) -> None:
        super().__init__(protocol.calls, exchange)
        self._protocol = protocol
        self._route = route
        self._as_json = as_json

    @override
    def answer(self, message: bytes) -> None:
        try:
            body = self._route.answer(self._protocol.codec, message, self._as_json)
        except Exception as error:  # noqa: BLE001  a row that JSON cannot say: the client gets a status with details
            self.fail(as_query_error(error, self._route.path))
            return
        coding = coding_of_body(self.exchange, body)
        if coding is None:
            self.exchange.respond(self._ok_headers(b""), body)
        else:
            answer_zipped(self.exchange, body, partial(self._respond_zipped, coding), coding)

    def _respond_zipped(self, coding: bytes, body: bytes) -> None:
        self.exchange.respond(self._ok_headers(coding), body)

    def _ok_headers(self, coding: bytes) -> ResponseHeaders:
        is_get = self.exchange.method == b"GET"
        return self._protocol.ok_headers(self.trailer, as_json=self._as_json, get=is_get, coding=coding)

    @override
    def fail(self, error: QueryError) -> None:
        self._protocol.fail(self.exchange, error, self.trailer)


class ConnectStream(FramedCall):
    """A server stream, or a stream each way: messages in envelopes, and one at the end that has error and trailers."""

    rpc_system = "connectrpc"

    __slots__ = ("_as_json", "_coding", "_protocol", "_route")

    def __init__(self, protocol: "ConnectProtocol", exchange: Exchange, route: _Route, *, as_json: bool) -> None:
        is_bulk = isinstance(route.method, StreamMethod) and route.method.is_bulk
        self._coding = coding_for(exchange.headers.get(b"connect-accept-encoding")) if is_bulk else None
        super().__init__(protocol.calls, exchange, _STREAM_HEADERS[as_json, self._coding])
        self._protocol = protocol
        self._route = route
        self._as_json = as_json

    @override
    def fail(self, error: QueryError) -> None:
        self.end_with(_end_frame({"error": error_value(error, self._protocol.codec)}, self.trailer))

    @override
    def framed(self, message: bytes) -> bytes:
        answer = self._route.streamed(message, self._as_json)
        return envelope(answer) if self._coding is None else zipped_envelope(answer, self._coding)

    @override
    def end(self) -> None:
        self.end_with(_end_frame({}, self.trailer))


class ConnectProtocol:
    """Serves exchanges whose path is a method or of its service; gRPC and gRPC-Web have theirs first."""

    def __init__(self, methods: Methods, calls: Calls, codec: JsonCodec) -> None:
        self.calls = calls
        self.codec = codec
        self._routes = {path.encode("ascii"): _route(path, method, codec) for path, method in methods.items()}
        self._services = services_of(methods)
        self._header_cache: HeaderCache[tuple[Fields, bool, bool, bytes], ResponseHeaders] = HeaderCache(_ok_headers)

    def serve(self, exchange: Exchange) -> bool:
        """Serve an exchange that is of this protocol; return whether it was."""
        path, _, query = exchange.target.partition(b"?")
        content_type = _content_type(exchange)
        route = self._routes.get(path)
        if route is None:
            if not self._is_ours(exchange, path.decode("latin-1"), content_type):
                return False
            self._refuse_path(exchange, path.decode("latin-1"), content_type)
        elif exchange.method == b"POST":
            self._post(exchange, route, content_type)
        elif exchange.method == b"GET" and route.gettable:
            self._get(exchange, route, query)
        else:
            allow = b"GET, POST" if route.gettable else b"POST"
            exchange.respond(ResponseHeaders(405, (TEXT, (b"allow", allow))), b"the method is called by %b\n" % allow)
        return True

    def ok_headers(self, trailer: Fields, *, as_json: bool, get: bool, coding: bytes) -> ResponseHeaders:
        """Return the headers of a unary answer."""
        return self._header_cache[trailer, as_json, get, coding]

    def fail(self, exchange: Exchange, error: QueryError, trailer: Fields = (), http_status: int | None = None) -> None:
        """Answer a unary call with an error."""
        fields: Fields = ((b"content-type", _JSON), _NO_STORE, *retry_after(error))
        headers = ResponseHeaders(http_status or HTTP_STATUSES[code_of(error)], fields + _as_headers(trailer))
        exchange.respond(headers, compact(error_value(error, self.codec)))

    def _is_ours(self, exchange: Exchange, path: str, content_type: bytes) -> bool:
        """Return whether an exchange, whose path is no method, can only be meant for this protocol."""
        return (
            path.rpartition("/")[0] in self._services
            or b"connect-protocol-version" in exchange.headers
            or content_type in _STREAM_TYPES
            or content_type == _PROTO
        )

    def _refuse_path(self, exchange: Exchange, path: str, content_type: bytes) -> None:
        error = unknown_method(path, self._services)
        if content_type in _STREAM_TYPES:
            headers = _STREAM_HEADERS[_STREAM_TYPES[content_type], None]
            exchange.respond(headers, _end_frame({"error": error_value(error, self.codec)}, ()))
        else:
            self.fail(exchange, error, http_status=404)

    def _post(self, exchange: Exchange, route: _Route, content_type: bytes) -> None:
        unary = isinstance(route.method, UnaryMethod)
        as_json = (_UNARY_TYPES if unary else _STREAM_TYPES).get(content_type)
        if as_json is None or (as_json and route.types is None):
            accept = _accept_post(unary, with_json=route.types is not None)
            text = b"the method takes %b\n" % accept
            exchange.respond(ResponseHeaders(415, (TEXT, (b"accept-post", accept))), text)
        elif unary:
            self._unary(exchange, route, exchange.body, exchange.headers.get(b"content-encoding"), as_json=as_json)
        else:
            self._stream(exchange, route, as_json=as_json)

    def _get(self, exchange: Exchange, route: _Route, query: bytes) -> None:
        params = _params(query)
        as_json = _GET_ENCODINGS.get(params.get(b"encoding", b""))
        if as_json is None:
            exchange.respond(ResponseHeaders(415, (TEXT,)), b"give encoding=json or encoding=proto\n")
            return
        try:
            if params.get(b"connect", b"v1") != b"v1":
                raise InvalidField("", "the version of Connect is not v1; send connect=v1")
            data = params.get(b"message")
            if data is None:
                raise InvalidField("", "the request has no message; give it as a parameter of the query")
            if params.get(b"base64") == b"1":
                data = _from_base64(data)
        except QueryError as error:
            self.fail(exchange, error)
            return
        self._unary(exchange, route, data, params.get(b"compression"), as_json=as_json)

    def _unary(self, exchange: Exchange, route: _Route, data: bytes, encoding: bytes | None, *, as_json: bool) -> None:
        assert isinstance(route.method, UnaryMethod)
        call = ConnectUnary(self, exchange, route, as_json=as_json)
        bytes_max = self.calls.message_bytes_max
        try:
            call.timeout_s = _checked_timeout_s(exchange)
            self.calls.admit(call, route.path, route.method)
            if exchange.oversize:
                raise RequestTooLarge(JSON_BYTES_MAX if as_json else bytes_max)
            if checked_encoding(encoding) == GZIP:
                data = unzipped(data, JSON_BYTES_MAX if as_json else bytes_max)
            message = route.message(self.codec, data, bytes_max, as_json)
        except QueryError as error:
            call.fail(error)
            return
        self.calls.unary(call, route.path, route.method, message)

    def _stream(self, exchange: Exchange, route: _Route, *, as_json: bool) -> None:
        call = ConnectStream(self, exchange, route, as_json=as_json)
        bytes_max = self.calls.message_bytes_max
        try:
            call.timeout_s = _checked_timeout_s(exchange)
            self.calls.admit(call, route.path, route.method)
            if exchange.oversize:
                raise RequestTooLarge(bytes_max)
            encoding = checked_encoding(exchange.headers.get(b"connect-content-encoding"))
            if isinstance(route.method, StreamMethod):
                data = only_message(exchange.body, encoding, bytes_max)
                message = route.message(self.codec, data, bytes_max, as_json)
        except QueryError as error:
            call.fail(error)
            return
        if isinstance(route.method, StreamMethod):
            self.calls.stream(call, route.path, route.method, message)
        else:
            assert isinstance(route.method, DuplexMethod), "a unary method has its own content types"
            received = messages(exchange, encoding, bytes_max)
            decoded = (route.message(self.codec, data, bytes_max, as_json) async for data in received)
            self.calls.duplex(call, route.path, route.method, decoded)


def error_value(error: QueryError, codec: JsonCodec) -> dict[str, Any]:
    """Return an error as Connect's JSON has it."""
    details = []
    packed: PackedAny
    for packed in status_of(error).details:
        detail = {
            "type": packed.type_url.rpartition("/")[2],
            "value": base64.b64encode(packed.value).rstrip(b"=").decode("ascii"),
        }
        message = codec.unpacked(packed)
        if message is not None:
            detail["debug"] = codec.to_value(message)
        details.append(detail)
    return {"code": _CODE_NAMES[code_of(error)], "message": error.text, "details": details}


def _route(path: str, method: Method, codec: JsonCodec) -> _Route:
    try:
        types = codec.types(path)
    except KeyError:
        return _Route(path, method, None)
    return _Route(path, method, types, LastMade(partial(codec.to_json, types.response_class)))


def _content_type(exchange: Exchange) -> bytes:
    """Return the content type, lower case and without a charset that says UTF-8; others are left to be refused."""
    given = exchange.headers.get(b"content-type", b"")
    if b";" not in given:
        return given.strip().lower()
    media_type, _, parameters = given.lower().partition(b";")
    if parameters.strip().replace(b'"', b"") in (b"charset=utf-8", b""):
        return media_type.strip()
    return given


def _accept_post(unary: bool, *, with_json: bool) -> bytes:
    types = (_JSON, _PROTO) if unary else (_STREAM_JSON, _STREAM_PROTO)
    return b", ".join(types if with_json else types[1:])


def _checked_timeout_s(exchange: Exchange) -> float | None:
    """Return the timeout of a request; raise `InvalidField` where it, or the version of Connect, is no such thing."""
    headers = exchange.headers
    if headers.get(b"connect-protocol-version", _VERSION) != _VERSION:
        raise InvalidField("", "connect-protocol-version is not 1; send 1, or leave it out")
    text = headers.get(b"connect-timeout-ms")
    if text is None:
        return None
    if not text.isdigit() or len(text) > _TIMEOUT_DIGITS_MAX:
        raise InvalidField("", "connect-timeout-ms is not a number of up to 10 digits; check the client")
    return int(text) / 1000


def _params(query: bytes) -> dict[bytes, bytes]:
    """Return the parameters of a query; of a repeated one the first."""
    params: dict[bytes, bytes] = {}
    for pair in query.split(b"&"):
        name, _, value = pair.partition(b"=")
        params.setdefault(unquote_to_bytes(name), unquote_to_bytes(value.replace(b"+", b" ")))
    return params


def _from_base64(text: bytes) -> bytes:
    """Return what URL-safe or standard base64 holds, padded or not; raise `InvalidField` where it is none."""
    plain = text.rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
    try:
        return binascii.a2b_base64(plain + b"=" * (-len(plain) % 4), strict_mode=True)
    except binascii.Error:
        raise InvalidField("", "the message is not URL-safe base64; encode it so, or leave base64=1 out") from None


def _end_frame(last: dict[str, Any], trailer: Fields) -> bytes:
    """Return the envelope that ends a stream; `last` has its error, or nothing."""
    if trailer:
        metadata: dict[str, list[str]] = {}
        for name, value in trailer:
            metadata.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        last = {**last, "metadata": metadata}
    return envelope(compact(last), _END_STREAM)


def _ok_headers(key: tuple[Fields, bool, bool, bytes]) -> ResponseHeaders:
    trailer, as_json, get, coding = key
    fields: Fields = ((b"content-type", _JSON if as_json else _PROTO), (b"accept-encoding", GZIP))
    if coding:
        fields += ((b"content-encoding", coding),)
    if get:
        fields += (_NO_STORE,)
    return ResponseHeaders(200, fields + _as_headers(trailer))


def _as_headers(trailer: Fields) -> Fields:
    return tuple((b"trailer-" + name, value) for name, value in trailer)


_STREAM_HEADERS = {
    (as_json, coding): ResponseHeaders(
        200,
        (
            (b"content-type", content_type),
            (b"connect-accept-encoding", GZIP),
            *(() if coding is None else ((b"connect-content-encoding", coding),)),
        ),
    )
    for content_type, as_json in _STREAM_TYPES.items()
    for coding in (None, *CODINGS)
}
