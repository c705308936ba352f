"""Heads of HTTP/2 requests: a header block in; method, target and headers out, or what is wrong (RFC 9113, 8)."""

from collections.abc import Sequence

from tablegate.gateway.http.h2.frames import COMPRESSION_ERROR, PROTOCOL_ERROR, ConnectionFault, StreamFault
from tablegate.gateway.http.h2.hpack import Field, HpackDecoder, HpackError

HEADER_BYTES_MAX = 16_384  # of a block as it is sent, and of its fields, each counted with 32 bytes more
_FIELD_BYTES = 32
_SHAPES_MAX = 64  # a client's calls have a handful
_CONTENT_LENGTH_DIGITS_MAX = 18

_PSEUDO = frozenset({b":method", b":scheme", b":path", b":authority"})
_REQUIRED = frozenset({b":method", b":scheme", b":path"})
_CONNECTION_SPECIFIC = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"http2-settings"}
)
_NAME_BYTES = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"

Request = tuple[bytes, bytes, dict[bytes, bytes]]
"""Method, target, headers."""


class HeadTooLarge(Exception):
    """The fields count more than `HEADER_BYTES_MAX`."""


class RequestHeads:
    """Reads the heads of one connection's requests, in their order."""

    __slots__ = ("_decode", "_shapes")

    def __init__(self) -> None:
        self._decode = HpackDecoder().decode
        self._shapes: dict[tuple[bytes, ...], int] = {}  # bytes that the names count, by names that were found right

    def request(self, block: bytes) -> Request:
        """Read a request's block.

        Raise `ConnectionFault` where it is not HPACK, `StreamFault` where it is no request, `HeadTooLarge`.
        """
        fields = self._fields(block)
        headers = dict(fields)
        shape = tuple(headers)
        if len(shape) != len(fields):
            headers = _joined(fields)
            shape = tuple(headers)
        size = self._shapes.get(shape)
        if size is None:
            size = self._new_shape(shape)
        values = b"".join(headers.values())
        if size + len(values) > HEADER_BYTES_MAX:
            raise HeadTooLarge
        if b"\n" in values or b"\r" in values or b"\0" in values or headers.get(b"te", b"trailers") != b"trailers":
            raise StreamFault(PROTOCOL_ERROR)
        method = headers.pop(b":method")
        target = headers.pop(b":path")
        del headers[b":scheme"]
        authority = headers.pop(b":authority", None)
        if authority is not None:
            headers[b"host"] = authority
        if target[:1] != b"/" and not (target == b"*" and method == b"OPTIONS"):
            raise StreamFault(PROTOCOL_ERROR)
        return method, target, headers

    def trailers(self, block: bytes) -> None:
        """Read a request's trailers, and forget them; raises as `request`."""
        for name, _ in self._fields(block):
            _check_name(name)

    def skip(self, block: bytes) -> None:
        """Read a block that nobody wants, for what it does to those after it; raise `ConnectionFault`."""
        self._fields(block)

    def _fields(self, block: bytes) -> list[Field]:
        try:
            return self._decode(block)
        except HpackError as error:
            raise ConnectionFault(COMPRESSION_ERROR, f"header block: {error}") from None

    def _new_shape(self, shape: tuple[bytes, ...]) -> int:
        """Check names that were not seen yet, in their order; return what they count."""
        pseudo = [name for name in shape if name[:1] == b":"]
        if not _REQUIRED.issubset(pseudo) or not _PSEUDO.issuperset(pseudo):
            raise StreamFault(PROTOCOL_ERROR)
        for name in shape[len(pseudo) :]:
            _check_name(name)
        size = sum(map(len, shape)) + _FIELD_BYTES * len(shape)
        if len(self._shapes) >= _SHAPES_MAX or size > HEADER_BYTES_MAX:
            self._shapes.clear()
        self._shapes[shape] = size
        return size


def content_length(headers: dict[bytes, bytes]) -> int | None:
    """Return the length that a request says its body has; raise `StreamFault` where that is no number."""
    text = headers.get(b"content-length")
    if text is None:
        return None
    if not text.isdigit() or len(text) > _CONTENT_LENGTH_DIGITS_MAX:
        raise StreamFault(PROTOCOL_ERROR)
    return int(text)


def _check_name(name: bytes) -> None:
    """Check the name of a field that is not a pseudo header."""
    if not name or name.translate(None, _NAME_BYTES) or name in _CONNECTION_SPECIFIC:
        raise StreamFault(PROTOCOL_ERROR)


def _joined(fields: Sequence[Field]) -> dict[bytes, bytes]:
    """Return fields by name, where some come more than once; cookies may be cut in pieces (RFC 9113, 8.2.3)."""
    headers: dict[bytes, bytes] = {}
    size = 0
    for name, value in fields:
        size += len(name) + len(value) + _FIELD_BYTES
        if size > HEADER_BYTES_MAX:
            raise HeadTooLarge
        if name not in headers:
            headers[name] = value
        elif name[:1] == b":":
            raise StreamFault(PROTOCOL_ERROR)
        else:
            headers[name] += (b"; " if name == b"cookie" else b", ") + value
    return headers
