"""How a new generation of a table takes the place of an old one without a read that goes back in time.

    building ──► caught up (its topics get changes now) ──► published ──(the old one has ended)──► following
    ──(read as far as the old one)──► in place

Gateways serve the old generation until the new one, whose manifest is published when it has caught up, has read as far
as the old one's final marker says: all rows of the old one are made from source records before these offsets. The job
that keeps the old generation ends it when it sees the manifest; where none does, it is ended here.
"""

import time
from collections import deque
from collections.abc import Mapping
from enum import Enum

from confluent_kafka import Consumer, TopicPartition
from google.protobuf.message import DecodeError
from tablegate.jobs.errors import JobError
from tablegate.jobs.kafka.job_group import is_keeping, job_group
from tablegate.jobs.kafka.manifests import publish_manifest
from tablegate.jobs.kafka.markers import MARKER_KEY, Markers, SourceOffsets
from tablegate.jobs.kafka.topics import QUIET_CLIENT, KafkaAdmin, Topic, changelog_name
from tablegate.jobs.log import log
from tablegate.jobs.planning.plan import Plan
from tablegate.v1 import changelog_pb2

LAG_MAX = 1_000  # records: a generation so near to where its sources ended a moment ago has caught up
A_MOMENT_S = 10.0  # longer than a batch: a busy source is always ahead of the newest batch by more records than that
CHECK_EVERY_S = 1.0  # at what brokers are asked for


class HandoverPhase(Enum):
    """Where a new generation is."""

    BUILDING = "building"
    CAUGHT_UP = "caught up"
    PUBLISHED = "published"
    FOLLOWING = "following"
    IN_PLACE = "in place"


