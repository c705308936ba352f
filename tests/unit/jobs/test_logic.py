"""What is compared of a declaration when a job goes on, and what would not compute the same again."""

from dataclasses import replace
from typing import Any

import pytest

from tablegate.jobs import Global, Join, Json, Latest, Mode, Source, Table, Window
from tablegate.jobs.errors import JobError
from tablegate.jobs.planning.logic import check_repeatable, logic_changes, logic_of, normalized

ORDERS = Source("orders", Json("customer STRING, amount DOUBLE, note STRING"), where="amount > 0")
TABLE = Table(
    name="totals",
    contract="orders.proto",
    source=ORDERS,
    key={"customer": "customer"},
    columns={"order_count": "count(*)", "amount": "sum(amount)"},
    having="count(*) > 0",
    mode=Mode.MICROBATCH,
)
JOINED = replace(
    TABLE,
    source=None,
    sides={"orders": replace(ORDERS, where=None), "names": Latest(Source("names", Json("name STRING, age INT")))},
    columns={"order_count": "count(orders)", "name": "names.name"},
)


def changes(table: Table, **change: Any) -> str:
    return logic_changes(logic_of(table), logic_of(replace(table, **change)))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"columns": {"order_count": "count(*)", "amount": "sum(amount * 100)"}},
            'column "amount" is sum(amount * 100), it was sum(amount)',
        ),
        (
            {"columns": {**TABLE.columns, "most": "max(amount)"}},
            'column "most" is new, max(amount)',
        ),
        ({"columns": {"order_count": "count(*)"}}, 'column "amount" is gone, it was sum(amount)'),
        (
            {"columns": {"amount": "sum(amount)", "order_count": "count(*)"}},
            "the order of the columns is customer, amount, order_count, it was customer, order_count, amount",
        ),
        ({"key": {"customer": "lower(customer)"}}, 'key column "customer" is lower(customer), it was customer'),
        ({"having": None}, "having is gone, it was count(*)> 0"),
        ({"source": replace(ORDERS, where="amount > 1")}, 'source "orders" where is amount > 1, it was amount > 0'),
        (
            {"source": replace(ORDERS, each="split(customer, ' ')")},
            """source "orders" each is new, split(customer,' ')""",
        ),
        (
            {"source": replace(ORDERS, more_topics=("old",))},
            'source "orders" kind is Source("orders", "old"), it was Source("orders")',
        ),
        ({"source": replace(ORDERS, keyed=True)}, 'source "orders" keyed is new, True'),
        (
            {"source": replace(ORDERS, value=Json("customer STRING, amount BIGINT, note STRING"))},
            'source "orders" field "amount" is amount BIGINT, it was amount DOUBLE',
        ),
    ],
)
def test_change_is_named(change: dict[str, Any], sentence: str) -> None:
    assert changes(TABLE, **change) == sentence


def test_changes_of_windows_and_sides() -> None:
    windowed = replace(
        TABLE, key={"customer": "customer", "start": "window.start"}, window=Window(size_s=5, hop_s=2, late_s=1)
    )
    assert changes(windowed, window=Window(size_s=5)) == (
        "window is 5 s each 5 s, late by 0 s, ahead by 3600 s, it was 5 s each 2 s, late by 1 s, ahead by 3600 s"
    )
    older = {"names": Latest(Source("names", Json("name STRING, age INT, town STRING")))}
    assert changes(JOINED, sides={**JOINED.sides, **older}) == 'side "names" field "town" is new, town STRING'
    left = {"names": replace(JOINED.sides["names"], join=Join.LEFT)}
    assert changes(JOINED, sides={**JOINED.sides, **left}) == (
        'side "names" kind is Latest("names", left), it was Latest("names", inner)'
    )


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"columns": {"order_count": " count( * )", "amount": "sum(\n  amount)"}},
        {"source": replace(ORDERS, value=Json("customer STRING, amount DOUBLE, note STRING, town STRING"))},
        {"emit_interval_s": 5.0},
        {"generation": 1, "outputs": ()},
    ],
)
def test_what_changes_no_row_is_no_change(change: dict[str, Any]) -> None:
    assert changes(TABLE, **change) == ""


def test_many_changes_are_counted() -> None:
    columns = {f"column_{number}": "count(*)" for number in range(6)}
    assert changes(TABLE, columns=columns).endswith("; and 4 more")


def test_text_keeps_its_white_space() -> None:
    assert normalized("concat( a ,  ' b  ( c' )") == "concat(a,' b  ( c')"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"columns": {"amount": "sum(amount * RAND())"}}, 'column "amount" uses RAND, which gives something else'),
        ({"columns": {"amount": "max(now ())"}}, "use kafka.timestamp, the time of the record"),
        ({"columns": {"amount": "max(current_timestamp)"}}, 'column "amount" uses current_timestamp'),
        ({"columns": {"amount": "max(unix_timestamp())"}}, 'column "amount" uses unix_timestamp'),
        ({"key": {"customer": "uuid()"}}, 'key column "customer" uses uuid'),
        ({"having": "max(amount) > rand(3)"}, "having uses rand"),
        ({"source": replace(ORDERS, where="amount > randn()")}, 'source "orders" where uses randn'),
        (
            {"source": replace(ORDERS, event_time="current_date()")},
            'source "orders" event_time uses current_date',
        ),
    ],
)
def test_what_gives_something_else_again_is_refused(change: dict[str, Any], sentence: str) -> None:
    table = replace(TABLE, **change)
    with pytest.raises(JobError) as caught:
        check_repeatable(table)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith(f'{table.declared_at}: table "totals" ')


def test_clocks_in_sides_are_refused() -> None:
    names = Source("names", Json("name STRING"))
    sides = {"orders": ORDERS, "names": Global(names, key="name", on="concat(customer, now())")}
    with pytest.raises(JobError, match='side "names" on uses now'):
        check_repeatable(replace(TABLE, source=None, sides=sides))
    sides = {"names": Latest(names, key={"customer": "uuid()"})}
    with pytest.raises(JobError, match='side "names" key "customer" uses uuid'):
        check_repeatable(replace(TABLE, source=None, sides=sides))


@pytest.mark.parametrize(
    "expression", ["max(note = 'now()')", "max(know(amount))", "max(unix_timestamp(note))", "max(orders.uuid)"]
)
def test_what_only_resembles_them_is_no_clock(expression: str) -> None:
    check_repeatable(replace(TABLE, columns={"amount": expression}))


def test_field_may_have_the_name_of_a_clock() -> None:
    source = Source("orders", Json("customer STRING, current_date DATE"))
    check_repeatable(replace(TABLE, source=source, columns={"amount": "max(current_date)"}))
