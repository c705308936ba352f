"""Columns that no record of a topic has a field for, and fields of records that no column reads.

Neither is a mistake by itself: a field may be left out, and a column may be of what is still to come. Both together
mostly are, as `customer` does not read `customerName`, and an empty column says nothing. So fields are named where a
column of the same message has none.

A value of Protobuf has no field where it is zero, and names none. So there a column that is always zero is named only
where the message also has numbers that the contract does not have.

Decision: docs/decisions/0187-an-empty-column-is-named-as-a-table-is-added.md
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from tablegate.gateway.contract.columns import ANY, FIELD_MASK, is_map, is_message

_NAMES_MAX = 10  # a line that is read; objects may have any number of fields
_NAME_CHARACTERS_MAX = 80  # and their names any length


class _Fields:
    """A message of the row at one place of records, and the fields that values had there.

    `path` and `way` lead there: in the names of columns, and in those that the records have. `seen` has names, and the
    numbers that a message of Protobuf does not know.
    """

    def __init__(self, of: Descriptor, path: str, way: str) -> None:
        self.of = of
        self.path = path
        self.way = way
        self.columns = {name: column for column in of.fields for name in (column.name, column.json_name)}
        self.inner = {name: column for name, column in self.columns.items() if _message_in(column) is not None}
        self.seen: set[str | int] = set()
        self.is_there = False  # whether any record had a value there


class Unmatched(NamedTuple):
    """The columns for which no record had a field, and the fields beside them that no column reads, by their paths.

    Of Protobuf these are the numbers of the fields.
    """

    columns: list[str]
    fields: list[str]


class TopicFields:
    """Collects the fields of records that became rows. `key`: the columns that the key of a record has."""

    def __init__(self, row: Descriptor, key: Collection[str]) -> None:
        self._row = row
        self._key = key
        self._places: dict[str, _Fields] = {}  # by the way there
        self._are_numbers = False

    def add(self, content: Any) -> None:
        """Take what a row is made of, as `ForeignRows.content` returns it."""
        if isinstance(content, Message):
            self._are_numbers = True
            self._add_message(content, self._place(self._row, "", ""))
        else:
            self._add_object(content, self._place(self._row, "", ""))

    def _place(self, of: Descriptor, path: str, way: str) -> _Fields:
        place = self._places.get(way)
        if place is None:
            place = self._places[way] = _Fields(of, path, way)
        return place

    def _inside(self, place: _Fields, name: str) -> _Fields:
        column = place.inner[name]
        inside = _message_in(column)
        assert inside is not None
        return self._place(inside, f"{place.path}{column.name}.", f"{place.way}{name}.")

    def _add_object(self, found: Any, place: _Fields) -> None:
        if not isinstance(found, Mapping):
            return
        place.is_there = True
        place.seen |= found.keys()
        for name in found.keys() & place.inner.keys():
            inside = self._inside(place, name)
            for one in _objects(place.inner[name], found[name]):
                self._add_object(one, inside)

    def _add_message(self, found: Message, place: _Fields) -> None:
        place.is_there = True
        unknown = UnknownFieldSet(found)
        place.seen |= {unknown[at].field_number for at in range(len(unknown))}
        for column, value in found.ListFields():
            place.seen.add(column.name)
            if column.name in place.inner:
                inside = self._inside(place, column.name)
                for one in _objects(column, value):
                    self._add_message(one, inside)

    def unmatched(self) -> Unmatched:
        """Return what no record had of the columns, and no column reads of the records."""
        columns, fields = list[str](), list[str]()
        for one in self._incomplete():
            columns += one.columns
            fields += one.fields
        return Unmatched(columns, fields)

    def _incomplete(self) -> Iterator[Unmatched]:
        by_path: dict[str, list[_Fields]] = {}
        for place in self._places.values():
            if place.is_there:
                by_path.setdefault(place.path, []).append(place)
        for path, places in by_path.items():
            of, names = places[0].of, places[0].columns.keys()
            seen = {name for place in places for name in place.seen & names}
            key = self._key if path == "" else ()
            without = (one for one in of.fields if one.name not in key and not {one.name, one.json_name} & seen)
            columns = [f"{path}{one.name}" for one in without]
            fields = [f"{place.way}{name}" for place in places for name in sorted(place.seen - names, key=_order)]
            if columns and (fields or not self._are_numbers):
                yield Unmatched(columns, fields)

    def lines(self) -> Iterator[str]:
        """Yield what to print: nothing where each column had a field."""
        columns, fields = self.unmatched()
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


def _order(name: str | int) -> tuple[int, str]:
    return (name, "") if isinstance(name, int) else (0, name)


def _message_in(column: FieldDescriptor) -> Descriptor | None:
    """Return the message that values of a column are, or have in them; None of one without columns."""
    if is_map(column):
        assert column.message_type is not None
        column = column.message_type.fields_by_name["value"]
    inside = column.message_type
    return inside if inside is not None and is_message(column) and inside.full_name not in (ANY, FIELD_MASK) else None


def _objects(column: FieldDescriptor, value: Any) -> Iterable[Any]:
    """Return the objects or messages that the value of a column has."""
    if is_map(column):
        return value.values() if isinstance(value, Mapping) else map(_entry_value, value or ())
    return (value or ()) if column.is_repeated else (value,)


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
