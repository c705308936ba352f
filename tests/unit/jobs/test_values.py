"""Columns in DDL, and which Python values they accept, store and load."""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from tablegate.jobs.values import Misfit, fit_columns, parse_columns


def type_of(ddl: str) -> Any:
    (column,) = parse_columns(f"x {ddl}")
    return column.type


VALUES = {
    "BOOLEAN": some.booleans(),
    "TINYINT": some.integers(-(2**7), 2**7 - 1),
    "SMALLINT": some.integers(-(2**15), 2**15 - 1),
    "INT": some.integers(-(2**31), 2**31 - 1),
    "BIGINT": some.integers(-(2**63), 2**63 - 1),
    "DOUBLE": some.floats(allow_nan=False),
    "STRING": some.text(some.characters(exclude_categories=["Cs"])),
    "BINARY": some.binary(),
    "TIMESTAMP": some.datetimes(timezones=some.just(UTC)),
    "DATE": some.dates(),
    "DECIMAL(12, 3)": some.decimals(-(10**9) + 1, 10**9 - 1, places=3),
}
KEYS = [name for name in VALUES if name != "BINARY"]


def parts_of(name: str) -> Any:
    value, key = VALUES[name], VALUES["STRING"]
    nested = some.fixed_dictionaries({"a": some.none() | value, "b": some.lists(value)})
    return some.fixed_dictionaries(
        {
            "plain": some.none() | value,
            "listed": some.none() | some.lists(some.none() | value),
            "mapped": some.none() | some.dictionaries(key, some.none() | value),
            "nested": some.none() | nested,
        }
    )


@pytest.mark.parametrize("name", VALUES)
@given(data=some.data())
def test_what_fits_comes_back_as_it_was(name: str, data: some.DataObject) -> None:
    columns = parse_columns(
        f"plain {name}, listed ARRAY<{name}>, mapped MAP<STRING, {name}>, nested STRUCT<a: {name}, b: ARRAY<{name}>>"
    )
    values = data.draw(parts_of(name))
    fitted = fit_columns(columns, values)
    assert fitted == values
    for column in columns:
        value = fitted[column.name]
        if value is not None:
            assert column.type.load(column.type.store(value)) == value


@pytest.mark.parametrize(
    ("ddl", "stored"),
    [
        ("TIMESTAMP", "BIGINT"),
        ("date", "INT"),
        ("decimal( 12 ,3)", "DECIMAL(12, 3)"),
        ("ARRAY<TIMESTAMP>", "ARRAY<BIGINT>"),
        ("MAP<DATE, STRUCT<a: TIMESTAMP, b: STRING>>", "MAP<INT, STRUCT<a: BIGINT, b: STRING>>"),
    ],
)
def test_how_state_keeps_it(ddl: str, stored: str) -> None:
    assert type_of(ddl).stored_sql == stored


