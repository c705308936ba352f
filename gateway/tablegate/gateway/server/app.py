"""A gateway, put together: checks, then a replicator and workers under a supervisor."""

import base64
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tablegate.gateway.cluster.membership import Membership
from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.contract.msk import TOKEN_OPTION
from tablegate.gateway.server.child import (
    FAILED,
    LISTENING,
    REPLICATOR,
    SERVING,
    SNAPSHOTS,
    STORE_OPENED,
    WORKER,
    ChildConfig,
    child_command,
    child_environment,
    forget_processes,
    paths_of,
)
from tablegate.gateway.server.config import ServeConfig, ServeError
from tablegate.gateway.server.log_settings import LogSettingsError, level_of, read_log_settings
from tablegate.gateway.server.logs import set_up_logging
from tablegate.gateway.server.preflight import (
    Reserved,
    check_access,
    check_cluster,
    check_hosts,
    check_kafka,
    check_origins,
    check_snapshots,
    check_store_url,
    check_tls,
    check_topics,
    check_traces,
    load_contracts,
    lock_data,
    membership_of,
    reserve_address,
    reserve_admin,
    token_keys,
)
from tablegate.gateway.server.supervisor import EXITED, REPLICATOR_STOP_S, ChildSpec, Supervisor
from tablegate.gateway.server.worker_pipe import WorkerPipe, close_pipe, open_pipe

START_DEATHS_MAX = 5  # of the replicator before it ever opened its store: about 3 s
SNAPSHOTS_STOP_S = 2.0  # a file that is being written is none, however its process ends

_STORE_SIGNALS = frozenset({signal.SIGBUS, signal.SIGSEGV})

_logger = logging.getLogger("tablegate.gateway.server")


def serve(config: ServeConfig) -> int:
    """Run a gateway until SIGTERM or SIGINT; return the exit code. Raise `ServeError` where it cannot start."""
    if config.workers < 1:
        raise ServeError(f"{config.workers} workers answer nothing; give at least 1")
    if config.streams < 1:
        raise ServeError(f"{config.streams} streams let nobody subscribe; give at least 1")
    files, catalogue = load_contracts(config.contracts)
    check_tls(config)
    check_origins(config.cors_origins)
    check_hosts(config.hosts)
    check_kafka(config)
    check_topics(config)
    check_store_url(config.store_url)
    check_snapshots(config)
    check_cluster(config, catalogue)
    check_access(config, catalogue)
    check_traces(config)
    reserved = reserve_address(config.listen, insecure=config.insecure or config.tls is not None)
    lock = None
    admin: Reserved | None = None
    pipes: list[WorkerPipe] = []
    try:
        admin = reserve_admin(config, reserved)
        lock = lock_data(config.data, _address(config, reserved, admin))
        forget_processes(config.store)
        keys = token_keys(config)
        _open_log(config)
        contract = base64.b64encode(files.SerializeToString()).decode("ascii")
        announcer = _Announcer(config, catalogue, reserved, admin)
        pipes += [open_pipe() for _ in range(config.workers)]
        membership = membership_of(config)
        supervisor = Supervisor(
            _specs(config, contract, keys, (reserved, admin), lock, pipes, membership), announcer.on_event
        )
        announcer.on_failure = supervisor.stop
        supervisor.run()
        _logger.info("stopped")
        if announcer.failure is not None:
            raise ServeError(announcer.failure)
    finally:
        for each in (reserved, admin):
            if each is not None:
                each.holder.close()
        for pipe in pipes:
            close_pipe(pipe)
        if lock is not None:
            os.close(lock)
    return 0


def _address(config: ServeConfig, reserved: Reserved, admin: Reserved | None) -> str:
    """Return where the gateway is asked for its status: with TLS by a name that its certificate may be for."""
    if admin is not None:
        return admin.address if config.tls is None else f"https://{admin.address}"
    return reserved.address if config.tls is None else f"https://{config.advertise or reserved.address}"


def _open_log(config: ServeConfig) -> None:
    try:
        set_up_logging("gateway", config.log_file)
        level = level_of(config.log_level)
        if config.log_settings is not None:
            level = read_log_settings(config.log_settings, level).level
        logging.getLogger().setLevel(level)
    except LogSettingsError as error:
        raise ServeError(str(error)) from None
    except OSError as error:
        raise ServeError(f'log file "{config.log_file}" cannot be written: {error.strerror}; choose another') from None


