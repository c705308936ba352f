"""Events of a test, encoded as the records that a producer would write."""

import io
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
from fastavro.validation import ValidationError, validate
from google.protobuf.message import EncodeError, Message
from google.protobuf.message_factory import GetMessageClass

from tablegate.gateway.contract.keys import INT64_MAX, INT64_MIN, InvalidKey, encode_key
from tablegate.gateway.contract.types import VERSION_HEADER, make_version
from tablegate.jobs.formats import (
    OWN_SCHEMA_ID,
    Avro,
    Bytes,
    Double,
    Format,
    Json,
    Long,
    Protobuf,
    RowKey,
    Text,
    full_name,
)
from tablegate.jobs.frame_table import Declared
from tablegate.jobs.messages import frame_indexes
from tablegate.jobs.planning.patterns import is_never_matched
from tablegate.jobs.table import Source

START_TIME = datetime(2026, 1, 1, tzinfo=UTC)
"""Timestamp of a test's first event, unless it has one of its own; the others come a second apart."""

_AVRO_ERRORS = (ValueError, TypeError, KeyError, AttributeError, OverflowError, struct.error)
"""What fastavro raises on a value that does not fit."""


class UnfitEvent(ValueError):
    """An event that cannot be in a topic of the table; the message says which one, and why."""


@dataclass(frozen=True, slots=True)
class Event:
    """A record of a source topic.

    `value` and `key` are in the format of the topic's source: a dict of fields for `Avro`, `Json` and `Protobuf`, which
    takes a message, too; text, a whole number or a number for `Text`, `Long` and `Double`. Bytes are taken as they are,
    whatever the format: so a test writes a malformed record. A value of None deletes. `timestamp` is Kafka's own, in
    milliseconds: what is finer is cut off. `record_type` names one of the `others` of an `Avro` topic, with or without
    its namespace. `headers`: name and value of each, in their order. A row of another table (`rows_of`) has the table's
    name as its topic, its key columns as a dict for `key`, the others for `value`.
    """

    topic: str
    _: KW_ONLY
    value: object
    key: object = None
    timestamp: datetime | None = None
    partition: int = 0
    record_type: str | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """An event as a record of its topic. `timestamp` is in UTC."""

    topic: str
    partition: int
    offset: int
    timestamp: datetime
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


def encode_events(table: Declared, batches: Sequence[Sequence[Event]]) -> list[list[Record]]:
    """Return the records of each batch; raise `UnfitEvent`. Offsets count the events of a topic's partition."""
    next_offsets: dict[tuple[str, int], int] = {}
    declared = [table.source_of(side) for side in table.all_sides]
    sources: dict[str, list[Source]] = {}
    encoded: list[list[Record]] = []
    count = 0
    for batch_number, batch in enumerate(batches, start=1):
        encoded.append([])
        for number, event in enumerate(batch, start=1):
            where = f"batch {batch_number}, event {number}" if len(batches) > 1 else f"event {number}"
            _check(event, where)
            if event.topic not in sources:
                sources[event.topic] = _sources_of(event.topic, declared, where)
            key, value = _encoded(event, sources[event.topic], where)
            place = (event.topic, event.partition)
            offset = next_offsets.get(place, 0)
            next_offsets[place] = offset + 1
            timestamp = event.timestamp or START_TIME + timedelta(seconds=count)
            headers = event.headers
            if sources[event.topic][0].is_table:
                headers = (*headers, (VERSION_HEADER, make_version(1, count + 1)))
            encoded[-1].append(Record(*place, offset, _in_milliseconds(timestamp), key, value, headers))
            count += 1
    return encoded


def _sources_of(topic: str, declared: Sequence[Source], where: str) -> list[Source]:
    """Return the sources that read a topic; raise `UnfitEvent` where none does."""
    found = [source for source in declared if source.matches(topic)]
    if not found:
        known = ", ".join(dict.fromkeys(f'"{name}"' for source in declared for name in source.topics))
        raise UnfitEvent(f'{where}: topic "{topic}" is none of the table\'s: {known}; correct it')
    if any(source.pattern for source in found) and is_never_matched(topic):
        raise UnfitEvent(f'{where}: topic "{topic}" is one that a pattern never matches; give it another name')
    return found


