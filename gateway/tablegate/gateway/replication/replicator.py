"""The replicator: follows the changelogs of all tables into the store, and publishes how far it is.

One thread does it all, one step after the other; only questions about topics wait for brokers elsewhere. It is the
store's only writer. A step:

1. Fetch records, and wait for a first one a moment (`_fetch`). While a full disk refuses records, they are kept and
   nothing more is fetched.
2. Apply them (`_apply_fetched`): to the topic of manifests, to that of gateways, or to the partition they are of.
3. Let readers know of what was applied (`publish`).
4. Do what is due (`_keep_house`): manifests, topics, assignment, switches, announcements, removal of what is old. All
   of it is in small steps, as a live record may wait for it.
5. Store the status twice a second, and at once where a state has changed.

What goes wrong with one table is that table's: an exception that is not the store's sets it aside (`_apart`). The
others go on; what is here of it is answered, growing older; after a pause, which doubles each time, it is begun anew
from what is stored, as by a restart.

Decision: docs/decisions/0059-a-border-for-what-comes-from-topics.md
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from tablegate.gateway.cluster.assignment import SoleGateway
from tablegate.gateway.cluster.membership import Membership, own_id
from tablegate.gateway.contract.catalogue import Catalogue, Table
from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.kafka.log import Clock, Fetched, Log, TopicPartition
from tablegate.gateway.replication.cluster import Cluster
from tablegate.gateway.replication.indexing import BUILD_ROWS_MAX, IndexBuilding
from tablegate.gateway.replication.manifests import ManifestTopic
from tablegate.gateway.replication.partitions import GenerationReplica, PartitionReplica
from tablegate.gateway.replication.repair import REPAIR_GRACE_S, Repairing
from tablegate.gateway.replication.snapshots import SnapshotSource
from tablegate.gateway.replication.states import (
    ForbiddenMove,
    GenerationState,
    Move,
    OnMove,
    PartitionState,
    TableState,
)
from tablegate.gateway.replication.stored import next_name, partitions_of
from tablegate.gateway.replication.sweep import Sweep, SweepLimits
from tablegate.gateway.replication.table import TableReplicator
from tablegate.gateway.replication.transfers import OFFSETS_MIN, TransferClient, Transfers
from tablegate.gateway.stores.base import Phase, StoreFull, StoreUnavailable, StoreWriter
from tablegate.gateway.telemetry.measures import Measures
from tablegate.v1 import cluster_pb2, status_pb2
from tablegate.v1.cluster_pb2 import GenerationAnnouncement, TableAnnouncement
from tablegate.v1.status_pb2 import (
    GatewayStatus,
    GenerationStatus,
    GetStatusResponse,
    PartitionStatus,
    PoisonCount,
    TableStatus,
)

POLL_S = 0.1  # longest wait for a record: SIGTERM and answers of brokers wait no longer
BUSY_POLL_S = 0.002  # while rows are dropped or swept beside
ANSWER_POLL_S = 0.01  # while an answer of the brokers is awaited
STATUS_EVERY_S = 0.5
FULL_RETRY_S = 1.0
FULL_QUIET_S = 5.0  # without a refusal there is room again: what was refused is tried again within that
DROP_ROWS_MAX = 500  # at once: under a millisecond, as a live record may wait for it
FAULT_RETRY_S = 1.0  # a table that failed is begun anew after so long; doubles while it keeps failing
FAULT_RETRY_MAX_S = 60.0
FAULT_STEADY_S = 300.0  # a table that went on for so long since begins with the shortest pause again
TOMBSTONES_EVERY_S = 60.0
FAULT_CHARACTERS_MAX = 500  # of a fault's text, which is in each status
TOMBSTONES_MAX = 1_000  # a partition, each time
TOMBSTONE_AGE_MIN_MS = 86_400_000  # a stale record comes later than that at the latest

_logger = logging.getLogger("tablegate.gateway.replication")


class _Followed(NamedTuple):
    """A partition that is followed, its generation, and its table."""

    replica: PartitionReplica
    generation: GenerationReplica
    table: TableReplicator


@dataclass(slots=True)
class _FaultyTable:
    """A table that failed, and why. `is_aside`: it was not begun anew since. `retry_at_s` is of the monotonic clock."""

    fault: str
    retry_at_s: float
    pause_s: float
    is_aside: bool = True


class Replicator:
    """Follows every table of the catalogue, or this gateway's part of it where it is a member of a cluster.

    `step` over and over; then `close`. It calls `publish` after each step that applied records, and after each
    status that it stored: readers may see something new. `on_move` is called with each change of a state. `start_id`:
    drawn at random at each start. `repair_grace_s`: how long a stale record may be its key's last in a changelog.
    `index_rows_max`: rows at once of which entries of an index are added. `transfers`: by which other gateways are
    asked for rows; `snapshots`: files that rows come from where no gateway has them. None of both: they come from
    changelogs alone, as those of partitions with fewer offsets than `transfer_offsets_min`. `measures`: where what it
    does is counted.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        log: Log,
        store: StoreWriter,
        clock: Clock,
        tables_topic: str = "tables",
        membership: Membership | None = None,
        start_id: int = 0,
        repair_grace_s: float = REPAIR_GRACE_S,
        publish: Callable[[], None] = lambda: None,
        on_move: OnMove = lambda _: None,
        sweep_limits: SweepLimits | None = None,
        index_rows_max: int = BUILD_ROWS_MAX,
        transfers: TransferClient | None = None,
        transfer_offsets_min: int = OFFSETS_MIN,
        snapshots: SnapshotSource | None = None,
        measures: Measures | None = None,
    ) -> None:
        self._measures = measures = Measures() if measures is None else measures
        self._log = log
        self._logs = [log]  # and more where tables have one topic, which each log follows once
        self._store = store
        self._clock = clock
        self._publish = publish
        self._manifest_topic = ManifestTopic(tables_topic, tables=catalogue.tables, log=log, clock=clock)
        self._membership = membership
        self._cluster = None if membership is None else Cluster(membership, start_id=start_id, log=log, clock=clock)
        self._on_move = on_move
        self._is_drained = False
        self._has_news = False  # that the other gateways, and our workers, should know at once
        self._followed: dict[tuple[Log, TopicPartition], _Followed] | None = None  # None: to be collected anew
        assignment = self._cluster or SoleGateway()
        self._full = ""  # why a full store refuses; "" where it does not
        self._refused_at_s = 0.0
        caught_up_ms = self._demote(catalogue)
        self._garbage = self._unnamed_store_ids(catalogue)
        abandoned = set(self._garbage)

        def new_table(table: Table, caught_up_ms: int) -> TableReplicator:
            return TableReplicator(
                table,
                store=store,
                log=log,
                log_for=partial(self._log_for, table.name),
                clock=clock,
                assignment=assignment,
                caught_up_ms=caught_up_ms,
                abandoned=abandoned,
                on_move=self._record_move,
                new_transfers=partial(
                    Transfers,
                    transfers,
                    table=table,
                    store=store,
                    assignment=assignment,
                    clock=clock,
                    asked={},
                    snapshots=snapshots,
                    offsets_min=transfer_offsets_min,
                    measures=measures,
                ),
            )

        self._new_table = new_table
        self._tables = {
            name: new_table(table, caught_up_ms.get(name, 0)) for name, table in sorted(catalogue.tables.items())
        }
        self._faulty: dict[str, _FaultyTable] = {}
        self._fetched: list[tuple[_Followed | None, Fetched]] = []  # and not applied yet
        self._refusal = ""  # of a full store, in this step
        self._is_reachable: bool | None = None
        self._status_at_s = self._tombstones_at_s = 0.0
        self._sweep = Sweep(store, clock, sweep_limits)
        self._indexing = IndexBuilding(store, clock, rows_max=index_rows_max)
        self._repairing = Repairing(store=store, log=log, clock=clock, assignment=assignment, grace_s=repair_grace_s)
        self._manifest_topic.tick()

    def _demote(self, catalogue: Catalogue) -> dict[str, int]:
        """Stop serving what was served, until its barrier is passed; return when each table was last caught up."""
        with self._store.snapshot() as snapshot:
            status = GetStatusResponse.FromString(snapshot.status())
            states = [state for name in catalogue.tables if (state := snapshot.table(name)) is not None]
        if self._cluster is not None:
            self._cluster.remember(status.gateways)
        try:
            for state in states:
                for partition in partitions_of(state.manifest):
                    self._demote_partition(StoreId(state.store_id), partition)
        except StoreFull as error:
            # What is stored is served on, as by a gateway that never ended. With room, each partition is demoted by
            # the replica that follows it.
            self._log_full(str(error))
        return {table.table: table.caught_up_time.ToMilliseconds() for table in status.tables}

    def _demote_partition(self, store_id: StoreId, partition: Partition) -> None:
        with self._store.snapshot() as snapshot:
            position = snapshot.position(store_id, partition)
        if position is not None and position.phase is Phase.LIVE:
            # Nobody knows how long this gateway was away: what it has may be hours old until it has caught up.
            self._store.apply(store_id, partition, [], position.in_phase(Phase.CATCHING_UP))

    def _unnamed_store_ids(self, catalogue: Catalogue) -> list[StoreId]:
        """Return the store ids that no table of the contracts names: what a crash or another contract left."""
        named = set()
        with self._store.snapshot() as snapshot:
            for name in catalogue.tables:
                for state in (snapshot.table(name), snapshot.table(next_name(name))):
                    if state is not None:
                        named.add(state.store_id)
        return sorted(self._store.store_ids() - {StoreId(number) for number in named})

    def step(self, poll_s: float = POLL_S) -> None:
        """Fetch once, waiting up to `poll_s` for a record, apply it, and do what else is due.

        Raise `NameInUse` where another gateway of the cluster has our name.
        """
        if self._fetched:
            # A full disk has refused what was fetched. More would have to be kept in memory, so nothing is fetched
            # until there is room.
            self._clock.sleep(min(poll_s, FULL_RETRY_S))
        else:
            self._fetch(poll_s)
        has_records = bool(self._fetched)
        self._refusal = ""
        self._do(self._apply_fetched)
        if has_records:
            self._publish()
        self._keep_house()
        if self._refusal:
            self._log_full(self._refusal)
            for table in self._sound():
                table.note_full_store(self._refusal)
        else:
            self._log_not_full()
        self._put_status()

    def _do(self, work: Callable[[], None]) -> None:
        """Do something that writes to the store. Where a full one refuses, it is done at one of the next steps."""
        try:
            work()
        except StoreFull as error:
            self._refusal = str(error)

    def _fetch(self, poll_s: float) -> None:
        for log in self._logs:
            is_first = log is self._log
            timeout_s = self._timeout_s(poll_s) if is_first else 0.0
            fetched = log.fetch(records_max=self._store.changes_max, timeout_s=timeout_s)
            if fetched:
                followed = self._followed_partitions()
                pairs = [(followed.get((log, each.topic_partition)), each) for each in fetched]
                # The topics of manifests and of gateways are followed by the first one.
                self._fetched += [pair for pair in pairs if is_first or pair[0] is not None]

    def _timeout_s(self, poll_s: float) -> float:
        sound = self._sound()
        is_unclean = any(table.is_unclean or table.is_transferring for table in sound)
        if self._garbage or is_unclean or self._sweep.is_under_way or self._indexing.is_under_way:
            return min(BUSY_POLL_S, poll_s)
        # Answers of brokers come in another thread, and nothing wakes a fetch that waits for records: so it waits for a
        # shorter time.
        is_pending = self._manifest_topic.is_pending or any(table.is_pending for table in sound)
        is_pending = is_pending or (self._cluster is not None and self._cluster.is_pending)
        is_pending = is_pending or len(self._logs) > 1  # the others wait, too
        return min(ANSWER_POLL_S, poll_s) if is_pending else poll_s

    def _log_for(self, table_name: str, topic: str) -> Log:
        """Return a log by which nobody but this table follows a topic."""
        for log in self._logs:
            if topic not in self._topics_of(log, but=table_name):
                return log
        self._logs.append(self._log.another())
        return self._logs[-1]

    def _topics_of(self, log: Log, *, but: str) -> Iterator[str]:
        """Yield the topics that a log follows, for whomever but a table."""
        if log is self._log:
            yield self._manifest_topic.topic_partition.topic
            if self._cluster is not None:
                yield self._cluster.topic_partition.topic
        for name, table in self._tables.items():
            for generation in table.generations.followed() if name != but else ():
                if generation.log is log:
                    yield generation.manifest.changelog_topic

    def _followed_partitions(self) -> Mapping[tuple[Log, TopicPartition], _Followed]:
        if self._followed is None:
            self._followed = {
                (generation.log, replica.topic_partition): _Followed(replica, generation, table)
                for table in self._tables.values()
                for generation in (table.serving, table.building)  # of one topic of others, the latter fetches it
                if generation is not None
                for replica in generation.replicas
            }
        return self._followed

    def _apply_fetched(self) -> None:
        """Apply what was fetched; what a full disk refuses is kept, and what must wait for its topic."""
        waiting: list[tuple[_Followed | None, Fetched]] = []
        try:
            self._apply_each(waiting)
        finally:
            self._fetched = [*waiting, *self._fetched]

    def _apply_each(self, waiting: list[tuple[_Followed | None, Fetched]]) -> None:
        while self._fetched:
            followed, fetched = self._fetched[0]
            if followed is None and fetched.topic_partition == self._manifest_topic.topic_partition:
                self._manifest_topic.apply(fetched)
            elif (
                followed is None
                and self._cluster is not None
                and fetched.topic_partition == self._cluster.topic_partition
            ):
                self._cluster.apply(fetched)
            elif followed is not None and self._is_followed_on(followed):
                with self._apart(followed.table):
                    if followed.replica.is_lost_by(fetched):
                        followed.table.lost(followed.replica)
                    elif followed.table.may_miss_deletes(followed.generation, followed.generation.facts):
                        # This process stood still, or Kafka was away. Rows that were deleted meanwhile would be there
                        # beside what came after; the next description of the topic decides.
                        waiting.append((followed, fetched))
                    else:
                        self._apply_measured(followed, fetched)
            self._fetched.pop(0)

    def _apply_measured(self, followed: _Followed, fetched: Fetched) -> None:
        replica, labels, measures = followed.replica, (followed.table.table.name,), self._measures
        begin_s, rows_before = self._clock.monotonic_s(), replica.rows_applied
        replica.apply(fetched)
        measures.applies[labels].add(self._clock.monotonic_s() - begin_s)
        measures.applied_changes[labels] += replica.rows_applied - rows_before
        if fetched.records and replica.is_live:
            delay_ms = self._clock.now_ms() - fetched.records[-1].time_ms
            measures.apply_delays[labels].add(max(delay_ms, 0) / 1_000)

    def _is_followed_on(self, followed: _Followed) -> bool:
        # Nobody describes the topic of a frozen generation any more: what waited for that would wait for ever, and
        # nothing else is fetched meanwhile.
        return (
            followed.replica.is_fetched and not followed.generation.is_frozen and not self._is_set_aside(followed.table)
        )

    # What goes wrong with one table.

    @contextmanager
    def _apart(self, table: TableReplicator) -> Iterator[None]:
        """Set a table aside where something fails that is not the store: the other tables go on."""
        try:
            yield
        except (StoreUnavailable, ForbiddenMove):  # what the latter stops, and why, says decision 52
            raise
        except Exception as error:  # noqa: BLE001  whatever it is, the other tables have no part in it
            self._set_aside(table, error)

    def _is_set_aside(self, table: TableReplicator) -> bool:
        faulty = self._faulty.get(table.table.name)
        return faulty is not None and faulty.is_aside

    def _set_aside(self, table: TableReplicator, error: Exception) -> None:
        """Follow a table no more for a while. Its rows stay, and are answered: they only grow older."""
        name, now_s = table.table.name, self._clock.monotonic_s()
        before = self._faulty.get(name)
        is_again = before is not None and now_s < before.retry_at_s + FAULT_STEADY_S
        pause_s = min(2 * before.pause_s, FAULT_RETRY_MAX_S) if before is not None and is_again else FAULT_RETRY_S
        fault = f"{type(error).__name__}: {error}"[:FAULT_CHARACTERS_MAX]
        self._faulty[name] = _FaultyTable(fault, now_s + pause_s, pause_s)
        # Where it fails in the same way each time it is begun anew, once is enough.
        if before is None or not is_again or before.fault != fault:
            _logger.error(
                'table "%s" is set aside, by a mistake of ours: %s; what is here is served on, and it is tried again',
                name,
                fault,
                exc_info=error,
                extra={"table": name},
            )
        for generation in table.generations.followed():
            generation.transfers.stop_all()  # who sends would wait for ever, and so would what receives
            for replica in generation.replicas:
                generation.log.unfollow(replica.topic_partition)
        self._followed, self._has_news = None, True

    def _begin_anew(self) -> None:
        """Begin tables anew whose pause is over, from what is stored, as a restart would."""
        now_s = self._clock.monotonic_s()
        for name, faulty in self._faulty.items():
            if faulty.is_aside and now_s >= faulty.retry_at_s:
                old = self._tables[name]
                with self._apart(old):
                    new = self._new_table(old.table, old.caught_up_ms)
                    new.skipped = old.skipped
                    self._tables[name] = new
                    self._manifest_topic.repeat(name)
                    faulty.is_aside = False
                self._followed = None

    def _sound(self) -> list[TableReplicator]:
        """Return the tables that are not set aside."""
        if not self._faulty:  # asked for several times each step
            return list(self._tables.values())
        return [table for table in self._tables.values() if not self._is_set_aside(table)]

    def _record_move(self, move: Move) -> None:
        """Act on a change of a state: readers and the other gateways are to know at once."""
        if move.subject.partition is not None:
            self._followed = None
            if move.after is PartitionState.RESTORING:
                self._measures.restores[(move.subject.table,)] += 1
        # That a partition is assigned is nobody else's concern until it is followed.
        self._has_news |= move.after is not PartitionState.ASSIGNED
        self._on_move(move)

    def _keep_house(self) -> None:
        self._manifest_topic.tick()
        if self._cluster is not None:
            self._has_news |= self._cluster.tick()
        if self._cluster is None or self._cluster.is_ready:
            self._accept_manifests()
        self._do(self._begin_anew)
        # Each on its own: what a full store refuses one table holds up no other. And whatever it refuses, what is
        # stored is answered on, so the other gateways have to hear that we are alive.
        for table in self._sound():
            with self._apart(table):
                self._do(table.tick)
            self._garbage += table.generations.garbage
            table.generations.garbage.clear()
        self._announce()
        self._log_reachable()
        self._do(self._remove_old)

    def _remove_old(self) -> None:
        """Remove some of what nobody reads any more."""
        # A few rows with each step: to remove a whole generation at once would hold up live records for seconds.
        if self._garbage and self._store.drop(self._garbage[0], limit=DROP_ROWS_MAX):
            self._garbage.pop(0)
        self._sweep.step(self._sound(), apart=self._apart)
        self._indexing.step(self._sound(), apart=self._apart)
        self._repairing.step(self._sound())
        now_s = self._clock.monotonic_s()
        if now_s >= self._tombstones_at_s:
            self._tombstones_at_s = now_s + TOMBSTONES_EVERY_S
            self._drop_tombstones()

    def _announce(self) -> None:
        """Announce to the other gateways what is here."""
        cluster, membership = self._cluster, self._membership
        if cluster is None or membership is None:
            return
        cluster.announce(
            lambda: [
                each
                for name, table in self._tables.items()
                if (each := self._announcement(table, replicas=membership.replicas_wanted(name))) is not None
            ],
            at_once=self._has_news,
        )
        if cluster.is_draining and not self._is_drained and not self._followed_partitions():
            self._is_drained = True
            _logger.info("all partitions are with other gateways: this one may be stopped")

    def _announcement(self, table: TableReplicator, *, replicas: int) -> TableAnnouncement | None:
        """Return what is here of a table, set aside or not: it is answered from all the same."""
        with self._apart(table):
            return announcement(table, replicas=replicas)
        return None

    def drain(self) -> None:
        """Give all partitions to the other gateways of the cluster, and answer from them until those have them."""
        if self._cluster is None:
            _logger.warning("this gateway stands alone: there is nobody to give its partitions to")
        elif not self._cluster.is_draining:
            _logger.info("giving all partitions to the other gateways")
            self._cluster.drain()

    def _accept_manifests(self) -> None:
        """Give each table its new manifests, or why it has none."""
        topic = self._manifest_topic
        if not topic.is_read and topic.exists is not False:
            return
        for table in self._sound():
            name = table.table.name
            unread = topic.pop_unread(name)
            if unread or name not in topic.manifests:
                try:
                    with self._apart(table):
                        table.accept(unread, missing=topic.why_missing(name))
                except StoreFull as error:
                    topic.put_back(name, unread)
                    self._refusal = str(error)

    def _drop_tombstones(self) -> None:
        for table in self._sound():
            serving = table.serving
            if serving is None:
                continue
            # A tombstone guards its key against older records that come late. It may go when none can come any more.
            age_ms = max(serving.facts.delete_retention_ms, TOMBSTONE_AGE_MIN_MS)
            for replica in serving.replicas:
                self._store.drop_tombstones(
                    serving.store_id,
                    replica.partition,
                    before_ms=replica.passed_ms() - age_ms,
                    limit=TOMBSTONES_MAX,
                )

    def _log_reachable(self) -> None:
        """Log that Kafka answers no more, or answers again."""
        answered, trouble = self._manifest_topic.answered, self._log.trouble()
        if answered is None and not trouble:
            return
        reachable = bool(answered) and not trouble
        if reachable == self._is_reachable:
            return
        if not reachable:
            _logger.warning("%s; what is here is served on, growing older", trouble or "Kafka does not answer")
        elif self._is_reachable is False:
            _logger.info("Kafka answers again")
        self._is_reachable = reachable

    def _log_full(self, why: str) -> None:
        is_new, self._full, self._refused_at_s = not self._full, why, self._clock.monotonic_s()
        if is_new:
            _logger.error("%s; applying goes on when there is room", why)

    def _log_not_full(self) -> None:
        # Not each step writes: one without a refusal shows nothing yet.
        if self._full and not self._fetched and self._clock.monotonic_s() >= self._refused_at_s + FULL_QUIET_S:
            self._full = ""
            _logger.info("there is room again: applying goes on")

    def _put_status(self, *, at_once: bool = False) -> None:
        now_s = self._clock.monotonic_s()
        if not (at_once or self._has_news) and now_s < self._status_at_s:
            return
        self._status_at_s = now_s + STATUS_EVERY_S
        self._has_news = False
        status = gateway_status(
            self._table_statuses(now_s),
            now_ms=self._clock.now_ms(),
            kafka_reachable=bool(self._is_reachable),
            gateway_id=own_id(self._membership),
            gateways=() if self._cluster is None else self._cluster.statuses(),
            gateways_poison={} if self._cluster is None else self._cluster.poison,
        )
        try:
            self._store.set_status(status.SerializeToString())
            self._publish()  # for what else has changed: this comes often enough
        except StoreFull as error:
            self._log_full(str(error))

    def _table_statuses(self, now_s: float) -> Iterator[TableStatus]:
        for name, table in self._tables.items():
            status = TableStatus(table=name)
            with self._apart(table):
                status = _table_status(table, now_s)
            # Manifests that were set aside have spoiled no row: they are named and not counted among the records.
            status.poison.extend(poison_counts(table.skipped.reasons + self._manifest_topic.poison_of[name]))
            if not (status.serving or status.problem):
                status.problem = self._full
            if self._is_set_aside(table):
                status.fault = self._faulty[name].fault
            yield status

    def close(self) -> None:
        """Store how far it is, and leave the cluster. The log and the store are the caller's to close."""
        if self._cluster is not None:
            self._cluster.leave()
        self._put_status(at_once=True)


