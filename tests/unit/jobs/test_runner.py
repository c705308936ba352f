"""How the tables of one application are started."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tablegate.jobs.errors import JobError
from tablegate.jobs.running.runner import _start

WAIT_S = 30.0


def plans(count: int) -> list[Any]:
    return [SimpleNamespace(number=number) for number in range(count)]


def test_tables_start_side_by_side() -> None:
    both = threading.Barrier(2)
    started: list[int] = []

    def start(plan: Any) -> None:
        both.wait(WAIT_S)  # else neither would come on
        started.append(plan.number)

    assert _start(plans(2), start, [], threading.Event()) == []
    assert sorted(started) == [0, 1]


def test_a_table_that_runs_is_polled_while_others_start() -> None:
    polled = threading.Event()
    plan = SimpleNamespace(table=SimpleNamespace(name="first"))
    running: Any = SimpleNamespace(plan=plan, poll=polled.set, is_done=False)

    def start(_: Any) -> None:
        assert polled.wait(WAIT_S)

    assert _start(plans(1), start, [running], threading.Event()) == []


def test_a_table_that_cannot_start_waits_for_the_others() -> None:
    started: list[int] = []
    begun, failed = threading.Event(), threading.Event()

    def start(plan: Any) -> None:
        if plan.number == 0:
            assert begun.wait(WAIT_S)
            failed.set()
            raise JobError("no such column")
        begun.set()
        assert failed.wait(WAIT_S)
        started.append(plan.number)

    with pytest.raises(JobError, match="no such column"):
        _start(plans(2), start, [], threading.Event())
    assert started == [1]  # it is among those to be closed
