"""Value schemas: the Avro schema of a table's values, and how the schema of a writer fits the row message.

    protobuf                                Avro
    integers, enums                         long
    float, double, bool, string, bytes      float, double, boolean, string, bytes
    google.protobuf.Timestamp               long, of logical type timestamp-micros
    google.protobuf.Duration                long, of logical type duration-micros
    google.type.Money                       bytes, of logical type decimal
    google.protobuf.StringValue and so on   as the value in it
    google.protobuf.Struct, Value           string, of logical type json
    another message                         record of its fields, by their names
    repeated                                array
    map                                     map; where the keys are no strings, array of records of key and value

A field is a union with null, which is "not set". Key columns are not, nor what is in an array or a map: there is no
null in a list of protobuf's. A field of a oneof says so by "oneof", with the name of that.

Decision: docs/decisions/0006-avro-to-protobuf-bytes.md
Decision: docs/decisions/0095-rows-as-they-are.md
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.columns import (
    DURATION,
    JSON_MESSAGES,
    WRAPPERS,
    is_map,
    is_message,
    is_money,
    is_timestamp,
    oneof_of,
)

LONG, TIMESTAMP_MICROS, DURATION_MICROS, DECIMAL, JSON = (
    "long",
    "timestamp-micros",
    "duration-micros",
    "decimal",
    "json",
)
RECORD, ARRAY, MAP = "record", "array", "map"
MONEY_SCALE = 9  # digits after the point: units and nanos
MONEY_PRECISION = 28  # digits of a google.type.Money: int64 units (19, not all of them) and nanos

_AVRO_TYPES = {
    FieldDescriptor.CPPTYPE_INT32: LONG,
    FieldDescriptor.CPPTYPE_INT64: LONG,
    FieldDescriptor.CPPTYPE_UINT32: LONG,
    FieldDescriptor.CPPTYPE_UINT64: LONG,
    FieldDescriptor.CPPTYPE_ENUM: LONG,
    FieldDescriptor.CPPTYPE_FLOAT: "float",
    FieldDescriptor.CPPTYPE_DOUBLE: "double",
    FieldDescriptor.CPPTYPE_BOOL: "boolean",
}
_READABLE_AS = {LONG: {LONG, "int"}, "double": {"double", "float"}, JSON: {JSON, "string"}}
"""Avro types that a column takes beside its own, because no value is lost."""

_LOGICAL_TYPES = {TIMESTAMP_MICROS: LONG, DURATION_MICROS: LONG, DECIMAL: "bytes", JSON: "string"}
_PLAIN_TYPES = ("int", LONG, "float", "double", "boolean", "string", "bytes")
_NESTING = (RECORD, ARRAY, MAP)
_DEPTH_MAX = 100  # of types in one another, in what a writer has and the contract lacks

# Without it Spark writes a long, and knows nothing of intervals.
_SPARK_TYPES = {DURATION_MICROS: {"spark.sql.catalyst.type": "interval day to second"}}


class UnfitSchema(ValueError):
    """A value schema from which the row message cannot be made; the message names schema and field."""


@dataclass(frozen=True, slots=True)
class AvroField:
    """A value in a schema: its plain type, or the logical type that a column wants, and its union.

    `branches`: of a union, the index of null (None: it has none, or may not be null) and of the type; None: no union.
    `column`: the field that takes it, None where there is none. `scale`: of a decimal, how many digits are after the
    point. `parts`: the fields of a record; the item of an array. A map is an array of records of key and value, for
    which Avro has the same bytes.
    """

    type: str
    branches: tuple[int | None, int] | None
    column: FieldDescriptor | None
    scale: int = 0
    parts: tuple["AvroField", ...] = ()


def row_schema(table: Table) -> dict[str, Any]:
    """Return the Avro schema of the table's values."""
    key = {column.name for column in table.key}
    return {
        "type": RECORD,
        "name": table.row.name,
        "namespace": table.row.file.package,
        "fields": list(_avro_fields(table.row, set(), required=key)),
    }


def column_schemas(table: Table) -> dict[str, dict[str, Any]]:
    """Return the fields of `row_schema` by name, each of which can stand alone: none needs a type of another one."""
    key = {column.name for column in table.key}
    return {field.name: _avro_field(field, set(), is_required=field.name in key) for field in table.row.fields}


def _avro_fields(message: Descriptor, named: set[str], *, required: Iterable[str] = ()) -> Iterator[dict[str, Any]]:
    """Return the fields of a record. `named`: records that the schema has already, which are only named again."""
    return (_avro_field(field, named, is_required=field.name in required) for field in message.fields)


def _avro_field(field: FieldDescriptor, named: set[str], *, is_required: bool) -> dict[str, Any]:
    avro = _avro_of(field, named)
    if is_required:
        return {"name": field.name, "type": avro}
    made = {"name": field.name, "type": ["null", avro], "default": None}
    if (oneof := oneof_of(field)) is not None:
        made["oneof"] = oneof
    return made


