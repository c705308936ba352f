"""What the encoder writes says what protobuf's json_format writes, field by field in the same order."""

import json
import math
from typing import Any

import pytest
from google.protobuf import any_pb2, descriptor_pool, json_format, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import given
from hypothesis import strategies as st

from tablegate.gateway.contract.columns import is_map
from tablegate.gateway.http.json_codec import JsonCodec
from tests.kit.table.filled import ORDERS, catalogue_of

POOL = catalogue_of(ORDERS).pool
ORDER = GetMessageClass(POOL.FindMessageTypeByName("test.orders.v1.Order"))
_SCALAR_KINDS = [number for name, number in FieldDescriptorProto.Type.items() if number not in (10, 11)]  # no messages
_KEY_KINDS = [number for number in _SCALAR_KINDS if number not in (1, 2, 12, 14)]  # no floats, bytes, enums


def _add_field(message: Any, kind: int, label: int, **more: Any) -> None:
    number = len(message.field) + 1
    field = message.field.add(name=f"field_{number}", number=number, type=kind, label=label, **more)
    if kind == FieldDescriptorProto.TYPE_ENUM:
        field.type_name = ".test.kinds.Enum"


def _kinds(syntax: str) -> type[Message]:
    """Return a message with each kind of scalar: single, with presence, repeated, in a oneof; key and value of maps."""
    file = FileDescriptorProto(name=f"kinds_{syntax}.proto", package="test.kinds", syntax=syntax)
    enum = file.enum_type.add(name="Enum")
    for number, name in enumerate(("ENUM_ZERO", "ENUM_ONE")):
        enum.value.add(name=name, number=number)
    message = file.message_type.add(name="Kinds")
    for kind in _SCALAR_KINDS:
        _add_field(message, kind, FieldDescriptorProto.LABEL_OPTIONAL)
        _add_field(message, kind, FieldDescriptorProto.LABEL_REPEATED)
        _add_field(message, kind, FieldDescriptorProto.LABEL_OPTIONAL, oneof_index=0)
    message.oneof_decl.add(name="one")
    if syntax == "proto3":
        for kind in _SCALAR_KINDS:
            _add_field(message, kind, 1, proto3_optional=True, oneof_index=len(message.oneof_decl))
            message.oneof_decl.add(name=f"_{kind}")
    for key, value in [(9, kind) for kind in _SCALAR_KINDS] + [(kind, 9) for kind in _KEY_KINDS]:
        number = len(message.field) + 1
        entry = message.nested_type.add(name=f"Field{number}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=key, label=1)
        entry.field.add(name="value", number=2, type=value, label=1)
        if value == FieldDescriptorProto.TYPE_ENUM:
            entry.field[1].type_name = ".test.kinds.Enum"
        message.field.add(
            name=f"field_{number}", number=number, type=11, label=3, type_name=f".test.kinds.Kinds.{entry.name}"
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("test.kinds.Kinds"))


KINDS = {syntax: _kinds(syntax) for syntax in ("proto2", "proto3")}
CODEC = JsonCodec([POOL, descriptor_pool.Default()])
_DEPTH = 2
_KINDS = FieldDescriptor
_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    _KINDS.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    _KINDS.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    _KINDS.CPPTYPE_UINT32: st.integers(0, 2**32 - 1),
    _KINDS.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
    _KINDS.CPPTYPE_FLOAT: st.floats(width=32) | st.sampled_from([-0.0, 0.1, 1e-45, 3.4028234663852886e38]),
    _KINDS.CPPTYPE_DOUBLE: st.floats() | st.sampled_from([-0.0, 1e16, 1e-7]),
    _KINDS.CPPTYPE_BOOL: st.booleans(),
    _KINDS.CPPTYPE_ENUM: st.integers(0, 1),  # and of open ones numbers that have no name
    _KINDS.CPPTYPE_STRING: st.text(max_size=8),
}
_TEXTS = st.sampled_from(['"', "\\", "\x00", "\x1f", "\x7f", "\u2028", "é", "\U0001f600", "%d", "</script>"])


