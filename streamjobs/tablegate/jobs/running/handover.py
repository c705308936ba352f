"""A new generation of a table replaces the old one, and no client ever reads an older row than it has read before.

    BUILDING ──► CAUGHT_UP ──► PUBLISHED ──► FOLLOWING ──► IN_PLACE

1. BUILDING: the generation reads its sources from the start, into a changelog that no gateway knows.
2. CAUGHT_UP: it lags at most `LAG_MAX` records behind where the sources ended `A_MOMENT_S` ago. From now on its output
   topics get changes; before, they would have got once more what the old generation has sent.
3. PUBLISHED: its manifest is in the topic `tables`. Gateways build it, and go on serving the old generation. The job
   that keeps the old generation sees the manifest, stops its queries and writes a final marker to the old changelog:
   all rows of the old generation are made from source records before these offsets. Where no job keeps the old
   generation, this job writes that marker.
4. FOLLOWING: the final marker is known. Gateways switch when the new changelog has reached its offsets, so that a read
   after the switch sees everything that a read before it saw.
5. IN_PLACE: the new generation has read that far. The old changelog stays until somebody drops it.

A job that starts in the middle of this finds its phase by what is in Kafka (`GenerationHandover.__init__`), so that a
crash at any point is only a delay. A table that has no older generation is IN_PLACE from the start.

Decision: docs/decisions/0013-final-markers-end-a-generation.md
"""

import time
from collections import deque
from collections.abc import Mapping
from enum import Enum

from confluent_kafka import Consumer, TopicPartition
from google.protobuf.message import DecodeError

from tablegate.gateway.contract.kafka_settings import settings_of
from tablegate.gateway.contract.types import MARKER_KEY
from tablegate.jobs.errors import JobError
from tablegate.jobs.kafka.job_group import is_keeping, job_group
from tablegate.jobs.kafka.manifests import publish_manifest
from tablegate.jobs.kafka.markers import Markers, SourceOffsets
from tablegate.jobs.kafka.topics import QUIET_CLIENT, KafkaAdmin, Topic, changelog_name, source_admin
from tablegate.jobs.log import log
from tablegate.jobs.planning.plan import Plan
from tablegate.jobs.running.new_topics import is_of_pattern
from tablegate.v1 import changelog_pb2

LAG_MAX = 1_000  # records; a generation that lags by no more has caught up
A_MOMENT_S = 10.0  # longer than a batch, as a busy source writes more than `LAG_MAX` records in one
CHECK_EVERY_S = 1.0  # each check asks the brokers for offsets


class HandoverPhase(Enum):
    """How far a new generation is on its way into the place of the old one; the module says what each phase means."""

    BUILDING = "building"
    CAUGHT_UP = "caught up"
    PUBLISHED = "published"
    FOLLOWING = "following"
    IN_PLACE = "in place"


TRANSITIONS = {
    HandoverPhase.BUILDING: HandoverPhase.CAUGHT_UP,
    HandoverPhase.CAUGHT_UP: HandoverPhase.PUBLISHED,
    HandoverPhase.PUBLISHED: HandoverPhase.FOLLOWING,
    HandoverPhase.FOLLOWING: HandoverPhase.IN_PLACE,
}
"""The phase that follows each phase. None is skipped and none comes again, but in a job that starts anew."""


