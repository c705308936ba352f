"""Formats of keys and values in topics. In a source they name fields; in an output they hold expressions.

Source("stock_ticks", Text("price"), key=Text("symbol"))
RowOutput("rating-averages", key=Long("movie_id"), value=Double("average_rating"))
"""

import json
import re
from dataclasses import dataclass
from typing import Any

_DDL_FIELD = re.compile(r"\s*`?([A-Za-z_][A-Za-z0-9_]*)`?\s*:?\s+\S")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Avro:
    """Avro in the Confluent wire format; for sources.

    `schema`: JSON text of the record that the job reads. A schema registry tells which schemas writers used. Without
    one, `schema` is every writer's; but with `others`, the schemas of record types that share the topic, `schema` has
    id 1 and they have 2 and so on. Records of other types are passed over, and counted.
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
            'the schema is no Avro record; give JSON text like {"type": "record", "name": …, "fields": […]}'
        ) from None
    return record


@dataclass(frozen=True, slots=True)
class Json:
    """A JSON object. In a source, `fields` is Spark's DDL: `id BIGINT, name STRING`. In an output it is a select list:
    `id, upper(name) AS name`."""

    fields: str

    @property
    def field_names(self) -> tuple[str, ...]:
        """Names of the fields of a source; raise `ValueError`."""
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


Format = Avro | Json | Text | Long | Double | Bytes
