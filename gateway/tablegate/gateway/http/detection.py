"""The first bytes of a client: they say whether it speaks TLS, and which version of HTTP."""

import asyncio
import ssl
from typing import Protocol, cast

from tablegate.gateway.http.exchange import TEXT, Head
from tablegate.gateway.http.transport import Receiver, TlsTransport
from typing_extensions import override

_PREFACE = b"PRI * HTTP/2.0"
_TLS_HANDSHAKE = 0x16  # the first byte of a record that holds a hello
_TLS_ALERT = b"\x15\x03\x01\x00\x02\x02\x46"  # fatal, protocol_version
_USE_TLS = b"this port speaks TLS; use https"
_USE_TLS_HTTP1 = b"%bcontent-length: %d\r\nconnection: close\r\n\r\n%b\n" % (
    Head(400, (TEXT,)).h1,
    len(_USE_TLS) + 1,
    _USE_TLS,
)
_DRAINING_S = 1.0  # for the first bytes of a client that came as the gateway was going


class Host(Protocol):
    """What a greeting needs of its listener."""

    greeting_s: float
    """Limit of the first bytes, and of the handshake."""
    refused_s: float
    """Limit for a client to read why it is refused."""

    @property
    def context(self) -> ssl.SSLContext | None:
        """What a client is to speak TLS with; none: plaintext."""

    def take_over(
        self, greeting: "ProtocolDetection", transport: asyncio.Transport, data: bytes, *, http2: bool
    ) -> None:
        """Put a connection in the place of the greeting; `data` came before."""

    def note_tls_failure(self, reason: str, peer: str) -> None:
        """Take in that a client cannot speak TLS with us."""

    def note_closed(self, greeting: "ProtocolDetection") -> None:
        """Take in that the client is gone."""


class ProtocolDetection(Receiver):
    """A client whose protocol is not known yet: at first on the socket's transport, then above TLS, if there is any."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._limit_s = host.greeting_s
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
            self._leave(http2=http2)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Take in the end."""
        self._host.note_closed(self)

    def tick(self, now: float) -> None:
        """End a client that says nothing for too long."""
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
            self._leave(http2=protocol == "h2")

    def _fail(self, reason: str) -> None:
        self._refused = True
        self._since = None
        self._limit_s = self._host.refused_s
        self._host.note_tls_failure(reason, self._peer())

    def _leave(self, *, http2: bool) -> None:
        assert self._transport is not None
        self._host.take_over(self, self._transport, self._begin, http2=http2)

    def _refuse_plaintext(self) -> None:
        # The same for HTTP/2: a client greeted in it would take the connection for a good one, and come again at once.
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
