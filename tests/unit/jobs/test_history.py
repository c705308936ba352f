"""Histories of sources, as far as a declaration knows them."""

from typing import Any

import pytest

from tablegate.jobs import DeclarationError, FrameTable, Global, History, Json, Latest, Mode, Source, Table, Text
from tablegate.jobs.planning.logic import kafka_fields_used, logic_changes, logic_of
from tablegate.jobs.table import Window

VALUE = Json("customer STRING, amount DOUBLE")


def past(spark: Any) -> Any:
    return spark.read.parquet("/data/orders")


def changed(spark: Any) -> Any:
    return spark.read.parquet("/data/orders").where("amount > 0")


def source(**more: Any) -> Source:
    return Source("orders", VALUE, **{"history": History(past), **more})


def table(**more: Any) -> Table:
    given = {"source": source(), "columns": {"amount": "sum(amount)"}, **more}
    return Table(name="totals", contract="orders.proto", key={"customer": "customer"}, **given)


def test_where_the_topic_goes_on() -> None:
    assert History(past, topic_from="2026-01-01T01:00:00+01:00").time_ms == 1_767_225_600_000
    assert (History(past).time_ms, History(past).offsets) == (None, None)
    assert History(past, topic_from={0: 5, 1: 7}).offsets == {0: 5, 1: 7}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: History("orders"), "give a function that gets the Spark session"),  # type: ignore[arg-type]
        (lambda: History(past, topic_from="2026-01-01"), "is no time with a zone"),
        (lambda: History(past, topic_from="yesterday"), "is no time with a zone"),
        (lambda: History(past, topic_from={}), "give an offset from 0 on for each partition"),
        (lambda: History(past, topic_from={0: -1}), "give an offset from 0 on for each partition"),
        (lambda: source(keyed=True), "no offset to make versions of; remove keyed=True"),
        (
            lambda: source(more_topics=("more",), history=History(past, topic_from={0: 1})),
            "several topics; give topic_from as a time",
        ),
        (lambda: table(atomic=True, mode=Mode.MICROBATCH), "an atomic batch is bounded"),
        (lambda: table(source=None, sides={"a": source(), "b": Source("orders", VALUE)}), "of several sides"),
        (
            lambda: table(
                source=None,
                sides={
                    "a": Latest(
                        Source("orders", Json("amount DOUBLE"), key=Text("customer"), history=History(past)),
                    )
                },
            ),
            "no order with the records",
        ),
        (
            lambda: table(
                source=None,
                mode=Mode.MICROBATCH,
                sides={"a": Source("b", VALUE), "g": Global(source(), key="customer", on="customer")},
            ),
            "no order with the records",
        ),
        (
            lambda: FrameTable(
                name="totals",
                contract="orders.proto",
                rows=lambda one, two: one.union(two),
                sources={"one": source(), "two": Source("orders", VALUE)},
            ),
            "its topic is of several sources",
        ),
    ],
)
def test_wrong_histories_are_refused(make: Any, words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        make()
    assert words in str(caught.value)


def test_a_history_is_of_the_logic() -> None:
    before = logic_of(table())
    assert not logic_changes(before, logic_of(table()))
    for other in (History(changed), History(past, topic_from={0: 5}), None):
        changes = logic_changes(before, logic_of(table(source=source(history=other))))
        assert changes.startswith('the history of source "orders" is'), changes


def test_what_of_kafka_expressions_use() -> None:
    columns = {"amount": "max_by(amount, KAFKA.offset)", "kind": "'kafka.key'"}
    assert kafka_fields_used(table(columns=columns), "") == ["offset"]
    windowed = {"key": {"customer": "customer", "start": "window.start"}, "window": Window(size_s=60)}
    own = Table(name="totals", contract="o.proto", source=source(), columns={"amount": "sum(amount)"}, **windowed)  # type: ignore[arg-type]
    assert kafka_fields_used(own, "") == ["timestamp"]
