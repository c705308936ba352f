"""The process of a gateway that writes snapshot files, so that nobody else waits for a disk or an object store.

It reads the store as a worker does: some rows in a snapshot of milliseconds, the next ones a while later. What comes of
it is what another gateway would be given (`transfers.py`), and it is used in the same way.

Of a partition, the gateway that is asked first writes. For a moment two may think so: each writes a file of its own,
and both are good.

Decision: docs/decisions/0162-a-process-writes-snapshot-files.md
"""

import logging
import math
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tablegate.gateway.cluster.directory import Directory
from tablegate.gateway.cluster.membership import own_id
from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.contract.tokens import TokenSigner
from tablegate.gateway.contract.types import Offset, Partition
from tablegate.gateway.kafka.log import Clock, SystemClock
from tablegate.gateway.query.errors import PartitionUnavailable
from tablegate.gateway.query.serving import TableAccess
from tablegate.gateway.server.child import PROCESS_FILE_EVERY_S, ChildConfig, Numbers, ProcessFile
from tablegate.gateway.server.transfers import PART_BYTES, Outgoing
from tablegate.gateway.stores.base import StoreReader, StoreUnavailable
from tablegate.gateway.stores.lmdb import layout
from tablegate.gateway.stores.notifier import Notifier
from tablegate.gateway.stores.opening import open_for_reading
from tablegate.gateway.stores.snapshots.files import FilesUnavailable, SnapshotFiles
from tablegate.gateway.stores.snapshots.format import Encoder, SnapshotName, folder_of, new_name, snapshots_of
from tablegate.gateway.stores.snapshots.opening import open_files
from tablegate.gateway.telemetry.measures import Measures
from tablegate.internal.v1.transfer_pb2 import TransferRequest

OFFSETS_MIN = 20_000  # of a changelog: what is shorter is read at once
BUSY_PART = 0.25  # of a core, at most: the rest is for those who ask
CHECK_S = 5.0  # how often it is looked for what is due
END_S = 1.0  # after a signal; the parent kills it later (`SNAPSHOTS_STOP_S`)
RETRY_S = 60.0  # after files could not be written

_logger = logging.getLogger("tablegate.gateway.snapshots")


class _Due(NamedTuple):
    """A partition whose newest snapshot file is too old.

    `failed_ms`: when it could not be written last; `time_ms`: when the newest was written. 0: never.
    """

    failed_ms: int
    time_ms: int
    access: TableAccess
    request: TransferRequest


class Newest(NamedTuple):
    """The newest snapshot file of a partition: when it was written, 0 where there is none, and from where on it lacks
    changes.
    """

    time_ms: int
    next_offset: Offset


_NONE = Newest(0, Offset(0))


