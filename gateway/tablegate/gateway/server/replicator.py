"""The replicator process of a gateway: opens the store, follows Kafka, ends cleanly on SIGTERM.

A store is disposable, as the changelogs are the truth. One that is damaged is wiped and restored in the same process;
one that lost its last writes is opened again and followed on from what it has.
"""

import gc
import logging
import math
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tablegate.gateway.cluster.gateways_topic import NameInUse
from tablegate.gateway.cluster.membership import Membership, own_id
from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.contract.msk import TOKEN_OPTION, TokenSigner
from tablegate.gateway.kafka.client import KafkaEnds, KafkaLog
from tablegate.gateway.kafka.fresh_options import FreshOptions
from tablegate.gateway.kafka.log import LogUnavailable, SystemClock
from tablegate.gateway.replication.replicator import FULL_RETRY_S, Replicator
from tablegate.gateway.replication.snapshots import FileSnapshots, SnapshotProblems
from tablegate.gateway.replication.transfers import TransferClient
from tablegate.gateway.server.child import (
    FAILED,
    PROCESS_FILE_EVERY_S,
    STORE_OPENED,
    Beats,
    ChildConfig,
    ProcessFile,
    send_event,
)
from tablegate.gateway.server.worker_pipe import ReplicatorEnd
from tablegate.gateway.stores.base import StoreCorrupt, StoreFull, StoreUnavailable, StoreWentBack, StoreWriter
from tablegate.gateway.stores.changes import NotifyingStore, StoreChanges
from tablegate.gateway.stores.opening import open_for_writing, wipe
from tablegate.gateway.stores.snapshots.files import SnapshotFiles
from tablegate.gateway.stores.snapshots.opening import open_files
from tablegate.gateway.telemetry.measures import Measures

if TYPE_CHECKING:
    from tablegate.gateway.stores.lmdb.store import LmdbStore
    from tablegate.gateway.stores.redis.store import RedisStore

BEATS_PER_LIMIT = 20  # sent in the time after which its parent takes it to hang
YOUNG_OBJECTS_MAX = 300_000  # before a collection looks at them: the objects of two batches, which die by themselves

_logger = logging.getLogger("tablegate.gateway.replication")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatorConfig:
    """What a replicator is started with. `kafka_options` are librdkafka's, for security.

    `store` is a directory; with a `store_url`, that Redis is the store.
    """

    files: FileDescriptorSet
    store: Path
    store_url: str | None = None
    bootstrap: str
    tables_topic: str = "tables"
    kafka_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    membership: Membership | None = None  # None: the gateway stands alone
    transfers: TransferClient | None = None  # None: no other gateway is asked for rows
    snapshots: SnapshotFiles | None = None  # None: there are no snapshot files
    snapshot_problems: SnapshotProblems = field(default_factory=SnapshotProblems)


def run_replicator(
    config: ReplicatorConfig,
    *,
    stop: threading.Event | None = None,
    drain: threading.Event | None = None,
    on_open: Callable[[], None] = lambda: None,
    notify: Callable[[StoreChanges], None] = lambda _: None,
    beat: Callable[[], None] = lambda: None,
    measures: Measures | None = None,
) -> None:
    """Follow the changelogs until SIGTERM or SIGINT, or `stop`; then leave the store with its clean mark.

    With SIGUSR1, or `drain`, all partitions are given to the other gateways of the cluster.
    Without `stop` the main thread must call this, as it takes the signals. `on_open` is called when the store can
    be opened for reading and nothing of before is served any more, but on a full disk; `notify` with what has changed,
    `beat` with each turn of a loop; `measures`: where what is done is counted. A store that is corrupt is wiped and
    restored; one that went back is followed on from what it has.
    Raise `StoreUnavailable` where there cannot be one, and `LogUnavailable` for bad Kafka options.
    """
    drain = drain or threading.Event()
    if stop is None:
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        signal.signal(signal.SIGUSR1, lambda *_: drain.set())
    # The catalogue lives as long as the process. Records are many and die by themselves, so collections are rare.
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS_MAX, 10, 10)
    catalogue = bind(config.files)
    while not stop.is_set():
        store = _open(config, stop, beat)
        if store is None:
            return
        try:
            _follow(config, catalogue, store, stop, drain, on_open, notify, beat, measures or Measures())
            store.close()
        except StoreCorrupt as error:
            _logger.error("%s; it is wiped and restored", error)
            store.abandon()
            wipe(config.store, config.store_url)
        except StoreWentBack as error:
            _logger.warning("%s", error)
            store.abandon()
        except BaseException:
            store.abandon()
            raise