class GenerationHandover:
    """Brings one generation from its first record into its place; one thread uses it.

    `is_rebuild`: another job may be keeping the old generation.
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

    def poll(self, next_offsets: SourceOffsets, *, is_idle: bool = False) -> None:
        """Move on by at most one phase. `next_offsets`: how far this generation has read its sources.

        `is_idle`: it has found nothing new in them, which counts where none of them is a topic that we know.
        """
        now_s = time.monotonic()
        if self.phase is HandoverPhase.IN_PLACE or now_s < self._next_check_s:
            return
        self._next_check_s = now_s + CHECK_EVERY_S
        has_begun = bool(next_offsets) if self._plan.streamed else is_idle
        has_caught_up = has_begun and self.is_building and self._lag(next_offsets) <= LAG_MAX
        if self.phase is HandoverPhase.BUILDING and has_caught_up:
            self._enter(HandoverPhase.CAUGHT_UP)
        elif self.phase is HandoverPhase.CAUGHT_UP and has_caught_up:
            # The wait begins before the manifest is out: the old job may write its final marker at once.
            self._read_old()
            publish_manifest(self._plan.bootstrap, self._plan.manifest)
            self._enter(HandoverPhase.PUBLISHED)
        elif self.phase is HandoverPhase.PUBLISHED:
            end = self._end_of_old()
            if end is not None:
                self._old_end = end
                self._enter(HandoverPhase.FOLLOWING)
        elif self.phase is HandoverPhase.FOLLOWING and has_read(next_offsets, self._old_end, self._plan):
            self._enter(HandoverPhase.IN_PLACE)

    def drop_abandoned(self) -> None:
        """Delete the changelogs of generations whose building was given up: no gateway has ever heard of them."""
        if self._plan.older is None:
            return
        published = self._plan.older.generation
        changelogs = self._admin.changelogs(self._plan.table.name)
        # A crash while a generation was being built leaves its changelog.
        names = [name for number, name in changelogs.items() if published < number < self._plan.generation]
        if names:
            self._admin.delete(names)
            log("dropped", table=self._plan.table.name, topics=names)

    def close(self) -> None:
        """Close the consumer that waits for the old generation's final marker."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _enter(self, phase: HandoverPhase) -> None:
        assert TRANSITIONS.get(self.phase) is phase, f"a generation goes from {self.phase} to {phase}"
        self.phase = phase
        self._since_s = time.monotonic()
        if phase is HandoverPhase.IN_PLACE:
            self.close()
        log("generation", table=self._plan.table.name, generation=self._plan.generation, phase=phase.value)

    def _lag(self, next_offsets: SourceOffsets) -> int:
        """Return how many records this generation lags behind where the sources ended `A_MOMENT_S` ago.

        Not behind where they end now: a busy source is always ahead of the newest batch.
        """
        now_s = time.monotonic()
        self._ends.append((now_s, source_ends(self._plan)))
        # The oldest entry of the last `A_MOMENT_S` stays first.
        while self._ends[0][0] < now_s - A_MOMENT_S:
            self._ends.popleft()
        _, ends = self._ends[0]
        return sum(
            max(end - next_offsets.get(topic, {}).get(partition, 0), 0)
            for topic, offsets in ends.items()
            for partition, end in offsets.items()
        )

    def _read_old(self) -> None:
        """Start reading the old changelog for its final marker, which may be there already."""
        if self._old is None:
            return
        try:
            end = self._admin.end_offsets(self._old)[0]
            first = self._admin.first_offsets(self._old)[0]
        except JobError:
            if self._admin.find(self._old.name) is not None:
                raise
            # The job that built this generation has just dropped the old changelog: it had come to its end.
            self._old = None
            return
        self._reader = Consumer(
            {**settings_of(self._plan.bootstrap).librdkafka(), "group.id": "tablegate-job-ends", **QUIET_CLIENT}
        )
        # The final marker is the last record of each partition. Behind it may be what Kafka writes when it gives up the
        # transaction of a job that was killed.
        self._reader.assign([TopicPartition(self._old.name, 0, max(first, end - 2))])

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
            # Only the job that writes the rows knows when they end. A job that was killed leaves the group in seconds.
            return None
        if time.monotonic() - self._since_s < CHECK_EVERY_S:
            return None  # the consumer has had no time to read yet
        if self._admin.find(self._old.name) is None:
            return {}  # somebody has deleted it, so its end cannot be read any more
        ends = source_ends(self._plan)
        end_generation(self._plan.bootstrap, self._old, self._old_generation, ends)
        return ends

    def _old_is_kept(self) -> bool:
        """Return whether a job keeps the old generation.

        A job that has started with this generation does not: it waits until it can keep it.
        """
        name = self._plan.table.name
        has_job = bool(self._admin.members(job_group(name)))
        return has_job and not is_keeping(self._admin, name, self._plan.generation)


def _old_changelog(plan: Plan, admin: KafkaAdmin) -> tuple[Topic | None, int]:
    """Return the changelog of the newest older generation, and its number; None where there is none any more."""
    if plan.older is not None:
        return admin.find(plan.older.changelog_topic), plan.older.generation
    older = [number for number in admin.changelogs(plan.table.name) if number < plan.generation]
    return (admin.find(changelog_name(plan.bootstrap, plan.table.name, older[-1])), older[-1]) if older else (None, 0)


def source_ends(plan: Plan) -> dict[str, dict[int, int]]:
    """Return the end offsets of the sources, by topic and partition."""
    admin = source_admin(plan.bootstrap)
    return {side.topic.name: admin.end_offsets(side.topic) for side in plan.streamed.values()}


def end_generation(bootstrap: str, changelog: Topic, generation: int, ends: SourceOffsets) -> None:
    """Write the final marker of a generation that no job writes to any more; raise `JobError`."""
    markers = Markers(bootstrap, changelog, generation)
    markers.publish_final(ends)
    markers.close()


def has_read(next_offsets: SourceOffsets, wanted: SourceOffsets, plan: Plan) -> bool:
    """Return whether the sources were read up to the offsets that are wanted."""
    # A source that the declaration reads no more never comes to an end: it would keep the old generation for ever.
    own: Mapping[str, Mapping[int, int]] = {side.topic.name: {} for side in plan.streamed.values()}
    return all(
        next_offsets.get(topic, {}).get(partition, 0) >= end
        for topic, offsets in wanted.items()
        if topic in own or is_of_pattern(plan.table, topic)
        for partition, end in offsets.items()
    )
