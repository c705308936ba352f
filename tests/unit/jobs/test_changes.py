"""What a changed declaration means for the rows that a table has."""

from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.functions import udf
from pyspark.sql.types import DoubleType

from tablegate.jobs import Json, Latest, Mode, Source, Table, Window
from tablegate.jobs.planning.changes import Change, ColumnChange, DeclarationChange, aggregates_in, declaration_change
from tablegate.jobs.planning.logic import logic_of, normalized

ORDERS = Source("orders", Json("customer STRING, amount DOUBLE, note STRING"), where="amount > 0")
TABLE = Table(
    name="totals",
    contract="orders.proto",
    source=ORDERS,
    key={"customer": "customer"},
    columns={"order_count": "count(*)", "amount": "sum(amount)"},
    mode=Mode.MICROBATCH,
)

JOINED = {"orders": ORDERS, "names": Latest(Source("names", Json("name STRING")))}


def changed(**change: Any) -> DeclarationChange:
    return declaration_change(replace(TABLE, **change), logic_of(TABLE), generation=3)


def column(change: DeclarationChange, name: str) -> ColumnChange:
    return next(one for one in change.columns if one.name == name)


def test_same_declaration_has_no_change() -> None:
    change = changed(mode=Mode.REALTIME)
    assert change.is_unchanged
    assert [(one.name, one.is_key, one.change, one.is_kept) for one in change.columns] == [
        ("customer", True, Change.UNCHANGED, True),
        ("order_count", False, Change.UNCHANGED, True),
        ("amount", False, Change.UNCHANGED, True),
    ]


def test_another_time_to_expire_keeps_the_state() -> None:
    before = replace(TABLE, expires_after_s=60)
    after = replace(TABLE, expires_after_s=3_600)
    later = declaration_change(after, logic_of(before), generation=1)
    assert not later.is_unchanged
    assert later.why_not == ""
    for one, other in ((TABLE, before), (before, TABLE)):
        assert "expires_after_s has changed" in declaration_change(one, logic_of(other), generation=1).why_not


@pytest.mark.parametrize(
    ("expression", "change", "why_not"),
    [
        (" sum( amount )", Change.UNCHANGED, ""),
        ("SUM(AMOUNT) / count(*)", Change.EXPRESSION_CHANGED, ""),
        ("coalesce(SUM(amount), 0) + length('avg(amount)')", Change.EXPRESSION_CHANGED, ""),
        (
            "sum(amount * 100)",
            Change.EXPRESSION_CHANGED,
            "the state has no sum(amount * 100), as no column was made of it",
        ),
        (
            "sum(amount) FILTER (WHERE note = ')')",
            Change.EXPRESSION_CHANGED,
            "the state has no sum(amount)FILTER(WHERE note = ')'), as no column was made of it",
        ),
        (
            "histogram_numeric(amount, 5)",
            Change.EXPRESSION_CHANGED,
            "it has an aggregate that this command does not know",
        ),
    ],
)
def test_column_is_kept_where_the_state_has_it(expression: str, change: Change, why_not: str) -> None:
    found = column(changed(columns={**TABLE.columns, "amount": expression}), "amount")
    assert (found.change, found.why_not, found.is_kept) == (change, why_not, not why_not)


def test_columns_come_and_go() -> None:
    change = changed(columns={"amount": "sum(amount)", "most": "max(amount)", "mean": "sum(amount) / count(1)"})
    assert {one.name: (one.change, one.is_kept) for one in change.columns} == {
        "customer": (Change.UNCHANGED, True),
        "amount": (Change.UNCHANGED, True),
        "most": (Change.ADDED, False),
        "mean": (Change.ADDED, True),
        "order_count": (Change.REMOVED, False),
    }
    assert change.parts == ()
    assert not change.is_unchanged


@pytest.mark.parametrize(
    ("change", "part", "why_not"),
    [
        ({"having": "count(*) > 1"}, "having", ""),
        ({"columns": {"amount": "sum(amount)", "order_count": "count(*)"}}, "the order of the columns", ""),
        (
            {"source": replace(ORDERS, where=None)},
            'source "orders" where',
            'source "orders" where has changed, so the state was computed otherwise',
        ),
        (
            {"source": replace(ORDERS, value=Json("customer STRING, amount BIGINT, note STRING"))},
            'source "orders" field "amount"',
            'source "orders" field "amount" has changed, so the state was computed otherwise',
        ),
        (
            {"columns": {**TABLE.columns, "amount": "sum(amount + length(note))"}},
            'source "orders" field "note"',
            "",
        ),
    ],
)
def test_other_parts_are_told(change: dict[str, Any], part: str, why_not: str) -> None:
    found = changed(**change)
    assert [one.part for one in found.parts] == [part]
    assert found.why_not == why_not
    assert column(found, "order_count").is_kept == (not why_not)


def test_functions_may_come_and_not_go() -> None:
    def doubled(amount: float) -> float:
        return amount * 2

    def tripled(amount: float) -> float:
        return amount * 3

    two, three = (udf(one, DoubleType(), useArrow=False) for one in (doubled, tripled))
    one = replace(TABLE, functions={"f": two})
    both = declaration_change(replace(one, functions={"f": two, "g": three}), logic_of(one), 1)
    assert (both.why_not, [part.part for part in both.parts]) == ("", ['the code of function "g"'])
    assert declaration_change(replace(one, functions={"f": three}), logic_of(one), 1).why_not == (
        'the code of function "f" has changed, so the state was computed otherwise'
    )
    assert declaration_change(TABLE, logic_of(one), 1).why_not == (
        'the state was computed with function "f", which is gone; leave it in functions='
    )


def test_changed_key_keeps_nothing() -> None:
    found = changed(key={"customer": "lower(customer)"})
    assert found.why_not == 'key column "customer" has changed, so the state was computed otherwise'
    assert not any(one.is_kept for one in found.columns)


@pytest.mark.parametrize(
    ("change", "why_not"),
    [
        (
            {"window": Window(size_s=60), "key": {"start": "window.start"}},
            "the state lacks the windows that have ended",
        ),
        (
            {"source": None, "sides": JOINED, "columns": {"order_count": "count(orders)"}},
            "its state has records of its sides",
        ),
    ],
)
def test_table_that_cannot_begin_from_the_state(change: dict[str, Any], why_not: str) -> None:
    table = replace(TABLE, **change)
    assert declaration_change(table, logic_of(table), 1).why_not.startswith(why_not)


def test_aggregates_are_found_outermost() -> None:
    expression = normalized("max_by(struct(a, sum(b)), min(c)) + count (DISTINCT d) || 'sum(e)' + checksum(f)")
    assert aggregates_in(expression) == ["max_by(struct(a,sum(b)),min(c))", "count(DISTINCT d)"]
