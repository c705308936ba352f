"""This gateway as a member of a cluster: which partitions it is to have, and what it announces.

There is no leader. All gateways read one topic in one order, and place partitions by what they have read: so they come
to the same assignment, some sooner than others. What keeps that safe:

    who comes    follows nothing until it was settled for three beats, so that it has heard all others
    who goes     keeps a partition until all that are to have it have announced it LIVE
    both at once a gateway announces what it revokes, and removes it only once it has read that announcement: of two
                 that rely on each other, the one whose record comes second in the topic reads the other's first

Placement itself is a plain function (`contract/placement.py`); what a gateway has heard of the others is in
`GatewaysTopic`.

Decision: docs/decisions/0039-revoke-after-hearing.md
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from operator import attrgetter
from typing import NamedTuple

from typing_extensions import override

from tablegate.gateway.cluster.assignment import Assignment, Holder, OlderGeneration
from tablegate.gateway.cluster.gateways_topic import AnnouncedTable, GatewaysTopic, KnownGateway
from tablegate.gateway.cluster.membership import Membership
from tablegate.gateway.contract.placement import Candidate, wanted, wanted_of_all
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.kafka.log import Clock, Fetched, Log, LogUnavailable, TopicPartition
from tablegate.v1.cluster_pb2 import GatewayRecord, TableAnnouncement
from tablegate.v1.status_pb2 import GatewayStatus

BEAT_S = 0.5
EVALUATE_EVERY_S = 0.05  # how often what was heard is evaluated
SETTLE_S = 1.5  # after its own first beat came back: three beats, so that all who are alive were heard
UNHEARD_S = 5.0  # after that it goes on, though its beats do not come back
CREATE_RETRY_S = 5.0

_logger = logging.getLogger("tablegate.gateway.replication")


class _Placement(NamedTuple):
    """Who is to have each partition of a table, and which of them this gateway is to have."""

    candidates: tuple[Candidate, ...]
    replicas: int
    assigned: Sequence[frozenset[str]]
    ours: frozenset[Partition]


class Cluster(Assignment):
    """Assigns partitions by what the gateways announce. `start_id` is drawn anew at each start. One thread."""

    is_alone = False

    def __init__(self, membership: Membership, *, start_id: int, log: Log, clock: Clock) -> None:
        self._membership = membership
        self._log = log
        self._clock = clock
        self._topic = GatewaysTopic(
            membership.topic, gateway_id=membership.gateway_id, start_id=start_id, log=log, clock=clock
        )
        self._record = GatewayRecord(
            gateway_id=membership.gateway_id, endpoint=membership.endpoint, zone=membership.zone, start_id=start_id
        )
        self._creating: Future[None] | None = None
        self._create_at_s = 0.0
        self._read_s: float | None = None
        self._heard_s: float | None = None
        self._is_settled = False
        self._announced_s = -math.inf
        self._is_urgent = False
        self._evaluate_at_s = 0.0
        self._version = 0
        self._view: object = None
        self._heard = 0
        self._alive = self._topic.alive()
        self._candidates: tuple[str, ...] = ()
        self._placements: dict[tuple[str, int, int], _Placement] = {}
        self._refused: dict[str, int] = {}  # generations by table, as announced last
        self._settling: dict[tuple[str, int], float] = {}  # what was refused before, until when others hear of it

    # What the others announce.

    @property
    def topic_partition(self) -> TopicPartition:
        """Return the topic of gateways."""
        return self._topic.topic_partition

    def remember(self, gateways: Iterable[GatewayStatus]) -> None:
        """Start from what the process before this one knew of the others, until the topic is read."""
        self._topic.remember(gateways)
        self._alive = self._topic.alive()

    @property
    def is_pending(self) -> bool:
        """Return whether an answer of the brokers is awaited."""
        return self._topic.is_pending or self._creating is not None

    @property
    def poison(self) -> Mapping[str, int]:
        """Return how many records of the topic were set aside, by reason."""
        return self._topic.poison

    def apply(self, fetched: Fetched) -> None:
        """Receive what the gateways announced; raise `NameInUse`."""
        self._topic.apply(fetched)

    def tick(self) -> bool:
        """Create the topic where there is none, evaluate what was heard; return whether readers should know at once."""
        self._topic.tick()
        self._create_topic()
        now_s = self._clock.monotonic_s()
        # A hundred gateways announce twice a second: what they say is evaluated together, not one by one.
        if not self._topic.is_read or now_s < self._evaluate_at_s:
            return False
        self._evaluate_at_s = now_s + EVALUATE_EVERY_S
        self._settle(now_s)
        for name in self._topic.forgotten():
            self._log.append(self._membership.topic, name.encode(), None)
        self._alive = self._topic.alive()
        self._candidates = self._find_candidates()
        self._settling = {place: until_s for place, until_s in self._settling.items() if now_s < until_s}
        view = self._topic.version, self._alive, self._candidates, self._is_settled, tuple(self._settling)
        has_news = view != self._view
        if has_news or self._heard != self._topic.heard_beat:
            self._view, self._heard = view, self._topic.heard_beat
            self._version += 1
        return has_news

    def _find_candidates(self) -> tuple[str, ...]:
        known, present = self._topic.known, self._topic.present()
        # One that drains takes nothing more. That it still answers is known by what it announces, not by being a
        # candidate.
        names = {name for name in present if not known[name].record.draining} - {self._membership.gateway_id}
        return tuple(sorted(names if self.is_draining else names | {self._membership.gateway_id}))

    def _create_topic(self) -> None:
        """Create the topic where there is none."""
        now_s = self._clock.monotonic_s()
        if self._creating is None:
            if self._topic.exists is False and now_s >= self._create_at_s:
                self._create_at_s = now_s + CREATE_RETRY_S
                self._creating = self._log.create(self._membership.topic)
            return
        if not self._creating.done():
            return
        answer, self._creating = self._creating, None
        try:
            answer.result()
        except LogUnavailable as error:
            hint = "create it, compacted, of 1 partition, with message.timestamp.type=LogAppendTime"
            _logger.warning('topic "%s" cannot be created: %s; %s', self._membership.topic, error, hint)
        else:
            self._topic.describe_at_once()

    def _settle(self, now_s: float) -> None:
        if self._read_s is None:
            self._read_s = now_s
        if self._heard_s is None and self._topic.heard_beat:
            self._heard_s = now_s
        # Whoever has just started, or come back, would otherwise place partitions without gateways that it has not
        # heard yet, and drop what they rely on.
        is_heard = self._heard_s is not None and now_s >= self._heard_s + SETTLE_S
        self._is_settled = self._is_settled or is_heard or now_s >= self._read_s + UNHEARD_S

    # What this gateway is to have.

    @property
    @override
    def version(self) -> int:
        return self._version

    @property
    @override
    def is_ready(self) -> bool:
        return self._read_s is not None

    @override
    def assigned(self, table: str, partition_count: int, *, generation: int) -> frozenset[Partition] | None:
        # Where all refused a manifest that was put right, each is the only candidate until it hears the others.
        is_settling = self._refused.get(table) == generation or (table, generation) in self._settling
        if not self._is_settled or is_settling:
            return None
        return self._place(table, partition_count, generation).ours

    def _place(self, table: str, partition_count: int, generation: int) -> _Placement:
        counts = set()
        candidates = []
        for name in self._candidates:
            if name == self._membership.gateway_id:
                candidates.append(Candidate(name, self._membership.zone))
                counts.add(self._membership.replicas_wanted(table))
                continue
            known = self._topic.known[name]
            live = known.tables.get(table)
            if live is not None and live.is_candidate(generation):
                candidates.append(Candidate(name, known.record.zone))
                counts.add(live.replicas)
        # Where candidates have different settings, all go by the largest; one that drains is no candidate.
        replicas = 0 if 0 in counts else max(counts, default=0)
        placement = self._placements.get((table, partition_count, generation))
        # To place ten thousand partitions takes a third of a second, so it is done when the candidates change and not
        # with every beat (decision 44).
        if placement is not None and placement.candidates == tuple(candidates) and placement.replicas == replicas:
            return placement
        assigned = [
            frozenset([each.gateway_id for each in best])
            for best in wanted_of_all(table, partition_count, candidates, replicas)
        ]
        ours = frozenset(
            Partition(number) for number, names in enumerate(assigned) if self._membership.gateway_id in names
        )
        placement = _Placement(tuple(candidates), replicas, assigned, ours)
        self._placements[table, partition_count, generation] = placement
        return placement

    @override
    def are_others_live(
        self, table: str, partition: Partition, *, partition_count: int, generation: int, is_served: bool
    ) -> bool:
        if not self._is_settled:
            return False
        names = self._place(table, partition_count, generation).assigned[partition]
        # One that is dead answers nothing, though it is still a candidate until it is given up: its partitions stay
        # here meanwhile.
        if not names or self._membership.gateway_id in names or not names <= self._alive:
            return False
        tables = [self._topic.known[name].tables.get(table) for name in names]
        return all(live is not None and live.has(partition, generation, is_served=is_served) for live in tables)

    @override
    def is_owner(self, table: str, partition: Partition, *, partition_count: int, generation: int) -> bool:
        if not self._is_settled:
            return False
        placement = self._place(table, partition_count, generation)
        for each in wanted(table, partition, placement.candidates, placement.replicas):
            if each.gateway_id == self._membership.gateway_id:
                return True
            known = self._topic.known[each.gateway_id].tables.get(table) if each.gateway_id in self._alive else None
            if known is not None and known.has(partition, generation, is_served=False):
                return False
        return True

    @override
    def older_generation(self, table: str, *, new: int) -> OlderGeneration | None:
        others = [
            (known.record.draining, live)
            for known, live in self._others(table)
            if 0 < live.generation < new and live.is_candidate(new)
        ]
        sized = [
            live for _, live in others if live.partition_count
        ]  # gateways of an earlier version do not announce it
        if not sized:
            return None
        newest = max(sized, key=attrgetter("generation"))
        answered: set[Partition] = set()
        for is_draining, live in others:
            if live.generation == newest.generation and not is_draining:
                answered |= live.partitions
        is_whole = len(answered) == newest.partition_count
        return OlderGeneration(newest.generation, newest.partition_count, newest.topic_id, is_whole)

    @override
    def is_switch_due(self, table: str, *, new: int) -> bool:
        return any(live.generation >= new for _, live in self._others(table))

    @override
    def newest_generation(self, table: str) -> int:
        return max((max(live.generation, live.next_generation) for _, live in self._others(table)), default=0)

    @override
    def holders(self, table: str, partition: Partition, *, generation: int) -> Sequence[Holder]:
        found = [
            Holder(known.record.gateway_id, known.record.endpoint)
            for known, live in self._others(table)
            if live.generation == generation and partition in live.partitions
        ]
        return sorted(found)

    def _others(self, table: str) -> list[tuple[KnownGateway, AnnouncedTable]]:
        """Return what the other gateways that are alive announce of a table."""
        names = self._alive - {self._membership.gateway_id}
        found = [known for name, known in self._topic.known.items() if name in names]
        return [(known, known.tables[table]) for known in found if table in known.tables]

    @property
    @override
    def next_beat(self) -> int:
        return self._record.beat + 1

    @property
    @override
    def heard_beat(self) -> int:
        return self._topic.heard_beat

    @override
    def unmet_requirement(self, table: str, partition_count: int, *, old: int, new: int, has_part: bool) -> str | None:
        alive = [known for name, known in self._topic.known.items() if name in self._alive]
        tables = [live for known in alive if (live := known.tables.get(table)) is not None]
        covered: set[Partition] = set()
        for live in tables:
            covered |= live.partitions if live.generation >= new else frozenset()
            # Live in the new generation counts whether it is answered from yet or not: gateways switch one after the
            # other.
            covered |= live.next_partitions if live.next_generation >= new else frozenset()
        if len(covered) < partition_count:
            return f"{partition_count - len(covered)} of its partitions are live on no gateway yet"
        answers_old = any(live.generation == old and live.partitions for live in tables)
        if not has_part and answers_old and not any(live.generation >= new for live in tables):
            return f"the gateways that have generation {old} answer from it still"
        return None

    # What this gateway announces.

    def drain(self) -> None:
        """Give all partitions to the other gateways, from now on."""
        self._record.draining = True
        self._evaluate_at_s = 0.0

    @property
    def is_draining(self) -> bool:
        """Return whether this gateway is to give its partitions away."""
        return self._record.draining

    def announce(self, tables: Callable[[], Iterable[TableAnnouncement]], *, at_once: bool) -> None:
        """Announce what is here when it is time; sooner with `at_once`. Nothing is announced before all was read."""
        now_s = self._clock.monotonic_s()
        self._is_urgent = self._is_urgent or at_once
        if self._read_s is None or now_s < self._announced_s + (EVALUATE_EVERY_S if self._is_urgent else BEAT_S):
            return
        self._announced_s, self._is_urgent = now_s, False
        self._record.beat += 1
        del self._record.tables[:]
        self._record.tables.extend(tables())
        for each in self._record.tables:
            # Who stops refusing is a candidate at once, here. The others hear of it with the next beat, so it gains
            # nothing before (decision 43).
            refused = self._refused.get(each.table, 0)
            if refused not in (0, each.refused_generation):
                self._settling[each.table, refused] = now_s + SETTLE_S
            self._refused[each.table] = each.refused_generation
        self._log.append(self._membership.topic, self._membership.gateway_id.encode(), self._record.SerializeToString())

    def leave(self) -> None:
        """Announce that this gateway is gone."""
        if self._record.beat:
            self._log.append(self._membership.topic, self._membership.gateway_id.encode(), None)

    def statuses(self) -> list[GatewayStatus]:
        """Return what is known of each gateway, by name; of this one, what it announced last."""
        ours = self._membership.gateway_id
        statuses = []
        for name in sorted({*self._topic.known, ours}):
            known = self._topic.known.get(name)
            if name != ours and (known is None or known.has_left):
                continue
            status = GatewayStatus(
                record=self._record if name == ours or known is None else known.record, alive=name in self._alive
            )
            if known is not None:
                status.beat_time.FromMilliseconds(known.beat_ms)
            statuses.append(status)
        return statuses
