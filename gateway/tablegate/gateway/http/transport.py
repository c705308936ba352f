"""TLS between sockets and protocols, and who the client is.

A socket's transport calls a `Receiver`: the HTTP connection itself, or a `TlsTransport`, which is the transport of the
HTTP connection above it. asyncio has one of its own, which keeps 256 KiB for each connection, and (Python 3.11) ends a
failed handshake without the alert that tells the client why.
"""

import asyncio
import contextlib
import math
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any, cast

from typing_extensions import override

from tablegate.gateway.http.connection_turns import Receiver

PIECE_BYTES = 64 * 1024  # through OpenSSL's buffers at once: they stay as long as they once were
RECORDS_AT_ONCE = 16  # the same, before it is counted what was in them
EMPTY_RECORDS_MAX = 100  # without data: new keys, which cost 0.2 ms each time, and which clients take after gigabytes

_RECORD_HEADER_BYTES = 5
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, with no time: the kernel sends a reset instead of an end


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
        self._certificate_ends_at_s = math.inf  # of the client's, in seconds since 1970
        self._ended = False  # our half, or both
        self._header = b""  # what has come of a record's header
        self._skipped = 0  # bytes that are still to come of a record
        self._empty_records = 0

    # What the socket's transport calls.

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast(asyncio.Transport, transport)

    @override
    def data_received(self, data: bytes) -> None:
        for piece, records in self._pieces(data):
            if self._ended:
                return
            self._incoming.write(piece)
            if self.opened:
                self._empty_records += records - self._receive()
                if self._empty_records > EMPTY_RECORDS_MAX:
                    self.abort()
            elif self._shake_hands():
                self._receive()

    def _pieces(self, data: bytes) -> Iterator[tuple[bytes, int]]:
        """Yield what came in pieces for OpenSSL, each with how many records begin in it.

        The beginning of a header waits for the rest of it.
        """
        data = self._header + data
        start, at, records = 0, self._skipped, 0
        while at + _RECORD_HEADER_BYTES <= len(data):
            at += _RECORD_HEADER_BYTES + (data[at + 3] << 8 | data[at + 4])
            records += 1
            if (records == RECORDS_AT_ONCE or at - start >= PIECE_BYTES) and at < len(data):
                yield data[start:at], records
                start, records = at, 0
        end = min(at, len(data))
        self._header, self._skipped = data[end:], at - end
        if start < end:
            yield data[start:end], records

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
        if self._principal is not None:
            self._certificate_ends_at_s = certificate_end_s(self._tls)
        self.opened = True
        self._on_open()
        return True

    def _receive(self) -> int:
        """Give the protocol what all the records that have come hold, at once; return how many held something."""
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
        return len(pieces)

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._below.write(self._outgoing.read())

    # What the protocol calls.

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
        self._send_close_notify()
        self._below.write_eof()

    @override
    def close(self) -> None:
        self._send_close_notify()
        self._below.close()

    @override
    def abort(self) -> None:
        self._ended = True
        self._below.abort()

    def _send_close_notify(self) -> None:
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
        """Return what the socket's transport has, or the `ssl_object`, or of the client's certificate, where there is
        one, the `principal` (else None), and when the `certificate_ends_at_s`, in seconds since 1970 (else never).
        """
        if name == "principal":
            return self._principal
        if name == "certificate_ends_at_s":
            return self._certificate_ends_at_s
        return self._tls if name == "ssl_object" else self._below.get_extra_info(name, default)

    @property
    def application_protocol(self) -> str | None:
        """What ALPN agreed on."""
        return self._tls.selected_alpn_protocol()


def reset(transport: asyncio.Transport) -> None:
    """Close at once, by a reset: what the client has not read, the kernel would else keep, and go on sending it."""
    connection = transport.get_extra_info("socket")
    if connection is not None and not transport.is_closing():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()


def reason_of(error: ssl.SSLError) -> str:
    """Return an error of OpenSSL in a few words."""
    words = (error.reason or "handshake failed").replace("_", " ").lower()
    return f"{words}: {error.verify_message}" if isinstance(error, ssl.SSLCertVerificationError) else words


def principal_of(tls: ssl.SSLObject) -> str | None:
    """Return the principal of a connection whose handshake is done; None without a verified certificate of the client.

    It is the first URI among the names of the certificate's subject, else its common name, else the whole subject. A
    certificate without any, or with names that cannot be read, is itself the principal, by its SHA-256.
    """
    try:
        certificate: Any = tls.getpeercert()
    except ValueError:  # a name is no UTF-8; certificates that are not verified have none
        return _digest(tls)
    if not certificate:
        return None
    uris = (name for kind, name in certificate.get("subjectAltName", ()) if kind == "URI")
    subject = [pair for names in certificate["subject"] for pair in names]
    common_names = (value for kind, value in subject if kind == "commonName")
    whole = ", ".join(f"{kind}={value}" for kind, value in subject)
    return next(uris, None) or next(common_names, None) or whole or _digest(tls)


def certificate_end_s(tls: ssl.SSLObject) -> float:
    """Return when a client's verified certificate ends, in seconds since 1970; never, where that cannot be read."""
    try:
        certificate: Any = tls.getpeercert()
    except ValueError:  # a name is no UTF-8
        return math.inf
    return ssl.cert_time_to_seconds(certificate["notAfter"]) if certificate else math.inf


def _digest(tls: ssl.SSLObject) -> str:
    data = tls.getpeercert(binary_form=True)
    assert data is not None
    return f"sha256:{sha256(data).hexdigest()}"