def _fill(draw: st.DrawFn, message: Any, depth: int) -> None:
    """Set some of a message's fields; of times and durations mostly what is valid."""
    name = message.DESCRIPTOR.full_name
    if name == "google.protobuf.Any":
        inner = draw(st.sampled_from([wrappers_pb2.Int64Value(value=7), timestamp_pb2.Timestamp(seconds=1)]))
        message.Pack(inner)
        return
    if name in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
        message.seconds = draw(st.integers(-62_135_596_800, 253_402_300_799) | st.integers(-(2**40), 2**40))
        message.nanos = draw(
            st.integers(0, 999_999_999) | st.sampled_from([0, 1_000_000, 1_000, 500_000_000, -1, 10**9])
        )
        return
    for field in draw(
        st.lists(st.sampled_from(list(message.DESCRIPTOR.fields)), max_size=3, unique_by=lambda one: one.name)
    ):
        count = draw(st.integers(0, 3)) if field.is_repeated else 1
        for _ in range(count):
            _add(draw, message, field, depth)


def _add(draw: st.DrawFn, message: Any, field: FieldDescriptor, depth: int) -> None:
    target = getattr(message, field.name)
    if is_map(field):
        key = draw(_scalar(field.message_type.fields_by_name["key"]))
        value = field.message_type.fields_by_name["value"]
        if value.message_type is None:
            target[key] = draw(_scalar(value))
        else:
            target.get_or_create(key)
            if depth:
                _fill(draw, target[key], depth - 1)
    elif field.message_type is not None:
        inner = target.add() if field.is_repeated else target
        inner.SetInParent()
        if depth:
            _fill(draw, inner, depth - 1)
    elif field.is_repeated:
        target.append(draw(_scalar(field)))
    else:
        setattr(message, field.name, draw(_scalar(field)))


def _scalar(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=5)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return _SCALARS[field.cpp_type] | _TEXTS
    if field.enum_type is not None and not field.enum_type.is_closed:
        return st.integers(-1, 2)
    return _SCALARS[field.cpp_type]


@st.composite
def _orders(draw: st.DrawFn) -> Message:
    order = ORDER()
    _fill(draw, order, _DEPTH)
    return order


@st.composite
def _any_kinds(draw: st.DrawFn) -> Message:
    message = KINDS[draw(st.sampled_from(sorted(KINDS)))]()
    _fill(draw, message, 0)
    return message


def _parsed(text: str | bytes) -> Any:
    """Return what a JSON text says: objects as pairs in order, numbers by their digits, so that -0.0 is not 0."""
    return json.loads(text, object_pairs_hook=tuple, parse_float=lambda digits: repr(float(digits)))


def _expected(message: Message) -> Any:
    value = json_format.MessageToDict(message, descriptor_pool=POOL)
    return _parsed(json.dumps(value, ensure_ascii=False).encode())


def _written(message: Message) -> Any:
    """Return what the encoder itself writes: `to_json` would go to json_format where it fails."""
    return _parsed(CODEC._encoder.encode(message))


@given(_orders() | _any_kinds())
def test_random_messages_are_written_as_json_format_does(message: Message) -> None:
    try:
        expected = _expected(message)
    except (json_format.SerializeToJsonError, ValueError, UnicodeEncodeError):
        with pytest.raises((json_format.SerializeToJsonError, ValueError)):
            _written(message)
        with pytest.raises((json_format.SerializeToJsonError, ValueError)):
            CODEC.to_json(type(message), message.SerializeToString())
        return
    assert _written(message) == expected
    assert len(UnknownFieldSet(message)) == 0


