"""Messages of Protobuf as Spark SQL over their fields: outputs need no Python, so Real-time Mode has them, too.

A field is its tag and its value; a value is a varint, four or eight bytes, or a length and as many bytes. Avro's `long`
is a varint, too, of the number with its sign in the lowest bit: so Spark's `to_avro` makes `sint64` as it is, and any
other varint of the number that has these bits. Its `double` and `float` are Protobuf's.

Fields come in the order of their numbers, and those without presence are left out where they are zero, as in what
protobuf's own libraries write: equal keys have equal bytes.

Decision: docs/decisions/0155-protobuf-outputs-in-sql.md
"""

from collections.abc import Callable

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from tablegate.gateway.contract.columns import WRAPPERS, is_map
from tablegate.jobs.formats import Protobuf
from tablegate.jobs.messages import frame_indexes, varint

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_EMPTY = "X''"
_MICROS = 1_000_000

_Kind = FieldDescriptor
_BITS_32 = (_Kind.TYPE_INT32, _Kind.TYPE_SINT32, _Kind.TYPE_SFIXED32)
_UNSIGNED_MAX = {
    **dict.fromkeys((_Kind.TYPE_UINT32, _Kind.TYPE_FIXED32), 2**32 - 1),
    **dict.fromkeys((_Kind.TYPE_UINT64, _Kind.TYPE_FIXED64), 2**64 - 1),
}
_FIXED = {
    **dict.fromkeys((_Kind.TYPE_FIXED32, _Kind.TYPE_SFIXED32, _Kind.TYPE_FLOAT), _FIXED32),
    **dict.fromkeys((_Kind.TYPE_FIXED64, _Kind.TYPE_SFIXED64, _Kind.TYPE_DOUBLE), _FIXED64),
}


def encoded_message_sql(form: Protobuf, schema_id: int) -> str:
    """Return the SQL of the message whose fields are columns of these names, in its frame where it has one."""
    descriptor = form.descriptor
    fields = [_field(field, f"`{field.name}`", depth=0) for field in _in_order(descriptor)]
    frame = [f"X'00{schema_id:08X}{frame_indexes(descriptor)[0].hex()}'"] if form.framed else []
    return f"concat({', '.join([*frame, *fields, _EMPTY])})"


def _in_order(message: Descriptor) -> list[FieldDescriptor]:
    return sorted(message.fields, key=lambda field: field.number)


def _field(field: FieldDescriptor, value: str, *, depth: int) -> str:
    """Return the SQL of a field with its tag; empty bytes where the value is null."""
    if is_map(field):
        return _entries(field, value, depth)
    if field.is_repeated:
        return _elements(field, value, depth)
    encoded, wire_type = _value(field, value, depth)
    if field.is_required:
        missing = f"CAST(raise_error('field {field.name} is required') AS BINARY)"
        return f"coalesce(concat({_tag(field, wire_type)}, {encoded}), {missing})"
    if not field.has_presence:
        zeros = {_FIXED32: 4, _FIXED64: 8}.get(wire_type, 1)
        encoded = f"nullif({encoded}, X'{'00' * zeros}')"
    return f"coalesce(concat({_tag(field, wire_type)}, {encoded}), {_EMPTY})"


def _tag(field: FieldDescriptor, wire_type: int) -> str:
    return f"X'{varint(field.number << 3 | wire_type).hex()}'"


def _elements(field: FieldDescriptor, value: str, depth: int) -> str:
    one = f"one_{depth}"
    encoded, wire_type = _value(field, one, depth + 1)
    # Protobuf has no null in a list.
    encoded = f"coalesce({encoded}, CAST(raise_error('{field.name} has a null element') AS BINARY))"
    if field.is_packed:
        packed = f"nullif({_sized(_joined(value, one, encoded))}, X'00')"
        return f"coalesce(concat({_tag(field, _LENGTH)}, {packed}), {_EMPTY})"
    return f"coalesce({_joined(value, one, f'concat({_tag(field, wire_type)}, {encoded})')}, {_EMPTY})"


