"""The topic of gateways: what each of them announced last, and whether it is taken to live.

Time is that of the topic itself: the moments at which Kafka took its records, ours among them. So nothing depends on
clocks of gateways, and while Kafka is away nobody dies. When it comes back, the gap counts as `GAP_MAX_MS`: the others
have to be heard first. A gap that this gateway was not there for counts in full.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError
from tablegate.gateway.contract.placement import live_partitions, takes_part
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.kafka.compacted_topic import CompactedTopic
from tablegate.gateway.kafka.log import Clock, Log, Record
from tablegate.v1.cluster_pb2 import GatewayRecord, HeldTable
from tablegate.v1.status_pb2 import GatewayStatus
from typing_extensions import override

ALIVE_MS = 3_000  # six beats: a gateway that was not heard for longer is not asked
GONE_MS = 10_000  # longer than a restart takes: then others take its partitions
FORGOTTEN_MS = 3_600_000  # nobody waits for it any more: its record is removed from the topic
GAP_MAX_MS = 1_000

_logger = logging.getLogger("tablegate.gateway.replication")


class NameTaken(Exception):
    """Another gateway with our name has started after us; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Live:
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
    is_ready: bool  # to answer from the next one
    refused_generation: int

    def takes_part(self, generation: int) -> bool:
        """Return whether it is a candidate for partitions of a generation."""
        return takes_part(
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
class Known:
    """A gateway that is known. `beat_ms`: when Kafka took its last record; `heard_ms`: the topic's time then."""

    record: GatewayRecord
    beat_ms: int
    heard_ms: int
    announced: bytes
    has_left: bool = False
    tables: Mapping[str, Live] = field(init=False)

    def __post_init__(self) -> None:
        self.tables = {held.table: _live(held) for held in self.record.tables}


class GatewaysTopic(CompactedTopic):
    """Follows the topic of gateways for the gateway of a name and a start.

    `known`: gateways by name, ours as others hear it. `version` counts what they announce, but for beats that say the
    same. `heard_beat`: the newest record of this start that came back; 0 before the first.
    """

    def __init__(self, topic: str, *, gateway_id: str, start_id: int, log: Log, clock: Clock) -> None:
        super().__init__(topic, log=log, clock=clock)
        self.known: dict[str, Known] = {}
        self.version = 0
        self.heard_beat = 0
        self._gateway_id = gateway_id
        self._start_id = start_id
        self._earlier_starts: set[int] = set()
        self._now_ms = 0  # the topic's time
        self._newest_ms = 0  # of a record

    def alive(self) -> frozenset[str]:
        """Return the names of those that are taken to live, ours included."""
        since_ms = self._now_ms - ALIVE_MS
        alive = [name for name, known in self.known.items() if known.heard_ms >= since_ms and not known.has_left]
        return frozenset((*alive, self._gateway_id))

    def present(self) -> frozenset[str]:
        """Return the names of those that may be about to come back, where they do not live."""
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
        """Take those for known that lived when the process before this one last said so, until the topic is read."""
        for each in gateways:
            if each.alive and each.record.gateway_id != self._gateway_id:
                beat_ms = each.beat_time.ToMilliseconds()
                self.known[each.record.gateway_id] = Known(each.record, beat_ms, beat_ms, _announced(each.record))
                self._now_ms = self._newest_ms = max(self._newest_ms, beat_ms)

    @override
    def _take_record(self, record: Record) -> None:
        self._pass_time(record.time_ms)
        heard_ms = self._now_ms if self.heard_beat else record.time_ms
        name = (record.key or b"").decode("utf-8", errors="replace")
        known = self.known.get(name)
        if record.value is None:
            if known is not None and not known.has_left:
                known.has_left, known.heard_ms = True, heard_ms
                self.version += 1
            return
        try:
            announcement = GatewayRecord.FromString(record.value)
        except DecodeError:
            announcement = GatewayRecord()
        if not name or announcement.gateway_id != name:
            _logger.warning("skipped a record that is no gateway's", extra={"topic": self.source.topic})
            return
        if name == self._gateway_id:
            self._hear_ours(announcement)
        announced = _announced(announcement)
        if known is None or known.has_left or known.announced != announced:
            self.version += 1
            self.known[name] = Known(announcement, record.time_ms, heard_ms, announced)
        else:
            known.record, known.beat_ms, known.heard_ms = announcement, record.time_ms, heard_ms

    def _pass_time(self, time_ms: int) -> None:
        passed_ms = max(0, time_ms - self._newest_ms)
        self._newest_ms += passed_ms
        self._now_ms += min(passed_ms, GAP_MAX_MS) if self.heard_beat else passed_ms

    def _hear_ours(self, announcement: GatewayRecord) -> None:
        """Take note of a record under our name: ours, of a start before ours, or of one after it."""
        if announcement.start_id == self._start_id:
            self.heard_beat = max(self.heard_beat, announcement.beat)
        elif not self.heard_beat:
            self._earlier_starts.add(announcement.start_id)
        elif announcement.start_id not in self._earlier_starts:
            raise NameTaken(
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


def _live(held: HeldTable) -> Live:
    serving, building = held.serving, held.building
    return Live(
        replicas=held.replicas,
        generation=serving.generation,
        partitions=live_partitions(serving),
        partition_count=serving.partition_count,
        topic_id=serving.changelog_topic_id,
        next_generation=building.generation,
        next_partitions=live_partitions(building),
        is_ready=held.ready,
        refused_generation=held.refused_generation,
    )
