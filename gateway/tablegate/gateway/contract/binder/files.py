"""The files of a contract: merged, in a descriptor pool of their own, and free of what is not understood."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from tablegate.gateway.contract.binder.problems import ContractError, Problem, Problems
from tablegate.gateway.contract.columns import same_type
from tablegate.v1 import changelog_pb2, errors_pb2, options_pb2, query_pb2, status_pb2

_OURS = options_pb2.TABLE_FIELD_NUMBER
_VALIDATE = 1159  # buf.validate's number, on messages, oneofs and fields
_GIVEN_DIRECTORIES = ("google/", "buf/")  # of files that contracts import, not write
_GIVEN_FILES = frozenset(
    file.DESCRIPTOR.name for file in (options_pb2, query_pb2, errors_pb2, changelog_pb2, status_pb2)
)

_Extension = Any  # an extension's handle: the stubs type it by what it extends, we pass four of them


class _Described(Protocol):
    def GetOptions(self) -> Any: ...  # noqa: N802 - protobuf's name


def merge(sets: Sequence[FileDescriptorSet]) -> FileDescriptorSet:
    """Return the files of all `sets`, each once; raise `ContractError` where two differ under one name.

    A file whose directories are not its package's has its own name alone, and a longer one where another imports it.
    """
    files: dict[str, FileDescriptorProto] = {}
    problems = Problems()
    for file in (file for one in sets for file in one.file):
        known = files.setdefault(file.name, file)
        if _bare(known) != _bare(file) and not file.name.startswith("google/"):
            problems.of_file(file.name, "the contracts hold two different files of this name", "compile them together")
    if problems.found:
        raise ContractError(problems.found)
    imported = {_contents(files[name]) for file in files.values() for name in file.dependency if name in files}
    names = {name for file in files.values() for name in file.dependency}
    return FileDescriptorSet(
        file=[file for name, file in files.items() if name in names or _contents(file) not in imported]
    )


def _contents(file: FileDescriptorProto) -> bytes:
    """Return what a file declares, without its name and its comments."""
    bare = _bare(file)
    bare.ClearField("name")
    return bare.SerializeToString(deterministic=True)


def _bare(file: FileDescriptorProto) -> FileDescriptorProto:
    """Return a file without its comments: those may differ."""
    bare = FileDescriptorProto()
    bare.CopyFrom(file)
    bare.ClearField("source_code_info")
    return bare


def build_pool(files: FileDescriptorSet) -> tuple[DescriptorPool, list[FileDescriptor]]:
    """Return a pool of `files` and nothing else, and the files that are the user's own; raise `ContractError`."""
    by_name = {file.name: file for file in files.file}
    problems = Problems()
    for file in files.file:
        for name in file.dependency:
            if name not in by_name:
                problems.of_file(
                    file.name,
                    f'imports "{name}", which the descriptor set lacks',
                    "make it with `buf build -o`, or with protoc's --include_imports",
                )
    if problems.found:
        raise ContractError(problems.found)
    pool = DescriptorPool()
    added: dict[str, FileDescriptor] = {}  # the pool finds no file by a name that is not ASCII
    for file in _imports_first(by_name):
        try:
            added[file.name] = pool.AddSerializedFile(file.SerializeToString())
        except TypeError as error:
            text = f"protobuf refuses it: {str(error).splitlines()[-1]}"
            raise ContractError([Problem(file.name, "", "", text, "compile the contract again")]) from None
    own = [name for name in by_name if name not in _GIVEN_FILES and not name.startswith(_GIVEN_DIRECTORIES)]
    return pool, [added[name] for name in own]


def message_classes(files: Iterable[FileDescriptor]) -> tuple[type[Message], ...]:
    """Return the classes of all messages of files and of what they import, to be kept for as long as these are used.

    protobuf makes a class as a message is met, and it goes with the last message of its kind. A thread that meets one
    while another collects the garbage can have a message of a class that is gone, and then the process ends.
    """
    found: dict[str, FileDescriptor] = {}
    waiting = list(files)
    while waiting:
        file = waiting.pop()
        if file.name not in found:
            found[file.name] = file
            waiting += file.dependencies
    return tuple(GetMessageClass(message) for file in found.values() for message in messages_of(file))