class GenerationHandover:
    """Takes one generation from its first record into its place. `is_rebuild`: another job may be keeping the old one.

    One thread uses it.
    """

    def __init__(self, plan: Plan, admin: KafkaAdmin, *, is_rebuild: bool) -> None:
        self._plan = plan
        self._admin = admin
        self._is_rebuild = is_rebuild
        self._old, self._old_generation = _old_changelog(plan, admin)
        self._ends: deque[tuple[float, SourceOffsets]] = deque()
        self._reader: Consumer | None = None
        self._old_end: SourceOffsets = {}
        self._next_check_s = 0.0
        self._since_s = time.monotonic()
        self.phase = (
            HandoverPhase.BUILDING
            if plan.older is not None
            else HandoverPhase.PUBLISHED
            if self._old
            else HandoverPhase.IN_PLACE
        )
        if self.phase is HandoverPhase.PUBLISHED:
            self._read_old()

    @property
    def is_building(self) -> bool:
        """Whether gateways know nothing of the generation yet."""
        return self.phase in (HandoverPhase.BUILDING, HandoverPhase.CAUGHT_UP)

    def poll(self, next_offsets: SourceOffsets) -> None:
        """Look how far the generation has read its sources, and take it one step on where it can go."""
        now_s = time.monotonic()
        if self.phase is HandoverPhase.IN_PLACE or now_s < self._next_check_s:
            return
        self._next_check_s = now_s + CHECK_EVERY_S
        has_caught_up = bool(next_offsets) and self.is_building and self._lag(next_offsets) <= LAG_MAX
        if self.phase is HandoverPhase.BUILDING and has_caught_up:
            self._enter(HandoverPhase.CAUGHT_UP)
        elif self.phase is HandoverPhase.CAUGHT_UP and has_caught_up:
            self._read_old()
            publish_manifest(self._plan.bootstrap, self._plan.manifest)
            self._enter(HandoverPhase.PUBLISHED)
        elif self.phase is HandoverPhase.PUBLISHED:
            end = self._end_of_old()
            if end is not None:
                self._old_end = end
                self._enter(HandoverPhase.FOLLOWING)
        elif self.phase is HandoverPhase.FOLLOWING and _has_read(next_offsets, self._old_end, self._plan):
            self._enter(HandoverPhase.IN_PLACE)

    def drop_abandoned(self) -> None:
        """Delete the changelogs of generations whose building was given up: no gateway has ever heard of them."""
        if self._plan.older is None:
            return
        published = self._plan.older.generation
        changelogs = self._admin.changelogs(self._plan.table.name)
        self._drop([name for number, name in changelogs.items() if published < number < self._plan.generation])

    def drop_old(self) -> None:
        """Delete the changelogs of older generations."""
        changelogs = self._admin.changelogs(self._plan.table.name)
        self._drop([name for number, name in changelogs.items() if number < self._plan.generation])

    def _drop(self, names: list[str]) -> None:
        if names:
            self._admin.delete(names)
            log("dropped", table=self._plan.table.name, topics=names)

    def close(self) -> None:
        """Let go of what a wait for the old generation holds."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _enter(self, phase: HandoverPhase) -> None:
        self.phase = phase
        self._since_s = time.monotonic()
        if phase is HandoverPhase.IN_PLACE:
            self.close()
        log("generation", table=self._plan.table.name, generation=self._plan.generation, phase=phase.value)

    def _lag(self, next_offsets: SourceOffsets) -> int:
        """Return how many records there were a moment ago that are not read yet."""
        now_s = time.monotonic()
        self._ends.append((now_s, source_ends(self._plan, self._admin)))
        while self._ends[0][0] < now_s - A_MOMENT_S:
            self._ends.popleft()
        _, ends = self._ends[0]
        return sum(
            max(end - next_offsets.get(topic, {}).get(partition, 0), 0)
            for topic, offsets in ends.items()
            for partition, end in offsets.items()
        )

    def _read_old(self) -> None:
        """Begin to wait for the old generation's final marker, wherever its job has written it already."""
        if self._old is None:
            return
        try:
            end = self._admin.end_offsets(self._old)[0]
            first = self._admin.first_offsets(self._old)[0]
        except JobError:
            if self._admin.find(self._old.name) is not None:
                raise
            self._old = None  # who built this generation has dropped it in this moment: it had come to its end
            return
        self._reader = Consumer(
            {"bootstrap.servers": self._plan.bootstrap, "group.id": "tablegate-job-ends", **QUIET_CLIENT}
        )
        # It is the last record of each partition; what came before it is not looked at.
        self._reader.assign([TopicPartition(self._old.name, 0, max(first, end - 1))])

    def _end_of_old(self) -> SourceOffsets | None:
        """Return the offsets of the old generation's final marker; None while it is awaited."""
        if self._old is None or self._reader is None:
            return {}
        for record in self._reader.consume(1_000, timeout=0):
            if record.error() is not None or record.key() != MARKER_KEY:
                continue
            try:
                marker = changelog_pb2.ProgressMarker.FromString(record.value() or b"")
            except DecodeError:
                continue
            if marker.final:
                return {source.topic: dict(source.next_offsets) for source in marker.sources}
        if self._is_rebuild and self._old_is_kept():
            return None  # only who writes its rows knows when they end; a job that was killed is soon out of the group
        if time.monotonic() - self._since_s < CHECK_EVERY_S:
            return None  # the reader has had no time yet
        if self._admin.find(self._old.name) is None:
            return {}  # somebody has deleted it: nobody can read its end any more
        ends = source_ends(self._plan, self._admin)
        end_generation(self._plan.bootstrap, self._old, self._old_generation, ends)
        return ends

    def _old_is_kept(self) -> bool:
        """Return whether a job keeps the old generation; one that has started with the new one waits for it."""
        name = self._plan.table.name
        has_job = bool(self._admin.members(job_group(name)))
        return has_job and not is_keeping(self._admin, name, self._plan.generation)


def _old_changelog(plan: Plan, admin: KafkaAdmin) -> tuple[Topic | None, int]:
    """Return the changelog of the newest older generation, and its number; None where there is none any more."""
    if plan.older is not None:
        return admin.find(plan.older.changelog_topic), plan.older.generation
    older = [number for number in admin.changelogs(plan.table.name) if number < plan.generation]
    return (admin.find(changelog_name(plan.table.name, older[-1])), older[-1]) if older else (None, 0)


def source_ends(plan: Plan, admin: KafkaAdmin) -> dict[str, dict[int, int]]:
    """Return the end offsets of the sources, by topic and partition."""
    return {side.topic.name: admin.end_offsets(side.topic) for side in plan.streamed.values()}


def end_generation(bootstrap: str, changelog: Topic, generation: int, ends: SourceOffsets) -> None:
    """Write the final marker of a generation that no job keeps any more; raise `JobError`."""
    markers = Markers(bootstrap, changelog, generation)
    markers.publish_final(ends)
    markers.close()


def _has_read(next_offsets: SourceOffsets, wanted: SourceOffsets, plan: Plan) -> bool:
    own: Mapping[str, Mapping[int, int]] = {side.topic.name: {} for side in plan.streamed.values()}
    return all(
        next_offsets.get(topic, {}).get(partition, 0) >= end
        for topic, offsets in wanted.items()
        if topic in own
        for partition, end in offsets.items()
    )