def _entries(field: FieldDescriptor, value: str, depth: int) -> str:
    one = f"one_{depth}"
    assert field.message_type is not None, "`is_map` has asked"
    entry = field.message_type.fields_by_name
    parts = []
    for name in ("key", "value"):
        # An entry has both, also where they are zero, as Java and Python write it.
        encoded, wire_type = _value(entry[name], f"{one}.{name}", depth + 1)
        missing = f"CAST(raise_error('{field.name} has a null {name}') AS BINARY)"
        parts.append(f"coalesce(concat({_tag(entry[name], wire_type)}, {encoded}), {missing})")
    sized = _sized(f"concat({', '.join(parts)})")
    # In the order of the keys: a map has none, and equal maps have equal bytes.
    entries = f"array_sort(map_entries({value}), (a, b) -> CASE WHEN a.key < b.key THEN -1 ELSE 1 END)"
    return f"coalesce({_joined(entries, one, f'concat({_tag(field, _LENGTH)}, {sized})')}, {_EMPTY})"


def _joined(array: str, one: str, encoded: str) -> str:
    return f"aggregate(transform({array}, {one} -> {encoded}), {_EMPTY}, (joined, part) -> concat(joined, part))"


def _value(field: FieldDescriptor, value: str, depth: int) -> tuple[str, int]:
    """Return the SQL of a value without its tag, null where it is null, and the wire type."""
    if field.message_type is not None:
        return _sized(f"IF({value} IS NULL, NULL, {_message(field.message_type, value, depth)})"), _LENGTH
    if field.enum_type is not None:
        known = " ".join(f"WHEN '{one.name}' THEN {one.number}" for one in field.enum_type.values)
        return _varint(f"CAST(CASE CAST({value} AS STRING) {known} ELSE CAST({value} AS INT) END AS BIGINT)"), _VARINT
    kind = field.type
    if kind in _FIXED:
        return _fixed(field, value), _FIXED[kind]
    if kind == _Kind.TYPE_STRING:
        return _sized(f"CAST(CAST({value} AS STRING) AS BINARY)"), _LENGTH
    if kind == _Kind.TYPE_BYTES:
        return _sized(f"CAST({value} AS BINARY)"), _LENGTH
    if kind == _Kind.TYPE_BOOL:
        return f"IF(CAST({value} AS BOOLEAN), X'01', IF({value} IS NULL, NULL, X'00'))", _VARINT
    bits = _bits(field, value)
    return (_avro_long(bits) if kind in (_Kind.TYPE_SINT32, _Kind.TYPE_SINT64) else _varint(bits)), _VARINT


def _bits(field: FieldDescriptor, value: str) -> str:
    """Return the SQL of a BIGINT with the bits of a whole number; it fails where the type does not hold it."""
    largest = _UNSIGNED_MAX.get(field.type)
    if largest is None:
        return f"CAST(CAST({value} AS {'INT' if field.type in _BITS_32 else 'BIGINT'}) AS BIGINT)"
    number = f"CAST({value} AS DECIMAL(20, 0))"
    text = f"CAST({value} AS STRING)"
    wrong = f"raise_error(concat({text}, ' is not from 0 to {largest}'))"
    signed = f"CAST(IF({number} < {2**63}, {number}, {number} - {2**64}) AS BIGINT)"
    return f"IF({number} BETWEEN 0 AND {largest} OR {value} IS NULL, {signed}, CAST({wrong} AS BIGINT))"


def _varint(bits: str) -> str:
    """Return the SQL of a varint of these bits, those of a BIGINT."""
    return _let(bits, "bits", _avro_long("(shiftrightunsigned(bits, 1) ^ -(bits & 1L))"))


def _avro_long(number: str) -> str:
    return _let(number, "number", """IF(number IS NULL, NULL, to_avro(coalesce(number, 0L), '"long"'))""")


