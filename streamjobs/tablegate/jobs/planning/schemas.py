"""Avro schemas of a source's writers: which of them the declared schema can read.

The second half of the file is Avro's schema resolution, as Spark does it. Avro decides for each record as it comes, in
the JVM. A job wants to know before it starts, and of a schema as a whole: it is readable where its records are in
general, though some may not be (a null, or a branch of a union or a symbol of an enum that the reader does not know).
Two changes that Avro lets through are refused here, as they would read as other values without an error: another scale
of a decimal, and another unit of a time.
"""

import dataclasses
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import fastavro
from confluent_kafka.schema_registry import Schema

from tablegate.jobs.errors import JobError

SchemaId = int | uuid.UUID
"""By which a record names its schema."""
WITHOUT_ID = 1 << 31
"""The first id that no registry gives: from here on schemas are numbered that are known by their GUID alone."""


@dataclass(frozen=True, slots=True)
class WriterSchemas:
    """Schemas of a topic's writers, by id.

    `decoded`: JSON texts of those that can be read as the declared record. `ignored`: full names of records of other
    types. `incompatible`: why those cannot be read that are meant for the declared record. `guids`: ids by GUID, where
    the registry knows such; 32 hex digits in capitals.
    """

    decoded: Mapping[int, str]
    ignored: Mapping[int, str]
    incompatible: Mapping[int, str]
    guids: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def and_lost(self, lost: Mapping[int, uuid.UUID | None]) -> "WriterSchemas":
        """Return these and what the registry does not know, by id, with the GUID of what has none."""
        why = dict.fromkeys(lost, "the schema registry does not know it")
        guids = {guid.hex.upper(): number for number, guid in lost.items() if guid is not None}
        return replace(self, incompatible={**why, **self.incompatible}, guids={**self.guids, **guids})

    def renumbered(self, numbers: Mapping[str, int]) -> "WriterSchemas":
        """Return the same with other numbers for those of these GUIDs."""
        now = {number: numbers[guid] for guid, number in self.guids.items() if number >= WITHOUT_ID}
        decoded, ignored, incompatible = (
            {now.get(number, number): what for number, what in found.items()}
            for found in (self.decoded, self.ignored, self.incompatible)
        )
        guids = {guid: now.get(number, number) for guid, number in self.guids.items()}
        return WriterSchemas(decoded, ignored, incompatible, guids)

    def called(self, schema_id: int) -> str:
        """Return the id; the GUID of a schema that is known by it alone."""
        guids = {number: guid for guid, number in self.guids.items() if number >= WITHOUT_ID}
        return str(uuid.UUID(guids[schema_id])) if schema_id in guids else str(schema_id)


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema as a registry has it. `subject` is None for one that was found by its id or GUID alone."""

    schema_id: int
    schema: Schema
    subject: str | None = None
    guid: uuid.UUID | None = None

    @property
    def text(self) -> str:
        """The schema itself."""
        return self.schema.schema_str or ""

    @property
    def name(self) -> str | None:
        """Full name of the record; None for what is no Avro record."""
        return None if other_kind(self.schema) else next(iter(record_names(self.text)), None)


def other_kind(schema: Schema) -> str | None:
    """Return what a schema is of where it is not of Avro: JSON Schema, Protobuf or what the registry says."""
    kind = schema.schema_type or "AVRO"
    return None if kind == "AVRO" else {"JSON": "JSON Schema", "PROTOBUF": "Protobuf"}.get(kind, kind)


@dataclass(frozen=True, slots=True)
class SourceSchemas:
    """Writers' schemas of one side. Where `writers` is None, the declared schema counts as every writer's.

    `can_learn`: a record whose schema id is none of these ends the query with `UnknownSchema`, as the registry may know
    more by now; else it is malformed.
    """

    writers: WriterSchemas | None = None
    can_learn: bool = False


def merged_schemas(found: Sequence[SourceSchemas]) -> SourceSchemas:
    """Return the schemas of topics that are read as one; an id that one of them can be read by counts for all."""
    writers = [one.writers for one in found if one.writers is not None]
    if not writers:
        return SourceSchemas()
    # Of those that are known by their GUID alone, each topic has numbers of its own.
    alone = dict.fromkeys(guid for one in writers for guid, number in one.guids.items() if number >= WITHOUT_ID)
    writers = [one.renumbered({guid: WITHOUT_ID + place for place, guid in enumerate(alone)}) for one in writers]
    decoded = {number: text for one in writers for number, text in one.decoded.items()}
    ignored = {number: name for one in writers for number, name in one.ignored.items() if number not in decoded}
    known = {*decoded, *ignored}
    incompatible = {number: why for one in writers for number, why in one.incompatible.items() if number not in known}
    guids = {guid: number for one in writers for guid, number in one.guids.items()}
    return SourceSchemas(WriterSchemas(decoded, ignored, incompatible, guids), all(one.can_learn for one in found))


def sort_schemas(topic: str, schema: str, found: Iterable[Registered], *, needs_one: bool = True) -> WriterSchemas:
    """Sort schemas of a topic by how `schema`, the reader's, takes them.

    `needs_one`: raise `JobError` where it can read none.

    A record is meant for the reader if it has the reader's name or one of its aliases. Where the topic has no such
    record, and one other in its subject `<topic>-value`, that one is meant: it is the topic's only type.
    """
    registered = list({one.schema_id: one for one in reversed(list(found))}.values())[::-1]
    meant = set(record_names(schema))
    if not any(one.name in meant for one in registered if one.subject and one.subject.startswith(f"{topic}-")):
        of_values = {one.name for one in registered if one.subject == f"{topic}-value" and one.name is not None}
        meant |= of_values if len(of_values) == 1 else set()
    decoded: dict[int, str] = {}
    ignored: dict[int, str] = {}
    incompatible: dict[int, str] = {}
    for one in registered:
        if one.name is not None and one.name not in meant:
            ignored[one.schema_id] = one.name
            continue
        why = why_unreadable(one.text, schema) if one.name is not None else _why_no_record(one.schema)
        if why is None:
            decoded[one.schema_id] = one.text
        else:
            incompatible[one.schema_id] = why
    if not decoded and needs_one:
        raise _nothing_to_read(topic, schema, ignored=ignored, incompatible=incompatible)
    guids = {one.guid.hex.upper(): one.schema_id for one in registered if one.guid is not None}
    return WriterSchemas(decoded, ignored, incompatible, guids)


def _why_no_record(schema: Schema) -> str:
    kind = other_kind(schema)
    if kind is None:
        return "it is not an Avro record"
    hint = "; declare the source as Protobuf" if kind == "Protobuf" else ""
    return f"it is of {kind}, and the source is declared as Avro{hint}"


def _nothing_to_read(
    topic: str, schema: str, *, ignored: Mapping[int, str], incompatible: Mapping[int, str]
) -> JobError:
    if incompatible:
        schema_id = max(incompatible)
        return JobError(
            f'no schema of topic "{topic}" can be read as the declared one; of schema {schema_id}, '
            f"{incompatible[schema_id]}: correct the schema of the declaration"
        )
    others = ", ".join(f'"{name}"' for name in sorted(set(ignored.values())))
    declared = next(iter(record_names(schema)), "")
    return JobError(
        f'topic "{topic}" has records {others} and none "{declared}"; give the schema of the declaration the name that '
        "its writers use"
    )


PROMOTIONS: Mapping[str, tuple[str, ...]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_PARTS = {"array": "items", "map": "values"}
_TIMES = ("date", "time-", "timestamp-", "local-timestamp-")


def why_unreadable(writer: str, reader: str) -> str | None:
    """Return why records of the schema `writer` cannot be read with `reader`, both JSON texts; None where they can.

    Names of records need not be the same. The reason is a clause such as `field "price" is string, not double`.
    """
    names: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    sides = []
    for text, known, whose in ((writer, names[0], "it"), (reader, names[1], "the declared schema")):
        try:
            sides.append(fastavro.parse_schema(json.loads(text), known))
        except Exception as error:  # noqa: BLE001 - fastavro lets KeyError and others through
            return f"{whose} is not an Avro schema ({type(error).__name__}: {error})"
    return _Resolution(*names).why(sides[0], sides[1], "")


def record_names(schema: str) -> tuple[str, ...]:
    """Return the full name of a record, then its aliases' full names; empty for what is no record."""
    try:
        record = json.loads(schema)
        if record["type"] not in ("record", "error"):
            return ()
        return tuple(_full_names(record, str(record.get("namespace") or "")))
    except (ValueError, TypeError, KeyError):
        return ()


