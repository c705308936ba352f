"""Formats of keys and values in topics. In a source they name fields; in an output they hold expressions.

Source("stock_ticks", Text("price"), key=Text("symbol"))
RowOutput("rating-averages", key=Long("movie_id"), value=Double("average_rating"))
"""

import json
import re
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor

from tablegate.gateway.contract.keys import KeyColumn
from tablegate.jobs.declared import SourceLine, declaring_line
from tablegate.jobs.messages import files_of, find_message

_DDL_FIELD = re.compile(r"\s*`?([A-Za-z_][A-Za-z0-9_]*)`?\s*:?\s+\S")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

OWN_SCHEMA_ID = 1
"""Id of a declared schema where there is no registry; its `others` have those after it."""


@dataclass(frozen=True, slots=True)
class Avro:
    """Avro in the Confluent wire format; in sources also with the schema's GUID in a header.

    In an output, `schema` is that of its records: each field is an expression's name, a column's or a field's. A job
    registers it as `<topic>-value` or `<topic>-key`; without a registry its id is 1.

    `schema`: JSON text of the record that the job reads. A schema registry tells which schemas the writers of values
    used. Without one, and in a key, `schema` is every writer's; but with `others`, the schemas of record types that
    share the topic, `schema` has id 1 and they have 2 and so on. Records of other types are passed over, and counted.
    """

    schema: str
    others: tuple[str, ...] = ()

    @property
    def field_names(self) -> tuple[str, ...]:
        """Names of the record's fields; raise `ValueError`."""
        return tuple(str(avro_field["name"]) for avro_field in _record(self.schema)["fields"])

    @property
    def other_names(self) -> tuple[str, ...]:
        """Full names of the other record types; raise `ValueError`."""
        return tuple(full_name(other) for other in self.others)


def full_name(schema: str) -> str:
    """Return the name of an Avro record with its namespace; raise `ValueError` where it is none."""
    record = _record(schema)
    name = str(record["name"])
    return name if "." in name or not record.get("namespace") else f"{record['namespace']}.{name}"


def _record(schema: str) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(schema)
        if record["type"] != "record" or not all(avro_field["name"] for avro_field in record["fields"]):
            raise ValueError("not a record")
        record["name"]
    except (ValueError, TypeError, KeyError):
        raise ValueError(
            'the schema is not an Avro record; give JSON text like {"type": "record", "name": …, "fields": […]}'
        ) from None
    return record


@dataclass(frozen=True, slots=True)
class Json:
    """A JSON object. In a source, `fields` is Spark's DDL: `id BIGINT, name STRING`. In an output it is a select list:
    `id, upper(name) AS name`.

    `at`, in a source: the name of the object in it that has the fields, such as the `payload` that Kafka Connect writes
    beside a `schema`.
    """

    fields: str
    _: KW_ONLY
    at: str | None = None

    @property
    def field_names(self) -> tuple[str, ...]:
        """Names of the fields of a source; raise `ValueError`."""
        if self.at is not None and not _IDENTIFIER.fullmatch(self.at):
            raise ValueError(f'Json(…, at="{self.at}") names no object; give a name like "payload"')
        names = []
        for part in split_at_commas(self.fields):
            matched = _DDL_FIELD.match(part)
            if matched is None:
                raise ValueError(
                    f'Json("{self.fields}") lists no fields; write names with types: "id BIGINT, name STRING"'
                )
            names.append(matched.group(1))
        return tuple(names)


def split_at_commas(text: str) -> list[str]:
    """Return the parts between commas that lie in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "(<") - (character in ")>")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


@dataclass(frozen=True, slots=True)
class Protobuf:
    """A protobuf message; in sources for tables in micro-batches, as Python decodes it.

    In an output, each field of the message is the name of a column or a field. With `framed`, a job registers the file
    as `<topic>-value` or `<topic>-key`; without a registry its id is 1.

    `message`: full name of the message type. `file`: the `.proto` that has it, or a descriptor set: absolute, or as
    seen from the directory of the declaration or one above it. A record has the message's fields by their names.
    `framed`: records are in the Confluent wire format, with the id of a schema, which is not asked for, and the index
    of the message in its file, which must be that of `message`; without, they are the message and nothing else.
    """

    message: str
    _: KW_ONLY
    file: str
    framed: bool = True
    declared_at: SourceLine = field(default_factory=declaring_line, compare=False, repr=False)

    @property
    def descriptor(self) -> Descriptor:
        """The message type; raise `ValueError`."""
        declared_in = Path(self.declared_at.file).resolve().parent
        for directory in (declared_in, *declared_in.parents):
            if (directory / self.file).is_file():
                return find_message(self.message, directory / self.file)
        raise ValueError(f'message file "{self.file}" is neither in {declared_in} nor above it; correct the path')

    @property
    def files(self) -> tuple[bytes, ...]:
        """The message's file behind those that it imports, as serialized descriptors; raise `ValueError`."""
        return files_of(self.descriptor)

    @property
    def field_names(self) -> tuple[str, ...]:
        """Names of the message's fields; raise `ValueError`."""
        names = tuple(one.name for one in self.descriptor.fields)
        if not names:
            raise ValueError(f'message "{self.message}" has no fields; give one that has')
        return names


@dataclass(frozen=True, slots=True)
class _OneField:
    expression: str

    @property
    def field_names(self) -> tuple[str, ...]:
        """The name of the field of a source; raise `ValueError`."""
        if not _IDENTIFIER.fullmatch(self.expression):
            raise ValueError(f'{type(self).__name__}("{self.expression}") names no field; give a name like "symbol"')
        return (self.expression,)


@dataclass(frozen=True, slots=True)
class Text(_OneField):
    """UTF-8 text: one STRING field, or an expression."""


@dataclass(frozen=True, slots=True)
class Long(_OneField):
    """8 bytes, big endian, as Kafka's LongSerializer writes: one BIGINT field, or an expression."""


@dataclass(frozen=True, slots=True)
class Double(_OneField):
    """8 bytes, big endian, as Kafka's DoubleSerializer writes: one DOUBLE field, or an expression."""


@dataclass(frozen=True, slots=True)
class Bytes(_OneField):
    """The bytes as they are: one BINARY field, or an expression: `Bytes("kafka.value")` passes a record on."""


Format = Avro | Json | Protobuf | Text | Long | Double | Bytes


@dataclass(frozen=True, slots=True)
class RowKey:
    """The key of a changelog's records, a field for each of its columns: of `rows_of` alone."""

    columns: tuple[KeyColumn, ...]

    @property
    def field_names(self) -> tuple[str, ...]:
        """Names of the key columns."""
        return tuple(column.name for column in self.columns)
