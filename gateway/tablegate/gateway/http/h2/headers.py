"""Header blocks: HPACK (RFC 7541), and the fields of requests (RFC 9113, 8.2 and 8.3).

A block is read in two steps. `HpackDecoder` turns it into fields; each block may change the table that the next ones
refer to, so that blocks must be decoded in their order, also those that nobody wants. `RequestDecoder` then checks the
fields and takes method and target out of them. A client sends the same names again and again, so names that were found
right once are looked up as one tuple and not checked again; values are checked as one string, unless the request is the
same as the last. A block that is the last one again, and has left the table as it was, is the same request: a client
that asks one method with one token sends no other.

Decoding is in Python, because it is as fast here as a decoder in Rust with the checks around it that it needs: most
fields are one byte, an index into a table. Encoding uses neither the dynamic table nor Huffman: a block is then the
same on every connection, can be made once, and sending it copies bytes.

Decision: docs/decisions/0143-the-same-block-is-the-same-request.md
"""

from collections.abc import Iterable, Sequence

from tablegate.gateway.http.h2 import huffman
from tablegate.gateway.http.h2.frames import (
    COMPRESSION_ERROR,
    PROTOCOL_ERROR,
    Http2ConnectionError,
    Http2StreamError,
)
from tablegate.gateway.http.h2.huffman import HpackError
from tablegate.gateway.http.h2.stream import Request

Field = tuple[bytes, bytes]

TABLE_BYTES = 4_096  # of the dynamic table: the default of HPACK, which our SETTINGS leave as it is
HEADER_BYTES_MAX = 16_384  # of a block as it is sent, and of its fields, each counted with 32 bytes more
_ENTRY_BYTES = 32  # what a field counts beside its name and value (RFC 7541, 4.1; RFC 9113, 6.5.2)
_INTEGER_BYTES_MAX = 5  # holds any number that means something here
_CACHED_STRING_BYTES_MIN = 16  # Huffman strings that are cached decoded: shorter ones are as quick to decode,
_CACHED_STRING_BYTES_MAX = 2_048  # and longer ones are rare
_CACHED_STRINGS_BYTES = 16_384  # in one connection
_CHECKED_BYTES = 16_384  # of names that were found right, as they count: a client's calls have a handful of tuples
_CONTENT_LENGTH_DIGITS_MAX = 18

_STATIC = (
    ":authority|:method GET|:method POST|:path /|:path /index.html|:scheme http|:scheme https|:status 200|:status 204|"
    ":status 206|:status 304|:status 400|:status 404|:status 500|accept-charset|accept-encoding gzip, deflate|"
    "accept-language|accept-ranges|accept|access-control-allow-origin|age|allow|authorization|cache-control|"
    "content-disposition|content-encoding|content-language|content-length|content-location|content-range|content-type|"
    "cookie|date|etag|expect|expires|from|host|if-match|if-modified-since|if-none-match|if-range|if-unmodified-since|"
    "last-modified|link|location|max-forwards|proxy-authenticate|proxy-authorization|range|referer|refresh|retry-after|"
    "server|set-cookie|strict-transport-security|transfer-encoding|user-agent|vary|via|www-authenticate"
)
_STATIC_FIELDS: tuple[Field, ...] = tuple(
    (name, value) for name, _, value in (entry.partition(b" ") for entry in _STATIC.encode().split(b"|"))
)
_DYNAMIC = len(_STATIC_FIELDS) + 1  # index of the newest entry
_STATIC_INDEXES = {name: index for index, (name, _) in reversed(list(enumerate(_STATIC_FIELDS, 1)))}
_STATUS_INDEXES = {value: index for index, (name, value) in enumerate(_STATIC_FIELDS, 1) if name == b":status"}