def _open(config: ReplicatorConfig, stop: threading.Event, beat: Callable[[], None]) -> "LmdbStore | RedisStore | None":
    """Open the store, wiped where it must be; wait for room on a full disk. None: stopped before."""
    is_full = False
    while not stop.is_set():
        beat()
        try:
            return open_for_writing(config.store, config.store_url, own_id(config.membership))
        except StoreCorrupt as error:
            _logger.warning("%s; it is wiped and restored", error)
            wipe(config.store, config.store_url)
        except StoreFull as error:
            if not is_full:
                is_full = True
                _logger.error("%s; waiting for room", error)
            # Not an error that ends the process: the supervisor would start it again and again, on the same full disk.
            time.sleep(FULL_RETRY_S)
    return None


def _follow(
    config: ReplicatorConfig,
    catalogue: Catalogue,
    store: StoreWriter,
    stop: threading.Event,
    drain: threading.Event,
    on_open: Callable[[], None],
    notify: Callable[[StoreChanges], None],
    beat: Callable[[], None],
    measures: Measures,
) -> None:
    notifying = NotifyingStore(store, notify, measures.commits[()])
    log = KafkaLog(config.bootstrap, config.kafka_options)
    try:
        replicator = Replicator(
            catalogue,
            log=log,
            store=notifying,
            clock=SystemClock(),
            tables_topic=config.tables_topic,
            membership=config.membership,
            transfers=config.transfers,
            snapshots=None
            if config.snapshots is None
            else FileSnapshots(config.snapshots, SystemClock(), problems=config.snapshot_problems),
            start_id=secrets.randbits(64),
            publish=notifying.publish,
            measures=measures,
        )
        on_open()
        is_draining = False
        while not stop.is_set():
            if drain.is_set() and not is_draining:
                is_draining = True
                replicator.drain()
            replicator.step()
            beat()
        replicator.close()
    finally:
        log.close()


def _beat(config: ChildConfig, measures: Measures, problems: SnapshotProblems) -> Callable[[], None]:
    """Return what tells the parent and the workers, now and then, that this process lives, and what it uses and did."""
    beats, file = Beats(config.hang_limit_s / BEATS_PER_LIMIT), ProcessFile.of(config)
    measures.add(file.before())
    log_settings = config.watched_log_settings()
    written_s = -math.inf

    def beat() -> None:
        nonlocal written_s
        beats.beat()
        now_s = time.monotonic()
        if now_s >= written_s + PROCESS_FILE_EVERY_S:
            written_s = now_s
            file.write({**measures.numbers(), "snapshot_problems": problems.numbers()})
            log_settings.refresh()

    return beat


def _transfers(config: ChildConfig) -> TransferClient | None:
    """Return by what other gateways are asked for rows; None where none is."""
    if not config.transfers_rows:
        return None
    # What asks other gateways is imported where there are any: it would be a fifth of this process.
    from tablegate.gateway.cluster.forward_token import ForwardTokenSigner
    from tablegate.gateway.cluster.transfers import GrpcTransfers

    return GrpcTransfers(ForwardTokenSigner(config.token_signer, SystemClock().now_ms).sign, config.credentials)


def replicator_main(config: ChildConfig) -> None:
    """Follow the changelogs until SIGTERM."""
    kafka_options = FreshOptions(config.kafka_options, config.kafka_secret_files)
    if config.kafka_aws_region is not None:
        kafka_options = kafka_options.also({TOKEN_OPTION: TokenSigner(config.kafka_aws_region)})
    replicator_config = ReplicatorConfig(
        files=config.files,
        store=Path(config.store),
        store_url=config.store_url,
        bootstrap=config.bootstrap,
        tables_topic=config.tables_topic,
        kafka_options=kafka_options,
        membership=config.membership,
        transfers=_transfers(config),
        snapshots=None if config.snapshots is None else open_files(config.snapshots.url),
    )
    workers = ReplicatorEnd(config.pipe_fds)
    measures = Measures()
    workers.answer(KafkaEnds(config.bootstrap, kafka_options).end_offsets)
    try:
        run_replicator(
            replicator_config,
            on_open=lambda: send_event(STORE_OPENED),
            notify=workers.publish,
            beat=_beat(config, measures, replicator_config.snapshot_problems),
            measures=measures,
        )
    except (StoreUnavailable, LogUnavailable) as error:
        _logger.error("the replicator cannot go on", extra={"reason": str(error)})
        send_event(FAILED, reason=str(error))
        sys.exit(1)
    # For good: the other gateway was started after this one, so it is the one that is meant to run.
    except NameInUse as error:
        _logger.error("the gateway ends", extra={"reason": str(error)})
        send_event(FAILED, reason=str(error), for_good=True)
        sys.exit(1)
