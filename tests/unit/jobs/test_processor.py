"""Processors without Spark: declarations, trials, texts of errors."""

import inspect
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tablegate.jobs.declared import DeclarationError
from tablegate.jobs.processor import Processor, ProcessorError, Trial

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Points(Processor):
    state = "points BIGINT, seen ARRAY<STRING>"
    emits = "invoice STRING, total BIGINT"
    every_s = 1.0

    def __init__(self, factor: int = 1) -> None:
        self.factor = factor

    def on_record(self, key: Any, record: Any, state: Any) -> Iterator[dict[str, object]]:
        if record.invoice not in state.seen:
            state.seen.append(record.invoice)
            state.points += record.amount * self.factor
            yield {"invoice": record.invoice, "total": state.points}

    def on_timer(self, key: Any, state: Any, now: datetime) -> Iterator[dict[str, object]]:
        yield {"invoice": f"{key.customer} at {now.hour}", "total": state.points}


def test_a_trial_is_one_key() -> None:
    points = Trial(Points(factor=2), customer="ann")
    assert points.record(invoice="i1", amount=20) == [{"invoice": "i1", "total": 40}]
    assert points.record(invoice="i1", amount=20) == []
    assert points.record(invoice="i2", amount=1) == [{"invoice": "i2", "total": 42}]
    assert points.timer(NOON) == [{"invoice": "ann at 12", "total": 42}]
    assert (points.state.points, points.state.seen) == (42, ["i1", "i2"])


def test_state_that_is_looked_at_is_a_copy() -> None:
    points = Trial(Points(), customer="ann")
    points.record(invoice="i1", amount=20)
    points.state.seen.append("i2")
    points.state.points = 7
    assert (points.state.points, points.state.seen) == (20, ["i1"])


class Free(Processor):
    """Does what its test gives it."""

    state = "count BIGINT"
    emits = "count BIGINT"

    def __init__(self, function: Any) -> None:
        self.function = function

    def on_record(self, key: Any, record: Any, state: Any) -> Any:
        return self.function(key, record, state)


def failure_of(function: Any, **fields: object) -> str:
    with pytest.raises(ProcessorError) as caught:
        Trial(Free(function), customer="anneliese").record(**fields)
    text = str(caught.value)
    at, _, rest = text.partition(': trial of processor "Free" (key "customer"), ')
    assert at.rpartition(":")[0] == __file__
    assert "anneliese" not in text
    place, _, what = rest.partition(": ")
    assert place == 'record of topic "trial" partition 0 offset 0, on_record'
    return what.removesuffix("; correct it and start the job again")


def setter(name: str, value: object) -> Any:
    return lambda key, record, state: setattr(state, name, value)


def refused(*arguments: Any) -> Iterable[dict[str, object]]:
    raise ProcessorError("amounts are positive")


def cut_off(*arguments: Any) -> Iterator[dict[str, object]]:
    yield {"count": 1}
    raise ValueError("anneliese has a secret")


class Amounts(Free):
    reads = ("amount",)


def test_a_record_has_only_what_is_read() -> None:
    trial = Trial(Amounts(lambda key, record, state: [{"count": record.amount}]), customer="ann")
    assert trial.record(amount=1, invoice="i1") == [{"count": 1}]
    trial = Trial(Amounts(lambda key, record, state: [{"count": record.invoice}]), customer="ann")
    with pytest.raises(ProcessorError, match="no field invoice; there are kafka, amount"):
        trial.record(amount=1, invoice="i1")


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda key, record, state: {"count": 1}, "returns a mapping; yield it"),
        (lambda key, record, state: [7], "yields a int; yield dictionaries"),
        (lambda key, record, state: [{}], "emitted count is missing"),
        (lambda key, record, state: [{"count": 1, "total": 1}], "emitted total is not declared"),
        (lambda key, record, state: [{"count": 1.0}], "emitted count is a float; BIGINT needs an int"),
        (lambda key, record, state: [{"count": True}], "emitted count is a bool; BIGINT needs an int"),
        (lambda key, record, state: [{"count": 2**63}], "emitted count has more than the 64 bits of BIGINT"),
        (lambda key, record, state: record.amuont, "no field amuont; there are kafka, amount"),
        (lambda key, record, state: key.name, "no field name; there are customer"),
        (setter("total", 1), "no state column total; there are count"),
        (lambda key, record, state: setattr(record, "amount", 1), "amount cannot be set: records and keys only read"),
        (
            lambda key, record, state: [{"count": getattr(record, "count", "no")}],
            "emitted count is a str; BIGINT needs an int",
        ),
        (lambda key, record, state: 7, "raises TypeError"),
        (cut_off, "raises ValueError"),
        (refused, "amounts are positive"),
    ],
)
def test_what_a_processor_does_wrong(function: Any, what: str) -> None:
    assert failure_of(function, amount=1) == what


