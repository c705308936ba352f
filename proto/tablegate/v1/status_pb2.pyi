import datetime

from tablegate.v1 import changelog_pb2 as _changelog_pb2
from tablegate.v1 import cluster_pb2 as _cluster_pb2
from tablegate.v1 import options_pb2 as _options_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TableState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TABLE_STATE_UNSPECIFIED: _ClassVar[TableState]
    TABLE_STATE_NO_MANIFEST: _ClassVar[TableState]
    TABLE_STATE_RESOLVING_TOPIC: _ClassVar[TableState]
    TABLE_STATE_JOINING: _ClassVar[TableState]
    TABLE_STATE_SERVING: _ClassVar[TableState]
    TABLE_STATE_REFUSED: _ClassVar[TableState]

class GenerationState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GENERATION_STATE_UNSPECIFIED: _ClassVar[GenerationState]
    GENERATION_STATE_DISCOVERED: _ClassVar[GenerationState]
    GENERATION_STATE_BUILDING: _ClassVar[GenerationState]
    GENERATION_STATE_READY: _ClassVar[GenerationState]
    GENERATION_STATE_SERVING: _ClassVar[GenerationState]
    GENERATION_STATE_RETIRED: _ClassVar[GenerationState]
    GENERATION_STATE_REFUSED: _ClassVar[GenerationState]

class PartitionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PARTITION_STATE_UNSPECIFIED: _ClassVar[PartitionState]
    PARTITION_STATE_ABSENT: _ClassVar[PartitionState]
    PARTITION_STATE_ASSIGNED: _ClassVar[PartitionState]
    PARTITION_STATE_RESTORING: _ClassVar[PartitionState]
    PARTITION_STATE_CATCHING_UP: _ClassVar[PartitionState]
    PARTITION_STATE_LIVE: _ClassVar[PartitionState]
    PARTITION_STATE_REVOKING: _ClassVar[PartitionState]
    PARTITION_STATE_FINAL: _ClassVar[PartitionState]
    PARTITION_STATE_FROZEN: _ClassVar[PartitionState]

class ReplicaRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPLICA_ROLE_UNSPECIFIED: _ClassVar[ReplicaRole]
    REPLICA_ROLE_OWNER: _ClassVar[ReplicaRole]
    REPLICA_ROLE_STANDBY: _ClassVar[ReplicaRole]

