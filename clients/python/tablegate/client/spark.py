"""Tables as DataFrames of Spark: `spark.read.format("tablegate")`. It needs `tablegate-client[arrow]` and PySpark 4.1.

    from tablegate.client.spark import register

    register(spark)
    ratings = spark.read.format("tablegate").option("address", "gateway:50051").option("table", "ratings").load()

How it works: the driver asks the gateway for its contracts, by reflection, and for slices of a Scan. Each task reads a
slice, and gives Arrow's record batches. Where the filters of a query give every column of the key by = or IN, tasks
read these keys by BatchGet instead. Of all other filters those are sent along that the Scan has a field for, and Spark
applies each once more: what is sent may let too much through, and never too little.

| option | |
|---|---|
| `address` | of a gateway, host:port |
| `table` | name of the table |
| `fields` | only these fields of rows, and their keys: names with commas between |
| `slices` | at most so many tasks, 32 unless it is said; a task reads one partition or more |
| `credential` | file of a JWT or an API key |
| `ca` | for TLS: PEM file of the CA to trust; "system": those that gRPC trusts |
| `cert`, `key` | PEM files of a client certificate |

Files are read by the driver alone.

Decision: docs/decisions/0159-tables-for-spark.md
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice, product
from typing import Any

import grpc
import pyarrow as pa
from google.protobuf.message import Message
from pyspark.sql import SparkSession
from pyspark.sql import types as spark_types
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.pandas.types import to_arrow_schema

from tablegate.client.arrow import arrow_schema, record_batches
from tablegate.client.arrow_rows import row_batches
from tablegate.client.connection import Connection, connection_of
from tablegate.client.failures import failure_of
from tablegate.client.queries import (
    READ_MASK,
    SCAN_OPTIONS,
    SCAN_PROGRESS,
    QueryError,
    TableQueries,
    answered,
    field_of,
    queries_of,
)
from tablegate.v1 import options_pb2
from tablegate.v1.query_pb2 import ScanProgress

__all__ = ["Tablegate", "register"]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
OPTIONS = ("address", "table", "fields", "slices", "credential", "ca", "cert", "key")
SLICES_DEFAULT = 32
SLICES_MAX = 1_000  # as a gateway has it
KEYS_MAX = 10_000  # of a query; of more, a scan is the faster way
FAILURES_MAX = 5  # of a stream, one after the other without a row between


def register(spark: SparkSession) -> None:
    """Make the format known to a session, and let Spark give filters to it, which it does not unless it is told."""
    spark.dataSource.register(Tablegate)
    spark.conf.set(PUSHDOWN, "true")


class Tablegate(DataSource):  # type: ignore[misc] # mypy skips PySpark
    """The format "tablegate"."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Check the options; raise `QueryError`."""
        unknown = sorted({name.lower() for name in options} - {*OPTIONS})
        if unknown:
            raise QueryError(f'the format tablegate has no option "{unknown[0]}": it has {", ".join(OPTIONS)}')
        for name in ("address", "table"):
            if not options.get(name):
                raise QueryError(f'the option "{name}" is missing: add .option("{name}", ...)')
        self._table = options["table"]
        self._paths = [path.strip() for path in options.get("fields", "").split(",") if path.strip()]
        self._slices = _slices(options.get("slices", str(SLICES_DEFAULT)))
        self._connection = connection_of(options)
        self._queries: TableQueries | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "tablegate"

    def schema(self) -> spark_types.StructType:
        """Return the columns of the row, as the contract says them."""
        queries = self._known()
        columns = _columns(queries, self._paths)
        try:
            schema = arrow_schema(queries.row_class, columns=columns)
        except ValueError as error:
            raise QueryError(str(error)) from None
        struct: spark_types.StructType = _spark_type(pa.struct(list(schema)))
        return struct

    def reader(self, schema: spark_types.StructType) -> "_Reader":
        """Return the reader; raise `QueryError` where the schema is not that of the table."""
        if schema.fieldNames() != self.schema().fieldNames():
            raise QueryError("the columns come from the contract: leave .schema() out, and choose by the option fields")
        return _Reader(self._connection, self._known(), schema, self._paths, self._slices)

    def _known(self) -> TableQueries:
        if self._queries is None:
            with self._connection.open() as channel:
                self._queries = queries_of(channel, self._connection.address, self._table)
        return self._queries


