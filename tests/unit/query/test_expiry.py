"""A table with retention: no query shows a row whose time has come, be it swept or not."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablegate.gateway.query.limits import QueryLimits
from tablegate.gateway.query.serving import TableAccess
from tablegate.gateway.stores.base import StoreWriter
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tablegate.gateway.stores.notifier import Notifier
from tablegate.v1.query_pb2 import ORDER_DESCENDING
from tests.kit.call.asker import Asker
from tests.kit.seeds import examples
from tests.kit.store.changes import change, position
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import ACTIONS, SIGNER, FilledTable, catalogue_of, ratings_table

TURNS = Path(__file__).parent / "contracts" / "turns.proto"
NOW_MS = 1_790_000_000_000
NOW_US = NOW_MS * 1_000
DAY_US = 86_400 * 1_000_000
LIFE_US = 5_000_000 + DAY_US  # of an action count: from the start of its window


class Windows:
    """A table of windows in a store, at a moment that a test moves, and who asks it."""

    def __init__(self, contract: Path, service: str, store: StoreWriter | None = None) -> None:
        self.now_ms = NOW_MS
        self.store = store or MemoryStore()
        self.catalogue = catalogue_of(contract)
        [self.table] = self.catalogue.tables.values()
        self.filled = FilledTable(self.store, self.table, 2)
        self.filled.publish()
        self.asker = Asker(self.catalogue, self.store, service, lambda: self.now_ms)

    def row(self, start_us: int, **columns: Any) -> Any:
        row: Any = self.table.row_class(**columns)
        assert self.table.window is not None
        getattr(row, self.table.key[self.table.window.start_index].name).FromMicroseconds(start_us)
        return row

    def expire(self, rows: Iterable[Any]) -> None:
        for row in rows:
            key = self.filled.key_of(row)
            partition = self.table.partition_of(key, self.filled.partition_count)
            assert self.store.expire(self.filled.store_id, partition, [key], time_ms=self.now_ms) == 1

    def walk(self, method: str, rows_name: str, **fields: Any) -> list[list[Any]]:
        """Return the pages of a whole walk."""
        pages, token = [], ""
        while True:
            answer = self.asker.ask(method, page_token=token, **fields)
            pages.append(list(getattr(answer, rows_name)))
            token = answer.next_page_token
            if not token:
                return pages


@pytest.fixture(params=["memory", "lmdb"])
def actions(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    store = MemoryStore() if request.param == "memory" else LmdbStore(tmp_path / "store")
    yield Windows(ACTIONS, "/examples.actions.v1.ActionCountsService", store)
    store.close()


def count_of(actions: Windows, browser: str, start_us: int) -> Any:
    return actions.row(start_us, browser=browser, action_count=1)


def starts(rows: Iterable[Any]) -> list[int]:
    return [row.window_start.ToMicroseconds() for row in rows]


def test_get_of_an_expired_row_is_a_get_of_none(actions: Windows) -> None:
    actions.filled.put([count_of(actions, "firefox", NOW_US - LIFE_US + 1_000)])
    request = actions.asker.request("GetActionCount", browser="firefox")
    request.window_start.FromMicroseconds(NOW_US - LIFE_US + 1_000)
    assert actions.asker.ask("GetActionCount", request).HasField("action_count")
    actions.now_ms += 1
    answer = actions.asker.ask("GetActionCount", request)
    assert not answer.HasField("action_count")
    assert answer.read_info.consistency_token
    actions.now_ms -= 1
    assert actions.asker.ask("GetActionCount", request).HasField("action_count")


@pytest.mark.parametrize("order", [0, ORDER_DESCENDING])
def test_pages_stay_full(actions: Windows, order: int) -> None:
    """Two thirds of the windows are expired and not swept."""
    first_us = NOW_US - LIFE_US - 200 * 2_000_000
    rows = [count_of(actions, browser, first_us + step * 2_000_000) for step in range(300) for browser in ("a", "b")]
    actions.filled.put(rows)
    pages = actions.walk("ListActionCounts", "action_counts", browser="a", page_size=33, order=order)
    assert [len(page) for page in pages] == [33, 33, 33]
    kept = [first_us + step * 2_000_000 for step in range(201, 300)]
    assert [start for page in pages for start in starts(page)] == (kept[::-1] if order else kept)


@pytest.mark.parametrize("page_size", [1, 2, 3, 7])
@pytest.mark.parametrize("order", [0, ORDER_DESCENDING])
def test_the_first_moment_that_is_kept_is_met(actions: Windows, page_size: int, order: int) -> None:
    kept = [NOW_US - LIFE_US + at for at in range(1, 6)]
    actions.filled.put(count_of(actions, "a", start) for start in [*range(kept[0] - 30, kept[0]), *kept])
    pages = actions.walk("ListActionCounts", "action_counts", browser="a", page_size=page_size, order=order)
    assert [start for page in pages for start in starts(page)] == (kept[::-1] if order else kept)


def test_bounds_within_what_is_expired_find_nothing(actions: Windows) -> None:
    actions.filled.put(count_of(actions, "a", NOW_US - LIFE_US - step * 1_000_000) for step in range(-5, 20))
    request = actions.asker.request("ListActionCounts", browser="a", page_size=3)
    request.window_start_before.FromMicroseconds(NOW_US - LIFE_US)
    answer = actions.asker.ask("ListActionCounts", request)
    assert (len(answer.action_counts), answer.next_page_token) == (0, "")
    request.window_start_from.FromMicroseconds(NOW_US - LIFE_US - 9_000_000)
    request.window_start_before.FromMicroseconds(NOW_US - LIFE_US + 2_000_001)
    answer = actions.asker.ask("ListActionCounts", request)
    assert starts(answer.action_counts) == [NOW_US - LIFE_US + 1_000_000, NOW_US - LIFE_US + 2_000_000]


def test_a_page_token_is_good_though_its_row_expires(actions: Windows) -> None:
    actions.filled.put(count_of(actions, "a", NOW_US - LIFE_US + step * 1_000_000) for step in range(1, 10))
    first = actions.asker.ask("ListActionCounts", browser="a", page_size=2)
    actions.now_ms += 4_000
    second = actions.asker.ask("ListActionCounts", browser="a", page_size=2, page_token=first.next_page_token)
    assert starts(second.action_counts) == [NOW_US - LIFE_US + 5_000_000, NOW_US - LIFE_US + 6_000_000]


def test_scan_gives_what_is_not_expired(actions: Windows) -> None:
    offsets = range(-1_500, 1_500, 2)
    browsers = [f"browser-{number}" for number in range(3)]
    actions.filled.put(count_of(actions, browser, NOW_US - LIFE_US + at) for at in offsets for browser in browsers)
    messages = actions.asker.stream("ScanActionCounts")
    rows = [row for message in messages for row in message.action_counts]
    assert len(rows) == 3 * len([at for at in offsets if at > 0])
    assert min(starts(rows)) > NOW_US - LIFE_US


def test_one_answer_is_of_one_moment(actions: Windows) -> None:
    """A clock that goes on during a read does not take from its page what it has counted."""
    actions.filled.put(count_of(actions, "a", NOW_US - LIFE_US + step * 1_000) for step in range(1, 100))
    ticks = iter(range(10**6))
    asker = Asker(
        actions.catalogue,
        actions.store,
        "/examples.actions.v1.ActionCountsService",
        lambda: NOW_MS + next(ticks),
    )
    answer = asker.ask("ListActionCounts", browser="a", page_size=100)
    assert len(answer.action_counts) == 99
    assert len(starts(asker.ask("ListActionCounts", browser="a").action_counts)) == 50


def test_a_table_without_retention_reads_the_store_itself() -> None:
    store = MemoryStore()
    plain = ratings_table(store).table
    assert TableAccess(plain, store, SIGNER, Notifier(), lambda: 0).store is store
    [windowed] = catalogue_of(ACTIONS).tables.values()
    assert TableAccess(windowed, store, SIGNER, Notifier(), lambda: 0).store is not store


GATES = ["", "a", "a\x00", "b", "é"]
turn_rows = st.lists(
    st.tuples(st.sampled_from(GATES), st.integers(-25, 15), st.sampled_from(["", "x", "\x00y", "long" * 20])),
    unique=True,
    max_size=40,
)


@pytest.mark.tools
@examples(150)
@given(
    drawn=turn_rows,
    swept=st.sets(st.integers(0, 39)),
    page_size=st.integers(1, 9),
    descending=st.booleans(),
    gate_from=st.none() | st.sampled_from(GATES),
)
def test_every_read_shows_what_is_not_expired(
    drawn: list[tuple[str, int, str]], swept: set[int], page_size: int, descending: bool, gate_from: str | None
) -> None:
    turns = Windows(TURNS, "/turns.v1.TurnsService")
    rows = [turns.row(NOW_US + at, gate=gate, code=code, count=len(code) + at % 3) for gate, at, code in drawn]
    turns.filled.put(rows)
    expired = [row for row, (_, at, _) in zip(rows, drawn, strict=True) if at + 10 <= 0]
    kept = sorted((row for row in rows if row not in expired), key=turns.filled.key_of)
    turns.expire(row for place, row in enumerate(expired) if place in swept)

    fields: dict[str, Any] = {"page_size": page_size, "order": ORDER_DESCENDING if descending else 0}
    wanted = kept
    if gate_from is not None:
        fields["gate_from"] = gate_from
        wanted = [row for row in kept if row.gate.encode() >= gate_from.encode()]
    pages = turns.walk("ListTurns", "turns", **fields)
    assert [row for page in pages for row in page] == (wanted[::-1] if descending else wanted)
    assert all(len(page) == page_size for page in pages[:-1])
    assert pages[-1] or not wanted

    fields.pop("gate_from", None)
    by_count = [row for page in turns.walk("ListTurnsByCount", "turns", count_from=1, **fields) for row in page]
    wanted = sorted((row for row in kept if row.count >= 1), key=lambda row: (row.count, turns.filled.key_of(row)))
    assert by_count == (wanted[::-1] if descending else wanted)

    scanned = [row for message in turns.asker.stream("ScanTurns") for row in message.turns]
    assert sorted(scanned, key=turns.filled.key_of) == kept

    keys = [{"gate": row.gate, "start": row.start, "code": row.code} for row in rows]
    results = turns.asker.ask("BatchGetTurns", keys=keys).results
    assert [result.found for result in results if result.HasField("found")] == [row for row in rows if row in kept]
    assert len(results) == len(rows)


def test_what_is_no_key_hides_no_rows(actions: Windows) -> None:
    """A row of a foreign writer, of which nobody knows how old it is."""
    expiry = actions.table.expiry
    assert expiry is not None
    actions.filled.put([count_of(actions, "ab", NOW_US)])
    kept = actions.filled.key_of(count_of(actions, "ab", NOW_US))
    partition = actions.table.partition_of(kept, 2)
    foreign = [kept[:1], kept[:5], kept[:1] + b"\x00" * 8, b"a" + b"\x00" * 9]
    changes = [change(90 + place, key, 1, b"") for place, key in enumerate(foreign)]
    actions.store.apply(actions.filled.store_id, partition, changes, position(99))
    for order in (0, ORDER_DESCENDING):
        answer = actions.asker.ask("ListActionCounts", browser="ab", page_size=1, order=order)
        assert starts(answer.action_counts) == [NOW_US]
    by_row = QueryLimits(scan_first_read_rows=1)
    asker = Asker(actions.catalogue, actions.store, actions.asker.service, lambda: actions.now_ms, by_row)
    scanned = [row for message in asker.stream("ScanActionCounts") for row in message.action_counts]
    assert [row.browser for row in scanned if row.browser] == ["ab"]
