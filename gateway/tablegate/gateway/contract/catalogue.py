"""The catalogue: every table and query of the contracts, checked. Made by `binder.bind`, then only read."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

from tablegate.gateway.contract.http_rules import HttpRoute
from tablegate.gateway.contract.indexes import Index, RowIndexes
from tablegate.gateway.contract.keys import (
    KeyColumn,
    crc32_partition,
    key_prefix,
    murmur2_partition,
    murmur2_partitions,
)
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.contract.windows import Expiry, Window
from tablegate.v1 import options_pb2
from tablegate.v1.changelog_pb2 import Manifest


class Partitioner(Enum):
    """How key bytes become a partition; numbers as in the contract."""

    MURMUR2 = options_pb2.PARTITIONER_MURMUR2
    CRC32 = options_pb2.PARTITIONER_CRC32


def _field_texts(message: Descriptor, path: str, above: tuple[str, ...]) -> Iterator[str]:
    for column in message.fields:
        text = f"{path}{column.number}:{column.name}:{column.type}:{column.has_presence}"
        if column.is_repeated:
            text += ":repeated"
        inner = column.message_type
        yield text + (f":{inner.full_name}" if inner else "")
        if inner is not None and inner.full_name not in above:
            yield from _field_texts(inner, f"{path}{column.number}.", (*above, inner.full_name))


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a contract. Without `window` its rows are no windows; without `expiry` they stay.

    `row` and `row_class` belong to the catalogue's own descriptor pool: its messages do not mix with those of
    another pool, only their bytes do.
    """

    name: str
    row: Descriptor
    row_class: type[Message]
    key: tuple[KeyColumn, ...]
    partition_by_count: int
    partitioner: Partitioner
    window: Window | None = None
    expiry: Expiry | None = None
    indexes: tuple[Index, ...] = ()

    @property
    def row_indexes(self) -> RowIndexes:
        """The indexes, as a store keeps them."""
        return RowIndexes(self.indexes, self.row_class)

    @property
    def fingerprint(self) -> bytes:
        """SHA-256 of what writer and readers must agree on: key columns and their types, partitioning, windows."""
        columns = ",".join(f"{column.name}:{column.type.name}" for column in self.key)
        text = f"{self.name}({columns})/{self.partition_by_count}/{self.partitioner.name}"
        if self.window is not None:
            start = self.key[self.window.start_index].name
            text += f"/{start}:{self.window.size_us}:{self.window.hop_us}"
        return hashlib.sha256(text.encode()).digest()

    @property
    def row_digest(self) -> bytes:
        """SHA-256 of what the bytes of stored rows depend on: the fields of the row message, and their numbers.

        Those of messages in it, too, by where they are.
        """
        return hashlib.sha256(",".join(sorted(_field_texts(self.row, "", ()))).encode()).digest()

    @property
    def retention_us(self) -> int | None:
        """How long after the end of its window a row is gone; None where rows stay."""
        return None if self.expiry is None else self.expiry.retention_us

    def manifest(self, **more: Any) -> Manifest:
        """Return a manifest with what writer and readers must agree on, and `more` fields."""
        return Manifest(
            table=self.name,
            contract_fingerprint=self.fingerprint,
            partitioner=self.partitioner.value,
            partition_by_count=self.partition_by_count,
            key=[{"name": column.name, "type": column.type.value} for column in self.key],
            **more,
        )

    def partition_of(self, key: bytes, partition_count: int) -> Partition:
        """Return the partition of a whole key's bytes."""
        if self.partitioner is Partitioner.MURMUR2:
            return murmur2_partition(key, partition_count)
        return crc32_partition(self.partition_prefix(key), partition_count)

    def partitions_of(self, keys: Sequence[bytes], partition_count: int) -> Sequence[int]:
        """Return what `partition_of` returns for each key; of many keys each costs less."""
        if self.partitioner is Partitioner.MURMUR2:
            return murmur2_partitions(keys, partition_count)
        prefix = self.partition_prefix
        return [crc32_partition(prefix(key), partition_count) for key in keys]

    def partition_prefix(self, key: bytes) -> bytes:
        """Return the leading bytes of `key` that hold the `partition_by` columns."""
        if self.partition_by_count == len(self.key):
            return key
        return key_prefix(self.key[: self.partition_by_count], key)


class Op(Enum):
    """How a request field's value constrains a column; numbers as in the contract."""

    EQ = options_pb2.OP_EQ
    GT = options_pb2.OP_GT
    GTE = options_pb2.OP_GTE
    LT = options_pb2.OP_LT
    LTE = options_pb2.OP_LTE
    PREFIX = options_pb2.OP_PREFIX
    CONTAINS = options_pb2.OP_CONTAINS
    IN = options_pb2.OP_IN


