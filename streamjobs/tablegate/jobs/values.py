"""The Python values of Spark SQL's types, and the DDL that declares them (`parse_columns`).

A value is of exactly one Python type, so that nothing is rounded, cut or turned into null on its way: BOOLEAN bool;
TINYINT, SMALLINT, INT, BIGINT int; FLOAT, DOUBLE float; DECIMAL(p, s) Decimal; STRING str; BINARY bytes; TIMESTAMP
datetime with a time zone; DATE date; ARRAY list; MAP dict; STRUCT dict. Each may be None. Executors unpickle this
module by value, so it imports nothing but the standard library.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeVar

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Misfit(Exception):
    """A value that does not fit its column; the message says what it is and what the column needs."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A type without parts. `sql` is its name in DDL."""

    sql: str
    python: type
    zero: Any = None
    """What a column of a new state has; None where the type has no zero."""

    def fit(self, value: Any) -> Any:
        """Return the value as it goes on; raise `Misfit`."""
        if type(value) is not self.python:
            raise Misfit(f"is {_a(type(value))}; {self.sql} needs {_a(self.python)}")
        return value

    def store(self, value: Any) -> Any:
        """Return a value that fits as state keeps it."""
        return value

    def load(self, value: Any) -> Any:
        """Return what Spark gave, from state or from a record, as Python has it."""
        return value

    @property
    def stored_sql(self) -> str:
        """DDL of what `store` returns."""
        return self.sql


@dataclass(frozen=True, slots=True)
class Integer(Scalar):
    """A signed integer of so many bits."""

    bits: int = 64

    def fit(self, value: Any) -> Any:
        """See `Scalar`."""
        Scalar.fit(self, value)
        if not -(1 << self.bits - 1) <= value < 1 << self.bits - 1:
            raise Misfit(f"has more than the {self.bits} bits of {self.sql}")
        return value


@dataclass(frozen=True, slots=True)
class Text(Scalar):
    """A string that UTF-8 can write."""

    def fit(self, value: Any) -> Any:
        """See `Scalar`."""
        Scalar.fit(self, value)
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Misfit("has half a surrogate pair, which is not text") from None
        return value


@dataclass(frozen=True, slots=True)
class Bytes(Scalar):
    """Bytes; Spark gives some as bytearrays."""

    def load(self, value: Any) -> Any:
        """See `Scalar`."""
        return bytes(value)


@dataclass(frozen=True, slots=True)
class Exact(Scalar):
    """A decimal of `digits` digits, `scale` of them after the point."""

    digits: int = 10
    scale: int = 0

    def fit(self, value: Any) -> Any:
        """See `Scalar`."""
        Scalar.fit(self, value)
        if not value.is_finite():
            raise Misfit(f"is not a finite number; {self.sql} needs one")
        _, digits, exponent = value.normalize().as_tuple()
        if value and (-int(exponent) > self.scale or len(digits) + int(exponent) > self.digits - self.scale):
            raise Misfit(f"has more digits than {self.sql}; quantize it")
        return value


@dataclass(frozen=True, slots=True)
class Moment(Scalar):
    """A point in time, in microseconds; state keeps their count since 1970."""

    def fit(self, value: Any) -> Any:
        """See `Scalar`."""
        Scalar.fit(self, value)
        if value.tzinfo is None:
            raise Misfit("is a datetime without a time zone; TIMESTAMP needs one; use datetime.now(UTC)")
        return value.astimezone(UTC)

    def store(self, value: Any) -> Any:
        """See `Scalar`."""
        return (value - _EPOCH) // _MICROSECOND

    def load(self, value: Any) -> Any:
        """See `Scalar`; raise `Misfit` where Python has no such time."""
        if type(value) is not int:
            return value.astimezone(UTC)
        try:
            return _EPOCH + timedelta(microseconds=value)
        except OverflowError:
            raise Misfit("is a time outside of the years 1 to 9999, which Python cannot have") from None

    @property
    def stored_sql(self) -> str:
        """See `Scalar`."""
        return "BIGINT"


@dataclass(frozen=True, slots=True)
class Day(Scalar):
    """A day; state keeps the count since 1970."""

    def store(self, value: Any) -> Any:
        """See `Scalar`."""
        return value.toordinal() - _EPOCH.toordinal()

    def load(self, value: Any) -> Any:
        """See `Scalar`."""
        return date.fromordinal(value + _EPOCH.toordinal()) if type(value) is int else value

    @property
    def stored_sql(self) -> str:
        """See `Scalar`."""
        return "INT"