class SnapshotWriter:
    """Writes snapshot files of what `store` has, in rounds. One thread.

    `newest`: the newest file by table and partition, of those that are this gateway's to write. `problem`: why files
    cannot be read or written since, "" where they can. `draw`: gives so many random bits.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        files: SnapshotFiles,
        *,
        every_s: float,
        keep: int,
        clock: Clock | None = None,
        signer: TokenSigner,
        offsets_min: int = OFFSETS_MIN,
        part_bytes: int = PART_BYTES,
        measures: Measures | None = None,
        draw: Callable[[int], int] = secrets.randbits,
    ) -> None:
        self.newest: dict[tuple[str, Partition], Newest] = {}
        self.problem = ""
        self._catalogue = catalogue
        self._files = files
        self._every_ms = round(every_s * 1_000)
        self._keep = keep
        self._clock = SystemClock() if clock is None else clock
        self._now_ms = self._clock.now_ms
        self._signer = signer
        self._offsets_min = offsets_min
        self._part_bytes = part_bytes
        self._measures = Measures() if measures is None else measures
        self._draw = draw
        # What a table that is read for clients tells and measures, nobody asks here.
        self._notifier, self._unread_measures = Notifier(), Measures()
        self._directory = Directory()
        self._listed: dict[str, dict[Partition, Newest]] = {}  # by folder, as listed last
        self._failed_ms: dict[tuple[str, Partition], int] = {}  # those alone that were not written since
        self._retry_at_s = -math.inf  # of the monotonic clock: that of the day may be why they could not be written
        self._keeps_old = False

    def round(self, store: StoreReader) -> Iterator[None]:
        """Write what is due, and yield after each part of the work; raise `StoreUnavailable`.

        Whoever wants no more of it closes the iterator: then the file that is being written is none.
        """
        if self._clock.monotonic_s() < self._retry_at_s:
            return
        try:
            # One that can never be written, as it is too long for the disk, comes after those that can, of any table.
            for folder, due in sorted(self._due(store).items(), key=lambda of: min(each[:2] for each in of[1])):
                self._list(folder)
                for each in due:
                    partition = Partition(each.request.partition)
                    self.newest[each.request.table, partition] = self._newest_of(folder, partition)
                yield
                is_tidy = False
                for each in sorted(due, key=lambda each: each[:2]):
                    if not self._is_due(folder, Partition(each.request.partition)):
                        continue
                    if (yield from self._write(store, each)) and not is_tidy:
                        is_tidy = True
                        yield from self._remove_old(partial(self._tidy, each.request.table, folder))
            self._note_files_work()
        except FilesUnavailable as error:
            self._retry_at_s = self._clock.monotonic_s() + RETRY_S
            if not self.problem:
                _logger.warning("no snapshot file is written: %s; it is tried again", error)
            self.problem = str(error) or type(error).__name__

    def _note_files_work(self) -> None:
        if self.problem:
            self.problem = ""
            _logger.info("snapshot files are written again")

    # What is to be written.

    def _due(self, store: StoreReader) -> Mapping[str, Sequence[_Due]]:
        """Return what is due by what is known of the files, by folder."""
        found: dict[str, list[_Due]] = {}
        newest: dict[tuple[str, Partition], Newest] = {}
        for request, access in self._own(store):
            folder, partition = folder_of(request), Partition(request.partition)
            of_this = self._newest_of(folder, partition)
            if folder in self._listed:  # else nothing is known yet
                newest[request.table, partition] = of_this
            if self._is_due(folder, partition):
                failed_ms = self._failed_ms.get((request.table, partition), 0)
                found.setdefault(folder, []).append(_Due(failed_ms, of_this.time_ms, access, request))
        self.newest = newest
        return found

    def _is_due(self, folder: str, partition: Partition) -> bool:
        now_ms, time_ms = self._now_ms(), self._newest_of(folder, partition).time_ms
        # The clock of who wrote it may have been wrong, and that time be years away.
        return not now_ms - self._every_ms < time_ms <= now_ms + self._every_ms

    def _newest_of(self, folder: str, partition: Partition) -> Newest:
        return self._listed.get(folder, {}).get(partition, _NONE)

    def _own(self, store: StoreReader) -> Iterator[tuple[TransferRequest, TableAccess]]:
        """Yield the partitions that are this gateway's to write."""
        with store.snapshot() as snapshot:
            self._directory.update(snapshot.status())
            for name, table in self._catalogue.tables.items():
                access = TableAccess(
                    table, store, self._signer, self._notifier, self._now_ms, measures=self._unread_measures
                )
                try:
                    served = access.served(snapshot)
                except PartitionUnavailable:
                    continue
                manifest = served.manifest
                if manifest.atomic:  # parts of several snapshots would mix what belongs together
                    continue
                for partition in served.partitions:
                    position = access.live_position(snapshot, served, partition)
                    is_long = position is not None and position.next_offset >= self._offsets_min
                    if is_long and self._is_owner(name, partition, served.generation):
                        yield (
                            TransferRequest(
                                table=name,
                                partition=partition,
                                generation=served.generation,
                                changelog_topic_id=manifest.changelog_topic_id,
                                row_digest=served.state.row_digest,
                                retention_us=served.state.retention_us,
                                format=layout.FORMAT_VERSION,
                            ),
                            access,
                        )

    def _is_owner(self, table: str, partition: Partition, generation: int) -> bool:
        own = self._directory.own_id
        replicas = self._directory.replicas(table, partition, generation) if own else ()
        return not own or (bool(replicas) and replicas[0].gateway_id == own)

    def _list(self, folder: str) -> None:
        """Remember the newest file of each partition in a folder."""
        newest: dict[Partition, Newest] = {}
        for each in snapshots_of(self._files.list(folder)):
            if each.folder == folder:
                one = Newest(each.time_ms, each.next_offset)
                newest[each.partition] = max(one, newest.get(each.partition, _NONE))
        self._listed[folder] = newest

    # Writing and removing.

    def _write(self, store: StoreReader, due: _Due) -> Generator[None, None, bool]:
        """Write a snapshot file of a partition, unless it goes meanwhile; return whether it is there."""
        request, time_ms, begun_s = due.request, self._now_ms(), time.monotonic()
        partition = Partition(request.partition)
        outgoing, encoder = Outgoing(due.access, request, partition, self._part_bytes), Encoder()
        result = ""
        try:
            first = outgoing.begin(store)
            next_offset = layout.unpack_position(first.first_position)[0].next_offset
            name = new_name(request, time_ms=time_ms, next_offset=next_offset, draw=self._draw(64))
            file = self._files.create(name)
            try:
                file.write(encoder.begin(request) + encoder.part(first))
                while not outgoing.is_done:
                    yield
                    if not store.is_current():
                        raise PartitionUnavailable(request.table, partition, "the store was made anew")
                    file.write(encoder.part(outgoing.next(store)))
                file.write(encoder.end())
                file.commit()
            finally:
                file.discard()
            result = "done"
        except PartitionUnavailable as error:
            result = "failed"
            _logger.info("no snapshot file was written: %s", error.text, extra={"table": request.table})
            return False
        except FilesUnavailable:
            result = "failed"
            self._failed_ms[request.table, partition] = time_ms
            raise
        finally:
            if result:  # else it is to stop
                self._measures.snapshots[request.table, "written", result] += 1
            self._measures.snapshot_rows[request.table, "written"] += outgoing.rows
        newest = Newest(time_ms, next_offset)
        self._listed.setdefault(folder_of(request), {})[partition] = self.newest[request.table, partition] = newest
        _logger.info(
            'table "%s": a snapshot file of partition %d is written',
            request.table,
            partition,
            extra={
                "table": request.table,
                "snapshot": name,
                "rows": outgoing.rows,
                "seconds": round(time.monotonic() - begun_s, 1),
            },
        )
        self._failed_ms.pop((request.table, partition), None)
        yield from self._remove_old(partial(self._keep_newest, folder_of(request), partition))
        return True

    def _remove_old(self, remove: Callable[[], None]) -> Iterator[None]:
        yield
        try:
            remove()
        except FilesUnavailable as error:  # as where who writes may not remove, and a rule of the bucket does
            if not self._keeps_old:
                _logger.warning("old snapshot files are not removed: %s", error)
            self._keeps_old = True

    def _keep_newest(self, folder: str, partition: Partition) -> None:
        found = snapshots_of(self._files.list(f"{folder}/{partition}"))
        ours = [each for each in found if (each.folder, each.partition) == (folder, partition)]
        self._remove(sorted(ours, key=self._age_ms)[self._keep :])

    def _tidy(self, table: str, folder: str) -> None:
        """Remove what nobody writes any more of a table whose files are in `folder` now."""
        self._files.tidy(table)
        kept_ms = self._keep * self._every_ms
        others = [each for each in snapshots_of(self._files.list(table)) if each.folder != folder]
        # Of another generation, or by another contract, which some gateways may still have.
        self._remove(each for each in others if self._age_ms(each) > kept_ms)

    def _age_ms(self, snapshot: SnapshotName) -> float:
        # One that is still to come was written by a wrong clock, and would be the newest for ever.
        now_ms = self._now_ms()
        return math.inf if snapshot.time_ms > now_ms + self._every_ms else now_ms - snapshot.time_ms

    def _remove(self, snapshots: Iterable[SnapshotName]) -> None:
        for each in snapshots:
            self._files.remove(each.file.name)
            self._keeps_old = False