_PSEUDO = frozenset({b":method", b":scheme", b":path", b":authority"})
_REQUIRED = frozenset({b":method", b":scheme", b":path"})
_CONNECTION_SPECIFIC = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"http2-settings"}
)
_METHODS = frozenset({b"POST", b"GET", b"HEAD", b"OPTIONS"})  # the usual ones, which are not looked at byte by byte
_SCHEMES = frozenset({b"http", b"https"})
_SPACES = b" \t"
_LAST_BYTES_MAX = 2_048  # of a request that is kept, to know the next one as the same
_NAME_BYTES = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
_TOKEN_BYTES = _NAME_BYTES + b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class HpackDecoder:
    """Decodes the blocks of one connection, in their order: each may change what the next ones mean."""

    __slots__ = ("_bytes", "_bytes_max", "_cached", "_cached_bytes", "_table", "changes")

    def __init__(self) -> None:
        self.changes = 0  # of the table: blocks that are equal, with none between, have the same fields
        self._table: list[Field] = [(b"", b""), *_STATIC_FIELDS]  # by index; the dynamic table, newest first, follows
        self._bytes = 0
        self._bytes_max = TABLE_BYTES
        self._cached: dict[bytes, bytes] = {}
        self._cached_bytes = 0

    def decode(self, block: bytes) -> list[Field]:
        """Return the fields of a block; raise `HpackError`. They may count far more bytes than the block has."""
        table = self._table
        fields: list[Field] = []
        add = fields.append
        at, end = 0, len(block)
        try:
            while at < end:
                byte = block[at]
                at += 1
                if byte > 0x80:
                    if byte == 0xFF:
                        byte, at = _integer(block, at, 0x7F)
                        add(table[byte])
                    else:
                        add(table[byte & 0x7F])
                elif byte == 0x80:
                    raise HpackError("index 0")
                elif byte & 0x60 == 0x20:
                    at = self._resize(block, at, byte & 0x1F, fields)
                else:
                    limit = 0x3F if byte & 0x40 else 0xF
                    index, size, begin = byte & limit, block[at], at + 1
                    if index == limit and size < 0x80:
                        index, size, begin = limit + size, block[begin], begin + 1
                    # The usual literal, a name of a table and a short value as it is, costs no call.
                    if index and size < 0x7F:
                        at = begin + size
                        if at > end:
                            raise HpackError("string ends outside its block")
                        add((table[index][0], block[begin:at]))
                    else:
                        at = self._literal(block, at, byte & limit, limit, fields)
                    if limit == 0x3F:
                        self._insert(fields[-1])
        except IndexError:
            raise HpackError("block ends inside a field, or an index is too large") from None
        return fields

    def _literal(self, block: bytes, at: int, index: int, limit: int, fields: list[Field]) -> int:
        """Add a field whose value is in the block; return where it ends. `limit`: the index that has more bytes."""
        if index == limit:
            index, at = _integer(block, at, limit)
        if index:
            name = self._table[index][0]
        else:
            name, at = self._string(block, at)
        value, at = self._string(block, at)
        fields.append((name, value))
        return at

    def _string(self, block: bytes, at: int) -> tuple[bytes, int]:
        """Return a string, and where it ends."""
        first = block[at]
        size = first & 0x7F
        at += 1
        if size == 0x7F:
            size, at = _integer(block, at, 0x7F)
        end = at + size
        if end > len(block):
            raise HpackError("string ends outside its block")
        data = block[at:end]
        if first < 0x80:
            return data, end
        if _CACHED_STRING_BYTES_MIN <= size <= _CACHED_STRING_BYTES_MAX:
            return self._cached.get(data) or self._decode_string(data), end
        return huffman.decode(data), end

    def _decode_string(self, data: bytes) -> bytes:
        """Decode a string and cache it: clients repeat those that they do not index."""
        text = huffman.decode(data)
        self._cached_bytes += len(data) + len(text)
        if self._cached_bytes > _CACHED_STRINGS_BYTES:
            self._cached.clear()
            self._cached_bytes = len(data) + len(text)
        self._cached[data] = text
        return text

    def _insert(self, field: Field) -> None:
        self.changes += 1
        self._bytes += len(field[0]) + len(field[1]) + _ENTRY_BYTES
        self._table.insert(_DYNAMIC, field)
        if self._bytes > self._bytes_max:
            self._evict()

    def _evict(self) -> None:
        """Drop the oldest entries, until the rest fits: also the newest, where it does not fit alone."""
        while self._bytes > self._bytes_max:
            name, value = self._table.pop()
            self._bytes -= len(name) + len(value) + _ENTRY_BYTES

    def _resize(self, block: bytes, at: int, size: int, fields: list[Field]) -> int:
        if size == 0x1F:
            size, at = _integer(block, at, 0x1F)
        if fields or size > TABLE_BYTES:
            raise HpackError("size of the table comes after a field, or is larger than allowed")
        self.changes += 1
        self._bytes_max = size
        self._evict()
        return at


