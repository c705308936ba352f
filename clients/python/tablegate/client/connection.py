"""How a program that is told by options reaches a gateway: Spark's format, and Feast's online store."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

from tablegate.client.channels import open_channel
from tablegate.client.queries import QueryError


@dataclass(frozen=True)
class Connection:
    """An address, and what the files of the options hold."""

    address: str
    credential: str | None
    is_tls: bool
    ca: bytes | None
    cert: bytes | None
    key: bytes | None

    def open(self) -> grpc.Channel:
        """Return a channel."""
        credentials = grpc.ssl_channel_credentials(self.ca, self.key, self.cert) if self.is_tls else None
        return open_channel(self.address, credentials=credentials, credential=self.credential)


def connection_of(options: Mapping[str, str]) -> Connection:
    """Return what the options address, credential, ca, cert and key say; raise `QueryError`."""
    contents: dict[str, bytes | None] = {}
    for name in ("ca", "cert", "key", "credential"):
        path = options.get(name)
        try:
            contents[name] = None if path is None or (name, path) == ("ca", "system") else Path(path).read_bytes()
        except OSError as error:
            raise QueryError(f'the file "{path}" of option {name} cannot be read ({error.strerror})') from None
    if (contents["cert"] is None) != (contents["key"] is None):
        raise QueryError("a client certificate needs its key: give both options, cert and key")
    token = contents.pop("credential")
    text = None if token is None else token.decode("ascii", "replace").strip()
    is_tls = any(name in options for name in ("ca", "cert"))
    return Connection(options["address"], text, is_tls, **contents)