class PartitionRoute(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PARTITION_ROUTE_UNSPECIFIED: _ClassVar[PartitionRoute]
    PARTITION_ROUTE_HERE: _ClassVar[PartitionRoute]
    PARTITION_ROUTE_FORWARDED: _ClassVar[PartitionRoute]
    PARTITION_ROUTE_NONE: _ClassVar[PartitionRoute]
TABLE_STATE_UNSPECIFIED: TableState
TABLE_STATE_NO_MANIFEST: TableState
TABLE_STATE_RESOLVING_TOPIC: TableState
TABLE_STATE_JOINING: TableState
TABLE_STATE_SERVING: TableState
TABLE_STATE_REFUSED: TableState
GENERATION_STATE_UNSPECIFIED: GenerationState
GENERATION_STATE_DISCOVERED: GenerationState
GENERATION_STATE_BUILDING: GenerationState
GENERATION_STATE_READY: GenerationState
GENERATION_STATE_SERVING: GenerationState
GENERATION_STATE_RETIRED: GenerationState
GENERATION_STATE_REFUSED: GenerationState
PARTITION_STATE_UNSPECIFIED: PartitionState
PARTITION_STATE_ABSENT: PartitionState
PARTITION_STATE_ASSIGNED: PartitionState
PARTITION_STATE_RESTORING: PartitionState
PARTITION_STATE_CATCHING_UP: PartitionState
PARTITION_STATE_LIVE: PartitionState
PARTITION_STATE_REVOKING: PartitionState
PARTITION_STATE_FINAL: PartitionState
PARTITION_STATE_FROZEN: PartitionState
REPLICA_ROLE_UNSPECIFIED: ReplicaRole
REPLICA_ROLE_OWNER: ReplicaRole
REPLICA_ROLE_STANDBY: ReplicaRole
PARTITION_ROUTE_UNSPECIFIED: PartitionRoute
PARTITION_ROUTE_HERE: PartitionRoute
PARTITION_ROUTE_FORWARDED: PartitionRoute
PARTITION_ROUTE_NONE: PartitionRoute

class GetStatusRequest(_message.Message):
    __slots__ = ("with_subscriptions", "with_jobs", "with_snapshots")
    WITH_SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    WITH_JOBS_FIELD_NUMBER: _ClassVar[int]
    WITH_SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    with_subscriptions: bool
    with_jobs: bool
    with_snapshots: bool
    def __init__(self, with_subscriptions: _Optional[bool] = ..., with_jobs: _Optional[bool] = ..., with_snapshots: _Optional[bool] = ...) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("tables", "beat_time", "kafka_reachable", "gateway_id", "gateways", "gateways_poison", "replicator_hangs", "subscriptions", "jobs", "snapshots")
    TABLES_FIELD_NUMBER: _ClassVar[int]
    BEAT_TIME_FIELD_NUMBER: _ClassVar[int]
    KAFKA_REACHABLE_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    GATEWAYS_FIELD_NUMBER: _ClassVar[int]
    GATEWAYS_POISON_FIELD_NUMBER: _ClassVar[int]
    REPLICATOR_HANGS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[TableStatus]
    beat_time: _timestamp_pb2.Timestamp
    kafka_reachable: bool
    gateway_id: str
    gateways: _containers.RepeatedCompositeFieldContainer[GatewayStatus]
    gateways_poison: _containers.RepeatedCompositeFieldContainer[PoisonCount]
    replicator_hangs: bool
    subscriptions: _containers.RepeatedCompositeFieldContainer[SubscriptionStatus]
    jobs: _containers.RepeatedCompositeFieldContainer[JobStatus]
    snapshots: SnapshotsStatus
    def __init__(self, tables: _Optional[_Iterable[_Union[TableStatus, _Mapping]]] = ..., beat_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., kafka_reachable: _Optional[bool] = ..., gateway_id: _Optional[str] = ..., gateways: _Optional[_Iterable[_Union[GatewayStatus, _Mapping]]] = ..., gateways_poison: _Optional[_Iterable[_Union[PoisonCount, _Mapping]]] = ..., replicator_hangs: _Optional[bool] = ..., subscriptions: _Optional[_Iterable[_Union[SubscriptionStatus, _Mapping]]] = ..., jobs: _Optional[_Iterable[_Union[JobStatus, _Mapping]]] = ..., snapshots: _Optional[_Union[SnapshotsStatus, _Mapping]] = ...) -> None: ...

class SnapshotsStatus(_message.Message):
    __slots__ = ("problem", "files", "useless")
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    USELESS_FIELD_NUMBER: _ClassVar[int]
    problem: str
    files: _containers.RepeatedCompositeFieldContainer[SnapshotFileStatus]
    useless: _containers.RepeatedCompositeFieldContainer[SnapshotFileProblem]
    def __init__(self, problem: _Optional[str] = ..., files: _Optional[_Iterable[_Union[SnapshotFileStatus, _Mapping]]] = ..., useless: _Optional[_Iterable[_Union[SnapshotFileProblem, _Mapping]]] = ...) -> None: ...

class SnapshotFileStatus(_message.Message):
    __slots__ = ("table", "partition", "write_time", "next_offset")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    WRITE_TIME_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    table: str
    partition: int
    write_time: _timestamp_pb2.Timestamp
    next_offset: int
    def __init__(self, table: _Optional[str] = ..., partition: _Optional[int] = ..., write_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., next_offset: _Optional[int] = ...) -> None: ...

class SnapshotFileProblem(_message.Message):
    __slots__ = ("table", "partition", "file", "problem")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    table: str
    partition: int
    file: str
    problem: str
    def __init__(self, table: _Optional[str] = ..., partition: _Optional[int] = ..., file: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("table", "run", "reached")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    table: str
    run: int
    reached: _containers.RepeatedCompositeFieldContainer[_changelog_pb2.SourceOffsets]
    def __init__(self, table: _Optional[str] = ..., run: _Optional[int] = ..., reached: _Optional[_Iterable[_Union[_changelog_pb2.SourceOffsets, _Mapping]]] = ...) -> None: ...

class SubscriptionStatus(_message.Message):
    __slots__ = ("method", "streams", "gateway_streams", "filling", "behind", "furthest")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_STREAMS_FIELD_NUMBER: _ClassVar[int]
    FILLING_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    FURTHEST_FIELD_NUMBER: _ClassVar[int]
    method: str
    streams: int
    gateway_streams: int
    filling: int
    behind: int
    furthest: _containers.RepeatedCompositeFieldContainer[StreamStatus]
    def __init__(self, method: _Optional[str] = ..., streams: _Optional[int] = ..., gateway_streams: _Optional[int] = ..., filling: _Optional[int] = ..., behind: _Optional[int] = ..., furthest: _Optional[_Iterable[_Union[StreamStatus, _Mapping]]] = ...) -> None: ...

class StreamStatus(_message.Message):
    __slots__ = ("lag_records", "lag_seconds", "open_seconds", "filling", "for_gateway")
    LAG_RECORDS_FIELD_NUMBER: _ClassVar[int]
    LAG_SECONDS_FIELD_NUMBER: _ClassVar[int]
    OPEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FILLING_FIELD_NUMBER: _ClassVar[int]
    FOR_GATEWAY_FIELD_NUMBER: _ClassVar[int]
    lag_records: int
    lag_seconds: float
    open_seconds: float
    filling: bool
    for_gateway: bool
    def __init__(self, lag_records: _Optional[int] = ..., lag_seconds: _Optional[float] = ..., open_seconds: _Optional[float] = ..., filling: _Optional[bool] = ..., for_gateway: _Optional[bool] = ...) -> None: ...

class PoisonCount(_message.Message):
    __slots__ = ("reason", "count")
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    reason: str
    count: int
    def __init__(self, reason: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class GatewayStatus(_message.Message):
    __slots__ = ("record", "beat_time", "alive")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    BEAT_TIME_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    record: _cluster_pb2.GatewayRecord
    beat_time: _timestamp_pb2.Timestamp
    alive: bool
    def __init__(self, record: _Optional[_Union[_cluster_pb2.GatewayRecord, _Mapping]] = ..., beat_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., alive: _Optional[bool] = ...) -> None: ...

class TableStatus(_message.Message):
    __slots__ = ("table", "serving", "problem", "manifest", "partitions", "poison_records", "restore_rows_per_second", "restore_seconds_left", "caught_up_time", "state", "generations", "poison", "fault", "stale_records", "conflicting_records", "pending_repairs", "repaired_records", "repair_problem")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    POISON_RECORDS_FIELD_NUMBER: _ClassVar[int]
    RESTORE_ROWS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    RESTORE_SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    CAUGHT_UP_TIME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    POISON_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    STALE_RECORDS_FIELD_NUMBER: _ClassVar[int]
    CONFLICTING_RECORDS_FIELD_NUMBER: _ClassVar[int]
    PENDING_REPAIRS_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    REPAIR_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    table: str
    serving: bool
    problem: str
    manifest: _changelog_pb2.Manifest
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionStatus]
    poison_records: int
    restore_rows_per_second: float
    restore_seconds_left: float
    caught_up_time: _timestamp_pb2.Timestamp
    state: TableState
    generations: _containers.RepeatedCompositeFieldContainer[GenerationStatus]
    poison: _containers.RepeatedCompositeFieldContainer[PoisonCount]
    fault: str
    stale_records: int
    conflicting_records: int
    pending_repairs: int
    repaired_records: int
    repair_problem: str
    def __init__(self, table: _Optional[str] = ..., serving: _Optional[bool] = ..., problem: _Optional[str] = ..., manifest: _Optional[_Union[_changelog_pb2.Manifest, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[PartitionStatus, _Mapping]]] = ..., poison_records: _Optional[int] = ..., restore_rows_per_second: _Optional[float] = ..., restore_seconds_left: _Optional[float] = ..., caught_up_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., state: _Optional[_Union[TableState, str]] = ..., generations: _Optional[_Iterable[_Union[GenerationStatus, _Mapping]]] = ..., poison: _Optional[_Iterable[_Union[PoisonCount, _Mapping]]] = ..., fault: _Optional[str] = ..., stale_records: _Optional[int] = ..., conflicting_records: _Optional[int] = ..., pending_repairs: _Optional[int] = ..., repaired_records: _Optional[int] = ..., repair_problem: _Optional[str] = ...) -> None: ...

class GenerationStatus(_message.Message):
    __slots__ = ("generation", "state", "waits_for", "assigned")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    generation: int
    state: GenerationState
    waits_for: str
    assigned: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, generation: _Optional[int] = ..., state: _Optional[_Union[GenerationState, str]] = ..., waits_for: _Optional[str] = ..., assigned: _Optional[_Iterable[int]] = ...) -> None: ...

class PartitionStatus(_message.Message):
    __slots__ = ("partition", "phase", "next_offset", "end_offset", "as_of_time", "state", "marker_time")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    AS_OF_TIME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MARKER_TIME_FIELD_NUMBER: _ClassVar[int]
    partition: int
    phase: _cluster_pb2.ReplicaPhase
    next_offset: int
    end_offset: int
    as_of_time: _timestamp_pb2.Timestamp
    state: PartitionState
    marker_time: _timestamp_pb2.Timestamp
    def __init__(self, partition: _Optional[int] = ..., phase: _Optional[_Union[_cluster_pb2.ReplicaPhase, str]] = ..., next_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., as_of_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., state: _Optional[_Union[PartitionState, str]] = ..., marker_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class GetTableRequest(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: str
    def __init__(self, table: _Optional[str] = ...) -> None: ...

class GetTableResponse(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: TableMetadata
    def __init__(self, table: _Optional[_Union[TableMetadata, _Mapping]] = ...) -> None: ...

class WatchTableRequest(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: str
    def __init__(self, table: _Optional[str] = ...) -> None: ...

class WatchTableResponse(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: TableMetadata
    def __init__(self, table: _Optional[_Union[TableMetadata, _Mapping]] = ...) -> None: ...

class TableMetadata(_message.Message):
    __slots__ = ("table", "generation", "partitioner", "partition_count", "key", "partition_by_count", "partitions")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONER_FIELD_NUMBER: _ClassVar[int]
    PARTITION_COUNT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PARTITION_BY_COUNT_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    table: str
    generation: int
    partitioner: _options_pb2.Partitioner
    partition_count: int
    key: _containers.RepeatedCompositeFieldContainer[_changelog_pb2.KeyColumn]
    partition_by_count: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionReplicas]
    def __init__(self, table: _Optional[str] = ..., generation: _Optional[int] = ..., partitioner: _Optional[_Union[_options_pb2.Partitioner, str]] = ..., partition_count: _Optional[int] = ..., key: _Optional[_Iterable[_Union[_changelog_pb2.KeyColumn, _Mapping]]] = ..., partition_by_count: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionReplicas, _Mapping]]] = ...) -> None: ...

class PartitionReplicas(_message.Message):
    __slots__ = ("partition", "replicas")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    def __init__(self, partition: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("gateway_id", "endpoint", "zone", "role", "phase", "next_offset")
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    gateway_id: str
    endpoint: str
    zone: str
    role: ReplicaRole
    phase: _cluster_pb2.ReplicaPhase
    next_offset: int
    def __init__(self, gateway_id: _Optional[str] = ..., endpoint: _Optional[str] = ..., zone: _Optional[str] = ..., role: _Optional[_Union[ReplicaRole, str]] = ..., phase: _Optional[_Union[_cluster_pb2.ReplicaPhase, str]] = ..., next_offset: _Optional[int] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("method", "json", "message")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    method: str
    json: str
    message: bytes
    def __init__(self, method: _Optional[str] = ..., json: _Optional[str] = ..., message: _Optional[bytes] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("query", "table", "generation", "reads", "freshness", "partitions", "not_promised")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    FRESHNESS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    NOT_PROMISED_FIELD_NUMBER: _ClassVar[int]
    query: str
    table: str
    generation: int
    reads: str
    freshness: str
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionPlan]
    not_promised: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, query: _Optional[str] = ..., table: _Optional[str] = ..., generation: _Optional[int] = ..., reads: _Optional[str] = ..., freshness: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[PartitionPlan, _Mapping]]] = ..., not_promised: _Optional[_Iterable[str]] = ...) -> None: ...

class PartitionPlan(_message.Message):
    __slots__ = ("partition", "route", "gateway_id", "why", "replicas")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    route: PartitionRoute
    gateway_id: str
    why: str
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    def __init__(self, partition: _Optional[int] = ..., route: _Optional[_Union[PartitionRoute, str]] = ..., gateway_id: _Optional[str] = ..., why: _Optional[str] = ..., replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ...) -> None: ...

class GetHistoryRequest(_message.Message):
    __slots__ = ("method", "json", "message", "start_offset", "limit")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    method: str
    json: str
    message: bytes
    start_offset: int
    limit: int
    def __init__(self, method: _Optional[str] = ..., json: _Optional[str] = ..., message: _Optional[bytes] = ..., start_offset: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class GetHistoryResponse(_message.Message):
    __slots__ = ("table", "generation", "partition", "changes", "truncated", "history_start", "history_start_time", "next_offset", "gateway_id", "has_row")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    HISTORY_START_FIELD_NUMBER: _ClassVar[int]
    HISTORY_START_TIME_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    HAS_ROW_FIELD_NUMBER: _ClassVar[int]
    table: str
    generation: int
    partition: int
    changes: _containers.RepeatedCompositeFieldContainer[RowChange]
    truncated: bool
    history_start: int
    history_start_time: _timestamp_pb2.Timestamp
    next_offset: int
    gateway_id: str
    has_row: bool
    def __init__(self, table: _Optional[str] = ..., generation: _Optional[int] = ..., partition: _Optional[int] = ..., changes: _Optional[_Iterable[_Union[RowChange, _Mapping]]] = ..., truncated: _Optional[bool] = ..., history_start: _Optional[int] = ..., history_start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., next_offset: _Optional[int] = ..., gateway_id: _Optional[str] = ..., has_row: _Optional[bool] = ...) -> None: ...

class RowChange(_message.Message):
    __slots__ = ("offset", "generation", "sequence", "time", "row", "before")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    offset: int
    generation: int
    sequence: int
    time: _timestamp_pb2.Timestamp
    row: RowContent
    before: RowContent
    def __init__(self, offset: _Optional[int] = ..., generation: _Optional[int] = ..., sequence: _Optional[int] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., row: _Optional[_Union[RowContent, _Mapping]] = ..., before: _Optional[_Union[RowContent, _Mapping]] = ...) -> None: ...

class RowContent(_message.Message):
    __slots__ = ("json", "message")
    JSON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    json: str
    message: bytes
    def __init__(self, json: _Optional[str] = ..., message: _Optional[bytes] = ...) -> None: ...
