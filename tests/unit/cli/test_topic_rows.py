"""`tablegate contract new --from topic:…`: the row that a topic's newest records have in common, and its key."""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablegate.gateway.cli.row_messages import RowError
from tablegate.gateway.cli.topic_rows import TopicRow, topic_row
from tablegate.gateway.contract.types import Offset
from tablegate.gateway.kafka.log import Record


def records(*pairs: tuple[bytes | None, Any]) -> list[Record]:
    """Return records of keys and values; what is no bytes and not None becomes JSON."""
    values = [value if value is None or isinstance(value, bytes) else json.dumps(value).encode() for _, value in pairs]
    return [
        Record(Offset(number), key, value, None, 0)
        for number, ((key, _), value) in enumerate(zip(pairs, values, strict=True))
    ]


def made(*pairs: tuple[bytes | None, Any], key: Sequence[str] = (), skip: Sequence[str] = ()) -> TopicRow:
    return topic_row(records(*pairs), "Order", key, skip, topic="orders")


def columns(row: TopicRow) -> dict[str, str]:
    return {one.name: one.type for one in row.row.columns}


def test_the_field_that_keys_are_is_the_key() -> None:
    row = made((b"o-1", {"customer": "ann", "orderId": "o-1"}), (b"o-2", {"customer": "ann", "orderId": "o-2"}))
    assert (row.codec, row.key, columns(row)) == ("utf8", ["order_id"], {"customer": "string", "order_id": "string"})
    assert [*row.lines()] == ["2 of the newest 2 records have this row in common"]


@pytest.mark.parametrize(
    ("key", "codec", "type_"),
    [
        (b"o-1", "utf8", "string"),
        ((7).to_bytes(8, "big"), "int64", "int64"),
        ((7).to_bytes(4, "big"), "int32", "int64"),
    ],
)
def test_a_key_that_values_do_not_have_becomes_a_column(key: bytes, codec: str, type_: str) -> None:
    with pytest.raises(RowError, match=r'keys of topic "orders" are in no field of its values; say .* --key order_id'):
        made((key, {"amount": 1.5}))
    row = made((key, {"amount": 1.5}), key=["order_id"])
    assert (row.codec, row.key, columns(row)) == (codec, ["order_id"], {"order_id": type_, "amount": "double"})


def test_numbers_of_keys_are_found_in_values() -> None:
    row = made(((7).to_bytes(8, "big"), {"id": 7}), ((2**40).to_bytes(8, "big"), {"id": 2**40}))
    assert (row.codec, row.key) == ("int64", ["id"])


def test_a_key_of_json_has_the_key_columns() -> None:
    row = made((b'{"shop": "x", "no": 1}', {"no": 1, "amount": 2}), (b'{"shop": "y", "no": 1}', {"no": 1, "amount": 2}))
    assert (row.codec, row.key) == ("json", ["shop", "no"])
    assert columns(row) == {"shop": "string", "no": "int64", "amount": "int64"}


def test_odd_records_are_left_out_and_counted() -> None:
    usual = [(f"o-{number}".encode(), {"id": f"o-{number}", "total": number, "at": [{"q": 1}]}) for number in range(5)]
    row = made(
        *usual,
        (b"o-1", None),
        (b"o-6", {"id": "o-6", "total": "free", "at": [{"q": 1}]}),
        (b"o-7", {"id": "o-7", "total": 7, "at": [{"q": "one"}]}),
        (b"o-8", b"not JSON"),
        (b"o-9", b"\xff"),
        (b"o-9", [1]),
        (None, {"id": "o-9", "total": None, "at": [], "note": "x"}),
    )
    assert columns(row) == {"id": "string", "total": "int64", "at": "repeated At", "note": "string"}
    assert row.key == ["id"]
    assert [*row.lines()] == [
        "7 of the newest 12 records have this row in common",
        "  2 not: value is not JSON",
        "  1 not: value is JSON, but no object",
        '  1 not: field "total" is text, in most records number',
        '  1 not: field "at[].q" is text, in most records number',
    ]


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        ([], 'topic "orders" has no records with a value yet; make the row of a schema or a sample: --from FILE'),
        ([(b"k", None)], "no records with a value yet"),
        ([(b"k", b"text")], "no JSON object among its newest records"),
        (
            [(b"k", b"\0\0\0\0\x29Avro")],
            "wire format of a schema registry; make the row of its schema: --from registry:",
        ),
        ([(None, {"id": 1})], "have no keys, so none is the newest of its key; have a job keep a table of them"),
        ([(b"\xff\xfe", {"id": 1})], "are neither text nor numbers nor JSON"),
        ([(b"a", {"id": "a"}), (b"b", {"id": 1})], "several types (1 times text, 1 times number)"),
        ([(b"a", {"id": "a", "x": None})], 'field "x" is null in the whole sample'),
    ],
)
def test_topics_of_which_no_row_can_be_made(pairs: list[tuple[bytes | None, Any]], sentence: str) -> None:
    with pytest.raises(RowError) as raised:
        made(*pairs)
    assert sentence in str(raised.value)


def test_a_field_that_is_null_in_all_records_can_be_skipped() -> None:
    assert columns(made((b"a", {"id": "a", "x": None}), skip=["x"])) == {"id": "string"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(st.lists(st.tuples(st.none() | st.binary(max_size=9) | st.just(b"{}"), JSON | st.none() | st.binary())))
def test_any_records_make_a_row_or_are_refused(pairs: list[tuple[bytes | None, Any]]) -> None:
    with suppress(RowError):  # and nothing else
        row = made(*pairs)
        assert row.key
        assert {*row.key} <= {one.name for one in row.row.columns}
        assert row.odd.total() < row.total
