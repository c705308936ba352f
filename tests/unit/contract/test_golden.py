import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict

from tablegate.gateway.contract.keys import (
    KeyColumn,
    KeyType,
    crc32_partition,
    decode_key,
    encode_key,
    key_prefix,
    murmur2,
    murmur2_partition,
)
from tablegate.gateway.contract.tokens import TokenSigner
from tablegate.gateway.contract.types import Partition, Version, make_version, read_version
from tablegate.internal.v1.tokens_pb2 import Token

GOLDEN = Path(__file__).parents[2] / "golden"


def golden(name: str) -> list[Any]:
    return json.loads((GOLDEN / name).read_text("utf-8"))


@pytest.mark.parametrize("one", golden("keys.json"), ids=lambda one: one["name"])
def test_key_bytes(one):
    columns = [KeyColumn(name, KeyType[type_]) for name, type_ in one["columns"]]
    values = [
        bytes.fromhex(value) if column.type is KeyType.BYTES else value
        for column, value in zip(columns, one["values"], strict=True)
    ]
    assert encode_key(columns, values).hex() == one["key"]
    assert decode_key(columns, bytes.fromhex(one["key"])) == values


def test_each_key_has_its_partitions():
    placed = {(one["partitioner"], one["key"]) for one in golden("partitions.json")}
    for one in golden("keys.json"):
        first = KeyColumn("first", KeyType[one["columns"][0][1]])
        prefix = key_prefix([first], bytes.fromhex(one["key"]))
        assert {("MURMUR2", one["key"]), ("CRC32", prefix.hex())} <= placed, one["name"]


@pytest.mark.parametrize("one", golden("versions.json"), ids=lambda one: one["header"])
def test_version_header(one):
    version = make_version(one["generation"], one["sequence"])
    assert version.hex() == one["header"]
    assert read_version(Version(bytes.fromhex(one["header"]))) == (one["generation"], one["sequence"])


def test_versions_are_in_order():
    versions = [make_version(one["generation"], one["sequence"]) for one in golden("versions.json")]
    assert versions == sorted(versions)


@pytest.mark.parametrize("one", golden("partitions.json"), ids=lambda one: f"{one['partitioner']} {one['key']}")
def test_partitions(one):
    key = bytes.fromhex(one["key"])
    partition_of = murmur2_partition if one["partitioner"] == "MURMUR2" else crc32_partition
    for count, partition in one["partitions"].items():
        assert partition_of(key, int(count)) == Partition(partition)
    if one["partitioner"] == "MURMUR2":
        assert murmur2(key) == one["hash"] % 2**32


@pytest.mark.parametrize("one", golden("tokens.json"), ids=lambda one: one["name"])
def test_tokens(one):
    signer = TokenSigner([bytes.fromhex(one["key"])])
    token = ParseDict(one["token"], Token())
    assert signer.sign(token) == one["text"]
    opened = signer.open(
        one["text"],
        kind=token.kind,
        table=token.table,
        generation=token.generation,
        request_hash=token.request_hash,
    )
    assert opened == token
