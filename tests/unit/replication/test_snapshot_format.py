"""The bytes of a snapshot file: whatever is done to them, no last part comes that was not written."""

import random
from collections.abc import Iterator

import pytest

from tablegate.gateway.contract.types import Offset
from tablegate.gateway.stores.snapshots.files import SnapshotFile
from tablegate.gateway.stores.snapshots.format import (
    Encoder,
    SnapshotDamaged,
    folder_of,
    new_name,
    parts_in,
    snapshots_of,
)
from tablegate.internal.v1.transfer_pb2 import TransferRequest, TransferResponse
from tests.kit.seeds import seeds

REQUEST = TransferRequest(table="ratings", partition=3, generation=2, changelog_topic_id="id", format=b"6")
PARTS = [
    TransferResponse(first_position=b"first"),
    TransferResponse(keys=b"abc", key_lengths=b"\1\0\0\0\2\0\0\0", values=b"xy"),
    TransferResponse(last_position=b"last", rows=2, digest=b"d" * 32),
]


def encoded() -> bytes:
    encoder = Encoder()
    return encoder.begin(REQUEST) + b"".join(map(encoder.part, PARTS)) + encoder.end()


def chunked(data: bytes, length: int) -> Iterator[bytes]:
    return (data[at : at + length] for at in range(0, len(data), length))


def parts_of(data: bytes, length: int = 1_000) -> list[TransferResponse]:
    """Return the parts that come, whatever comes of the rest."""
    found = []
    try:
        for part in parts_in(chunked(data, length), REQUEST):
            found.append(part)
    except SnapshotDamaged:
        assert not any(part.last_position for part in found)
    return found


@pytest.mark.parametrize("length", [1, 7, 1_000])
def test_parts_come_as_they_were(length: int) -> None:
    assert parts_of(encoded(), length) == PARTS


def test_a_file_that_is_cut_has_no_last_part() -> None:
    data = encoded()
    for length in range(len(data)):
        assert parts_of(data[:length]) != PARTS, length
        with pytest.raises(SnapshotDamaged):
            list(parts_in(chunked(data[:length], 9), REQUEST))


def test_a_file_with_another_bit_has_no_last_part() -> None:
    data = encoded()
    for at in range(len(data)):
        for bit in range(8):
            changed = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            with pytest.raises(SnapshotDamaged):
                list(parts_in(iter([changed]), REQUEST))


@pytest.mark.parametrize("seed", seeds(200, in_check=20))
def test_pieces_of_files_in_any_order_have_no_last_part(seed: int) -> None:
    chance, data = random.Random(seed), encoded()
    pieces = list(chunked(data, chance.randrange(1, 60)))
    turned = b"".join(chance.choices(pieces, k=len(pieces)))
    assert turned == data or PARTS[-1] not in parts_of(turned)


@pytest.mark.parametrize(
    "changes",
    [{"table": "customers"}, {"partition": 4}, {"generation": 3}, {"changelog_topic_id": "x"}, {"format": b"5"}],
    ids=str,
)
def test_a_file_of_anything_else_gives_nothing(changes: dict[str, object]) -> None:
    other = TransferRequest()
    other.CopyFrom(REQUEST)
    for name, value in changes.items():
        setattr(other, name, value)
    with pytest.raises(SnapshotDamaged, match="of another table, partition, generation or contract"):
        next(parts_in(iter([encoded()]), other))


def test_a_name_says_what_is_in_a_file() -> None:
    name = new_name(REQUEST, time_ms=1_790_000_000_000, next_offset=Offset(12), draw=1 << 63)
    [found] = snapshots_of(iter([SnapshotFile(name, 9)]))
    assert found == (folder_of(REQUEST), 3, 1_790_000_000_000, 12, SnapshotFile(name, 9))


@pytest.mark.parametrize("name", ["", "README", "ratings/x", "ratings/2-0123456789abcdef/3/latest", "../../etc/passwd"])
def test_files_of_others_are_none_of_ours(name: str) -> None:
    assert list(snapshots_of(iter([SnapshotFile(name, 9)]))) == []


def test_each_generation_and_contract_has_a_folder_of_its_own() -> None:
    others = []
    for changes in ({}, {"generation": 3}, {"changelog_topic_id": "x"}, {"row_digest": b"x"}, {"retention_us": 1}):
        other = TransferRequest()
        other.CopyFrom(REQUEST)
        for field, value in changes.items():
            setattr(other, field, value)
        others.append(folder_of(other))
    assert len(set(others)) == 5
    assert folder_of(TransferRequest(table="ratings", partition=9, generation=2)) == folder_of(
        TransferRequest(table="ratings", generation=2)
    )