def _check(event: object, where: str) -> None:
    if not isinstance(event, Event):
        raise UnfitEvent(f"{where} is a {type(event).__name__}; give Event(topic, value=…)")
    if type(event.partition) is not int or event.partition < 0:
        raise UnfitEvent(f"{where}: partition {event.partition!r} is not a number from 0 on; correct it")
    if event.timestamp is not None and (not isinstance(event.timestamp, datetime) or event.timestamp.tzinfo is None):
        raise UnfitEvent(f"{where}: timestamp {event.timestamp!r} is not a datetime with a time zone; give tzinfo=UTC")
    for header in event.headers:
        if not (isinstance(header, tuple) and [*map(type, header)] in ([str, bytes], [str, type(None)])):
            raise UnfitEvent(f'{where}: header {header!r} is not a name with its bytes; give ("trace", b"…")')


def _in_milliseconds(timestamp: datetime) -> datetime:
    in_utc = timestamp.astimezone(UTC)
    return in_utc.replace(microsecond=in_utc.microsecond // 1000 * 1000)


def _encoded(event: Event, sources: Sequence[Source], where: str) -> tuple[bytes | None, bytes | None]:
    """Return key and value of the record."""
    if event.record_type is not None and not isinstance(event.value, Mapping):
        raise UnfitEvent(f"{where}: record_type is the type of a dict, and the value is none; remove it")
    parts = []
    for name, given in (("key", event.key), ("value", event.value)):
        what = f'{where}: topic "{event.topic}" {name}'
        if given is None or isinstance(given, bytes):
            parts.append(given)
            continue
        forms = [source.key if name == "key" else source.value for source in sources]
        if any(form != forms[0] for form in forms):
            raise UnfitEvent(f"{what} has another format in each side of the table; give bytes")
        if forms[0] is None:
            raise UnfitEvent(f"{what} has no format in the declaration; give bytes, or give the source a key=")
        parts.append(_encode(forms[0], given, event.record_type if name == "value" else None, what))
    return parts[0], parts[1]


def _encode(form: Format | RowKey, value: object, record_type: str | None, what: str) -> bytes:
    match form:
        case RowKey():
            return _encode_row_key(form, value, what)
        case Avro():
            return _encode_avro(form, value, record_type, what)
        case Json() | Protobuf() if record_type is not None:
            raise UnfitEvent(f"{what} is in {type(form).__name__}, which has no record_type; remove it")
        case Json():
            return _encode_json(value, what)
        case Protobuf():
            return _encode_protobuf(form, value, what)
        case Text() if isinstance(value, str):
            try:
                return value.encode()
            except UnicodeEncodeError:
                raise UnfitEvent(f"{what} has characters that UTF-8 cannot have; give bytes") from None
        case Long() if type(value) is int and INT64_MIN <= value <= INT64_MAX:
            return struct.pack(">q", value)
        case Double() if type(value) in (int, float):
            return struct.pack(">d", value)
    wanted = {Text: "a str", Long: "an int of 64 bits", Double: "a float", Bytes: "bytes"}[type(form)]
    raise UnfitEvent(f"{what} is {value!r}; its format {type(form).__name__} needs {wanted}")


def _encode_row_key(form: RowKey, value: object, what: str) -> bytes:
    if not isinstance(value, Mapping) or [*value] != [*form.field_names]:
        raise UnfitEvent(f"{what} is {value!r}; give a dict of {', '.join(form.field_names)}, in this order")
    values = [round(one.timestamp() * 1_000_000) if isinstance(one, datetime) else one for one in value.values()]
    try:
        return encode_key(form.columns, values)
    except (InvalidKey, AttributeError, TypeError, struct.error) as error:
        raise UnfitEvent(f"{what} is no key of the table: {error}") from None


def _encode_json(value: object, what: str) -> bytes:
    if not isinstance(value, Mapping):
        raise UnfitEvent(f"{what} is {value!r}; its format Json needs a dict")
    try:
        return json.dumps(dict(value), default=_json_value, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise UnfitEvent(f"{what} is not JSON: {error}; correct it, or give bytes") from None


def _json_value(value: object) -> str:
    """Return how Spark reads the value from JSON; raise `TypeError`."""
    if isinstance(value, date):  # a datetime is one as well
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"a {type(value).__name__} has no JSON form")


def _encode_protobuf(form: Protobuf, value: object, what: str) -> bytes:
    is_message = isinstance(value, Message) and value.DESCRIPTOR.full_name == form.message
    if not is_message and not isinstance(value, Mapping):
        raise UnfitEvent(f"{what} is {value!r}; its format Protobuf needs a dict or a {form.message}")
    try:
        message: Any = value if is_message else GetMessageClass(form.descriptor)(**dict(value))  # type: ignore[call-overload]
        body: bytes = message.SerializeToString()
    except (TypeError, ValueError, EncodeError) as error:
        raise UnfitEvent(f"{what} is not a valid {form.message}: {error}") from None
    if not form.framed:
        return body
    return struct.pack(">bI", 0, OWN_SCHEMA_ID) + frame_indexes(form.descriptor)[0] + body


def _encode_avro(form: Avro, value: object, record_type: str | None, what: str) -> bytes:
    schema_id, text = _schema(form, record_type, what)
    if not isinstance(value, Mapping):
        raise UnfitEvent(f"{what} is {value!r}; its format Avro needs a dict")
    for problem in _problems(text, value):
        raise UnfitEvent(f"{what} is not a valid {full_name(text)}: {problem}")
    body = io.BytesIO()
    try:
        fastavro.schemaless_writer(body, json.loads(text), dict(value))
    except _AVRO_ERRORS as error:
        raise UnfitEvent(f"{what} is not a valid {full_name(text)}: {error}") from None
    return struct.pack(">bI", 0, schema_id) + body.getvalue()


def _schema(form: Avro, record_type: str | None, what: str) -> tuple[int, str]:
    """Return id and JSON text of the schema that is meant."""
    if record_type is None:
        return OWN_SCHEMA_ID, form.schema
    names = []
    for schema_id, text in enumerate((form.schema, *form.others), start=OWN_SCHEMA_ID):
        names.append(full_name(text))
        if record_type in (names[-1], names[-1].rpartition(".")[2]):
            return schema_id, text
    raise UnfitEvent(f'{what}: record_type "{record_type}" is none of {", ".join(names)}; correct it')


def _problems(text: str, value: Mapping[str, object]) -> Iterator[str]:
    """Yield what does not fit; fastavro alone would not always say which field."""
    schema = json.loads(text)
    named: dict[str, Any] = {}
    fastavro.parse_schema(schema, named)
    fields = {str(field["name"]): field for field in schema["fields"]}
    for name in value:
        if name not in fields:
            yield f'it has no field "{name}"; there are {", ".join(fields)}'
    for name, field in fields.items():
        if name not in value:
            if "default" not in field:
                yield f'field "{name}" is missing, and has no default'
            continue
        try:
            alone = {**schema, "name": "Alone", "aliases": [], "fields": [{"name": name, "type": field["type"]}]}
            defined = set(_defined_in(field["type"]))
            others = {full: one for full, one in named.items() if full.rpartition(".")[2] not in defined}
            validate({name: value[name]}, fastavro.parse_schema(alone, others))
        except ValidationError:
            yield f'field "{name}" is {value[name]!r}, which is not {json.dumps(field["type"])}'
        except _AVRO_ERRORS as error:
            yield f'field "{name}": {error}'


def _defined_in(schema: Any) -> Iterator[str]:
    """Yield the names of the types that are defined within a type, without their namespaces."""
    for part in schema if isinstance(schema, list) else [schema]:
        if isinstance(part, dict):
            if "name" in part:
                yield str(part["name"]).rpartition(".")[2]
            yield from _defined_in(part.get("type"))
            for inner in (part.get("items"), part.get("values"), *(one["type"] for one in part.get("fields", ()))):
                yield from _defined_in(inner)
