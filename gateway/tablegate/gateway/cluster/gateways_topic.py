"""The topic of gateways: what each of them announced last, and whether it is alive.

Each gateway writes a record under its name twice a second, a beat. Whoever was not heard for `ALIVE_MS` is not asked
any more; after `GONE_MS` its partitions are given to others, and after `FORGOTTEN_MS` its record is removed.

Time is that of the topic itself: what passes between the moments at which Kafka appended one record and the next, ours
among them. So nothing depends on the clocks of gateways, and while Kafka is away nobody dies. When it comes back, the
gap counts as `GAP_MAX_MS`: the others have to be heard first; and so does a clock of Kafka that jumps ahead. One that
jumps back counts as nothing, and time goes on from there. A gap that this gateway was not there for counts in full.

Decision: docs/decisions/0032-kafka-clock-for-membership.md
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from typing_extensions import override

from tablegate.gateway.contract.placement import is_candidate, live_partitions
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.kafka.border import known_time_ms, read_gateway_record
from tablegate.gateway.kafka.compacted_topic import CompactedTopic
from tablegate.gateway.kafka.log import Clock, Log, Record
from tablegate.v1.cluster_pb2 import GatewayRecord, TableAnnouncement
from tablegate.v1.status_pb2 import GatewayStatus

ALIVE_MS = 3_000  # six beats: a gateway that was not heard for longer is not asked
GONE_MS = 10_000  # longer than a restart takes: then others take its partitions
FORGOTTEN_MS = 3_600_000  # nobody waits for it any more: its record is removed from the topic
GAP_MAX_MS = 1_000


class NameInUse(Exception):
    """Another gateway with our name has started after us; the message says what to do."""


@dataclass(frozen=True, slots=True)
class AnnouncedTable:
    """What a gateway has LIVE of a table: partitions of the generation that it answers from, and of the next one.

    `partition_count` and `topic_id` are of the generation that it answers from. 0 is no generation.
    """

    replicas: int
    generation: int
    partitions: frozenset[Partition]
    partition_count: int
    topic_id: str
    next_generation: int
    next_partitions: frozenset[Partition]
    refused_generation: int

    def is_candidate(self, generation: int) -> bool:
        """Return whether it is a candidate for partitions of a generation."""
        return is_candidate(
            generation,
            serving=self.generation,
            building=self.next_generation,
            refused=self.refused_generation,
        )

    def has(self, partition: Partition, generation: int, *, is_served: bool) -> bool:
        """Return whether it has a partition in that generation or a newer one; with `is_served`, to answer from."""
        if partition in self.partitions and self.generation >= generation:
            return True
        return not is_served and partition in self.next_partitions and self.next_generation >= generation


@dataclass(slots=True)
class KnownGateway:
    """A gateway that is known. `beat_ms`: when Kafka appended its last record; `heard_ms`: the topic's time then."""

    record: GatewayRecord
    beat_ms: int
    heard_ms: int
    announced: bytes
    has_left: bool = False
    tables: Mapping[str, AnnouncedTable] = field(init=False)

    def __post_init__(self) -> None:
        self.tables = {table.table: _announced_table(table) for table in self.record.tables}