@dataclass(frozen=True, slots=True)
class Array:
    """A list of values of one type."""

    element: "Type"

    @property
    def zero(self) -> Any:
        """See `Scalar`."""
        return []

    def fit(self, value: Any) -> Any:
        """See `Scalar`."""
        _require(value, list, "ARRAY")
        return [_part(self.element.fit, item, f"[{index}]") for index, item in enumerate(value)]

    def store(self, value: Any) -> Any:
        """See `Scalar`."""
        return [_optional(self.element.store, item) for item in value]

    def load(self, value: Any) -> Any:
        """See `Scalar`."""
        return [_optional(self.element.load, item) for item in value]

    @property
    def stored_sql(self) -> str:
        """See `Scalar`."""
        return f"ARRAY<{self.element.stored_sql}>"


@dataclass(frozen=True, slots=True)
class Map:
    """A dictionary of keys of one type to values of one type."""

    key: "Type"
    value: "Type"

    @property
    def zero(self) -> Any:
        """See `Scalar`."""
        return {}

    def fit(self, value: Any) -> Any:
        """See `Scalar`."""
        _require(value, dict, "MAP")
        if None in value:
            raise Misfit("has the key None, which MAP does not allow")
        return {_part(self.key.fit, key, " key"): _part(self.value.fit, item, " value") for key, item in value.items()}

    def store(self, value: Any) -> Any:
        """See `Scalar`."""
        return {self.key.store(key): _optional(self.value.store, item) for key, item in value.items()}

    def load(self, value: Any) -> Any:
        """See `Scalar`. Arrow gives a map as a list of pairs."""
        pairs = value.items() if isinstance(value, dict) else value
        return {self.key.load(key): _optional(self.value.load, item) for key, item in pairs}

    @property
    def stored_sql(self) -> str:
        """See `Scalar`."""
        return f"MAP<{self.key.stored_sql}, {self.value.stored_sql}>"


@dataclass(frozen=True, slots=True)
class Struct:
    """A dictionary with a value for each of its columns. `made` is what a loaded one becomes."""

    columns: tuple["Column", ...]
    made: Callable[[dict[str, Any]], Any] = dict

    @property
    def zero(self) -> Any:
        """See `Scalar`."""
        return None

    def fit(self, value: Any) -> Any:
        """See `Scalar`."""
        _require(value, dict, "STRUCT")
        return fit_columns(self.columns, value, separator=".")

    def store(self, value: Any) -> Any:
        """See `Scalar`."""
        return tuple(_optional(column.type.store, value[column.name]) for column in self.columns)

    def load(self, value: Any) -> Any:
        """See `Scalar`. State gives a struct as a tuple, Arrow as a dictionary."""
        values = value.values() if isinstance(value, dict) else value
        return self.made(
            {
                column.name: _part(column.type.load, item, f".{column.name}")
                for column, item in zip(self.columns, values, strict=True)
            }
        )

    @property
    def stored_sql(self) -> str:
        """See `Scalar`."""
        return f"STRUCT<{', '.join(f'{column.name}: {column.type.stored_sql}' for column in self.columns)}>"


Type = Scalar | Array | Map | Struct


@dataclass(frozen=True, slots=True)
class Column:
    """A name and a type."""

    name: str
    type: Type


SCALARS: Mapping[str, Scalar] = {
    one.sql: one
    for one in (
        Scalar("BOOLEAN", bool, False),
        Integer("TINYINT", int, 0, 8),
        Integer("SMALLINT", int, 0, 16),
        Integer("INT", int, 0, 32),
        Integer("BIGINT", int, 0, 64),
        Scalar("FLOAT", float, 0.0),
        Scalar("DOUBLE", float, 0.0),
        Text("STRING", str, ""),
        Bytes("BINARY", bytes, b""),
        Moment("TIMESTAMP", datetime),
        Day("DATE", date),
    )
}
"""Types by their names; DECIMAL has its digits beside."""


def decimal_type(digits: int, scale: int) -> Exact:
    """Return DECIMAL(digits, scale)."""
    return Exact(f"DECIMAL({digits}, {scale})", Decimal, Decimal(0), digits, scale)


def fit_columns(columns: tuple[Column, ...], values: Mapping[str, Any], *, separator: str = "") -> dict[str, Any]:
    """Return values that have just these columns, each fitted; raise `Misfit`. `separator` comes before a name."""
    fitted = {}
    for column in columns:
        if column.name not in values:
            raise Misfit(f"{separator}{column.name} is missing")
        fitted[column.name] = _part(column.type.fit, values[column.name], f"{separator}{column.name}")
    if len(values) > len(fitted):
        undeclared = next(name for name in values if name not in fitted)
        raise Misfit(f"{separator}{undeclared} is not declared")
    return fitted


