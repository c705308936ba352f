"""Columns that no record of a topic has a field for, and fields of records that no column reads.

Neither is a mistake by itself: a field may be left out, and a column may be of what is still to come. Both together
mostly are, as `customer` does not read `customerName`, and an empty column says nothing. So fields are named where a
column of the same message has none.

A value of Protobuf has no field where it is zero, and names none. So there a column that is always zero is named only
where the message also has numbers that the contract does not have.

Decision: docs/decisions/0187-an-empty-column-is-named-as-a-table-is-added.md
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from tablegate.gateway.contract.columns import ANY, FIELD_MASK, is_map, is_message

_NAMES_MAX = 10  # a line that is read; objects may have any number of fields
_NAME_CHARACTERS_MAX = 80  # and their names any length


@dataclass(slots=True)
class _Fields:
    """A message of the row, the way to it, and the fields that values there had.

    `unread`: those without a column, each with the way to it in the records, which may call a column by two names.
    """

    of: Descriptor
    path: str
    seen: set[str] = field(default_factory=set)
    unread: set[tuple[str, str | int]] = field(default_factory=set)

    def columns_without(self, key: Collection[str]) -> Iterator[FieldDescriptor]:
        """Yield the columns for which there was no field."""
        for column in self.of.fields:
            if not {column.name, column.json_name} & self.seen and not (self.path == "" and column.name in key):
                yield column


class TopicFields:
    """Collects the fields of records that became rows. `key`: the columns that the key of a record has."""

    def __init__(self, row: Descriptor, key: Collection[str]) -> None:
        self._row = row
        self._key = key
        self._messages: dict[str, _Fields] = {}  # by path, in names of columns
        self._are_numbers = False

    def add(self, content: Any) -> None:
        """Take what a row is made of, as `ForeignRows.content` returns it."""
        if isinstance(content, Message):
            self._are_numbers = True
            self._add_message(content, "")
        else:
            self._add_object(content, self._row, "", "")

    def _add_object(self, found: Any, of: Descriptor, path: str, way: str) -> None:
        """`way`: the path in the names that the records have."""
        if not isinstance(found, Mapping):
            return
        fields = self._messages.setdefault(path, _Fields(of, path))
        columns = {name: column for column in of.fields for name in (column.name, column.json_name)}
        fields.seen |= found.keys() & columns.keys()
        fields.unread |= {(way, name) for name in found.keys() - columns.keys()}
        for name in found.keys() & columns.keys():
            for inside, message in _objects(columns[name], found[name]):
                self._add_object(inside, message, f"{path}{columns[name].name}.", f"{way}{name}.")

    def _add_message(self, found: Message, path: str) -> None:
        of: Any = found.DESCRIPTOR
        fields = self._messages.setdefault(path, _Fields(of, path))
        unknown = UnknownFieldSet(found)
        fields.unread |= {(path, unknown[at].field_number) for at in range(len(unknown))}
        for column, value in found.ListFields():
            fields.seen.add(column.name)
            for inside, _ in _objects(column, value):
                self._add_message(inside, f"{path}{column.name}.")

    def columns_without(self) -> list[str]:
        """Return the columns for which no record had a field, those in messages by their path."""
        return [f"{one.path}{column.name}" for one, columns in self._incomplete() for column in columns]

    def fields_without(self) -> list[str]:
        """Return the fields beside those columns that no column reads; of Protobuf their numbers."""
        return [f"{way}{name}" for one, _ in self._incomplete() for way, name in sorted(one.unread)]

    def _incomplete(self) -> Iterator[tuple[_Fields, list[FieldDescriptor]]]:
        for one in self._messages.values():
            columns = [*one.columns_without(self._key)]
            if columns and (one.unread or not self._are_numbers):
                yield one, columns

    def lines(self) -> Iterator[str]:
        """Yield what to print: nothing where each column had a field."""
        columns, fields = self.columns_without(), self.fields_without()
        if not columns:
            return
        stay = "stays" if len(columns) == 1 else "stay"
        empty = f"none of these has a field for {_named('column', columns)}, which {stay} empty"
        if not fields:
            those = "it" if len(columns) == 1 else "them"
            yield f"{empty}; take {those} out of the contract, unless such records are still to come"
        elif self._are_numbers:
            yield f"{empty}; no column reads {_named('field number', fields)}"
            yield "give each column the number that its field has in the topic's own schema"
        else:
            yield f"{empty}; no column reads {_named('field', fields)}"
            yield 'call each column as its field is called, or say that in the contract: [json_name = "FIELD"]'


def _objects(column: FieldDescriptor, value: Any) -> Iterator[tuple[Any, Descriptor]]:
    """Yield the objects or messages that the value of a column has, with what they are; nothing of other columns."""
    inside = column.message_type
    if inside is not None and is_map(column):
        column = inside.fields_by_name["value"]
        value = [*value.values()] if isinstance(value, Mapping) else [_entry_value(one) for one in value or ()]
    elif not column.is_repeated:
        value = [value]
    inside = column.message_type
    if inside is None or not is_message(column) or inside.full_name in (ANY, FIELD_MASK):
        return
    for one in value or ():
        yield one, inside


def _entry_value(entry: Any) -> Any:
    """Return the value of an entry of a map that is an array of entries, as Kafka Connect writes it."""
    return entry["value"] if isinstance(entry, Mapping) else entry[1]


def _named(what: str, names: Collection[str]) -> str:
    shown = [f'"{_printable(name)}"' for name in [*names][:_NAMES_MAX]]
    if len(names) > _NAMES_MAX:
        shown.append(f"{len(names) - _NAMES_MAX} more")
    *first, last = shown
    return f"the {what}s {', '.join(first)} and {last}" if first else f"{what} {last}"


def _printable(name: str) -> str:
    """Return a name that gives a terminal no commands, or where it begins."""
    begins = name if len(name) <= _NAME_CHARACTERS_MAX else f"{name[: _NAME_CHARACTERS_MAX - 1]}…"
    return "".join(one if one.isprintable() else "\ufffd" for one in begins)
