import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Order(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ORDER_UNSPECIFIED: _ClassVar[Order]
    ORDER_ASCENDING: _ClassVar[Order]
    ORDER_DESCENDING: _ClassVar[Order]

class SubscribeStart(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUBSCRIBE_START_UNSPECIFIED: _ClassVar[SubscribeStart]
    SUBSCRIBE_START_SNAPSHOT: _ClassVar[SubscribeStart]
    SUBSCRIBE_START_LIVE: _ClassVar[SubscribeStart]

class SubscribePhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUBSCRIBE_PHASE_UNSPECIFIED: _ClassVar[SubscribePhase]
    SUBSCRIBE_PHASE_RESET: _ClassVar[SubscribePhase]
    SUBSCRIBE_PHASE_CATCHING_UP: _ClassVar[SubscribePhase]
    SUBSCRIBE_PHASE_CURRENT: _ClassVar[SubscribePhase]
ORDER_UNSPECIFIED: Order
ORDER_ASCENDING: Order
ORDER_DESCENDING: Order
SUBSCRIBE_START_UNSPECIFIED: SubscribeStart
SUBSCRIBE_START_SNAPSHOT: SubscribeStart
SUBSCRIBE_START_LIVE: SubscribeStart
SUBSCRIBE_PHASE_UNSPECIFIED: SubscribePhase
SUBSCRIBE_PHASE_RESET: SubscribePhase
SUBSCRIBE_PHASE_CATCHING_UP: SubscribePhase
SUBSCRIBE_PHASE_CURRENT: SubscribePhase

class ReadOptions(_message.Message):
    __slots__ = ("minimize_latency", "at_least", "at_least_source", "max_staleness", "latest", "max_wait")
    MINIMIZE_LATENCY_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_SOURCE_FIELD_NUMBER: _ClassVar[int]
    MAX_STALENESS_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_FIELD_NUMBER: _ClassVar[int]
    minimize_latency: bool
    at_least: str
    at_least_source: SourcePosition
    max_staleness: _duration_pb2.Duration
    latest: bool
    max_wait: _duration_pb2.Duration
    def __init__(self, minimize_latency: _Optional[bool] = ..., at_least: _Optional[str] = ..., at_least_source: _Optional[_Union[SourcePosition, _Mapping]] = ..., max_staleness: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., latest: _Optional[bool] = ..., max_wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class SourcePosition(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicPosition]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicPosition, _Mapping]]] = ...) -> None: ...

class TopicPosition(_message.Message):
    __slots__ = ("topic", "offsets")
    class OffsetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    offsets: _containers.ScalarMap[int, int]
    def __init__(self, topic: _Optional[str] = ..., offsets: _Optional[_Mapping[int, int]] = ...) -> None: ...

class ReadInfo(_message.Message):
    __slots__ = ("consistency_token", "as_of_time")
    CONSISTENCY_TOKEN_FIELD_NUMBER: _ClassVar[int]
    AS_OF_TIME_FIELD_NUMBER: _ClassVar[int]
    consistency_token: str
    as_of_time: _timestamp_pb2.Timestamp
    def __init__(self, consistency_token: _Optional[str] = ..., as_of_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ScanOptions(_message.Message):
    __slots__ = ("resume_token", "limit", "slices")
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    resume_token: str
    limit: int
    slices: int
    def __init__(self, resume_token: _Optional[str] = ..., limit: _Optional[int] = ..., slices: _Optional[int] = ...) -> None: ...

class ScanProgress(_message.Message):
    __slots__ = ("resume_token", "read_info", "slice_tokens")
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    READ_INFO_FIELD_NUMBER: _ClassVar[int]
    SLICE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    resume_token: str
    read_info: ReadInfo
    slice_tokens: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, resume_token: _Optional[str] = ..., read_info: _Optional[_Union[ReadInfo, _Mapping]] = ..., slice_tokens: _Optional[_Iterable[str]] = ...) -> None: ...

class SubscribeOptions(_message.Message):
    __slots__ = ("resume_token", "start", "progress_interval")
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    resume_token: str
    start: SubscribeStart
    progress_interval: _duration_pb2.Duration
    def __init__(self, resume_token: _Optional[str] = ..., start: _Optional[_Union[SubscribeStart, str]] = ..., progress_interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class SubscribeProgress(_message.Message):
    __slots__ = ("phase", "resume_token", "read_info")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    READ_INFO_FIELD_NUMBER: _ClassVar[int]
    phase: SubscribePhase
    resume_token: str
    read_info: ReadInfo
    def __init__(self, phase: _Optional[_Union[SubscribePhase, str]] = ..., resume_token: _Optional[str] = ..., read_info: _Optional[_Union[ReadInfo, _Mapping]] = ...) -> None: ...
