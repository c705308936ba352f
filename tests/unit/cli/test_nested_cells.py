"""What a terminal shows of rows with messages, lists and maps."""

from typing import Any

import pytest
from google.protobuf import json_format

from tablegate.gateway.cli.show import cells
from tests.kit.table.filled import orders


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        (
            "items",
            [
                {"sku": "a", "pieces": 2, "price": {"units": 1, "nanos": 500_000_000}, "marks": ["x", "y"]},
                {"sku": "b", "sentTo": {"street": "Main", "city": ""}, "locker": 0},
            ],
            "sku=a pieces=2 price=1.50 marks=x, y\nsku=b pieces=0 sent_to=street=Main floor=0 locker=0",
        ),
        ("items", [], ""),
        ("tags", ["a", "ü"], "a, ü"),
        ("labels", {"b": "2", "a": "1"}, "a=1\nb=2"),
        ("byLine", {"10": {"sku": "x"}, "9": {"sku": "y"}}, "9=sku=y pieces=0\n10=sku=x pieces=0"),
        ("counts", {"true": 4, "false": 3}, "False=3\nTrue=4"),
        ("nickname", "", ""),
        ("points", 5, "5"),
        ("took", "1.5s", "1.500s"),
        ("extra", {"a": [1, None]}, '{"a": [1.0, null]}'),
        ("anyValue", "text", "text"),
        (
            "anything",
            {"@type": "type.googleapis.com/test.orders.v1.Address", "street": "s"},
            '{"@type": "type.googleapis.com/test.orders.v1.Address", "street": "s", "floor": 0}',
        ),
        ("maybes", [0.5, 0], "0.5, 0.0"),
        ("times", ["2026-01-01T00:00:00Z"], "2026-01-01T00:00:00Z"),
        ("history", ["STATUS_PAID"], "STATUS_PAID"),
        ("cash", 0, "0.0"),
    ],
)
def test_a_cell(column: str, value: object, text: str) -> None:
    pool = orders().row.file.pool
    row = json_format.ParseDict({"id": 1, column: value}, orders().row_class(), descriptor_pool=pool)
    shown = dict(zip([field.json_name for field in orders().row.fields], cells(row), strict=True))
    assert (shown.pop("id"), shown.pop(column)) == ("1", text)
    assert not any(shown.values())


def test_an_any_of_a_type_that_the_contract_does_not_have() -> None:
    row: Any = orders().row_class(id=1, anything={"type_url": "type.example/unknown.Type", "value": b"\x01"})
    assert '{"@type": "type.example/unknown.Type", "value": "AQ=="}' in cells(row)
    assert row.anything.value == b"\x01"
