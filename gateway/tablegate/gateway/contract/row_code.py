"""Compiles what a row reader does with each field into one Python function.

The fields of a schema are known long before its values. A loop over them asks the same of each field again, a million
times a restore: has it a union, is it a number, which tag has it. Here these questions are answered once, as the text
of a function with some lines for each field, which Python compiles. It takes 0.6 to 0.7 of the loop's time. The
standard library's `dataclasses` and `namedtuple` make their methods in this way.

The text consists of numbers and of bytes that we write, never of a name or a text that came with a schema.

Decision: docs/decisions/0124-row-readers-are-compiled.md
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from functools import lru_cache
from textwrap import indent
from typing import Any, NamedTuple

from tablegate.gateway.contract import wire


class UndecodableRecord(ValueError):
    """A changelog value that is no row of the table; the message is the reason, without data."""


class Kind(Enum):
    """How the value of a field is read, and what becomes of it. `tag`, `encode` and so on are those of its step.

    PART: `encode` reads from a place on, and returns bytes and the place behind; where there is no other way.
    MESSAGE: the `steps` of its fields, their bytes after tag and length; nothing is written without a tag.
    RAW, CHECKED_RAW: `raw_bytes` bytes; tag and bytes, or what `encode` makes of them, unless they are `zero`.
    INTEGER, NUMBER: a varint; `encode` writes it, which INTEGER needs for few numbers only.
    TIME: as NUMBER, microseconds that become a google.protobuf.Timestamp; `encode` is needed for odd times only.
    TEXT: a length, and so many bytes; what `encode` makes of them.
    STRING, BYTES: the same; tag, length and bytes, unless they are `zero`. A string must be UTF-8.
    """

    PART = auto()
    MESSAGE = auto()
    RAW = auto()
    CHECKED_RAW = auto()
    INTEGER = auto()
    NUMBER = auto()
    TIME = auto()
    TEXT = auto()
    STRING = auto()
    BYTES = auto()


class Step(NamedTuple):
    """How to read one field."""

    kind: Kind
    tag: bytes = b""
    raw_bytes: int = 0
    zero: bytes | None = None  # the value that is not written; None: each is
    encode: Callable[..., Any] | None = None  # of a PART from value and place to bytes and place
    steps: Sequence["Step"] = ()
    slot: int = -1  # of a number in the key: where its key bytes are kept
    null_byte: int | None = None  # the byte before a null, where the union has one
    value_byte: int | None = None  # the byte before a value; None: no union


# Varints: small ones are looked up, as are 14 bits of one that goes on.

_SMALL_MAX = 2**14 - 1
_MIDDLE_MAX = 2**28 - 1  # fits each integer type
_SHIFTS = tuple(range(21, 64, 7))  # of the bytes of a varint after the third
_SECONDS_MAX = 253_402_300_799  # the end of the year 9999
_HIGH_MAX = 4_096  # of 4.5 hours each
_INLINE_DEPTH_MAX = 8  # messages in one another in one function: Python takes 100 levels of indentation


VARINTS = [wire.varint(number) for number in range(2**14)]
_VARINTS_GOING_ON = [bytes((number & 127 | 128, number >> 7 | 128)) for number in range(2**14)]


def varint(number: int) -> bytes:
    """Return a number >= 0 as protobuf writes it."""
    parts = b""
    while number > 16_383:
        parts += _VARINTS_GOING_ON[number & 16_383]
        number >>= 14
    return parts + VARINTS[number]


class _HighSeconds(dict[int, bytes]):
    """The varints of times, less their lowest 14 bits: times that come together have few."""

    def __missing__(self, high: int) -> bytes:
        if len(self) >= _HIGH_MAX:
            self.clear()
        found = self[high] = varint(high)
        return found


def read_long(value: bytes, at: int) -> tuple[int, int]:
    """Return the integer at a place, and the place behind it."""
    number = shift = 0
    while True:
        byte = value[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
        if shift > _SHIFTS[-1]:
            raise _too_long()


def _go_on(value: bytes, at: int, number: int) -> tuple[int, int]:
    """Return the number that a varint is, of which three bytes were read, and the place behind it."""
    for shift in _SHIFTS:
        byte = value[at]
        at += 1
        number += (byte - 1) << shift  # less the bit that said: it goes on
        if byte < 128:
            return number, at
    raise _too_long()


def _too_long() -> UndecodableRecord:
    return UndecodableRecord("value has an integer of more than 64 bits")


def ends_early() -> UndecodableRecord:
    """Return the error of a value that lacks bytes."""
    return UndecodableRecord("value ends early")


def _wrong_end(at: int, size: int) -> UndecodableRecord:
    return ends_early() if at > size else UndecodableRecord("value has bytes after the row")


def _wrong_branch() -> UndecodableRecord:
    return UndecodableRecord("value has a null or a union branch that its column cannot have")


def _negative_length() -> UndecodableRecord:
    return UndecodableRecord("value has a negative length")


def check_text(text: bytes) -> None:
    """Refuse a string that is not UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        raise UndecodableRecord("value has a string that is not UTF-8") from None