@pytest.mark.parametrize("syntax", KINDS)
def test_every_kind_of_field_is_written_as_json_format_does(syntax: str) -> None:
    message: Any = KINDS[syntax]()
    for field in message.DESCRIPTOR.fields:
        target = getattr(message, field.name)
        if is_map(field):
            entry = field.message_type.fields_by_name
            target[_some(entry["key"])] = _some(entry["value"])
        elif field.is_repeated:
            target.extend([_some(field), type(_some(field))()])
        else:
            setattr(message, field.name, _some(field))
    assert _written(message) == _expected(message)


def _some(field: FieldDescriptor) -> Any:
    """Return a value that a wrong function would write wrongly."""
    if field.type == FieldDescriptor.TYPE_BYTES:
        return b"\xff\xfe"
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return "%d"
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return math.inf if field.is_repeated else 0.1
    return 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1e16, 1e-7, 1.7976931348623157e308])
def test_a_double_comes_back_as_it_was(value: float) -> None:
    written = json_format.Parse(CODEC.to_json(ORDER, ORDER(cash=value).SerializeToString()), ORDER())
    assert repr(written.cash) == repr(value)  # type: ignore[attr-defined]


@pytest.mark.parametrize("number", [1e300, 2.0**64, 1.5, math.nan])
def test_what_orjson_cannot_write_json_writes(number: float) -> None:
    order: Any = ORDER(id=7)
    order.extra.fields["number"].number_value = number  # a whole one becomes an integer, however long
    if math.isnan(number):
        with pytest.raises(json_format.SerializeToJsonError):
            CODEC.to_json(ORDER, order.SerializeToString())
    else:
        assert json.loads(CODEC.to_json(ORDER, order.SerializeToString()))["extra"] == {"number": number}


def test_a_message_is_written_as_deep_as_it_is_read() -> None:
    value: Any = struct_pb2.Value(string_value="deep")
    for _ in range(48):  # two messages a list: as deep as protobuf reads
        value = struct_pb2.Value(list_value=struct_pb2.ListValue(values=[value]))
    data = value.SerializeToString()
    assert json.loads(CODEC.to_json(struct_pb2.Value, data)) == json_format.MessageToDict(value)


@pytest.mark.parametrize(
    "message",
    [
        timestamp_pb2.Timestamp(),
        timestamp_pb2.Timestamp(seconds=-1, nanos=120_000_000),
        timestamp_pb2.Timestamp(nanos=1_000),
        timestamp_pb2.Timestamp(nanos=100),
        KINDS["proto3"](field_34=2, field_35=[-1, 1]),  # an enum's numbers, some without a name
        wrappers_pb2.StringValue(value='"'),
        wrappers_pb2.FloatValue(value=0.9),
        wrappers_pb2.BoolValue(),
        wrappers_pb2.BytesValue(value=b"\xff\xfe"),
        struct_pb2.Struct(fields={"a": struct_pb2.Value(null_value=struct_pb2.NULL_VALUE)}),
        struct_pb2.Value(number_value=1),
        struct_pb2.ListValue(values=[struct_pb2.Value(bool_value=True)]),
        any_pb2.Any(),
        FileDescriptorProto(name="x"),
    ],
    ids=lambda message: message.DESCRIPTOR.name,
)
def test_a_message_of_a_well_known_type_alone(message: Message) -> None:
    assert _written(message) == _expected(message) == _parsed(CODEC.to_json(type(message), message.SerializeToString()))


def test_a_row_costs_no_call_of_json_format(monkeypatch: pytest.MonkeyPatch) -> None:
    order = ORDER(id=7, tags=["a"], labels={"b": "c"})
    order.times.add(seconds=1)  # type: ignore[attr-defined]
    order.took.seconds = 2  # type: ignore[attr-defined]
    monkeypatch.delattr(json_format, "MessageToDict")
    assert json.loads(CODEC.to_json(ORDER, order.SerializeToString())) == {
        "id": "7",
        "tags": ["a"],
        "labels": {"b": "c"},
        "took": "2s",
        "times": ["1970-01-01T00:00:01Z"],
    }
