"""The index of selections: it finds what asking each of them finds, and asks few."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from tablegate.gateway.access.views import View
from tablegate.gateway.contract.keys import after_prefix
from tablegate.gateway.contract.types import Offset, Partition, Version
from tablegate.gateway.query.requests import Fixed
from tablegate.gateway.query.subscribe.cursor import Selection
from tablegate.gateway.query.subscribe.selection_index import SelectionIndex
from tablegate.gateway.query.subscribe.selections import selection_reader
from tablegate.gateway.query.visible_rows import VisibleRows, row_parser
from tablegate.gateway.stores.base import PastChange
from tests.kit.table.filled import catalogue_of

PARTITIONS = [Partition(number) for number in range(2)]
BYTES = st.text("a\xff", max_size=2).map(lambda text: text.encode("latin-1"))
COLUMNS: dict[str, Any] = {"first": lambda row: row[:1], "second": lambda row: row[1:2]}
ROWS = st.one_of(st.none(), st.sampled_from([b"ab", b"ac", b"bb", b"b"]))


def change(key: bytes, row: bytes | None, before: bytes | None) -> PastChange:
    return PastChange(Offset(0), key, Version(1), row, 0, before)


def found_in(
    index: SelectionIndex[Any], changes: Sequence[tuple[Partition, Sequence[PastChange]]]
) -> dict[Any, list[PastChange]]:
    """Return the changes that the index finds, by owner."""
    found: defaultdict[Any, list[PastChange]] = defaultdict(list)
    for partition, past in changes:
        for each in past:
            for owner in index.owners(partition, each):
                found[owner].append(each)
    return found


def fixed(**values: bytes) -> list[Fixed]:
    return [Fixed(name, value, COLUMNS[name]) for name, value in values.items()]


def matches_of(fixed_columns: Sequence[Fixed]) -> Any:
    return lambda row: all(each.read(row) == each.value for each in fixed_columns)


@st.composite
def selections(draw: st.DrawFn) -> Selection:
    partitions = draw(st.lists(st.sampled_from(PARTITIONS), unique=True))
    start = draw(BYTES)
    end = draw(st.one_of(st.none(), BYTES, st.just(after_prefix(start))))
    columns = draw(st.dictionaries(st.sampled_from(sorted(COLUMNS)), st.sampled_from([b"a", b"b", b"c", b""])))
    columns_fixed = fixed(**columns)
    keys = None
    if draw(st.booleans()):
        keys = {partition: draw(st.lists(BYTES, max_size=3, unique=True)) for partition in partitions}
    return Selection(partitions, start, end, matches_of(columns_fixed), keys, fixed=columns_fixed)


CHANGES = st.lists(
    st.tuples(st.sampled_from(PARTITIONS), st.lists(st.builds(change, BYTES, ROWS, ROWS), max_size=4)), max_size=3
)


@given(st.lists(selections(), max_size=8), CHANGES, st.data())
def test_it_finds_what_asking_each_finds(
    chosen: list[Selection], changes: list[tuple[Partition, list[PastChange]]], data: st.DataObject
) -> None:
    index: SelectionIndex[int] = SelectionIndex(bytes)
    for owner, selection in enumerate(chosen):
        index.add(owner, selection)
    gone = data.draw(st.sets(st.sampled_from(range(len(chosen))))) if chosen else set()
    for owner in gone:
        index.remove(owner, chosen[owner])
    found = found_in(index, changes)
    for owner, selection in enumerate(chosen):
        asked = [
            each
            for partition, past in changes
            for each in past
            if partition in selection.partitions and selection.holds(each.key)
        ]
        expected = [] if owner in gone else list(selection.shown(asked))
        assert list(selection.shown(found.get(owner, []))) == expected


@pytest.mark.parametrize("row", [b"bb", None], ids=["another's now", "gone"])
def test_who_had_the_row_finds_that_it_goes(row: bytes | None) -> None:
    index: SelectionIndex[str] = SelectionIndex(bytes)
    for name in (b"a", b"b", b"c"):
        index.add(name.decode(), Selection(PARTITIONS, b"", None, fixed=fixed(first=name)))
    found = found_in(index, [(PARTITIONS[0], [change(b"key", row, b"ab")])])
    assert set(found) == ({"a"} if row is None else {"a", "b"})


def test_beginnings_of_several_lengths_are_found() -> None:
    index: SelectionIndex[bytes] = SelectionIndex(bytes)
    for start in (b"a", b"ab", b"abc", b"b"):
        index.add(start, Selection(PARTITIONS, start, after_prefix(start)))
    found = found_in(index, [(PARTITIONS[0], [change(b"abx", b"ab", None)])])
    assert set(found) == {b"a", b"ab"}


def test_nothing_is_left_of_what_was_removed() -> None:
    index: SelectionIndex[int] = SelectionIndex(bytes)
    everything = Selection(PARTITIONS, b"", None)
    some = [
        everything,
        Selection(PARTITIONS, b"a", b"b", fixed=fixed(first=b"a")),
        Selection(PARTITIONS, b"", None, keys={PARTITIONS[0]: [b"a", b"b"]}),
    ]
    for owner, selection in enumerate(some):
        index.add(owner, selection)
    for owner, selection in enumerate(some):
        index.remove(owner, selection)
    assert not index._kinds
    assert not index._by_key
    index.add(0, everything)
    assert list(found_in(index, [(PARTITIONS[0], [change(b"a", b"ab", None)])])) == [0]


ASKED: list[Selection] = []


@dataclass(frozen=True)
class Asking(Selection):
    """A selection that notes that it was asked."""

    number: int = field(default=0, kw_only=True)

    @property
    @override
    def holds(self) -> Any:  # type: ignore[override]
        ASKED.append(self)
        return super().holds


@pytest.mark.parametrize("by", ["start", "value", "both"])
def test_few_are_asked_of_many(by: Literal["start", "value", "both"]) -> None:
    index: SelectionIndex[int] = SelectionIndex(lambda row: row)
    for number in range(3_000):
        start = b"" if by == "value" else b"%04d" % number
        end = after_prefix(start) if start else None
        values = [] if by == "start" else [Fixed("number", b"%04d" % (number % 100), lambda row: row[:4])]
        index.add(number, Asking(PARTITIONS, start, end, fixed=values, number=number))
    ASKED.clear()
    found = found_in(index, [(PARTITIONS[0], [change(b"0007x", b"0007", b"0008")])])
    expected = {"start": {7}, "both": {7}, "value": {each for each in range(3_000) if each % 100 in (7, 8)}}[by]
    assert set(found) == expected
    assert len(ASKED) == len(expected)


SUBSCRIBE = "/examples.ratings.v1.RatingsService/SubscribeRatings"


def test_what_a_request_and_a_view_fix_is_read_of_rows() -> None:
    query: Any = catalogue_of().queries[SUBSCRIBE]
    table = query.table
    column = next(each for each in table.row.fields_by_name if each not in {key.name for key in table.key})
    view = View(rows=((column, (3,)),), hidden=())
    visible = VisibleRows(view, table)
    selection = selection_reader(query, visible)(query.request_class())(2, lambda _, count: range(count))
    [found] = [each for each in selection.fixed if each.column == column]
    assert found.value == 3
    assert found.read(row_parser(table)(table.row_class(**{column: 3}).SerializeToString())) == 3
    several = VisibleRows(View(rows=((column, (3, 4)),), hidden=()), table)
    assert not selection_reader(query, several)(query.request_class())(2, lambda _, count: range(count)).fixed