_NAMES: Mapping[str, Any] = {
    "small": VARINTS,
    "going_on": _VARINTS_GOING_ON,
    "varint": varint,
    "high_seconds": _HighSeconds(),
    "go_on": _go_on,
    "eight": struct.Struct("<Q").unpack_from,
    "key_number": struct.Struct(">Q").pack,  # of a number + 2**63, as `keys.ENCODERS` has it
    "check_text": check_text,
    "ends_early": ends_early,
    "wrong_end": _wrong_end,
    "wrong_branch": _wrong_branch,
    "negative_length": _negative_length,
}

_ROW = """
def read(value):
    row, at, size = b"", {start}, len(value)
    try:
{fields}
    except IndexError:
        raise ends_early() from None
    if at != size:
        raise wrong_end(at, size)
    return row
"""

_PART = """
def read(value, at):
    row, size = b"", len(value)
{fields}
    return row, at
"""

_ITEMS = """
def read(value, at, count):
    row, size = b"", len(value)
    for _ in range(count):
{fields}
    return row, at
"""

# What is read of each kind. The lines of a field use the names that are above; those in braces are put in for each.

_NUMBER = """
number = value[at]
if number < 128:
    at += 1
else:
    byte = value[at + 1]
    number += byte - 1 << 7
    if byte < 128:
        at += 2
    else:
        byte = value[at + 2]
        number += byte - 1 << 14
        at += 3
        if byte > 127:
            number, at = go_on(value, at, number)
"""

# Times of our days have eight bytes: the seven bits of each are moved together, all at once.
_MICROS = f"""
if at + 8 <= size and (number := eight(value, at)[0]) & 0x8080808080808080 == 0x0080808080808080:
    at += 8
    number &= 0x7F7F7F7F7F7F7F7F
    number = number & 0x007F007F007F007F | (number & 0x7F007F007F007F00) >> 1
    number = number & 0x00003FFF00003FFF | (number & 0x3FFF00003FFF0000) >> 2
    number = number & 0x0FFFFFFF | number >> 4 & 0x00FFFFFFF0000000
else:
{indent(_NUMBER, "    ")}
"""
_SIGNED = "number = number >> 1 ^ -(number & 1)\n"
_KEPT = "parts[{slot}] = key_number(number + 9223372036854775808)\n"

_WRITTEN = {
    Kind.INTEGER: f"""
if 0 < number <= {_SMALL_MAX}:
    row += {{tag}} + small[number]
elif 0 < number <= {_MIDDLE_MAX}:
    row += {{tag}} + going_on[number & {_SMALL_MAX}] + small[number >> 14]
else:
    row += {{encode}}(number)
""",
    Kind.NUMBER: "row += {encode}(number)\n",
    Kind.TIME: f"""
seconds, nanos = divmod(number, 1000000)
if {_SMALL_MAX} < seconds <= {_SECONDS_MAX}:
    part = b"\\x08" + going_on[seconds & {_SMALL_MAX}] + high_seconds[seconds >> 14]
    if nanos:
        nanos *= 1000
        part += b"\\x10" + going_on[nanos & {_SMALL_MAX}] + small[nanos >> 14] \\
            if {_SMALL_MAX} < nanos <= {_MIDDLE_MAX} else b"\\x10" + varint(nanos)
    row += {{tag}} + small[len(part)] + part
else:
    row += {{encode}}(number)
""",
}

_RAW = """
part = value[at:at + {raw_bytes}]
at += {raw_bytes}
"""

_BYTES = f"""{_NUMBER}{_SIGNED}
if number < 0:
    raise negative_length()
part = value[at:at + number]
at += number
"""
_LENGTH_AND = f"(small[number] if number <= {_SMALL_MAX} else varint(number)) + "


