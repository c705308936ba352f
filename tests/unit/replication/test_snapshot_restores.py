"""Rows of a partition that come from a snapshot file, in place of the changelog's start."""

from collections.abc import Callable

import pytest

from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.kafka.log import TopicPartition
from tablegate.gateway.server.snapshots import SnapshotWriter
from tablegate.gateway.stores.base import Phase
from tablegate.gateway.stores.lmdb import layout
from tablegate.gateway.stores.snapshots.format import Encoder, parts_in, snapshots_of
from tablegate.internal.v1.store_pb2 import TableState
from tablegate.internal.v1.transfer_pb2 import TransferRequest, TransferResponse
from tests.kit.replication.memory_log import DELETE_RETENTION_MS, ReadingLog
from tests.kit.replication.replicator import Gateway, key_of
from tests.kit.replication.replicators import Member, World
from tests.kit.replication.transfers import StoreTransfers
from tests.kit.seeds import seeds
from tests.kit.store.snapshot_files import MemoryFiles, MemorySnapshots
from tests.kit.table.filled import SIGNER, catalogue_of, other_rows
from tests.kit.world.contracts import indexed

PARTITIONS = 3
MOVIES = range(40)


def rows(member: Member) -> list[dict[bytes, bytes]]:
    return [member.rows(partition) for partition in range(PARTITIONS)]


def writer_of(world: World, files: MemoryFiles, member: Member, *, keep: int = 3) -> SnapshotWriter:
    return SnapshotWriter(
        member.catalogue,
        files,
        every_s=60,
        keep=keep,
        clock=world.clock,
        signer=SIGNER,
        offsets_min=1,
        part_bytes=100,
    )


def write_all(world: World, files: MemoryFiles, member: Member, between: Callable[[], None] = lambda: None) -> None:
    """Write what is due, with something that happens between two parts."""
    for _ in writer_of(world, files, member).round(member.store):
        between()


def written(seed: int = 1, catalogue: Catalogue | None = None) -> tuple[World, Member, MemoryFiles, MemorySnapshots]:
    """Return a world with one gateway, and a snapshot file of each partition that others restore from."""
    world = World(seed, partitions=PARTITIONS, replicas=1, lag=False)
    first = world.join(catalogue)
    world.settle()
    files = MemoryFiles()
    write_all(world, files, first)
    assert len(files.whole) == PARTITIONS
    world.snapshots = snapshots = MemorySnapshots(files)
    world.log = ReadingLog
    return world, first, files, snapshots


def rows_of_the_changelog(world: World, catalogue: Catalogue | None = None) -> list[dict[bytes, bytes]]:
    """Return the rows as a gateway has them that has read the changelog from its start."""
    reading = Gateway(world.broker, world.clock, catalogue or catalogue_of())
    reading.steps(200)
    assert reading.is_served()
    store_id = StoreId(reading.state().store_id)
    with reading.store.snapshot() as snapshot:
        partitions = map(Partition, range(PARTITIONS))
        return [dict(snapshot.range(store_id, each, start=b"", end=None, limit=10_000)) for each in partitions]


def begin_again(world: World, member: Member) -> dict[str, int]:
    """Let a gateway lose its store, and start; return the lowest offset from which it follows each partition."""
    world.kill(member, wipe=True)
    world.start(member)
    world.settle()
    assert member.replicator is not None
    log = member.replicator._log
    assert isinstance(log, ReadingLog)
    return {name: at for name, at in log.followed.items() if name.startswith(world.job.topic)}


def test_a_gateway_that_lost_its_store_gets_the_rows() -> None:
    world, first, _, snapshots = written()
    followed = begin_again(world, first)
    assert rows(first) == rows_of_the_changelog(world)
    assert len(snapshots.read_names) == PARTITIONS
    assert min(followed.values()) > 0, "no changelog was read from its start"
    assert world.measures.snapshots == {("ratings", "read", "done"): PARTITIONS}
    assert world.measures.snapshot_rows == {("ratings", "read"): len(MOVIES)}
    assert snapshots.away == [False] * PARTITIONS


def test_what_came_after_the_file_is_read_from_the_changelog() -> None:
    world, first, _, _ = written()
    world.job.put(range(10, 20), delete=True)
    world.job.put([11, 70, 71])
    world.settle()
    assert min(begin_again(world, first).values()) > 0
    assert rows(first) == rows_of_the_changelog(world)


