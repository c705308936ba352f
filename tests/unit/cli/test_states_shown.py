"""The table that `tablegate job list` prints: nothing of it is cut, however narrow the terminal is."""

import io

import pytest
from rich.console import Console

from tablegate.gateway.cli import show_jobs
from tablegate.jobs import Mode
from tablegate.jobs.running.operations import TableState

NAME = "order_totals_by_customer_and_month"
STATE = TableState(
    name=NAME,
    generation=12,
    mode=Mode.REALTIME,
    partition_count=8,
    sources=("shop.orders.v1", "shop.customers.v1"),
    is_running=True,
    rebuilding=13,
    records_behind=1_234_567,
)


def printed(columns: int) -> str:
    console = Console(file=io.StringIO(), width=columns, force_terminal=True, color_system=None, highlight=False)
    console.print(show_jobs.states([STATE]))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 100, 200])
def test_no_character_of_a_table_is_cut(columns: int) -> None:
    text = printed(columns)
    assert all(len(line) <= columns for line in text.splitlines())
    letters = sorted("".join(text.split()))
    assert letters == sorted("".join(printed(1_000).split())), "the same characters, on more lines"


def test_numbers_are_whole_where_names_can_fold() -> None:
    text = printed(80)
    assert "1,234,567" in text
    assert " 12 " in text
