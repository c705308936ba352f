"""TLS between a socket's transport and a protocol.

asyncio has its own, which keeps 256 KiB for each connection, and ends a failed handshake (Python 3.11) without the
alert that tells the client why.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Any, cast

from tablegate.gateway.http.principals import principal_of
from tablegate.gateway.http.receiving import Receiver
from typing_extensions import override

PIECE_BYTES = 64 * 1024  # through OpenSSL's buffers at once: they stay as long as they once were


class TlsTransport(asyncio.Transport, Receiver):
    """The protocol of a socket's transport, and the transport of the protocol above it, which is first `protocol`.

    Calls `on_open` once the handshake is done, before any data, and `on_failed` with a reason where it is not.
    """

    _below: asyncio.Transport

    def __init__(
        self,
        context: ssl.SSLContext,
        protocol: Receiver,
        *,
        on_open: Callable[[], None],
        on_failed: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._protocol = protocol
        self._on_open = on_open
        self._on_failed = on_failed
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.opened = False  # the handshake is done
        self._principal: str | None = None
        self._ended = False  # our half, or both

    # What the socket's transport tells.

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast(asyncio.Transport, transport)

    @override
    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE_BYTES):
            if self._ended:
                return
            self._incoming.write(data[start : start + PIECE_BYTES])
            if self.opened or self._shake_hands():
                self._receive()

    @override
    def eof_received(self) -> bool | None:
        if not self.opened:
            if not self._ended:
                self._on_failed("the client went away")
            return False
        return self._protocol.eof_received()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._protocol.connection_lost(exc)

    @override
    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    @override
    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def _shake_hands(self) -> bool:
        """Go on with the handshake; return whether it is done."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            self._ended = True
            self._flush()
            # Only our half is closed: what the client sent meanwhile would reset the socket, and the alert be lost.
            self._below.write_eof()
            self._on_failed(reason_of(error))
            return False
        self._flush()
        self._principal = principal_of(self._tls)
        self.opened = True
        self._on_open()
        return True

    def _receive(self) -> None:
        """Give the protocol what all the records that have come hold, at once."""
        pieces = []
        ended = False
        try:
            while self._incoming.pending or self._tls.pending():
                piece = self._tls.read(PIECE_BYTES)
                if not piece:
                    ended = True
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            ended = self._ended = True  # it writes no more either
        self._flush()
        if pieces:
            self._protocol.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if ended and not self._below.is_closing() and not self._protocol.eof_received():
            self.close()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._below.write(self._outgoing.read())

    # What the protocol asks.

    @override
    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._ended or not data:
            return
        if len(data) <= PIECE_BYTES:
            self._tls.write(data)
            self._below.write(self._outgoing.read())
            return
        view = memoryview(data)
        records = []
        for start in range(0, len(data), PIECE_BYTES):
            self._tls.write(view[start : start + PIECE_BYTES])
            records.append(self._outgoing.read())
        self._below.write(b"".join(records))

    @override
    def can_write_eof(self) -> bool:
        return True

    @override
    def write_eof(self) -> None:
        """End our half; what the client still sends is thrown away."""
        self._say_end()
        self._below.write_eof()

    @override
    def close(self) -> None:
        self._say_end()
        self._below.close()

    @override
    def abort(self) -> None:
        self._ended = True
        self._below.abort()

    def _say_end(self) -> None:
        if self._ended:
            return
        self._ended = True
        with contextlib.suppress(ssl.SSLError):  # it waits for the client's end: we do not
            self._tls.unwrap()
        self._flush()

    @override
    def is_closing(self) -> bool:
        return self._ended or self._below.is_closing()

    @override
    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(Receiver, protocol)

    @override
    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    @override
    def pause_reading(self) -> None:
        self._below.pause_reading()

    @override
    def resume_reading(self) -> None:
        self._below.resume_reading()

    @override
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._below.set_write_buffer_limits(high, low)

    @override
    def get_write_buffer_size(self) -> int:
        return self._below.get_write_buffer_size()

    @override
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the socket's transport has, or the `ssl_object`, or the `principal` (None: there is none)."""
        if name == "principal":
            return self._principal
        return self._tls if name == "ssl_object" else self._below.get_extra_info(name, default)

    @property
    def application_protocol(self) -> str | None:
        """What ALPN agreed on."""
        return self._tls.selected_alpn_protocol()


def reason_of(error: ssl.SSLError) -> str:
    """Return an error of OpenSSL in a few words."""
    words = (error.reason or "handshake failed").replace("_", " ").lower()
    return f"{words}: {error.verify_message}" if isinstance(error, ssl.SSLCertVerificationError) else words
