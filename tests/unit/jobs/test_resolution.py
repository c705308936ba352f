"""Our check of Avro's resolution, by the pairs that Spark is held to as well."""

import json

import pytest
from tablegate.jobs.planning.schemas import record_names, why_unreadable

from tests.kit.job.avro_pairs import PAIRS, Pair, field, one, record


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_reason(pair: Pair) -> None:
    assert why_unreadable(json.dumps(pair.writer), json.dumps(pair.reader)) == pair.why


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_schema_reads_itself(pair: Pair) -> None:
    for schema in (pair.writer, pair.reader):
        assert why_unreadable(json.dumps(schema), json.dumps(schema)) is None


def test_recursive_record_ends() -> None:
    tree = record(field("value", "int"), field("left", ["null", "Tree"]), field("right", ["null", "Tree"]), name="Tree")
    other = json.loads(json.dumps(tree).replace('"int"', '"string"'))
    assert why_unreadable(json.dumps(tree), json.dumps(tree)) is None
    assert why_unreadable(json.dumps(other), json.dumps(tree)) == 'field "value" is string, not int'


def test_branch_that_failed_is_compared_anew() -> None:
    inner = one("string", name="Inner")
    writer = record(field("a", ["null", inner]), field("b", "Inner"))
    reader = record(field("a", ["null", one("int", name="Inner"), "string"], default=None), field("b", "Inner"))
    assert why_unreadable(json.dumps(writer), json.dumps(reader)) == 'field "a" is record, not null or record or string'


def test_top_level_that_is_no_record() -> None:
    assert why_unreadable('"string"', json.dumps(one("int"))) == "it is string, not record"


@pytest.mark.parametrize("text", ["{", '["Unheard"]', '{"type": "unheard"}'])
def test_what_is_no_schema(text: str) -> None:
    assert (why_unreadable(text, json.dumps(one("int"))) or "").startswith("it is not an Avro schema (")
    assert (why_unreadable(json.dumps(one("int")), text) or "").startswith(
        "the declared schema is not an Avro schema ("
    )


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        (record(name="R"), ("R",)),
        (record(name="R", namespace="x.y"), ("x.y.R",)),
        (record(name="z.R", namespace="x.y", aliases=["Old", "q.Older"]), ("z.R", "z.Old", "q.Older")),
        (record(name="R", namespace=""), ("R",)),
        ("string", ()),
        (["null", record(name="R")], ()),
        ({"type": "enum", "name": "E", "symbols": []}, ()),
    ],
)
def test_names_of_a_record(schema: object, names: tuple[str, ...]) -> None:
    assert record_names(json.dumps(schema)) == names
