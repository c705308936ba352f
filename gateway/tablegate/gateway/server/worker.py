"""A worker: answers queries from the store, on one event loop, until SIGTERM; then it drains.

What happens in it, and when:
  * Calls come over the HTTP server and read a snapshot of the store. No call waits while it holds one.
  * The replicator names in the pipe what it has changed (`worker_pipe`). The notifier wakes whoever waits for that, and
    the live tables publish it to subscribers: a commit costs as much as it has changed.
  * Every `CHECK_S` the timer sees that the store is still the same file or server, passes on what the replicator says
    of the other gateways, and checks whether all tables are served. None of that is done for each commit.
  * A store that is away is opened by a thread, as a server that hangs would keep the event loop waiting. Whoever
    waits is woken when it is gone, and when it is back: no notification says so.

Decision: docs/decisions/0034-a-store-that-is-away.md
"""

import asyncio
import gc
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path

from typing_extensions import override

from tablegate.gateway.access.gate import Gate
from tablegate.gateway.access.policy import Right
from tablegate.gateway.access.principal import AccessFileError
from tablegate.gateway.cluster.directory import Directory
from tablegate.gateway.cluster.forward_token import ForwardTokenSigner
from tablegate.gateway.cluster.membership import own_id
from tablegate.gateway.cluster.peers import GrpcForwarder
from tablegate.gateway.cluster.scatter import Router
from tablegate.gateway.cluster.traced_peers import TracedForwarder
from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.http.console.console import Console
from tablegate.gateway.http.rpc.calls import CallLimits, Calls
from tablegate.gateway.http.server import Guarded, HttpServer, ServedHosts, WebProtocol, web_protocols
from tablegate.gateway.http.tls import TlsError
from tablegate.gateway.query.call import Methods
from tablegate.gateway.query.explain import Explainer
from tablegate.gateway.query.service import query_methods, table_accesses
from tablegate.gateway.query.serving import wall_clock_ms
from tablegate.gateway.query.subscribe.open_streams import OpenStreams
from tablegate.gateway.server.admin import AdminServer, moved_methods, unready_reason
from tablegate.gateway.server.call_log import CallLog
from tablegate.gateway.server.child import (
    LISTENING,
    NOT_SERVING,
    PROCESS_FILE_EVERY_S,
    SERVING,
    ChildConfig,
    ProcessFile,
    send_event,
)
from tablegate.gateway.server.health import Health, ReplicatorBeat, live_tables
from tablegate.gateway.server.metadata import history_methods, metadata_methods, reflection_methods, status_methods
from tablegate.gateway.server.metrics import PATH as METRICS_PATH
from tablegate.gateway.server.metrics import Metrics
from tablegate.gateway.server.snapshot_status import snapshots_status
from tablegate.gateway.server.subscriptions import Subscriptions
from tablegate.gateway.server.transfers import transfer_methods
from tablegate.gateway.server.worker_pipe import WorkerEnd
from tablegate.gateway.stores.base import Snapshot, StoreReader, StoreUnavailable
from tablegate.gateway.stores.changes import StoreChanges
from tablegate.gateway.stores.notifier import Notifier
from tablegate.gateway.stores.opening import open_for_reading
from tablegate.gateway.telemetry.measures import Measures

CHECK_S = 0.2  # how often a worker checks that its store is the same, and its tables are live
HEALTH_TIMES = 50  # as long as checking the tables took: of many partitions they are checked less often
OPEN_EVERY_S = 0.2  # a store that is away is tried so often
LATE_PART = 1 / 3  # of the time after which a replicator that hangs is restarted: then health and status say so

_logger = logging.getLogger("tablegate.gateway.server")


def worker_main(config: ChildConfig) -> None:
    """Serve until SIGTERM."""
    try:
        asyncio.run(_Worker(config).run())
    except (OSError, TlsError, AccessFileError) as error:
        _logger.error("the worker cannot serve", extra={"reason": str(error)})
        sys.exit(1)


