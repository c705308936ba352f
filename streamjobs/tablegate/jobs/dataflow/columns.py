"""Columns of a table's rows in Spark: their types, and the columns that the job adds.

What a column must be follows from the Avro schema of the table's values (`contract/value_schemas.py`), field by field
and into records, arrays and maps. An expression may have another type where no value is lost, and the fields of a
struct may be in any order.

Decision: docs/decisions/0095-rows-as-they-are.md
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import ArrayType, DataType, DayTimeIntervalType, DecimalType, MapType, StringType, StructType

from tablegate.gateway.contract.columns import DURATION_S_MAX, INTEGER_BOUNDS
from tablegate.jobs.errors import JobError
from tablegate.jobs.table import Table

SEQUENCE_COLUMN = "__sequence"
"""The sequence of a row's version: it grows with each input of the row."""
EXISTS_COLUMN = "__exists"
"""Whether the key has a row; else it is deleted."""
COMPUTED_COLUMN = "__computed"
"""Whether all of the row could be computed; a row that cannot be does not exist."""

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_DECIMAL = "decimal"
_DURATION = "duration-micros"
_JSON = "json"
_JSON_BEGINS = {"Struct": r"^\s*\{", "ListValue": r"^\s*\[", "Value": ""}
"""Regular expressions of how JSON of a field begins, by its message."""
_TEXTS = ("string", _JSON)
_TIME = "timestamp-micros"
_LONG = "long"
FIRST_TIME, LAST_TIME = "TIMESTAMP '0001-01-01 00:00:00Z'", "TIMESTAMP '9999-12-31 23:59:59.999999Z'"
"""SQL of the bounds of `google.protobuf.Timestamp`. Spark has more, and clients can read nothing of such a row."""
_DURATION_BOUNDS = (f"make_dt_interval(0, 0, 0, {-DURATION_S_MAX})", f"make_dt_interval(0, 0, 0, {DURATION_S_MAX})")
_MONEY_BOUNDS = ("-9223372036854775808.999999999BD", "9223372036854775807.999999999BD")
_MONEY_UNIT_DIGITS = 19
"""SQL of the bounds of `google.protobuf.Duration` and `google.type.Money`; digits of the latter's units."""
_SPARK_TYPES = {
    _LONG: ("bigint", _INTEGERS),
    _TIME: ("timestamp", ("timestamp",)),
    _DURATION: ("interval day to second", ()),
    "float": ("float", ("float",)),
    "double": ("double", ("double", "float")),
    "boolean": ("boolean", ("boolean",)),
    "string": ("string", ("string",)),
    _JSON: ("string", ("string",)),
    "bytes": ("binary", ("binary",)),
    _DECIMAL: ("decimal(28,9)", (*_INTEGERS, _DECIMAL)),
}
"""Avro type → (Spark's type of the column, types that an expression may have because no value is lost).

A decimal is money: what is finer than its nine digits is cut off towards zero.
"""


def check_type(name: str, actual: DataType, table: Table, value_schema: Mapping[str, Any]) -> None:
    """Raise `JobError` where a column has not the type that the contract wants."""
    wanted = wanted_type(name, actual, value_schema)
    if wanted is not None:
        raise JobError(
            f'{table.declared_at}: table "{table.name}" column "{name}" is {actual.simpleString()}, the contract wants '
            f"{wanted}; write CAST(… AS {wanted.upper()})"
        )


def wanted_type(name: str, actual: DataType, value_schema: Mapping[str, Any]) -> str | None:
    """Return Spark's type that the contract wants of a column; None where `actual` will do."""
    types = _Types(value_schema)
    avro = types.of(name)
    return None if types.fits(actual, avro) else types.spark(avro)


def stored_columns(rows: DataFrame, value_schema: Mapping[str, Any], row: Descriptor) -> list[Column]:
    """Return the columns of `rows`, of which the contract has the message `row`, as the changelog has them.

    They raise where a value is none of the contract's: a number that its field cannot hold, a null in a list or a map,
    two fields of one oneof, a time that no client can read, text that is not UTF-8, as a binary that was cast may be,
    text that is not the JSON of its field.
    """
    types = _Types(value_schema)
    columns = {
        field["name"]: types.stored(
            sql.col(f"`{field['name']}`"),
            rows.schema[field["name"]].dataType,
            field["type"],
            row.fields_by_name[field["name"]],
        )
        for field in value_schema["fields"]
    }
    checked = types.one_of_each(columns, value_schema["fields"])
    return [column.alias(name) for name, column in checked.items()]


