from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_FIELD: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_PAGE_TOKEN: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_RESUME_TOKEN: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_CONSISTENCY_TOKEN: _ClassVar[ErrorReason]
    ERROR_REASON_TOO_MANY_KEYS: _ClassVar[ErrorReason]
    ERROR_REASON_ROW_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_TABLE_REBUILT: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_CAUGHT_UP: _ClassVar[ErrorReason]
    ERROR_REASON_PARTITION_UNAVAILABLE: _ClassVar[ErrorReason]
    ERROR_REASON_UNTRACKED_SOURCE: _ClassVar[ErrorReason]
    ERROR_REASON_OVERLOADED: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_SERVED: _ClassVar[ErrorReason]
    ERROR_REASON_CORRUPT_ROW: _ClassVar[ErrorReason]
    ERROR_REASON_SHUTTING_DOWN: _ClassVar[ErrorReason]
    ERROR_REASON_DEADLINE_EXCEEDED: _ClassVar[ErrorReason]
    ERROR_REASON_INTERNAL: _ClassVar[ErrorReason]
    ERROR_REASON_STORE_UNAVAILABLE: _ClassVar[ErrorReason]
    ERROR_REASON_REQUEST_TOO_LARGE: _ClassVar[ErrorReason]
    ERROR_REASON_STREAM_EXPIRED: _ClassVar[ErrorReason]
    ERROR_REASON_SLOW_SUBSCRIBER: _ClassVar[ErrorReason]
    ERROR_REASON_FUTURE_OFFSET: _ClassVar[ErrorReason]
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_INVALID_FIELD: ErrorReason
ERROR_REASON_INVALID_PAGE_TOKEN: ErrorReason
ERROR_REASON_INVALID_RESUME_TOKEN: ErrorReason
ERROR_REASON_INVALID_CONSISTENCY_TOKEN: ErrorReason
ERROR_REASON_TOO_MANY_KEYS: ErrorReason
ERROR_REASON_ROW_NOT_FOUND: ErrorReason
ERROR_REASON_TABLE_REBUILT: ErrorReason
ERROR_REASON_NOT_CAUGHT_UP: ErrorReason
ERROR_REASON_PARTITION_UNAVAILABLE: ErrorReason
ERROR_REASON_UNTRACKED_SOURCE: ErrorReason
ERROR_REASON_OVERLOADED: ErrorReason
ERROR_REASON_NOT_SERVED: ErrorReason
ERROR_REASON_CORRUPT_ROW: ErrorReason
ERROR_REASON_SHUTTING_DOWN: ErrorReason
ERROR_REASON_DEADLINE_EXCEEDED: ErrorReason
ERROR_REASON_INTERNAL: ErrorReason
ERROR_REASON_STORE_UNAVAILABLE: ErrorReason
ERROR_REASON_REQUEST_TOO_LARGE: ErrorReason
ERROR_REASON_STREAM_EXPIRED: ErrorReason
ERROR_REASON_SLOW_SUBSCRIBER: ErrorReason
ERROR_REASON_FUTURE_OFFSET: ErrorReason
