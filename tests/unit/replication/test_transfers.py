"""Rows of a partition that come from another gateway, in place of the changelog's start."""

from collections.abc import Sequence
from struct import pack

import pytest
from typing_extensions import override

from tablegate.gateway.cluster.assignment import Holder, IncomingParts, SoleGateway, TransferFailed
from tablegate.gateway.cluster.forward_token import ForwardToken, ForwardTokenSigner
from tablegate.gateway.contract.types import Offset, Partition, StoreId
from tablegate.gateway.query.errors import ForeignForward, PartitionUnavailable, QueryError
from tablegate.gateway.replication.transfers import PARTS_AT_ONCE, SILENT_S, TransferClient, Transfers
from tablegate.gateway.stores.base import Phase, StoreFull
from tablegate.gateway.stores.lmdb import layout
from tablegate.internal.v1.transfer_pb2 import TransferRequest, TransferResponse
from tests.kit.replication.memory_log import DELETE_RETENTION_MS, ReadingLog
from tests.kit.replication.replicator import key_of
from tests.kit.replication.replicators import Member, SlowLog, World
from tests.kit.replication.transfers import StoreTransfers, parts_of
from tests.kit.seeds import seeds
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, LocalCall, catalogue_of

pytestmark = pytest.mark.tools

PARTITIONS = 3
MOVIES = range(40)


def world_of_one(seed: int = 1, *, replicas: int = 2) -> tuple[World, Member, StoreTransfers]:
    """Return a world in which one gateway has everything, and by what another one will ask it."""
    world = World(seed, partitions=PARTITIONS, replicas=replicas, lag=False)
    first = world.join()
    world.settle()
    transfers = StoreTransfers(world.stores, catalogue_of(), world.clock.now_ms)
    world.transfers = transfers
    return world, first, transfers


def rows(member: Member) -> list[dict[bytes, bytes]]:
    return [member.rows(partition) for partition in range(PARTITIONS)]


def test_a_newcomer_gets_the_rows_of_who_has_them() -> None:
    world, first, transfers = world_of_one()
    world.log = ReadingLog
    second = world.join()
    world.settle()
    assert rows(second) == rows(first)
    assert transfers.asked == ["gw-0"] * PARTITIONS
    assert transfers.parts > 3 * PARTITIONS
    assert second.replicator is not None
    log = second.replicator._log
    assert isinstance(log, ReadingLog)
    followed = [place for name, place in log.followed.items() if name.startswith(world.job.topic)]
    assert len(followed) == PARTITIONS
    assert min(followed) > 0, "no changelog was read from its start"
    assert world.measures.transfers == {("ratings", "in", "done"): PARTITIONS}
    assert world.measures.transferred_rows == {("ratings", "in"): len(MOVIES)}, "tombstones come, too"


def write_between_parts(world: World, first: Member, transfers: StoreTransfers) -> None:
    """Let rows be written, deleted and written again between two parts, before and behind what was read."""

    def write(_: int, part: TransferResponse) -> TransferResponse:
        world.job.put(world.chance.choices(range(60), k=5), delete=world.chance.random() < 0.5)
        world.step(first)
        return part

    transfers.tamper = write


@pytest.mark.parametrize("seed", seeds(20, in_check=3))
def test_what_changes_meanwhile_is_not_missed(seed: int) -> None:
    world, first, transfers = world_of_one(seed)
    write_between_parts(world, first, transfers)
    second = world.join()
    world.settle()
    assert rows(second) == rows(first)
    assert transfers.asked


@pytest.mark.parametrize("is_killed", [False, True], ids=["at once", "after a kill"])
@pytest.mark.parametrize("seed", seeds(20, in_check=3))
def test_a_history_has_all_changes_since_it_begins(seed: int, *, is_killed: bool) -> None:
    """Rows that come have changes already whose records come later: a subscriber must not go on before them."""
    world, first, transfers = world_of_one(seed)
    write_between_parts(world, first, transfers)
    all_at_once = world.log
    if is_killed:
        world.log = SlowLog
    second = world.join()
    for _ in world.steps(60):
        if is_killed and any(position.phase is Phase.RESTORING for position in second.positions().values()):
            world.kill(second)
            world.log = all_at_once
            world.start(second)
            break
    world.settle()
    assert transfers.asked
    for partition, position in second.positions().items():
        assert changes(second, partition, position.history_start) == changes(first, partition, position.history_start)


