"""Protobuf wire bytes: enough to put stored rows into responses, and to take responses apart, without decoding them.

Rows are bytes of the contract's row message already. A response is made by writing a field's tag and length before each
of them; a response of another gateway is taken apart in the same way. See "Encoding" in the documentation of Protobuf.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_LENGTH_DELIMITED = 2
_LENGTHS_MAX = 4_096  # headers kept of each field: longer rows are rare, and lengths come from data
_PARTS = "Parts"


def varint(value: int) -> bytes:
    """Return `value` (not negative) as a base-128 varint."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def fields(message: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, start, start of the value, and end of each field of a message that has a length; pass over others.

    Raise `ValueError` where the bytes are no message.
    """
    at = 0
    while at < len(message):
        start = at
        tag, at = _varint_at(message, at)
        match tag & 7:
            case 0:
                _, at = _varint_at(message, at)
            case 1:
                at += 8
            case 2:
                length, at = _varint_at(message, at)
                yield tag >> 3, start, at, at + length
                at += length
            case 5:
                at += 4
            case wire_type:
                raise ValueError(f"no field has wire type {wire_type}")
    if at > len(message):
        raise ValueError("the message ends in the middle of a field")


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint at a place, and the place behind it."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("the message ends in the middle of a number")


class FieldEncoder(dict[int, bytes]):
    """A field that holds messages: what stands before one of them, tag and length, by its length.

    `field[len(message)] + message` is a message as the value of the field. Headers are kept once made, so the common
    case is one look-up and no call.
    """

    def __init__(self, field_number: int) -> None:
        self._tag = varint(field_number << 3 | _LENGTH_DELIMITED)
        super().__init__()

    def __missing__(self, length: int) -> bytes:
        header = self._tag + varint(length)
        if length <= _LENGTHS_MAX:
            self[length] = header
        return header

    def encode(self, message: bytes) -> bytes:
        """Return `message` as the value of the field."""
        return self[len(message)] + message

    def encode_all(self, messages: Iterable[bytes]) -> bytes:
        """Return `messages` as the values of the field, which is repeated."""
        parts: list[bytes] = []
        for message in messages:
            parts += (self[len(message)], message)
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class SplitMessage:
    """`count` rows or changes, `last` of them without its tag, all of them with tags; and the progress, b"" if none."""

    count: int
    last: bytes
    repeated: bytes
    progress: bytes


class MessageSplitter:
    """Takes responses of a stream apart: what is repeated stays bytes as they came, and so does the progress.

    It parses with a message of its own, in which both fields are of type bytes: the runtime splits, nothing is decoded.
    """

    def __init__(self, repeated: FieldDescriptor, progress: FieldDescriptor | None) -> None:
        file = FileDescriptorProto(name="parts.proto", syntax="proto3")
        message = file.message_type.add(name=_PARTS)
        of_bytes = FieldDescriptorProto.TYPE_BYTES  # on the wire the same as a message
        repeats = FieldDescriptorProto.LABEL_REPEATED
        message.field.add(name="repeated", number=repeated.number, label=repeats, type=of_bytes)
        if progress is not None:
            once = FieldDescriptorProto.LABEL_OPTIONAL
            message.field.add(name="progress", number=progress.number, label=once, type=of_bytes)
        pool = DescriptorPool()
        pool.Add(file)
        self._parse: Any = GetMessageClass(pool.FindMessageTypeByName(_PARTS)).FromString
        self._has_progress = progress is not None

    def split(self, response: bytes) -> SplitMessage:
        """Return the parts of a response."""
        parts = self._parse(response)
        count, last = len(parts.repeated), parts.repeated[-1] if parts.repeated else b""
        if not self._has_progress:
            return SplitMessage(count, last, response, b"")
        progress = parts.progress
        parts.ClearField("progress")
        return SplitMessage(count, last, parts.SerializeToString(), progress)

    def rows(self, response: bytes) -> tuple[list[bytes], bytes]:
        """Return what is repeated in a response, and the response without it."""
        parts = self._parse(response)
        rows = list(parts.repeated)
        parts.ClearField("repeated")
        return rows, parts.SerializeToString()
