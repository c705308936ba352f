"""The seam between connections and protocols: one HTTP request and its answer, the same over HTTP/1.1 and HTTP/2.

A connection knows nothing of RPC, a protocol nothing of frames. Everything happens on the event loop's thread.

Headers and trailers of answers are encoded once, for both HTTP versions, and kept: sending them copies bytes.

Decision: docs/decisions/0029-messages-are-offered.md
"""

from collections.abc import Callable, Hashable, Mapping
from enum import Enum
from http import HTTPStatus
from typing import Generic, Protocol, TypeVar

from tablegate.gateway.http.h2.headers import encode_fields, encode_status
from tablegate.gateway.query.call import Fields

MESSAGE_BYTES_MAX = 256 * 1024  # of a request: 1,000 keys of 250 bytes
TEXT = (b"content-type", b"text/plain; charset=utf-8")
CACHED_MAX = 4_096  # there is a trailer a partition, and this is only a bound

Key = TypeVar("Key", bound=Hashable)
Block = TypeVar("Block", bound="Trailer")


class Trailer:
    """Fields after a body."""

    __slots__ = ("fields", "h1", "h2")

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.h2 = encode_fields(fields)
        self.h1 = b"".join([b"%b: %b\r\n" % field for field in fields])


class ResponseHeaders(Trailer):
    """Status and fields before a body, without those that belong to the connection: content-length, transfer-encoding.

    `h1` is the status line and the fields, without the empty line after them.
    """

    __slots__ = ("status",)

    def __init__(self, status: int, fields: Fields = ()) -> None:
        super().__init__(fields)
        self.status = status
        self.h2 = encode_status(status) + self.h2
        self.h1 = b"HTTP/1.1 %d %b\r\n" % (status, _phrase(status)) + self.h1


class HeaderCache(dict[Key, Block], Generic[Key, Block]):
    """Heads or trailers by what they are made of, made once each."""

    def __init__(self, make: Callable[[Key], Block]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: Key) -> Block:
        if len(self) >= CACHED_MAX:
            self.clear()
        made = self[key] = self._make(key)
        return made


def _phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode("ascii")
    except ValueError:
        return b"Unknown"


class Exchange(Protocol):
    """One request and its answer.

    The answer is either one `respond`, or `begin`, any number of `send`, and `end`. Once the client has cancelled or is
    gone, all of them do nothing.
    """

    method: bytes
    """Such as b"POST"."""
    target: bytes
    """Path and query, as they were sent."""
    headers: Mapping[bytes, bytes]
    """By lower-case name, b"host" among them; values of a repeated name are joined by b", "."""
    body: bytes
    """The whole body; b"" where `App.streams_body`."""
    oversize: bool
    """Whether the body was longer than `App.body_bytes_max`: then `body` is its beginning, of any length."""
    http2: bool
    """Whether there can be trailers, and a body that goes both ways."""
    on_gone: Callable[[], object] | None
    """Called once where the client cancels, or its connection ends, before the answer did. Set by `App.serve`."""

    @property
    def principal(self) -> str | None:
        """Return who the client is by its verified certificate (see `principal_of`); None without one, or when over."""

    @property
    def address(self) -> str:
        """Return the address of the client, as far as it cannot choose it (see `address_of`); "" when over."""

    def respond(self, headers: ResponseHeaders, body: bytes, trailer: Trailer | None = None) -> None:
        """Answer, whole. Over HTTP/1.1 a trailer is left out."""

    def begin(self, headers: ResponseHeaders) -> None:
        """Send the headers of an answer whose body follows."""

    async def send(self, data: bytes) -> None:
        """Send a piece of the body; return when the next may be made: a client that does not read makes it wait."""

    def offer(self, data: bytes) -> bool:
        """Send a piece of a body that was begun, if that can be at once; else return False and send nothing.

        Not while `send` waits.
        """

    def end(self, trailer: Trailer | None = None) -> None:
        """End the answer."""

    def abort(self) -> None:
        """Break the answer off, so that the client sees that it is not whole."""

    async def read(self) -> bytes:
        """Return the next piece of the request's body, b"" at its end. Only where `App.streams_body`."""


class Excess(Enum):
    """What there is too much of, so that an exchange is refused; the value names the limit."""

    KEPT = "bytes kept"
    WAITED = "time waited"


class App(Protocol):
    """What serves exchanges."""

    body_bytes_max: int
    """Connections take no longer body: they serve it cut, as `oversize`, and throw the rest away."""

    def streams_body(self, exchange: Exchange) -> bool:
        """Return whether the exchange is to be served from its headers on, without waiting for its body."""

    def serve(self, exchange: Exchange) -> None:
        """Serve an exchange, now or later. Never raises."""

    def refuse(self, exchange: Exchange, excess: Excess) -> None:
        """Answer that there is too much of something. Never raises."""
