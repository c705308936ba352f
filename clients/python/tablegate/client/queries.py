"""The Scan and the BatchGet of a table, as a gateway's reflection says them: no generated code is needed.

What is here can be pickled, and so given to other processes: descriptors are bound when they are used.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import Message

from tablegate.client.failures import failure_of
from tablegate.client.messages import BYTES, TEXT, Field, classes_of, message_classes
from tablegate.v1 import options_pb2

REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
REFLECTION_TIMEOUT_S = 10.0
BATCH_KEYS_DEFAULT = 100  # of a contract that says no number

READ_OPTIONS, READ_MASK = "tablegate.v1.ReadOptions", "google.protobuf.FieldMask"
READ_INFO = "tablegate.v1.ReadInfo"
SCAN_OPTIONS, SCAN_PROGRESS = "tablegate.v1.ScanOptions", "tablegate.v1.ScanProgress"
_TABLE: Any = options_pb2.table
_QUERY: Any = options_pb2.query
_PARAM: Any = options_pb2.param
_PARTS = (READ_OPTIONS, READ_MASK, SCAN_OPTIONS)


class QueryError(Exception):
    """What was asked for cannot be read; the message is one sentence: what, and what to do."""


@dataclass(frozen=True)
class TableQueries:
    """The queries of one table. `files`: the contract with all that it imports, a FileDescriptorSet.

    `scan` and `batch_get` are the paths of methods; `batch_get` is "" where the contract has none by the key.
    """

    table: str
    key: tuple[str, ...]
    row: str
    scan: str
    batch_get: str
    keys_max: int
    files: bytes

    @cached_property
    def _bound(self) -> tuple[descriptor_pool.DescriptorPool, dict[str, Any]]:
        pool = descriptor_pool.DescriptorPool()
        files = FileDescriptorSet.FromString(self.files).file
        return pool, classes_of(pool, [file.SerializeToString() for file in files])

    @property
    def row_class(self) -> type[Message]:
        """The class of rows."""
        found: type[Message] = self._bound[1][self.row]
        return found

    def classes(self, path: str) -> tuple[Any, Any]:
        """Return the classes of a method's requests and responses."""
        service, _, name = path.removeprefix("/").rpartition("/")
        pool, classes = self._bound
        method = pool.FindServiceByName(service).methods_by_name[name]
        return classes[method.input_type.full_name], classes[method.output_type.full_name]

    @cached_property
    def scanned_class(self) -> Any:
        """The class of the Scan's responses where rows are left as bytes."""
        return scanned_class(self.classes(self.scan)[1].DESCRIPTOR, self.row)

    @cached_property
    def filters(self) -> Mapping[tuple[str, int], str]:
        """The fields of a Scan's request that filter, by column and `Op`."""
        request: Any = self.classes(self.scan)[0].DESCRIPTOR
        file = FileDescriptorSet.FromString(self.files)
        options = {one.name: one.options for one in _message(file, request.full_name).field}
        found = {}
        for field in request.fields:
            if field.message_type is not None and field.message_type.full_name in _PARTS:
                continue
            param: Any = options[field.name].Extensions[_PARAM]
            found[param.column or field.name, param.op or options_pb2.OP_EQ] = field.name
        return found

    def batch_request(self, keys: Iterable[Message]) -> Any:
        """Return a BatchGet's request. `keys`: rows of which the columns of the key count, at most `keys_max`."""
        request = self.classes(self.batch_get)[0]()
        repeated = next(one for one in request.DESCRIPTOR.fields if one.is_repeated)
        into = getattr(request, repeated.name)
        for key in keys:
            if repeated.message_type is None:
                into.append(getattr(key, self.key[0]))
            elif repeated.message_type.full_name.startswith("google."):
                into.add().CopyFrom(getattr(key, self.key[0]))
            else:
                one = into.add()
                for name in self.key:
                    if repeated.message_type.fields_by_name[name].message_type is not None:
                        getattr(one, name).CopyFrom(getattr(key, name))
                    else:
                        setattr(one, name, getattr(key, name))
        return request

    def batch_rows(self, channel: grpc.Channel, request: Message) -> tuple[list[Any], Any]:
        """Return the rows of a BatchGet, None for a key without one, in the order asked; and the answer's ReadInfo.

        Raise what gRPC raises. The ReadInfo is None where the contract has none.
        """
        request_class, response_class = self.classes(self.batch_get)
        call = channel.unary_unary(self.batch_get, request_class.SerializeToString, response_class.FromString)
        response: Any = call(request)
        described = response_class.DESCRIPTOR
        fields = ((one.name, field_of(one.message_type, self.row)) for one in described.fields if one.is_repeated)
        results, found = next((name, row) for name, row in fields if row)
        rows = [getattr(one, found) if one.HasField(found) else None for one in getattr(response, results)]
        info = field_of(described, READ_INFO)
        return rows, getattr(response, info) if info else None

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}


def answered(error: Any, address: str) -> QueryError:
    """Return what a gateway answered in place of rows."""
    failure = failure_of(error)
    name = f"{failure.code} ({failure.reason})" if failure.reason else failure.code
    return QueryError(f"the gateway at {address} answers {name}: {failure.text}")


def scanned_class(response: Any, row: str) -> Any:
    """Return the class of a Scan's responses where `rows` are left as bytes, and `progress`, where there is one."""
    fields = {"rows": field_of(response, row), "progress": field_of(response, SCAN_PROGRESS)}
    found = [
        Field(name, response.fields_by_name[own].number, BYTES, repeated=name == "rows")
        for name, own in fields.items()
        if own
    ]
    return message_classes("tablegate.scanned", {"Scanned": found})["Scanned"]


