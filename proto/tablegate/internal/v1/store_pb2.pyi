from tablegate.v1 import changelog_pb2 as _changelog_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TableState(_message.Message):
    __slots__ = ("store_id", "manifest", "problem", "retention_us", "incarnation_id", "row_digest")
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    RETENTION_US_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    ROW_DIGEST_FIELD_NUMBER: _ClassVar[int]
    store_id: int
    manifest: _changelog_pb2.Manifest
    problem: str
    retention_us: int
    incarnation_id: int
    row_digest: bytes
    def __init__(self, store_id: _Optional[int] = ..., manifest: _Optional[_Union[_changelog_pb2.Manifest, _Mapping]] = ..., problem: _Optional[str] = ..., retention_us: _Optional[int] = ..., incarnation_id: _Optional[int] = ..., row_digest: _Optional[bytes] = ...) -> None: ...
