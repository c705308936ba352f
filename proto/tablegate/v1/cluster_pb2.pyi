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

class GatewayRecord(_message.Message):
    __slots__ = ("gateway_id", "endpoint", "zone", "start_id", "draining", "tables", "beat")
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    START_ID_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    gateway_id: str
    endpoint: str
    zone: str
    start_id: int
    draining: bool
    tables: _containers.RepeatedCompositeFieldContainer[TableAnnouncement]
    beat: int
    def __init__(self, gateway_id: _Optional[str] = ..., endpoint: _Optional[str] = ..., zone: _Optional[str] = ..., start_id: _Optional[int] = ..., draining: _Optional[bool] = ..., tables: _Optional[_Iterable[_Union[TableAnnouncement, _Mapping]]] = ..., beat: _Optional[int] = ...) -> None: ...

class TableAnnouncement(_message.Message):
    __slots__ = ("table", "replicas", "serving", "building", "ready", "refused_generation")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    BUILDING_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    REFUSED_GENERATION_FIELD_NUMBER: _ClassVar[int]
    table: str
    replicas: int
    serving: GenerationAnnouncement
    building: GenerationAnnouncement
    ready: bool
    refused_generation: int
    def __init__(self, table: _Optional[str] = ..., replicas: _Optional[int] = ..., serving: _Optional[_Union[GenerationAnnouncement, _Mapping]] = ..., building: _Optional[_Union[GenerationAnnouncement, _Mapping]] = ..., ready: _Optional[bool] = ..., refused_generation: _Optional[int] = ...) -> None: ...

class GenerationAnnouncement(_message.Message):
    __slots__ = ("generation", "partitions", "phases", "next_offsets", "partition_count", "changelog_topic_id")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    PARTITION_COUNT_FIELD_NUMBER: _ClassVar[int]
    CHANGELOG_TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    generation: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    phases: _containers.RepeatedScalarFieldContainer[ReplicaPhase]
    next_offsets: _containers.RepeatedScalarFieldContainer[int]
    partition_count: int
    changelog_topic_id: str
    def __init__(self, generation: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ..., phases: _Optional[_Iterable[_Union[ReplicaPhase, str]]] = ..., next_offsets: _Optional[_Iterable[int]] = ..., partition_count: _Optional[int] = ..., changelog_topic_id: _Optional[str] = ...) -> None: ...