def _imports_first(by_name: dict[str, FileDescriptorProto]) -> list[FileDescriptorProto]:
    ordered: list[FileDescriptorProto] = []
    seen: set[str] = set()

    def add(name: str) -> None:
        if name not in seen:
            seen.add(name)
            for imported in by_name[name].dependency:
                add(imported)
            ordered.append(by_name[name])

    for name in by_name:
        add(name)
    return ordered


def option(described: _Described, extension: _Extension) -> Any | None:
    """Return the option of ours that `described` has; None if it has none."""
    options = described.GetOptions()
    return options.Extensions[extension] if options.HasExtension(extension) else None


def messages_of(file: FileDescriptor) -> Iterator[Descriptor]:
    """Yield every message of `file`, nested ones after the one that holds them."""
    waiting = list(file.message_types_by_name.values())
    while waiting:
        message = waiting.pop(0)
        yield message
        waiting += message.nested_types


def check_options(files: Iterable[FileDescriptor], problems: Problems) -> None:
    """Find options of ours that this version does not know or where they mean nothing, and rules of buf.validate."""
    for file in files:
        messages = list(messages_of(file))
        _check(file, partial(problems.of_file, file.name))
        for message in messages:
            _check_message(message, problems)
        for enum in [*file.enum_types_by_name.values(), *(enum for message in messages for enum in message.enum_types)]:
            for described in (enum, *enum.values):
                _check(described, partial(problems.of_enum, enum))
        for service in file.services_by_name.values():
            _check(service, partial(problems.of_service, service), options_pb2.serving)
            for method in service.methods:
                _check(method, partial(problems.of_method, method), options_pb2.query)


def _check_message(message: Descriptor, problems: Problems) -> None:
    of_message = partial(problems.of_message, message)
    _check(message, of_message, options_pb2.table)
    for field in message.fields:
        _check(field, partial(of_message, field=field.name), options_pb2.param)
    for oneof in message.oneofs:
        _check(oneof, partial(of_message, field=oneof.name))


def _check(described: _Described, add: Callable[[str, str], None], ours: _Extension | None = None) -> None:
    options: Any = described.GetOptions()
    # A message without fields shows everything as unknown, also what somebody else's extension would hide.
    for option in _unknown_fields(Empty.FromString(options.SerializeToString())):
        if option.field_number == _VALIDATE and option.data != b"":
            add("has rules of buf.validate, which this version does not enforce", "remove them")
        if option.field_number == _OURS and (ours is None or not options.HasExtension(ours)):
            add(
                f"has an option with the number {_OURS} of tablegate.v1, which means nothing here",
                "remove it, or use a newer gateway",
            )
    if ours is not None and options.HasExtension(ours):
        for text in _not_understood(options.Extensions[ours]):
            add(f"option (tablegate.v1.{ours.name}) {text}", "remove it, or use a newer gateway")


def _unknown_fields(message: Message) -> list[Any]:
    unknown = UnknownFieldSet(message)
    return [unknown[index] for index in range(len(unknown))]


def _not_understood(message: Message) -> Iterator[str]:
    for unknown in _unknown_fields(message):
        yield f"has a field with number {unknown.field_number}, which this version does not know"
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for one in value if field.is_repeated else [value]:
                yield from _not_understood(one)
        elif field.enum_type is not None and value not in field.enum_type.values_by_number:
            yield f'has {value} in its field "{field.name}", which this version does not know'


def check_bound_messages(pool: DescriptorPool, problems: Problems) -> None:
    """Find fields of a newer query.proto: a client that set one would not get what it asks for."""
    ours = query_pb2.DESCRIPTOR
    try:
        theirs = pool.FindFileByName(ours.name)
    except KeyError:
        return
    known_messages = {message.full_name: message for message in messages_of(ours)}
    for message in messages_of(theirs):
        known = known_messages.get(message.full_name)
        for field in message.fields:
            same = known.fields_by_name.get(field.name) if known is not None else None
            if same is None or same.number != field.number or not same_type(same, field):
                text = "is of another version of the gateway"
                problems.of_message(message, text, "compile with this version's query.proto", field=field.name)