def changes(member: Member, partition: int, start: Offset) -> list[tuple[Offset, bytes | None]]:
    with member.store.snapshot() as snapshot:
        found = snapshot.history(StoreId(member.state().store_id), Partition(partition), start=start, limit=10_000)
    return [(change.offset, change.row) for change in found]


def cut(number: int, part: TransferResponse) -> TransferResponse:
    if number == 4:
        raise TransferFailed("the connection is gone")
    return part


def change_a_row(number: int, part: TransferResponse) -> TransferResponse:
    if part.values:
        part.values = part.values[:-1] + bytes([part.values[-1] ^ 1])
    return part


def leave_a_part_out(number: int, part: TransferResponse) -> TransferResponse | None:
    return None if number == 3 else part


def repeat_the_first(number: int, part: TransferResponse) -> TransferResponse:
    return TransferResponse(first_position=b"x") if number == 2 else part


def cut_lengths(number: int, part: TransferResponse) -> TransferResponse:
    part.key_lengths = part.key_lengths[:-1]
    return part


def leave_bytes_out(number: int, part: TransferResponse) -> TransferResponse:
    part.values = part.values[:-1]
    return part


def damage_the_position(number: int, part: TransferResponse) -> TransferResponse:
    return TransferResponse(first_position=b"x") if number == 1 else part


def send_another_kind(number: int, part: TransferResponse) -> TransferResponse:
    """Neither a row nor a tombstone."""
    at = layout.KIND_AT
    if part.values:
        part.values = part.values[:at] + b"\x07" + part.values[at + 1 :]
    return part


def repeat_a_key(_: int, part: TransferResponse) -> TransferResponse:
    if not part.keys:
        return part
    return TransferResponse(
        keys=2 * part.keys,
        key_lengths=2 * part.key_lengths,
        values=2 * part.values,
        value_lengths=2 * part.value_lengths,
    )


def send_no_row(_: int, part: TransferResponse) -> TransferResponse:
    return TransferResponse(key_lengths=pack("<I", 8), keys=bytes(8), value_lengths=bytes(4)) if part.keys else part


def send_a_long_key(_: int, part: TransferResponse) -> TransferResponse:
    if not part.keys:
        return part
    return TransferResponse(
        key_lengths=pack("<I", 600), keys=bytes(600), value_lengths=pack("<I", 40), values=bytes(40)
    )


@pytest.mark.parametrize(
    "tamper",
    [
        cut,
        change_a_row,
        leave_a_part_out,
        repeat_the_first,
        damage_the_position,
        cut_lengths,
        leave_bytes_out,
        repeat_a_key,
        send_no_row,
        send_a_long_key,
        send_another_kind,
    ],
    ids=lambda each: each.__name__,
)
def test_rows_that_are_cut_or_damaged_are_thrown_away(tamper) -> None:  # type: ignore[no-untyped-def]
    world, first, transfers = world_of_one()
    transfers.tamper = tamper
    second = world.join()
    world.settle()
    assert rows(second) == rows(first)
    assert transfers.asked == ["gw-0"] * PARTITIONS, "each gateway is asked once"
    assert transfers.closed == PARTITIONS


def test_keys_that_are_not_in_order_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    """LMDB would leave out a key that is put behind a higher one, without a word."""
    world, first, transfers = world_of_one()
    transfers.tamper = repeat_a_key
    second = world.join()
    world.settle()
    assert "its keys are not in order" in caplog.text
    assert rows(second) == rows(first)


