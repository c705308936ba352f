"""Two tables, compared as gateways and jobs do it: the code that takes or refuses rows is asked, column by column.

A changelog of OLD can be followed with NEW where the fingerprints are one (`Table.fingerprint`, which jobs and gateways
compare) and where each column of NEW can be read from the values that OLD has written (`RowDecoder`). Rows that are
stored stay where the row digests are one. What these say about the whole tables has the last word (`_unexplained`), so
that no difference which this module does not know is called safe.

Decision: docs/decisions/0094-a-diff-asks-the-code-that-decides.md
"""

import json
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from tablegate.gateway.cli.diff.differences import EFFECTS, Difference, Effect
from tablegate.gateway.cli.diff.messages import FieldDifference, Kind, message_differences
from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.columns import ANY_JSON, JSON_MESSAGES, WRAPPERS, oneof_of
from tablegate.gateway.contract.rows import RowDecoder, UnfitSchema, row_schema
from tablegate.gateway.contract.value_schemas import column_schemas

_INTEGERS: dict[int | str, tuple[int, bool]] = {
    **dict.fromkeys(
        (FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_SINT64, FieldDescriptor.TYPE_SFIXED64), (63, True)
    ),
    **dict.fromkeys(
        (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SFIXED32), (31, True)
    ),
    **dict.fromkeys((FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64), (64, False)),
    **dict.fromkeys((FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_FIXED32), (32, False)),
    FieldDescriptor.TYPE_ENUM: (31, True),
}
"""How many bits of a number beside its sign, and whether it has one, by the type of a column."""


_VARINTS = ("INT32", "INT64", "UINT32", "UINT64", "BOOL", "ENUM")
_WRITTEN: dict[int | str, str] = {
    **{getattr(FieldDescriptor, f"TYPE_{name}"): "varint" for name in _VARINTS},
    **dict.fromkeys((FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64), "zigzag"),
    **dict.fromkeys((FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_SFIXED32), "4 bytes"),
    **dict.fromkeys((FieldDescriptor.TYPE_FIXED64, FieldDescriptor.TYPE_SFIXED64), "8 bytes"),
}
"""How Protobuf writes a number, by the type of its column; other types differ from one another."""


def table_differences(old: Table, new: Table) -> list[Difference]:
    """Return in what two tables of one name differ, apart from their queries."""
    found = [*_placing(old, new), *_retention(old, new), *_row(old, new), *_indexes(old, new)]
    return [*found, *_unexplained(old, new, found)]


def _placing(old: Table, new: Table) -> Iterator[Difference]:
    """Yield what the fingerprint is made of: what places rows, and names them."""
    for subject, before, now in (
        ("key", _key(old), _key(new)),
        ("partition_by", _partition_by(old), _partition_by(new)),
        ("partitioner", old.partitioner.name, new.partitioner.name),
        ("window", _window(old), _window(new)),
    ):
        if before != now:
            yield Difference(subject, f"is {now}, it was {before}", Effect.REBUILD)
    ends = [table.window.end_column if table.window is not None else None for table in (old, new)]
    if old.window is not None and new.window is not None and ends[0] != ends[1]:
        yield Difference("window.end_column", f"is {ends[1] or 'unset'}, it was {ends[0] or 'unset'}")


def _key(table: Table) -> str:
    return f"({', '.join(f'{column.name} {column.type.name.lower()}' for column in table.key)})"


def _partition_by(table: Table) -> str:
    return f"({', '.join(column.name for column in table.key[: table.partition_by_count])})"


def _window(table: Table) -> str:
    window = table.window
    if window is None:
        return "none"
    start = table.key[window.start_index].name
    return f"{window.size_us / 1e6:g} s each {window.hop_us / 1e6:g} s from {start}"


def _retention(old: Table, new: Table) -> Iterator[Difference]:
    before, now = old.retention_us, new.retention_us
    if before == now:
        return
    text = f"is {_seconds(now)}, it was {_seconds(before)}"
    if before is not None and (now is None or now > before):
        more = "gateways have removed rows by the shorter one; what Kafka has dropped by its age does not come back"
        yield Difference("retention", f"{text}: {more}; {_SETTINGS}", Effect.RESTORE)
        return
    more = "a store in Redis is restored, another goes on"
    settings = f"; {_SETTINGS}" if before is None else ""
    yield Difference("retention", f"{text}: clients miss older windows; {more}{settings}", Effect.RESTORE, True)


_SETTINGS = "the job asks for other settings of the changelog's topic"


def _seconds(duration_us: int | None) -> str:
    return "none" if duration_us is None else f"{duration_us / 1e6:g} s"


def _indexes(old: Table, new: Table) -> Iterator[Difference]:
    """Yield which indexes are new, gone or other ones: gateways build them from the rows that are stored."""
    before, now = ({index.name: index for index in table.indexes} for table in (old, new))
    for name, index in now.items():
        columns = ", ".join(index.column_names)
        known = before.get(name)
        building = "gateways build it in the background; until then, queries that need it are answered UNAVAILABLE"
        if known is None:
            yield Difference(f'index "{name}"', f"is new, of ({columns}): {building}")
        elif known.id != index.id:
            yield Difference(f'index "{name}"', f"is of ({columns}), it was of others: {building}")
        elif known.unique != index.unique:
            yield Difference(f'index "{name}"', f"is {'' if index.unique else 'not '}unique")
    for name in before.keys() - now.keys():
        yield Difference(f'index "{name}"', "is gone: gateways remove its entries")


