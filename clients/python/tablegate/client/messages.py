"""Messages of gateways, with the fields that are read here.

They are in pools of their own: an application may have the full ones in the default pool.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, duration_pb2, message_factory

_PROTO = descriptor_pb2.FieldDescriptorProto
BYTES = _PROTO.TYPE_BYTES
NUMBER, TEXT = _PROTO.TYPE_INT64, _PROTO.TYPE_STRING  # numbers of all widths, and enums, are the same on the wire


class Field(NamedTuple):
    """A field of a message. `type`: NUMBER, TEXT, BYTES, or the full name of a message."""

    name: str
    number: int
    type: Any
    repeated: bool = False


def message_classes(package: str, messages: Mapping[str, Sequence[Field]]) -> Mapping[str, Any]:
    """Return the classes of messages, by name; they may hold Anys and Durations."""
    pool = descriptor_pool.DescriptorPool()
    for known in (any_pb2, duration_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    file = descriptor_pb2.FileDescriptorProto(
        name="messages.proto",
        package=package,
        syntax="proto3",
        dependency=[any_pb2.DESCRIPTOR.name, duration_pb2.DESCRIPTOR.name],
    )
    for name, fields in messages.items():
        described = file.message_type.add(name=name)
        for field in fields:
            is_message = isinstance(field.type, str)
            described.field.add(
                name=field.name,
                number=field.number,
                type=_PROTO.TYPE_MESSAGE if is_message else field.type,
                type_name=f".{field.type}" if is_message else None,
                label=_PROTO.LABEL_REPEATED if field.repeated else _PROTO.LABEL_OPTIONAL,
            )
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}
