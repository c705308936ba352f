"""Writes the queries of a row into its .proto, which otherwise stays as it is, to the last space.

The new text is compiled and bound in a directory beside the file, and takes its place only then: whatever is wrong, the
file is untouched.

Decision: docs/decisions/0050-queries-from-the-row.md
Decision: docs/decisions/0092-a-row-alone-is-served.md
"""

import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet, SourceCodeInfo

from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.binder.files import build_pool, messages_of
from tablegate.gateway.contract.binder.tables import find_rows
from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.contract.descriptors import DescriptorError, load_descriptors
from tablegate.gateway.contract.generated.files import imports_to_add
from tablegate.gateway.contract.generated.names import snake_case
from tablegate.gateway.contract.generated.queries import KINDS, queries_of
from tablegate.gateway.contract.generated.text import Names, lines_of

OPTIONS = "tablegate/v1/options.proto"

_GAP = r"(?:\s|//[^\n]*\n|/\*.*?\*/)"
_IMPORT = FileDescriptorProto.DEPENDENCY_FIELD_NUMBER
_PACKAGE = FileDescriptorProto.PACKAGE_FIELD_NUMBER
_SYNTAX = FileDescriptorProto.SYNTAX_FIELD_NUMBER


@dataclass(frozen=True, slots=True)
class AskedTable:
    """What a command says of a table. `row`: the message, "" for the only one. `name`: "" for one made of the row's."""

    row: str = ""
    name: str = ""
    key: Sequence[str] = ()
    partition_by: Sequence[str] = ()

    def lines(self, row: str, names: Names) -> list[str]:
        """Return the lines of the table option of a row of that name, in a file of these names."""
        entries = [f'name: "{self.name or table_name(row)}"']
        entries += [f'key: "{column}"' for column in self.key]
        entries += [f'partition_by: "{column}"' for column in self.partition_by]
        return [f"option ({names.written('tablegate.v1.table')}) = {{", *(f"  {entry}" for entry in entries), "};"]


@dataclass(frozen=True, slots=True)
class Contract:
    """The text of a contract, and the names of its tables."""

    text: str
    tables: Sequence[str]


def table_name(row: str) -> str:
    """Return the name of a table of rows called so: "order_totals" of OrderTotal."""
    words = snake_case(row)
    if re.search(r"[^aeiou]y$", words):
        return words[:-1] + "ies"
    return words + ("es" if re.search(r"(s|x|z|ch|sh)$", words) else "s")


def complete(path: Path, asked: AskedTable, kinds: Collection[str] = KINDS, *, text: str | None = None) -> Contract:
    """Return the contract that the .proto at `path` becomes, with queries of its rows; `text` is what it has instead.

    Raise `DescriptorError` where it does not compile or has a service, `ContractError` where its rows cannot be
    tables, and `OSError`.
    """
    if text is None:
        if path.is_file() and path.suffix != ".proto":
            raise DescriptorError(f'contract "{path}" is not a .proto; queries are written into the text of one')
        files, text = load_descriptors(path), _read(path)
    else:
        with _beside(path, text) as written:
            files = load_descriptors(written)
    file = _file_of(files)
    if file.services_by_name:
        service = next(iter(file.services_by_name))
        raise DescriptorError(f'contract "{path}" has a service already, {service}; take it out, or change it by hand')
    row = _row_without_option(file, asked, path)
    if row is not None:
        source = files.file[-1]
        imports = _imports(text, source, {OPTIONS} - set(source.dependency))
        text = _edited(text, [*imports, _option(text, source, row, asked)])
        with _beside(path, text) as written:
            files = load_descriptors(written)
    contract = with_queries(text, files, kinds)
    with _beside(path, contract.text) as written:
        bind(load_descriptors(written))
    return contract


def show(path: Path) -> str:
    """Return the text of a contract, with the queries that a gateway adds to it where it has none.

    Raise `DescriptorError` where it is no .proto or does not compile, `ContractError` where it cannot be served.
    """
    if path.is_file() and path.suffix != ".proto":
        raise DescriptorError(f'contract "{path}" is not a .proto, and a descriptor set has no text to show')
    files, text = load_descriptors(path), _read(path)
    if _file_of(files).services_by_name:
        bind(files)
        return text
    return with_queries(text, files, KINDS).text


def write(path: Path, text: str) -> None:
    """Put a text in the place of a file, or of none; raise `OSError`. It is there as a whole or not at all."""
    path = path.resolve()
    with _beside(path, text) as written:
        if path.exists():
            shutil.copymode(path, written)
        os.replace(written, path)


@contextmanager
def _beside(path: Path, text: str) -> Iterator[Path]:
    """Write a text under the name of `path` into a directory beside it: there its imports are found as well."""
    with tempfile.TemporaryDirectory(prefix=".tablegate-", dir=path.resolve().parent) as directory:
        written = Path(directory, path.name)
        written.write_bytes(text.encode())
        yield written


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        raise DescriptorError(f'contract "{path}" is not UTF-8; save it as that') from None


def _file_of(files: FileDescriptorSet) -> FileDescriptor:
    """Return the file that was compiled; the others are its imports."""
    _, own = build_pool(files)
    return next(file for file in own if file.name == files.file[-1].name)