PHASES = {
    Phase.RESTORING: cluster_pb2.REPLICA_PHASE_RESTORING,
    Phase.LIVE: cluster_pb2.REPLICA_PHASE_LIVE,
    Phase.CATCHING_UP: cluster_pb2.REPLICA_PHASE_CATCHING_UP,
}
TABLE_STATES: Mapping[TableState, Any] = {
    state: status_pb2.TableState.Value(f"TABLE_STATE_{state.name}") for state in TableState
}
GENERATION_STATES: Mapping[GenerationState, Any] = {
    state: status_pb2.GenerationState.Value(f"GENERATION_STATE_{state.name}") for state in GenerationState
}
PARTITION_STATES: Mapping[PartitionState, Any] = {
    state: status_pb2.PartitionState.Value(f"PARTITION_STATE_{state.name}") for state in PartitionState
}


def announcement(table: TableReplicator, *, replicas: int) -> TableAnnouncement:
    """Return what is here of a table, but for partitions that are being revoked; `replicas` are wanted of each."""
    announced = TableAnnouncement(
        table=table.table.name, replicas=replicas, refused_generation=table.refused_generation
    )
    if table.serving is not None:
        announced.serving.CopyFrom(_announced(table.serving))
    if table.building is not None:
        announced.building.CopyFrom(_announced(table.building))
    return announced


