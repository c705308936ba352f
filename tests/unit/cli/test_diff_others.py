"""`tablegate diff` of tables of topics of others, whose producers go on writing what they wrote."""

import json
from itertools import permutations
from typing import Any

import pytest
from google.protobuf import json_format

from tablegate.gateway.cli.diff.differences import Effect
from tablegate.gateway.cli.diff.tables import table_differences
from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.foreign.values import value_reader
from tablegate.gateway.contract.rows import UndecodableRecord
from tablegate.v1 import changelog_pb2
from tablegate.v1.changelog_pb2 import ForeignTopic
from tests.kit.table.contracts import bind_sources

ROW = """syntax = "proto3";
package shop.v1;
import "tablegate/v1/options.proto";
enum Place {{ PLACE_UNSPECIFIED = 0; PLACE_SHOP = 1; }}
message Row {{ option (tablegate.v1.table) = {{name: "rows", key: "id"}}; string id = 1; {type} v = 2; }}
"""
SIGNED = ("int32", "int64", "sint32", "sint64", "sfixed32", "sfixed64")
UNSIGNED = ("uint32", "uint64", "fixed32", "fixed64")
VALUES: dict[str, list[Any]] = {
    **{kind: [1, -2] for kind in SIGNED},
    **{kind: [1, 2**31] for kind in UNSIGNED},
    "bool": [True],
    "float": [1.5],
    "double": [1.5],
    "string": ["a"],
    "bytes": [b"a"],
    "Place": [1],
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Table]:
    made = {kind: bind_sources(tmp_path_factory.mktemp("row"), row=ROW.format(type=kind)) for kind in VALUES}
    return {kind: catalogue.tables["rows"] for kind, catalogue in made.items()}


def reads_the_same(old: Table, new: Table, codec: str, value: Any) -> bool:
    """Return whether a value that the producers of OLD write is the same by NEW."""
    row: Any = old.row_class(id="x", v=value)
    written = row.SerializeToString()
    if codec == "JSON":
        written = json.dumps({"v": json_format.MessageToDict(row)["v"]}).encode()
    topic = ForeignTopic(value_codec=getattr(changelog_pb2, f"VALUE_CODEC_{codec}"))
    try:
        found: Any = new.row_class.FromString(value_reader(new, topic, {}).read(written, ["x"]) or b"")
    except UndecodableRecord:
        return False
    return bool(found.v == value)


@pytest.mark.tools
def test_a_type_that_others_do_not_write_is_told(tables: dict[str, Table]) -> None:
    """Else an int32 that becomes a sint32 is read as another number, without a word."""
    differing = 0
    for before, now in permutations(VALUES, 2):
        [found] = table_differences(tables[before], tables[now])
        if found.rows is Effect.REBUILD:
            continue
        same = {
            codec: all(reads_the_same(tables[before], tables[now], codec, value) for value in VALUES[before])
            for codec in ("PROTOBUF_PLAIN", "JSON")
        }
        assert ("of others" in found.text) is not all(same.values()), (before, now, found.text)
        assert ("in Protobuf" in found.text) is not same["PROTOBUF_PLAIN"], (before, now, found.text)
        differing += not all(same.values())
    assert differing > 30