@pytest.mark.parametrize("seed", seeds(20, in_check=3))
def test_what_changes_while_a_file_is_written_is_not_missed(seed: int) -> None:
    world, first, files, snapshots = written(seed)
    files.whole.clear()
    world.clock.passed_s += 60

    def write() -> None:
        world.job.put(world.chance.choices(range(60), k=5), delete=world.chance.random() < 0.5)
        world.step(first)

    write_all(world, files, first, write)
    world.settle()
    begin_again(world, first)
    assert rows(first) == rows_of_the_changelog(world)
    assert len(snapshots.read_names) == PARTITIONS


def test_another_gateway_that_has_the_rows_is_asked_first() -> None:
    world, first, _, snapshots = written()
    world.replicas = 2
    world.transfers = transfers = StoreTransfers(world.stores, catalogue_of(), world.clock.now_ms)
    second = world.join()
    world.settle()
    assert (snapshots.read_names, transfers.asked) == ([], ["gw-0"] * PARTITIONS)
    assert rows(second) == rows(first)


def cut(data: bytes) -> bytes:
    return data[:-40]


def change(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def empty(_: bytes) -> bytes:
    return b""


def lengthen(data: bytes) -> bytes:
    return data + b"x"


def written_anew(data: bytes, turn: Callable[[TransferRequest, list[TransferResponse]], None]) -> bytes:
    """Return a file with right digests whose content a test has changed."""
    request = TransferRequest()
    length = int.from_bytes(data[21:25], "little")
    request.ParseFromString(data[25 : 25 + length])
    parts = list(parts_in(iter([data]), request))
    turn(request, parts)
    encoder = Encoder()
    return encoder.begin(request) + b"".join(map(encoder.part, parts)) + encoder.end()


def of_another_generation(data: bytes) -> bytes:
    def turn(request: TransferRequest, _: list[TransferResponse]) -> None:
        request.generation += 1

    return written_anew(data, turn)


def of_another_partition(data: bytes) -> bytes:
    def turn(request: TransferRequest, _: list[TransferResponse]) -> None:
        request.partition += 1

    return written_anew(data, turn)


def by_another_contract(data: bytes) -> bytes:
    def turn(request: TransferRequest, _: list[TransferResponse]) -> None:
        request.row_digest = b"another"

    return written_anew(data, turn)


def without_position(data: bytes) -> bytes:
    def turn(_: TransferRequest, parts: list[TransferResponse]) -> None:
        del parts[0]

    return written_anew(data, turn)


def without_end(data: bytes) -> bytes:
    def turn(_: TransferRequest, parts: list[TransferResponse]) -> None:
        del parts[-1]

    return written_anew(data, turn)


def with_fewer_rows(data: bytes) -> bytes:
    def turn(_: TransferRequest, parts: list[TransferResponse]) -> None:
        del parts[1]

    return written_anew(data, turn)


@pytest.mark.parametrize(
    "damage",
    [
        cut,
        change,
        empty,
        lengthen,
        of_another_generation,
        of_another_partition,
        by_another_contract,
        without_position,
        without_end,
        with_fewer_rows,
    ],
    ids=lambda each: each.__name__,
)
def test_a_file_that_is_damaged_is_never_served(damage: Callable[[bytes], bytes], caplog) -> None:  # type: ignore[no-untyped-def]
    world, first, files, snapshots = written()
    for name, data in files.whole.items():
        files.whole[name] = damage(data)
    begin_again(world, first)
    assert rows(first) == rows_of_the_changelog(world)
    assert len(snapshots.read_names) == PARTITIONS, "each is tried once"
    lines = [each for each in caplog.messages if "are used" in each]
    assert len(lines) == PARTITIONS
    assert world.measures.snapshots == {("ratings", "read", "failed"): PARTITIONS}
    assert snapshots.away == [False] * PARTITIONS
    useless = snapshots.problems.numbers()
    assert sorted(name for _, _, _, name, _ in useless) == sorted(files.whole)
    assert all(any(why in line for line in lines) for *_, why in useless)


def with_a_row_that_is_none(data: bytes) -> bytes:
    def turn(_: TransferRequest, parts: list[TransferResponse]) -> None:
        values = bytearray(parts[1].values)
        values[layout.ROW_AT] = 0xFF  # the first byte of the first row: no field of a message begins so
        parts[1].values = bytes(values)

    return written_anew(data, turn)


def test_a_damaged_row_stops_no_table_whose_rows_have_an_index(caplog: pytest.LogCaptureFixture) -> None:
    """Its index keys are made as it comes, which is before the digest of all is known."""
    world, first, files, snapshots = written(catalogue=indexed())
    for name, data in files.whole.items():
        files.whole[name] = with_a_row_that_is_none(data)
    begin_again(world, first)
    assert rows(first) == rows_of_the_changelog(world, indexed())
    assert len(snapshots.read_names) == PARTITIONS, "each is tried once"
    assert caplog.text.count("it has a row that cannot be read") == PARTITIONS


def test_what_kafka_loses_while_a_file_is_written_is_not_in_it() -> None:
    """The table is restored between two parts, and is further by then: rows before it may be of what is gone."""
    world, first, files, snapshots = written()
    files.whole.clear()
    world.clock.passed_s += 60
    store_id = first.state().store_id
    work = writer_of(world, files, first).round(first.store)
    for _ in range(4):
        next(work)  # the first rows of the first partition
    facts = world.broker.facts(world.job.topic)
    assert facts is not None
    world.job.put(range(1_000, 1_030))
    for _ in range(20):
        world.step(first)
    for partition, end_offset in enumerate(facts.end_offsets):
        world.broker.truncate_from(world.job.source(partition), end_offset)
    world.job.put([*range(100, 140), *range(100, 140)])
    world.pass_time(first)
    assert first.live() == set(range(PARTITIONS))
    assert first.state().store_id != store_id
    for _ in work:
        pass
    world.kill(first, wipe=True)
    world.start(first)
    world.pass_time(first)
    assert snapshots.read_names
    assert rows(first) == rows_of_the_changelog(world)


def test_where_the_newest_is_damaged_the_one_before_is_read() -> None:
    world, first, files, snapshots = written()
    world.job.put([3, 4, 5, 99])
    world.settle()
    world.clock.passed_s += 60
    old = dict(files.whole)
    write_all(world, files, first)
    for name in set(files.whole) - set(old):
        files.whole[name] = change(files.whole[name])
    followed = begin_again(world, first)
    assert rows(first) == rows_of_the_changelog(world)
    assert len(files.whole) == len(snapshots.read_names) == 2 * PARTITIONS
    assert min(followed.values()) > 0


def test_a_file_behind_whose_position_the_changelog_begins_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    world, first, _, _ = written()
    for partition in range(PARTITIONS):
        source = TopicPartition(world.job.topic, Partition(partition))
        world.job.put(MOVIES)
        facts = world.broker.facts(source.topic)
        assert facts is not None
        world.broker.truncate_before(source, facts.end_offsets[partition] - 1)
    begin_again(world, first)
    assert "the changelog begins behind it" in caplog.text


def test_deletes_that_are_compacted_away_bring_no_rows_back(caplog: pytest.LogCaptureFixture) -> None:
    world, first, _, snapshots = written()
    gone = sorted(first.rows(0))[0]
    [movie] = [number for number in MOVIES if key_of(number) == gone]
    world.clock.passed_s += 2 * DELETE_RETENTION_MS / 1_000
    world.job.put([movie], delete=True)
    world.broker.compact(world.job.source(0), tombstones=True)
    world.job.put([number for number in MOVIES if number != movie])
    world.kill(first, wipe=True)
    world.start(first)
    world.pass_time(first)
    assert snapshots.read_names
    assert first.live() == set(range(PARTITIONS))
    assert gone not in first.rows(0)
    assert "deletes may have been compacted away" in caplog.text


def test_older_files_are_not_tried_where_the_newest_is_too_old(caplog: pytest.LogCaptureFixture) -> None:
    world, first, files, snapshots = written()
    world.clock.passed_s += 60
    write_all(world, files, first)
    assert len(files.whole) == 2 * PARTITIONS
    world.clock.passed_s += 2 * DELETE_RETENTION_MS / 1_000
    world.job.put(MOVIES)
    world.kill(first, wipe=True)
    world.start(first)
    world.pass_time(first)
    assert len(snapshots.read_names) == PARTITIONS
    assert first.live() == set(range(PARTITIONS))


def test_rows_of_a_tail_that_kafka_lost_are_not_kept() -> None:
    world, first, files, snapshots = written()
    source = world.job.source(0)
    facts = world.broker.facts(source.topic)
    assert facts is not None
    keys_before = set(first.rows(0))
    world.job.put(range(1_000, 1_050))
    for _ in range(20):
        world.step(first)
    lost = set(first.rows(0)) - keys_before
    files.whole.clear()
    world.clock.passed_s += 60
    write_all(world, files, first)
    world.kill(first, wipe=True)
    world.broker.truncate_from(source, facts.end_offsets[0])
    world.job.put([*MOVIES, *MOVIES, *MOVIES])
    world.start(first)
    world.pass_time(first)
    assert lost
    assert snapshots.read_names
    assert first.live() == set(range(PARTITIONS))
    assert not lost & set(first.rows(0))


def test_files_that_cannot_be_listed_or_read_hold_nothing_up() -> None:
    world, first, files, snapshots = written()
    files.is_away = True
    begin_again(world, first)
    assert (rows(first), snapshots.read_names) == (rows_of_the_changelog(world), [])


def test_files_that_hang_or_cannot_be_read_are_away() -> None:
    world, first, files, snapshots = written()
    snapshots.is_hanging = True
    begin_again(world, first)
    assert snapshots.away == [True] * PARTITIONS
    snapshots.is_hanging = False
    world.clock.passed_s += 60
    world.kill(first, wipe=True)
    world.start(first)
    for _ in world.steps(60):
        if len(snapshots.read_names) > PARTITIONS:
            break
    files.is_away = True
    world.settle()
    assert snapshots.away[PARTITIONS]
    assert rows(first) == rows_of_the_changelog(world)


def test_a_file_that_is_removed_while_it_is_read_is_given_up() -> None:
    world, first, files, snapshots = written()
    world.kill(first, wipe=True)
    world.start(first)
    for _ in world.steps(60):
        if snapshots.read_names:
            break
    files.whole.clear()
    world.settle()
    assert rows(first) == rows_of_the_changelog(world)


@pytest.mark.parametrize("steps", range(1, 12))
def test_after_a_kill_in_between_nothing_of_it_is_read(steps: int) -> None:
    world, first, files, snapshots = written()
    world.kill(first, wipe=True)
    world.start(first)
    for _ in world.steps(60):
        steps -= bool(snapshots.read_names)
        if not steps:
            break
    world.kill(first)
    files.whole.clear()
    world.start(first)
    world.settle()
    assert rows(first) == rows_of_the_changelog(world)


def test_a_new_generation_is_not_restored_from_files_of_the_old_one() -> None:
    world, first, files, snapshots = written()
    world.rebuild()
    world.run(5)
    world.end_old()
    world.settle()
    assert world.served() == {2}
    begin_again(world, first)
    assert (rows(first), snapshots.read_names) == (rows_of_the_changelog(world), [])
    world.clock.passed_s += 60
    write_all(world, files, first)
    begin_again(world, first)
    assert rows(first) == rows_of_the_changelog(world)
    assert len(snapshots.read_names) == PARTITIONS
    assert all("/2-" in name for name in snapshots.read_names)


def test_rows_of_another_contract_are_not_taken() -> None:
    """The row message has changed: what was stored by the old one has other fields."""
    world, first, _, snapshots = written()
    first.catalogue = other_rows()
    begin_again(world, first)
    assert (rows(first), snapshots.read_names) == (rows_of_the_changelog(world, first.catalogue), [])


def test_pending_repairs_come_along() -> None:
    world, first, files, snapshots = written()
    world.job.put([7], count=1)  # a record of an old version behind the newest: compaction would keep it
    for _ in range(20):
        world.step(first)
    partition = Partition(world.job.table.partition_of(key_of(7), PARTITIONS))
    files.whole.clear()
    world.clock.passed_s += 60
    write_all(world, files, first)
    pending = first.store.repairs(StoreId(first.state().store_id), partition, limit=9)
    assert [repair.key for repair in pending] == [key_of(7)]
    world.kill(first, wipe=True)
    world.start(first)
    for _ in range(2_000):
        world.step(first)
        world.clock.passed_s += 0.01
        if partition in first.live():
            break
    assert first.store.repairs(StoreId(first.state().store_id), partition, limit=9) == pending
    assert snapshots.read_names


def test_a_restored_position_is_that_of_the_file() -> None:
    _, first, files, _ = written()
    [name] = [name for name in files.whole if "/0/" in name]
    [snapshot] = snapshots_of(iter([file for file in files.list("ratings") if file.name == name]))
    position = first.positions()[0]
    assert position.phase is Phase.LIVE
    assert snapshot.next_offset == position.next_offset
    request = TransferRequest(
        table="ratings",
        partition=0,
        generation=1,
        changelog_topic_id=first.state().manifest.changelog_topic_id,
        row_digest=first.state().row_digest,
        format=layout.FORMAT_VERSION,
    )
    begin, *_, end = parts_in(files.read(snapshot.file), request)
    assert layout.unpack_position(begin.first_position)[0] == layout.unpack_position(end.last_position)[0] == position


def test_an_atomic_table_has_no_files() -> None:
    world, first, _, _ = written()
    files = MemoryFiles()
    state = TableState()
    state.CopyFrom(first.state())
    state.manifest.atomic = True
    first.store.put_table("ratings", state)
    write_all(world, files, first)
    assert not files.whole