def _announced(generation: GenerationReplica) -> GenerationAnnouncement:
    replicas = [replica for replica in generation.replicas if replica.state is not PartitionState.REVOKING]
    return GenerationAnnouncement(
        generation=generation.manifest.generation,
        partitions=[replica.partition for replica in replicas],
        phases=[PHASES[replica.position.phase] for replica in replicas],
        next_offsets=[replica.position.next_offset for replica in replicas],
        partition_count=generation.manifest.partition_count,
        changelog_topic_id=generation.manifest.changelog_topic_id,
    )


def gateway_status(
    tables: Iterable[TableStatus],
    *,
    now_ms: int,
    kafka_reachable: bool,
    gateway_id: str = "",
    gateways: Sequence[GatewayStatus] = (),
    gateways_poison: Mapping[str, int] = MappingProxyType({}),
) -> GetStatusResponse:
    """Return the status of a gateway; one that stands alone has no `gateway_id`."""
    status = GetStatusResponse(kafka_reachable=kafka_reachable, gateway_id=gateway_id, gateways=gateways)
    status.tables.extend(tables)
    status.gateways_poison.extend(poison_counts(gateways_poison))
    status.beat_time.FromMilliseconds(now_ms)
    return status


def poison_counts(reasons: Mapping[str, int]) -> list[PoisonCount]:
    """Return the counts of what was set aside, by reason."""
    return [PoisonCount(reason=reason, count=count) for reason, count in sorted(reasons.items())]