def _slices(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= SLICES_MAX:
        raise QueryError(f'the option slices is "{text}": give a number from 1 to {SLICES_MAX}')
    return int(text)


def _columns(queries: TableQueries, paths: Sequence[str]) -> list[str]:
    """Return the columns that are wanted, in the order of the row; raise `QueryError`."""
    row: Any = queries.row_class.DESCRIPTOR
    names = {path.partition(".")[0] for path in paths} | ({*queries.key} if paths else {*row.fields_by_name})
    unknown = sorted(names - {*row.fields_by_name})
    if unknown:
        has = ", ".join(row.fields_by_name)
        raise QueryError(f'the option fields names "{unknown[0]}", which {row.name} has not: it has {has}')
    return [column.name for column in row.fields if column.name in names]


@dataclass
class _Slice(InputPartition):  # type: ignore[misc] # mypy skips PySpark
    """What a task reads: the rest of a scan behind `token`, "" for all of it; or `keys`."""

    token: str = ""
    keys: Sequence[Mapping[str, Any]] = field(default_factory=tuple)


class _Reader(DataSourceReader):  # type: ignore[misc] # mypy skips PySpark
    def __init__(
        self,
        connection: Connection,
        queries: TableQueries,
        schema: spark_types.StructType,
        paths: Sequence[str],
        slices: int,
    ) -> None:
        self._connection = connection
        self._queries = queries
        self._schema = schema
        self._paths = paths
        self._slices = slices
        self._filters: list[Any] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - as Spark calls it
        """Keep the filters; Spark applies each of them, too."""
        self._filters = list(filters)
        return filters

    def partitions(self) -> list[_Slice]:
        """Return what tasks read: keys, or slices of a scan."""
        keys = self._keys()
        if keys is not None:
            return [_Slice(keys=part) for part in _chunks(keys, self._queries.keys_max)] or [_Slice(keys=())]
        request_class, response_class = self._queries.classes(self._queries.scan)
        options = field_of(request_class.DESCRIPTOR, SCAN_OPTIONS)
        progress = field_of(response_class.DESCRIPTOR, SCAN_PROGRESS)
        if not options or not progress:
            return [_Slice()]
        request = self._scan_request()
        getattr(request, options).slices = self._slices
        with self._connection.open() as channel:
            stream: Any = _stream(channel, self._queries.scan, response_class)(request)
            try:
                tokens = getattr(next(stream), progress).slice_tokens
            except grpc.RpcError as error:
                raise answered(error, self._connection.address) from None
            finally:
                stream.cancel()
        return [_Slice(token) for token in tokens] or [_Slice()]  # a gateway that knows no slices gives rows

    def read(self, partition: _Slice) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        queries, names = self._queries, self._schema.fieldNames()
        schema = to_arrow_schema(self._schema, timezone="UTC")
        with self._connection.open() as channel:
            try:
                if self._keys() is None:
                    scanned = self._scanned(channel, partition.token)
                    batches = row_batches(scanned, queries.row_class, columns=names)
                else:
                    batches = record_batches(self._got(channel, partition.keys), queries.row_class, columns=names)
                for batch in batches:
                    yield batch.cast(schema)
            except grpc.RpcError as error:
                raise answered(error, self._connection.address) from None

    def _scanned(self, channel: grpc.Channel, token: str) -> Iterator[Sequence[bytes]]:
        """Yield the bytes of rows; where the stream breaks, go on behind those that were given."""
        response_class, request = self._queries.scanned_class, self._scan_request()
        options = field_of(request.DESCRIPTOR, SCAN_OPTIONS)
        failures = 0
        while True:
            if token:
                getattr(request, options).resume_token = token
            try:
                for response in _stream(channel, self._queries.scan, response_class)(request):
                    if options:
                        token, failures = ScanProgress.FromString(response.progress).resume_token, 0
                    yield response.rows
                return
            except grpc.RpcError as error:
                failures += 1
                if not options or not failure_of(error).passes or failures == FAILURES_MAX:
                    raise

    def _scan_request(self) -> Any:
        request = self._queries.classes(self._queries.scan)[0]()
        self._set_mask(request)
        for each in self._filters:
            for op, values in _constraints(each):
                name = self._queries.filters.get((".".join(each.attribute), op))
                if name is not None and _set(request, name, op, values, is_key=each.attribute[0] in self._queries.key):
                    break
        return request

    def _set_mask(self, request: Any) -> None:
        mask = field_of(request.DESCRIPTOR, READ_MASK)
        if mask and self._paths:
            getattr(request, mask).paths.extend(self._paths)

    def _keys(self) -> list[Mapping[str, Any]] | None:
        """Return the keys that the filters name; None where they name no whole keys, or too many."""
        chosen: dict[str, set[Any]] = {}
        for each in self._filters:
            if isinstance(each, EqualTo | In) and len(each.attribute) == 1:
                [column] = each.attribute
                values = {_hashable(value) for value in (each.value if isinstance(each, In) else (each.value,))} - {
                    None
                }
                chosen[column] = chosen.get(column, values) & values
        if not self._queries.batch_get or not {*self._queries.key} <= chosen.keys():
            return None
        if math.prod(len(chosen[column]) for column in self._queries.key) > KEYS_MAX:
            return None
        in_order = [sorted(chosen[column]) for column in self._queries.key]
        keys: list[Mapping[str, Any]] = [
            dict(zip(self._queries.key, values, strict=True)) for values in product(*in_order)
        ]
        row = self._queries.row_class()
        return keys if all(_assign(row, name, value) for key in keys for name, value in key.items()) else None

    def _got(self, channel: grpc.Channel, keys: Sequence[Mapping[str, Any]]) -> Iterator[Message]:
        if not keys:
            return
        holders = [self._queries.row_class() for _ in keys]
        for holder, key in zip(holders, keys, strict=True):
            for name, value in key.items():
                _assign(holder, name, value)
        request = self._queries.batch_request(holders)
        self._set_mask(request)
        yield from filter(None, self._queries.batch_rows(channel, request)[0])


def _stream(channel: grpc.Channel, path: str, response_class: Any) -> Any:
    return channel.unary_stream(path, lambda request: request.SerializeToString(), response_class.FromString)


def _chunks(keys: Sequence[Mapping[str, Any]], most: int) -> Iterator[Sequence[Mapping[str, Any]]]:
    left = iter(keys)
    while part := list(islice(left, most)):
        yield part


_OPS: Mapping[type, Sequence[int]] = {
    # Each with the operators that let through all that it does, the nearest first.
    EqualTo: (options_pb2.OP_EQ, options_pb2.OP_IN, options_pb2.OP_GTE, options_pb2.OP_LTE),
    In: (options_pb2.OP_IN,),
    GreaterThan: (options_pb2.OP_GT, options_pb2.OP_GTE),
    GreaterThanOrEqual: (options_pb2.OP_GTE,),
    LessThan: (options_pb2.OP_LT, options_pb2.OP_LTE),
    LessThanOrEqual: (options_pb2.OP_LTE,),
    StringStartsWith: (options_pb2.OP_PREFIX,),
}


def _constraints(each: Any) -> Iterator[tuple[int, Sequence[Any]]]:
    for op in _OPS.get(type(each), ()):
        yield op, each.value if isinstance(each, In) else (each.value,)


def _set(request: Any, name: str, op: int, values: Sequence[Any], *, is_key: bool) -> bool:
    """Set a filter of a scan; return whether it is one that lets through all that Spark's would."""
    described = request.DESCRIPTOR.fields_by_name[name]
    above = (options_pb2.OP_GT, options_pb2.OP_GTE)
    if described.cpp_type in (described.CPPTYPE_DOUBLE, described.CPPTYPE_FLOAT) and op in above:
        return False  # to Spark NaN is above all numbers
    if described.message_type is not None and not is_key and op not in above:
        return False  # of a time Spark has the microseconds, and the gateway what is smaller, too
    if described.enum_type is not None and op not in (options_pb2.OP_EQ, options_pb2.OP_IN):
        return False  # to Spark it is text, which sorts in another order
    if not described.is_repeated and request.HasField(name):
        return True  # one filter of this field is there; that this one is not only lets more through
    made = type(request)()
    if not all(_assign(made, name, _hashable(value)) for value in values if value is not None):
        return False
    if described.is_repeated and not len(getattr(made, name)):
        return False  # none of them would mean any
    request.MergeFrom(made)
    return True


def _hashable(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


def _assign(message: Any, name: str, value: Any) -> bool:
    """Set a field, or add to one, of what Spark has for it; return whether it can be said so."""
    described = message.DESCRIPTOR.fields_by_name[name]
    try:
        if described.message_type is not None:
            if not isinstance(value, datetime) or described.message_type.full_name != "google.protobuf.Timestamp":
                return False
            into = getattr(message, name).add() if described.is_repeated else getattr(message, name)
            into.FromDatetime(value.astimezone(UTC))
            return True
        if described.enum_type is not None:
            known = described.enum_type.values_by_name.get(value)
            if known is None:
                return False
            value = known.number
        elif described.cpp_type in (described.CPPTYPE_UINT64, described.CPPTYPE_UINT32):
            if value != int(value):
                return False
            value = int(value)
        elif isinstance(value, float) and math.isnan(value):
            return False
        if described.is_repeated:
            getattr(message, name).append(value)
        else:
            setattr(message, name, value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _spark_type(kind: pa.DataType) -> Any:
    """Return Spark's type of a column: wider where it has no unsigned numbers."""
    if pa.types.is_struct(kind):
        return spark_types.StructType([spark_types.StructField(one.name, _spark_type(one.type)) for one in kind])
    if pa.types.is_map(kind):
        return spark_types.MapType(_spark_type(kind.key_type), _spark_type(kind.item_type))
    if pa.types.is_list(kind):
        return spark_types.ArrayType(_spark_type(kind.value_type))
    if pa.types.is_timestamp(kind):
        return spark_types.TimestampType()
    if pa.types.is_duration(kind):
        return spark_types.DayTimeIntervalType()
    return _SCALARS[kind]()


_SCALARS: Mapping[pa.DataType, Any] = {
    pa.bool_(): spark_types.BooleanType,
    pa.string(): spark_types.StringType,
    pa.binary(): spark_types.BinaryType,
    pa.int32(): spark_types.IntegerType,
    pa.int64(): spark_types.LongType,
    pa.uint32(): spark_types.LongType,
    pa.uint64(): lambda: spark_types.DecimalType(20, 0),
    pa.float32(): spark_types.FloatType,
    pa.float64(): spark_types.DoubleType,
}
