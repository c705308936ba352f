"""Certificates of the port: read from files, and read again when they change."""

import binascii
import contextlib
import logging
import math
import os
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

# Forward secrecy and authenticated encryption only, which HTTP/2 demands of TLS 1.2 (RFC 9113, 9.2.2).
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
PROTOCOLS = ("h2", "http/1.1")

_PEM_BEGIN, _PEM_END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_CRL_BEGIN = b"-----BEGIN X509 CRL-----"
_TAG_UTC_TIME, _TAG_GENERALIZED_TIME, _TAG_VERSION, _TAG_CRL_EXTENSIONS = 0x17, 0x18, 0xA0, 0xA0  # in DER
_DELTA_CRL_INDICATOR = b"\x06\x03\x55\x1d\x1b"  # the extension's identifier, 2.5.29.27, in DER

_logger = logging.getLogger("tablegate.gateway.http")


class TlsError(Exception):
    """Files that cannot be used; its text is a sentence that names the file."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: the certificate, and those between it and its CA; its key; CAs that sign those of clients.

    With `client_ca` every client must show a certificate. Where that file has a list of revoked certificates (CRL),
    each CA between a client and its root must have one there, the root too, and none of them may be over.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def load(self) -> ssl.SSLContext:
        """Return the files as a context of a server; raise `TlsError`."""
        _check_certificate(self.certificate)
        _check_key(self.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_ciphers(CIPHERS)
        context.set_alpn_protocols(PROTOCOLS)
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            reason = (getattr(error, "reason", None) or str(error)).replace("_", " ").lower()
            raise TlsError(
                f'key "{self.key}" does not go with certificate "{self.certificate}": {reason}; give both of one pair'
            ) from None
        if self.client_ca is not None:
            _load_client_ca(context, self.client_ca)
        return context


class WatchedTls:
    """The context of the files as they are now; of how they last were good, where they are not. One event loop.

    A client that comes again with a session of before is not verified again. The sessions of a context go with it, so
    there is another one when a list of revoked certificates is over, as there is when the files change.
    """

    def __init__(self, files: TlsFiles, wall_clock: Callable[[], float] = time.time) -> None:
        """Load the files; raise `TlsError`."""
        self._files = files
        self._wall_clock = wall_clock
        self._loaded = self._file_versions()
        self._failed: object = None  # versions of files that could not be loaded
        self._warned = False
        self._incomplete: object = None  # versions of files that have fewer lists of revoked certificates than before
        self._client_ca = self._read_client_ca()  # before it is loaded: what comes in between is noticed next time
        self.context = files.load()
        self._list_ends_s, self._lists_over = self._note_lists()

    def reload_if_changed(self) -> bool:
        """Load the files again if they changed: for connections that are still to come.

        Return whether those that are there may have clients that would not get in any more.
        """
        versions = self._file_versions()
        is_changed = versions != self._loaded
        if not is_changed and self._count_over(self._list_ends_s) == self._lists_over:
            self._failed = None
            return False
        client_ca = self._read_client_ca()
        try:
            context = self._files.load()
        except TlsError as error:
            self._note_failed(versions, error)
            return False
        if _list_count(context) < _list_count(self.context) and versions != self._incomplete:
            self._incomplete = versions  # somebody may be writing: only what stays so counts
            return False
        self.context = context
        before, self._client_ca = self._client_ca, client_ca
        self._loaded = versions
        self._failed = None
        self._list_ends_s, self._lists_over = self._note_lists()
        if is_changed:
            _logger.info("TLS files were changed, and are used for new connections")
        return self._client_ca != before

    def _note_lists(self) -> tuple[Sequence[float], int]:
        """Return when lists of revoked certificates end, in seconds since 1970, and how many are over; log any."""
        ends_s = [each.ends_at_s for each in _revocation_lists(self._client_ca)]
        over = self._count_over(ends_s)
        if over:
            _logger.warning(
                'a list of revoked certificates in client CA "%s" is over, so no client of its CA gets in; replace it',
                self._files.client_ca,
            )
        return ends_s, over

    def _count_over(self, ends_s: Sequence[float]) -> int:
        """Return how many lists are over. There are fewer again where a clock that was ahead is put right."""
        now_s = self._wall_clock()
        return sum(end_s <= now_s for end_s in ends_s)

    def _note_failed(self, versions: object, error: TlsError) -> None:
        """Log it once. They are tried again all the same: a certificate may be valid later, or a mode mended."""
        if versions != self._failed:
            # Whoever replaces the files does so one after the other: only what stays wrong is worth a line.
            self._failed, self._warned = versions, False
        elif not self._warned:
            self._warned = True
            _logger.warning("changed TLS files cannot be used, and those before them stay in use: %s", error)

    def _read_client_ca(self) -> bytes:
        """Return what decides who gets in. A certificate is often renewed with a copy of the same client CA."""
        path = self._files.client_ca
        with contextlib.suppress(OSError):
            return b"" if path is None else path.read_bytes()
        return b""

    def _file_versions(self) -> object:
        """Return what changes whenever the files do."""
        files = self._files
        return tuple(
            _file_version(path) for path in (files.certificate, files.key, files.client_ca) if path is not None
        )


def _list_count(context: ssl.SSLContext) -> int:
    return context.cert_store_stats()["crl"]


def _file_version(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _read(path: Path, kind: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsError(f'{kind} "{path}" cannot be read: {error.strerror}; check the path and its mode') from None


def _check_certificate(path: Path) -> None:
    try:
        begin, end = _validity(_read(path, "certificate").decode("latin-1"))
    except (ValueError, IndexError):
        raise TlsError(f'certificate "{path}" has no certificate in PEM; convert it to PEM') from None
    now = datetime.now(UTC)
    if end < now:
        raise TlsError(f'certificate "{path}" expired at {end:%Y-%m-%d %H:%M} UTC; renew it')
    if begin > now:
        raise TlsError(f'certificate "{path}" is valid from {begin:%Y-%m-%d %H:%M} UTC on; check the clock')


def _validity(pem: str) -> tuple[datetime, datetime]:
    """Return when the first certificate begins and ceases to be valid; raise `ValueError` or `IndexError`.

    The layout is that of RFC 5280, section 4.1. The module `ssl` shows these times only of certificates that a peer
    sent, and a library for them alone would be a fifth of what is installed.
    """
    begin = pem.index(_PEM_BEGIN)
    der = ssl.PEM_cert_to_DER_cert(pem[begin : pem.index(_PEM_END, begin) + len(_PEM_END)])
    [(_, certificate)] = _der_elements(der)
    _, signed = _der_elements(certificate)[0]
    fields = _der_elements(signed)
    has_version = fields[0][0] == _TAG_VERSION
    _, validity = fields[4 if has_version else 3]  # after the version, serial number, signature and issuer
    not_before, not_after = _der_elements(validity)
    return _der_time(*not_before), _der_time(*not_after)


def _der_elements(der: bytes) -> list[tuple[int, bytes]]:
    """Return the tag and the content of each element."""
    elements, position = [], 0
    while position < len(der):
        tag, length, position = der[position], der[position + 1], position + 2
        if length & 0x80:  # the other bits are the number of bytes of the length
            end = position + (length & 0x7F)
            length, position = int.from_bytes(der[position:end], "big"), end
        elements.append((tag, der[position : position + length]))
        position += length
    return elements


def _der_time(tag: int, content: bytes) -> datetime:
    text = content.decode("ascii")
    if tag == _TAG_UTC_TIME:  # its years have two digits, from 1950 to 2049
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _RevocationList:
    ends_at_s: float
    is_delta: bool  # has what changed since another one


def _revocation_lists(pem: bytes) -> Iterator[_RevocationList]:
    """Yield what the lists say of themselves (RFC 5280, section 5.1), without those that cannot be read."""
    for text in pem.split(_CRL_BEGIN)[1:]:
        with contextlib.suppress(ValueError, IndexError):
            [(_, signed_list)] = _der_elements(binascii.a2b_base64(text[: text.index(b"-----")]))
            _, content = _der_elements(signed_list)[0]
            fields = _der_elements(content)
            times = [_der_time(*each) for each in fields if each[0] in (_TAG_UTC_TIME, _TAG_GENERALIZED_TIME)]
            extensions = b"".join(extension for tag, extension in fields if tag == _TAG_CRL_EXTENSIONS)
            yield _RevocationList(
                times[1].timestamp() if len(times) > 1 else math.inf, _DELTA_CRL_INDICATOR in extensions
            )


def _check_key(path: Path) -> None:
    data = _read(path, "key")
    if b"PRIVATE KEY-----" not in data:
        raise TlsError(f'key "{path}" has no private key in PEM; convert it to PEM')
    if b"ENCRYPTED" in data:  # OpenSSL would ask for the password at the terminal
        raise TlsError(f'key "{path}" is encrypted; give one without a password, that only the gateway may read')


def _load_client_ca(context: ssl.SSLContext, path: Path) -> None:
    data = _read(path, "client CA")
    if b"-----BEGIN " not in data:
        raise TlsError(f'client CA "{path}" has no certificate in PEM; give that of the CA that signs those of clients')
    if b"\0" in data:
        raise TlsError(f'client CA "{path}" has bytes that are no text; convert certificates and their CRL to PEM')
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, ssl.SSLError):
        raise TlsError(f'client CA "{path}" has certificates that cannot be read; check that it is PEM') from None
    if not context.get_ca_certs():
        raise TlsError(f'client CA "{path}" holds no CA; give the one that signs the certificates of clients')
    if any(each.is_delta for each in _revocation_lists(data)):  # OpenSSL would take it for a whole one
        raise TlsError(f'client CA "{path}" has a list of what else was revoked (delta CRL); give whole lists alone')
    if _CRL_BEGIN in data:
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN  # a CA may be revoked by the one above it
    context.verify_mode = ssl.CERT_REQUIRED