def _sized(content: str) -> str:
    return _let(content, "content", f"concat({_varint('CAST(octet_length(content) AS BIGINT)')}, content)")


def _let(value: str, name: str, then: str) -> str:
    """Return the SQL of `then` with a name for a value: else a message in messages would be there many times over."""
    return f"transform(array({value}), {name} -> {then})[0]"


def _fixed(field: FieldDescriptor, value: str) -> str:
    if field.type in (_Kind.TYPE_DOUBLE, _Kind.TYPE_FLOAT):
        name = "double" if field.type == _Kind.TYPE_DOUBLE else "float"
        number = f"CAST({value} AS {name.upper()})"
        zero = f"CAST(0 AS {name.upper()})"
        return f"""IF({number} IS NULL, NULL, to_avro(coalesce({number}, {zero}), '"{name}"'))"""
    size = 8 if _FIXED[field.type] == _FIXED64 else 4
    digits = f"right(lpad(hex({_bits(field, value)}), 16, '0'), {2 * size})"
    lowest_first = ", ".join(f"substring({digits}, {place}, 2)" for place in range(2 * size - 1, 0, -2))
    return f"unhex(concat({lowest_first}))"


def _message(message: Descriptor, value: str, depth: int) -> str:
    """Return the SQL of a message that is a field of another; its value is not null."""
    special = _SPECIAL.get(message.full_name)
    if special is not None:
        return special(message, value, depth)
    if message.full_name in WRAPPERS:
        return _field(message.fields_by_name["value"], value, depth=depth)
    fields = [_field(field, f"{value}.`{field.name}`", depth=depth) for field in _in_order(message)]
    return f"concat({', '.join([*fields, _EMPTY])})"


def _timestamp(message: Descriptor, value: str, depth: int) -> str:
    micros = f"unix_micros(CAST({value} AS TIMESTAMP))"
    below = f"pmod({micros}, {_MICROS}L)"  # the nanos count forward from the second, also before 1970
    return _parts(message, {"seconds": f"({micros} - {below}) div {_MICROS}", "nanos": f"{below} * 1000"}, depth)


def _duration(message: Descriptor, value: str, depth: int) -> str:
    parts = (("DAY", 86_400), ("HOUR", 3_600), ("MINUTE", 60))
    seconds = " + ".join(f"CAST(extract({part} FROM {value}) AS BIGINT) * {size}L" for part, size in parts)
    micros = f"(({seconds}) * {_MICROS}L + CAST(extract(SECOND FROM {value}) * {_MICROS} AS BIGINT))"
    return _parts(message, {"seconds": f"{micros} div {_MICROS}", "nanos": f"({micros} % {_MICROS}L) * 1000"}, depth)


def _money(message: Descriptor, value: str, depth: int) -> str:
    # An amount of more digits than a nano fails, as it would be another one.
    amount = f"CAST({value}.amount AS DECIMAL(28, 9))"
    units = f"CAST({amount} AS BIGINT)"
    nanos = f"CAST(({amount} - {units}) * 1000000000 AS BIGINT)"
    lost = "CAST(raise_error('an amount has more digits than nanos') AS BIGINT)"
    exact = f"IF({amount} = {value}.amount OR {value}.amount IS NULL, {nanos}, {lost})"
    return _parts(message, {"currency_code": f"{value}.currency_code", "units": units, "nanos": exact}, depth)


def _parts(message: Descriptor, values: dict[str, str], depth: int) -> str:
    fields = [_field(message.fields_by_name[name], f"({value})", depth=depth) for name, value in values.items()]
    return f"concat({', '.join(fields)})"


_SPECIAL: dict[str, Callable[[Descriptor, str, int], str]] = {
    "google.protobuf.Timestamp": _timestamp,
    "google.protobuf.Duration": _duration,
    "google.type.Money": _money,
}
"""Messages whose values are no structs of their fields in Spark."""
