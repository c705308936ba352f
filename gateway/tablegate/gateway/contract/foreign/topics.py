"""A topic that others write, as a table: the rows of its records, and the partition of a key.

A manifest says what the records are (`ForeignTopic`). A row has the columns of the record's key, and those of its
value. Its key bytes are the table's own, whose order is that of the columns: so stores, ranges and tokens are as for
any table. The producer has chosen the partition by other bytes, so these are made of our key again where one is asked
for.

Decision: docs/decisions/0093-topics-of-others.md
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tablegate.gateway.contract.catalogue import Partitioner, Table
from tablegate.gateway.contract.columns import oneof_of
from tablegate.gateway.contract.foreign.framing import HeaderFrames, ProtobufFrame, SchemaIds
from tablegate.gateway.contract.foreign.keys import UnfitTopic, has_one_writing, key_message, key_reader
from tablegate.gateway.contract.foreign.values import stored_bytes, value_reader
from tablegate.gateway.contract.keys import (
    ENCODERS,
    KEY_BYTES_MAX,
    InvalidKey,
    KeyValue,
    decode_key,
    murmur2_partition,
    murmur2_partitions,
)
from tablegate.gateway.contract.rows import UndecodableRecord
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.contract.value_schemas import columns_of
from tablegate.v1 import changelog_pb2
from tablegate.v1.changelog_pb2 import ForeignTopic, Manifest

__all__ = [
    "ForeignRows",
    "PartitionOf",
    "UnfitTopic",
    "is_anywhere",
    "partition_function",
    "rows_digest",
    "unfit_reason",
]

_OTHER_PARTITION = (
    "key belongs to another partition: producers place keys in another way (say --partitioner unknown), or wrote it "
    "when the topic had fewer (have them write it again)"
)
_OTHER_WRITING = "key is written in another way than its columns say, and would not be found; say --partitioner unknown"

_READER = 4  # counted up where the same records come to other rows than before, so that stores are restored

_BY_ID, _BY_NO_ID, _PROTOBUF = "by id", "by no id", "protobuf"
_KEY_FRAMES: Mapping[int, str] = {
    changelog_pb2.KEY_CODEC_AVRO: _BY_ID,
    changelog_pb2.KEY_CODEC_PROTOBUF: _PROTOBUF,
}
_VALUE_FRAMES: Mapping[int, str] = {
    changelog_pb2.VALUE_CODEC_AVRO: _BY_ID,
    changelog_pb2.VALUE_CODEC_DEBEZIUM_AVRO: _BY_ID,
    changelog_pb2.VALUE_CODEC_JSON_SCHEMA: _BY_NO_ID,
    changelog_pb2.VALUE_CODEC_PROTOBUF: _PROTOBUF,
}
"""Codecs whose records have the id of a schema, and whether it is asked for."""

ForeignRow = tuple[bytes, bytes | None]
"""The key bytes of a record, and its row; None where it is deleted."""

PartitionOf = Callable[[bytes, int], Partition]
"""From a whole key's bytes and the number of partitions to the partition."""


