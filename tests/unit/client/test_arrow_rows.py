"""Rows as Arrow of their bytes: held to what parsed messages give, however the bytes are laid out."""

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, timestamp_pb2
from google.protobuf.message import DecodeError

from tablegate.client.arrow import arrow_table
from tablegate.client.arrow_rows import row_batches
from tests.kit.table.filled import orders
from tests.kit.table.random_orders import random_order

pytestmark = pytest.mark.tools

PROTO = descriptor_pb2.FieldDescriptorProto
SCALARS = [kind for kind in range(1, 19) if kind not in (PROTO.TYPE_GROUP, PROTO.TYPE_MESSAGE)]
TIMES = (".google.protobuf.Timestamp", ".google.protobuf.Duration")


def _flat() -> Any:
    """Return the class of a message with each kind of scalar, plain and optional, and with times."""
    file = descriptor_pb2.FileDescriptorProto(name="flat.proto", package="flat", syntax="proto3")
    file.dependency.extend([timestamp_pb2.DESCRIPTOR.name, duration_pb2.DESCRIPTOR.name])
    enum = file.enum_type.add(name="Kind")
    for number, name in ((0, "KIND_NONE"), (1, "KIND_ONE"), (-5, "KIND_BELOW")):
        enum.value.add(name=name, number=number)
    message = file.message_type.add(name="Flat")
    for place, kind in enumerate([*SCALARS, *SCALARS]):
        field = message.field.add(name=f"f{place}", number=place + 1, type=kind, label=PROTO.LABEL_OPTIONAL)
        if kind == PROTO.TYPE_ENUM:
            field.type_name = ".flat.Kind"
        if place >= len(SCALARS):
            field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
            message.oneof_decl.add(name=f"_f{place}")
    for number, name in enumerate(TIMES, 100):
        message.field.add(name=f"f{number}", number=number, type=11, type_name=name, label=PROTO.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    for known in (timestamp_pb2, duration_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("flat.Flat"))


FLAT = _flat()


def _value(field: Any, choice: random.Random) -> Any:
    bits = choice.choice((0, 7, 31, 32, 63, 64))
    number = choice.randrange(2**bits)
    match field.cpp_type:
        case field.CPPTYPE_STRING:
            text = choice.choice(("", "é", "x" * 200, "naïve\0"))
            return text.encode() if field.type == field.TYPE_BYTES else text
        case field.CPPTYPE_BOOL:
            return choice.random() < 0.5
        case field.CPPTYPE_ENUM:
            return choice.choice((0, 1, -5, 77, -77))
        case field.CPPTYPE_DOUBLE | field.CPPTYPE_FLOAT:
            return choice.choice((0.0, -0.0, 0.5, float("inf"), -1e30))
        case field.CPPTYPE_UINT32:
            return number % 2**32
        case field.CPPTYPE_UINT64:
            return number
        case field.CPPTYPE_INT32:
            return number % 2**32 - 2**31
        case _:
            return number - 2**63


def _row(choice: random.Random) -> Any:
    row = FLAT()
    for field in FLAT.DESCRIPTOR.fields:
        if choice.random() < 0.4:
            continue
        if field.message_type is None:
            setattr(row, field.name, _value(field, choice))
        elif choice.random() < 0.2:
            getattr(row, field.name).SetInParent()
        else:
            micros = choice.randrange(-(10**15), 10**15)
            getattr(row, field.name).FromMicroseconds(micros)
            if field.message_type.name == "Timestamp" or micros > 0:
                getattr(row, field.name).nanos += 999 * choice.randrange(2)  # less than a microsecond
    return row


def _table(rows: list[bytes], row: Any, **limits: int) -> pa.Table:
    table = pa.Table.from_batches(row_batches([rows[:3], rows[3:]], row, **limits), arrow_table([], row).schema)
    table.validate(full=True)
    return table


@pytest.mark.parametrize("seed", range(30))
def test_flat_rows_are_what_parsed_ones_are(seed: int) -> None:
    choice = random.Random(seed)
    rows = [_row(choice) for _ in range(60)]
    assert _table([row.SerializeToString() for row in rows], FLAT) == arrow_table(rows, FLAT)


class _Unparsed:
    """A message that rows are not parsed as."""

    DESCRIPTOR = FLAT.DESCRIPTOR


@pytest.mark.parametrize("seed", range(10))
def test_flat_rows_are_read_without_parsing_them(seed: int) -> None:
    choice = random.Random(seed)
    rows = [_row(choice) for _ in range(60)]
    for some in (rows, [FLAT(f0=1.0)], [FLAT()], [FLAT(f8="text", f9=b"bytes")]):
        assert _table([row.SerializeToString() for row in some], _Unparsed) == arrow_table(some, FLAT)


@pytest.mark.parametrize("seed", range(5))
def test_rows_with_other_fields_are_what_parsed_ones_are(seed: int) -> None:
    choice = random.Random(seed)
    rows: list[Any] = [random_order(choice) for _ in range(20)]
    kind = orders().row_class
    # A map has its entries in any order: so what is parsed is what was sent.
    sent = [row.SerializeToString() for row in rows]
    assert _table(sent, kind) == arrow_table(map(kind.FromString, sent), kind)


def _swapped(data: bytes) -> bytes:
    last = FLAT.FromString(data)
    number = last.f2
    last.ClearField("f2")
    return last.SerializeToString() + FLAT(f2=number).SerializeToString()


@pytest.mark.parametrize(
    "change",
    [
        _swapped,
        lambda data: data + data,
        lambda data: data + b"\xf8\x7f\x01",  # a field that nobody knows
        lambda data: data + b"\xa0\x06\x01",  # of a known number, and of another wire type
        lambda _: b"\x78\x82\x80\x80\x80\x10",  # a number of 32 bits, in 33
        lambda _: b"",
    ],
)
def test_rows_laid_out_otherwise_are_what_parsed_ones_are(change: Callable[[bytes], bytes]) -> None:
    choice = random.Random(3)
    rows = [_row(choice).SerializeToString() for _ in range(10)]
    rows[4] = change(rows[4])
    assert _table(rows, FLAT) == arrow_table(map(FLAT.FromString, rows), FLAT)


@pytest.mark.parametrize("cut", range(1, 12))
def test_rows_that_are_cut_off_are_refused(cut: int) -> None:
    row = FLAT(f0=1.5, f8="text", f101={"seconds": 7, "nanos": 5})
    rows = [row.SerializeToString()] * 6
    rows[cut % 6] = rows[0][:-cut]
    try:
        wanted = arrow_table(map(FLAT.FromString, rows), FLAT)
    except DecodeError:
        with pytest.raises(DecodeError):
            _table(rows, FLAT)
    else:
        assert _table(rows, FLAT) == wanted  # it was cut between two fields


@pytest.mark.parametrize(
    "damaged", [b"\x3a\x05ab", b"\x18" + b"\xff" * 11, b"\x4a\x02\xff\xfe", b"\x3a" + b"\xff" * 9 + b"\x01"]
)
def test_damaged_rows_are_refused(damaged: bytes) -> None:
    with pytest.raises(DecodeError):
        FLAT.FromString(damaged)
    for place in (0, 2, 4):
        rows = [FLAT(f0=1.0).SerializeToString()] * 5
        rows[place] = damaged
        with pytest.raises(DecodeError):
            _table(rows, FLAT)


def test_batches_end_by_rows_and_by_bytes() -> None:
    rows = [[FLAT(f0=1.0).SerializeToString()] * 2] * 4
    assert [batch.num_rows for batch in row_batches(rows, FLAT, batch_rows=4)] == [4, 4]
    assert [batch.num_rows for batch in row_batches(rows, FLAT, batch_bytes=20)] == [4, 4]


def test_only_the_wanted_columns_are_given() -> None:
    rows = [FLAT(f0=1.5, f2=7).SerializeToString()]
    [batch] = row_batches([rows], FLAT, columns=["f2"])
    assert batch.to_pylist() == [{"f2": 7}]
