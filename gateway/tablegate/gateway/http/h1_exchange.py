"""One request over HTTP/1.1 and its answer.

How an answer ends depends on its client: `respond` says the length; a body whose length is not known comes in chunks
(HTTP/1.1), or up to the end of the connection (HTTP/1.0). There, breaking off must reset the connection: its end would
look like that of the body. HEAD, 204 and 304 have no body, whatever the app sends.

The connection ends with an answer that begins before its request is whole: the rest of the body would have to be read
and thrown away before the next request can be found, and a new connection costs less.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from tablegate.gateway.http.exchange import ResponseHeaders, Trailer

CLOSE = b"connection: close\r\n"
SENT_BYTES_MAX = 64 * 1024  # of one answer, before other connections have their turn: the client may read that fast
_LAST_CHUNK = b"0\r\n\r\n"
_BODILESS_STATUSES = frozenset({204, 304})


class Connection(Protocol):
    """The connection, as its exchanges see it."""

    draining: bool

    @property
    def principal(self) -> str | None:
        """Who the client is by its verified certificate."""

    @property
    def address(self) -> str:
        """The address of the client."""

    @property
    def is_blocked(self) -> bool:
        """Whether the client has yet to read what was written."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    async def writable(self) -> None:
        """Return when the client has read most of what was written, or is gone."""

    def send_continue(self, exchange: "Http1Exchange") -> None:
        """Ask the client for the body, if it waits for that."""

    def note_answered(self, exchange: "Http1Exchange") -> None:
        """Go on with the next request."""

    def break_off(self, *, by_reset: bool) -> None:
        """End without what was not sent; `by_reset` where the end alone would look like that of an answer."""

    def advance(self) -> None:
        """Parse and serve as far as possible, in the order of the requests."""


class Http1Exchange:
    """An `Exchange`; and what its connection notes of it."""

    __slots__ = (
        "_bodiless",
        "_chunked",
        "_connection",
        "_reader",
        "_sent_bytes",
        "begun",
        "body",
        "complete",
        "expects_continue",
        "headers",
        "http2",
        "http10",
        "last",
        "method",
        "on_gone",
        "oversize",
        "received",
        "streams_body",
        "target",
    )

    def __init__(
        self, connection: Connection, method: bytes, target: bytes, headers: Mapping[bytes, bytes], *, http10: bool
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.body = b""
        self.oversize = False
        self.http2 = False
        self.on_gone: Callable[[], object] | None = None
        self.http10 = http10
        self.last = http10  # the connection ends with this answer
        self.streams_body = False
        self.expects_continue = False
        self.received = bytearray()  # of the body, not read yet
        self.complete = False  # the whole request has come
        self.begun = False  # the answer
        self._connection: Connection | None = connection  # none: the answer is over, or the client gone
        self._bodiless = method == b"HEAD"
        self._chunked = False
        self._reader: asyncio.Future[None] | None = None
        self._sent_bytes = 0  # in this turn of the event loop, or a few

    @property
    def principal(self) -> str | None:
        """Who the client is by its verified certificate."""
        return None if self._connection is None else self._connection.principal

    @property
    def address(self) -> str:
        """The address of the client."""
        return "" if self._connection is None else self._connection.address

    @property
    def waits_for_body(self) -> bool:
        """Whether the app is waiting in `read`."""
        return self._reader is not None

    def respond(self, headers: ResponseHeaders, body: bytes, trailer: Trailer | None = None) -> None:  # noqa: ARG002
        """Answer, whole."""
        connection = self._connection
        if connection is None:
            return
        self._note_headers(connection, headers)
        length = b"" if headers.status in _BODILESS_STATUSES else b"content-length: %d\r\n" % len(body)
        shown = b"" if self._bodiless else body
        connection.write(b"".join((headers.h1, length, CLOSE if self.last else b"", b"\r\n", shown)))
        self._finish(connection)

    def begin(self, headers: ResponseHeaders) -> None:
        """Send the headers; the body follows in chunks, or up to the end of an HTTP/1.0 connection."""
        connection = self._connection
        if connection is None:
            return
        self._note_headers(connection, headers)
        self._chunked = not (self.http10 or self._bodiless)
        framing = b"transfer-encoding: chunked\r\n" if self._chunked else b""
        connection.write(b"".join((headers.h1, framing, CLOSE if self.last else b"", b"\r\n")))

    async def send(self, data: bytes) -> None:
        """Send a piece; return when the client has read enough for another."""
        connection = self._connection
        if connection is None:
            return
        if data and not self._bodiless:  # an empty chunk would end the body
            self._write(connection, data)
        self._sent_bytes += len(data)
        if self._sent_bytes >= SENT_BYTES_MAX:
            self._sent_bytes = 0
            await asyncio.sleep(0)
        await connection.writable()

    def offer(self, data: bytes) -> bool:
        """Send a piece, if the client has read enough for it; else return False and send nothing."""
        connection = self._connection
        if connection is None or not data or self._bodiless or connection.is_blocked:
            return False
        if self._sent_bytes + len(data) >= SENT_BYTES_MAX:
            return False
        self._write(connection, data)
        self._sent_bytes += len(data)
        return True

    def _write(self, connection: Connection, data: bytes) -> None:
        connection.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self, trailer: Trailer | None = None) -> None:  # noqa: ARG002
        """End the answer."""
        connection = self._connection
        if connection is None:
            return
        if self._chunked:
            connection.write(_LAST_CHUNK)
        self._finish(connection)

    def abort(self) -> None:
        """Close the connection without the last chunk."""
        connection = self._connection
        if connection is None:
            return
        self._leave()
        connection.break_off(by_reset=self.http10)

    async def read(self) -> bytes:
        """Return what has come of the body since the last read, b"" at its end or where the client is gone."""
        while not self.received and not self.complete and self._connection is not None:
            self._connection.send_continue(self)
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        data = bytes(self.received)
        self.received.clear()
        if self._connection is not None:
            self._connection.advance()
        return data

    def note_body(self) -> None:
        """Wake `read`: there is more of the body, its end, or nobody to send it."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def note_gone(self) -> None:
        """Let the app know that nobody waits for the answer."""
        on_gone = self.on_gone
        self._leave()
        if on_gone is not None:
            on_gone()

    def _note_headers(self, connection: Connection, headers: ResponseHeaders) -> None:
        self.begun = True
        # An unfinished body would have to be read to its end before the next request: ending is cheaper.
        self.last = self.last or not self.complete or connection.draining
        self._bodiless = self._bodiless or headers.status in _BODILESS_STATUSES

    def _finish(self, connection: Connection) -> None:
        self._leave()
        connection.note_answered(self)

    def _leave(self) -> None:
        self._connection = None
        self.on_gone = None
        self.note_body()