class _Types:
    """The types of one schema. `avro` is a type of it: a name, a union of null and another, or an object."""

    def __init__(self, value_schema: Mapping[str, Any]) -> None:
        self._schema = value_schema
        self._records: dict[str, Mapping[str, Any]] = {}
        for field in value_schema["fields"]:
            self._note(field["type"])

    def _note(self, avro: Any) -> None:
        """Note the records that are named later on by their names alone."""
        for part in avro if isinstance(avro, list) else [avro]:
            if not isinstance(part, dict):
                continue
            if part["type"] == "record":
                self._records[f"{part['namespace']}.{part['name']}"] = part
            for inner in (part.get("items"), part.get("values"), *(one["type"] for one in part.get("fields", ()))):
                self._note(inner)

    def of(self, name: str) -> Any:
        """Return the type of a column."""
        return next(field["type"] for field in self._schema["fields"] if field["name"] == name)

    def _plain(self, avro: Any) -> tuple[str, Mapping[str, Any]]:
        """Return the name of a type, or its logical type, and the type itself where that is an object."""
        if isinstance(avro, list):
            avro = next(branch for branch in avro if branch != "null")
        if isinstance(avro, str):
            avro = self._records.get(avro, avro)
        if isinstance(avro, str):
            return avro, {}
        return str(avro.get("logicalType", avro["type"])), avro

    def spark(self, avro: Any) -> str:
        """Return Spark's name of a type."""
        kind, schema = self._plain(avro)
        match kind:
            case "record":
                fields = ",".join(f"{field['name']}:{self.spark(field['type'])}" for field in schema["fields"])
                return f"struct<{fields}>"
            case "array":
                return f"array<{self.spark(schema['items'])}>"
            case "map":
                return f"map<string,{self.spark(schema['values'])}>"
        return _SPARK_TYPES[kind][0]

    def fits(self, actual: DataType, avro: Any) -> bool:
        """Return whether an expression of a type gives what the contract wants."""
        kind, schema = self._plain(avro)
        match kind, actual:
            case "record", StructType():
                found = _by_name(actual)
                return all(
                    field["name"].lower() in found and self.fits(found[field["name"].lower()][1], field["type"])
                    for field in schema["fields"]
                )
            case "array", MapType():
                return self._is_of_entries(schema) and self.fits(_entries(actual), schema["items"])
            case "array", ArrayType():
                return self.fits(actual.elementType, schema["items"])
            case "map", MapType():
                return isinstance(actual.keyType, StringType) and self.fits(actual.valueType, schema["values"])
            case (("record" | "array" | "map"), _):
                return False
            case _, DayTimeIntervalType():
                return kind == _DURATION
        name = actual.simpleString()
        accepted = _SPARK_TYPES[kind][1]
        return name in accepted or name.partition("(")[0] in accepted

    def _is_of_entries(self, schema: Mapping[str, Any]) -> bool:
        """Return whether an array is a map, whose keys are no strings."""
        kind, item = self._plain(schema["items"])
        return kind == "record" and [field["name"] for field in item["fields"]] == ["key", "value"]

    def stored(self, column: Column, actual: DataType, avro: Any, field: FieldDescriptor) -> Column:
        """Return a value of a field, or an item of it, as the changelog has it."""
        kind, schema = self._plain(avro)
        match kind, actual:
            case "record", StructType():
                return self._stored_record(column, actual, schema, field)
            case "array", MapType():
                return self.stored(sql.map_entries(column), ArrayType(_entries(actual), False), avro, field)
            case "array", ArrayType():
                items = self._each(column, actual.elementType, schema["items"], field, sql.transform)
                return _without_null(items, sql.exists) if actual.containsNull else items
            case "map", MapType():
                values = self._each(
                    column,
                    actual.valueType,
                    schema["values"],
                    _message(field).fields_by_name["value"],
                    lambda map_, of: sql.transform_values(map_, _second(of)),
                )
                if not actual.valueContainsNull:
                    return values
                return _without_null(values, lambda map_, is_null: sql.exists(sql.map_values(map_), is_null))
        if kind == _DECIMAL and actual.simpleString().startswith(_DECIMAL):
            # A cast would round.
            cut = sql.when(column < 0, sql.ceil(column, sql.lit(9))).otherwise(sql.floor(column, sql.lit(9)))
            money = cut.cast("decimal(28,9)")
            return _between(money, *_MONEY_BOUNDS, "an amount is too large") if _may_be_too_large(actual) else money
        if kind == _TIME:
            return _between(column, FIRST_TIME, LAST_TIME, "a time is not of the years 1 to 9999")
        if kind == _DURATION:
            duration = column.cast(_SPARK_TYPES[kind][0])
            return _between(duration, *_DURATION_BOUNDS, "a duration is of more than 10,000 years")
        if kind == _JSON:
            is_json = sql.try_parse_json(column).isNotNull() & column.rlike(_JSON_BEGINS[_message(field).name])
            return sql.when(column.isNull() | is_json, column).otherwise(sql.raise_error(sql.lit("a text is not JSON")))
        if kind in _TEXTS:
            return sql.when(column.isNull() | sql.is_valid_utf8(column), column).otherwise(_no_text())
        stored = column.cast(_SPARK_TYPES[kind][0])
        bounds = _bounds(field) if kind == _LONG else None
        return stored if bounds is None else _between(stored, *bounds, "a number is too large for its field")

    def _each(
        self,
        column: Column,
        actual: DataType,
        avro: Any,
        field: FieldDescriptor,
        transform: Callable[[Column, Callable[[Column], Column]], Column],
    ) -> Column:
        """Return a list or map with each of its values as the changelog has it; as it is where they are that."""
        if actual.simpleString() == self.spark(avro) and not self._is_checked(actual, avro, field):
            return column
        return transform(column, lambda one: self.stored(one, actual, avro, field))

    def _is_checked(self, actual: DataType, avro: Any, field: FieldDescriptor) -> bool:
        """Return whether a value may be none of the contract's, though its type is."""
        kind, schema = self._plain(avro)
        match kind, actual:
            case "record", StructType():
                found, fields = _by_name(actual), _message(field).fields_by_name
                return any(
                    "oneof" in one
                    or not isinstance(one["type"], list)
                    or self._is_checked(found[one["name"].lower()][1], one["type"], fields[one["name"]])
                    for one in schema["fields"]
                )
            case "array", ArrayType():
                return actual.containsNull or self._is_checked(actual.elementType, schema["items"], field)
            case "map", MapType():
                value = _message(field).fields_by_name["value"]
                return actual.valueContainsNull or self._is_checked(actual.valueType, schema["values"], value)
        return kind in (_TIME, _DURATION, _DECIMAL, *_TEXTS) or (kind == _LONG and _bounds(field) is not None)

    def _stored_record(
        self, column: Column, actual: StructType, schema: Mapping[str, Any], field: FieldDescriptor
    ) -> Column:
        found, fields = _by_name(actual), _message(field).fields_by_name
        parts: dict[str, Column] = {}
        for one in schema["fields"]:
            name, kind = found[one["name"].lower()]
            part = self.stored(column.getField(name), kind, one["type"], fields[one["name"]])
            # Key and value of a map's entry; the entry itself is never null.
            is_required = not isinstance(one["type"], list)
            parts[one["name"]] = sql.when(part.isNull(), _null()).otherwise(part) if is_required else part
        checked = self.one_of_each(parts, schema["fields"])
        made = sql.struct(*(part.alias(name) for name, part in checked.items()))
        return sql.when(column.isNotNull(), made)

    def one_of_each(self, parts: Mapping[str, Column], fields: Sequence[Mapping[str, Any]]) -> dict[str, Column]:
        """Return the fields of a record, which raise where two of one oneof are set."""
        checked = dict(parts)
        for oneof, names in _oneofs(fields):
            count = sum(
                (parts[name].isNotNull().cast("int") for name in names[1:]), parts[names[0]].isNotNull().cast("int")
            )
            wrong = sql.raise_error(sql.lit(f"two fields of oneof {oneof} are set"))
            checked[names[0]] = sql.when(count > 1, wrong).otherwise(parts[names[0]])
        return checked


