"""A message of a stream, taken apart: what is repeated in it stays bytes as they came, and so does the progress."""

from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_NAME = "Parts"


@dataclass(frozen=True, slots=True)
class Parts:
    """`count` rows or changes, `last` of them without its tag, all of them with tags; and the progress, b"" if none."""

    count: int
    last: bytes
    repeated: bytes
    progress: bytes


class MessageSplitter:
    """Takes responses of one method apart. What is in the fields is not decoded."""

    def __init__(self, repeated: FieldDescriptor, progress: FieldDescriptor | None) -> None:
        file = FileDescriptorProto(name="parts.proto", syntax="proto3")
        message = file.message_type.add(name=_NAME)
        of_bytes = FieldDescriptorProto.TYPE_BYTES  # on the wire the same as a message
        repeats = FieldDescriptorProto.LABEL_REPEATED
        message.field.add(name="repeated", number=repeated.number, label=repeats, type=of_bytes)
        if progress is not None:
            once = FieldDescriptorProto.LABEL_OPTIONAL
            message.field.add(name="progress", number=progress.number, label=once, type=of_bytes)
        pool = DescriptorPool()
        pool.Add(file)
        self._parse: Any = GetMessageClass(pool.FindMessageTypeByName(_NAME)).FromString
        self._has_progress = progress is not None

    def split(self, response: bytes) -> Parts:
        """Return the parts of a response."""
        parts = self._parse(response)
        count, last = len(parts.repeated), parts.repeated[-1] if parts.repeated else b""
        if not self._has_progress:
            return Parts(count, last, response, b"")
        progress = parts.progress
        parts.ClearField("progress")
        return Parts(count, last, parts.SerializeToString(), progress)