class _Text:
    """The text of a function, and the names in it."""

    def __init__(self, parts: list[bytes]) -> None:
        self.names: dict[str, Any] = {**_NAMES, "parts": parts}
        self._depth = 0

    def lines_of(self, step: Step) -> str:
        """Return the lines that read a field."""
        lines = self._value_lines(step)
        if step.value_byte is None:
            return lines
        wrong = "else" if step.null_byte is None else f"elif branch != {step.null_byte}"
        return (
            f"branch = value[at]\nat += 1\nif branch == {step.value_byte}:\n{indent(lines, '    ')}"
            f"{wrong}:\n    raise wrong_branch()\n"
        )

    def _value_lines(self, step: Step) -> str:
        encode, tag = self._name(step.encode), repr(step.tag)
        is_written = "" if step.zero is None else f"if part != {step.zero!r}: "
        match step.kind:
            case Kind.PART:
                return f"part, at = {encode}(value, at)\nrow += part\n"
            case Kind.MESSAGE:
                return self._message_lines(step)
            case Kind.RAW:
                return _RAW.format(raw_bytes=step.raw_bytes) + f"{is_written}row += {tag} + part\n"
            case Kind.CHECKED_RAW:
                return _RAW.format(raw_bytes=step.raw_bytes) + f"{is_written}row += {encode}(part)\n"
            case Kind.TEXT:
                return f"{_BYTES}row += {encode}(part)\n"
            case Kind.STRING:
                return f"{_BYTES}part.isascii() or check_text(part)\n{is_written}row += {tag} + {_LENGTH_AND}part\n"
            case Kind.BYTES:
                return f"{_BYTES}{is_written}row += {tag} + {_LENGTH_AND}part\n"
            case Kind.INTEGER | Kind.NUMBER | Kind.TIME:
                read = _MICROS if step.kind is Kind.TIME else _NUMBER
                kept = "" if step.slot < 0 else _KEPT.format(slot=step.slot)
                return read + _SIGNED + _WRITTEN[step.kind].format(tag=tag, encode=encode) + kept

    def _message_lines(self, step: Step) -> str:
        if self._depth == _INLINE_DEPTH_MAX:
            inner = compiled_part([step._replace(null_byte=None, value_byte=None)])
            return self._value_lines(Step(Kind.PART, encode=inner))
        outer = f"outer{self._depth}"
        self._depth += 1
        fields = "".join(map(self.lines_of, step.steps))
        self._depth -= 1
        written = f" + {step.tag!r} + {_LENGTH_AND}row" if step.tag else ""
        return f'{outer} = row\nrow = b""\n{fields}number = len(row)\nrow = {outer}{written}\n'

    def _name(self, function: Callable[..., Any] | None) -> str:
        name = f"encode{len(self.names)}"
        if function is not None:
            self.names[name] = function
        return name


def compiled_row(steps: Sequence[Step], *, start: int, parts: list[bytes]) -> Callable[[bytes], bytes]:
    """Return a function from values, whose Avro begins at `start`, to row bytes; it raises `UndecodableRecord`.

    It leaves the numbers of the key in their slots of `parts`, as key bytes.
    """
    text = _Text(parts)
    read: Callable[[bytes], bytes] = _function(text, _ROW, _fields(text, steps, 2), start=start)
    return read


def compiled_part(steps: Sequence[Step]) -> Callable[[bytes, int], tuple[bytes, int]]:
    """Return a function from a value and a place to the bytes of what is there, and the place behind it."""
    text = _Text([])
    read: Callable[[bytes, int], tuple[bytes, int]] = _function(text, _PART, _fields(text, steps, 1))
    return read


def compiled_items(step: Step) -> Callable[[bytes, int, int], tuple[bytes, int]]:
    """Return such a function for several of one field; the third argument is how many."""
    text = _Text([])
    read: Callable[[bytes, int, int], tuple[bytes, int]] = _function(text, _ITEMS, _fields(text, [step], 2))
    return read


def _fields(text: _Text, steps: Sequence[Step], depth: int) -> str:
    return indent("".join(map(text.lines_of, steps)), "    " * depth) or "    " * depth + "pass"


def _function(text: _Text, template: str, fields: str, **words: Any) -> Any:
    exec(_compiled(template.format(fields=fields, **words)), text.names)
    return text.names["read"]


@lru_cache(maxsize=256)  # tables have several schemas that differ little, and are opened again
def _compiled(source: str) -> Any:
    return compile(source, "<row reader>", "exec")