def field_of(message: Any, type_name: str) -> str:
    """Return the name of the field of this type; "" for none."""
    for field in message.fields:
        if field.message_type is not None and field.message_type.full_name == type_name:
            return str(field.name)
    return ""


def queries_of(channel: grpc.Channel, address: str, table: str) -> TableQueries:
    """Return the queries of a table, which the gateway at the other end of `channel` serves; raise `QueryError`."""
    try:
        files = _Reflection(channel).files()
    except grpc.RpcError as error:
        failure = failure_of(error)
        if failure.code == "UNIMPLEMENTED":
            text = f"the gateway at {address} does not publish its contracts: start it with --reflection"
        else:
            text = f"no gateway answers at {address} ({failure.code}: {failure.text}): check the option address"
        raise QueryError(text) from None
    rows = dict(_rows(files))
    names = sorted(options.name for options in rows.values())
    row = next((name for name, options in rows.items() if options.name == table), None)
    if row is None:
        raise QueryError(f'the gateway at {address} has no table "{table}": it has {", ".join(names)}')
    return _bound(files, table, row, tuple(rows[row].key))


def _bound(files: Sequence[FileDescriptorProto], table: str, row: str, key: tuple[str, ...]) -> TableQueries:
    contract = FileDescriptorSet(file=files)
    found, keys_max = {"scan": "", "batch_get": ""}, BATCH_KEYS_DEFAULT
    for file in files:
        for service in file.service:
            for method in service.method:
                query: Any = method.options.Extensions[_QUERY]
                kind = query.WhichOneof("kind")
                response = _message(contract, method.output_type.removeprefix("."))
                if kind not in found or query.batch_get.index or not _has(contract, response, row):
                    continue
                found[kind] = f"/{'.'.join(filter(None, (file.package, service.name)))}/{method.name}"
                keys_max = query.batch_get.max_keys or keys_max
    if not found["scan"]:
        raise QueryError(f'the contract of table "{table}" has no Scan, by which it is read: add one to the contract')
    return TableQueries(table, key, row, **found, keys_max=keys_max, files=contract.SerializeToString())


def _has(contract: FileDescriptorSet, message: DescriptorProto, row: str) -> bool:
    """Return whether a response has rows: itself, or in the messages that it repeats."""
    types = {field.type_name.removeprefix(".") for field in message.field}
    if row in types:
        return True
    within = [_message(contract, name) for name in types if name and not name.startswith(("google.", "tablegate."))]
    return any(field.type_name == f".{row}" for one in within for field in one.field)


def _rows(files: Sequence[FileDescriptorProto]) -> Iterator[tuple[str, options_pb2.TableOptions]]:
    for name, message in _messages(files):
        if message.options.HasExtension(_TABLE):
            yield name, message.options.Extensions[_TABLE]


def _message(contract: FileDescriptorSet, wanted: str) -> DescriptorProto:
    return next((message for name, message in _messages(contract.file) if name == wanted), DescriptorProto())


def _messages(files: Sequence[FileDescriptorProto]) -> Iterator[tuple[str, DescriptorProto]]:
    def within(prefix: str, messages: Sequence[DescriptorProto]) -> Iterator[tuple[str, DescriptorProto]]:
        for message in messages:
            name = f"{prefix}.{message.name}" if prefix else message.name
            yield name, message
            yield from within(name, message.nested_type)

    for file in files:
        yield from within(file.package, file.message_type)


class _Reflection:
    """Asks a gateway for the files of what it serves."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._call = channel.stream_stream(REFLECTION, _REQUEST.SerializeToString, _RESPONSE.FromString)

    def files(self) -> list[FileDescriptorProto]:
        """Return the files, each behind those that it imports; raise what gRPC raises."""
        [listed] = self._ask([_REQUEST(list_services="*")])
        names = [one.name for one in listed.list_services_response.service]
        wanted = [
            _REQUEST(file_containing_symbol=name) for name in names if not name.startswith(("grpc.", "tablegate.v1."))
        ]
        found: dict[str, FileDescriptorProto] = {}
        while wanted:
            for answer in self._ask(wanted):
                for data in answer.file_descriptor_response.file_descriptor_proto:
                    file = FileDescriptorProto.FromString(data)
                    found[file.name] = file
            missing = {name for file in found.values() for name in file.dependency} - found.keys()
            wanted = [_REQUEST(file_by_filename=name) for name in sorted(missing)]
        ordered: dict[str, FileDescriptorProto] = {}

        def add(name: str) -> None:
            if name not in ordered:
                for dependency in found[name].dependency:
                    add(dependency)
                ordered[name] = found[name]

        for name in sorted(found):
            add(name)
        return list(ordered.values())

    def _ask(self, requests: Sequence[Any]) -> list[Any]:
        return list(self._call(iter(requests), timeout=REFLECTION_TIMEOUT_S))


_REFLECTED = "grpc.reflection.v1alpha"
_CLASSES = message_classes(
    _REFLECTED,
    {
        "ServerReflectionRequest": [
            Field("file_by_filename", 3, TEXT),
            Field("file_containing_symbol", 4, TEXT),
            Field("list_services", 7, TEXT),
        ],
        "FileDescriptorResponse": [Field("file_descriptor_proto", 1, BYTES, repeated=True)],
        "ServiceResponse": [Field("name", 1, TEXT)],
        "ListServiceResponse": [Field("service", 1, f"{_REFLECTED}.ServiceResponse", repeated=True)],
        "ServerReflectionResponse": [
            Field("file_descriptor_response", 4, f"{_REFLECTED}.FileDescriptorResponse"),
            Field("list_services_response", 6, f"{_REFLECTED}.ListServiceResponse"),
        ],
    },
)
_REQUEST, _RESPONSE = _CLASSES["ServerReflectionRequest"], _CLASSES["ServerReflectionResponse"]
