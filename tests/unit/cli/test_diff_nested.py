"""`tablegate diff` of rows that are not flat: each change is told of the column that it is in, and of no other."""

from pathlib import Path

import pytest

from tablegate.gateway.cli.diff.differences import Effect
from tablegate.gateway.cli.diff.tables import table_differences
from tablegate.gateway.contract.catalogue import Table
from tests.kit.table.contracts import bind_sources
from tests.kit.table.filled import ORDERS

TEXT = ORDERS.read_text()
REBUILD, RESTORE, BREAKS = Effect.REBUILD, Effect.RESTORE, Effect.BREAKS_CLIENTS
ADDRESS = ("address", "items.sent_to", "invoice", "by_line.value.sent_to")
ITEM = ("items", "by_line.value")


def bound(directory: Path, text: str) -> Table:
    return bind_sources(directory, test__orders__v1__orders=text).tables["orders"]


@pytest.mark.parametrize(
    ("old", "new", "columns", "effects"),
    [
        ("int32 floor = 3;", "int32 floor = 3; string zip = 4;", [f"{at}.zip" for at in ADDRESS], {REBUILD}),
        ("int32 floor = 3;", "", [f"{at}.floor" for at in ADDRESS], {RESTORE, BREAKS}),
        ("int32 floor = 3;", "string floor = 3;", [f"{at}.floor" for at in ADDRESS], {REBUILD, BREAKS}),
        ("int32 floor = 3;", "int32 floor = 9;", [f"{at}.floor" for at in ADDRESS], {RESTORE, BREAKS}),
        ("string sku = 1;", "string code = 1;", [f"{at}.code" for at in ITEM], {REBUILD, BREAKS}),
        ("repeated Item items = 2;", "", ["items"], {REBUILD, BREAKS}),
        ("repeated Item items = 2;", "Item items = 2;", ["items"], {REBUILD, BREAKS}),
        ("Address address = 3;", "Address address = 3; Address second = 40;", ["second"], {REBUILD}),
        ("repeated string tags = 4;", "map<string, string> tags = 4;", ["tags"], {REBUILD, BREAKS}),
        ("double cash = 8;", "double cash = 48;", ["cash"], {RESTORE, BREAKS}),
        ("StringValue nickname", "BytesValue nickname", ["nickname"], {REBUILD, BREAKS}),
    ],
)
def test_a_change_inside_of_a_row(old: str, new: str, columns: list[str], effects: set[Effect], tmp_path: Path) -> None:
    before, now = tmp_path / "before", tmp_path / "now"
    before.mkdir()
    now.mkdir()
    assert TEXT.count(old) == 1
    found = table_differences(bound(before, TEXT), bound(now, TEXT.replace(old, new)))
    assert {one.subject for one in found} == {f'column "{column}"' for column in columns}
    assert {effect for one in found for effect in one.effects} == effects
