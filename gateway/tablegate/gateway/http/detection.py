"""The first bytes of a client: do they begin TLS, HTTP/2 or HTTP/1.1?

A client is accepted as a `ProtocolDetection`, the protocol of its socket's transport. With its first bytes:

- They begin a TLS record: a `TlsTransport` comes between, and the detection is now the protocol above it. ALPN decides
  after the handshake; a client without ALPN is detected by its first decrypted bytes.
- They are the preface of HTTP/2, whole or so far: HTTP/2 (prior knowledge; there is no upgrade from HTTP/1.1).
- They are anything else: HTTP/1.1, whose parser refuses what is no request.

Then the listener puts the connection of that protocol in its place, with the bytes that came. A client that speaks
plaintext to a port with TLS, or TLS to one without, gets an answer that its kind of client can show, and an end.
"""

import asyncio
import ssl
from typing import Protocol, cast

from typing_extensions import override

from tablegate.gateway.http.connection_turns import Receiver
from tablegate.gateway.http.exchange import TEXT, ResponseHeaders
from tablegate.gateway.http.transport import TlsTransport

_PREFACE = b"PRI * HTTP/2.0"
_TLS_HANDSHAKE = 0x16  # the first byte of a record that holds a hello
_TLS_ALERT = b"\x15\x03\x01\x00\x02\x02\x46"  # fatal, protocol_version
_USE_TLS = b"this port speaks TLS; use https"
_USE_TLS_HTTP1 = b"%bcontent-length: %d\r\nconnection: close\r\n\r\n%b\n" % (
    ResponseHeaders(400, (TEXT,)).h1,
    len(_USE_TLS) + 1,
    _USE_TLS,
)
_DRAINING_S = 1.0  # for the first bytes of a client that came as the gateway was going


class Host(Protocol):
    """What the detection needs of its listener."""

    detection_s: float
    """Limit of the first bytes, and of the handshake."""
    refused_s: float
    """Limit for a client to read why it is refused."""

    @property
    def context(self) -> ssl.SSLContext | None:
        """What a client is to speak TLS with; none: plaintext."""

    def start_protocol(
        self, detection: "ProtocolDetection", transport: asyncio.Transport, data: bytes, *, http2: bool
    ) -> None:
        """Replace the detection by the connection of a protocol; `data` was received before."""

    def note_tls_failure(self, reason: str, peer: str) -> None:
        """Log that a client cannot speak TLS with us."""

    def note_closed(self, detection: "ProtocolDetection") -> None:
        """Forget a client that is gone."""


class ProtocolDetection(Receiver):
    """A client whose protocol is not known yet: at first on the socket's transport, then above TLS, if there is any."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._limit_s = host.detection_s
        self._since: float | None = None
        self._transport: asyncio.Transport | None = None
        self._tls: TlsTransport | None = None
        self._begin = b""
        self._closed = False
        self._refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start."""
        self._transport = cast(asyncio.Transport, transport)
        if self._closed:
            self._transport.abort()

    @override
    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        data = self._begin = self._begin + data
        # No method of HTTP begins with this byte, so it cannot be anything else.
        if data[0] == _TLS_HANDSHAKE and self._tls is None:
            if self._host.context is None:
                self._refuse(_TLS_ALERT)
            else:
                self._start_tls(self._host.context, data)
            return
        if len(data) < len(_PREFACE) and _PREFACE.startswith(data):
            return
        http2 = data.startswith(_PREFACE)
        if self._host.context is not None and self._tls is None:
            self._refuse_plaintext()
        else:
            self._hand_over(http2=http2)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Let the listener know."""
        self._host.note_closed(self)

    @property
    def idle(self) -> bool:
        """Whether the client waits for nothing: it has asked for nothing yet."""
        return True

    def retire(self) -> None:
        """Do nothing: what has not begun ends by its own limit."""

    def tick(self, now: float) -> None:
        """End a client that sends nothing for too long."""
        if self._since is None:
            self._since = now
        elif now - self._since >= self._limit_s:
            if self._tls is not None and not self._tls.opened and not self._refused:
                self._host.note_tls_failure(f"not done within {self._limit_s:g} s", self._peer())
            self.close()

    def drain(self) -> None:
        """Wait a little for the request that the client may have sent, which is served."""
        self._limit_s = min(self._limit_s, _DRAINING_S)

    def close(self) -> None:
        """End at once."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    def _start_tls(self, context: ssl.SSLContext, data: bytes) -> None:
        assert self._transport is not None
        below = self._transport
        self._begin = b""
        self._transport = self._tls = TlsTransport(context, self, on_open=self._open, on_failed=self._fail)
        below.set_protocol(self._tls)
        self._tls.connection_made(below)
        self._tls.data_received(data)

    def _open(self) -> None:
        assert self._tls is not None
        self._since = None
        protocol = self._tls.application_protocol
        if protocol is not None:
            self._hand_over(http2=protocol == "h2")

    def _fail(self, reason: str) -> None:
        self._refused = True
        self._since = None
        self._limit_s = self._host.refused_s
        self._host.note_tls_failure(reason, self._peer())

    def _hand_over(self, *, http2: bool) -> None:
        assert self._transport is not None
        self._host.start_protocol(self, self._transport, self._begin, http2=http2)

    def _refuse_plaintext(self) -> None:
        # HTTP/1.1 also for clients of HTTP/2: with an answer in HTTP/2 they would believe that the connection is good,
        # and come again at once.
        if self._begin[:1].isalpha():
            self._refuse(_USE_TLS_HTTP1)
        else:
            self._host.note_tls_failure("neither TLS nor HTTP", self._peer())
            self.close()

    def _refuse(self, answer: bytes) -> None:
        """Answer and end, but not before the client had time to read: unread bytes in a closed socket reset it."""
        assert self._transport is not None
        self._refused = True
        self._since = None
        self._limit_s = self._host.refused_s
        self._transport.write(answer)
        self._transport.write_eof()

    def _peer(self) -> str:
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        return "" if name is None else f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
