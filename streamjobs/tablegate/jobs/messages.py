"""Messages of `.proto` files, which records of topics are.

Decision: docs/decisions/0011-protobuf-sources-in-python.md
"""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool

from tablegate.gateway.contract.columns import ANY, JSON_MESSAGES
from tablegate.gateway.contract.descriptors import DescriptorError, load_descriptors

_LISTED_MAX = 5  # names of other messages that an error lists


@cache  # a job goes by the file that its declaration was checked against, also where it is edited meanwhile
def find_message(name: str, path: Path) -> Descriptor:
    """Return the message of this full name out of a `.proto` file or a descriptor set; raise `ValueError`."""
    try:
        files = load_descriptors(path, what="message file").file
    except DescriptorError as error:
        raise ValueError(str(error)) from None
    for file in files:
        file.ClearField("source_code_info")
    try:
        return pool_of([file.SerializeToString() for file in files]).FindMessageTypeByName(name)
    except TypeError as error:
        raise ValueError(f'message file "{path}" has files that do not fit together: {error}; make it anew') from None
    except KeyError:
        prefix = f"{files[-1].package}." if files[-1].package else ""
        known = [f'"{prefix}{message.name}"' for message in files[-1].message_type[:_LISTED_MAX]]
        there = f"give its full name, like {', '.join(known)}" if known else "it has none"
        raise ValueError(f'message file "{path}" has no message "{name}"; {there}') from None


def pool_of(files: Sequence[bytes]) -> DescriptorPool:
    """Return a pool of serialized files, of which each comes after those that it imports; raise `TypeError`."""
    pool = DescriptorPool()
    for file in files:
        pool.AddSerializedFile(file)
    return pool


def files_of(message: Descriptor) -> tuple[bytes, ...]:
    """Return what `pool_of` takes to know a message."""
    found: dict[str, bytes] = {}

    def add(file: FileDescriptor) -> None:
        for imported in file.dependencies:
            add(imported)
        found.setdefault(file.name, file.serialized_pb)

    add(message.file)
    return tuple(found.values())


def frame_indexes(message: Descriptor) -> tuple[bytes, ...]:
    """Return the bytes that stand for a message of its file in the Confluent wire format; writers differ in them."""
    # Java's writers do not count the entries of maps, which others have among nested messages.
    paths = [tuple(_path(message, entries_count=True)), tuple(_path(message, entries_count=False))]
    encoded = [b"".join(varint(number * 2) for number in (len(path), *path)) for path in dict.fromkeys(paths)]
    return (b"\0", *encoded) if paths[0] == (0,) else tuple(encoded)


def _path(message: Descriptor, *, entries_count: bool) -> Iterator[int]:
    """Yield the position of a message in its file, or first that of the message that it is nested in."""
    outer = message.containing_type
    if outer is None:
        yield list(message.file.message_types_by_name).index(message.name)
        return
    yield from _path(outer, entries_count=entries_count)
    siblings = [one.name for one in outer.nested_types if entries_count or not one.GetOptions().map_entry]
    yield siblings.index(message.name)


def why_not_written(message: Descriptor, within: tuple[str, ...] = ()) -> str | None:
    """Return what in a message an output cannot have; None where it can have all of it."""
    if message.full_name in within:
        return f'message "{message.full_name}" within itself, which no type of Spark\'s is'
    if message.full_name in JSON_MESSAGES | {ANY}:
        return f"{message.full_name}, whose value has no type"
    for field in message.fields:
        if field.type == FieldDescriptor.TYPE_GROUP:
            return f'the group "{field.name}"'
        if field.message_type is not None:
            why_not = why_not_written(field.message_type, (*within, message.full_name))
            if why_not is not None:
                return why_not
    return None


def varint(number: int) -> bytes:
    """Return a whole number as Protobuf writes it; for signed ones, their alternating numbers: 0, -1, 1, -2."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])