def _table_status(table: TableReplicator, now_s: float) -> TableStatus:
    status = TableStatus(
        table=table.table.name,
        problem=table.problem,
        poison_records=table.skipped.total,
        stale_records=table.skipped.stale,
        conflicting_records=table.skipped.conflicting,
        pending_repairs=table.repairs.pending,
        repaired_records=table.repairs.repaired,
        repair_problem=table.repairs.problem,
        state=TABLE_STATES[table.state],
        generations=_generation_statuses(table),
    )
    if table.caught_up_ms:
        status.caught_up_time.FromMilliseconds(table.caught_up_ms)
    if table.generations.manifest is not None:
        status.manifest.CopyFrom(table.generations.manifest)
    serving = table.serving
    if serving is not None:
        status.serving = serving.is_live
        status.partitions.extend(_partition_status(replica) for replica in serving.replicas)
    restoring = table.building or table.serving
    if restoring is not None and not restoring.is_live:
        status.restore_rows_per_second = restoring.progress.rows_per_second(now_s)
        status.restore_seconds_left = restoring.progress.seconds_left(now_s)
    return status


def _generation_statuses(table: TableReplicator) -> list[GenerationStatus]:
    """Return the generations that are followed, discovered or refused, the oldest first."""
    known = {
        each.manifest.generation: GenerationStatus(
            state=GENERATION_STATES[each.machine.state],
            waits_for=table.generations.unmet if each is table.building else "",
            assigned=sorted(each.pending),
        )
        for each in table.generations.followed()
    }
    if table.manifest is not None and table.manifest.generation not in known:
        state = GENERATION_STATES[GenerationState.DISCOVERED]
        # Its topic is not described yet, or others answer first: it is known and not followed.
        known[table.manifest.generation] = GenerationStatus(state=state, waits_for=table.problem)
    if table.refused_generation:
        state = GENERATION_STATES[GenerationState.REFUSED]
        known[table.refused_generation] = GenerationStatus(state=state, waits_for=table.problem)
    for number, status in known.items():
        status.generation = number
    return [known[number] for number in sorted(known)]


def _partition_status(replica: PartitionReplica) -> PartitionStatus:
    status = PartitionStatus(
        partition=replica.partition,
        phase=PHASES[replica.position.phase],
        next_offset=replica.position.next_offset,
        end_offset=replica.end_offset,
        state=PARTITION_STATES[replica.state],
    )
    status.as_of_time.FromMilliseconds(replica.position.as_of_ms)
    if replica.marker_ms:
        status.marker_time.FromMilliseconds(replica.marker_ms)
    return status