def _row(old: Table, new: Table) -> Iterator[Difference]:
    if old.row.full_name != new.row.full_name:
        yield Difference("row", f"is message {new.row.full_name}, it was {old.row.full_name}: its bytes are the same")
    for each in message_differences(old.row, new.row):
        rows, why = _of_rows(old, new, each)
        subject = f'column "{".".join(each.path)}"'
        yield Difference(subject, each.text + (f"; {why}" if why else ""), rows, each.breaks_clients)


def _of_rows(old: Table, new: Table, found: FieldDifference) -> tuple[Effect, str]:
    """Return what a difference of columns means for rows that are there, and why."""
    is_column = len(found.path) == 1
    if found.kind is Kind.ADDED:
        return Effect.REBUILD, "no row has it until the job computes it"
    # A message may be in several columns: of one alone its other places would still have the name.
    if not is_column and found.kind is Kind.RENAMED and _refused(new, row_schema(old)) is not None:
        return Effect.REBUILD, "rows have it under the old name"
    if is_column and found.kind is Kind.REMOVED:
        return Effect.REBUILD, "gateways leave it out and may go first; the job cannot go on without it"
    if _refusal(old, new, found.old, found.new) is not None:
        is_name = is_column and found.kind is Kind.RENAMED
        return Effect.REBUILD, "rows have it under the old name" if is_name else "rows cannot be read as that"
    if found.kind is Kind.ENUM_NUMBER:
        return Effect.REBUILD, "rows would say another value"
    if found.before is not None and found.now is not None and (rows := _set_aside(found.before, found.now)) is not None:
        return Effect.REBUILD, f"gateways would set aside rows with {rows}"
    if found.kind is not Kind.ENUM and old.row_digest != new.row_digest:
        return Effect.RESTORE, f"gateways store rows anew{_of_others(found)}"
    return Effect.SAFE, ""


def _of_others(found: FieldDifference) -> str:
    """Return what becomes of records that others write, whose producers do not know of the change."""
    before, now = found.before, found.now
    if before is None or now is None:
        return ""
    if before.number != now.number or _written(before) != _written(now):
        return "; a topic of others in Protobuf is read wrongly, or not at all, until its producers change, too"
    if before.enum_type is not None and now.enum_type is None:
        return "; records of others that have names of the enum, as JSON does, are set aside"
    return ""


def _written(field: FieldDescriptor) -> object:
    kind = _type(field)
    return (_WRITTEN.get(kind, kind), field.message_type is None)


def _refusal(old: Table, new: Table, before: FieldDescriptor | None, now: FieldDescriptor | None) -> str | None:
    """Return why gateways with NEW would refuse the values of OLD for one column; None where they take them."""
    fields = column_schemas(new)
    if now is not None:
        del fields[now.name]
    if before is not None:
        fields[before.name] = column_schemas(old)[before.name]
    return _refused(new, {**row_schema(new), "fields": list(fields.values())})


def _refused(table: Table, schema: Any) -> str | None:
    try:
        RowDecoder(table, {1: json.dumps(schema)})
    except UnfitSchema as error:
        return str(error)
    return None


def _set_aside(old: FieldDescriptor, new: FieldDescriptor) -> str | None:
    """Return which rows a field does not take, though its values are of the type that it wants; None: it takes all."""
    before, now = _type(old), _type(new)
    if before in _INTEGERS and now in _INTEGERS:
        (old_bits, old_signed), (new_bits, new_signed) = _INTEGERS[before], _INTEGERS[now]
        if new_bits < old_bits or old_signed > new_signed:
            return "a number beyond it"
    if now in JSON_MESSAGES and now not in (before, ANY_JSON if before in JSON_MESSAGES else None):
        return "text that is no JSON of it"
    if _joins(old, new):
        return f"two fields of oneof {oneof_of(new)}"
    return None


def _joins(old: FieldDescriptor, new: FieldDescriptor) -> bool:
    """Return whether a field comes into a oneof with one that could be set beside it."""
    oneof, message = new.containing_oneof, old.containing_type
    if oneof is None or message is None or oneof_of(new) is None:
        return False
    names = [field.name for field in oneof.fields if field.name != new.name]
    others = [message.fields_by_name[name] for name in names if name in message.fields_by_name]
    return any(oneof_of(other) is None or oneof_of(other) != oneof_of(old) for other in others)


def _type(field: FieldDescriptor) -> int | str:
    """Return the type of a value, of a wrapper that of the value in it; a message by its name."""
    message = field.message_type
    if message is None:
        return field.type
    return message.fields_by_name["value"].type if message.full_name in WRAPPERS else message.full_name


def _unexplained(old: Table, new: Table, found: list[Difference]) -> Iterator[Difference]:
    """Yield what gateways and jobs decide about the whole tables, where no difference says as much."""
    worst = max((EFFECTS.index(each.rows) for each in found), default=0)
    refused = _refused(new, row_schema(old))
    if old.fingerprint != new.fingerprint and worst < EFFECTS.index(Effect.REBUILD):
        yield Difference("fingerprint", "is another one, and jobs and gateways compare it", Effect.REBUILD)
    elif refused is not None and worst < EFFECTS.index(Effect.REBUILD):
        yield Difference("row", f"gateways refuse the rows that are there: {refused}", Effect.REBUILD)
    elif old.row_digest != new.row_digest and worst < EFFECTS.index(Effect.RESTORE):
        yield Difference("row", "has other fields; gateways store rows anew", Effect.RESTORE)