def _specs(
    config: ServeConfig,
    contract: str,
    keys: tuple[bytes, ...],
    addresses: tuple[Reserved, Reserved | None],
    lock: int,
    pipes: Sequence[WorkerPipe],
    membership: Membership | None,
) -> list[ChildSpec]:
    reserved, admin = addresses
    kafka: dict[str, Any] = {
        # What signs tokens is no text: the replicator makes it anew.
        "kafka_options": {name: option for name, option in config.kafka_options.items() if name != TOKEN_OPTION},
        "kafka_secret_files": config.kafka_secret_files,
        "kafka_aws_region": config.kafka_aws_region,
    }

    def settings(name: str, pipe_fds: Sequence[int]) -> str:
        return ChildConfig(
            name=name,
            parent=os.getpid(),
            contract=contract,
            store=str(config.store),
            store_url=config.store_url,
            membership=membership,
            address=reserved.address,
            admin_address=None if admin is None else admin.address,
            token_keys=tuple(key.hex() for key in keys),
            reflection=config.reflection,
            tls=None if config.tls is None else paths_of(config.tls),
            cors_origins=config.cors_origins,
            hosts=config.hosts,
            drain_s=config.drain_s,
            streams=config.streams,
            bootstrap=config.bootstrap,
            tables_topic=config.tables_topic,
            log_file=None if config.log_file is None else str(config.log_file),
            pipe_fds=tuple(pipe_fds),
            **(kafka if name == REPLICATOR else {}),  # no worker has a client of Kafka
            hang_limit_s=config.hang_limit_s,
            access=None if config.access is None else str(config.access.resolve()),
            log_level=level_of(config.log_level),
            traces=config.traces,
            log_settings=None if config.log_settings is None else str(config.log_settings.resolve()),
            snapshots=config.snapshots,
        ).to_json()

    def before_replicator_restart(killed_by: int) -> None:
        if killed_by in _STORE_SIGNALS:
            _logger.warning("the replicator died in the store, which is wiped and restored")
            shutil.rmtree(config.store, ignore_errors=True)

    to_replicator = [pipe.replicator_fd for pipe in pipes]
    replicator = ChildSpec(
        name="replicator",
        command=child_command(REPLICATOR),
        settings=settings(REPLICATOR, to_replicator),
        stop_s=REPLICATOR_STOP_S,
        # It holds the lock too: no other gateway starts on the store before its writer is dead.
        pass_fds=(lock, *to_replicator),
        # Before, it does not listen for the signal, and would die of it.
        drain_after=STORE_OPENED,
        before_restart=before_replicator_restart,
        hang_limit_s=config.hang_limit_s,
    )
    workers = [
        ChildSpec(
            name=f"worker-{number}",
            command=child_command(WORKER),
            settings=settings(f"worker-{number}", (pipe.worker_fd,)),
            stop_s=config.drain_s,
            first_to_stop=True,
            # Before, the store says of an earlier run that it is live, which nobody has checked since.
            start_after=STORE_OPENED,
            pass_fds=(pipe.worker_fd,),
            environment=child_environment(WORKER),
        )
        for number, pipe in enumerate(pipes)
    ]
    if config.snapshots is None:
        return [replicator, *workers]
    snapshots = ChildSpec(
        name=SNAPSHOTS,
        command=child_command(SNAPSHOTS),
        settings=settings(SNAPSHOTS, ()),
        stop_s=SNAPSHOTS_STOP_S,
        first_to_stop=True,
        start_after=STORE_OPENED,  # as workers
    )
    return [replicator, *workers, snapshots]


class _Announcer:
    """Prints, once each, that the gateway listens and that all tables are served; keeps why it cannot."""

    def __init__(
        self, config: ServeConfig, catalogue: Catalogue, reserved: Reserved, admin: Reserved | None = None
    ) -> None:
        self._listening = [f"listening on {reserved.address}"]
        if admin is not None:
            self._listening.insert(0, f"admin on {admin.address}")
        self._tables = ", ".join(sorted(catalogue.tables))
        self._waiting = {
            event: {f"worker-{number}" for number in range(config.workers)} for event in (LISTENING, SERVING)
        }
        self._opened = False
        self._deaths = 0
        self.failure: str | None = None
        self.on_failure: Callable[[], None] = lambda: None

    def on_event(self, name: str, event: Mapping[str, Any]) -> None:
        """Handle an event of process `name`."""
        kind = event.get("event")
        self._opened = self._opened or kind == STORE_OPENED
        if kind == FAILED and event.get("for_good"):
            self.failure = str(event.get("reason"))
            self.on_failure()
        if not self._opened:
            self._note_trouble(kind, event)
        waiting = self._waiting.get(str(kind))
        if not waiting:
            return
        waiting.discard(name)
        if not waiting:
            for text in self._listening if kind == LISTENING else [f"all tables are served: {self._tables}"]:
                _logger.info(text)
                if not (sys.stdout.isatty() and sys.stderr.isatty()):  # a person has just read it in the log
                    _print(text)

    def _note_trouble(self, kind: object, event: Mapping[str, Any]) -> None:
        """Give up where the replicator says that it cannot begin, or keeps dying before it has."""
        self._deaths += kind == EXITED
        if kind == FAILED:
            self.failure = str(event.get("reason"))
        elif self._deaths >= START_DEATHS_MAX and self.failure is None:
            self.failure = "the replicator dies whenever it starts; the log says why"
        if self.failure is not None:
            self.on_failure()


def _print(text: str) -> None:
    """Print for whoever started the gateway. Who reads no more, or a disk that is full, ends nothing."""
    try:
        print(text, flush=True)
    except OSError:
        # What is left would be tried once more at the end, and decide the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
