"""How a row has changed, asked of the gateway's own service by who may read the row."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from tablegate.gateway.access.views import View
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.http.json_codec import JsonCodec
from tablegate.gateway.query.errors import InvalidField, PartitionUnavailable, QueryError
from tablegate.gateway.query.row_history import HISTORY_PATH, RowHistories
from tablegate.gateway.query.service import table_accesses
from tablegate.gateway.server.metadata import history_methods
from tablegate.gateway.stores.base import Phase
from tablegate.gateway.stores.notifier import Notifier
from tablegate.v1 import changelog_pb2
from tablegate.v1.status_pb2 import GetHistoryRequest, GetHistoryResponse, RowChange
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, FilledTable, LocalCall, catalogue_of, now_ms, rating, ratings_table

_PARTITION = Partition(0)
GET = "examples.ratings.v1.RatingsService/GetRating"


class _Asked:
    """A table of ratings in one partition, and its history."""

    def __init__(
        self, *, history_changes_max: int = 100, step_changes: int = 3, step_bytes: int = 1_000_000, partitions: int = 1
    ) -> None:
        self.store = MemoryStore(history_changes_max=history_changes_max)
        self.table: FilledTable = ratings_table(self.store, partitions)
        self._parts = catalogue_of(), self.store, SIGNER, Notifier()
        accesses = table_accesses(*self._parts, ends=None, router=None, now_ms=now_ms)
        codec = JsonCodec([catalogue_of().pool])
        self._histories = RowHistories(
            catalogue_of(), accesses, codec, step_changes=step_changes, step_bytes=step_bytes
        )

    def of(
        self,
        number: int,
        *,
        view: View | None = None,
        start: int = 0,
        limit: int = 0,
        method: str = GET,
        call: LocalCall | None = None,
    ) -> GetHistoryResponse:
        """Return the history of a row, read in small steps."""
        return asyncio.run(self.reading(number, view=view, start=start, limit=limit, method=method, call=call))

    async def reading(
        self,
        number: int,
        *,
        view: View | None = None,
        start: int = 0,
        limit: int = 0,
        method: str = GET,
        call: LocalCall | None = None,
    ) -> GetHistoryResponse:
        """Return it, as others are read beside it."""
        asked = catalogue_of().queries[f"/{GET}"].request_class(movie_id=number).SerializeToString()
        request = GetHistoryRequest(method=method, message=asked, start_offset=start, limit=limit)
        answer: Any = self._histories.answer(request.SerializeToString(), call or _Call(view=view))
        return GetHistoryResponse.FromString(await answer)

    def answer(self, request: GetHistoryRequest, call: LocalCall | None = None) -> GetHistoryResponse:
        """Return what the method answers."""
        handler: Any = history_methods(*self._parts)[HISTORY_PATH]
        return GetHistoryResponse.FromString(asyncio.run(handler.handler(request.SerializeToString(), call or _Call())))


class _Call(LocalCall):
    async def turn(self) -> None:
        """Let others go on."""
        await asyncio.sleep(0)


class _Meanwhile(_Call):
    """A call whose first turn comes after something else has happened; `turns` are how many it had."""

    def __init__(self, happens: Callable[[], None]) -> None:
        super().__init__()
        self._happens = happens
        self.turns = 0

    async def turn(self) -> None:
        """Let others go on."""
        self.turns += 1
        if self.turns == 1:
            self._happens()


def _counts(answer: GetHistoryResponse) -> list[tuple[int | None, int | None]]:
    """Return of each change the rating's count before it and after it."""

    def count(content: Any, change: RowChange, name: str) -> int | None:
        if not change.HasField(name):
            return None
        row: Any = catalogue_of().tables["ratings"].row_class.FromString(content.message)
        return int(row.rating_count)

    return [(count(each.before, each, "before"), count(each.row, each, "row")) for each in answer.changes]