def _integer(block: bytes, at: int, value: int) -> tuple[int, int]:
    """Return an integer that goes on at `at`, and where it ends; `value`: of its first byte."""
    for number in range(_INTEGER_BYTES_MAX):
        byte = block[at + number]
        value += (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return value, at + number + 1
    raise HpackError("integer is too long")


class HeaderListTooLarge(Exception):
    """The fields count more bytes than `HEADER_BYTES_MAX`."""


class RequestDecoder:
    """Decodes the header blocks of one connection, in their order: each may change what the next ones mean."""

    __slots__ = (
        "_block",
        "_block_changes",
        "_checked",
        "_checked_bytes",
        "_decode",
        "_hpack",
        "_names",
        "_request",
        "_values",
        "field_bytes",
    )

    def __init__(self) -> None:
        self.field_bytes = 0  # that the fields of the latest request count; whoever reads it resets it
        self._hpack = HpackDecoder()
        self._decode = self._hpack.decode
        self._block = b""  # the last one that was right and changed no table, its request, and the table's changes then
        self._request: Request = (b"", b"", {})
        self._block_changes = -1
        self._names: tuple[bytes, ...] = ()  # of the last request that was right, and its values with zeros between
        self._values = b"\0"  # of no request: one without fields is none that was right
        self._checked: dict[tuple[bytes, ...], int] = {}  # bytes that the names count, by names that were found right
        self._checked_bytes = 0

    def request(self, block: bytes) -> Request:
        """Return method, target and headers of a request. Requests that are the same share their headers.

        Raise `Http2ConnectionError` where it is not HPACK, `Http2StreamError` where it is no request, or
        `HeaderListTooLarge`.
        """
        changes = self._hpack.changes
        if block == self._block and changes == self._block_changes:
            return self._request
        try:
            fields = self._decode(block)
        except HpackError as error:
            raise _compression_error(error) from None
        headers = dict(fields)
        names = tuple(headers)
        if len(names) != len(fields):
            headers = _joined(fields)
            names = tuple(headers)
        values = b"\0".join(headers.values())
        if values != self._values or names != self._names:
            self._check_fields(headers, names, values)
        method = headers.pop(b":method")
        target = headers.pop(b":path")
        del headers[b":scheme"]
        authority = headers.pop(b":authority", None)
        if authority:
            headers[b"host"] = authority
        request = method, target, headers
        if self._hpack.changes == changes and values == self._values and names == self._names:
            self._block, self._block_changes, self._request = block, changes, request
        return request

    def _check_fields(self, headers: dict[bytes, bytes], names: tuple[bytes, ...], values: bytes) -> None:
        """Check the fields of a request that is not the same as the last; raise as `request` does."""
        size = self._checked.get(names)
        if size is None:
            size = self._check_names(names)
        if size + len(values) + 1 - len(names) > HEADER_BYTES_MAX:
            raise HeaderListTooLarge
        method, target, authority = headers[b":method"], headers[b":path"], headers.get(b":authority")
        if (
            b"\n" in values
            or b"\r" in values
            or values.count(b"\0") >= len(names)
            or b" \0" in values
            or b"\0 " in values
            or values[0] in _SPACES
            or values[-1] in _SPACES
            or (b"\t" in values and (b"\t\0" in values or b"\0\t" in values))
            or headers.get(b"te", b"trailers") != b"trailers"
            or headers[b":scheme"] not in _SCHEMES
            or (target[:1] != b"/" and not (target == b"*" and method == b"OPTIONS"))
            or (method not in _METHODS and (not method or method.translate(None, _TOKEN_BYTES)))
            or method == b"CONNECT"  # has neither a path nor a scheme (RFC 9113, 8.5)
        ):
            raise Http2StreamError(PROTOCOL_ERROR)
        host = headers.get(b"host", authority)
        if not host or (authority and host != authority):  # RFC 9113, 8.3.1
            raise Http2StreamError(PROTOCOL_ERROR)
        self.field_bytes = size + len(values)
        if self.field_bytes <= _LAST_BYTES_MAX:  # then the next ones that are the same count nothing
            self._names, self._values = names, values

    def check_trailers(self, block: bytes) -> None:
        """Decode a request's trailers, and drop them; raise as `request` does."""
        size = 0
        for name, value in self._fields(block):
            size += len(name) + len(value) + _ENTRY_BYTES
            if size > HEADER_BYTES_MAX:  # a byte may name a value of 4 KiB, and looking at that 16,000 times takes long
                raise Http2StreamError(PROTOCOL_ERROR)
            _check_name(name)
            if value.strip(_SPACES) != value or any(byte in value for byte in (b"\n", b"\r", b"\0")):
                raise Http2StreamError(PROTOCOL_ERROR)

    def skip(self, block: bytes) -> None:
        """Decode a block that nobody wants, for what it does to those after it; raise `Http2ConnectionError`."""
        self._fields(block)

    def _fields(self, block: bytes) -> list[Field]:
        try:
            return self._decode(block)
        except HpackError as error:
            raise _compression_error(error) from None

    def _check_names(self, names: tuple[bytes, ...]) -> int:
        """Check names that were not seen yet, in their order; return what they count."""
        pseudo = [name for name in names if name[:1] == b":"]
        if not _REQUIRED.issubset(pseudo) or not _PSEUDO.issuperset(pseudo):
            raise Http2StreamError(PROTOCOL_ERROR)
        for name in names[len(pseudo) :]:
            _check_name(name)
        size = sum(map(len, names)) + _ENTRY_BYTES * len(names)
        self._checked_bytes += size
        if self._checked_bytes > _CHECKED_BYTES:
            self._checked.clear()
            self._checked_bytes = size
        if size <= _CHECKED_BYTES:
            self._checked[names] = size
        return size


def content_length(headers: dict[bytes, bytes]) -> int | None:
    """Return the bytes of a body by its content-length; raise `Http2StreamError` where that is no number."""
    text = headers.get(b"content-length")
    if text is None:
        return None
    if not text.isdigit() or len(text) > _CONTENT_LENGTH_DIGITS_MAX:
        raise Http2StreamError(PROTOCOL_ERROR)
    return int(text)


def _compression_error(error: HpackError) -> Http2ConnectionError:
    return Http2ConnectionError(COMPRESSION_ERROR, f"header block: {error}")


def _check_name(name: bytes) -> None:
    """Check the name of a field that is not a pseudo header."""
    if not name or name.translate(None, _NAME_BYTES) or name in _CONNECTION_SPECIFIC:
        raise Http2StreamError(PROTOCOL_ERROR)


def _joined(fields: Sequence[Field]) -> dict[bytes, bytes]:
    """Return fields by name, where some come more than once; cookies may be cut in pieces (RFC 9113, 8.2.3)."""
    headers: dict[bytes, bytes] = {}
    size = 0
    for name, value in fields:
        size += len(name) + len(value) + _ENTRY_BYTES
        if size > HEADER_BYTES_MAX:
            raise HeaderListTooLarge
        if name not in headers:
            headers[name] = value
        elif name[:1] == b":":
            raise Http2StreamError(PROTOCOL_ERROR)
        else:
            headers[name] += (b"; " if name == b"cookie" else b", ") + value
    return headers


def encode_status(status: int) -> bytes:
    """Return the field of a response's status, which is its first."""
    index = _STATUS_INDEXES.get(b"%d" % status)
    return bytes((0x80 | index,)) if index is not None else encode_fields(((b":status", b"%d" % status),))


def encode_fields(fields: Iterable[Field]) -> bytes:
    """Return fields as literals without indexing (RFC 7541, 6.2.2)."""
    return b"".join([_encode_literal(name, value) for name, value in fields])


def _encode_literal(name: bytes, value: bytes) -> bytes:
    index = _STATIC_INDEXES.get(name)
    start = b"\x00" + _encode_integer(len(name), 127) + name if index is None else _encode_integer(index, 15)
    return start + _encode_integer(len(value), 127) + value


def _encode_integer(value: int, limit: int) -> bytes:
    """Return an integer whose first byte holds up to `limit` (RFC 7541, 5.1)."""
    if value < limit:
        return bytes((value,))
    out = bytearray((limit,))
    value -= limit
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
