from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TokenKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOKEN_KIND_UNSPECIFIED: _ClassVar[TokenKind]
    TOKEN_KIND_PAGE: _ClassVar[TokenKind]
    TOKEN_KIND_SCAN: _ClassVar[TokenKind]
    TOKEN_KIND_CONSISTENCY: _ClassVar[TokenKind]
    TOKEN_KIND_SUBSCRIBE: _ClassVar[TokenKind]
    TOKEN_KIND_FORWARD: _ClassVar[TokenKind]
    TOKEN_KIND_VIEW_FORWARD: _ClassVar[TokenKind]
    TOKEN_KIND_SLICE: _ClassVar[TokenKind]
TOKEN_KIND_UNSPECIFIED: TokenKind
TOKEN_KIND_PAGE: TokenKind
TOKEN_KIND_SCAN: TokenKind
TOKEN_KIND_CONSISTENCY: TokenKind
TOKEN_KIND_SUBSCRIBE: TokenKind
TOKEN_KIND_FORWARD: TokenKind
TOKEN_KIND_VIEW_FORWARD: TokenKind
TOKEN_KIND_SLICE: TokenKind

class Token(_message.Message):
    __slots__ = ("kind", "table", "generation", "request_hash", "issue_time_ms", "after_key", "partition", "rows_given", "next_offsets", "partitions", "skips", "changelog_topic_id", "resume_token", "incarnation_ids", "incarnations", "gateways", "leader_epochs", "gaps", "everything", "partition_bits", "floors", "view", "end_partition")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_HASH_FIELD_NUMBER: _ClassVar[int]
    ISSUE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    AFTER_KEY_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ROWS_GIVEN_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SKIPS_FIELD_NUMBER: _ClassVar[int]
    CHANGELOG_TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_IDS_FIELD_NUMBER: _ClassVar[int]
    INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    GATEWAYS_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    EVERYTHING_FIELD_NUMBER: _ClassVar[int]
    PARTITION_BITS_FIELD_NUMBER: _ClassVar[int]
    FLOORS_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    END_PARTITION_FIELD_NUMBER: _ClassVar[int]
    kind: TokenKind
    table: str
    generation: int
    request_hash: int
    issue_time_ms: int
    after_key: bytes
    partition: int
    rows_given: int
    next_offsets: _containers.RepeatedScalarFieldContainer[int]
    partitions: _containers.RepeatedScalarFieldContainer[int]
    skips: _containers.RepeatedScalarFieldContainer[int]
    changelog_topic_id: str
    resume_token: str
    incarnation_ids: _containers.RepeatedScalarFieldContainer[int]
    incarnations: _containers.RepeatedScalarFieldContainer[int]
    gateways: _containers.RepeatedScalarFieldContainer[str]
    leader_epochs: _containers.RepeatedScalarFieldContainer[int]
    gaps: _containers.RepeatedScalarFieldContainer[int]
    everything: bool
    partition_bits: bytes
    floors: _containers.RepeatedScalarFieldContainer[int]
    view: View
    end_partition: int
    def __init__(self, kind: _Optional[_Union[TokenKind, str]] = ..., table: _Optional[str] = ..., generation: _Optional[int] = ..., request_hash: _Optional[int] = ..., issue_time_ms: _Optional[int] = ..., after_key: _Optional[bytes] = ..., partition: _Optional[int] = ..., rows_given: _Optional[int] = ..., next_offsets: _Optional[_Iterable[int]] = ..., partitions: _Optional[_Iterable[int]] = ..., skips: _Optional[_Iterable[int]] = ..., changelog_topic_id: _Optional[str] = ..., resume_token: _Optional[str] = ..., incarnation_ids: _Optional[_Iterable[int]] = ..., incarnations: _Optional[_Iterable[int]] = ..., gateways: _Optional[_Iterable[str]] = ..., leader_epochs: _Optional[_Iterable[int]] = ..., gaps: _Optional[_Iterable[int]] = ..., everything: _Optional[bool] = ..., partition_bits: _Optional[bytes] = ..., floors: _Optional[_Iterable[int]] = ..., view: _Optional[_Union[View, _Mapping]] = ..., end_partition: _Optional[int] = ...) -> None: ...

class View(_message.Message):
    __slots__ = ("rows", "hidden")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[RowRule]
    hidden: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, rows: _Optional[_Iterable[_Union[RowRule, _Mapping]]] = ..., hidden: _Optional[_Iterable[str]] = ...) -> None: ...

class RowRule(_message.Message):
    __slots__ = ("column", "texts", "numbers", "truths")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    TRUTHS_FIELD_NUMBER: _ClassVar[int]
    column: str
    texts: _containers.RepeatedScalarFieldContainer[str]
    numbers: _containers.RepeatedScalarFieldContainer[int]
    truths: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, column: _Optional[str] = ..., texts: _Optional[_Iterable[str]] = ..., numbers: _Optional[_Iterable[int]] = ..., truths: _Optional[_Iterable[bool]] = ...) -> None: ...
