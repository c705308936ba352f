"""Rows as a table, as `tablegate get` prints them: on a terminal, and into a pipe."""

from typing import Any

import pytest
from rich.console import Console

from tablegate.gateway.cli import show
from tablegate.gateway.cli.served import directory_of
from tablegate.v1.cluster_pb2 import GatewayRecord
from tablegate.v1.status_pb2 import GetStatusResponse
from tests.kit.table.filled import orders

LONG = "a-key-that-is-longer-than-a-column-of-a-narrow-terminal-could-ever-show-without-folding-or-cutting-it"


def row(**columns: Any) -> Any:
    return orders().row_class(id=1, **columns)


def test_a_pipe_gets_each_row_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    show.rows([row(nickname={"value": LONG}, tags=["b", "c"])], {"id": None, "nickname": None, "tags": None})
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["id", "tags", "nickname"],
        ["1", "b,", "c", LONG],
    ]


def test_a_narrow_terminal_cuts_nothing_off() -> None:
    table = show.empty_table(orders().row, {"id": None, "nickname": None})
    table.add_row("1", LONG)
    console = Console(width=40)
    with console.capture() as captured:
        console.print(table)
    assert LONG in "".join(line.split()[-1] for line in captured.get().splitlines()[1:])


def test_text_gives_a_terminal_no_commands(capsys: pytest.CaptureFixture[str]) -> None:
    show.rows([row(nickname={"value": "\x1b[2Jx\x9bü\x07\u00a0y"})], {"nickname": None})
    assert capsys.readouterr().out.splitlines()[1].rstrip() == "\ufffd[2Jx\ufffdü\ufffd\u00a0y"


def test_addresses_with_brackets_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    status = GetStatusResponse(kafka_reachable=True)
    for number in (1, 2):
        record = GatewayRecord(gateway_id=f"[fe80::{number}]:7070", endpoint=f"[fe80::{number}]:7070")
        status.gateways.add(record=record, alive=True)
    show.status(status, directory_of(status))
    assert "[fe80::1]:7070  [fe80::1]:7070" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["[paid]", "[/paid]", "[bold]x[/bold]", "a [link=x] b"])
def test_text_in_brackets_is_shown_as_it_is(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    show.rows([row(nickname={"value": text})], {"nickname": None})
    assert text in capsys.readouterr().out
