"""What the encoder writes is what protobuf's json_format writes, byte by byte."""

import json
from typing import Any

import pytest
from google.protobuf import any_pb2, descriptor_pool, json_format, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
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
    _KINDS.CPPTYPE_ENUM: st.integers(-1, 2),
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
    return _SCALARS[field.cpp_type]


@st.composite
def _orders(draw: st.DrawFn) -> Message:
    order = ORDER()
    _fill(draw, order, _DEPTH)
    return order


def _expected(message: Message) -> bytes:
    value = json_format.MessageToDict(message, descriptor_pool=POOL)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _written(message: Message) -> bytes:
    """Return what the encoder itself writes: `to_json` would go to json_format where it fails."""
    return CODEC._encoder.of(message.DESCRIPTOR)(message).encode()


@given(_orders())
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


@pytest.mark.parametrize(
    "message",
    [
        timestamp_pb2.Timestamp(),
        timestamp_pb2.Timestamp(seconds=-1, nanos=120_000_000),
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
    assert _written(message) == _expected(message) == CODEC.to_json(type(message), message.SerializeToString())


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
