"""What tools are made of: names within MCP's rules, schemas that stand alone, and that all answers pass."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from jsonschema import Draft202012Validator

from tablegate.gateway.cli.gateway import Gateway
from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.http.rest.openapi_schemas import Comments
from tests.kit.table.contracts import bind_visits
from tests.kit.table.filled import ORDERS, RATINGS, catalogue_of

pytestmark = pytest.mark.tools  # the SDK takes a second to import, in each process

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def _mcp() -> Any:
    """Return the module under test. The SDK takes a second to import, in each process that collects tests."""
    from tablegate.gateway.cli import mcp_server

    return mcp_server


def _tools(catalogue: Catalogue) -> dict[str, Any]:
    with Gateway("127.0.0.1:1") as gateway:  # which is not asked
        tools = _mcp().QueryTools(gateway, catalogue, rows_max=10)
    return {name: tool.listed for name, tool in tools._tools.items()}


def test_a_tool_is_named_by_service_and_method() -> None:
    assert _mcp().tool_names(["/a.v1.S/Get"]) == {"/a.v1.S/Get": "S_Get"}
    assert _mcp().tool_names(["/S/Get"]) == {"/S/Get": "S_Get"}


def test_services_of_one_name_have_their_packages() -> None:
    names = _mcp().tool_names(["/a.v1.S/Get", "/b.v1.S/Get", "/a.v1.T/Get"])
    assert list(names.values()) == ["a_v1_S_Get", "b_v1_S_Get", "T_Get"]


def test_names_that_collide_in_every_way_differ() -> None:
    long = "L" * 70
    paths = ["/a.b.S/Get", "/a_b.S/Get", "/S_T/Get", "/x.S/T_Get", f"/p.{long}/Get", f"/q.{long}/Get", f"/p.{long}/Got"]
    names = _mcp().tool_names(paths)
    assert len(set(names.values())) == len(paths)
    assert all(NAME.fullmatch(name) for name in names.values()), names


def test_a_name_stays_in_another_order_of_contracts() -> None:
    paths = ["/a.b.S/Get", "/a_b.S/Get", "/c.S/Get", f"/p.{'L' * 70}/Get"]
    assert _mcp().tool_names(paths) == _mcp().tool_names(reversed(paths))


def test_a_subscribe_is_no_tool() -> None:
    assert [name for name in _tools(catalogue_of()) if "Subscribe" in name] == []
    assert len(_tools(catalogue_of())) == len(catalogue_of().queries) - 1


def test_words_come_from_the_comments() -> None:
    tool = _tools(catalogue_of())["RatingsService_GetRating"]
    assert tool.description.startswith("One movie.\n\nGet: the row of one key of table `ratings`")
    assert tool.input_schema["properties"]["movieId"]["description"] == "Movie."
    assert tool.output_schema["$defs"]["Rating"]["properties"]["ratingCount"]["description"] == "Number of ratings."


def test_a_contract_without_comments_says_what_a_query_is(tmp_path: Path) -> None:
    [get] = [tool for name, tool in _tools(bind_visits(tmp_path)).items() if name.endswith("GetVisit")]
    assert get.description == "Get: the row of one key of table `visits`; an empty answer where there is none."
    assert get.input_schema["required"] == ["shopName", "startTime"]


@pytest.mark.parametrize("contract", [RATINGS, ORDERS])
def test_schemas_are_valid_and_stand_alone(contract: Path) -> None:
    for tool in _tools(catalogue_of(contract)).values():
        assert tool.annotations.read_only_hint
        for schema in (tool.input_schema, tool.output_schema):
            assert schema["type"] == "object"
            Draft202012Validator.check_schema(schema)
            text = json.dumps(schema)
            assert '"type": [' not in text  # which not all models are given
            assert "#/components" not in text
            for name in re.findall(r'"#/\$defs/([^"]+)"', text):
                assert name in schema["$defs"]


def test_a_message_in_itself_refers_to_the_whole() -> None:
    file = FileDescriptorProto(name="tree.proto", package="trees", syntax="proto3")
    tree = file.message_type.add(name="Tree")
    for number, name in enumerate(("left", "right"), 1):
        tree.field.add(name=name, number=number, type=11, label=1, type_name=".trees.Tree")
    pool = DescriptorPool()
    pool.Add(file)
    schema = _mcp().schema_of(pool.FindMessageTypeByName("trees.Tree"), Comments(FileDescriptorSet(file=[file])))
    assert schema == {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}


# What a schema of requests would refuse: zero is left out, numbers that are none are text, and enums grow.
ODD: dict[str, Any] = {
    "items": [{"price": {"units": "9"}, "sentTo": {"street": "s"}, "locker": 0}],
    "byLine": {"-7": {"sku": "c", "pieces": "9007199254740993"}},
    "cash": "NaN",
    "points": "5",
    "took": "-86399.999999s",
    "extra": {"a": [1, None, 0.5]},
    "anything": {"@type": "type.googleapis.com/google.protobuf.Duration", "value": "1s"},
    "deltas": ["-1"],
    "weights": ["Infinity", 1.5],
    "history": ["STATUS_PAID", 7],
    "times": ["2026-01-01T00:00:00Z"],
    "counts": {"true": 4},
    "blobs": ["AA=="],
    "maybes": [0.0, "-Infinity"],
    "anyValue": None,
    "small": [0.5],
    "fixed": [2**32 - 1],
}


def test_every_answer_passes_its_schema() -> None:
    catalogue = catalogue_of(ORDERS)
    schema = _tools(catalogue)["OrdersService_GetOrder"].output_schema
    row: Any = json_format.ParseDict(ODD, catalogue.tables["orders"].row_class(), descriptor_pool=catalogue.pool)
    answer = {"row": json_format.MessageToDict(row, descriptor_pool=catalogue.pool)}
    assert answer["row"]["history"] == ["STATUS_PAID", 7]
    Draft202012Validator(schema).validate(answer)
    wrong = {"row": {"items": "none"}}
    assert not Draft202012Validator(schema).is_valid(wrong)
