"""Certificates of the port: read from files, and read again when they change."""

import logging
import os
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

# Forward secrecy and authenticated encryption only, which HTTP/2 demands of TLS 1.2 (RFC 9113, 9.2.2).
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
PROTOCOLS = ("h2", "http/1.1")

_logger = logging.getLogger("tablegate.gateway.http")


class TlsError(Exception):
    """Files that cannot be used; its text is a sentence that names the file."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: the certificate, and those between it and its CA; its key; CAs that sign those of clients.

    With `client_ca` every client must show a certificate.
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
    """The context of the files as they are now; of how they last were good, where they are not. One event loop."""

    def __init__(self, files: TlsFiles) -> None:
        """Load the files; raise `TlsError`."""
        self._files = files
        self._loaded = self._file_versions()
        self._failed: object = None  # versions of files that could not be loaded
        self._warned = False
        self.context = files.load()

    def reload_if_changed(self) -> None:
        """Load the files again if they changed: for connections that are still to come."""
        versions = self._file_versions()
        if versions == self._loaded or (versions == self._failed and self._warned):
            return
        try:
            self.context = self._files.load()
        except TlsError as error:
            # Whoever replaces the files does so one after the other: only what stays wrong is worth a line.
            self._warned = versions == self._failed
            self._failed = versions
            if self._warned:
                _logger.warning("changed TLS files cannot be used, and those before them stay in use: %s", error)
        else:
            self._loaded = versions
            self._failed = None
            _logger.info("TLS files were changed, and are used for new connections")

    def _file_versions(self) -> object:
        """Return what changes whenever the files do."""
        files = self._files
        return tuple(
            _file_version(path) for path in (files.certificate, files.key, files.client_ca) if path is not None
        )


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
    # Only for a port with TLS: it takes 30 ms to import.
    from cryptography import x509

    data = _read(path, "certificate")
    try:
        certificate = x509.load_pem_x509_certificates(data)[0]
    except ValueError:
        raise TlsError(f'certificate "{path}" has no certificate in PEM; convert it to PEM') from None
    now = datetime.now(UTC)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if end < now:
        raise TlsError(f'certificate "{path}" expired at {end:%Y-%m-%d %H:%M} UTC; renew it')
    if begin > now:
        raise TlsError(f'certificate "{path}" is valid from {begin:%Y-%m-%d %H:%M} UTC on; check the clock')


def _check_key(path: Path) -> None:
    data = _read(path, "key")
    if b"PRIVATE KEY-----" not in data:
        raise TlsError(f'key "{path}" has no private key in PEM; convert it to PEM')
    if b"ENCRYPTED" in data:  # OpenSSL would ask for the password at the terminal
        raise TlsError(f'key "{path}" is encrypted; give one without a password, that only the gateway may read')


def _load_client_ca(context: ssl.SSLContext, path: Path) -> None:
    if b"-----BEGIN " not in _read(path, "client CA"):
        raise TlsError(f'client CA "{path}" has no certificate in PEM; give that of the CA that signs those of clients')
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, ssl.SSLError):
        raise TlsError(f'client CA "{path}" has certificates that cannot be read; check that it is PEM') from None
    if not context.get_ca_certs():
        raise TlsError(f'client CA "{path}" holds no CA; give the one that signs the certificates of clients')
    context.verify_mode = ssl.CERT_REQUIRED
