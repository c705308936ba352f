"""The row of a topic that has JSON: what its newest records have in common, and which of their fields is the key.

A topic has odd records, which nobody can take out of it. So a field is of the type that most records give it, and the
others are left out and counted, by what is odd: as rows, gateways would leave them out as well. A file of samples is
refused instead, as who has written it can correct it.

Decision: docs/decisions/0181-a-contract-is-made-of-what-a-topic-has.md
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from tablegate.gateway.cli.row_messages import Column, Row, RowError, column_name, objects_row
from tablegate.gateway.kafka.log import Record

_KIND_NAMES = {bool: "bool", int: "number", float: "number", str: "text", dict: "an object", list: "a list"}
_ITEM = "[]"  # the name, in a path, of what is in a list
_WIRE_FORMAT_BYTES = 5  # a zero and the schema's id, before a value of Confluent's wire format


@dataclass(frozen=True, slots=True)
class TopicRow:
    """The row of a topic. `key`: its key columns; `codec`: the word of `--key` for them.

    `total` records were read, of which `odd` ones were left out, counted by what is odd.
    """

    row: Row
    key: Sequence[str]
    codec: str
    total: int
    odd: Counter[str]

    def lines(self) -> Iterator[str]:
        """Yield what to print."""
        yield f"{self.total - self.odd.total()} of the newest {self.total} records have this row in common"
        yield from (f"  {count} not: {reason}" for reason, count in self.odd.most_common())


def topic_row(
    records: Iterable[Record], name: str, key: Sequence[str], skipped: Collection[str], *, topic: str
) -> TopicRow:
    """Return the row of records. `key`: columns that are asked for; none: found out. Raise `RowError`."""
    odd, total, found = Counter[str](), 0, list[tuple[bytes | None, dict[str, Any]]]()
    framed = 0
    for record in records:
        total += 1
        if record.value is None:
            continue
        value = None
        with suppress(ValueError, RecursionError):  # of bytes that are not UTF-8, too
            value = json.loads(record.value.decode())
        if isinstance(value, dict):
            found.append((record.key, value))
        else:
            framed += len(record.value) >= _WIRE_FORMAT_BYTES and record.value[0] == 0
            odd["value is JSON, but no object" if value is not None else "value is not JSON"] += 1
    if not found:
        if framed:
            raise RowError(
                f'values of topic "{topic}" are in the wire format of a schema registry; make the row of its schema: '
                f"--from registry:{topic}-value"
            )
        what = "no records with a value yet" if not odd else "no JSON object among its newest records"
        raise RowError(f'topic "{topic}" has {what}; make the row of a schema or a sample: --from FILE')
    found, strange = _alike(found)
    odd += strange
    row = objects_row([value for _, value in found], name, skipped, what=f'topic "{topic}"')
    keyed = [(bytes_, value) for bytes_, value in found if bytes_ is not None]
    if not keyed:
        raise RowError(
            f'records of topic "{topic}" have no keys, so none is the newest of its key; have a job keep a table of '
            "them, or have producers set keys"
        )
    codec, read = _read_keys([bytes_ for bytes_, _ in keyed], topic)
    columns = _key_columns(row, key, read, [value for _, value in keyed], topic)
    return TopicRow(_with_key(row, columns, read), columns, codec, total, odd)


def _alike(
    found: Sequence[tuple[bytes | None, dict[str, Any]]],
) -> tuple[list[tuple[bytes | None, dict[str, Any]]], Counter[str]]:
    """Return those whose fields are of the kinds that most have, and what is odd of the others."""
    kinds: dict[str, Counter[str]] = {}
    for _, value in found:
        for path, kind in {*_kinds(value)}:
            kinds.setdefault(path, Counter())[kind] += 1
    usual = {path: counted.most_common(1)[0][0] for path, counted in kinds.items() if not _is_tie(counted)}
    alike, odd = [], Counter[str]()
    for one in found:
        strange = next(((path, kind) for path, kind in _kinds(one[1]) if usual.get(path, kind) != kind), None)
        if strange is None:
            alike.append(one)
        else:
            odd[f'field "{strange[0]}" is {strange[1]}, in most records {usual[strange[0]]}'] += 1
    return alike, odd


def _is_tie(counted: Counter[str]) -> bool:
    """Return whether no kind is the usual one: then who makes the row of them refuses the field."""
    first, *others = counted.most_common(2)
    return bool(others) and others[0][1] == first[1]


def _kinds(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the kind of each field that is not null, and of those in it."""
    named = value.items() if isinstance(value, dict) else ((_ITEM, item) for item in value)
    for name, inner in named:
        if inner is None:
            continue
        place = f"{path}{name}" if name == _ITEM or not path else f"{path}.{name}"
        yield place, _KIND_NAMES[type(inner)]
        if isinstance(inner, dict | list):
            yield from _kinds(inner, place)


def _read_keys(keys: Sequence[bytes], topic: str) -> tuple[str, Sequence[Any]]:
    """Return the codec of keys and what they are by it: text, a number, or an object of columns."""
    with suppress(UnicodeDecodeError):
        texts = [key.decode() for key in keys]
        if all(text.isprintable() for text in texts):
            with suppress(ValueError, RecursionError):
                values = [json.loads(text) for text in texts]
                if all(isinstance(value, dict) for value in values):
                    return "json", values
            return "utf8", texts
    for codec, size in (("int64", 8), ("int32", 4)):
        if all(len(key) == size for key in keys):
            return codec, [int.from_bytes(key, "big", signed=True) for key in keys]
    raise RowError(
        f'keys of topic "{topic}" are neither text nor numbers nor JSON; make the row of a schema or a sample: '
        "--from FILE, and say what keys are to tablegate table add"
    )


def _key_columns(
    row: Row, asked: Sequence[str], read: Sequence[Any], values: Sequence[dict[str, Any]], topic: str
) -> list[str]:
    """Return the key columns: those that are asked for, those of keys that are objects, or the field that keys are."""
    if asked:
        return [row.column(name) for name in asked]
    if isinstance(read[0], dict):
        return [row.column(name) for name in read[0]]
    for column in row.columns:
        same = sum(value.get(column.source) == key for key, value in zip(read, values, strict=True))
        if 2 * same > len(read):
            return [column.name]
    raise RowError(
        f'keys of topic "{topic}" are in no field of its values; say what column they are: --key '
        f"{_example(row)}, as it is called in the values or not"
    )


def _example(row: Row) -> str:
    return f"{row.name[:1].lower()}{row.name[1:]}_id" if row.name else "id"


def _with_key(row: Row, key: Sequence[str], read: Sequence[Any]) -> Row:
    """Return a row with the columns that keys alone have, before the others."""
    there = {one.name for one in row.columns}
    missing = [name for name in key if name not in there]
    added = []
    for name in missing:
        value = read[0].get(name) if isinstance(read[0], dict) else read[0]
        added.append(Column(name, column_name(name, name), "int64" if isinstance(value, int) else "string"))
    return replace(row, columns=[*added, *row.columns])
