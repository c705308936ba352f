import datetime

from gateway.v1 import changelog_pb2 as _changelog_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReplicaPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPLICA_PHASE_UNSPECIFIED: _ClassVar[ReplicaPhase]
    REPLICA_PHASE_RESTORING: _ClassVar[ReplicaPhase]
    REPLICA_PHASE_LIVE: _ClassVar[ReplicaPhase]
    REPLICA_PHASE_CATCHING_UP: _ClassVar[ReplicaPhase]
REPLICA_PHASE_UNSPECIFIED: ReplicaPhase
REPLICA_PHASE_RESTORING: ReplicaPhase
REPLICA_PHASE_LIVE: ReplicaPhase
REPLICA_PHASE_CATCHING_UP: ReplicaPhase

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("tables", "beat_time", "kafka_reachable")
    TABLES_FIELD_NUMBER: _ClassVar[int]
    BEAT_TIME_FIELD_NUMBER: _ClassVar[int]
    KAFKA_REACHABLE_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[TableStatus]
    beat_time: _timestamp_pb2.Timestamp
    kafka_reachable: bool
    def __init__(self, tables: _Optional[_Iterable[_Union[TableStatus, _Mapping]]] = ..., beat_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., kafka_reachable: _Optional[bool] = ...) -> None: ...

class TableStatus(_message.Message):
    __slots__ = ("table", "serving", "problem", "manifest", "partitions", "poison_records", "restore_rows_per_second", "restore_seconds_left", "caught_up_time")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    POISON_RECORDS_FIELD_NUMBER: _ClassVar[int]
    RESTORE_ROWS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    RESTORE_SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    CAUGHT_UP_TIME_FIELD_NUMBER: _ClassVar[int]
    table: str
    serving: bool
    problem: str
    manifest: _changelog_pb2.Manifest
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionStatus]
    poison_records: int
    restore_rows_per_second: float
    restore_seconds_left: float
    caught_up_time: _timestamp_pb2.Timestamp
    def __init__(self, table: _Optional[str] = ..., serving: _Optional[bool] = ..., problem: _Optional[str] = ..., manifest: _Optional[_Union[_changelog_pb2.Manifest, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[PartitionStatus, _Mapping]]] = ..., poison_records: _Optional[int] = ..., restore_rows_per_second: _Optional[float] = ..., restore_seconds_left: _Optional[float] = ..., caught_up_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class PartitionStatus(_message.Message):
    __slots__ = ("partition", "phase", "next_offset", "end_offset", "as_of_time")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    AS_OF_TIME_FIELD_NUMBER: _ClassVar[int]
    partition: int
    phase: ReplicaPhase
    next_offset: int
    end_offset: int
    as_of_time: _timestamp_pb2.Timestamp
    def __init__(self, partition: _Optional[int] = ..., phase: _Optional[_Union[ReplicaPhase, str]] = ..., next_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., as_of_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