def _avro_of(field: FieldDescriptor, named: set[str]) -> Any:
    """Return the Avro type of all that a field holds."""
    if is_map(field):
        assert field.message_type is not None
        key, value = field.message_type.fields
        if key.type == key.TYPE_STRING:
            return {"type": MAP, "values": _avro_of(value, named)}
    if field.is_repeated:
        return {"type": ARRAY, "items": _avro_of_one(field, named)}
    return _avro_of_one(field, named)


def _avro_of_one(field: FieldDescriptor, named: set[str]) -> Any:
    if is_message(field):
        message = field.message_type
        assert message is not None
        if message.full_name in named:
            return message.full_name
        named.add(message.full_name)
        space, _, name = message.full_name.rpartition(".")
        required = ("key", "value") if message.GetOptions().map_entry else ()
        fields = list(_avro_fields(message, named, required=required))
        return {"type": RECORD, "name": name, "namespace": space, "fields": fields}
    name = _type_of(field)
    if name not in _LOGICAL_TYPES:
        return name
    avro: dict[str, Any] = {"type": _LOGICAL_TYPES[name], "logicalType": name, **_SPARK_TYPES.get(name, {})}
    return avro | {"precision": MONEY_PRECISION, "scale": MONEY_SCALE} if name == DECIMAL else avro


def _type_of(field: FieldDescriptor) -> str:
    """Return the Avro type of one value of a field that is no message of fields, or its logical type."""
    if field.message_type is None:
        if field.type == FieldDescriptor.TYPE_STRING:
            return "string"
        return "bytes" if field.type == FieldDescriptor.TYPE_BYTES else _AVRO_TYPES[field.cpp_type]
    if is_timestamp(field):
        return TIMESTAMP_MICROS
    if is_money(field):
        return DECIMAL
    if field.message_type.full_name == DURATION:
        return DURATION_MICROS
    if field.message_type.full_name in WRAPPERS:
        return _type_of(field.message_type.fields_by_name["value"])
    assert field.message_type.full_name in JSON_MESSAGES
    return JSON


def fit_fields(
    where: str, table: Table, text: str, *, without: Collection[str] = (), by_json_names: bool = False
) -> list[AvroField]:
    """Return the fields of a schema, in its order, each with the column that takes it; raise `UnfitSchema`.

    `without`: columns that come from elsewhere, whatever fields are called so. `by_json_names`: a field may also have
    the name of its column in JSON, where no other one has the column's own.
    """
    try:
        schema = json.loads(text)
        names = {str(field["name"]) for field in schema["fields"] if field["type"]}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UnfitSchema(f"{where}: not an Avro record schema") from None
    for key_column in table.key:
        if key_column.name not in names and key_column.name not in without:
            raise UnfitSchema(f'{where}: field "{key_column.name}" is missing, which the contract has in the key')
    columns = {name: column for name, column in table.row.fields_by_name.items() if name not in without}
    fitting = _Fitting(where, by_json_names=by_json_names)
    return list(fitting.fields(schema, columns, "", str(schema.get("namespace") or "")))


def columns_of(message: Descriptor) -> Iterator[FieldDescriptor]:
    """Yield the fields of a row, and those of the messages in it."""
    for field in message.fields:
        yield field
        if is_message(field):
            assert field.message_type is not None
            yield from columns_of(field.message_type)


def fitted_columns(fields: Iterable[AvroField]) -> Iterator[FieldDescriptor]:
    """Yield the columns that the values of a schema have, those in messages too."""
    for field in fields:
        if field.column is not None:
            yield field.column
        yield from fitted_columns(field.parts)