def test_a_full_disk_of_one_partition_hides_no_failure_of_another() -> None:
    world, first, transfers = world_of_one()
    store = MemoryStore(free_bytes=lambda: 0)
    of = Transfers(
        FirstFails(transfers),
        table=catalogue_of().tables["ratings"],
        manifest=first.state().manifest,
        store=store,
        store_id=store.new_store_id(),
        assignment=OneHolder(),
        clock=world.clock,
        asked={},
        why_useless=lambda *_: "",
        offsets_min=1,
    )
    of.begin(iter([Partition(0), Partition(1)]))
    with pytest.raises(StoreFull):
        of.step()
    assert (of.failed, of.is_under_way) == ({Partition(0)}, True)


def test_a_disk_that_stays_full_fills_no_memory() -> None:
    world, first, transfers = world_of_one()
    world.job.put(range(1_000, 1_500))
    for _ in range(20):
        world.step(first)
    free_bytes = 0
    store = MemoryStore(free_bytes=lambda: free_bytes)
    of = Transfers(
        transfers,
        table=catalogue_of().tables["ratings"],
        manifest=first.state().manifest,
        store=store,
        store_id=store.new_store_id(),
        assignment=OneHolder(),
        clock=world.clock,
        asked={},
        why_useless=lambda *_: "",
        offsets_min=1,
    )
    of.begin(iter([Partition(0)]))
    for _ in range(50):
        with pytest.raises(StoreFull):
            of.step()
        world.clock.passed_s += 1
    assert transfers.parts <= PARTS_AT_ONCE
    free_bytes = 1 << 40
    while of.is_under_way:
        of.step()
    assert (set(of.ended), of.failed) == ({Partition(0)}, set())


class FirstFails(TransferClient):
    """Gives nothing of partition 0."""

    def __init__(self, client: StoreTransfers) -> None:
        self._client = client

    @override
    def ask(self, holder: Holder, request: TransferRequest) -> IncomingParts:
        return Failing() if request.partition == 0 else self._client.ask(holder, request)


class Failing(IncomingParts):
    @override
    def next(self) -> TransferResponse | None:
        raise TransferFailed("the connection is gone")

    @override
    def close(self) -> None:
        """There is nothing to close."""


class OneHolder(SoleGateway):
    """The first gateway has everything."""

    @override
    def holders(self, table: str, partition: Partition, *, generation: int) -> Sequence[Holder]:
        return [Holder("gw-0", "")]


def test_the_next_gateway_is_asked_where_one_fails() -> None:
    world, _, transfers = world_of_one(replicas=3)
    world.join()
    world.settle()
    transfers.asked.clear()
    transfers.tamper = lambda _, part: cut(4, part) if transfers.asked[-1] == "gw-0" else part
    third = world.join()
    world.settle()
    assert sorted(set(transfers.asked)) == ["gw-0", "gw-1"]
    assert third.live() == set(range(PARTITIONS))


def test_a_gateway_that_hangs_is_waited_for_a_while_only() -> None:
    world, first, transfers = world_of_one()
    transfers.hangs_after = 2
    begun_s = world.clock.passed_s
    second = world.join()
    for _ in world.steps(60):
        if second.live():
            break
    assert world.clock.passed_s - begun_s > SILENT_S
    world.settle()
    assert rows(second) == rows(first)


def test_a_short_changelog_is_read() -> None:
    world, first, transfers = world_of_one()
    world.transfer_offsets_min = 10_000
    second = world.join()
    world.settle()
    assert (rows(second), transfers.asked) == (rows(first), [])


@pytest.mark.parametrize("parts", range(1, 12))
def test_after_a_kill_in_between_nothing_of_it_is_read(parts: int) -> None:
    world, first, transfers = world_of_one()
    second = world.join()
    for _ in world.steps(60):
        if transfers.parts >= parts:
            break
    world.kill(second)
    transfers.tamper = cut
    world.start(second)
    world.settle()
    assert rows(second) == rows(first)


