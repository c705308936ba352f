"""Sources by pattern: what is declared, what is never matched, and how the schemas of topics become one."""

import uuid
from typing import Any

import pytest
from typing_extensions import override

from tablegate.jobs.declared import DeclarationError
from tablegate.jobs.planning.patterns import matching
from tablegate.jobs.planning.schemas import WITHOUT_ID, SourceSchemas, WriterSchemas, merged_schemas
from tablegate.jobs.running.checkpoint import Identity
from tablegate.jobs.running.resuming import lost_records
from tablegate.jobs.table import (
    Global,
    History,
    Json,
    Latest,
    Mode,
    Processor,
    ProcessorOutput,
    RecordOutput,
    RowOutput,
    Source,
    Table,
    Text,
)

GOOD: dict[str, Any] = {
    "name": "order_totals",
    "contract": "orders.proto",
    "source": Source(r"orders\..*", Json("customer STRING"), pattern=True),
    "key": {"customer": "customer"},
    "columns": {"order_count": "count(*)"},
    "mode": Mode.MICROBATCH,
}


@pytest.mark.parametrize(
    ("topic", "change", "words"),
    [
        ("orders(", {}, 'source "orders(" is a pattern that is no regular expression: missing ), unterminated'),
        ("", {}, "is a pattern that no topic matches"),
        ("a.*", {"more_topics": ("b",)}, 'has more_topics; add their names to the pattern: "a.*|…"'),
        ("a.*", {"keyed": True}, "offsets of two topics have no order; remove keyed=True"),
        ("a.*", {"history": History(lambda spark: spark, topic_from={0: 1})}, "a history goes up to a place"),
    ],
)
def test_wrong_patterns_are_refused(topic: str, change: dict[str, Any], words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        Source(topic, Json("x INT"), pattern=True, **change)
    assert words in str(caught.value)


class Counts(Processor):
    state = "n INT"
    emits = "n INT"

    @override
    def on_record(self, key: Any, record: Any, state: Any) -> None:
        """Count nothing."""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"outputs": (RowOutput("orders.all", key=Text("customer"), value=Text("customer")),)},
            'output "orders.all" matches the pattern "orders\\..*" of a source, so the table would read what it writes',
        ),
        (
            {"outputs": (RecordOutput("copies", key=Text("customer"), value=Text("customer")),)},
            'output "copies" is made of the records of a pattern',
        ),
        (
            {
                "outputs": (
                    ProcessorOutput("counts", processor=Counts(), by={"c": "customer"}, key=Text("c"), value=Text("n")),
                )
            },
            'output "counts" is made of the records of a pattern',
        ),
        (
            {"source": None, "sides": {"newest": Latest(Source("a.*", Json("x INT"), key=Text("id"), pattern=True))}},
            'side "newest" has several topics',
        ),
        (
            {
                "source": None,
                "sides": {
                    "orders": Source("orders", Json("customer STRING")),
                    "all": Global(Source("a.*", Json("x INT"), pattern=True), key="x", on="customer"),
                },
            },
            'side "all" has several topics',
        ),
    ],
)
def test_table_that_cannot_have_a_pattern_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        Table(**{**GOOD, **change})
    assert words in str(caught.value)


def test_pattern_matches_whole_names_and_none_that_a_job_writes() -> None:
    names = [
        *("orders.eu", "orders.us", "my.orders.eu", "order"),
        *("__consumer_offsets", "orders.eu-g1-changelog", "orders.eu-dead-letters", "tables", "gateways"),
        *("orders.eu-changelog", "orders.eu-g0-changelog", "tables.eu"),
    ]
    assert matching(Source(r"orders\..*", Json("x INT"), pattern=True), "127.0.0.1:1", names) == [
        *("orders.eu", "orders.eu-changelog", "orders.eu-g0-changelog", "orders.us"),
    ]
    assert matching(Source(".*", Json("x INT"), pattern=True), "127.0.0.1:1", names) == [
        *("my.orders.eu", "order", "orders.eu", "orders.eu-changelog", "orders.eu-g0-changelog", "orders.us"),
        "tables.eu",
    ]
    assert matching(Source("a|b", Json("x INT"), pattern=True), "127.0.0.1:1", ["a", "ab", "b"]) == ["a", "b"]


def test_schema_that_one_topic_can_be_read_by_counts_for_all() -> None:
    first, second = uuid.uuid4().hex.upper(), uuid.uuid4().hex.upper()
    one = WriterSchemas({1: "one"}, {2: "Other"}, {3: "why"}, {"A": 1})
    other = WriterSchemas({2: "two"}, {3: "Third"}, {}, {})
    merged = merged_schemas([SourceSchemas(one, can_learn=True), SourceSchemas(other, can_learn=True)])
    assert merged == SourceSchemas(WriterSchemas({1: "one", 2: "two"}, {3: "Third"}, {}, {"A": 1}), can_learn=True)
    assert merged_schemas([SourceSchemas(), SourceSchemas()]) == SourceSchemas()
    # Each topic numbers from the same number those that it knows by their GUID alone.
    by_guid = [
        WriterSchemas({WITHOUT_ID: text}, {}, {}, {guid: WITHOUT_ID}) for text, guid in (("1", first), ("2", second))
    ]
    found = merged_schemas([SourceSchemas(writers) for writers in by_guid]).writers
    assert found is not None
    assert {found.decoded[found.guids[guid]] for guid in (first, second)} == {"1", "2"}


def test_records_of_a_matched_topic_that_is_gone_are_lost() -> None:
    identity = {"table": "t", "changelog_topic_id": "c"}
    older = Identity(
        **identity, generation=1, source_topic_ids={"a": "1", "b": "2"}, first_offsets={"a": {"0": 0}, "b": {"0": 4}}
    )
    newer = Identity(**identity, generation=2, source_topic_ids={"a": "1"}, first_offsets={"a": {"0": 0}})
    read = {"a": {0: 9}, "b": {0: 9, 1: 3}}
    assert lost_records(newer, older, read, gone=["b"]) == {"b": 8}
    assert lost_records(newer, older, read) == {}
