import datetime

from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Partitioner(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PARTITIONER_UNSPECIFIED: _ClassVar[Partitioner]
    PARTITIONER_MURMUR2: _ClassVar[Partitioner]
    PARTITIONER_CRC32: _ClassVar[Partitioner]

class OnMissing(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ON_MISSING_UNSPECIFIED: _ClassVar[OnMissing]
    ON_MISSING_NOT_FOUND: _ClassVar[OnMissing]
    ON_MISSING_EMPTY: _ClassVar[OnMissing]

class SlowSubscriber(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SLOW_SUBSCRIBER_UNSPECIFIED: _ClassVar[SlowSubscriber]
    SLOW_SUBSCRIBER_CONFLATE: _ClassVar[SlowSubscriber]
    SLOW_SUBSCRIBER_DISCONNECT: _ClassVar[SlowSubscriber]

class Op(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OP_UNSPECIFIED: _ClassVar[Op]
    OP_EQ: _ClassVar[Op]
    OP_GT: _ClassVar[Op]
    OP_GTE: _ClassVar[Op]
    OP_LT: _ClassVar[Op]
    OP_LTE: _ClassVar[Op]
    OP_PREFIX: _ClassVar[Op]
    OP_CONTAINS: _ClassVar[Op]
    OP_IN: _ClassVar[Op]
PARTITIONER_UNSPECIFIED: Partitioner
PARTITIONER_MURMUR2: Partitioner
PARTITIONER_CRC32: Partitioner
ON_MISSING_UNSPECIFIED: OnMissing
ON_MISSING_NOT_FOUND: OnMissing
ON_MISSING_EMPTY: OnMissing
SLOW_SUBSCRIBER_UNSPECIFIED: SlowSubscriber
SLOW_SUBSCRIBER_CONFLATE: SlowSubscriber
SLOW_SUBSCRIBER_DISCONNECT: SlowSubscriber
OP_UNSPECIFIED: Op
OP_EQ: Op
OP_GT: Op
OP_GTE: Op
OP_LT: Op
OP_LTE: Op
OP_PREFIX: Op
OP_CONTAINS: Op
OP_IN: Op
TABLE_FIELD_NUMBER: _ClassVar[int]
table: _descriptor.FieldDescriptor
SERVING_FIELD_NUMBER: _ClassVar[int]
serving: _descriptor.FieldDescriptor
QUERY_FIELD_NUMBER: _ClassVar[int]
query: _descriptor.FieldDescriptor
PARAM_FIELD_NUMBER: _ClassVar[int]
param: _descriptor.FieldDescriptor

class TableOptions(_message.Message):
    __slots__ = ("name", "key", "partition_by", "partitioner", "window", "retention", "index")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PARTITION_BY_FIELD_NUMBER: _ClassVar[int]
    PARTITIONER_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    name: str
    key: _containers.RepeatedScalarFieldContainer[str]
    partition_by: _containers.RepeatedScalarFieldContainer[str]
    partitioner: Partitioner
    window: WindowOptions
    retention: _duration_pb2.Duration
    index: _containers.RepeatedCompositeFieldContainer[IndexOptions]
    def __init__(self, name: _Optional[str] = ..., key: _Optional[_Iterable[str]] = ..., partition_by: _Optional[_Iterable[str]] = ..., partitioner: _Optional[_Union[Partitioner, str]] = ..., window: _Optional[_Union[WindowOptions, _Mapping]] = ..., retention: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., index: _Optional[_Iterable[_Union[IndexOptions, _Mapping]]] = ...) -> None: ...

class IndexOptions(_message.Message):
    __slots__ = ("name", "columns", "unique")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    columns: _containers.RepeatedScalarFieldContainer[str]
    unique: bool
    def __init__(self, name: _Optional[str] = ..., columns: _Optional[_Iterable[str]] = ..., unique: _Optional[bool] = ...) -> None: ...

class WindowOptions(_message.Message):
    __slots__ = ("size", "hop", "start_column", "end_column")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    HOP_FIELD_NUMBER: _ClassVar[int]
    START_COLUMN_FIELD_NUMBER: _ClassVar[int]
    END_COLUMN_FIELD_NUMBER: _ClassVar[int]
    size: _duration_pb2.Duration
    hop: _duration_pb2.Duration
    start_column: str
    end_column: str
    def __init__(self, size: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., hop: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., start_column: _Optional[str] = ..., end_column: _Optional[str] = ...) -> None: ...

class ServingOptions(_message.Message):
    __slots__ = ("default_timeout", "max_timeout")
    DEFAULT_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    MAX_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    default_timeout: _duration_pb2.Duration
    max_timeout: _duration_pb2.Duration
    def __init__(self, default_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class QueryOptions(_message.Message):
    __slots__ = ("get", "batch_get", "range", "scan", "subscribe", "count", "table")
    GET_FIELD_NUMBER: _ClassVar[int]
    BATCH_GET_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    SCAN_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    get: GetQuery
    batch_get: BatchGetQuery
    range: RangeQuery
    scan: ScanQuery
    subscribe: SubscribeQuery
    count: CountQuery
    table: str
    def __init__(self, get: _Optional[_Union[GetQuery, _Mapping]] = ..., batch_get: _Optional[_Union[BatchGetQuery, _Mapping]] = ..., range: _Optional[_Union[RangeQuery, _Mapping]] = ..., scan: _Optional[_Union[ScanQuery, _Mapping]] = ..., subscribe: _Optional[_Union[SubscribeQuery, _Mapping]] = ..., count: _Optional[_Union[CountQuery, _Mapping]] = ..., table: _Optional[str] = ...) -> None: ...

class GetQuery(_message.Message):
    __slots__ = ("on_missing",)
    ON_MISSING_FIELD_NUMBER: _ClassVar[int]
    on_missing: OnMissing
    def __init__(self, on_missing: _Optional[_Union[OnMissing, str]] = ...) -> None: ...

class BatchGetQuery(_message.Message):
    __slots__ = ("max_keys", "index")
    MAX_KEYS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    max_keys: int
    index: str
    def __init__(self, max_keys: _Optional[int] = ..., index: _Optional[str] = ...) -> None: ...

class RangeQuery(_message.Message):
    __slots__ = ("default_page_size", "max_page_size", "scatter")
    DEFAULT_PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    SCATTER_FIELD_NUMBER: _ClassVar[int]
    default_page_size: int
    max_page_size: int
    scatter: bool
    def __init__(self, default_page_size: _Optional[int] = ..., max_page_size: _Optional[int] = ..., scatter: _Optional[bool] = ...) -> None: ...

class CountQuery(_message.Message):
    __slots__ = ("scatter",)
    SCATTER_FIELD_NUMBER: _ClassVar[int]
    scatter: bool
    def __init__(self, scatter: _Optional[bool] = ...) -> None: ...

class ScanQuery(_message.Message):
    __slots__ = ("max_rows",)
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    max_rows: int
    def __init__(self, max_rows: _Optional[int] = ...) -> None: ...

class SubscribeQuery(_message.Message):
    __slots__ = ("scatter", "slow")
    SCATTER_FIELD_NUMBER: _ClassVar[int]
    SLOW_FIELD_NUMBER: _ClassVar[int]
    scatter: bool
    slow: SlowSubscriber
    def __init__(self, scatter: _Optional[bool] = ..., slow: _Optional[_Union[SlowSubscriber, str]] = ...) -> None: ...

class ParamOptions(_message.Message):
    __slots__ = ("column", "op")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    column: str
    op: Op
    def __init__(self, column: _Optional[str] = ..., op: _Optional[_Union[Op, str]] = ...) -> None: ...