@pytest.mark.parametrize(
    ("ddl", "value", "words"),
    [
        ("BOOLEAN", 1, "is an int; BOOLEAN needs a bool"),
        ("INT", True, "is a bool; INT needs an int"),
        ("TINYINT", 128, "has more than the 8 bits of TINYINT"),
        ("SMALLINT", -32769, "has more than the 16 bits of SMALLINT"),
        ("DOUBLE", 1, "is an int; DOUBLE needs a float"),
        ("STRING", b"x", "is a bytes; STRING needs a str"),
        ("STRING", "\ud800", "has half a surrogate pair, which is not text"),
        ("BINARY", bytearray(b"x"), "is a bytearray; BINARY needs a bytes"),
        ("TIMESTAMP", datetime(2026, 1, 1), "is a datetime without a time zone; TIMESTAMP needs one"),
        ("DATE", datetime(2026, 1, 1, tzinfo=UTC), "is a datetime; DATE needs a date"),
        ("TIMESTAMP", date(2026, 1, 1), "is a date; TIMESTAMP needs a datetime"),
        ("DECIMAL(4, 2)", Decimal("1.234"), "has more digits than DECIMAL(4, 2); quantize it"),
        ("DECIMAL(4, 2)", Decimal(100), "has more digits than DECIMAL(4, 2); quantize it"),
        ("DECIMAL(4, 2)", Decimal("NaN"), "is not a finite number; DECIMAL(4, 2) needs one"),
        ("DECIMAL(4, 2)", 1.5, "is a float; DECIMAL(4, 2) needs a Decimal"),
        ("ARRAY<INT>", (1,), "is a tuple; ARRAY needs a list"),
        ("ARRAY<INT>", [1, "2"], "[1] is a str; INT needs an int"),
        ("ARRAY<STRUCT<a: INT>>", [{"a": 1.0}], "[0].a is a float; INT needs an int"),
        ("MAP<STRING, INT>", [("a", 1)], "is a list; MAP needs a dict"),
        ("MAP<STRING, INT>", {1: 1}, " key is an int; STRING needs a str"),
        ("MAP<STRING, INT>", {None: 1}, "has the key None, which MAP does not allow"),
        ("MAP<STRING, INT>", {"a": "1"}, " value is a str; INT needs an int"),
        ("STRUCT<a: INT>", {"b": 1}, ".a is missing"),
        ("STRUCT<a: INT>", {"a": 1, "b": 1}, ".b is not declared"),
    ],
)
def test_values_that_do_not_fit(ddl: str, value: object, words: str) -> None:
    with pytest.raises(Misfit) as caught:
        type_of(ddl).fit(value)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize("text", ["12.34", "-99.99", "0", "0E-5", "1E+1", "99.9900"])
def test_decimals_that_fit(text: str) -> None:
    assert type_of("DECIMAL(4, 2)").fit(Decimal(text)) == Decimal(text)


def test_moments_are_in_utc() -> None:
    noon = datetime(2026, 11, 21, 12, tzinfo=timezone(timedelta(hours=2)))
    fitted = type_of("TIMESTAMP").fit(noon)
    assert (fitted, fitted.tzinfo) == (noon, UTC)


@pytest.mark.parametrize("micros", [-62_135_596_800_000_001, 253_402_300_800_000_000, 2**63 - 1, -(2**63)])
def test_moments_that_python_cannot_have(micros: int) -> None:
    with pytest.raises(Misfit, match="is a time outside of the years 1 to 9999"):
        type_of("TIMESTAMP").load(micros)


def test_zeros() -> None:
    columns = parse_columns(
        "a BIGINT, b STRING, c TIMESTAMP, d ARRAY<INT>, e MAP<STRING, INT>, f STRUCT<x: INT>, g DATE"
    )
    assert [column.type.zero for column in columns] == [0, "", None, [], {}, None, None]
    array = columns[3].type
    assert array.zero is not array.zero


@pytest.mark.parametrize(
    ("ddl", "words"),
    [
        ("", "nothing where a name belongs; write name TYPE, name TYPE"),
        ("a", "nothing where a type belongs"),
        ("a INT,", "nothing where a name belongs"),
        ("a INT b INT", '"b" after the type of "a"; a comma belongs there'),
        ("a INT NOT NULL", '"NOT" after the type of "a"; a comma belongs there'),
        ("a: INT", '":" where a type belongs'),
        ("1 INT", '"1" where a name belongs'),
        ("a ARRAY", 'nothing where "<" belongs'),
        ("a ARRAY<INT", 'nothing where ">" belongs'),
        ("a MAP<INT>", '">" where "," belongs'),
        ("a MAP<ARRAY<INT>, INT>", "a MAP whose key is not of a simple type"),
        ("a STRUCT<b INT>", '"INT" where ":" belongs'),
        ("a DECIMAL", 'nothing where "(" belongs'),
        ("a DECIMAL(39, 2)", "DECIMAL(39, 2); the first number is from 1 to 38"),
        ("a DECIMAL(4, 5)", "DECIMAL(4, 5); the second number is not above the first"),
        ("a INT; b INT", '";" where a name, a type or a comma belongs'),
        ("a INT, A STRING", "a column twice"),
    ],
)
def test_wrong_ddl(ddl: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_columns(ddl)
    assert str(caught.value).startswith(f"has {words}")
