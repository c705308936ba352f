"""What happens in a world: each kind of fault is a class of its own, and one table says which are on.

A kind that the product does not stand yet is off, with the reason and the guarantee that it breaks; `breaks` names all
that the checker may call it. A kind is switched on by an empty `off`.
"""

import random
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from tablegate.gateway.contract.types import Offset, Partition, Version, make_version
from tablegate.gateway.kafka.log import TopicPartition
from tablegate.v1.changelog_pb2 import Manifest, ProgressMarker
from tests.kit.replication.replicator import ratings
from tests.kit.world import contracts
from tests.kit.world.checker import Guarantee
from tests.kit.world.gateway import WorldGateway
from tests.kit.world.job import WorldJob, key_bytes, value_of

if TYPE_CHECKING:
    from tests.kit.world.world import World

TABLES = TopicPartition("tables", Partition(0))
GATEWAYS_TOPIC = "gateways"


class Fault:
    """Something that happens. `happen` returns what it did, None where it could not bite.

    `off`: why it is not on; "" where it is. `breaks`: what it breaks while the product does not stand it. `weight`:
    how often it is drawn.
    """

    off: ClassVar[str] = ""
    breaks: ClassVar[tuple[Guarantee, ...]] = ()
    weight: ClassVar[int] = 2

    def happen(self, world: "World", chance: random.Random) -> str | None:
        """Let it happen."""
        raise NotImplementedError


def _up(world: "World") -> list[WorldGateway]:
    return [gateway for gateway in world.gateways.values() if gateway.is_up]


def _one_up(world: "World", chance: random.Random) -> WorldGateway | None:
    up = _up(world)
    return chance.choice(up) if up else None


def _spare(world: "World", chance: random.Random) -> WorldGateway | None:
    """Return a gateway that may go: another one stays."""
    up = [gateway for gateway in _up(world) if not gateway.is_frozen]
    return chance.choice(up) if len(up) > 1 else None


def _is_well(gateway: WorldGateway) -> bool:
    """Return whether a gateway that is up takes part in everything."""
    is_hindered = gateway.is_frozen or gateway.is_draining or gateway.log.is_cut or gateway.disk.is_full
    return not is_hindered


# Gateways come and go.


class Kill(Fault):
    """A gateway is killed; it may lose its store."""

    weight = 6

    def happen(self, world: "World", chance: random.Random) -> str | None:
        gateway = _spare(world, chance)
        if gateway is None:
            return None
        gateway.kill()
        if chance.random() < 0.3:
            gateway.disk.wipe()
            return f"{gateway.name} is killed, and loses its store"
        return f"{gateway.name} is killed"


class Start(Fault):
    """A gateway comes back."""

    weight = 10

    def happen(self, world: "World", chance: random.Random) -> str | None:
        down = [gateway for gateway in world.gateways.values() if not gateway.is_up]
        if not down:
            return None
        gateway = chance.choice(down)
        gateway.start()
        return f"{gateway.name} starts"


class OtherContract(Fault):
    """A gateway starts again, with the contract that has an index, or the one that has none."""

    weight = 4

    def happen(self, world: "World", chance: random.Random) -> str | None:
        gateway = _spare(world, chance)
        if gateway is None:
            return None
        gateway.kill()
        has_index = gateway.catalogue is contracts.indexed()
        gateway.catalogue = contracts.plain() if has_index else contracts.indexed()
        gateway.start()
        return f"{gateway.name} has a contract {'without' if has_index else 'with'} an index"


class ReplicatorKilled(Fault):
    """The replicator alone is killed; the worker goes on, and another replicator is started."""

    def happen(self, world: "World", chance: random.Random) -> str | None:
        gateway = _one_up(world, chance)
        if gateway is None:
            return None
        gateway.end_replicator()
        return f"the replicator of {gateway.name} is killed"


class Frozen(Fault):
    """A replicator hangs for some time; the worker goes on."""

    def happen(self, world: "World", chance: random.Random) -> str | None:
        gateway = _spare(world, chance)
        if gateway is None:
            return None
        gateway.is_frozen = True
        return f"the replicator of {gateway.name} hangs"


