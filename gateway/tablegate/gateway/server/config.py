"""What a gateway is started with."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tablegate.gateway.cluster.membership import GATEWAYS_TOPIC
from tablegate.gateway.http.rpc.calls import STREAMS_MAX
from tablegate.gateway.http.tls import TlsFiles
from tablegate.gateway.server.child import HANG_LIMIT_S, SnapshotSettings

DEFAULT_LISTEN = "127.0.0.1:50051"
STORE_DIRECTORY = "store"
TOKEN_KEY_FILE = "token.key"
LOCK_FILE = "gateway.lock"
GATEWAY_ID_FILE = "gateway.id"


class ServeError(Exception):
    """A gateway that cannot start; the message is a sentence for the one who started it."""


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """A gateway.

    `data` holds the store, the token key and the lock; all but the key can be lost. With `store_url` the store is in
    that Redis. `listen` and `admin` are host:port; port 0 takes a free one. `token_key_file` has one key a line, as
    hexadecimal; the first signs, all open. `cors_origins` are the origins whose pages may call, such as
    "https://shop.example"; "*" allows all.
    """

    contracts: tuple[Path, ...]
    bootstrap: str
    data: Path
    listen: str = DEFAULT_LISTEN
    admin: str | None = None  # where metrics and status are then, rather than at `listen`
    workers: int = field(default_factory=cores)
    streams: int = STREAMS_MAX  # open at once in each worker
    insecure: bool = False  # allows plaintext beyond loopback
    reflection: bool = False
    tls: TlsFiles | None = None
    cors_origins: tuple[str, ...] = ()
    tables_topic: str = "tables"
    kafka_options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # librdkafka's; some are secret
    kafka_secret_files: Mapping[str, str] = field(default_factory=dict)  # from which those are, by option
    kafka_aws_region: str | None = None  # None: without IAM of Amazon MSK
    store_url: str | None = None
    token_key_file: Path | None = None  # None: <data>/token.key, made where there is none
    log_file: Path | None = None  # None: stderr
    log_level: str = "info"
    log_settings: Path | None = None  # what is logged, in a file that may change
    advertise: str | None = None  # where other gateways reach this one; None: it stands alone
    gateway_id: str | None = None  # None: the name in <data>/gateway.id, made where there is none
    zone: str = ""
    replicas: int | None = None  # of each partition; 0: on all gateways; None: as many as is usual
    replicas_of: Mapping[str, int] = field(default_factory=dict)  # those of certain tables
    gateways_topic: str = GATEWAYS_TOPIC
    drain_s: float = 10.0  # longest wait for unary calls at the end
    hang_limit_s: float = HANG_LIMIT_S
    hosts: tuple[str, ...] = ()  # names under which pages may call; none: any
    traces: bool = False  # whether spans are sent, as OpenTelemetry's variables in the environment say
    access: Path | None = None  # the access file; None: whoever connects may read everything
    snapshots: SnapshotSettings | None = None  # None: no snapshot files are written or read

    @property
    def store(self) -> Path:
        """Return the store's directory."""
        return self.data / STORE_DIRECTORY
