"""A table of the contract, and what is followed for it.

    no manifest ──► looking at its topic ──► serving ◄──(restored)── building the next generation
         ▲                  │                   │
         └──────────────────┴── a problem ◄─────┘      a problem ends by a good manifest, or a good look

`serving` is what the store tells the workers of; each of its partitions is answered once it is LIVE. A new generation
is built beside it, and takes its place when it is restored. A changelog that lost records, or was made anew, is not
served on: the table starts over from an empty store id.
"""

import logging
from collections.abc import Mapping
from concurrent.futures import Future

from gateway.contract.catalogue import Table
from gateway.contract.types import StoreId
from gateway.internal.v1.store_pb2 import TableState
from gateway.replication.following import Following, partitions, stored_position
from gateway.replication.log import Clock, Log, LogUnavailable, TopicFacts
from gateway.replication.manifests import follows_on, problem_of
from gateway.replication.replica import Replica, SkippedRecords
from gateway.stores.base import StoreWriter
from gateway.v1.changelog_pb2 import Manifest

LOOK_EVERY_S = 5.0  # how soon a deleted or truncated topic is noticed
LOOK_AGAIN_S = 1.0  # after one that failed
REPORT_EVERY_S = 5.0  # progress of a restore, in the log
OLD_STORE_PART = 0.5  # of delete.retention.ms: an older store may have missed deletes

_logger = logging.getLogger("gateway.replication")


def next_name(table_name: str) -> str:
    """Return the name under which the store keeps the generation that is being built; no table has such a name."""
    return f"{table_name}/next"


