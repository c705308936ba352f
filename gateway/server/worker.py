"""A worker: answers queries from the store, one event loop, until it is told to drain."""

import asyncio
import gc
import logging
import signal
import sys
from pathlib import Path

from gateway.contract.binder import bind
from gateway.contract.tokens import TokenSigner
from gateway.door.door import Door
from gateway.door.tls import TlsError
from gateway.door.web import web_protocols
from gateway.query.plans import query_methods
from gateway.server.child import LISTENING, NOT_SERVING, SERVING, ChildConfig, tell_parent
from gateway.server.health import Health, live_tables
from gateway.server.lines import WorkerEnd
from gateway.server.reflection import reflection_methods
from gateway.server.status_service import status_methods
from gateway.server.watched_store import WatchedStore
from gateway.stores.lmdb import LmdbReader
from gateway.subscription.bell import Bell

LOOK_S = 0.2  # how often a worker looks whether its tables are live and its store is the same

_logger = logging.getLogger("gateway.server")


def worker_main(config: ChildConfig) -> None:
    """Serve until SIGTERM."""
    try:
        asyncio.run(_Worker(config).run())
    except (OSError, TlsError) as error:
        _logger.error("the worker cannot serve", extra={"reason": str(error)})
        sys.exit(1)


class _Worker:
    """The parts of a worker, joined."""

    def __init__(self, config: ChildConfig) -> None:
        catalogue = bind(config.files)
        directory = Path(config.store)
        self._store = WatchedStore(lambda: LmdbReader(directory))
        self._health = Health(catalogue)
        self._bell = Bell()
        lines = [WorkerEnd(fd, self._bell) for fd in config.line_fds]  # none where no replicator is
        self._line = lines[0] if lines else None
        signer = TokenSigner([bytes.fromhex(key) for key in config.token_keys])
        methods = {
            **query_methods(catalogue, self._store, signer, self._bell, ends=self._line),
            **self._health.methods(),
            **status_methods(self._store),
            **(reflection_methods(catalogue) if config.reflection else {}),
        }
        self._door = Door(
            methods,
            config.address,
            web=web_protocols(catalogue, cors_origins=config.cors_origins, describe=config.reflection),
            tls=config.tls_files,
            shared_port=True,
        )
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
        live = live_tables(self._store, self._health.tables)
        self._health.update(live)
        if self._health.serving != was_serving:
            missing = sorted(self._health.tables - live)
            if missing:
                _logger.warning("not all tables are served", extra={"missing": missing})
            tell_parent(SERVING if self._health.serving else NOT_SERVING, missing=missing)

    async def _drain(self) -> None:
        """Take no more work in, finish the unary calls, end the streams."""
        _logger.info("draining")
        self._health.drain()
        self._door.drain()
        self._bell.toll()  # streams that wait for a change end now
        await self._door.stop(self._drain_s)
        self._store.close()