def _optional(change: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else change(value)


def _part(change: Callable[[Any], Any], value: Any, where: str) -> Any:
    """Return a part of a value, changed; a misfit says where it lies."""
    if value is None:
        return None
    try:
        return change(value)
    except Misfit as misfit:
        text = str(misfit)
        raise Misfit(f"{where}{text}" if text[0] in ".[" else f"{where} {text}") from None


def _require(value: Any, python: type, sql: str) -> None:
    if type(value) is not python:
        raise Misfit(f"is {_a(type(value))}; {sql} needs {_a(python)}")


def _a(python: type) -> str:
    return f"{'an' if python.__name__[0] in 'aeiou' else 'a'} {python.__name__}"


_Inner = TypeVar("_Inner")

_DECIMAL_DIGITS_MAX = 38  # Spark's own bound
_TOKEN = re.compile(r"\s*([A-Za-z_]\w*|\d+|[<>(),:])")


def parse_columns(ddl: str) -> tuple[Column, ...]:
    """Return the columns of a DDL text; raise `ValueError`, whose message quotes what is wrong."""
    tokens = _Tokens(ddl)
    columns = _columns(tokens, end="", separator="")
    if len({column.name.lower() for column in columns}) < len(columns):
        raise ValueError("has a column twice (Spark ignores case in names)")
    return columns


class _Tokens:
    """Words, numbers and signs of a DDL text, one after the other; the last is empty."""

    def __init__(self, ddl: str) -> None:
        self._tokens = self._split(ddl)
        self.next = next(self._tokens)

    @staticmethod
    def _split(ddl: str) -> Iterator[str]:
        at = 0
        while ddl[at:].strip():
            matched = _TOKEN.match(ddl, at)
            if matched is None:
                raise ValueError(f'has "{ddl[at:].strip()[0]}" where a name, a type or a comma belongs')
            yield matched.group(1)
            at = matched.end()
        yield ""

    def pop(self) -> str:
        token = self.next
        if token:
            self.next = next(self._tokens)
        return token

    def expect(self, token: str) -> None:
        if self.next != token:
            raise ValueError(f'has {_quoted(self.next)} where "{token}" belongs')
        self.pop()


def _columns(tokens: _Tokens, *, end: str, separator: str) -> tuple[Column, ...]:
    found = []
    while True:
        name = tokens.pop()
        if not name.isidentifier():
            raise ValueError(f"has {_quoted(name)} where a name belongs; write name TYPE, name TYPE")
        if separator:
            tokens.expect(separator)
        found.append(Column(name, _type(tokens)))
        if tokens.next == end:
            return tuple(found)
        if tokens.next != ",":
            raise ValueError(f"has {_quoted(tokens.next)} after the type of {_quoted(name)}; a comma belongs there")
        tokens.pop()


def _type(tokens: _Tokens) -> Type:
    name = tokens.pop()
    found = SCALARS.get(name.upper())
    if found is not None:
        return found
    match name.upper():
        case "DECIMAL":
            return _decimal(tokens)
        case "ARRAY":
            return Array(_between(tokens, lambda: _type(tokens)))
        case "MAP":
            return Map(*_between(tokens, lambda: _key_and_value(tokens)))
        case "STRUCT":
            return Struct(_between(tokens, lambda: _columns(tokens, end=">", separator=":")))
    known = ", ".join((*SCALARS, "DECIMAL(p, s)", "ARRAY<…>", "MAP<…, …>", "STRUCT<name: …>"))
    raise ValueError(f"has {_quoted(name)} where a type belongs; use one of {known}")


def _between(tokens: _Tokens, inner: Callable[[], _Inner]) -> _Inner:
    tokens.expect("<")
    found = inner()
    tokens.expect(">")
    return found


def _key_and_value(tokens: _Tokens) -> tuple[Scalar, Type]:
    key = _type(tokens)
    if not isinstance(key, Scalar):
        raise ValueError("has a MAP whose key is not of a simple type")
    tokens.expect(",")
    return key, _type(tokens)


def _decimal(tokens: _Tokens) -> Exact:
    tokens.expect("(")
    digits = tokens.pop()
    tokens.expect(",")
    scale = tokens.pop()
    tokens.expect(")")
    if not (digits.isdigit() and scale.isdigit() and 1 <= int(digits) <= _DECIMAL_DIGITS_MAX):
        raise ValueError(f"has DECIMAL({digits}, {scale}); the first number is from 1 to {_DECIMAL_DIGITS_MAX}")
    if int(scale) > int(digits):
        raise ValueError(f"has DECIMAL({digits}, {scale}); the second number is not above the first")
    return decimal_type(int(digits), int(scale))


def _quoted(token: str) -> str:
    return f'"{token}"' if token else "nothing"
