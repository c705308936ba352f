"""The client's key bytes and partitions are those of jobs and gateways: held to the same vectors, and to theirs."""

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from tablegate.client import owners as keys
from tablegate.gateway.contract.keys import ENCODERS, INT64_MAX, INT64_MIN, KeyType, crc32_partition, murmur2_partition
from tablegate.v1 import options_pb2

GOLDEN = Path(__file__).parents[2] / "golden"
CASES = json.loads((GOLDEN / "keys.json").read_text())
PARTITIONS = json.loads((GOLDEN / "partitions.json").read_text())
VALUES: dict[KeyType, st.SearchStrategy[Any]] = {
    KeyType.INT64: st.integers(INT64_MIN, INT64_MAX),
    KeyType.TIMESTAMP: st.integers(INT64_MIN, INT64_MAX),
    KeyType.BOOL: st.booleans(),
    KeyType.STRING: st.text(),
    KeyType.BYTES: st.binary(),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_key_bytes(case: dict[str, Any]) -> None:
    types = [KeyType[name] for _, name in case["columns"]]
    values = [
        bytes.fromhex(value) if each is KeyType.BYTES else value
        for each, value in zip(types, case["values"], strict=True)
    ]
    made = b"".join(keys.encode(each, value) for each, value in zip(types, values, strict=True))
    assert made.hex() == case["key"]


@pytest.mark.parametrize("case", PARTITIONS, ids=lambda case: f"{case['partitioner']} {case['key']}")
def test_partitions(case: dict[str, Any]) -> None:
    key = bytes.fromhex(case["key"])
    partitioner = options_pb2.Partitioner.Value(f"PARTITIONER_{case['partitioner']}")
    for count, partition in case["partitions"].items():
        assert keys.partition_of(key, partitioner, int(count)) == partition


@given(st.sampled_from(list(KeyType)).flatmap(lambda each: st.tuples(st.just(each), VALUES[each])))
def test_key_bytes_are_those_of_the_gateway(typed: tuple[KeyType, Any]) -> None:
    key_type, value = typed
    assert keys.encode(key_type, value) == ENCODERS[key_type](value)  # type: ignore[operator]


@given(st.binary(max_size=64), st.integers(1, 1_000))
def test_partitions_are_those_of_the_gateway(key: bytes, count: int) -> None:
    assert keys.partition_of(key, keys.MURMUR2, count) == murmur2_partition(key, count)
    assert keys.partition_of(key, keys.CRC32, count) == crc32_partition(key, count)


def test_a_timestamp_is_its_microseconds() -> None:
    moment = Timestamp(seconds=-5, nanos=7_000)
    assert keys.encode(keys.TIMESTAMP, moment) == keys.encode(keys.INT64, -5_000_000 + 7)


@pytest.mark.parametrize(
    ("key_type", "value"),
    [
        (keys.INT64, 2**63),
        (keys.INT64, "7"),
        (keys.STRING, 7),
        (keys.BYTES, 7),
        (keys.TIMESTAMP, "now"),
        (keys.TIMESTAMP, Timestamp(nanos=1)),
        (99, 7),
    ],
)
def test_what_no_key_has_is_refused(key_type: int, value: Any) -> None:
    with pytest.raises(keys.NoKey):
        keys.encode(key_type, value)
    with pytest.raises(keys.NoKey):
        keys.partition_of(b"", 99, 1)