def _full_names(schema: Mapping[str, Any], namespace: str) -> Iterator[str]:
    name = str(schema["name"])
    space = name.rpartition(".")[0] or namespace
    for one in (name, *schema.get("aliases", ())):
        yield one if "." in one or not space else f"{space}.{one}"


class _Resolution:
    """Compares parts of two schemas, parsed by fastavro: all names are full, and defined in `writers` and `readers`."""

    def __init__(self, writers: Mapping[str, Any], readers: Mapping[str, Any]) -> None:
        self._writers = writers
        self._readers = readers
        self._open: set[tuple[str, str]] = set()  # records being compared: recursive ones end here

    def why(self, writer: Any, reader: Any, path: str) -> str | None:
        """Return why the part at `path` is unreadable."""
        if isinstance(writer, str):
            writer = self._writers.get(writer, {"type": writer})
        if isinstance(reader, str):
            reader = self._readers.get(reader, {"type": reader})
        if isinstance(writer, list):
            return _first_reason(self.why(branch, reader, path) for branch in _without_null(writer))
        if isinstance(reader, list):
            reasons = [self.why(writer, branch, path) for branch in reader]
            if None in reasons:
                return None
            reasons_of_types = [reason for reason, branch in zip(reasons, reader, strict=True) if branch != "null"]
            return reasons_of_types[0] if len(reasons_of_types) == 1 else _differs(path, writer, reader)
        if _meaning(writer) != _meaning(reader) and _meaning(writer) and _meaning(reader):
            return _differs(path, writer, reader)
        kinds = writer["type"], reader["type"]
        if kinds[0] != kinds[1]:
            return None if kinds[1] in PROMOTIONS.get(kinds[0], ()) else _differs(path, writer, reader)
        if kinds[0] in _PARTS:
            part = _PARTS[kinds[0]]
            return self.why(writer[part], reader[part], f"{path}[]")
        if kinds[0] in ("record", "error"):
            return self._why_record(writer, reader, path)
        return _why_named(writer, reader, path) if kinds[0] in ("enum", "fixed") else None

    def _why_record(self, writer: Any, reader: Any, path: str) -> str | None:
        pair = writer["name"], reader["name"]
        if pair in self._open:
            return None
        self._open.add(pair)
        try:
            return next((reason for reason in self._field_reasons(writer, reader, path) if reason is not None), None)
        finally:
            self._open.discard(pair)

    def _field_reasons(self, writer: Any, reader: Any, path: str) -> Iterator[str | None]:
        written = {field["name"]: field for field in writer["fields"]}
        # Avro knows a field's aliases by the record's name.
        is_same_record = writer["name"] in _full_names(reader, "")
        for field in reader["fields"]:
            names = [field["name"], *(field.get("aliases", ()) if is_same_record else ())]
            place = f"{path}.{field['name']}" if path else field["name"]
            found = next((written[name] for name in names if name in written), None)
            if found is not None:
                yield self.why(found["type"], field["type"], place)
            elif "default" not in field:
                yield f'field "{place}" is missing, and the declared schema has no default for it'