def test_the_changes_of_one_row_come_the_newest_first() -> None:
    asked = _Asked()
    for count in range(1, 6):
        asked.table.put([rating(each, count=count) for each in (7, 8, 9)])
    asked.table.delete([rating(7)])
    answer = asked.of(7)
    assert (answer.table, answer.generation, answer.partition, answer.truncated) == ("ratings", 1, 0, False)
    assert _counts(answer) == [(5, None), (4, 5), (3, 4), (2, 3), (1, 2), (None, 1)]
    assert [each.offset for each in answer.changes] == [15, 12, 9, 6, 3, 0]
    assert [each.sequence for each in answer.changes] == [16, 13, 10, 7, 4, 1]
    assert {each.generation for each in answer.changes} == {1}
    assert (answer.history_start, answer.next_offset) == (0, 16)
    assert answer.history_start_time == answer.changes[-1].time
    assert not asked.of(99).changes


def test_what_the_history_has_forgotten_is_not_there() -> None:
    asked = _Asked(history_changes_max=4)
    for count in range(1, 8):
        asked.table.put([rating(7, count=count)])
    answer = asked.of(7)
    assert _counts(answer) == [(6, 7), (5, 6), (4, 5), (3, 4)]
    assert (answer.history_start, answer.next_offset, answer.truncated) == (3, 7, False)


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_history_that_is_cut_while_it_is_read_has_no_gap(is_restored: bool) -> None:
    asked = _Asked(history_changes_max=10)
    for count in range(1, 11):
        asked.table.put([rating(7, count=count)])

    def cut() -> None:
        if is_restored:
            asked.table.incarnation_id += 1
            asked.table.move(_PARTITION, phase=Phase.RESTORING)
            asked.table.move(_PARTITION)
        for count in range(11, 31):
            asked.table.put([rating(7, count=count)])

    answer = asked.of(7, call=_Meanwhile(cut))
    assert _counts(answer) == [(count - 1, count) for count in range(30, 20, -1)]
    assert answer.history_start == answer.changes[-1].offset == 20
    assert answer.history_start_time == answer.changes[-1].time


def test_a_history_of_large_rows_is_read_in_small_steps() -> None:
    turns = []
    for step_bytes in (1_000_000, 100):
        asked = _Asked(history_changes_max=1_000, step_changes=1_000, step_bytes=step_bytes)
        call = _Meanwhile(lambda: None)
        for count in range(1, 201):
            asked.table.put([rating(7, count=count), rating(8)])
        assert _counts(asked.of(7, call=call, limit=1_000)) == [
            (count - 1 or None, count) for count in range(200, 0, -1)
        ]
        turns.append(call.turns)
    assert turns[0] < 5
    assert turns[1] > 50


def test_long_histories_are_read_one_after_the_other() -> None:
    asked, turns = _Asked(), list[str]()
    for count in range(1, 31):
        asked.table.put([rating(7, count=count)])

    class Noted(_Call):
        def __init__(self, name: str) -> None:
            super().__init__()
            self._name = name

        async def turn(self) -> None:
            turns.append(self._name)
            await asyncio.sleep(0)

    async def together() -> list[GetHistoryResponse]:
        return await asyncio.gather(*(asked.reading(7, call=Noted(name)) for name in "abc"))

    assert [len(answer.changes) for answer in asyncio.run(together())] == [30, 30, 30]
    assert turns == sorted(turns)


def test_a_history_without_changes_says_where_it_begins() -> None:
    asked = _Asked()
    asked.table.put([rating(7)])
    asked.table.next_offsets[_PARTITION] = 50
    asked.table.move(_PARTITION, phase=Phase.RESTORING)
    asked.table.move(_PARTITION)
    answer = asked.of(7)
    assert not answer.changes
    assert (answer.history_start, answer.next_offset) == (50, 50)
    assert not answer.HasField("history_start_time")


def test_the_newest_are_given_where_there_are_more() -> None:
    asked = _Asked()
    for count in range(1, 9):
        asked.table.put([rating(7, count=count)])
    answer = asked.of(7, limit=2)
    assert (_counts(answer), answer.truncated) == ([(7, 8), (6, 7)], True)


def test_who_asks_again_gets_what_is_new() -> None:
    asked = _Asked()
    asked.table.put([rating(7, count=1)])
    start = asked.of(7).next_offset
    assert not asked.of(7, start=start).changes
    asked.table.put([rating(7, count=2), rating(8)])
    answer = asked.of(7, start=start)
    assert _counts(answer) == [(1, 2)]
    assert answer.HasField("history_start_time"), "how far back it goes is said each time"


