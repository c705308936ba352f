"""A local table hides rows whose retention is over, as gateways do: once that is so by its clock and the gateway's."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tablegate.client import open_channel
from tablegate.client.local import LocalTable
from tablegate.client.local.freshness import Freshness
from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.stores.notifier import Notifier
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import ACTIONS, SIGNER, FilledTable, catalogue_of

WAIT_S = 60.0
SERVICE = "/examples.actions.v1.ActionCountsService"
KEPT_S = 5 + 86_400  # of an action count: from the start of its window
STARTS_S = [-KEPT_S + 3_600 * hours for hours in range(1, 9)]  # from now: one is over each hour


class Clocks:
    """The clocks of the machine with the local table; a test moves them."""

    def __init__(self) -> None:
        self.wall_s = self.passed_s = 0.0

    def freshness(self) -> Freshness:
        """Return what reads them."""
        return Freshness(lambda: time.time() + self.wall_s, lambda: time.monotonic() + self.passed_s)


def called(channel: Any, name: str, **fields: Any) -> Any:
    """Return the answer of a contract's method; for a stream the list of its messages."""
    query = catalogue_of(ACTIONS).queries[f"{SERVICE}/{name}"]
    kind = channel.unary_stream if name.startswith("Scan") else channel.unary_unary
    ask = kind(
        query.path,
        request_serializer=query.request_class.SerializeToString,
        response_deserializer=query.response_class.FromString,
    )
    answer = ask(query.request_class(**fields))
    return list(answer) if name.startswith("Scan") else answer


@pytest.fixture
def rows() -> list[Any]:
    """Windows of one browser, by their start."""
    row_class, now_us = catalogue_of(ACTIONS).tables["action_counts"].row_class, time.time_ns() // 1_000
    windows: list[Any] = [row_class(browser="firefox", action_count=number) for number in range(len(STARTS_S))]
    for row, start_s in zip(windows, STARTS_S, strict=True):
        row.window_start.FromMicroseconds(now_us + start_s * 1_000_000)
    return windows


@pytest.fixture
def address(rows: list[Any]) -> Iterator[str]:
    store = MemoryStore()
    filled = FilledTable(store, catalogue_of(ACTIONS).tables["action_counts"], 1, incarnation_id=1)
    filled.publish()
    filled.put(rows)
    methods = query_methods(catalogue_of(ACTIONS), store, SIGNER, Notifier())
    with ServerThread(lambda: HttpServer(methods, "127.0.0.1:0")) as server:
        yield f"127.0.0.1:{server.port}"


@contextmanager
def local(address: str, directory: Path, clocks: Clocks) -> Iterator[LocalTable[Any]]:
    query = catalogue_of(ACTIONS).queries[f"{SERVICE}/SubscribeActionCounts"]
    with open_channel(address) as channel:
        subscribe = channel.unary_stream(
            query.path,
            request_serializer=query.request_class.SerializeToString,
            response_deserializer=query.response_class.FromString,
        )
        row = catalogue_of(ACTIONS).tables["action_counts"].row_class
        asked = query.request_class(browser="firefox")
        with LocalTable(subscribe, asked, directory, row=row, freshness=clocks.freshness()) as table:
            yield table


def assert_has(table: LocalTable[Any], rows: list[Any], first: int) -> None:
    """Assert that all reads give the rows from `first` on, and those alone."""
    left, keys = rows[first:], [table.key_of(row) for row in rows]
    shown = [row if row in left else None for row in rows]
    assert [table.get(key) for key in keys] == table.batch_get(keys) == shown
    assert table.range() == list(table.scan()) == left
    assert table.range(limit=2) == left[:2]
    assert table.range(descending=True, limit=3) == left[::-1][:3]
    assert table.count() == len(left)
    for row, is_shown in zip(rows, shown, strict=True):
        asked = {"browser": row.browser, "window_start": row.window_start}
        assert called(table.channel, "GetActionCount", **asked).HasField("action_count") == (is_shown is not None)
    assert list(called(table.channel, "ListActionCounts", browser="firefox").action_counts) == left
    scanned = [row for message in called(table.channel, "ScanActionCounts") for row in message.action_counts]
    assert scanned == left


def test_rows_go_when_their_time_has_come(address: str, rows: list[Any], tmp_path: Path) -> None:
    clocks = Clocks()
    with local(address, tmp_path, clocks) as table:
        table.wait_current(WAIT_S)
        assert_has(table, rows, 0)
        for hours in (1, 4, 8):
            clocks.wall_s = clocks.passed_s = hours * 3_600 + 60
            assert_has(table, rows, hours)


def test_a_gateway_whose_clock_is_ahead_takes_no_row_away(address: str, rows: list[Any], tmp_path: Path) -> None:
    clocks = Clocks()
    clocks.wall_s = -3_600
    with local(address, tmp_path, clocks) as table:
        table.wait_current(WAIT_S)
        clocks.passed_s = 30 * 86_400
        assert_has(table, rows, 0)


def test_a_clock_that_is_ahead_takes_no_row_away(address: str, rows: list[Any], tmp_path: Path) -> None:
    clocks = Clocks()
    clocks.wall_s = 30 * 86_400
    with local(address, tmp_path, clocks) as table:
        table.wait_current(WAIT_S)
        assert_has(table, rows, 0)
    with local("127.0.0.1:1", tmp_path, clocks) as table:  # as of when it was current, there is no gateway to ask
        assert_has(table, rows, 0)
