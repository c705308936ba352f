"""Columns as Spark SQL's DDL writes them: `total BIGINT, tags ARRAY<STRING>`."""

import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from tablegate.jobs.values import SCALARS, Array, Column, Exact, Map, Scalar, Struct, Type, decimal_type

_Inner = TypeVar("_Inner")

_DECIMAL_DIGITS_MAX = 38  # Spark's own bound
_TOKEN = re.compile(r"\s*([A-Za-z_]\w*|\d+|[<>(),:])")


def parse_columns(ddl: str) -> tuple[Column, ...]:
    """Return the columns of a DDL text; raise `ValueError`, whose message quotes what is wrong."""
    tokens = _Tokens(ddl)
    columns = _columns(tokens, end="", separator="")
    if len({column.name.lower() for column in columns}) < len(columns):
        raise ValueError("has a column twice (Spark tells no upper case from lower case)")
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

    def take(self) -> str:
        taken = self.next
        if taken:
            self.next = next(self._tokens)
        return taken

    def expect(self, token: str) -> None:
        if self.next != token:
            raise ValueError(f'has {_quoted(self.next)} where "{token}" belongs')
        self.take()


def _columns(tokens: _Tokens, *, end: str, separator: str) -> tuple[Column, ...]:
    found = []
    while True:
        name = tokens.take()
        if not name.isidentifier():
            raise ValueError(f"has {_quoted(name)} where a name belongs; write name TYPE, name TYPE")
        if separator:
            tokens.expect(separator)
        found.append(Column(name, _type(tokens)))
        if tokens.next == end:
            return tuple(found)
        if tokens.next != ",":
            raise ValueError(f"has {_quoted(tokens.next)} after the type of {_quoted(name)}; a comma belongs there")
        tokens.take()


def _type(tokens: _Tokens) -> Type:
    name = tokens.take()
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
    digits = tokens.take()
    tokens.expect(",")
    scale = tokens.take()
    tokens.expect(")")
    if not (digits.isdigit() and scale.isdigit() and 1 <= int(digits) <= _DECIMAL_DIGITS_MAX):
        raise ValueError(f"has DECIMAL({digits}, {scale}); the first number is from 1 to {_DECIMAL_DIGITS_MAX}")
    if int(scale) > int(digits):
        raise ValueError(f"has DECIMAL({digits}, {scale}); the second number is not above the first")
    return decimal_type(int(digits), int(scale))


def _quoted(token: str) -> str:
    return f'"{token}"' if token else "nothing"