@dataclass(frozen=True, slots=True)
class Param:
    """A request field that constrains a column.

    `key_index` is the column's place in the key, None for another column. `required` params are always applied; the
    others only where the field is set. `within`: the messages of the row that the column is in, the outermost first.
    """

    field: FieldDescriptor
    column: FieldDescriptor
    op: Op
    key_index: int | None
    required: bool
    within: tuple[FieldDescriptor, ...] = ()

    @property
    def column_name(self) -> str:
        """The name of the column, as a contract writes it: `address.city`."""
        return ".".join(field.name for field in (*self.within, self.column))


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A method that reads a table. Request and response fields that the contract lacks are None."""

    path: str  # "/examples.ratings.v1.RatingsService/GetRating"
    table: Table
    request_class: type[Message]
    response_class: type[Message]
    default_timeout_s: float
    max_timeout_s: float
    read_options: FieldDescriptor | None  # of the request, type ReadOptions
    read_mask: FieldDescriptor | None = None  # of the request, type google.protobuf.FieldMask
    read_info: FieldDescriptor | None  # of the response, type ReadInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class GetQuery(Query):
    """The row of one key. `params` has one EQ for each column of the key, or of the unique index, in its order."""

    params: tuple[Param, ...]
    row: FieldDescriptor
    missing_is_empty: bool
    index: Index | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchGetQuery(Query):
    """The rows of several keys, in the order asked.

    `keys` is the repeated request field; `key_fields` the fields of its message that hold the key columns, in key
    order (empty where `keys` is a repeated column value itself, for a key of one column). With a unique `index` they
    are its columns instead. `results` is the repeated
    response field, whose message has `found` (the row) and `missing` (of the type of `keys`) in a oneof.
    """

    keys: FieldDescriptor
    key_fields: tuple[FieldDescriptor, ...]
    results: FieldDescriptor
    found: FieldDescriptor
    missing: FieldDescriptor
    max_keys: int
    index: Index | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeQuery(Query):
    """A run of keys, a page at a time, and of it the rows that pass the filters.

    `prefix` are required EQ params on leading key columns, in key order; `bounds` the optional params on the next key
    column (EQ, GT, GTE, LT, LTE, PREFIX). With an `index` they are so of its columns; a repeated one has a CONTAINS.
    """

    prefix: tuple[Param, ...]
    bounds: tuple[Param, ...]
    rows: FieldDescriptor
    order: FieldDescriptor | None  # of the request, type Order
    page_size: FieldDescriptor
    page_token: FieldDescriptor
    next_page_token: FieldDescriptor
    default_page_size: int
    max_page_size: int
    scatter: bool
    index: Index | None = None
    filters: tuple[Param, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CountQuery(Query):
    """How many rows a run of keys, or of an index, has that pass the filters. Params are those of a `RangeQuery`."""

    prefix: tuple[Param, ...]
    bounds: tuple[Param, ...]
    count: FieldDescriptor  # of the response
    scatter: bool
    index: Index | None = None
    filters: tuple[Param, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanQuery(Query):
    """Every row that passes the filters."""

    filters: tuple[Param, ...]
    rows: FieldDescriptor
    scan_options: FieldDescriptor | None  # of the request, type ScanOptions
    progress: FieldDescriptor | None  # of the response, type ScanProgress
    max_rows: int  # 0 = no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeQuery(Query):
    """The rows, then their changes.

    `changes` is the repeated response field, whose message has `upsert` (the row) and `delete` (a message of the key
    columns) in a oneof. `keys` is the repeated request field of the keys that it is for, as in a BatchGet; none given:
    no such limit.
    """

    params: tuple[Param, ...]
    keys: FieldDescriptor | None
    key_fields: tuple[FieldDescriptor, ...]
    changes: FieldDescriptor
    upsert: FieldDescriptor
    delete: FieldDescriptor
    subscribe_options: FieldDescriptor
    progress: FieldDescriptor
    scatter: bool
    disconnects_slow: bool  # otherwise a slow subscriber misses values between


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All tables by name, all queries by path; other methods of the same services by path, streaming or not.

    `routes` are the HTTP requests that the services' methods say they are. `message_classes` are those of all messages
    that may be met: the catalogue keeps them (decision 198).
    """

    tables: Mapping[str, Table]
    queries: Mapping[str, Query]
    other_methods: Mapping[str, bool] = field(default_factory=dict)  # path → response is a stream
    services: tuple[str, ...] = ()
    routes: tuple[HttpRoute, ...] = ()
    pool: DescriptorPool = field(default_factory=DescriptorPool)
    files: FileDescriptorSet = field(default_factory=FileDescriptorSet)
    message_classes: tuple[type[Message], ...] = ()