class FollowedTable:
    """Follows one table. `caught_up_ms`: when its store was last known to have its whole changelog; 0 = never."""

    def __init__(self, table: Table, *, store: StoreWriter, log: Log, clock: Clock, caught_up_ms: int) -> None:
        self.table = table
        self.skipped = SkippedRecords(table.name)
        self.serving: Following | None = None
        self.building: Following | None = None
        self.problem = ""
        self.garbage: list[StoreId] = []
        self.caught_up_ms = caught_up_ms
        self._store = store
        self._log = log
        self._clock = clock
        self._manifest: Manifest | None = None
        self._look: Future[TopicFacts | None] | None = None
        self._look_at_s = 0.0
        self._look_asked_ms = 0
        self._positions_at_look: dict[Replica, int] = {}
        self._report_at_s = 0.0

    # What the topic of manifests says.

    def offer(self, manifest: Manifest | None, *, missing: str) -> None:
        """Take the newest manifest; `missing` says why there is none."""
        if manifest is None:
            self._manifest = None
            self._refuse(missing)
            return
        if self._manifest is not None and manifest.generation < self._manifest.generation:
            self._log_line(logging.WARNING, f"ignored a manifest of the older generation {manifest.generation}")
            return
        problem = problem_of(self.table, manifest)
        if problem is not None:
            self._decline(manifest, problem)
            return
        self._manifest = manifest
        current = self.building or self.serving
        if current is not None and follows_on(current.manifest, manifest):
            self._update(current, manifest)
        else:
            self._look_at_s = 0.0
            self._look = None

    def _decline(self, manifest: Manifest, problem: str) -> None:
        """Serve the old generation on beside a new one that we cannot follow; else nothing."""
        if self.serving is not None and manifest.generation > self.serving.manifest.generation:
            self._log_line(logging.WARNING, f"{problem}; generation {self.serving.manifest.generation} is served on")
            return
        self._manifest = None
        self._refuse(problem)

    def _update(self, current: Following, manifest: Manifest) -> None:
        current.update(manifest)
        self._keep(current, self.table.name if current is self.serving else next_name(self.table.name))

    def _refuse(self, problem: str) -> None:
        """Serve nothing, and say why. Rows stay: a good manifest or look goes on with them."""
        if problem == self.problem:
            return
        self.problem = problem
        self._log_line(logging.WARNING, problem)
        self._stop()
        state = self._stored(self.table.name) or TableState()
        kept = TableState(store_id=state.store_id, problem=problem)
        if state.HasField("manifest"):
            kept.manifest.CopyFrom(state.manifest)
        self._store.put_table(self.table.name, kept)

    def _stop(self) -> None:
        for following in (self.serving, self.building):
            if following is not None:
                following.stop()
        self.serving = self.building = None

    # What its topic says.

    @property
    def is_looking(self) -> bool:
        """Return whether an answer of the brokers is awaited."""
        return self._look is not None

    def tick(self) -> None:
        """Ask for the topic when it is time, take the answer, switch generations, report progress."""
        now_s = self._clock.monotonic_s()
        if self._manifest is not None:
            if self._look is None and now_s >= self._look_at_s:
                self._look = self._log.look(self._manifest.changelog_topic)
                self._look_asked_ms = self._clock.now_ms()
                self._positions_at_look = {replica: replica.position.next_offset for replica in self._replicas()}
            if self._look is not None and self._look.done():
                answer, self._look = self._look, None
                self._look_at_s = now_s + LOOK_AGAIN_S
                self._take(self._manifest, answer)
        if self.building is not None and self.building.is_live:
            self._switch(self.building)
        for following in (self.serving, self.building):
            if following is not None:
                self._report(following, now_s)

    def _take(self, manifest: Manifest, answer: "Future[TopicFacts | None]") -> None:
        try:
            facts = answer.result()
        except LogUnavailable:
            return
        problem = _topic_problem(self.table, manifest, facts)
        if problem is not None or facts is None:
            self._refuse(problem or "")
            return
        following = self.building or self.serving
        if following is None or not follows_on(following.manifest, manifest):
            self._open(manifest, facts)
        elif self._is_too_old(facts):
            self._start_over(manifest, facts, "it was away for too long, and may have missed deletes")
        elif any(self._was_beyond(replica, end) for replica, end in _ends(following, facts)):
            self._start_over(manifest, facts, "its changelog lost records that were applied")
        else:
            following.note_facts(facts)
            # To be in touch is not enough: a store that lags, or that a full disk holds up, may be missing deletes.
            if all(replica.position.next_offset >= end for replica, end in _ends(following, facts)):
                self.caught_up_ms = self._look_asked_ms
        self._look_at_s = self._clock.monotonic_s() + LOOK_EVERY_S

    def follows(self, replica: Replica) -> bool:
        """Return whether the replica is still one of this table's."""
        return any(replica is one for one in self._replicas())

    def _replicas(self) -> list[Replica]:
        followings = [following for following in (self.serving, self.building) if following is not None]
        return [replica for following in followings for replica in following.replicas]

    def _was_beyond(self, replica: Replica, end_offset: int) -> bool:
        """Return whether the replica was beyond the end when that was asked for; meanwhile both have moved on."""
        return self._positions_at_look.get(replica, 0) > end_offset

    def lost(self, replica: Replica) -> None:
        """Take notice that the log has not the offset that `replica` is at."""
        following = next((f for f in (self.serving, self.building) if f is not None and replica in f.replicas), None)
        if following is not None:
            self._log_line(
                logging.WARNING,
                f"changelog has no offset {replica.position.next_offset}: restoring from the start",
                partition=replica.partition,
            )
            self._forget(following)
            self._look_at_s = 0.0

    def _forget(self, following: Following) -> None:
        """Drop what is followed; the next look starts over."""
        following.stop()
        self.garbage.append(following.store_id)
        if following is self.building:
            self.building = None
            self._store.put_table(next_name(self.table.name), TableState())
        else:
            self.serving = None
            self._store.put_table(self.table.name, TableState(problem=_RESTORING.format(self.table.name)))

    def _is_too_old(self, facts: TopicFacts) -> bool:
        return self._clock.now_ms() - self.caught_up_ms > facts.delete_retention_ms * OLD_STORE_PART

    def _start_over(self, manifest: Manifest, facts: TopicFacts, why: str) -> None:
        self._log_line(logging.WARNING, f"restoring from the start: {why}")
        self._stop()
        self._open(manifest, facts, from_start=True)

    def _open(self, manifest: Manifest, facts: TopicFacts, *, from_start: bool = False) -> None:
        """Follow a manifest: on top of stored rows where they are of its changelog, beside an older generation."""
        names = (self.table.name, next_name(self.table.name))
        states = {name: state for name in names if (state := self._stored(name)) is not None and state.store_id}
        beside = self.serving is not None and self.serving.manifest.generation < manifest.generation and not from_start
        if not beside:
            self._stop()
        elif self.building is not None:
            self._forget(self.building)
            states.pop(names[1], None)
        store_id = None if from_start else self._usable(manifest, facts, states)
        following = Following(
            table=self.table,
            manifest=manifest,
            store_id=self._store.new_store_id() if store_id is None else store_id,
            facts=facts,
            store=self._store,
            log=self._log,
            skipped=self.skipped,
            started_s=self._clock.monotonic_s(),
        )
        if store_id is None:
            self.caught_up_ms = self._clock.now_ms()  # nothing is stored yet that could be too old
        self._report_at_s = self._clock.monotonic_s() + REPORT_EVERY_S
        self._log_line(
            logging.INFO,
            "following its changelog" if store_id is not None else "restoring from its changelog",
            topic=manifest.changelog_topic,
            generation=manifest.generation,
            offsets_to_go=following.offsets_left,
        )
        if beside:
            self.building = following
            self._keep(following, names[1])
        else:
            self.serving = following
            self._keep(following, names[0])
            self._store.put_table(names[1], TableState())
            used = {state.store_id for state in states.values()} - {following.store_id}
            self.garbage += [StoreId(number) for number in sorted(used)]
        self.problem = ""

    def _usable(self, manifest: Manifest, facts: TopicFacts, states: Mapping[str, TableState]) -> StoreId | None:
        """Return the store id that has rows of this changelog and can be followed on from; None if there is none."""
        for state in states.values():
            if not (state.HasField("manifest") and follows_on(state.manifest, manifest)):
                continue
            store_id = StoreId(state.store_id)
            positions = [stored_position(self._store, store_id, partition) for partition in partitions(manifest)]
            bounds = zip(positions, facts.start_offsets, facts.end_offsets, strict=True)
            if any(
                position is not None and not start <= position.next_offset <= end for position, start, end in bounds
            ):
                self._log_line(logging.WARNING, "its stored position is not in the changelog: restoring from the start")
            elif any(positions) and self._is_too_old(facts):
                self._log_line(
                    logging.WARNING, "its store is too old, and may have missed deletes: restoring from the start"
                )
            else:
                return store_id
        return None

    def _switch(self, building: Following) -> None:
        """Serve the new generation, which is restored, in place of the old one, which is dropped."""
        if self.serving is not None:
            self.serving.stop()
            self.garbage.append(self.serving.store_id)
        self._keep(building, self.table.name)
        self._store.put_table(next_name(self.table.name), TableState())
        self.serving, self.building = building, None
        self._log_line(logging.INFO, "switched to its new generation", generation=building.manifest.generation)

    def _stored(self, name: str) -> TableState | None:
        with self._store.snapshot() as snapshot:
            return snapshot.table(name)

    def _keep(self, following: Following, name: str) -> None:
        self._store.put_table(name, TableState(store_id=following.store_id, manifest=following.manifest))

    # What it says itself.

    def _report(self, following: Following, now_s: float) -> None:
        if following.restored_s is not None:
            return
        if following.is_live:
            following.restored_s = now_s
            self._log_line(
                logging.INFO,
                "restored" if following.rows_applied else "up to date",
                rows=following.rows_applied,
                seconds=round(now_s - following.started_s, 1),
                rows_per_second=round(following.rows_per_second(now_s)),
                generation=following.manifest.generation,
            )
        elif now_s >= self._report_at_s:
            self._report_at_s = now_s + REPORT_EVERY_S
            self._log_line(
                logging.INFO,
                "restoring",
                rows=following.rows_applied,
                offsets_to_go=following.offsets_left,
                rows_per_second=round(following.rows_per_second(now_s)),
                seconds_left=round(following.seconds_left(now_s)),
            )

    def _log_line(self, level: int, message: str, **more: object) -> None:
        named = message if message.startswith("table ") else f'table "{self.table.name}": {message}'
        _logger.log(level, named, extra={"table": self.table.name, **more})


_RESTORING = 'table "{}" is restored from the start, as its changelog lost records'


def _ends(following: Following, facts: TopicFacts) -> "zip[tuple[Replica, int]]":
    return zip(following.replicas, facts.end_offsets, strict=True)


def _topic_problem(table: Table, manifest: Manifest, facts: TopicFacts | None) -> str | None:
    """Return why the changelog is not the one that the manifest describes."""
    start = f'table "{table.name}": changelog topic "{manifest.changelog_topic}"'
    if facts is None:
        return f"{start} does not exist; start the table's job"
    if not _same_topic_id(facts.topic_id, manifest.changelog_topic_id):
        return f"{start} was made anew (id {facts.topic_id}, not {manifest.changelog_topic_id}); start the table's job"
    if facts.partition_count != manifest.partition_count:
        return (
            f"{start} has {facts.partition_count} partitions, its manifest says {manifest.partition_count}; "
            "raise the table's generation and start its job"
        )
    return None


def _same_topic_id(one: str, other: str) -> bool:
    """Compare two spellings of base64: Java's, librdkafka's."""
    url_safe = str.maketrans("+/", "-_")
    return one.translate(url_safe) == other.translate(url_safe)