def test_what_is_not_to_be_here_any_more_is_removed() -> None:
    world, first, transfers = world_of_one(replicas=1)
    transfers.hangs_after = 4
    second = world.join()
    for _ in world.steps(60):
        if transfers.parts >= 4:
            break
    world.drain(second)
    world.settle()
    assert (second.held(), second.store.store_ids()) == (set(), set())
    assert first.live() == set(range(PARTITIONS))


def test_rows_of_a_tail_that_kafka_lost_are_not_kept() -> None:
    """The other gateway gives rows of records that are lost before it notices; others come in their place."""
    world, first, transfers = world_of_one()
    source = world.job.source(0)

    def lose(number: int, part: TransferResponse) -> TransferResponse:
        if number == 1 and transfers.parts == 1:
            facts = world.broker.facts(source.topic)
            assert facts is not None
            world.job.put(range(1_000, 1_050))
            world.step(first)
            lost.update(set(first.rows(0)) - keys_before)
            world.broker.truncate_from(source, facts.end_offsets[0])
            world.job.put([*MOVIES, *MOVIES])
        return part

    keys_before, lost = set(first.rows(0)), set[bytes]()
    transfers.tamper = lose
    second = world.join()
    for _ in range(3_000):  # the other one stands still, and gives what it has
        world.step(second)
        world.clock.passed_s += 0.01
        if transfers.parts > 40 and second.live():
            break
    assert lost
    assert second.live()
    assert not lost & set(second.rows(0))
    world.settle()
    assert rows(second) == rows(first)


def test_pending_repairs_come_along() -> None:
    world, first, transfers = world_of_one()
    world.job.put([7], count=1)  # a record of an old version behind the newest: compaction would keep it
    for _ in range(20):
        world.step(first)
    partition = Partition(world.job.table.partition_of(key_of(7), PARTITIONS))
    pending = first.store.repairs(StoreId(first.state().store_id), partition, limit=9)
    assert [repair.key for repair in pending] == [key_of(7)]
    second = world.join()
    for _ in range(2_000):
        world.step(second)
        world.clock.passed_s += 0.01
        if partition in second.live():
            break
    found = second.store.repairs(StoreId(second.state().store_id), partition, limit=9)
    assert (found, transfers.asked[:1]) == (pending, ["gw-0"])


def test_rows_that_are_being_removed_do_not_mix_with_a_restore() -> None:
    """A partition is assigned to others and back while its topic is described; removing its rows takes a while."""
    world, first, _ = world_of_one()
    world.job.put(range(1_000, 4_000))
    for _ in range(20):
        world.step(first)
    second = world.join()
    generation = None
    for _ in world.steps(600):
        assert second.replicator is not None
        generation = second.replicator._tables["ratings"].serving
        if generation is not None and generation._asked & set(generation.transfers.ended):
            break
    assert generation is not None
    pending = generation.pending
    generation._set_pending(frozenset())
    generation._set_pending(pending)
    world.settle()
    assert rows(second) == rows(first)


def copy_of(member: Member) -> MemoryStore:
    """Return a store with what that of a gateway has now."""
    store = MemoryStore()
    assert isinstance(member.store, MemoryStore)
    store._content = member.store._content.copy()
    store._content.parts = {name: part.copy() for name, part in store._content.parts.items()}
    store._content.own = set()
    return store


def test_deletes_that_are_compacted_away_bring_no_rows_back() -> None:
    """The other gateway was away for longer than tombstones are kept, and does not know it yet."""
    world, first, transfers = world_of_one()
    gone = sorted(first.rows(0))[0]
    [movie] = [number for number in MOVIES if key_of(number) == gone]
    before = copy_of(first)
    world.clock.passed_s += 2 * DELETE_RETENTION_MS / 1_000
    world.job.put([movie], delete=True)
    world.broker.compact(world.job.source(0), tombstones=True)
    world.job.put([number for number in MOVIES if number != movie])
    world.pass_time(first)  # it restores from the start
    world.stores[first.name] = before
    second = world.join()
    world.pass_time(first, second)
    assert transfers.asked
    assert second.live() == set(range(PARTITIONS))
    assert rows(second) == rows(first)