class Thaws(Fault):
    """Replicators that hang go on."""

    weight = 16

    def happen(self, world: "World", chance: random.Random) -> str | None:
        frozen = [gateway for gateway in world.gateways.values() if gateway.is_frozen]
        for gateway in frozen:
            gateway.is_frozen = False
        return "hanging replicators go on" if frozen else None


class Drained(Fault):
    """A gateway gives its partitions away, and ends."""

    def happen(self, world: "World", chance: random.Random) -> str | None:
        draining = [gateway for gateway in _up(world) if gateway.is_draining]
        if draining:
            draining[0].kill()
            return f"{draining[0].name}, which was drained, ends"
        gateway = _spare(world, chance)
        if gateway is None:
            return None
        gateway.drain()
        return f"{gateway.name} is drained"


class Unreachable(Fault):
    """One gateway cannot connect to another one."""

    def happen(self, world: "World", chance: random.Random) -> str | None:
        names = list(world.gateways)
        one, other = chance.choice(names), chance.choice(names)
        cut = world.gateways[other].unreachable
        if one in cut:
            cut.clear()
            return f"{other} can be reached again"
        cut.add(one)
        return f"{one} cannot reach {other}"


# Disks.


class LastWrites(Fault):
    """Each write of any store may be the last one of its process."""

    weight = 5

    def happen(self, world: "World", chance: random.Random) -> str | None:
        rate = chance.choice([0.0, 0.01, 0.03])
        world.rates = {**world.rates, "last, undone": rate, "last, done": rate}
        return f"{rate:.0%} of all writes are a process's last"


class CorruptStores(Fault):
    """A write finds the store damaged."""

    weight = 1

    def happen(self, world: "World", chance: random.Random) -> str | None:
        rate = chance.choice([0.0, 0.003])
        world.rates = {**world.rates, "corrupt": rate}
        return f"{rate:.1%} of all writes find the store damaged"


class RefusedWrites(Fault):
    """Writes are refused and others are not: a disk that is full at some moments, while generations switch."""

    def happen(self, world: "World", chance: random.Random) -> str | None:
        if not world.broker.is_up:
            return None
        world.rates = {**world.rates, "refused": chance.choice([0.05, 0.3])}
        Rebuild().happen(world, chance)
        world.run(20)
        HandOver().happen(world, chance)
        world.run(25)
        world.rates = {**world.rates, "refused": 0.0}
        return "writes were refused while a generation took the place of another"


class FullDisk(Fault):
    """The disk of a gateway is full for some time."""

    weight = 3

    def happen(self, world: "World", chance: random.Random) -> str | None:
        full = [gateway for gateway in world.gateways.values() if gateway.disk.is_full]
        if full:
            full[0].disk.is_full = False
            return f"the disk of {full[0].name} has room again"
        gateway = chance.choice(list(world.gateways.values()))
        gateway.disk.is_full = True
        return f"the disk of {gateway.name} is full"


class RolledBack(Fault):
    """A store is as it was some time ago, as after a restored backup."""

    def happen(self, world: "World", chance: random.Random) -> str | None:
        gateway = _spare(world, chance)
        if gateway is None:
            return None
        gateway.kill()
        if gateway.disk.go_back():
            return f"{gateway.name} is killed, and has its store of some time ago"
        gateway.disk.remember()
        return f"{gateway.name} is killed"


# Kafka.


class LostStores(Fault):
    """All gateways are killed at once and lose their stores: what is left are changelogs and snapshot files."""

    weight = 3

    def happen(self, world: "World", chance: random.Random) -> str | None:
        up = _up(world)
        for gateway in up:
            gateway.kill()
            gateway.disk.wipe()
        for gateway in up:
            gateway.start()
        return f"{len(up)} gateways start anew without their stores" if up else None


class SnapshotFilesAway(Fault):
    """Snapshot files are away for some time, or there is no room for more."""

    def happen(self, world: "World", chance: random.Random) -> str | None:
        files = world.files
        if files.is_away or files.is_full:
            files.is_away = files.is_full = False
            return "snapshot files are written and read again"
        files.is_away = chance.random() < 0.5
        files.is_full = not files.is_away
        return "snapshot files are away" if files.is_away else "there is no room for snapshot files"