@pytest.mark.parametrize("step_changes", [1, 2, 3, 5])
def test_rows_that_expired_at_one_offset_come_once(step_changes: int) -> None:
    asked = _Asked(step_changes=step_changes)
    rows = [rating(each) for each in range(4)]
    asked.table.put(rows)
    keys = [asked.table.key_of(row) for row in rows]
    asked.store.expire(asked.table.store_id, _PARTITION, keys, time_ms=now_ms())
    asked.table.put([rating(2, count=9)])
    assert _counts(asked.of(2)) == [(None, 9), (1, None), (None, 1)]
    assert [each.offset for each in asked.of(2).changes] == [4, 4, 2]


def test_a_view_shows_of_a_history_what_it_shows_of_rows() -> None:
    asked = _Asked()
    for average, count in ((5.0, 1), (5.0, 2), (6.0, 3), (6.0, 4), (5.0, 5)):
        asked.table.put([rating(7, average=average, count=count)])
    some = View(rows=(("average_rating", frozenset({5.0})),), hidden=())
    assert _counts(asked.of(7, view=some)) == [(None, 5), (2, None), (1, 2), (None, 1)]
    trimmed = asked.of(7, view=View(rows=(), hidden=("rating_count", "update_time")))
    assert [each.offset for each in trimmed.changes] == [4, 2, 0], "no change of what is hidden"
    assert all(count in (0, None) for pair in _counts(trimmed) for count in pair)


def test_a_row_that_its_producer_has_moved_is_found_where_it_is() -> None:
    asked = _Asked(partitions=3)
    with asked.store.snapshot() as snapshot:
        state = snapshot.table("ratings")
    assert state is not None
    state.manifest.foreign.record_partitioner = changelog_pb2.RECORD_PARTITIONER_UNKNOWN
    asked.store.put_table("ratings", state)
    asked.table.place = lambda _: Partition(1)
    asked.table.put([rating(7, count=1)])
    asked.table.delete([rating(7)])
    assert (asked.of(7).partition, _counts(asked.of(7))) == (1, [(1, None), (None, 1)])
    asked.table.place = lambda _: Partition(2)
    asked.table.put([rating(7, count=2)])
    assert (asked.of(7).partition, _counts(asked.of(7))) == (2, [(None, 2)])


def test_rows_come_in_the_form_of_the_request() -> None:
    asked = _Asked()
    asked.table.put([rating(7, count=3)])
    [change] = asked.answer(GetHistoryRequest(method=f"/{GET}", json='{"movieId": "7"}')).changes
    assert json.loads(change.row.json)["ratingCount"] == "3"
    asked.table.put([rating(0, count=3)])
    [change] = asked.answer(GetHistoryRequest(method=GET)).changes
    assert change.row.message == rating(0, count=3).SerializeToString()


def test_the_rule_of_the_get_decides_what_is_seen() -> None:
    asked = _Asked()
    asked.table.put([rating(7, average=5.0), rating(8, average=6.0)])
    call = _Call(view=View(rows=(("average_rating", frozenset({5.0})),), hidden=()))
    found = [asked.answer(GetHistoryRequest(method=GET, json=json.dumps({"movieId": it})), call) for it in (7, 8)]
    assert [len(answer.changes) for answer in found] == [1, 0]


def _unserved(asked: _Asked) -> object:
    asked.table.move(_PARTITION, phase=Phase.RESTORING)
    return asked.of(7)


@pytest.mark.parametrize(
    ("ask", "error", "text"),
    [
        (lambda it: it.of(7, method="a.B/C"), InvalidField, 'field "method": is no Get by key here'),
        (lambda it: it.of(7, method=GET.replace("Get", "List") + "s"), InvalidField, "is no Get by key here"),
        (lambda it: it.of(7, start=-1), InvalidField, 'field "start_offset": is negative'),
        (lambda it: it.of(7, limit=1_001), InvalidField, 'field "limit": is none of 0 to 1000'),
        (_unserved, PartitionUnavailable, "partition 0"),
    ],
    ids=["unknown", "no-get", "start", "limit", "unserved"],
)
def test_what_cannot_be_answered_is_said(ask: Callable[[_Asked], object], error: type[QueryError], text: str) -> None:
    with pytest.raises(error) as raised:
        ask(_Asked())
    assert text in str(raised.value)
