"""A process of a gateway, from inside: `python -m tablegate.gateway.server ROLE`, its settings on stdin as JSON.

It sends its parent events, as lines of JSON on stdout, and never outlives it.
"""

import base64
import ctypes
import json
import logging
import math
import os
import resource
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tablegate.gateway.cluster.membership import Membership

if TYPE_CHECKING:
    from tablegate.gateway.cluster.peers import Credentials
    from tablegate.gateway.contract.tokens import TokenSigner
    from tablegate.gateway.http.tls import TlsFiles
    from tablegate.gateway.server.log_settings import WatchedLogSettings
    from tablegate.gateway.telemetry.measures import Measures
    from tablegate.gateway.telemetry.spans import Tracer

WORKER = "worker"
SNAPSHOTS = "snapshots"
REPLICATOR = "replicator"

# The events that children send.
STORE_OPENED = "store-opened"  # the replicator: workers may open it
FAILED = "failed"  # the replicator: it cannot begin, and why
LISTENING = "listening"
SERVING = "serving"  # a worker: all tables
NOT_SERVING = "not-serving"
BEAT = "beat"  # the replicator: its loop has turned

HANG_LIMIT_S = 60.0  # of a replicator that does nothing; its longest waits, for Redis and brokers, are some seconds

_OPENSSL_CONF = "OPENSSL_CONF"
_PR_SET_PDEATHSIG = 1
_PARENT_POLL_S = 0.5
_PROCESSES = "processes"  # the directory of their files
PROCESS_FILE_EVERY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSettings:
    """Where snapshot files are, how old the newest of a partition may be, and how many are kept of each."""

    url: str
    every_s: float = 3_600.0
    keep: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildConfig:
    """The settings of a child."""

    name: str
    parent: int  # process id
    contract: str  # descriptor set, base64
    store: str
    address: str
    token_keys: tuple[str, ...]  # hexadecimal
    reflection: bool
    tls: tuple[str, str, str | None] | None  # paths of certificate, key and the clients' CA
    cors_origins: tuple[str, ...]
    drain_s: float
    streams: int
    bootstrap: str
    tables_topic: str
    log_file: str | None
    store_url: str | None = None
    admin_address: str | None = None  # None: `address` serves metrics and status
    membership: Membership | None = None  # None: the gateway stands alone
    pipe_fds: tuple[int, ...] = ()  # a worker's end of its pipe; the replicator's of all
    kafka_options: Mapping[str, str] = field(default_factory=dict, repr=False)  # of the replicator alone
    kafka_secret_files: Mapping[str, str] = field(default_factory=dict)  # of some of them, by option
    kafka_aws_region: str | None = None
    hang_limit_s: float = HANG_LIMIT_S
    hosts: tuple[str, ...] = ()
    access: str | None = None  # the access file of workers; None: whoever connects may read everything
    log_level: int = logging.INFO
    log_settings: str | None = None  # the file of them, which may change
    traces: bool = False  # of workers
    snapshots: SnapshotSettings | None = None  # None: no snapshot files are written or read

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return what `to_json` made the text of."""
        values = json.loads(text)
        tls, membership, snapshots = values["tls"], values["membership"], values["snapshots"]
        return cls(
            **{
                **values,
                "token_keys": tuple(values["token_keys"]),
                "cors_origins": tuple(values["cors_origins"]),
                "hosts": tuple(values["hosts"]),
                "pipe_fds": tuple(values["pipe_fds"]),
                "tls": None if tls is None else tuple(tls),
                "membership": None if membership is None else Membership(**membership),
                "snapshots": None if snapshots is None else SnapshotSettings(**snapshots),
            }
        )

    @property
    def files(self) -> FileDescriptorSet:
        """Return the contracts' files."""
        return FileDescriptorSet.FromString(base64.b64decode(self.contract))

    @property
    def tls_files(self) -> "TlsFiles | None":
        """Return the files of TLS, None for plaintext."""
        from tablegate.gateway.http.tls import TlsFiles

        if self.tls is None:
            return None
        certificate, key, client_ca = self.tls
        return TlsFiles(Path(certificate), Path(key), None if client_ca is None else Path(client_ca))

    @property
    def token_signer(self) -> "TokenSigner":
        """Return what signs and opens the tokens of this gateway, and of others with the same keys."""
        from tablegate.gateway.contract.tokens import TokenSigner

        return TokenSigner([bytes.fromhex(key) for key in self.token_keys])

    @property
    def credentials(self) -> "Credentials | None":
        """Return how the gateway shows itself to others: as to its clients, as they are the same port; None: plaintext.

        Read from the files anew each time.
        """
        from tablegate.gateway.cluster.peers import Credentials

        tls = self.tls_files
        return None if tls is None else Credentials(tls.certificate, tls.key, tls.client_ca)

    @property
    def transfers_rows(self) -> bool:
        """Return whether there are other gateways, with stores of their own, that rows come from and go to."""
        return self.membership is not None and self.store_url is None

    def watched_log_settings(self) -> "WatchedLogSettings":
        """Return what to log, and log so from now on."""
        from tablegate.gateway.server.log_settings import WatchedLogSettings

        return WatchedLogSettings(None if self.log_settings is None else Path(self.log_settings), self.log_level)

    def tracer(self, measures: "Measures") -> "Tracer | None":
        """Return what makes spans and sends them; None where nothing does."""
        if not self.traces:
            return None
        from tablegate.gateway.cluster.membership import own_id
        from tablegate.gateway.telemetry.otel import Traces

        return Traces(own_id(self.membership), self.name, measures)

    @property
    def log_path(self) -> Path | None:
        """Return the log file, None for stderr."""
        return None if self.log_file is None else Path(self.log_file)


