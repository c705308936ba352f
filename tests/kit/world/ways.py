"""Ways to serve one history: gateways over stores of a kind, asked the same after each chapter.

    play(history_of(ratings(), 7), ratings(), Way("LMDB", 3), seed=7, directory=tmp_path)

How much a gateway fetches at once, and who does something first, is of each way's own chance. What is answered must not
depend on it: `play` raises `OtherAnswer` where a gateway answers anything else than the history says.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from google.rpc import code_pb2

from tablegate.gateway.cluster.scatter import PeerFailed
from tablegate.gateway.contract.lineage import places_of
from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.kafka.log import TopicPartition
from tablegate.gateway.query.errors import QueryError
from tablegate.gateway.stores.base import Phase, Position
from tablegate.internal.v1.store_pb2 import TableState
from tablegate.v1.query_pb2 import SUBSCRIBE_PHASE_CURRENT
from tests.kit.call.subscribing import OFTEN, Copy, token_of
from tests.kit.programs.redis import RedisServer
from tests.kit.replication.replicator import FakeClock
from tests.kit.table.filled import LocalCall
from tests.kit.world.asked import Asked, OtherAnswer
from tests.kit.world.broker import WorldBroker
from tests.kit.world.checker import TrueLog
from tests.kit.world.gateway import WorldGateway
from tests.kit.world.history import Begun, Chapter, Happening, Key, Step, Subject
from tests.kit.world.loop import StillLoop, still_time
from tests.kit.world.stores import Disk, RedisDisk

REPAIR_GRACE_S = 2.0
REPLICAS = 2
STEP_S = 0.5
IDLE_STEP_S = 0.9  # a gateway that does nothing for a second would know less of the others
SETTLE_STEPS = 100
INSTANT_S = 1e-6  # no window ends within it
TABLES = TopicPartition("tables", Partition(0))


@dataclass(frozen=True)
class Way:
    """Gateways over stores: "memory", "LMDB" or "Redis", which they share."""

    store: str
    gateways: int

    def __str__(self) -> str:
        return f"{self.store}, {self.gateways} gateways"


class Follower:
    """Keeps a copy by a stream that stays open; where it breaks, it goes on by its token at the next gateway."""

    def __init__(self, served: "Served", name: str, scope: Mapping[str, str]) -> None:
        subject = served.subject
        self.name = name
        self.scope = scope
        self.copy = Copy(subject.key_of, subject.count_of, gone_unseen=subject.table.expiry is not None)
        self.sent: dict[Key, list[int | None]] = {}
        self.resets = 0  # of the copy, before what was sent
        self._served = served
        self._names = [*served.gateways]
        self.task = served.loop.create_task(self._run(self._names.index(name)))

    async def _run(self, first: int) -> None:
        subject = self._served.subject
        number = first
        while True:
            gateway = self._served.gateways[self._names[number % len(self._names)]]
            number += 1
            path, response_class = self._served.method(f"Subscribe{subject.many}")
            options = {"resume_token": self.copy.token, **OFTEN}
            request = self._served.request(f"Subscribe{subject.many}", **self.scope, subscribe_options=options)
            with suppress(QueryError, PeerFailed):
                messages = gateway.messages(path, request.SerializeToString(), LocalCall(None))
                async with aclosing(messages):
                    async for data in messages:
                        self._receive(response_class.FromString(data))
            await asyncio.sleep(0.2)

    def _receive(self, response: Any) -> None:
        subject = self._served.subject
        for change in response.changes:
            is_row = change.HasField("upsert")
            key = subject.key_of(change.upsert if is_row else change.delete)
            self.sent.setdefault(key, []).append(subject.count_of(change.upsert) if is_row else None)
        self.copy.take(response)

    def is_at(self, ends: Mapping[int, int]) -> bool:
        """Return whether the copy is current, and has all before these offsets."""
        if self.task.done():
            self.task.result()
        if not self.copy.token or self.copy.phase != SUBSCRIBE_PHASE_CURRENT:
            return False
        places = places_of(token_of(self.copy.token))
        return all(place.next_offset == ends[number] for number, place in places.items())


class Served:
    """A history that is served in one way."""

    def __init__(
        self,
        subject: Subject,
        way: Way,
        seed: int,
        *,
        directory: Path | None,
        redis: RedisServer | None,
        loop: StillLoop,
    ) -> None:
        self.subject = subject
        self.way = way
        self.loop = loop
        self.clock = FakeClock()
        self.broker = WorldBroker(self.clock, TrueLog())
        self.broker.create("tables", 1)
        self.chance = random.Random(f"{seed}-{way}")
        self.gateways: dict[str, WorldGateway] = {}
        self._begun = Begun(0, 0)
        url = redis.new_url() if redis is not None else ""
        for number in range(way.gateways):
            name = f"g{number}"
            self.gateways[name] = WorldGateway(
                name,
                catalogue=subject.catalogue,
                broker=self.broker,
                clock=self.clock,
                gateways=self.gateways,
                replicas=REPLICAS,
                disk=_disk(way, name, directory, redis, url),
                loop=loop,
                repair_grace_s=REPAIR_GRACE_S,
            )
            self.gateways[name].start()
        self.followers = [Follower(self, name, scope) for name in self.gateways for scope in subject.scopes]

    # Time, and what happens in it.

    def step(self, seconds: float = STEP_S) -> None:
        """Let time pass, and all gateways do something in any order."""
        self.clock.passed_s += seconds
        order = list(self.gateways.values())
        self.chance.shuffle(order)
        for gateway in order:
            gateway.log.records_max = self.chance.choice([2, 7, 10**6])
            gateway.step()
            if gateway.last_error:
                raise OtherAnswer(f"the replicator of {gateway.name} ends: {gateway.last_error}")
            self.loop.turn()

    def write(self, steps: Sequence[Step]) -> None:
        """Let a job write, while gateways read."""
        for number, step in enumerate(steps):
            if isinstance(step, Begun):
                self._begun = step
                topic_id = self.broker.create(self.subject.topic(step.generation), step.partitions)
                manifest = self.subject.manifest(step, topic_id)
                self.broker.append(TABLES, self.subject.table_name.encode(), manifest.SerializeToString())
            else:
                source = TopicPartition(self.subject.topic(step.generation), Partition(step.partition))
                self.broker.append(source, step.key, step.value, version=step.version)
            if number == 0 or self.chance.random() < 0.2:
                self.step(self.chance.uniform(0.02, 0.2))

    def happen(self, happening: Happening) -> None:
        """Let something happen to the gateways."""
        gateways = list(self.gateways.values())
        loses = happening in (Happening.RESTORE, Happening.RESTORES)
        if loses:
            self.settle()
            for source in self._sources():
                self.broker.compact(source, tombstones=happening is Happening.RESTORE)
        match happening:
            case Happening.RESTART | Happening.RESTORE:
                self._restart(gateways, loses=loses)
            case Happening.RESTARTS | Happening.RESTORES:
                # What gateways share in Redis is lost for all of them or for none.
                for gateway in gateways:
                    self._restart([gateway], loses=loses and self.way.store != "Redis")
                    self.settle()

    def _restart(self, gateways: Sequence[WorldGateway], *, loses: bool) -> None:
        for gateway in gateways:
            gateway.kill()
        self.loop.turn()
        for gateway in gateways if loses else ():
            gateway.disk.wipe()
        self.step()
        for gateway in gateways:
            gateway.start()

    def settle(self) -> None:
        """Let time pass until everybody has everything."""
        for _ in range(SETTLE_STEPS):
            self.step()
            if not self._why_not_settled():
                return
        raise OtherAnswer(f"it does not settle: {self._why_not_settled()}")

    def _why_not_settled(self) -> str:
        ends, found = self.ends(), dict[int, int]()
        for gateway in self.gateways.values():
            state, positions, repairs = self._stored(gateway)
            if state.manifest.generation != self._begun.generation:
                return f"{gateway.name} has generation {state.manifest.generation}"
            if repairs:
                return f"{gateway.name} has to repair {repairs} keys"
            for number, position in positions.items():
                found[number] = found.get(number, 0) + 1
                if (position.phase, position.next_offset) != (Phase.LIVE, ends[number]):
                    return f"{gateway.name} is {position.phase.name} at {number}@{position.next_offset} of {ends}"
        if found != dict.fromkeys(range(self._begun.partitions), min(REPLICAS, len(self.gateways))):
            return f"partitions are on so many gateways: {found}"
        for follower in self.followers:
            if not follower.is_at(ends):
                return f"the copy of the follower that began at {follower.name} is not current"
        return ""

    def _stored(self, gateway: WorldGateway) -> tuple[TableState, dict[int, Position], int]:
        positions, repairs = dict[int, Position](), 0
        with gateway.disk.snapshot() as snapshot:
            state = snapshot.table(self.subject.table_name) or TableState()
            for number in range(self._begun.partitions):
                position = snapshot.position(StoreId(state.store_id), Partition(number))
                if position is not None:
                    positions[number] = position
                    repairs += len(gateway.disk.store.repairs(StoreId(state.store_id), Partition(number), limit=10))
        return state, positions, repairs

    def ends(self) -> dict[int, int]:
        """Return where the newest changelog ends."""
        facts = self.broker.facts(self.subject.topic(self._begun.generation))
        assert facts is not None
        return dict(enumerate(map(int, facts.end_offsets)))

    def _sources(self) -> list[TopicPartition]:
        return [
            TopicPartition(self.subject.topic(self._begun.generation), Partition(each))
            for each in range(self._begun.partitions)
        ]

    def play(self, number: int, chapter: Chapter) -> None:
        """Play a chapter up to its end in time."""
        for follower in self.followers:
            follower.sent.clear()
            follower.resets = follower.copy.resets
        is_first = not number
        self.write(chapter.before)
        self.happen(chapter.happening)
        self.write(chapter.after)
        self.settle()
        if self.clock.passed_s > chapter.end_s:
            raise OtherAnswer(f"it settles late, at {self.clock.passed_s:.1f} s instead of {chapter.end_s} s")
        while self.clock.passed_s < chapter.end_s:
            self.step(min(IDLE_STEP_S, chapter.end_s - self.clock.passed_s))
        Asked(self, chapter, is_first=is_first).check()

    def close(self) -> None:
        """End everything."""
        for follower in self.followers:
            follower.task.cancel()
        self.loop.turn()
        for gateway in self.gateways.values():
            gateway.kill()
        self.loop.turn()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        for gateway in self.gateways.values():
            gateway.disk.close()

    # Calls.

    def method(self, name: str) -> tuple[str, Any]:
        """Return path and response class of a method."""
        path = f"{self.subject.service}/{name}"
        return path, self.subject.catalogue.queries[path].response_class

    def request(self, name: str, **fields: Any) -> Message:
        """Return a request."""
        return self.subject.catalogue.queries[f"{self.subject.service}/{name}"].request_class(**fields)

    def ask(self, gateway: str, name: str, **fields: Any) -> Any:
        """Return the answer of a gateway; None where it has no such row."""
        path, response_class = self.method(name)
        call = self.gateways[gateway].ask(path, self.request(name, **fields), response_class)
        answered = self._run(call)
        if answered.error is None:
            return answered.message
        if answered.error.code == code_pb2.NOT_FOUND:
            return None
        raise OtherAnswer(f"{name} at {gateway} fails: {answered.error.message}")

    def stream(self, gateway: str, name: str, *, until: Callable[[Any], bool], **fields: Any) -> list[Any]:
        """Return the messages of a stream, to its end or the one that is the last."""
        path, response_class = self.method(name)
        data = self.request(name, **fields).SerializeToString()

        async def receive() -> list[Any]:
            found = []
            async with aclosing(self.gateways[gateway].messages(path, data, LocalCall(5.0))) as messages:
                async for message in messages:
                    found.append(response_class.FromString(message))
                    if until(found[-1]):
                        break
            return found

        return list(self._run(receive()))

    def _run(self, coroutine: Any) -> Any:
        task = self.loop.create_task(coroutine)
        self.loop.turn()
        if not task.done():  # it may wait until this very moment, which has to be over
            self.clock.passed_s += INSTANT_S
            self.loop.turn()
        if not task.done():
            task.cancel()
            self.loop.turn()
            raise OtherAnswer("a call waits, though everything is there")
        return task.result()


def _disk(way: Way, name: str, directory: Path | None, redis: RedisServer | None, url: str) -> Disk:
    match way.store:
        case "memory":
            return Disk(None)
        case "LMDB":
            assert directory is not None
            return Disk(directory / name)
    assert redis is not None
    return RedisDisk(redis, url, name)


def play(
    chapters: Sequence[Chapter],
    subject: Subject,
    way: Way,
    *,
    seed: int,
    directory: Path | None = None,
    redis: RedisServer | None = None,
) -> None:
    """Serve a history in one way; raise `OtherAnswer` where anybody is answered anything else."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # records that are none, and restarts, are logged
    served: Served | None = None
    try:
        with still_time(lambda: served.clock.passed_s if served is not None else 0.0, seed) as loop:
            served = Served(subject, way, seed, directory=directory, redis=redis, loop=loop)
            try:
                for number, chapter in enumerate(chapters):
                    try:
                        served.play(number, chapter)
                    except AssertionError as error:
                        where = (
                            f"seed {seed}, {subject.table_name}, {way}, chapter {number} ({chapter.happening.value})"
                        )
                        raise OtherAnswer(f"{where}: {error}") from error
            finally:
                served.close()
    finally:
        logging.disable(level)