def test_state_that_does_not_fit() -> None:
    line = inspect.getsourcelines(Free.on_record)[1]
    with pytest.raises(ProcessorError) as caught:
        Trial(Free(setter("count", "7")), customer="ann").record()
    assert str(caught.value) == (
        f'{__file__}:{line}: trial of processor "Free" (key "customer") on_record: '
        "state.count is a str; BIGINT needs an int; correct it and start the job again"
    )


def test_the_line_is_that_of_the_yield() -> None:
    class Wrong(Processor):
        state = "count BIGINT"
        emits = "count BIGINT"

        def on_record(self, key: Any, record: Any, state: Any) -> Iterator[dict[str, object]]:
            yield {"count": 1}
            yield {"count": "2"}

    with pytest.raises(ProcessorError) as caught:
        Trial(Wrong(), customer="ann").record()
    lines, first = inspect.getsourcelines(Wrong.on_record)
    line = first + next(index for index, text in enumerate(lines) if '"2"' in text)
    assert str(caught.value).startswith(f"{__file__}:{line}: ")


def test_none_is_a_value_of_every_column() -> None:
    trial = Trial(
        Free(lambda key, record, state: setattr(state, "count", None) or [{"count": state.count}]), customer=1
    )
    assert trial.record() == [{"count": None}]
    assert trial.state.count is None


def nothing(self: Any, key: Any, record: Any, state: Any) -> None: ...


def tick(self: Any, key: Any, state: Any, now: datetime) -> None: ...


GOOD = {"state": "count BIGINT", "emits": "count BIGINT", "on_record": nothing}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"state": None}, "has no state; give it columns like"),
        ({"emits": None}, "has no emits; give it columns like"),
        ({"on_record": Processor.on_record}, "has no on_record; define on_record(self, key, record, state)"),
        ({"state": ""}, "state has nothing where a name belongs"),
        ({"emits": "count LONG"}, 'emits has "LONG" where a type belongs; use one of BOOLEAN, '),
        ({"emits": "__sequence BIGINT"}, 'emits has a column "__sequence", a name that Python or the job needs itself'),
        ({"state": "class BIGINT"}, 'state has a column "class", a name that Python or the job needs itself'),
        ({"reads": "amount"}, """reads 'amount' is no tuple of names; give it the fields that on_record uses"""),
        ({"reads": ("amount", 7)}, "reads ('amount', 7) is no tuple of names"),
        ({"reads": ("amount", "kafka")}, 'reads "kafka", which every record has; remove it'),
        ({"reads": ("amount", "amount")}, 'reads "amount" twice; remove one'),
        ({"on_timer": tick}, "has on_timer and no every_s; set it to the seconds between two runs"),
        ({"every_s": 1.0}, "has every_s and no on_timer; define on_timer(self, key, state, now)"),
        ({"every_s": 0, "on_timer": tick}, "every_s 0 is not a number of seconds; give 0.001 or more"),
        ({"every_s": "1", "on_timer": tick}, "every_s '1' is not a number of seconds"),
        ({"every_s": float("nan"), "on_timer": tick}, "every_s nan is not a number of seconds"),
    ],
)
def test_wrong_declarations(change: dict[str, Any], what: str) -> None:
    wrong = type("Wrong", (Processor,), {**GOOD, **change})
    with pytest.raises(DeclarationError) as caught:
        wrong()
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    assert str(caught.value).startswith(f'{__file__}:{line}: processor "Wrong" {what}')