def test_a_table_that_is_set_aside_wants_no_more_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else who sends them, and the thread that receives them, would wait for ever."""
    world, _, transfers = world_of_one()
    transfers.hangs_after = 2
    second = world.join()
    for _ in world.steps(60):
        if transfers.parts >= 2:
            break
    assert second.replicator is not None
    table = second.replicator._tables["ratings"]
    assert transfers.closed == 0

    def fail() -> None:
        raise ValueError("a mistake of ours")

    monkeypatch.setattr(table, "tick", fail)
    second.replicator.step(poll_s=0)
    assert transfers.closed > 0


# What a gateway gives, and to whom.


def request_of(world: World, member: Member, **changes: object) -> TransferRequest:
    state = member.state()
    asked = TransferRequest(
        table="ratings",
        partition=1,
        generation=state.manifest.generation,
        changelog_topic_id=state.manifest.changelog_topic_id,
        row_digest=state.row_digest,
        format=layout.FORMAT_VERSION,
    )
    for name, value in changes.items():
        setattr(asked, name, value)
    return asked


def given(
    world: World, member: Member, request: TransferRequest, token: ForwardToken | None = None
) -> Sequence[TransferResponse]:
    token = token or ForwardToken("ratings", 1, (1,), "")
    call = LocalCall(None, forwarded=ForwardTokenSigner(SIGNER, world.clock.now_ms).sign(token))
    return list(parts_of(member.store, member.catalogue, request, call, now_ms=world.clock.now_ms))


def test_all_rows_and_where_they_are_whole_are_given() -> None:
    world, first, _ = world_of_one()
    begin, *middle, end = given(world, first, request_of(world, first))
    position = first.positions()[1]
    assert layout.unpack_position(begin.first_position)[0] == layout.unpack_position(end.last_position)[0] == position
    assert position.phase is Phase.LIVE
    assert end.rows == sum(len(part.key_lengths) // 4 for part in middle) >= len(first.rows(1))
    assert set(first.rows(1)) <= {part.keys[at : at + 8] for part in middle for at in range(0, len(part.keys), 8)}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"generation": 2}, "another generation"),
        ({"changelog_topic_id": "another"}, "another generation"),
        ({"row_digest": b"another"}, "another contract"),
        ({"retention_us": 1}, "another contract"),
        ({"format": b"1"}, "another format"),
        ({"table": "customers"}, "no contract here"),
    ],
)
def test_nothing_is_given_of_anything_else(changes: dict[str, object], why: str) -> None:
    world, first, _ = world_of_one()
    with pytest.raises(PartitionUnavailable, match=why):
        given(world, first, request_of(world, first, **changes))


@pytest.mark.parametrize(
    "token",
    [ForwardToken("ratings", 1, (0,), ""), ForwardToken("ratings", 1, (), ""), ForwardToken("ratings", 1, (0, 1), "")],
)
def test_a_token_of_other_partitions_gets_nothing(token: ForwardToken) -> None:
    world, first, _ = world_of_one()
    with pytest.raises(ForeignForward, match="another partition"):
        given(world, first, request_of(world, first), token)


@pytest.mark.parametrize("forwarded", [None, "", "no token"])
def test_a_client_gets_nothing(forwarded: str | None) -> None:
    world, first, _ = world_of_one()
    call = LocalCall(None, forwarded=forwarded)
    with pytest.raises(ForeignForward):
        list(parts_of(first.store, first.catalogue, request_of(world, first), call, now_ms=world.clock.now_ms))


def test_a_partition_that_is_not_live_is_not_given() -> None:
    world, first, _ = world_of_one(replicas=1)
    second = world.join()
    world.settle()
    [moved, *_] = sorted(second.held())
    token = ForwardToken("ratings", 1, (moved,), "")
    with pytest.raises(QueryError, match="being restored"):
        given(world, first, request_of(world, first, partition=moved), token)
