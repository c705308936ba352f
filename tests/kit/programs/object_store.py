"""An object store that speaks as S3 does, on this machine: moto's server."""

import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple
from urllib.request import Request, urlopen

from moto.server import ThreadedMotoServer


class ObjectStore(NamedTuple):
    """Where it is, by `environment`, and the URL of a folder in a bucket of its own."""

    environment: Mapping[str, str]
    url: str


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Run one, with an empty bucket."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        environment = {
            "AWS_ACCESS_KEY_ID": "a-key",
            "AWS_SECRET_ACCESS_KEY": "a-secret",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT": f"http://{host}:{port}",
            "AWS_ALLOW_HTTP": "true",
        }
        name = f"bucket-{secrets.token_hex(4)}"
        with urlopen(Request(f"http://{host}:{port}/{name}", method="PUT")):
            pass
        yield ObjectStore(environment, f"s3://{name}/tablegate")
    finally:
        server.stop()
