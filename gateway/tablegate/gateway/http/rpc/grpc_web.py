"""gRPC-Web (the protocol of gRPC's PROTOCOL-WEB.md): gRPC whose trailers are the body's last frame, over any HTTP.

The text form is the same in base64, for browsers that cannot read a body of bytes as it comes.
"""

import base64
import binascii
import re

from typing_extensions import override

from tablegate.gateway.http.exchange import TEXT, Exchange, ResponseHeaders
from tablegate.gateway.http.rpc.calls import GZIP, Calls, FramedCall, checked_encoding
from tablegate.gateway.http.rpc.compression import SMALL_BYTES, answer_zipped
from tablegate.gateway.http.rpc.grpc import (
    COMPRESSED,
    OK,
    MethodTable,
    envelope,
    error_fields,
    messages,
    only_message,
    timeout_s,
    zipped_envelope,
)
from tablegate.gateway.query.call import DuplexMethod, Fields, Methods, StreamMethod, UnaryMethod
from tablegate.gateway.query.errors import InvalidField, NotServed, QueryError, RequestTooLarge

CONTENT_TYPE = b"application/grpc-web"
_TEXT_TYPE = b"application/grpc-web-text"
_IS_TEXT = {CONTENT_TYPE: False, CONTENT_TYPE + b"+proto": False, _TEXT_TYPE: True, _TEXT_TYPE + b"+proto": True}
_ANSWER_HEADERS = {
    (text, is_zipped): ResponseHeaders(
        200,
        (
            (b"content-type", name + b"+proto"),
            (b"grpc-accept-encoding", b"identity,gzip"),
            *(((b"grpc-encoding", GZIP),) if is_zipped else ()),
        ),
    )
    for name, text in ((CONTENT_TYPE, False), (_TEXT_TYPE, True))
    for is_zipped in (False, True)
}
_WRONG_TYPE = ResponseHeaders(415, (TEXT, (b"accept-post", b", ".join(_IS_TEXT))))
_WRONG_METHOD = ResponseHeaders(405, (TEXT, (b"allow", b"POST")))
_TRAILER_FRAME = 0x80  # the flag
_BASE64_RUN = re.compile(rb"[^=]*=*")


class GrpcWebCall(FramedCall):
    """A call over gRPC-Web."""

    __slots__ = ("_is_zipped", "_text")

    def __init__(self, calls: Calls, exchange: Exchange, *, text: bool) -> None:
        super().__init__(calls, exchange, _ANSWER_HEADERS[text, False])
        self._text = text
        self._is_zipped = False

    def zip(self) -> None:
        """Compress messages from now on; before the first."""
        self._headers, self._is_zipped = _ANSWER_HEADERS[self._text, True], True

    @override
    def answer(self, message: bytes) -> None:
        if len(message) >= SMALL_BYTES and self.exchange.headers.get(b"grpc-encoding") == GZIP:
            self.zip()
            answer_zipped(self.exchange, message, lambda data: self._answer(envelope(data, COMPRESSED)))
        else:
            self._answer(envelope(message))

    def _answer(self, enveloped: bytes) -> None:
        self.end_with(self._frame(enveloped + _trailer_frame(OK + self.trailer)))

    @override
    def fail(self, error: QueryError) -> None:
        self.end_with(self._frame(_trailer_frame(error_fields(error) + self.trailer)))

    @override
    def framed(self, message: bytes) -> bytes:
        return self._frame(zipped_envelope(message) if self._is_zipped else envelope(message))

    @override
    def end(self) -> None:
        self.end_with(self._frame(_trailer_frame(OK + self.trailer)))

    def _frame(self, frame: bytes) -> bytes:
        # Frames are padded one by one: a client reads base64 four letters at a time, and padding ends a run.
        return base64.b64encode(frame) if self._text else frame


class GrpcWebProtocol:
    """Serves exchanges whose content type is gRPC-Web's."""

    def __init__(self, methods: Methods, calls: Calls) -> None:
        self._methods = MethodTable(methods)
        self._calls = calls

    def serve(self, exchange: Exchange) -> bool:
        """Serve an exchange that is of this protocol; return whether it was."""
        content_type = exchange.headers.get(b"content-type", b"")
        if not content_type.startswith(CONTENT_TYPE):
            return False
        text = _IS_TEXT.get(content_type.partition(b";")[0].rstrip())
        if text is None:
            exchange.respond(_WRONG_TYPE, b"messages come as protobuf; send application/grpc-web+proto\n")
        elif exchange.method != b"POST":
            exchange.respond(_WRONG_METHOD, b"gRPC-Web calls come by POST\n")
        else:
            self._serve(exchange, text=text)
        return True

    def _serve(self, exchange: Exchange, *, text: bool) -> None:
        call = GrpcWebCall(self._calls, exchange, text=text)
        headers = exchange.headers
        bytes_max = self._calls.message_bytes_max
        try:
            call.timeout_s = timeout_s(headers.get(b"grpc-timeout"))
            path, method = self._methods.find(exchange.target)
            if isinstance(method, DuplexMethod) and text:
                raise NotServed("the method has a stream each way, which base64 cannot carry; send grpc-web+proto")
            self._calls.admit(call, path, method)
            if exchange.oversize:
                raise RequestTooLarge(bytes_max)
            encoding = checked_encoding(headers.get(b"grpc-encoding"))
            if isinstance(method, (UnaryMethod, StreamMethod)):
                message = only_message(_from_base64(exchange.body) if text else exchange.body, encoding, bytes_max)
        except QueryError as error:
            call.fail(error)
            return
        if isinstance(method, UnaryMethod):
            self._calls.unary(call, path, method, message)
        elif isinstance(method, StreamMethod):
            if method.is_bulk and encoding is not None:
                call.zip()
            self._calls.stream(call, path, method, message)
        else:
            self._calls.duplex(call, path, method, messages(exchange, encoding, bytes_max))


def _trailer_frame(fields: Fields) -> bytes:
    block = b"".join([b"%b: %b\r\n" % field for field in fields])
    return envelope(block, _TRAILER_FRAME)


def _from_base64(text: bytes) -> bytes:
    """Return what one or several runs of base64 hold, each padded; raise `InvalidField` where there is something else.

    Clients may encode each piece of a request by itself.
    """
    try:
        return b"".join([binascii.a2b_base64(run, strict_mode=True) for run in _BASE64_RUN.findall(text)])
    except binascii.Error:
        raise InvalidField("", "the request's body is not base64; encode it so, or send application/grpc-web") from None
