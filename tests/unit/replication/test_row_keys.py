"""Keys at apply: what is stored under a key is the row of that key, in the partition where a Get asks for it."""

import json
import struct
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.keys import encode_key, murmur2, murmur2_many, murmur2_partition, murmur2_partitions
from tablegate.gateway.contract.rows import RowDecoder, row_schema
from tablegate.gateway.contract.types import Offset, Partition, make_version
from tablegate.gateway.kafka.log import Record
from tablegate.gateway.replication.records import Batch, RecordReader
from tablegate.gateway.stores.base import Phase, Position
from tests.kit.replication.replicator import Gateway, Job, key_of, value_of
from tests.kit.table.filled import catalogue_of
from tests.kit.table.parcels import PARCELS

NO_KEY, ANOTHER, OTHER_PARTITION = (
    "key is none of the table",
    "row has other key columns than its key",
    "key belongs to another partition",
)


def parcels() -> Table:
    return catalogue_of(PARCELS).tables["parcels"]


def parcel(depot: str, number: int) -> bytes:
    columns: dict[str, Any] = {"depot": depot, "number": number, "weight": 1, "moves": None}
    body = BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(row_schema(parcels())), columns)
    return struct.pack(">bI", 0, 1) + body.getvalue()


def read(table: Table, *records: tuple[bytes, bytes | None], partition: int, count: int) -> Batch:
    """Return what records of a partition come to, each a key and a value."""
    decoder = RowDecoder(table, {1: json.dumps(row_schema(table))})
    reader = RecordReader(1, table=table, partition_count=count, decoder=decoder)
    found = [
        Record(Offset(at), key, value, make_version(1, at), at) for at, (key, value) in enumerate(records, start=0)
    ]
    return reader.read(found, Position(Offset(0), 0, Phase.LIVE, Offset(0)), Partition(partition), passed_ms=0)


def key(depot: str, number: int) -> bytes:
    return encode_key(parcels().key, [depot, number])


@pytest.mark.parametrize(
    ("bytes_", "value", "reason"),
    [
        (b"k", parcel("ash", 1), NO_KEY),
        (b"k", None, NO_KEY),
        (key("ash", 1) + b"\0", parcel("ash", 1), NO_KEY),
        (key("ash", 1) + b"\0", None, NO_KEY),
        (key("ash", 1)[:-1], None, NO_KEY),
        (b"\xff\0\0" + bytes(8), None, NO_KEY),  # no UTF-8
        (b"a\0b\0\0" + bytes(8), None, NO_KEY),  # an escape that is none
        (key("ash", 1), parcel("ash", 2), ANOTHER),
        (key("ash", 1), parcel("birch", 1), ANOTHER),
        (key("", 1), parcel("\0", 1), ANOTHER),
    ],
)
def test_a_key_that_is_not_the_rows_is_poison(bytes_: bytes, value: bytes | None, reason: str) -> None:
    batch = read(parcels(), (key("ash", 0), parcel("ash", 0)), (bytes_, value), partition=0, count=1)
    assert [change.key for change in batch.changes] == [key("ash", 0)]
    assert batch.skipped == [(reason, 1)]


@pytest.mark.parametrize("bytes_", [b"\0", b"\0" * 7, b"\0" * 9])
@pytest.mark.parametrize("value", [None, value_of(0, 1)], ids=["tombstone", "row"])
def test_a_number_has_eight_bytes(bytes_: bytes, value: bytes | None) -> None:
    table = catalogue_of().tables["ratings"]
    batch = read(table, (bytes_, value), partition=0, count=1)
    assert batch.changes == []
    assert batch.skipped == [(NO_KEY, 0)]


@pytest.mark.parametrize("partition", range(3))
def test_a_key_of_another_partition_is_poison(partition: int) -> None:
    for table, pairs in (
        (catalogue_of().tables["ratings"], [(key_of(number), value_of(number, 1)) for number in range(40)]),
        (parcels(), [(key(depot, number), parcel(depot, number)) for depot in "abcdef" for number in range(7)]),
    ):
        batch = read(table, *pairs, *((each, None) for each, _ in pairs), partition=partition, count=3)
        own = [each for each, _ in pairs if table.partition_of(each, 3) == partition]
        assert [change.key for change in batch.changes] == own * 2
        assert [reason for reason, _ in batch.skipped] == [OTHER_PARTITION] * (2 * len(pairs) - 2 * len(own))


@given(depot=st.text(max_size=20), number=st.integers(-(2**63), 2**63 - 1))
def test_the_key_that_a_job_writes_is_the_rows(depot: str, number: int) -> None:
    batch = read(
        parcels(), (key(depot, number), parcel(depot, number)), (key(depot, number), None), partition=0, count=1
    )
    assert batch.skipped == []
    assert len(batch.changes) == 2


@given(keys=st.lists(st.binary(max_size=40), max_size=60), count=st.integers(1, 100))
def test_many_keys_hash_as_one(keys: Sequence[bytes], count: int) -> None:
    assert list(murmur2_many(keys)) == [murmur2(each) for each in keys]
    assert murmur2_partitions(keys, count) == [murmur2_partition(each, count) for each in keys]


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 7, 8, 12, 31, 500])
def test_many_keys_of_one_length_hash_as_one(length: int) -> None:
    keys = [bytes((place * 37 + at * 11) % 256 for at in range(length)) for place in range(100)]
    assert list(murmur2_many(keys)) == [murmur2(each) for each in keys]


def test_poison_of_keys_is_told_by_reason(gateway: Gateway, job: Job) -> None:
    job.publish().put([1, 2])
    gateway.steps()
    own, other = (Partition(each) for each in (0, 1))
    strange = next(number for number in range(100) if murmur2_partition(key_of(number), 2) == other)
    for at, (each, value) in enumerate(
        [(b"k", value_of(5, 1)), (b"k", None), (key_of(5), value_of(6, 1)), (key_of(strange), value_of(strange, 1))]
    ):
        job.broker.append(job.source(own), each, value, version=make_version(1, at))
    gateway.seconds(1)
    assert {each.reason: each.count for each in gateway.table_status().poison} == {
        NO_KEY: 2,
        ANOTHER: 1,
        OTHER_PARTITION: 1,
    }
    assert gateway.table_status().poison_records == 4
    assert gateway.rows().keys() == {1, 2}
