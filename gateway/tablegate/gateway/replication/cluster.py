"""This gateway among the others: what it is to have, and what it says of itself.

All read one topic in one order, and place partitions by what they have read: so they come to the same answer, some
sooner than others. A gateway lets go of a partition only once it has said so and has heard itself: of two that rely on
each other, the one whose word comes second in the topic hears the other first, and keeps it.
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from operator import attrgetter
from typing import NamedTuple

from tablegate.gateway.cluster.assignment import Assignment, Older
from tablegate.gateway.cluster.gateways_topic import GatewaysTopic, Known, Live
from tablegate.gateway.cluster.membership import Membership
from tablegate.gateway.contract.placement import Candidate, wanted_of_all
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.kafka.log import Clock, Fetched, Log, LogUnavailable, TopicPartition
from tablegate.v1.cluster_pb2 import GatewayRecord, HeldTable
from tablegate.v1.status_pb2 import GatewayStatus
from typing_extensions import override

BEAT_S = 0.5
LOOK_AROUND_S = 0.05  # how often what was heard is thought over
SETTLE_S = 1.5  # after its own first beat came back: three beats, so that all who live were heard
UNHEARD_S = 5.0  # where its beats do not come back, it does without
CREATE_AGAIN_S = 5.0

_logger = logging.getLogger("tablegate.gateway.replication")


class _Placed(NamedTuple):
    """Who is to have each partition of a table, and which of them we are to have."""

    candidates: tuple[Candidate, ...]
    replicas: int
    wanted: Sequence[frozenset[str]]
    ours: frozenset[Partition]


class Cluster(Assignment):
    """What a gateway knows of the others. `start_id` is drawn anew at each start. One thread."""

    is_alone = False

    def __init__(self, membership: Membership, *, start_id: int, log: Log, clock: Clock) -> None:
        self._us = membership
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
        self._said_s = -math.inf
        self._is_urgent = False
        self._look_at_s = 0.0
        self._version = 0
        self._view: object = None
        self._heard = 0
        self._alive = self._topic.alive()
        self._candidates: tuple[str, ...] = ()
        self._placed: dict[tuple[str, int, int], _Placed] = {}
        self._refused: dict[str, int] = {}  # generations by table, as we said last
        self._settling: dict[tuple[str, int], float] = {}  # those that we have refused, until when others hear it

    # What the topic says.

    @property
    def source(self) -> TopicPartition:
        """Return the topic of gateways."""
        return self._topic.source

    def remember(self, gateways: Iterable[GatewayStatus]) -> None:
        """Go on with what the process before this one knew of the others, until the topic is read."""
        self._topic.remember(gateways)
        self._alive = self._topic.alive()

    @property
    def is_looking(self) -> bool:
        """Return whether an answer of the brokers is awaited."""
        return self._topic.is_looking or self._creating is not None

    def apply(self, fetched: Fetched) -> None:
        """Take what the gateways announced; raise `NameTaken`."""
        self._topic.apply(fetched)

    def tick(self) -> bool:
        """See to the topic, and think over what was heard; return whether readers should know at once."""
        self._topic.tick()
        self._see_to_topic()
        now_s = self._clock.monotonic_s()
        if not self._topic.is_read or now_s < self._look_at_s:
            return False
        self._look_at_s = now_s + LOOK_AROUND_S
        self._settle(now_s)
        for name in self._topic.forgotten():
            self._log.append(self._us.topic, name.encode(), None)
        self._alive = self._topic.alive()
        self._candidates = self._who_may_have_partitions()
        self._settling = {place: until_s for place, until_s in self._settling.items() if now_s < until_s}
        view = self._topic.version, self._alive, self._candidates, self._is_settled, tuple(self._settling)
        has_news = view != self._view
        if has_news or self._heard != self._topic.heard_beat:
            self._view, self._heard = view, self._topic.heard_beat
            self._version += 1
        return has_news

    def _who_may_have_partitions(self) -> tuple[str, ...]:
        known, present = self._topic.known, self._topic.present()
        names = {name for name in present if not known[name].record.draining} - {self._us.gateway_id}
        return tuple(sorted(names if self.is_draining else names | {self._us.gateway_id}))

    def _see_to_topic(self) -> None:
        """Make the topic where there is none."""
        now_s = self._clock.monotonic_s()
        if self._creating is None:
            if self._topic.exists is False and now_s >= self._create_at_s:
                self._create_at_s = now_s + CREATE_AGAIN_S
                self._creating = self._log.create(self._us.topic)
            return
        if not self._creating.done():
            return
        answer, self._creating = self._creating, None
        try:
            answer.result()
        except LogUnavailable as error:
            hint = "make it, compacted, of 1 partition, with message.timestamp.type=LogAppendTime"
            _logger.warning('topic "%s" cannot be made: %s; %s', self._us.topic, error, hint)
        else:
            self._topic.look_at_once()

    def _settle(self, now_s: float) -> None:
        if self._read_s is None:
            self._read_s = now_s
        if self._heard_s is None and self._topic.heard_beat:
            self._heard_s = now_s
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
    def wanted(self, table: str, partition_count: int, *, generation: int) -> frozenset[Partition] | None:
        # Where all refused a manifest that was put right, each is the only candidate until it hears the others.
        is_settling = self._refused.get(table) == generation or (table, generation) in self._settling
        if not self._is_settled or is_settling:
            return None
        return self._place(table, partition_count, generation).ours

    def _place(self, table: str, partition_count: int, generation: int) -> _Placed:
        told = set()
        candidates = []
        for name in self._candidates:
            if name == self._us.gateway_id:
                candidates.append(Candidate(name, self._us.zone))
                told.add(self._us.replicas_wanted(table))
                continue
            known = self._topic.known[name]
            live = known.tables.get(table)
            if live is not None and live.takes_part(generation):
                candidates.append(Candidate(name, known.record.zone))
                told.add(live.replicas)
        # Where candidates are told different numbers, all go by the largest; one that drains is none.
        replicas = 0 if 0 in told else max(told, default=0)
        kept = self._placed.get((table, partition_count, generation))
        if kept is not None and kept.candidates == tuple(candidates) and kept.replicas == replicas:
            return kept
        wanted = [
            frozenset([each.gateway_id for each in best])
            for best in wanted_of_all(table, partition_count, candidates, replicas)
        ]
        ours = frozenset(Partition(number) for number, names in enumerate(wanted) if self._us.gateway_id in names)
        placed = _Placed(tuple(candidates), replicas, wanted, ours)
        self._placed[table, partition_count, generation] = placed
        return placed

    @override
    def is_elsewhere(
        self, table: str, partition: Partition, *, partition_count: int, generation: int, is_served: bool
    ) -> bool:
        if not self._is_settled:
            return False
        names = self._place(table, partition_count, generation).wanted[partition]
        if not names or self._us.gateway_id in names or not names <= self._alive:
            return False
        lives = [self._topic.known[name].tables.get(table) for name in names]
        return all(live is not None and live.has(partition, generation, is_served=is_served) for live in lives)

    @override
    def older(self, table: str, *, new: int) -> Older | None:
        others = [
            (known.record.draining, live)
            for known, live in self._others(table)
            if 0 < live.generation < new and live.takes_part(new)
        ]
        told = [live for _, live in others if live.partition_count]  # gateways of a version before do not tell it
        if not told:
            return None
        newest = max(told, key=attrgetter("generation"))
        answered: set[Partition] = set()
        for is_draining, live in others:
            if live.generation == newest.generation and not is_draining:
                answered |= live.partitions
        is_whole = len(answered) == newest.partition_count
        return Older(newest.generation, newest.partition_count, newest.topic_id, is_whole)

    @override
    def is_due(self, table: str, *, new: int) -> bool:
        others = [live for _, live in self._others(table)]
        return any(live.generation >= new or (live.is_ready and live.next_generation >= new) for live in others)

    def _others(self, table: str) -> list[tuple[Known, Live]]:
        """Return what the other gateways that live say of a table."""
        names = self._alive - {self._us.gateway_id}
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
    def lack(self, table: str, partition_count: int, *, old: int, new: int, has_part: bool) -> str | None:
        living = [known for name, known in self._topic.known.items() if name in self._alive]
        lives = [live for known in living if (live := known.tables.get(table)) is not None]
        covered: set[Partition] = set()
        for live in lives:
            covered |= live.partitions if live.generation >= new else frozenset()
            covered |= live.next_partitions if live.next_generation >= new else frozenset()
        if len(covered) < partition_count:
            return f"{partition_count - len(covered)} of its partitions are live on no gateway yet"
        answers_old = any(live.generation == old and live.partitions for live in lives)
        if not has_part and answers_old and not any(live.generation >= new for live in lives):
            return f"the gateways that have generation {old} answer from it still"
        return None

    # What this gateway says.

    def drain(self) -> None:
        """Give all partitions to the others, from now on."""
        self._record.draining = True
        self._look_at_s = 0.0

    @property
    def is_draining(self) -> bool:
        """Return whether this gateway is to lose its partitions."""
        return self._record.draining

    def announce(self, held: Callable[[], Iterable[HeldTable]], *, at_once: bool) -> None:
        """Say what is here, `held`, when it is time; sooner with `at_once`. Nothing is said before all was read."""
        now_s = self._clock.monotonic_s()
        self._is_urgent = self._is_urgent or at_once
        if self._read_s is None or now_s < self._said_s + (LOOK_AROUND_S if self._is_urgent else BEAT_S):
            return
        self._said_s, self._is_urgent = now_s, False
        self._record.beat += 1
        del self._record.tables[:]
        self._record.tables.extend(held())
        for each in self._record.tables:
            refused = self._refused.get(each.table, 0)
            if refused not in (0, each.refused_generation):
                self._settling[each.table, refused] = now_s + SETTLE_S
            self._refused[each.table] = each.refused_generation
        self._log.append(self._us.topic, self._us.gateway_id.encode(), self._record.SerializeToString())

    def leave(self) -> None:
        """Say that this gateway is gone."""
        if self._record.beat:
            self._log.append(self._us.topic, self._us.gateway_id.encode(), None)

    def statuses(self) -> list[GatewayStatus]:
        """Return what is known of each gateway, by name; of this one, what it said last."""
        ours = self._us.gateway_id
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
