"""Heads and trailers of answers, encoded once for both HTTP versions, so that sending one copies bytes.

HPACK (RFC 7541) is used without its dynamic table and without Huffman: a block is then the same on every connection.
"""

from collections.abc import Callable, Hashable
from http import HTTPStatus
from typing import Generic, TypeVar

from tablegate.gateway.query.call import Fields

TEXT = (b"content-type", b"text/plain; charset=utf-8")
KEPT_MAX = 4_096  # there is a trailer a partition, and this is only a bound

Key = TypeVar("Key", bound=Hashable)
Block = TypeVar("Block", bound="Trailer")

# Places of names in HPACK's static table (RFC 7541, appendix A), of those that we send.
_STATIC_NAMES = {
    b":status": 8,
    b"access-control-allow-origin": 20,
    b"cache-control": 24,
    b"content-encoding": 26,
    b"content-length": 28,
    b"content-type": 31,
    b"etag": 34,
    b"location": 46,
    b"retry-after": 53,
    b"server": 54,
    b"vary": 59,
    b"www-authenticate": 61,
}
_STATIC_STATUSES = {200: 0x88, 204: 0x89, 206: 0x8A, 304: 0x8B, 400: 0x8C, 404: 0x8D, 500: 0x8E}


class Trailer:
    """Fields after a body."""

    __slots__ = ("fields", "h1", "h2")

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.h2 = b"".join([_literal(name, value) for name, value in fields])
        self.h1 = b"".join([b"%b: %b\r\n" % field for field in fields])


class Head(Trailer):
    """Status and fields before a body, without those that belong to the connection: content-length, transfer-encoding.

    `h1` is the status line and the fields, without the empty line after them.
    """

    __slots__ = ("status",)

    def __init__(self, status: int, fields: Fields = ()) -> None:
        super().__init__(fields)
        self.status = status
        self.h2 = _status(status) + self.h2
        self.h1 = b"HTTP/1.1 %d %b\r\n" % (status, _phrase(status)) + self.h1


class Kept(dict[Key, Block], Generic[Key, Block]):
    """Heads or trailers by what they are made of, made once each."""

    def __init__(self, make: Callable[[Key], Block]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: Key) -> Block:
        if len(self) >= KEPT_MAX:
            self.clear()
        made = self[key] = self._make(key)
        return made


def _phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode("ascii")
    except ValueError:
        return b"Unknown"


def _status(status: int) -> bytes:
    known = _STATIC_STATUSES.get(status)
    return bytes((known,)) if known is not None else _literal(b":status", b"%d" % status)


def _literal(name: bytes, value: bytes) -> bytes:
    """Return a literal field without indexing (RFC 7541, 6.2.2)."""
    place = _STATIC_NAMES.get(name)
    start = b"\x00" + _length(len(name)) + name if place is None else _prefixed(place, 15)
    return start + _length(len(value)) + value


def _length(length: int) -> bytes:
    return _prefixed(length, 127)


def _prefixed(value: int, limit: int) -> bytes:
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