def snapshots_main(config: ChildConfig) -> None:
    """Write snapshot files until SIGTERM."""
    stop = _stop_on_signals()
    settings = config.snapshots
    assert settings is not None, "this process is started for them"
    measures = Measures()
    writer = SnapshotWriter(
        bind(config.files),
        open_files(settings.url),
        every_s=settings.every_s,
        keep=settings.keep,
        signer=config.token_signer,
        measures=measures,
    )
    file = ProcessFile.of(config)
    measures.add(file.before())
    log_settings, written_s = config.watched_log_settings(), -math.inf

    def beat() -> None:
        nonlocal written_s
        now_s = time.monotonic()
        if now_s >= written_s + PROCESS_FILE_EVERY_S:
            written_s = now_s
            file.write({**measures.numbers(), **numbers_of(writer)})
            log_settings.refresh()

    while not stop.is_set():
        try:
            with closing(open_for_reading(Path(config.store), None, own_id(config.membership))) as store:
                write_paced(writer.round(store), stop, beat)
        except StoreUnavailable as error:
            _logger.debug("the store is away", extra={"reason": str(error)})
        beat()
        stop.wait(CHECK_S)


def _stop_on_signals() -> threading.Event:
    """Return what SIGTERM and SIGINT set; a while after them, end the process.

    Python's handlers wait for a call of an object store, which may take a minute. The wakeup descriptor does not, nor
    does a thread. What is being written is no file, however this process ends.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)

    def end() -> None:
        os.read(woken, 1)
        time.sleep(END_S)
        os._exit(0)

    threading.Thread(target=end, name="end", daemon=True).start()
    return stop


def write_paced(work: Iterator[None], stop: threading.Event, beat: Callable[[], None]) -> None:
    """Do work, with pauses that leave the cores to others, until it is done or to stop."""
    with closing(work):  # type: ignore[type-var]
        begun_s = time.thread_time()
        for _ in work:
            beat()
            used_s = time.thread_time() - begun_s
            if stop.wait(used_s / BUSY_PART - used_s):
                return
            begun_s = time.thread_time()


def numbers_of(writer: SnapshotWriter) -> Numbers:
    """Return what a process file says of a writer; of files: table, partition, milliseconds since 1970, next offset."""
    return {
        "snapshot_files": [(table, partition, *newest) for (table, partition), newest in writer.newest.items()],
        "snapshots_problem": writer.problem,
    }