class _Fitting:
    """Finds what takes each value of one schema. Every method raises `UnfitSchema`."""

    def __init__(self, where: str, *, by_json_names: bool) -> None:
        self._where = where
        self._by_json_names = by_json_names
        self._named: dict[str, Any] = {}
        self._open: list[str] = []

    def fields(
        self, record: Mapping[str, Any], columns: Mapping[str, FieldDescriptor], path: str, space: str
    ) -> Iterator[AvroField]:
        """Yield the fields of a record."""
        if self._by_json_names:
            names = {str(field["name"]) for field in record["fields"]}
            others = {column.json_name: column for column in columns.values() if column.name not in names}
            columns = {**others, **columns}
        for field in record["fields"]:
            name = str(field["name"])
            yield self.value(field["type"], columns.get(name), f"{path}{name}", space, whole=True)

    def value(
        self, avro: Any, column: FieldDescriptor | None, path: str, space: str, *, whole: bool = False
    ) -> AvroField:
        """Return what is known of a value. `whole`: it is all that the column holds, not one of several."""
        if path.count(".") + path.count("[") > _DEPTH_MAX:
            raise UnfitSchema(f"{self._where}: its types are nested too deep")
        branches = None
        plain = avro
        if isinstance(avro, list):
            others = [index for index, branch in enumerate(avro) if branch != "null"]
            if len(others) == 1 and len(avro) <= 2:
                plain = avro[others[0]]
                branches = (1 - others[0] if len(avro) == 2 and whole else None, others[0])
        while isinstance(plain, dict) and plain.get("logicalType") is None and plain.get("type") not in _NESTING:
            plain = plain.get("type")
        plain = self._resolved(plain, space)
        kind = plain.get("type") if isinstance(plain, dict) else None
        is_several = column is not None and column.is_repeated and whole
        if kind == RECORD and not is_several and (column is None or is_message(column)):
            parts = self._record(plain, None if column is None else column.message_type, path, space)
            return AvroField(RECORD, branches, column, parts=parts)
        if kind == ARRAY and (column is None or is_several):
            item = self.value(plain.get("items"), column, f"{path}[]", space)
            return AvroField(ARRAY, branches, column, parts=(item,))
        if kind == MAP and (column is None or (is_several and _has_text_keys(column))):
            return AvroField(ARRAY, branches, column, parts=(self._entry(plain, column, path, space),))
        return self._plain(avro, plain, branches, column, path, is_several=is_several)

    def _plain(
        self,
        avro: Any,
        plain: Any,
        branches: tuple[int | None, int] | None,
        column: FieldDescriptor | None,
        path: str,
        *,
        is_several: bool,
    ) -> AvroField:
        found = _plain_type(plain)
        if column is None:
            if found is None:
                raise UnfitSchema(f'{self._where}: field "{path}" is {_text(avro)}, and no column of the contract')
            return AvroField(found, branches, None)
        wanted = _wanted(column) if is_several else RECORD if is_message(column) else _type_of(column)
        if found is None or found not in _READABLE_AS.get(wanted, {wanted}):
            raise UnfitSchema(f'{self._where}: field "{path}" is {_text(avro)}, the contract wants {wanted}')
        if found != DECIMAL:
            return AvroField(JSON if wanted == JSON else found, branches, column)
        scale = plain.get("scale", 0)
        if type(scale) is not int or not 0 <= scale <= MONEY_SCALE:
            text = f"a decimal with a scale of 0 to {MONEY_SCALE}, as a google.type.Money has nanos"
            raise UnfitSchema(f'{self._where}: field "{path}" is {_text(avro)}, the contract wants {text}')
        return AvroField(found, branches, column, scale)

    def _record(
        self, record: Mapping[str, Any], message: Descriptor | None, path: str, space: str
    ) -> tuple[AvroField, ...]:
        name = _full_name(record, space)
        if name in self._open:
            raise UnfitSchema(f'{self._where}: field "{path}" contains itself')
        if not isinstance(record.get("fields"), list) or not all(
            isinstance(field, dict) and "name" in field and "type" in field for field in record["fields"]
        ):
            raise UnfitSchema(f'{self._where}: field "{path}" is a record without fields')
        self._open.append(name)
        columns = message.fields_by_name if message is not None else {}
        parts = tuple(self.fields(record, columns, f"{path}.", name.rpartition(".")[0]))
        self._open.pop()
        return parts

    def _entry(self, avro: Mapping[str, Any], column: FieldDescriptor | None, path: str, space: str) -> AvroField:
        """Return what a map is an array of."""
        entry = column.message_type if column is not None else None
        key, value = entry.fields if entry is not None else (None, None)
        parts = (
            AvroField("string", None, key),
            self.value(avro.get("values"), value, f"{path}[]", space),
        )
        return AvroField(RECORD, None, column, parts=parts)

    def _resolved(self, avro: Any, space: str) -> Any:
        """Return what a name stands for; note the name of a record."""
        if isinstance(avro, dict) and avro.get("type") == RECORD:
            self._named[_full_name(avro, space)] = avro
        elif isinstance(avro, str) and avro not in _PLAIN_TYPES:
            return self._named.get(avro) or self._named.get(f"{space}.{avro}") or avro
        return avro


def _full_name(record: Mapping[str, Any], space: str) -> str:
    name = str(record.get("name", ""))
    space = str(record.get("namespace", space))
    return name if "." in name or not space else f"{space}.{name}"


def _has_text_keys(column: FieldDescriptor) -> bool:
    if not is_map(column):
        return False
    assert column.message_type is not None
    return column.message_type.fields_by_name["key"].type == FieldDescriptor.TYPE_STRING


def _wanted(column: FieldDescriptor) -> str:
    """Return what a column wants that is repeated, in a few words."""
    if _has_text_keys(column):
        return MAP
    return "an array of records of key and value" if is_map(column) else ARRAY


def _text(avro: Any) -> str:
    text = json.dumps(avro)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _plain_type(avro: Any) -> str | None:
    """Return the name of an Avro type that a column may have, or its logical type; None for others."""
    if isinstance(avro, dict):
        found = (avro.get("logicalType"), avro.get("type"))
        return next((logical for logical, plain in _LOGICAL_TYPES.items() if found == (logical, plain)), None)
    return avro if isinstance(avro, str) and avro in _PLAIN_TYPES else None
