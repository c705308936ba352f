"""Bytes of an HTTP/1.1 connection into requests: llhttp (by httptools), and what it leaves to its users.

llhttp splits requests and checks their syntax, strictly. Added here are limits, of which it has none; what RFC 9112
demands of a whole request (a host, one framing, a version that is served); and two matters of safety:

- Bytes are fed in slices of SLICE_BYTES, and no request is parsed while another waits to be served: pipelining costs a
  client its own time, not our memory.
- Bytes that lead to nothing (chunk extensions, trailers, empty lines) are counted, as llhttp skips them in silence.

A request that offers another protocol (Upgrade) is served over HTTP/1.1. llhttp has no such mode, so a new parser is
told how the body is framed, by a made-up request whose callbacks are ignored (`_replaying`).
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from tablegate.gateway.http.exchange import App
from tablegate.gateway.http.h1_exchange import Http1Exchange

SLICE_BYTES = 4 * 1024  # the most that is parsed at once: bounds the pipelined requests that are made of it


class Refusal(NamedTuple):
    """The answer to a request that cannot be served."""

    status: int
    reason: str


class _Stop(Exception):
    """Ends parsing, from a callback, after `over` was set."""


class RequestParser:
    """Parses what `feed` gives it. Requests that can be served, in their order, come to be in `ready`."""

    def __init__(
        self,
        app: App,
        new_exchange: Callable[[bytes, bytes, Mapping[bytes, bytes], bool], Http1Exchange],
        header_bytes_max: int,
    ) -> None:
        self.ready: deque[Http1Exchange] = deque()
        self.unfinished: Http1Exchange | None = None  # its headers are here, the end of its body is not
        self.begun = False  # a request
        self.first = True  # no headers were whole yet
        self.progressed = False  # whether a request came closer to its end; whoever reads it resets it
        self.refusal: Refusal | None = None
        self.over = False  # nothing more is parsed
        self._app = app
        self._new_exchange = new_exchange
        self._header_bytes_max = header_bytes_max
        self._parser = HttpRequestParser(self)
        self._replaying = False
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._header_bytes = 0
        self._quiet_bytes = 0  # parsed since they last led to anything

    def feed(self, data: bytes) -> bytes:
        """Parse at most `SLICE_BYTES`; return those of them that are to be fed again."""
        again = b""
        try:
            again = self._parse(data)
        except HttpParserCallbackError:
            if not self.over:  # it was not `_Stop`
                raise
        except HttpParserError as error:
            self.refuse(400, f"malformed request: {error}")
        else:
            self._count_quiet(len(data))
        return again

    def refuse(self, status: int, reason: str) -> None:
        """Parse no more."""
        self.over = True
        self.refusal = Refusal(status, reason)

    def _parse(self, data: bytes) -> bytes:
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            end: int = upgrade.args[0]
        else:
            return b""
        self._stay_with_http1()
        return data[end:]

    def _count_quiet(self, count: int) -> None:
        self._quiet_bytes += count
        if self._quiet_bytes <= self._header_bytes_max + SLICE_BYTES:
            return
        if self.unfinished is None:
            self._refuse_header_bytes()
        else:
            self.refuse(400, "malformed request: chunk extensions or trailers without end")

    def _stay_with_http1(self) -> None:
        """Go on with HTTP/1.1 where the client offers another protocol, as if it had not.

        llhttp would leave the body that follows to that protocol. So a new parser is given the length of the body.
        """
        framing = b"".join(
            b"%b: %b\r\n" % (name, self._headers[name])
            for name in (b"content-length", b"transfer-encoding")
            if name in self._headers
        )
        self._parser = HttpRequestParser(self)
        self._replaying = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % framing)

    # What llhttp calls.

    def on_message_begin(self) -> None:
        """Start a request."""
        if self._replaying:
            return
        self.begun = True
        self.progressed = True
        self._target = b""
        self._headers = {}
        self._header_bytes = 0
        self._quiet_bytes = 0

    def on_url(self, data: bytes) -> None:
        """Receive a piece of the target."""
        if self._replaying:
            return
        self._target += data
        self._count_header_bytes(len(data))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Receive a field; those of the trailer are ignored."""
        if self.unfinished is not None:
            return
        self._count_header_bytes(len(name) + len(value) + 4)
        name = name.lower()
        value = value.rstrip(b" \t")
        before = self._headers.get(name)
        if before is not None:
            # Two hosts could mean one to us and the other to a proxy before us.
            if name == b"host":
                self._stop(400, "malformed request: more than one host")
            value = before + b", " + value
        self._headers[name] = value

    def on_headers_complete(self) -> None:
        """Start the body."""
        if self._replaying:
            self._replaying = False
            return
        exchange = self._exchange()
        self.begun = False
        self.first = False
        self.progressed = True
        self._quiet_bytes = 0
        self.unfinished = exchange
        exchange.streams_body = self._app.streams_body(exchange)
        if exchange.streams_body:
            self.ready.append(exchange)
        elif int(self._headers.get(b"content-length", b"0")) > self._app.body_bytes_max:
            self._cut(exchange)

    def on_body(self, data: bytes) -> None:
        """Receive a piece of the body."""
        exchange = self.unfinished
        assert exchange is not None
        exchange.received += data
        self.progressed = True
        self._quiet_bytes = 0
        if exchange.streams_body:
            exchange.note_body()
        elif len(exchange.received) > self._app.body_bytes_max:
            self._cut(exchange)

    def on_message_complete(self) -> None:
        """End the request."""
        if self._parser.should_upgrade():  # it is about to raise `HttpParserUpgrade`
            return
        exchange = self.unfinished
        assert exchange is not None
        self.unfinished = None
        self._quiet_bytes = 0
        exchange.complete = True
        if exchange.streams_body:
            exchange.note_body()
        else:
            self._make_ready(exchange)
        if exchange.last:
            self.over = True
            raise _Stop

    def _exchange(self) -> Http1Exchange:
        """Return the exchange of the headers that have come, or refuse it."""
        version = self._parser.get_http_version()
        method = self._parser.get_method()
        headers = self._headers
        if version not in ("1.1", "1.0"):
            self._stop(505, f"HTTP/{version} is not served here; use HTTP/1.1 or HTTP/2")
        http10 = version == "1.0"
        if not http10 and b"host" not in headers:
            self._stop(400, "malformed request: no host")
        # Whatever frames a body in two ways invites request smuggling (RFC 9112, 6.1): it is refused, never guessed.
        coding = headers.get(b"transfer-encoding")
        if coding is not None and http10:
            self._stop(400, "malformed request: HTTP/1.0 has no transfer-encoding")
        if coding is not None and coding.lower() != b"chunked":
            self._stop(501, "no transfer-encoding but chunked is served here")
        if method == b"CONNECT":
            self._stop(501, "CONNECT is not served here")
        exchange = self._new_exchange(method, self._origin_form(), headers, http10)
        exchange.last = http10 or not self._parser.should_keep_alive()
        exchange.expects_continue = not http10 and headers.get(b"expect", b"").lower() == b"100-continue"
        return exchange

    def _origin_form(self) -> bytes:
        """Return path and query of a target that may be a whole URL, whose host then counts (RFC 9112, 3.2.2)."""
        target = self._target
        if target.startswith(b"/") or target == b"*":
            return target
        scheme, separator, rest = target.partition(b"://")
        if not separator or scheme.lower() not in (b"http", b"https"):
            self._stop(400, "malformed request: target is neither a path nor a URL of http")
        end = min((at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0), default=len(rest))
        if end == 0:
            self._stop(400, "malformed request: no host")
        self._headers[b"host"] = rest[:end]
        path = rest[end:]
        return path if path.startswith(b"/") else b"/" + path

    def _cut(self, exchange: Http1Exchange) -> None:
        """Serve a request whose body is too long."""
        exchange.oversize = True
        exchange.last = True
        self.unfinished = None
        self.over = True
        self._make_ready(exchange)
        raise _Stop

    def _make_ready(self, exchange: Http1Exchange) -> None:
        exchange.body = bytes(exchange.received)
        exchange.received = bytearray()
        self.ready.append(exchange)

    def _count_header_bytes(self, count: int) -> None:
        self._header_bytes += count
        if self._header_bytes > self._header_bytes_max:
            self._refuse_header_bytes()
            raise _Stop

    def _refuse_header_bytes(self) -> None:
        self.refuse(431, f"request line and headers are longer than {self._header_bytes_max} bytes")

    def _stop(self, status: int, reason: str) -> None:
        self.refuse(status, reason)
        raise _Stop