def _by_name(struct: StructType) -> dict[str, tuple[str, DataType]]:
    return {field.name.lower(): (field.name, field.dataType) for field in struct.fields}


def _entries(kind: MapType) -> StructType:
    return StructType().add("key", kind.keyType, False).add("value", kind.valueType, kind.valueContainsNull)


def _second(of: Callable[[Column], Column]) -> Callable[[Column, Column], Column]:
    return lambda _, value: of(value)


def _without_null(several: Column, exists: Callable[[Column, Callable[[Column], Column]], Column]) -> Column:
    return sql.when(exists(several, lambda one: one.isNull()), _null()).otherwise(several)


def _null() -> Column:
    return sql.raise_error(sql.lit("a list or map has a null"))


def _between(column: Column, first: str, last: str, otherwise: str) -> Column:
    """Return a column that raises where its value is not between two others, in SQL."""
    fits = column.isNull() | column.between(sql.expr(first), sql.expr(last))
    return sql.when(fits, column).otherwise(sql.raise_error(sql.lit(otherwise)))


def _bounds(field: FieldDescriptor) -> tuple[str, str] | None:
    """Return the SQL of the bounds of an integer's field, or a wrapper's; None where it holds each BIGINT."""
    if field.message_type is not None:
        return _bounds(field.message_type.fields_by_name["value"])
    found = INTEGER_BOUNDS.get(field.type)
    return None if found is None else (f"{found[0]}L", f"{found[1]}L")


def _may_be_too_large(actual: DataType) -> bool:
    """Return whether an amount may be beyond the units of a google.type.Money, which are an int64."""
    return isinstance(actual, DecimalType) and actual.precision - actual.scale >= _MONEY_UNIT_DIGITS


def _message(field: FieldDescriptor) -> Descriptor:
    assert field.message_type is not None, f"{field.full_name} is no message"
    return field.message_type


def _no_text() -> Column:
    return sql.raise_error(sql.lit("a text is not UTF-8"))


def _oneofs(fields: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    names: dict[str, list[str]] = {}
    for field in fields:
        if "oneof" in field:
            names.setdefault(field["oneof"], []).append(field["name"])
    yield from names.items()