def child_command(role: str) -> tuple[str, ...]:
    """Return the command that starts a child.

    A gateway is started in a directory of its user's. With -P nothing that lies there, as a `json.py` or a package
    `google`, takes the place of what a child imports. A crash in a library's C code says on stderr what ran.
    """
    return sys.executable, "-P", "-X", "faulthandler", "-m", "tablegate.gateway.server", role


def child_environment(role: str) -> Mapping[str, str]:
    """Return what a child has in its environment beside its parent's.

    The curves of TLS are no setting of a Python context before 3.15. OpenSSL reads them from its own configuration,
    once a process, and so a worker has one; not where somebody has set another.
    """
    if role != WORKER or _OPENSSL_CONF in os.environ:
        return {}
    return {_OPENSSL_CONF: str(Path(__file__).with_name("openssl.cnf"))}


def paths_of(tls: "TlsFiles") -> tuple[str, str, str | None]:
    """Return the paths of TLS files as `ChildConfig` has them."""
    return str(tls.certificate), str(tls.key), None if tls.client_ca is None else str(tls.client_ca)


def send_event(event: str, **more: Any) -> None:
    """Send the parent an event."""
    sys.stdout.write(json.dumps({"event": event, **more}) + "\n")
    sys.stdout.flush()


class Beats:
    """Sends the parent a beat now and then, while `beat` is called over and over: so it knows that a loop turns."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._sent_s = -math.inf

    def beat(self) -> None:
        """Send one where it is time. It never waits: a parent that does not read has no use for it."""
        now_s = time.monotonic()
        if now_s >= self._sent_s + self._every_s and select.select([], [sys.stdout], [], 0)[1]:
            self._sent_s = now_s
            send_event(BEAT)


Numbers = Mapping[str, Any]
"""What a process counts, as its file has it."""


class ProcessFile:
    """The file of a child, in a directory beside the store that those of one gateway share: what it counts and uses."""

    def __init__(self, directory: Path, *, name: str, parent: int) -> None:
        self._path = directory / f"{name}.json"
        self._name = name
        self._parent = parent
        self._start_s = time.time()

    @classmethod
    def of(cls, config: ChildConfig) -> Self:
        """Return the file of a child."""
        return cls(Path(config.store).parent / _PROCESSES, name=config.name, parent=config.parent)

    def write(self, numbers: Numbers) -> None:
        """Keep numbers, and what the process uses."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        own = {
            "parent": self._parent,
            "process": self._name,
            "start_s": self._start_s,
            "cpu_s": round(used.ru_utime + used.ru_stime, 3),
            **_open_and_resident(),
        }
        with suppress(OSError):  # a full disk: the others show what it had of an earlier moment
            self._path.parent.mkdir(exist_ok=True)
            draft = self._path.with_suffix(".new")
            draft.write_text(json.dumps({**own, **numbers}))
            draft.replace(self._path)

    def all(self) -> list[Numbers]:
        """Return the numbers of all children of this gateway."""
        return [numbers for path in sorted(self._path.parent.glob("*.json")) if (numbers := self._read(path))]

    def others(self) -> list[Numbers]:
        """Return the numbers of all children but this one."""
        return [numbers for numbers in self.all() if numbers.get("process") != self._name]

    def want(self, name: str) -> None:
        """Leave word that what is called `name` is wanted in the files."""
        with suppress(OSError):  # a full disk: nobody hears of it
            self._path.parent.mkdir(exist_ok=True)
            self._wanted(name).touch()

    def is_wanted(self, name: str, *, within_s: float) -> bool:
        """Return whether somebody has wanted it so lately."""
        try:
            return time.time() - self._wanted(name).stat().st_mtime < within_s
        except OSError:
            return False

    def _wanted(self, name: str) -> Path:
        return self._path.parent / f"{name}.wanted"

    def before(self) -> Numbers:
        """Return the numbers of the child that this one took the place of; empty where there is none."""
        return self._read(self._path)

    def _read(self, path: Path) -> Numbers:
        try:
            numbers: Numbers = json.loads(path.read_text())
        except (OSError, ValueError):  # a disk was full, or lost its power
            return {}
        return numbers if numbers.get("parent") == self._parent else {}  # not of an earlier run


def forget_processes(store: Path) -> None:
    """Remove the files of the children of an earlier run, which another version may have written.

    By its number alone a parent is not told from the one before: in a container it is always the same.
    """
    shutil.rmtree(store.parent / _PROCESSES, ignore_errors=True)


def _open_and_resident() -> Numbers:
    """Return what /proc says of this process; empty on systems that have none."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return {"open_files": len(os.listdir("/proc/self/fd")), "memory_bytes": pages * resource.getpagesize()}
    except OSError:
        return {}


def die_with_parent(parent: int) -> None:
    """See to it that this process ends when its parent does, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch_parent, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_S)
    os._exit(1)
