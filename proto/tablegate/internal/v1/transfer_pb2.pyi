from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TransferRequest(_message.Message):
    __slots__ = ("table", "partition", "generation", "changelog_topic_id", "row_digest", "retention_us", "format")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CHANGELOG_TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    ROW_DIGEST_FIELD_NUMBER: _ClassVar[int]
    RETENTION_US_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    table: str
    partition: int
    generation: int
    changelog_topic_id: str
    row_digest: bytes
    retention_us: int
    format: bytes
    def __init__(self, table: _Optional[str] = ..., partition: _Optional[int] = ..., generation: _Optional[int] = ..., changelog_topic_id: _Optional[str] = ..., row_digest: _Optional[bytes] = ..., retention_us: _Optional[int] = ..., format: _Optional[bytes] = ...) -> None: ...

class TransferResponse(_message.Message):
    __slots__ = ("first_position", "repairs", "key_lengths", "keys", "value_lengths", "values", "last_position", "rows", "digest")
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    REPAIRS_FIELD_NUMBER: _ClassVar[int]
    KEY_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUE_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    LAST_POSITION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    first_position: bytes
    repairs: _containers.RepeatedCompositeFieldContainer[TransferRepair]
    key_lengths: bytes
    keys: bytes
    value_lengths: bytes
    values: bytes
    last_position: bytes
    rows: int
    digest: bytes
    def __init__(self, first_position: _Optional[bytes] = ..., repairs: _Optional[_Iterable[_Union[TransferRepair, _Mapping]]] = ..., key_lengths: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., value_lengths: _Optional[bytes] = ..., values: _Optional[bytes] = ..., last_position: _Optional[bytes] = ..., rows: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class TransferRepair(_message.Message):
    __slots__ = ("key", "offset", "version")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    offset: int
    version: bytes
    def __init__(self, key: _Optional[bytes] = ..., offset: _Optional[int] = ..., version: _Optional[bytes] = ...) -> None: ...
