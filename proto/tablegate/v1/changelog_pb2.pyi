import datetime

from tablegate.v1 import options_pb2 as _options_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class KeyCodec(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KEY_CODEC_UNSPECIFIED: _ClassVar[KeyCodec]
    KEY_CODEC_UTF8: _ClassVar[KeyCodec]
    KEY_CODEC_INT32: _ClassVar[KeyCodec]
    KEY_CODEC_INT64: _ClassVar[KeyCodec]
    KEY_CODEC_BYTES: _ClassVar[KeyCodec]
    KEY_CODEC_JSON: _ClassVar[KeyCodec]
    KEY_CODEC_AVRO: _ClassVar[KeyCodec]
    KEY_CODEC_AVRO_PLAIN: _ClassVar[KeyCodec]
    KEY_CODEC_PROTOBUF: _ClassVar[KeyCodec]
    KEY_CODEC_PROTOBUF_PLAIN: _ClassVar[KeyCodec]

class KeyWindow(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KEY_WINDOW_UNSPECIFIED: _ClassVar[KeyWindow]
    KEY_WINDOW_TIME: _ClassVar[KeyWindow]
    KEY_WINDOW_TIME_STORE: _ClassVar[KeyWindow]
    KEY_WINDOW_SESSION: _ClassVar[KeyWindow]

class ValueCodec(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VALUE_CODEC_UNSPECIFIED: _ClassVar[ValueCodec]
    VALUE_CODEC_JSON: _ClassVar[ValueCodec]
    VALUE_CODEC_JSON_SCHEMA: _ClassVar[ValueCodec]
    VALUE_CODEC_AVRO: _ClassVar[ValueCodec]
    VALUE_CODEC_AVRO_PLAIN: _ClassVar[ValueCodec]
    VALUE_CODEC_PROTOBUF: _ClassVar[ValueCodec]
    VALUE_CODEC_PROTOBUF_PLAIN: _ClassVar[ValueCodec]
    VALUE_CODEC_DEBEZIUM_JSON: _ClassVar[ValueCodec]
    VALUE_CODEC_DEBEZIUM_AVRO: _ClassVar[ValueCodec]

class StoredFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STORED_FORMAT_UNSPECIFIED: _ClassVar[StoredFormat]
    STORED_FORMAT_TIMESTAMPED: _ClassVar[StoredFormat]
    STORED_FORMAT_VERSIONED: _ClassVar[StoredFormat]

class RecordPartitioner(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RECORD_PARTITIONER_UNSPECIFIED: _ClassVar[RecordPartitioner]
    RECORD_PARTITIONER_MURMUR2: _ClassVar[RecordPartitioner]
    RECORD_PARTITIONER_UNKNOWN: _ClassVar[RecordPartitioner]

class KeyType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KEY_TYPE_UNSPECIFIED: _ClassVar[KeyType]
    KEY_TYPE_INT64: _ClassVar[KeyType]
    KEY_TYPE_BOOL: _ClassVar[KeyType]
    KEY_TYPE_STRING: _ClassVar[KeyType]
    KEY_TYPE_BYTES: _ClassVar[KeyType]
    KEY_TYPE_TIMESTAMP: _ClassVar[KeyType]

class JobMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_MODE_UNSPECIFIED: _ClassVar[JobMode]
    JOB_MODE_REALTIME: _ClassVar[JobMode]
    JOB_MODE_MICROBATCH: _ClassVar[JobMode]
    JOB_MODE_BATCH: _ClassVar[JobMode]
KEY_CODEC_UNSPECIFIED: KeyCodec
KEY_CODEC_UTF8: KeyCodec
KEY_CODEC_INT32: KeyCodec
KEY_CODEC_INT64: KeyCodec
KEY_CODEC_BYTES: KeyCodec
KEY_CODEC_JSON: KeyCodec
KEY_CODEC_AVRO: KeyCodec
KEY_CODEC_AVRO_PLAIN: KeyCodec
KEY_CODEC_PROTOBUF: KeyCodec
KEY_CODEC_PROTOBUF_PLAIN: KeyCodec
KEY_WINDOW_UNSPECIFIED: KeyWindow
KEY_WINDOW_TIME: KeyWindow
KEY_WINDOW_TIME_STORE: KeyWindow
KEY_WINDOW_SESSION: KeyWindow
VALUE_CODEC_UNSPECIFIED: ValueCodec
VALUE_CODEC_JSON: ValueCodec
VALUE_CODEC_JSON_SCHEMA: ValueCodec
VALUE_CODEC_AVRO: ValueCodec
VALUE_CODEC_AVRO_PLAIN: ValueCodec
VALUE_CODEC_PROTOBUF: ValueCodec
VALUE_CODEC_PROTOBUF_PLAIN: ValueCodec
VALUE_CODEC_DEBEZIUM_JSON: ValueCodec
VALUE_CODEC_DEBEZIUM_AVRO: ValueCodec
STORED_FORMAT_UNSPECIFIED: StoredFormat
STORED_FORMAT_TIMESTAMPED: StoredFormat
STORED_FORMAT_VERSIONED: StoredFormat
RECORD_PARTITIONER_UNSPECIFIED: RecordPartitioner
RECORD_PARTITIONER_MURMUR2: RecordPartitioner
RECORD_PARTITIONER_UNKNOWN: RecordPartitioner
KEY_TYPE_UNSPECIFIED: KeyType
KEY_TYPE_INT64: KeyType
KEY_TYPE_BOOL: KeyType
KEY_TYPE_STRING: KeyType
KEY_TYPE_BYTES: KeyType
KEY_TYPE_TIMESTAMP: KeyType
JOB_MODE_UNSPECIFIED: JobMode
JOB_MODE_REALTIME: JobMode
JOB_MODE_MICROBATCH: JobMode
JOB_MODE_BATCH: JobMode

class Manifest(_message.Message):
    __slots__ = ("table", "generation", "contract_fingerprint", "changelog_topic", "changelog_topic_id", "partition_count", "partitioner", "key", "partition_by_count", "value_schemas", "sources", "mode", "publish_time", "declared_generation", "atomic", "run_sequence", "foreign")
    class ValueSchemasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    TABLE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    CHANGELOG_TOPIC_FIELD_NUMBER: _ClassVar[int]
    CHANGELOG_TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_COUNT_FIELD_NUMBER: _ClassVar[int]
    PARTITIONER_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PARTITION_BY_COUNT_FIELD_NUMBER: _ClassVar[int]
    VALUE_SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_TIME_FIELD_NUMBER: _ClassVar[int]
    DECLARED_GENERATION_FIELD_NUMBER: _ClassVar[int]
    ATOMIC_FIELD_NUMBER: _ClassVar[int]
    RUN_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_FIELD_NUMBER: _ClassVar[int]
    table: str
    generation: int
    contract_fingerprint: bytes
    changelog_topic: str
    changelog_topic_id: str
    partition_count: int
    partitioner: _options_pb2.Partitioner
    key: _containers.RepeatedCompositeFieldContainer[KeyColumn]
    partition_by_count: int
    value_schemas: _containers.ScalarMap[int, str]
    sources: _containers.RepeatedCompositeFieldContainer[SourceTopic]
    mode: JobMode
    publish_time: _timestamp_pb2.Timestamp
    declared_generation: int
    atomic: bool
    run_sequence: int
    foreign: ForeignTopic
    def __init__(self, table: _Optional[str] = ..., generation: _Optional[int] = ..., contract_fingerprint: _Optional[bytes] = ..., changelog_topic: _Optional[str] = ..., changelog_topic_id: _Optional[str] = ..., partition_count: _Optional[int] = ..., partitioner: _Optional[_Union[_options_pb2.Partitioner, str]] = ..., key: _Optional[_Iterable[_Union[KeyColumn, _Mapping]]] = ..., partition_by_count: _Optional[int] = ..., value_schemas: _Optional[_Mapping[int, str]] = ..., sources: _Optional[_Iterable[_Union[SourceTopic, _Mapping]]] = ..., mode: _Optional[_Union[JobMode, str]] = ..., publish_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., declared_generation: _Optional[int] = ..., atomic: _Optional[bool] = ..., run_sequence: _Optional[int] = ..., foreign: _Optional[_Union[ForeignTopic, _Mapping]] = ...) -> None: ...

class ForeignTopic(_message.Message):
    __slots__ = ("key_codec", "value_codec", "key_window", "stored_format", "record_partitioner", "key_schemas", "key_message", "value_index", "key_index", "retention", "schema_guids")
    class KeySchemasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    class SchemaGuidsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    KEY_CODEC_FIELD_NUMBER: _ClassVar[int]
    VALUE_CODEC_FIELD_NUMBER: _ClassVar[int]
    KEY_WINDOW_FIELD_NUMBER: _ClassVar[int]
    STORED_FORMAT_FIELD_NUMBER: _ClassVar[int]
    RECORD_PARTITIONER_FIELD_NUMBER: _ClassVar[int]
    KEY_SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    KEY_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    VALUE_INDEX_FIELD_NUMBER: _ClassVar[int]
    KEY_INDEX_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_GUIDS_FIELD_NUMBER: _ClassVar[int]
    key_codec: KeyCodec
    value_codec: ValueCodec
    key_window: KeyWindow
    stored_format: StoredFormat
    record_partitioner: RecordPartitioner
    key_schemas: _containers.ScalarMap[int, str]
    key_message: str
    value_index: _containers.RepeatedScalarFieldContainer[int]
    key_index: _containers.RepeatedScalarFieldContainer[int]
    retention: _duration_pb2.Duration
    schema_guids: _containers.ScalarMap[str, int]
    def __init__(self, key_codec: _Optional[_Union[KeyCodec, str]] = ..., value_codec: _Optional[_Union[ValueCodec, str]] = ..., key_window: _Optional[_Union[KeyWindow, str]] = ..., stored_format: _Optional[_Union[StoredFormat, str]] = ..., record_partitioner: _Optional[_Union[RecordPartitioner, str]] = ..., key_schemas: _Optional[_Mapping[int, str]] = ..., key_message: _Optional[str] = ..., value_index: _Optional[_Iterable[int]] = ..., key_index: _Optional[_Iterable[int]] = ..., retention: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., schema_guids: _Optional[_Mapping[str, int]] = ...) -> None: ...

class KeyColumn(_message.Message):
    __slots__ = ("name", "type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: KeyType
    def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[KeyType, str]] = ...) -> None: ...

class SourceTopic(_message.Message):
    __slots__ = ("topic", "partition_count", "keyed")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_COUNT_FIELD_NUMBER: _ClassVar[int]
    KEYED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition_count: int
    keyed: bool
    def __init__(self, topic: _Optional[str] = ..., partition_count: _Optional[int] = ..., keyed: _Optional[bool] = ...) -> None: ...

class ProgressMarker(_message.Message):
    __slots__ = ("generation", "batch_id", "sources", "commit_time", "final", "run", "ends_batch")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIME_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ENDS_BATCH_FIELD_NUMBER: _ClassVar[int]
    generation: int
    batch_id: int
    sources: _containers.RepeatedCompositeFieldContainer[SourceOffsets]
    commit_time: _timestamp_pb2.Timestamp
    final: bool
    run: int
    ends_batch: bool
    def __init__(self, generation: _Optional[int] = ..., batch_id: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[SourceOffsets, _Mapping]]] = ..., commit_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., final: _Optional[bool] = ..., run: _Optional[int] = ..., ends_batch: _Optional[bool] = ...) -> None: ...

class SourceOffsets(_message.Message):
    __slots__ = ("topic", "next_offsets")
    class NextOffsetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    next_offsets: _containers.ScalarMap[int, int]
    def __init__(self, topic: _Optional[str] = ..., next_offsets: _Optional[_Mapping[int, int]] = ...) -> None: ...