def with_queries(text: str, files: FileDescriptorSet, kinds: Collection[str] = KINDS) -> Contract:
    """Return the contract that a text of rows alone becomes; `files` is what it compiles to. Raise `ContractError`."""
    catalogue: Catalogue = bind(files)  # it has all queries: their names are free, or this fails
    name = files.file[-1].name
    tables = [table for table in catalogue.tables.values() if table.row.file.name == name]
    names = Names(files.file[-1].package, [message.name for message in files.file[-1].message_type])
    end = "" if text.endswith("\n") else "\n"
    lines = [line for table in tables for line in ("", *lines_of(queries_of(table, kinds), names))]
    written = (len(text), end + "".join(f"{line}\n" for line in lines))
    imports = _imports(text, files.file[-1], imports_to_add(files.file[-1]))
    return Contract(_edited(text, [*imports, written]), [table.name for table in tables])


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _row_without_option(file: FileDescriptor, asked: AskedTable, path: Path) -> Descriptor | None:
    """Return the message that gets the table option; None where it has one."""
    messages = list(file.message_types_by_name.values())
    rows = find_rows(messages_of(file))
    found = [message for message in messages if asked.row in (message.name, message.full_name)]
    if asked.row and not found:
        raise DescriptorError(f'contract "{path}" has no message {asked.row}; name one of {_listed(messages)}')
    if not asked.row:
        found = rows or messages
    if not found:
        raise DescriptorError(f'contract "{path}" has no message; write that of a row')
    if len(found) > 1 and not rows:
        raise DescriptorError(f'contract "{path}" has several messages; say which is the row: --row {found[0].name}')
    if any(found[0] is row for row in rows):
        if asked.key or asked.name or asked.partition_by:
            raise DescriptorError(
                f"message {found[0].name} has the table option already; "
                "leave out --key, --table and --partition-by, or take out the option"
            )
        return None
    if not asked.key:
        columns = [field.name for field in found[0].fields]
        hint = f"say its columns: --key {columns[0]}" if columns else "give the message fields first"
        raise DescriptorError(f"table of message {found[0].name} needs a key; {hint}")
    return found[0]


def _listed(messages: Sequence[Descriptor]) -> str:
    return ", ".join(message.name for message in messages) or "its messages, of which there are none"


Edit = tuple[int, str]
"""A place in a text, and what is put there."""


def _edited(text: str, edits: Iterable[Edit]) -> str:
    """Return a text with what is put into it; its line ends stay as they are."""
    for at, inserted in sorted(edits, reverse=True):
        text = text[:at] + inserted.replace("\n", _line_end(text)) + text[at:]
    return text


def _imports(text: str, file: FileDescriptorProto, names: Iterable[str]) -> Iterator[Edit]:
    """Yield the imports of these names, each where the order of the others puts it."""
    ends = {tuple(at.path): (at.span[0], at.span[-2] if len(at.span) > 3 else at.span[0]) for at in _locations(file)}
    before = [(name, ends[_IMPORT, number]) for number, name in enumerate(file.dependency)]
    if before:
        for name in names:
            smaller = [lines for other, lines in before if other < name]
            line = max(end for _, end in smaller) + 1 if smaller else min(start for _, (start, _) in before)
            yield _start_of(text, line), f'import "{name}";\n'
        return
    last = max((ends[path][1] for path in ((_PACKAGE,), (_SYNTAX,)) if path in ends), default=-1)
    block = "".join(f'import "{name}";\n' for name in sorted(names))
    if block:
        yield _start_of(text, last + 1), f"\n{block}" if last >= 0 else f"{block}\n"


def _option(text: str, file: FileDescriptorProto, row: Descriptor, asked: AskedTable) -> Edit:
    """Return the table option of a row, behind the brace that opens it."""
    number = [message.name for message in file.message_type].index(row.name)
    path = [FileDescriptorProto.MESSAGE_TYPE_FIELD_NUMBER, number]
    line = next(at.span[0] for at in _locations(file) if at.path == path)
    opened = re.compile(rf"message{_GAP}+{row.name}{_GAP}*\{{", re.DOTALL).search(text, _start_of(text, line))
    assert opened is not None, "protoc found it there"
    begun = text[_start_of(text, line) :]
    indent = begun[: len(begun) - len(begun.lstrip(" \t"))] + "  "
    names = Names(file.package, [message.name for message in file.message_type])
    option = "".join(f"{indent}{one}\n" for one in asked.lines(row.name, names))
    rest = re.compile(r"[ \t]*(//[^\n]*)?\r?\n").match(text, opened.end())
    if rest is None:  # something follows in the same line
        return opened.end(), f"\n{option}{indent}"
    is_empty = re.compile(r"\s*\}").match(text, rest.end()) is not None
    return rest.end(), option if is_empty else f"{option}\n"


def _locations(file: FileDescriptorProto) -> Iterable[SourceCodeInfo.Location]:
    return file.source_code_info.location


def _start_of(text: str, line: int) -> int:
    """Return where a line starts, counted from 0; the end of the text where there are fewer."""
    at = 0
    for _ in range(line):
        at = text.find("\n", at) + 1
        if at == 0:
            return len(text)
    return at