class ForeignRows:
    """Makes rows of the records of a manifest's topic. Raises `UnfitTopic` when made. One thread."""

    def __init__(self, table: Table, manifest: Manifest) -> None:
        topic = manifest.foreign
        if table.partition_by_count != len(table.key) or table.partitioner is not Partitioner.MURMUR2:
            raise UnfitTopic(
                "its contract says partition_by or a partitioner, and the producers of the topic do not go by it; take "
                "both out of the contract"
            )
        encoders: list[Any] = [ENCODERS[column.type] for column in table.key]
        self._encode_first, *self._encode_rest = encoders
        self._partition_count = manifest.partition_count
        self._keys = key_reader(table, topic)
        self._values = value_reader(table, topic, manifest.value_schemas)
        self._key_frames = _header_frames(topic, "key", topic.key_codec, _KEY_FRAMES, topic.key_index)
        self._value_frames = _header_frames(topic, "value", topic.value_codec, _VALUE_FRAMES, topic.value_index)
        self._value_start = stored_bytes(topic)
        self.reads_headers = self._key_frames is not None or self._value_frames is not None
        self._is_placed = topic.record_partitioner == changelog_pb2.RECORD_PARTITIONER_MURMUR2
        if not self._is_placed and topic.record_partitioner != changelog_pb2.RECORD_PARTITIONER_UNKNOWN:
            raise UnfitTopic("its partitioner is of a newer version of Tablegate; start newer gateways")
        if self._is_placed and not has_one_writing(topic):
            raise UnfitTopic(
                "the bytes of its keys have schema ids, of which a gateway knows none or several, so it cannot compute "
                "a key's partition; say --partitioner unknown"
            )

    def read(
        self, key: bytes | None, value: bytes | None, partition: Partition, ids: SchemaIds | None = None
    ) -> ForeignRow:
        """Return the key bytes and the row of a record; raise `UndecodableRecord`."""
        [found] = self.read_all_with_ids([(key, value)], [ids], partition)
        if isinstance(found, Exception):
            raise found
        return found

    def content(self, value: bytes, ids: SchemaIds | None = None) -> Any:
        """Return what the row of a value is made of, as `ValueReader.content` does; raise `UndecodableRecord`."""
        framed = (None, value) if ids is None else self._framed(None, value, ids)
        if isinstance(framed, Exception):
            raise framed
        assert framed[1] is not None
        return self._values.content(framed[1])

    def read_all(
        self, records: Sequence[tuple[bytes | None, bytes | None]], partition: Partition
    ) -> list[ForeignRow | Exception]:
        """Return of each record, which is a key and a value, what `read` returns or raises; of many each costs less."""
        keys = [self._read_key(key) for key, _ in records]
        places: Iterable[int] = [partition] * len(keys)
        if self._is_placed:
            written = [b"" if isinstance(key, Exception) else key[1] for key in keys]
            places = murmur2_partitions(written, self._partition_count)
        rows: list[ForeignRow | Exception] = []
        append, make = rows.append, self._make
        for (key, value), found, place in zip(records, keys, places, strict=True):
            if isinstance(found, Exception):
                append(found)
                continue
            values, written_key = found
            try:
                if place != partition:
                    is_same = key is not None and key.startswith(written_key)
                    raise UndecodableRecord(_OTHER_PARTITION if is_same else _OTHER_WRITING)
                append(make(values, value))
            except Exception as error:  # noqa: BLE001  one bad record is no reason to read none of the others
                append(error)
        return rows

    def read_all_with_ids(
        self,
        records: Sequence[tuple[bytes | None, bytes | None]],
        ids: Sequence[SchemaIds | None],
        partition: Partition,
    ) -> list[ForeignRow | Exception]:
        """Return what `read_all` does, of records that may have ids of schemas in headers."""
        framed = [
            record if one is None else self._framed(*record, one) for record, one in zip(records, ids, strict=True)
        ]
        found = iter(self.read_all([one for one in framed if not isinstance(one, Exception)], partition))
        return [one if isinstance(one, Exception) else next(found) for one in framed]

    def _framed(
        self, key: bytes | None, value: bytes | None, ids: SchemaIds
    ) -> tuple[bytes | None, bytes | None] | Exception:
        """Return a record as if its ids were before its bytes. Codecs without ids take no notice of them."""
        try:
            if key is not None and ids.key is not None and self._key_frames is not None:
                key = self._key_frames.before(ids.key) + key
            if value is not None and ids.value is not None and self._value_frames is not None:
                start = self._value_start
                value = value[:start] + self._value_frames.before(ids.value) + value[start:]
        except UndecodableRecord as error:
            return error
        return key, value

    def _read_key(self, key: bytes | None) -> tuple[Sequence[KeyValue], bytes] | Exception:
        """Return the columns of a key, and the bytes by which its partition was chosen."""
        try:
            if key is None:
                raise UndecodableRecord("key is null")
            values = self._keys.read(key)
            return values, self._keys.placed_by(key, values) if self._is_placed else b""
        except Exception as error:  # noqa: BLE001  as in `read_all`
            return error

    def _make(self, key: Sequence[KeyValue], value: bytes | None) -> ForeignRow:
        try:
            # Not `encode_key`, which looks encoders up for each value: this runs for each record of a restore.
            own: bytes = self._encode_first(key[0])
            if self._encode_rest:
                own += b"".join([encode(column) for encode, column in zip(self._encode_rest, key[1:], strict=True)])
        except InvalidKey:
            raise UndecodableRecord("key has a value that its column cannot hold") from None
        if len(own) > KEY_BYTES_MAX:
            raise UndecodableRecord(f"key is longer than {KEY_BYTES_MAX} bytes")
        return own, None if value is None else self._values.read(value, key)


def _header_frames(
    topic: ForeignTopic, what: str, codec: int, frames: Mapping[int, str], index: Sequence[int]
) -> HeaderFrames | None:
    """Return what reads the ids of keys or values in headers; None where their codec has no ids."""
    kind = frames.get(codec)
    if kind is None:
        return None
    paths = ProtobufFrame(index, what).paths if kind == _PROTOBUF else (b"",)
    return HeaderFrames(what, topic.schema_guids if kind == _BY_ID else None, paths)


def partition_function(table: Table, manifest: Manifest) -> PartitionOf:
    """Return how keys of a manifest's topic are found, without what it says of values; raise `UnfitTopic`.

    Where any partition may have a key, and where no record can have it, that is the first one.
    """
    if is_anywhere(manifest):
        return lambda _key, _count: Partition(0)
    keys = key_reader(table, manifest.foreign)

    def partition_of(key: bytes, partition_count: int) -> Partition:
        try:
            return murmur2_partition(keys.write(decode_key(table.key, key)), partition_count)
        except UndecodableRecord:
            return Partition(0)

    return partition_of


def is_anywhere(manifest: Manifest) -> bool:
    """Return whether any partition may have a key, as nobody knows how producers place it."""
    return manifest.foreign.record_partitioner == changelog_pb2.RECORD_PARTITIONER_UNKNOWN


def rows_digest(table: Table, manifest: Manifest) -> bytes:
    """Return SHA-256 of what the rows of a manifest depend on in the contract; a store with another one is restored.

    Records of others name fields and enum values as JSON does, and their keys may be a message of the contract.
    """
    if not manifest.HasField("foreign"):
        return table.row_digest
    columns = [*columns_of(table.row)]
    name = manifest.foreign.key_message
    if name:
        columns += key_message(table, name).fields
    texts = [f"{column.full_name}:{column.number}:{column.json_name}:{oneof_of(column)}" for column in columns]
    enums = [column.enum_type for column in columns if column.enum_type is not None]
    texts += [f"{enum.full_name}.{value.name}:{value.number}" for enum in enums for value in enum.values]
    texts.append(f"reader {_READER}")
    return hashlib.sha256(table.row_digest + ",".join(sorted({*texts})).encode()).digest()


def unfit_reason(table: Table, manifest: Manifest) -> str | None:
    """Return why the records of a manifest's topic cannot be rows of the table; None where they can."""
    try:
        ForeignRows(table, manifest)
    except UnfitTopic as error:
        return str(error)
    return None