class DamagedSnapshotFiles(Fault):
    """Some snapshot files are cut or changed, or one is there under the name of another."""

    weight = 3

    def happen(self, world: "World", chance: random.Random) -> str | None:
        whole = world.files.whole
        names = sorted(whole)
        if not names:
            return None
        for name in chance.sample(names, k=(len(names) + 1) // 2):
            data = whole[name]
            at = chance.randrange(len(data))
            changed = data[:at] + bytes([data[at] ^ chance.randrange(1, 256)]) + data[at + 1 :]
            whole[name] = chance.choice([data[:at], changed, whole[chance.choice(names)]])
        return f"half of {len(names)} snapshot files are damaged"


class Lag(Fault):
    """Gateways hear of records late, each by itself: so replicas are behind when another one fails."""

    weight = 4

    def happen(self, world: "World", chance: random.Random) -> str | None:
        world.lag_rate = chance.choice([0.0, 0.1, 0.3])
        return f"gateways lag with a chance of {world.lag_rate:.0%}"


class BrokersAway(Fault):
    """No broker answers for some time."""

    def happen(self, world: "World", chance: random.Random) -> str | None:
        world.broker.is_up = not world.broker.is_up
        return "the brokers answer again" if world.broker.is_up else "no broker answers"


class CutFromKafka(Fault):
    """One gateway is cut from the brokers for some time."""

    def happen(self, world: "World", chance: random.Random) -> str | None:
        cut = [gateway for gateway in world.gateways.values() if gateway.log.is_cut]
        if cut:
            cut[0].log.is_cut = False
            return f"{cut[0].name} reaches the brokers again"
        gateway = _one_up(world, chance)
        if gateway is None:
            return None
        gateway.log.is_cut = True
        return f"{gateway.name} is cut from the brokers"


def _compact_but_stale(world: "World") -> None:
    """Compact all changelogs, but for keys whose last record is not the newest."""
    for job in world.jobs:
        for partition in range(job.partitions):
            world.broker.clean(job.source(partition), spares=partial(job.is_stale, partition))


class Compaction(Fault):
    """Hours pass, and changelogs are compacted; but keys whose last record is a stale one are spared."""

    weight = 1

    def happen(self, world: "World", chance: random.Random) -> str | None:
        world.hours(chance.choice([2, 8]))
        _compact_but_stale(world)
        return "hours pass, and the changelogs are compacted"


class CompactionOfStale(Fault):
    """A stale record lands last, and compaction removes the one that it is older than; then a store is lost."""

    def happen(self, world: "World", chance: random.Random) -> str | None:
        if not world.broker.is_up or not self._can_be_repaired(world):
            return None
        world.job.delayed(chance, 8)
        is_away, world.is_job_away = world.is_job_away, True
        # Hours pass in a few leaps here. A process that dies at each of them would wait for no grace.
        rates, world.rates = world.rates, {}
        for _ in range(50):  # others take over from whoever has died
            world.step(0.25)
        world.hours(8)
        world.is_job_away, world.rates = is_away, rates
        for source in world.sources():
            world.broker.clean(source)
        gateway = _spare(world, chance)
        if gateway is not None:
            gateway.kill()
            gateway.disk.wipe()
            gateway.start()
        return "stale records land last, the changelog is compacted, and a store is lost"

    def _can_be_repaired(self, world: "World") -> bool:
        """Return whether of each partition one gateway reaches the brokers and its disk; else nobody repairs it."""
        up = _up(world)
        full = [gateway for gateway in up if gateway.disk.is_full]  # they keep their partitions
        return len(full) < world.replicas and any(_is_well(gateway) for gateway in up)


class Absence(Fault):
    """A gateway is away for so long that deletes are compacted away meanwhile."""

    weight = 1

    def happen(self, world: "World", chance: random.Random) -> str | None:
        gateway = _spare(world, chance)
        if gateway is None or not world.broker.is_up:
            return None
        gateway.kill()
        world.hours(chance.choice([10, 16, 34]))
        _compact_but_stale(world)
        gateway.start()
        return f"{gateway.name} comes back after many hours"


class CutForHours(Fault):
    """A gateway lives through hours without the brokers, in which rows are written, and their deletes compacted."""

    weight = 1

    def happen(self, world: "World", chance: random.Random) -> str | None:
        gateway = _spare(world, chance)
        if gateway is None or not world.broker.is_up:
            return None
        gateway.log.is_cut = True
        key = chance.randrange(world.keys)
        world.events.add(key, deletes=False)
        world.job.work(10**6)
        world.run(12)
        for subscriber in world.subscribers:
            subscriber.is_away = True
        world.run(2)
        world.events.add(key, deletes=True)
        world.job.work(10**6)
        world.run(4)
        is_away, world.is_job_away = world.is_job_away, True
        world.hours(8)
        _compact_but_stale(world)
        world.is_job_away = is_away
        gateway.log.is_cut = False
        world.run(8)
        for subscriber in world.subscribers:
            subscriber.is_away = False
        return f"{gateway.name} was cut from the brokers for hours"


class LostTail(Fault):
    """A partition of the changelog loses its last records, and grows again before anybody looks."""

    weight = 3

    def happen(self, world: "World", chance: random.Random) -> str | None:
        source = chance.choice(world.sources())
        end = world.log.end(world.job.generation, source.partition)
        lost = min(end, chance.randint(1, 5))
        if lost == 0 or len(world.jobs) > 1:
            return None
        world.broker.lose_tail(source, Offset(end - lost))
        for _ in range(lost + chance.randint(0, 3)):
            world.events.add(world.job_chance.randrange(world.keys), deletes=False)
        world.job.work(10**6)
        return f"partition {source.partition} of the changelog loses its last {lost} records, and grows again"


# Clocks.


class ClockAhead(Fault):
    """The clock of a gateway is ahead by some seconds."""

    def happen(self, world: "World", chance: random.Random) -> str | None:
        gateway = chance.choice(list(world.gateways.values()))
        gateway.clock.skew_ms = chance.choice([0, 500, 20_000])
        return f"the clock of {gateway.name} is {gateway.clock.skew_ms} ms ahead"


class ClockBehind(Fault):
    """The clock of a gateway is behind."""

    def happen(self, world: "World", chance: random.Random) -> str | None:
        gateway = chance.choice(list(world.gateways.values()))
        gateway.clock.skew_ms = -chance.choice([2_000, 20_000])
        world.lag_rate = 0.3
        return f"the clock of {gateway.name} is {-gateway.clock.skew_ms} ms behind"


class BrokerClockAhead(Fault):
    """The brokers' clock goes ahead by some seconds, for good."""

    def happen(self, world: "World", chance: random.Random) -> str | None:
        world.broker.clock.skew_ms += chance.choice([2_000, 8_000])
        world.lag_rate = 0.3
        return f"the brokers' clock is {world.broker.clock.skew_ms} ms ahead"


class BrokerClockBack(Fault):
    """The brokers' clock goes back, as with another broker; then a gateway dies."""

    def happen(self, world: "World", chance: random.Random) -> str | None:
        world.broker.clock.skew_ms -= chance.choice([3_000, 3_600_000])
        gateway = _spare(world, chance)
        if gateway is not None:
            gateway.kill()
        return f"the brokers' clock is {-world.broker.clock.skew_ms} ms behind, and a gateway is killed"


# The job.


class Repeats(Fault):
    """The job restarts from its checkpoint, and writes its last batch again."""

    weight = 4

    def happen(self, world: "World", chance: random.Random) -> str | None:
        if not world.broker.is_up:
            return None
        world.job.repeat(chance, 12)
        return "the job writes its last records again"


class Delayed(Fault):
    """Records of a task that everybody took for dead arrive."""

    weight = 4

    def happen(self, world: "World", chance: random.Random) -> str | None:
        if not world.broker.is_up:
            return None
        chance.choice(world.jobs).delayed(chance, 6)
        return "old records of the job arrive once more"


class NewRun(Fault):
    """The job is started anew: its run has another number."""

    def happen(self, world: "World", chance: random.Random) -> str | None:
        if not world.broker.is_up or not world.job.begin_run():
            return None
        return f"run {world.job.runs[-1]} of the job begins"


class FrozenJob(Fault):
    """A job that was frozen wakes after another one has taken its place, and writes other rows of the same versions."""

    weight = 4

    def happen(self, world: "World", chance: random.Random) -> str | None:
        if not world.broker.is_up:
            return None
        number = world.job.number()
        if not world.job.begin_run():
            return None
        for _ in range(chance.randint(0, 6)):
            world.events.add(chance.randrange(world.keys), deletes=chance.random() < 0.25)
        world.job.wake(chance, number=number)
        world.run(chance.randint(0, 3))
        world.job.work(10**6)
        return f"a job wakes that run {world.job.runs[-1]} has replaced"


class Rebuild(Fault):
    """The table is built anew, in its next generation, which may have another number of partitions."""

    weight = 5

    def happen(self, world: "World", chance: random.Random) -> str | None:
        if not world.broker.is_up or len(world.jobs) >= 3 or any(not job.is_finished for job in world.jobs[:-1]):
            return None
        partitions = chance.choice([world.partitions, chance.randint(1, 6)])
        job = WorldJob(world.job.generation + 1, world.events, world.broker, world.log, partitions)
        world.jobs.append(job)
        job.catch_up()
        job.publish()
        return f"the job of generation {job.generation} begins, with {partitions} partitions"


class HandOver(Fault):
    """The older generation ends with its last markers."""

    weight = 12

    def happen(self, world: "World", chance: random.Random) -> str | None:
        if not world.broker.is_up or all(job.is_finished for job in world.jobs[:-1]):
            return None
        world.hand_over()
        return "the older generation has ended"


class OlderManifest(Fault):
    """A job that was frozen publishes the manifest of its older generation; gateways restart after it."""

    weight = 6

    def happen(self, world: "World", chance: random.Random) -> str | None:
        if len(world.jobs) < 2 or not world.jobs[0].is_finished:
            return None
        world.jobs[0].publish()
        gateway = _spare(world, chance)
        if gateway is not None:
            gateway.kill()
            gateway.disk.wipe()
            gateway.start()
        return "an older generation is published again"


# Records that are none.


class PoisonRows(Fault):
    """Records that are no rows: no key, no version, another generation, values that are no Avro."""

    def happen(self, world: "World", chance: random.Random) -> str | None:
        if not world.broker.is_up:
            return None
        generation, key = world.job.generation, key_bytes(chance.randrange(world.keys))
        version = make_version(generation, 10**9)
        odd: list[tuple[bytes | None, bytes | None, bytes | None]] = [
            (None, b"x", version),
            (key, value_of(1, 1), None),
            (key, value_of(1, 1), version[:-1]),
            (key, value_of(1, 1), make_version(generation + 7, 1)),
            (key, b"\x00\x00\x00\x00\x01", version),
            (key, b"no avro at all", version),
            (b"", b"no marker at all", None),
            (b"k" * 2_000, value_of(1, 1), version),
        ]
        chosen = chance.choice(odd)
        source = world.job.source(ratings().partition_of(key, world.partitions))
        world.broker.append(source, chosen[0], chosen[1], version=None if chosen[2] is None else Version(chosen[2]))
        world.has_odd_records = True
        return "a record comes that is no row"


class OddMarkers(Fault):
    """Progress markers whose numbers and names are out of all bounds."""

    def happen(self, world: "World", chance: random.Random) -> str | None:
        marker = ProgressMarker(generation=world.job.generation)
        topic, offsets = chance.choice([("ratings", {-1: 5}), ("r" * 70_000, {0: 5}), ("ratings", {0: -5})])
        marker.sources.add(topic=topic, next_offsets=offsets)
        world.broker.append(chance.choice(world.sources()), b"", marker.SerializeToString())
        world.has_odd_records = True
        return "a progress marker comes that says nothing possible"


class OddManifests(Fault):
    """Manifests whose fields are out of all bounds, beside good ones; the good one is published again after."""

    def happen(self, world: "World", chance: random.Random) -> str | None:
        schema = world.job.kit.manifest().value_schemas[1]
        nested = '{"type": "array", "items": ' * 3_000 + '"int"' + "}" * 3_000
        odd = chance.choice(
            [
                Manifest(value_schemas={-1: schema}),
                Manifest(value_schemas={2: nested}),
                Manifest(value_schemas={2: "{"}),
            ]
        )
        world.has_odd_records = True
        world.job.kit.publish(world.job.kit.manifest(value_schemas=odd.value_schemas))
        world.run(4)
        world.job.publish()
        world.has_odd_records = True
        return "a manifest comes that says nothing possible"


class OddGatewayRecords(Fault):
    """Records in the topic of gateways that no gateway has written."""

    def happen(self, world: "World", chance: random.Random) -> str | None:
        if world.broker.facts(GATEWAYS_TOPIC) is None or not world.broker.is_up:
            return None
        odd = chance.choice([(b"gw-x", b"no record"), (b"\xff\xff", b""), (b"", b"\x0a\x01x"), (b"gw-y", b"")])
        world.broker.append(TopicPartition(GATEWAYS_TOPIC, Partition(0)), *odd)
        return "a record comes that is no gateway's"


class ForeignKeys(Fault):
    """A good record whose key bytes are no key of the table, and its delete."""

    def happen(self, world: "World", chance: random.Random) -> str | None:
        if not world.broker.is_up:
            return None
        world.has_odd_records = True
        key, source = chance.choice([b"x", b"\xff" * 3, b"\x80" + b"\x00" * 12]), chance.choice(world.sources())
        for sequence, value in ((10**6, value_of(999, 1)), (10**6 + 1, None)):
            world.broker.append(source, key, value, version=make_version(world.job.generation, sequence))
            world.run(3)
        return "a record comes whose key is no key"


class ForeignPartition(Fault):
    """A good record in a partition that its key does not belong to."""

    def happen(self, world: "World", chance: random.Random) -> str | None:
        if not world.broker.is_up or world.partitions < 2:
            return None
        key = world.keys + chance.randrange(50)
        own = ratings().partition_of(key_bytes(key), world.partitions)
        source = world.job.source((own + 1) % world.partitions)
        value = value_of(key, 7)
        world.broker.append(source, key_bytes(key), value, version=make_version(world.job.generation, 7))
        world.has_odd_records = True
        return "a row comes in a partition that is not its own"


class Walks(Fault):
    """Gateways lag, so that the rest of a walk often comes from one that is behind the first page's."""

    weight = 3

    def happen(self, world: "World", chance: random.Random) -> str | None:
        world.lag_rate = 0.3
        return "gateways lag"


FAULTS: tuple[Fault, ...] = (
    Kill(),
    Start(),
    OtherContract(),
    ReplicatorKilled(),
    Frozen(),
    Thaws(),
    Drained(),
    Unreachable(),
    LastWrites(),
    CorruptStores(),
    RefusedWrites(),
    FullDisk(),
    RolledBack(),
    LostStores(),
    SnapshotFilesAway(),
    DamagedSnapshotFiles(),
    Lag(),
    BrokersAway(),
    CutFromKafka(),
    Compaction(),
    CompactionOfStale(),
    Absence(),
    CutForHours(),
    LostTail(),
    ClockAhead(),
    ClockBehind(),
    BrokerClockAhead(),
    BrokerClockBack(),
    Repeats(),
    Delayed(),
    NewRun(),
    FrozenJob(),
    Rebuild(),
    HandOver(),
    OlderManifest(),
    PoisonRows(),
    OddMarkers(),
    OddManifests(),
    OddGatewayRecords(),
    ForeignKeys(),
    ForeignPartition(),
    Walks(),
)
ENABLED: tuple[Fault, ...] = tuple(fault for fault in FAULTS if not fault.off)
