"""Rows alone: tables whose contract has no service. Queries are generated for them, and bound as all others.

A file has its rows alone where it has a row and no service, and no file with queries imports it: what imports it says
itself which queries its rows have.

Decision: docs/decisions/0092-a-row-alone-is-served.md
"""

from collections.abc import Collection, Mapping, Sequence

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

from tablegate.gateway.contract.binder.files import messages_of, option
from tablegate.gateway.contract.binder.problems import Problems
from tablegate.gateway.contract.binder.tables import find_rows
from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.generated.files import with_queries
from tablegate.gateway.contract.generated.queries import KINDS, Queries, queries_of
from tablegate.v1 import options_pb2


def rows_alone(own: Sequence[FileDescriptor]) -> list[FileDescriptor]:
    """Return those of the user's own files that have rows alone."""
    imported: set[str] = set()
    waiting = [file for file in own if _has_query(file)]
    while waiting:
        for dependency in waiting.pop().dependencies:
            if dependency.name not in imported:
                imported.add(dependency.name)
                waiting.append(dependency)
    return [
        file for file in own if file.name not in imported and not file.services_by_name and find_rows(messages_of(file))
    ]


def _has_query(file: FileDescriptor) -> bool:
    methods = (method for service in file.services_by_name.values() for method in service.methods)
    return any(option(method, options_pb2.query) is not None for method in methods)


def add_queries(
    files: FileDescriptorSet,
    pool: DescriptorPool,
    own: Sequence[FileDescriptor],
    tables: Mapping[str, Table],
    problems: Problems,
) -> FileDescriptorSet:
    """Return the files, those that have rows alone with generated queries; add to `problems` where that cannot be."""
    added: dict[str, list[Queries]] = {}
    reserved: dict[str, list[str]] = {}  # by package
    for file in rows_alone(own):
        names = reserved.setdefault(file.package, [])
        added[file.name] = queries_in(file, own, tables, problems, reserved=names)
        names += [name for queries in added[file.name] for name in queries.names]
    return files if problems.found else with_queries(files, pool, added)


def queries_in(
    file: FileDescriptor,
    own: Sequence[FileDescriptor],
    tables: Mapping[str, Table],
    problems: Problems,
    *,
    kinds: Collection[str] = KINDS,
    reserved: Collection[str] = (),
) -> list[Queries]:
    """Return what is generated for the tables of a file, whose package has the names in `reserved` besides.

    `tables` are by the full names of their rows.
    """
    if _syntax(file) != "proto3":
        text = "is not proto3, and queries are written in proto3"
        problems.of_file(file.name, text, 'begin it with `syntax = "proto3";`, or write a service by hand')
        return []
    names = {*reserved} | {
        name
        for other in own
        if other.package == file.package
        for name in (*other.message_types_by_name, *other.enum_types_by_name, *other.services_by_name)
    }
    found = []
    for row in find_rows(messages_of(file)):
        table = tables[row.full_name]
        queries = queries_of(table, kinds)
        for used in sorted(names.intersection(queries.names)):
            text = f'"{used}" is there already, and the queries of table "{table.name}" need the name'
            problems.of_message(row, text, "rename it, or write a service by hand")
        names.update(queries.names)
        found.append(queries)
    return found


def _syntax(file: FileDescriptor) -> str:
    """Return "proto2", "proto3" or "editions"."""
    return FileDescriptorProto.FromString(file.serialized_pb).syntax or "proto2"
