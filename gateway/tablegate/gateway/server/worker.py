"""A worker: answers queries from the store, one event loop, until it is told to drain."""

import asyncio
import gc
import logging
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tablegate.gateway.cluster.credentials import Credentials
from tablegate.gateway.cluster.directory import Directory
from tablegate.gateway.cluster.forward_token import ForwardTokenSigner
from tablegate.gateway.cluster.membership import own_id
from tablegate.gateway.cluster.peers import GrpcForwarder
from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.tokens import TokenSigner
from tablegate.gateway.http.rpc.calls import Calls
from tablegate.gateway.http.server import HttpServer, WebProtocol, web_protocols
from tablegate.gateway.http.tls import TlsError
from tablegate.gateway.query.call import Methods
from tablegate.gateway.query.notifier import Notifier
from tablegate.gateway.query.plans import query_methods, wall_clock_ms
from tablegate.gateway.query.router import Router
from tablegate.gateway.server.child import LISTENING, NOT_SERVING, SERVING, ChildConfig, tell_parent
from tablegate.gateway.server.services.health import Health, live_tables
from tablegate.gateway.server.services.metadata import metadata_methods
from tablegate.gateway.server.services.metrics import Metrics
from tablegate.gateway.server.services.reflection import reflection_methods
from tablegate.gateway.server.services.status import status_methods
from tablegate.gateway.server.watched_store import WatchedStore
from tablegate.gateway.server.worker_pipe import WorkerEnd
from tablegate.gateway.stores.base import StoreUnavailable
from tablegate.gateway.stores.opening import open_for_reading

LOOK_S = 0.2  # how often a worker looks whether its tables are live and its store is the same
COUNTS_EVERY_S = 1.0
COUNTS_DIRECTORY = "calls"  # beside the store: what each worker has counted

_logger = logging.getLogger("tablegate.gateway.server")


def worker_main(config: ChildConfig) -> None:
    """Serve until SIGTERM."""
    try:
        asyncio.run(_Worker(config).run())
    except (OSError, TlsError) as error:
        _logger.error("the worker cannot serve", extra={"reason": str(error)})
        sys.exit(1)


def _credentials(config: ChildConfig) -> Credentials | None:
    """Return how the gateway shows itself to others: as to its clients, as they are the same port; None: plaintext."""
    tls = config.tls_files
    return None if tls is None else Credentials(tls.certificate, tls.key, tls.client_ca)


class _Worker:
    """The parts of a worker, joined."""

    def __init__(self, config: ChildConfig) -> None:
        catalogue = bind(config.files)
        directory = Path(config.store)
        own = own_id(config.membership)
        self._store = WatchedStore(lambda: open_for_reading(directory, config.store_url, own))
        self._health = Health(catalogue)
        self._bell = Notifier()
        lines = [WorkerEnd(fd, self._bell) for fd in config.line_fds]  # none where no replicator is
        self._line = lines[0] if lines else None
        signer = TokenSigner([bytes.fromhex(key) for key in config.token_keys])
        self._directory = Directory()  # empty where it stands alone
        self._router: Router | None = None
        if config.membership is not None:
            forwarder = GrpcForwarder(ForwardTokenSigner(signer, wall_clock_ms).sign, _credentials(config))
            self._router = Router(self._directory, forwarder)
            self._bell.listen(on_ring=self._look_at_others, on_toll=lambda: None)
        methods = {
            **query_methods(catalogue, self._store, signer, self._bell, ends=self._line, router=self._router),
            **self._health.methods(),
            **status_methods(self._store),
            **metadata_methods(catalogue, self._store, signer, self._bell, ends=self._line, router=self._router),
            **(reflection_methods(catalogue) if config.reflection else {}),
        }
        web = web_protocols(catalogue, cors_origins=config.cors_origins, describe=config.reflection)

        def protocols(methods: Methods, calls: Calls) -> Sequence[WebProtocol]:
            counts = directory.parent / COUNTS_DIRECTORY
            self._metrics = Metrics(calls, self._store, counts, name=config.name, parent=config.parent)
            return *web(methods, calls), self._metrics

        self._door = HttpServer(
            methods,
            config.address,
            web=protocols,
            tls=config.tls_files,
            shared_port=True,
        )
        self._is_store_away = False
        self._publish_at_s = 0.0
        self._drain_s = config.drain_s
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Serve until SIGTERM, then drain."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stopping.set)
        if self._line is not None:
            self._line.listen()
        self._store.refresh()
        await self._door.start()
        gc.collect()
        gc.freeze()  # what is here stays: no collection looks at it again
        tell_parent(LISTENING)
        while not self._stopping.is_set():
            self._look()
            try:
                await asyncio.wait_for(self._stopping.wait(), LOOK_S)
            except TimeoutError:
                continue
        await self._drain()

    def _look(self) -> None:
        was_serving = self._health.serving
        self._store.refresh()
        if time.monotonic() >= self._publish_at_s:
            self._publish_at_s = time.monotonic() + COUNTS_EVERY_S
            self._metrics.publish()
        was_away = self._is_store_away
        self._look_at_others(self._health.tables)
        if self._is_store_away and not was_away:
            self._bell.ring()  # no replicator does: who waits here for what comes is to ask the others
        live = live_tables(self._store, self._health.tables, self._directory)
        self._health.update(live)
        if self._health.serving != was_serving:
            missing = sorted(self._health.tables - live)
            if missing:
                _logger.warning("not all tables are served", extra={"missing": missing})
            tell_parent(SERVING if self._health.serving else NOT_SERVING, missing=missing)

    def _look_at_others(self, tables: Iterable[str] = ()) -> None:
        """Take in what the replicator says of the other gateways, and of these tables."""
        if self._router is None:
            return
        try:
            with self._store.snapshot() as snapshot:
                self._router.look(snapshot, tables)
            self._is_store_away = False
        except StoreUnavailable:
            self._is_store_away = True  # what was known stays

    async def _drain(self) -> None:
        """Take no more work in, finish the unary calls, end the streams."""
        _logger.info("draining")
        self._health.drain()
        self._door.drain()
        self._bell.toll()  # streams that wait for a change end now
        await self._door.stop(self._drain_s)
        if self._router is not None:
            await self._router.forwarder.close()
        self._store.close()