class GatewaysTopic(CompactedTopic):
    """Follows the topic of gateways for the gateway of a name and a start.

    `known`: gateways by name, ours as others hear it. `version` counts what they announce, but for beats that say the
    same. `heard_beat`: the newest record of this start that came back; 0 before the first.
    """

    def __init__(self, topic: str, *, gateway_id: str, start_id: int, log: Log, clock: Clock) -> None:
        super().__init__(topic, log=log, clock=clock)
        self.known: dict[str, KnownGateway] = {}
        self.version = 0
        self.heard_beat = 0
        self._gateway_id = gateway_id
        self._start_id = start_id
        self._earlier_starts: set[int] = set()
        self._now_ms = 0  # the topic's time: what Kafka's clock said at first, and what has passed since
        self._appended_ms: int | None = None  # when the record before was, by Kafka's clock

    def alive(self) -> frozenset[str]:
        """Return the names of the gateways that are alive, ours included."""
        since_ms = self._now_ms - ALIVE_MS
        alive = [name for name, known in self.known.items() if known.heard_ms >= since_ms and not known.has_left]
        return frozenset((*alive, self._gateway_id))

    def present(self) -> frozenset[str]:
        """Return the names of the gateways that are alive, or may come back soon."""
        since_ms = self._now_ms - GONE_MS
        return frozenset(name for name, known in self.known.items() if known.heard_ms >= since_ms)

    def forgotten(self) -> list[str]:
        """Forget those that were not heard for very long; return their names."""
        until_ms = self._now_ms - FORGOTTEN_MS
        names = [name for name, known in self.known.items() if known.heard_ms < until_ms and name != self._gateway_id]
        for name in names:
            del self.known[name]
        return names

    def remember(self, gateways: Iterable[GatewayStatus]) -> None:
        """Start from the gateways that were alive when the process before this one ended, until the topic is read."""
        for each in gateways:
            if each.alive and each.record.gateway_id != self._gateway_id:
                beat_ms = each.beat_time.ToMilliseconds()
                self.known[each.record.gateway_id] = KnownGateway(
                    each.record, beat_ms, beat_ms, _announced(each.record)
                )
                self._now_ms = max(self._now_ms, beat_ms)

    @override
    def _start_over(self) -> None:
        self._appended_ms = None

    @override
    def _receive(self, record: Record) -> None:
        time_ms = known_time_ms(record.time_ms)
        self._advance(time_ms)
        heard_ms = self._now_ms
        name = (record.key or b"").decode("utf-8", errors="replace")
        known = self.known.get(name)
        if record.value is None:
            if known is not None and not known.has_left:
                known.has_left, known.heard_ms = True, heard_ms
                self.version += 1
            return
        announcement = read_gateway_record(name, record.value)
        if name == self._gateway_id:
            self._receive_ours(announcement)
        announced = _announced(announcement)
        if known is None or known.has_left or known.announced != announced:
            self.version += 1
            self.known[name] = KnownGateway(announcement, time_ms, heard_ms, announced)
        else:
            known.record, known.beat_ms, known.heard_ms = announcement, time_ms, heard_ms

    def _advance(self, time_ms: int) -> None:
        before_ms, self._appended_ms = self._appended_ms, time_ms
        if before_ms is not None:
            # From one record to the next, and not from the newest: else a clock that was put back by an hour would
            # stand still for an hour, and whoever dies meanwhile would be asked on.
            passed_ms = max(0, time_ms - before_ms)
            self._now_ms += min(passed_ms, GAP_MAX_MS) if self.heard_beat else passed_ms
        elif not self.heard_beat:
            self._now_ms = time_ms

    def _receive_ours(self, announcement: GatewayRecord) -> None:
        """Receive a record under our name: of this start, of one before it, or of one after it."""
        if announcement.start_id == self._start_id:
            self.heard_beat = max(self.heard_beat, announcement.beat)
        elif not self.heard_beat:
            self._earlier_starts.add(announcement.start_id)
        elif announcement.start_id not in self._earlier_starts:
            raise NameInUse(
                f'another gateway named "{self._gateway_id}" has started, at {announcement.endpoint}; '
                "this one ends: give each its own --gateway-id and its own --data"
            )


def _announced(record: GatewayRecord) -> bytes:
    """Return what a record says, without what each beat says anew."""
    kept = GatewayRecord()
    kept.CopyFrom(record)
    kept.beat = 0
    for table in kept.tables:
        for name in ("serving", "building"):
            if table.HasField(name):
                getattr(table, name).ClearField("next_offsets")
    return kept.SerializeToString(deterministic=True)


def _announced_table(table: TableAnnouncement) -> AnnouncedTable:
    serving, building = table.serving, table.building
    return AnnouncedTable(
        replicas=table.replicas,
        generation=serving.generation,
        partitions=live_partitions(serving),
        partition_count=serving.partition_count,
        topic_id=serving.changelog_topic_id,
        next_generation=building.generation,
        next_partitions=live_partitions(building),
        refused_generation=table.refused_generation,
    )
