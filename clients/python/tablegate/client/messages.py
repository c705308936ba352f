"""Messages of gateways, with the fields that are read here.

They are in pools of their own: an application may have the full ones in the default pool.

Decision: docs/decisions/0198-classes-of-messages-are-kept.md
"""

from collections.abc import Iterable, Mapping, Sequence
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
    """Return the classes of messages, by name; they may hold Anys and Durations, whose classes come behind them."""
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
    known = [any_pb2.DESCRIPTOR.serialized_pb, duration_pb2.DESCRIPTOR.serialized_pb]
    classes = classes_of(descriptor_pool.DescriptorPool(), [*known, file.SerializeToString()])
    return {name: classes.pop(f"{package}.{name}") for name in messages} | classes


def classes_of(pool: descriptor_pool.DescriptorPool, files: Iterable[bytes]) -> dict[str, Any]:
    """Add serialized files to a pool; return the classes of all their messages, by full name.

    Keep them for as long as the pool is used. protobuf makes a class as a message is met, and it goes with the last
    message of its kind. A thread that meets one while another collects the garbage can have a message of a class that
    is gone, and then the process ends.
    """
    found = {}
    for file in files:
        waiting = list(pool.AddSerializedFile(file).message_types_by_name.values())
        while waiting:
            message = waiting.pop()
            found[message.full_name] = message_factory.GetMessageClass(message)
            waiting += message.nested_types
    return found