def _why_named(writer: Any, reader: Any, path: str) -> str | None:
    if not _is_named_alike(writer, reader):
        return f'{_place(path)} is {writer["type"]} "{writer["name"]}", not "{reader["name"]}"'
    if writer["type"] == "fixed":
        return None if writer["size"] == reader["size"] else _differs(path, writer, reader)
    if "default" in reader or set(writer["symbols"]) & set(reader["symbols"]):
        return None
    return f"{_place(path)} has no symbol that the declared schema has"


def _is_named_alike(writer: Any, reader: Any) -> bool:
    # Avro compares aliases with their namespaces, names without.
    simple = [str(schema["name"]).rpartition(".")[2] for schema in (writer, reader)]
    return simple[0] == simple[1] or writer["name"] in _full_names(reader, "")


def _without_null(branches: list[Any]) -> list[Any]:
    return [branch for branch in branches if branch != "null"] or branches


def _first_reason(reasons: Iterator[str | None]) -> str | None:
    """Return the first reason, or None where one branch has none."""
    found = list(reasons)
    return None if None in found else next(iter(found), None)


def _meaning(schema: Any) -> str:
    """Return what the type's bytes mean beyond their type, where another meaning would read as another value."""
    logical = schema.get("logicalType", "")
    if logical == "decimal":
        return f"decimal of scale {schema.get('scale', 0)}"
    return str(logical) if str(logical).startswith(_TIMES) else ""


def _differs(path: str, writer: Any, reader: Any) -> str:
    return f"{_place(path)} is {_kind(writer)}, not {_kind(reader)}"


def _place(path: str) -> str:
    return f'field "{path}"' if path else "it"


def _kind(schema: Any) -> str:
    if isinstance(schema, list):
        return " or ".join(_kind(branch) for branch in schema)
    if isinstance(schema, str):
        return schema
    kind = f"fixed of {schema['size']} bytes" if schema["type"] == "fixed" else str(schema["type"])
    return f"{kind} ({_meaning(schema)})" if _meaning(schema) else kind
