"""How a gateway shows itself to the others: with the certificate of its port."""

from pathlib import Path

import grpc


class Credentials:
    """The credentials in PEM files: our certificate chain, its key, and the CA of the other gateways. One thread.

    Without `ca` the others need certificates of a CA that everybody knows.
    """

    def __init__(self, certificate: Path, key: Path, ca: Path | None) -> None:
        """Read the files; raise `OSError`."""
        self._files = (certificate, key, ca)
        self._content = self._read()
        self._current = _credentials(*self._content)

    def current(self) -> grpc.ChannelCredentials:
        """Return what is in the files now; what was in them, where they cannot be read."""
        try:
            content = self._read()
        except OSError:
            return self._current
        if content != self._content:
            self._content, self._current = content, _credentials(*content)
        return self._current

    def _read(self) -> tuple[bytes, bytes, bytes | None]:
        certificate, key, ca = self._files
        return certificate.read_bytes(), key.read_bytes(), None if ca is None else ca.read_bytes()


def _credentials(certificate: bytes, key: bytes, ca: bytes | None) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=certificate)
