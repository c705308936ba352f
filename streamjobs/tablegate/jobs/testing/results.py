"""What came of a test's events: the table as a gateway would serve it, and what went to other topics."""

import io
import json
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import fastavro
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tablegate.gateway.contract import catalogue
from tablegate.gateway.contract.columns import DURATION, WRAPPERS, is_map, is_message, is_money, is_timestamp
from tablegate.gateway.contract.keys import KeyType, decode_key
from tablegate.gateway.contract.rows import RowDecoder
from tablegate.gateway.contract.types import VERSION_HEADER, Version
from tablegate.jobs.dataflow.sink_records import UnseenFields
from tablegate.jobs.formats import Avro, Double, Format, Json, Long, Protobuf, Text
from tablegate.jobs.messages import frame_indexes
from tablegate.jobs.planning.plan import Plan
from tablegate.jobs.table import Output

Key = tuple[Any, ...]
Row = dict[str, Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NANO = Decimal("1e-9")
_FRAME_BYTES = 5  # before Avro: 00 and the id of the schema


@dataclass(frozen=True, slots=True)
class Change:
    """A row written, or None where the key has no row from here on. `batch` counts from 1."""

    key: Key
    row: Row | None
    batch: int


class OutputRecord(NamedTuple):
    """A record of an output topic, decoded by the output's formats; None where it has none."""

    key: Any
    value: Any


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A malformed record: where it lay, what it was, and why no row can be made of it.

    A row that a function has made lies nowhere: topic "", partition and offset -1, the value its columns as JSON.
    `key_bytes`, `value_bytes`: how long they were where only their heads are here, else None.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    reason: str
    key_bytes: int | None = None
    value_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of the events.

    `rows`: the other columns by name, by key. Times are `datetime` in UTC, amounts `Decimal`, enums numbers. `changes`:
    all changes in their order, a key at most once a batch, unless a processor makes more. `outputs`: records by topic.
    `ignored`: how many records were passed over, by the name of their type. `late`: what Spark has dropped because
    its window was over. It counts as a job's log does: once for each batch, key and window. `unseen_fields`: fields of
    JSON sources that no event had, as `topic: field`. `null_columns`: columns that were null in a row, and whose field
    of the contract is not optional, so that clients read zero or an empty text.
    """

    rows: Mapping[Key, Row]
    changes: Sequence[Change]
    outputs: Mapping[str, Sequence[OutputRecord]]
    dead_letters: Sequence[DeadLetter]
    ignored: Mapping[str, int]
    late: int
    unseen_fields: Sequence[str] = ()
    null_columns: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """A record that a query has written."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Batch:
    """What the queries of a table have written in one batch, and how many records they passed over or came late."""

    records: Sequence[Written]
    ignored: Mapping[str, int]
    late: int
    null_columns: Collection[str] = ()


def make_result(plan: Plan, batches: Iterable[Batch], fields: UnseenFields) -> Result:
    """Return what a plan's queries came to; `fields` has counted all batches when they end."""
    changes = _Changes(plan)
    outputs: dict[str, list[OutputRecord]] = {output.topic: [] for output in plan.table.outputs}
    formats = _formats(plan.table.outputs)
    dead_letters: list[DeadLetter] = []
    have_elements = any(plan.table.source_of(name).each is not None for name in plan.table.all_sides)
    set_aside: set[tuple[str, int, int]] = set()
    ignored: Counter[str] = Counter()
    null_columns: set[str] = set()
    late = 0
    for number, batch in enumerate(batches, start=1):
        for record in batch.records:
            if record.topic == plan.changelog.name:
                changes.apply(record, number)
            elif record.topic == plan.dead_letters.name:
                letter = _dead_letter(record)
                place = (letter.topic, letter.partition, letter.offset)
                # A job sets a record aside once, however many of its elements are malformed.
                if not (have_elements and place in set_aside):
                    dead_letters.append(letter)
                set_aside.add(place)
            else:
                outputs[record.topic].append(_output_record(record, formats.get(record.topic)))
        ignored.update(batch.ignored)
        late += batch.late
        null_columns.update(batch.null_columns)
    return Result(
        rows={change.key: change.row for change in changes.newest.values() if change.row is not None},
        changes=tuple(changes.all),
        outputs={topic: tuple(records) for topic, records in outputs.items()},
        dead_letters=tuple(dead_letters),
        ignored=dict(ignored),
        late=late,
        unseen_fields=tuple(fields.pop(1)),
        null_columns=tuple(sorted(null_columns)),
    )


class _Changes:
    """The changes of a table, applied as a gateway applies them: only where their version is newer."""

    def __init__(self, plan: Plan) -> None:
        self._contract = plan.contract
        self._decoder = RowDecoder(plan.contract, {plan.schema_id: json.dumps(plan.value_schema)})
        self._versions: dict[bytes, Version] = {}
        self.newest: dict[bytes, Change] = {}
        self.all: list[Change] = []

    def apply(self, record: Written, batch: int) -> None:
        assert record.key is not None, "a row has a key"
        version = Version(record.headers[VERSION_HEADER])
        if record.key in self._versions and version <= self._versions[record.key]:
            return
        row = None
        if record.value is not None:
            message = self._contract.row_class.FromString(self._decoder.decode(record.value))
            row = _columns(message, self._contract)
        change = Change(_key(self._contract, record.key), row, batch)
        self._versions[record.key] = version
        self.newest[record.key] = change
        self.all.append(change)


def _key(contract: catalogue.Table, key: bytes) -> Key:
    values = decode_key(contract.key, key)
    return tuple(
        _EPOCH + timedelta(microseconds=int(value)) if column.type is KeyType.TIMESTAMP else value
        for column, value in zip(contract.key, values, strict=True)
    )


def _columns(row: Message, contract: catalogue.Table) -> Row:
    key = {column.name for column in contract.key}
    fields: Sequence[Any] = row.DESCRIPTOR.fields  # the stubs name one class twice
    return {field.name: _content(row, field) for field in fields if field.name not in key}


def _content(message: Any, field: FieldDescriptor) -> Any:
    """Return what a message holds in a field: messages as dicts, without a value None."""
    value = getattr(message, field.name)
    if is_map(field):
        assert field.message_type is not None
        of = field.message_type.fields_by_name["value"]
        return {key: _one(value[key], of) for key in value}
    if field.is_repeated:
        return [_one(item, field) for item in value]
    return None if field.has_presence and not message.HasField(field.name) else _one(value, field)


def _one(value: Any, field: FieldDescriptor) -> Any:
    if field.message_type is None:
        return value
    if is_timestamp(field):
        return value.ToDatetime(tzinfo=UTC)
    if is_money(field):
        return value.units + value.nanos * _NANO
    if is_message(field):
        return {inner.name: _content(value, inner) for inner in field.message_type.fields}
    if field.message_type.full_name == DURATION:
        return value.ToTimedelta()
    return value.value if field.message_type.full_name in WRAPPERS else json_format.MessageToDict(value)


def _formats(outputs: Iterable[Output]) -> dict[str, tuple[Format, Format]]:
    """Return the formats of key and value by topic; nothing where outputs of one topic have different ones."""
    found: dict[str, set[tuple[Format, Format]]] = {}
    for output in outputs:
        found.setdefault(output.topic, set()).add((output.key, output.value))
    kinds = {topic: {(type(key), type(value)) for key, value in pairs} for topic, pairs in found.items()}
    return {topic: next(iter(pairs)) for topic, pairs in found.items() if len(kinds[topic]) == 1}


def _output_record(record: Written, formats: tuple[Format, Format] | None) -> OutputRecord:
    if formats is None:
        return OutputRecord(record.key, record.value)
    return OutputRecord(_decoded(formats[0], record.key), _decoded(formats[1], record.value))


def _decoded(form: Format, data: bytes | None) -> Any:
    if data is None:
        return None
    match form:
        case Json():
            return json.loads(data)
        case Text():
            return data.decode()
        case Long():
            return struct.unpack(">q", data)[0]
        case Double():
            return struct.unpack(">d", data)[0]
        case Avro():
            return fastavro.schemaless_reader(io.BytesIO(data[_FRAME_BYTES:]), json.loads(form.schema), None)
        case Protobuf():
            frame = _FRAME_BYTES + len(frame_indexes(form.descriptor)[0]) if form.framed else 0
            message = GetMessageClass(form.descriptor).FromString(data[frame:])
            return {field.name: _content(message, field) for field in form.descriptor.fields}
    return data


def _dead_letter(record: Written) -> DeadLetter:
    headers = {name: value.decode() for name, value in record.headers.items()}
    return DeadLetter(
        topic=headers.get("topic", ""),
        partition=int(headers.get("partition", -1)),
        offset=int(headers.get("offset", -1)),
        key=record.key,
        value=record.value,
        reason=headers["reason"],
        key_bytes=int(headers["key_bytes"]) if "key_bytes" in headers else None,
        value_bytes=int(headers["value_bytes"]) if "value_bytes" in headers else None,
    )