class _Worker:
    """The parts of a worker, joined."""

    def __init__(self, config: ChildConfig) -> None:
        catalogue = bind(config.files)
        directory = Path(config.store)
        own = own_id(config.membership)
        self._store = WatchedStore(lambda: open_for_reading(directory, config.store_url, own))
        self._health = Health(catalogue)
        self._beat = ReplicatorBeat(config.hang_limit_s * LATE_PART)
        self._was_late = False
        self._notifier = Notifier()
        pipes = [WorkerEnd(fd, self._notifier) for fd in config.pipe_fds]  # none where no replicator is
        self._pipe = pipes[0] if pipes else None
        signer = config.token_signer
        measures = Measures()
        self._tracer = config.tracer(measures)
        self._directory = Directory()  # empty where it stands alone
        self._router: Router | None = None
        if config.membership is not None:
            make_forwarder = GrpcForwarder if self._tracer is None else TracedForwarder
            forwarder = make_forwarder(
                ForwardTokenSigner(signer, wall_clock_ms).sign, config.credentials, measures=measures
            )
            self._router = Router(self._directory, forwarder)
            # The other gateways stand in the status. To hear of it by the notifier is sooner than by the timer, and a
            # switch of generations is a matter of moments.
            self._notifier.listen(on_change=self._note, on_shutdown=lambda: None)
        streams, process_file = OpenStreams(), ProcessFile.of(config)
        subscriptions = Subscriptions(streams, self._store, process_file)
        own_methods = {
            **self._health.methods(),
            **status_methods(
                self._store,
                is_late=lambda: self._beat.is_late,
                subscriptions=subscriptions,
                snapshots=None
                if config.snapshots is None
                else partial(snapshots_status, process_file, config.snapshots),
            ),
            **metadata_methods(catalogue, self._store, signer, self._notifier, ends=self._pipe, router=self._router),
        }
        history = history_methods(catalogue, self._store, signer, self._notifier, router=self._router)
        has_admin = config.admin_address is not None
        queries = query_methods(
            catalogue,
            self._store,
            signer,
            self._notifier,
            ends=self._pipe,
            router=self._router,
            measures=measures,
            is_traced=self._tracer is not None,
            streams=streams,
        )
        methods = {
            **queries,
            **own_methods,
            **(moved_methods(history) if has_admin else history),
            **(reflection_methods(catalogue) if config.reflection else {}),
        }
        if config.transfers_rows:
            methods |= transfer_methods(catalogue, self._store, signer, self._notifier, measures=measures)
        self._gate = None if config.access is None else Gate(Path(config.access), catalogue)
        scheme = "http" if config.tls is None else "https"
        data_port = int(config.address.rpartition(":")[2])
        web = web_protocols(
            catalogue,
            cors_origins=config.cors_origins,
            describe=config.reflection,
            scheme=scheme,
            console=Console(catalogue, data_port=data_port) if config.reflection and not has_admin else None,
        )

        def protocols(methods: Methods, calls: Calls) -> Sequence[WebProtocol]:
            self._metrics = Metrics(
                calls,
                self._store,
                process_file,
                lambda: {
                    "connections": self._server.connections,
                    "kept_bytes": self._server.kept_bytes,
                    "kept_bytes_max": self._server.kept_bytes_max,
                    **subscriptions.numbers(),
                },
            )
            if has_admin:
                return web(methods, calls)
            return *web(methods, calls), Guarded(self._metrics, (METRICS_PATH,), calls, Right.METRICS)

        self._server = HttpServer(
            methods,
            config.address,
            web=protocols,
            tls=config.tls_files,
            shared_port=True,
            call_limits=CallLimits.for_streams(config.streams),
            gate=self._gate,
            hosts=ServedHosts(config.address, config.hosts),
            measures=measures,
            tracer=self._tracer,
            traced=queries.keys(),
        )
        self._admin: AdminServer | None = None
        if config.admin_address is not None:
            self._admin = AdminServer(
                catalogue,
                own_methods,
                config.admin_address,
                metrics=self._metrics,
                unready_reason=lambda: unready_reason(self._health, self._store, is_late=self._was_late),
                tls=config.tls_files,
                data_port=data_port,
                queries={**queries, **history},
                gate=self._gate,
                hosts=config.hosts,
            )
        self._log_settings = config.watched_log_settings()
        accesses = table_accesses(
            catalogue, self._store, signer, self._notifier, ends=None, router=self._router, now_ms=wall_clock_ms
        )
        self._call_log = CallLog(Explainer(catalogue, accesses).explain)
        self._use_log_settings()
        self._is_store_away = False
        self._publish_at_s = self._health_at_s = 0.0
        self._drain_s = config.drain_s
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Serve until SIGTERM, then drain."""
        for number in (signal.SIGTERM, signal.SIGINT):  # systemd may send either to all processes at once
            asyncio.get_running_loop().add_signal_handler(number, self._stopping.set)
        if self._pipe is not None:
            self._pipe.listen()
        self._store.refresh()
        if self._gate is not None:
            self._gate.start()
        if self._admin is not None:
            await self._admin.start()  # first, so that a probe is answered as soon as anything is
        await self._server.start()
        # What lives as long as the process is no garbage: a full collection would take milliseconds of the event loop.
        gc.collect()
        gc.freeze()  # what is here stays: no collection looks at it again
        send_event(LISTENING)
        while not self._stopping.is_set():
            self._check()
            try:
                await asyncio.wait_for(self._stopping.wait(), CHECK_S)
            except TimeoutError:
                continue
        await self._drain()

    def _check(self) -> None:
        """Do what is due: on a timer, so that it costs the same however often the replicator commits."""
        now_s = time.monotonic()
        if self._store.refresh():
            # Notifications were of the store before: whoever waits reads this one.
            self._notifier.notify()
        if self._gate is not None:
            self._gate.refresh()
            for server in (self._server, self._admin):
                if server is not None:
                    server.check_streams()
        if now_s >= self._publish_at_s:
            self._publish_at_s = now_s + PROCESS_FILE_EVERY_S
            self._metrics.publish()
            self._log_settings.refresh()
            self._use_log_settings()
        was_away = self._is_store_away
        self._update_router(self._health.tables)
        if self._is_store_away and not was_away:
            self._notifier.notify()  # no replicator does: who waits here for what comes is to ask the others
        if now_s >= self._health_at_s or self._is_store_away != was_away:
            begin_s = time.monotonic()
            self._check_health()
            # With thousands of partitions a check takes long: it may take a share of the time, not a pace.
            self._health_at_s = time.monotonic() + HEALTH_TIMES * (time.monotonic() - begin_s)

    def _use_log_settings(self) -> None:
        now, log = self._log_settings.now, self._call_log
        log.logs_all, log.slow_s = now.access_log, now.slow_s
        for calls in (self._server.calls, *([] if self._admin is None else [self._admin.query_calls])):
            calls.on_ended = log.note if log.is_on else None

    def _check_health(self) -> None:
        was_serving = self._health.serving
        self._note_beat()
        live = live_tables(self._store, self._health.tables, self._directory)
        if self._was_late:
            live = frozenset()
        self._health.update(live)
        if self._health.serving != was_serving:
            missing = sorted(self._health.tables - live)
            if missing:
                _logger.warning("not all tables are served", extra={"missing": missing})
            send_event(SERVING if self._health.serving else NOT_SERVING, missing=missing)

    def _note_beat(self) -> None:
        """Notice whether the replicator lives. While the store is away nobody can tell, and nothing is served."""
        with suppress(StoreUnavailable), self._store.snapshot() as snapshot:
            self._beat.note(snapshot.status())
        is_late = self._beat.is_late
        if is_late and not self._was_late:
            _logger.error(
                "the replicator hangs; what is here is answered, and grows older", extra={"silent_s": self._beat.late_s}
            )
        self._was_late = is_late

    def _note(self, changes: StoreChanges) -> None:
        """Hear of other gateways at once, where the status may say something new of them."""
        if changes.status or changes.everything:
            self._update_router()

    def _update_router(self, tables: Iterable[str] = ()) -> None:
        """Pass on what the replicator says of the other gateways, and the states of these tables."""
        if self._router is None:
            return
        try:
            with self._store.snapshot() as snapshot:
                self._router.refresh(snapshot, tables)
            self._is_store_away = False
        except StoreUnavailable:
            self._is_store_away = True  # what was known stays

    async def _drain(self) -> None:
        """Take no more work in, finish the unary calls, end the streams."""
        _logger.info("draining")
        # Health first: who balances the load sends nobody here any more while what is under way comes to its end.
        self._health.drain()
        self._server.drain()
        self._notifier.shutdown()  # streams that wait for a change end now
        await self._server.stop(self._drain_s)
        if self._admin is not None:  # last, so that probes are told why nobody is served any more
            await self._admin.stop(0)
        if self._router is not None:
            await self._router.forwarder.close()
        if self._gate is not None:
            self._gate.close()
        self._store.close()
        if self._tracer is not None:
            self._tracer.close()


class WatchedStore(StoreReader):
    """A store reader that `refresh` opens, and opens again. One thread, but for the one that waits for the store."""

    def __init__(self, open_reader: Callable[[], StoreReader], *, open_every_s: float = OPEN_EVERY_S) -> None:
        self._open_reader = open_reader
        self._open_every_s = open_every_s
        self._reader: StoreReader | None = None
        self._reason = "the store is not open yet"
        self._opening: _Opening | None = None

    @override
    def snapshot(self) -> AbstractContextManager[Snapshot]:
        if self._reader is None:
            raise StoreUnavailable(self._reason)
        return self._reader.snapshot()

    @override
    def is_current(self) -> bool:
        return self._reader is not None and self._reader.is_current()

    def refresh(self) -> bool:
        """Open the store where it is new, or another than before; return whether it was opened.

        No snapshot may be open meanwhile.

        Where it is away, another thread waits for it: one that hangs would keep this one waiting again and again.
        """
        is_opened = False
        if self._opening is not None:
            if self._opening.is_alive():
                return False
            self._reader, self._opening = self._opening.found, None
            if self._reader is not None:
                is_opened = True
                _logger.info("opened the store")
        if self.is_current():
            reason = self._trouble()
        else:
            self._close_reader()
            reason = self._opened()
            is_opened = not reason
        if reason:
            self._close_reader()
            self._opening = _Opening(self._open_reader, self._open_every_s)
            if reason != self._reason:
                self._reason = reason
                _logger.info("waiting for the store", extra={"reason": reason})
        return is_opened and not reason

    def _opened(self) -> str:
        """Open the store; return why it cannot be, "" where it is."""
        try:
            self._reader = self._open_reader()
        except StoreUnavailable as error:
            return str(error)
        _logger.info("opened the store")
        return ""

    def _trouble(self) -> str:
        """Return why the store cannot be read; "" where it can."""
        try:
            with self.snapshot() as snapshot:
                snapshot.status()
        except StoreUnavailable as error:
            return str(error)
        return ""

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    @override
    def close(self) -> None:
        self._close_reader()
        if self._opening is not None:
            self._opening.ends.set()
            self._opening = None


class _Opening(threading.Thread):
    """Opens a store once it can be, and ends: then it is `found`. Set `ends`, and it gives up."""

    def __init__(self, open_reader: Callable[[], StoreReader], open_every_s: float) -> None:
        super().__init__(name="store", daemon=True)
        self.found: StoreReader | None = None
        self.ends = threading.Event()
        self._open_reader = open_reader
        self._open_every_s = open_every_s
        self.start()

    @override
    def run(self) -> None:
        while not self.ends.wait(self._open_every_s):
            try:
                self.found = self._open_reader()
            except StoreUnavailable:
                continue
            return
