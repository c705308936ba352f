"""Rows as Arrow: every kind of field, held to what protobuf's own reading of a row gives."""

import json
import random
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tablegate.client.arrow import arrow_schema, arrow_table, record_batches
from tests.kit.table.filled import orders
from tests.kit.table.random_orders import random_order
from tests.kit.table.things import thing_service

ORDER: Any = orders().row_class
POOL = ORDER.DESCRIPTOR.file.pool
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def plain(message: Any) -> dict[str, Any]:
    """Return a message as Python has the row of an Arrow table."""
    return {field.name: _plain_field(message, field) for field in message.DESCRIPTOR.fields}


def _plain_field(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of = field.message_type.fields_by_name
        return [(_plain(key, of["key"]), _plain(value[key], of["value"])) for key in sorted(value)]
    if field.is_repeated:
        return [_plain(item, field) for item in value]
    return None if field.has_presence and not message.HasField(field.name) else _plain(value, field)


def _plain(value: Any, field: Any) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name if value in field.enum_type.values_by_number else str(value)
    if field.message_type is None:
        return value
    match field.message_type.full_name:
        case "google.protobuf.Timestamp":
            return EPOCH + timedelta(microseconds=value.ToMicroseconds())
        case "google.protobuf.Duration":
            return timedelta(microseconds=value.ToMicroseconds())
        case "google.protobuf.Struct" | "google.protobuf.Value" | "google.protobuf.Any":
            return json.dumps(json_format.MessageToDict(value, descriptor_pool=POOL), ensure_ascii=False)
        case name if name.startswith("google.protobuf."):
            return value.value
        case _:
            return plain(value)


@pytest.mark.parametrize("seed", range(20))
def test_every_kind_of_field(seed: int) -> None:
    choice = random.Random(seed)
    rows = [random_order(choice) for _ in range(30)]
    table = arrow_table(rows, ORDER)
    table.validate(full=True)
    assert table.schema == arrow_schema(ORDER)
    assert table.to_pylist(maps_as_pydicts=None) == [plain(row) for row in rows]


def test_pandas_and_polars_have_the_same_rows() -> None:
    import pandas as pd  # both take their time, which each process would that collects tests
    import polars

    choice = random.Random(3)
    rows = [random_order(choice) for _ in range(30)]
    table = arrow_table(rows, ORDER)
    frame = table.to_pandas(types_mapper=pd.ArrowDtype)
    assert pa.Table.from_pandas(frame, schema=table.schema, preserve_index=False).equals(table)
    expected = table.to_pylist(maps_as_pydicts="strict")
    assert polars.from_arrow(table).to_dicts() == expected  # type: ignore[union-attr]
    assert [*table.to_pandas()["took"].dropna()] == [row["took"] for row in expected if row["took"] is not None]


def test_no_rows_have_columns() -> None:
    table = arrow_table([], ORDER)
    assert (table.num_rows, table.schema) == (0, arrow_schema(ORDER))
    assert table.schema.field("times").type == pa.list_(pa.timestamp("us", "UTC"))


def test_batches_end_by_rows_and_by_bytes() -> None:
    rows = [ORDER(id=number) for number in range(10)]
    assert [batch.num_rows for batch in record_batches(rows, ORDER, batch_rows=4)] == [4, 4, 2]
    large = [ORDER(id=number, tags=["x" * 1_000]) for number in range(3)]
    assert [batch.num_rows for batch in record_batches(large, ORDER, batch_bytes=1_000)] == [1, 1, 1]


def test_rows_are_read_when_their_batch_is_made() -> None:
    read: list[int] = []

    def rows() -> Iterator[Message]:
        for number in range(6):
            read.append(number)
            yield ORDER(id=number)

    next(record_batches(rows(), ORDER, batch_rows=2))
    assert read == [0, 1]


@pytest.mark.parametrize(
    ("type_url", "value"),
    [
        ("type.example/unknown.Type", b"\x01"),
        ("nonsense", b""),
        ("type.example/google.protobuf.Timestamp", b"\xff\xff"),
        ("type.example/google.protobuf.Duration", b"\x08" + b"\xff" * 8 + b"\x7f"),
        ("type.example/google.protobuf.Value", b"\x11" + bytes(6) + b"\xf0\x7f"),
    ],
    ids=["unknown", "no-name", "damaged", "out-of-range", "infinite"],
)
def test_an_any_that_json_cannot_say_is_its_bytes(type_url: str, value: bytes) -> None:
    table = arrow_table([ORDER(id=1, anything={"type_url": type_url, "value": value})], ORDER)
    assert json.loads(table["anything"][0].as_py()) == {"@type": type_url, "value": b64encode(value).decode()}


def test_a_message_that_contains_itself_is_refused() -> None:
    thing = thing_service().methods_by_name["GetThing"].output_type
    with pytest.raises(ValueError, match=r"test\.things\.v1\.Inner contains itself"):
        arrow_schema(GetMessageClass(thing))
