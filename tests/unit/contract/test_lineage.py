"""Which log an offset is of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablegate.gateway.contract.lineage import (
    RUNS_MAX,
    EpochRun,
    Lineage,
    Place,
    add_places,
    clear_places,
    continued,
    cut,
    is_continued_by,
    is_of_another_log,
    lineage_of,
    place_at,
    places_of,
)
from tablegate.gateway.contract.types import Offset, Partition
from tablegate.internal.v1.tokens_pb2 import Token


def run(epoch: int, start: int, end: int) -> EpochRun:
    return EpochRun(epoch, Offset(start), Offset(end))


def place(next_offset: int, epoch: int = -1, gap: int = 0) -> Place:
    return Place(Offset(next_offset), epoch, gap)


TWO = (run(4, 0, 8), run(6, 8, 20))  # the leader of epoch 5 wrote, too, and its records were lost


@pytest.mark.parametrize(
    ("known", "is_foreign"),
    [
        (place(8, 4), False),
        (place(5, 4), False),
        (place(9, 4), True),
        (place(12, 5), True),
        (place(8, 5), True),
        (place(10, 5, gap=2), True),
        (place(15, 6), False),
        (place(30, 6), False),
        (place(15, 7), True),
        (place(21, 7), False),
        (place(100), False),
        (place(10, 4, gap=2), False),
    ],
)
def test_a_place_is_of_another_log_where_records_say_so(known: Place, is_foreign: bool) -> None:
    assert is_of_another_log(known, TWO) is is_foreign


def test_what_was_not_read_is_held_against_nobody() -> None:
    lineage = (run(4, 0, 8), run(6, 15, 20))
    assert not is_of_another_log(place(12, 5), lineage)
    assert not is_of_another_log(place(12, 4), lineage)
    assert not is_of_another_log(place(7, 2), (run(4, 7, 8),))
    assert not is_of_another_log(place(12, 5), ())


def test_a_lineage_goes_on_by_what_is_read() -> None:
    lineage: Lineage = continued((), [run(4, 0, 3)])
    lineage = continued(lineage, [run(4, 3, 8), run(6, 8, 20)])
    assert lineage == TWO
    assert is_continued_by(lineage, [run(6, 20, 21)])
    assert not is_continued_by(lineage, [run(6, 19, 21)])
    assert not is_continued_by(lineage, [run(5, 20, 21)])
    assert cut(lineage, Offset(12)) == (run(4, 0, 8), run(6, 8, 12))


def test_a_lineage_keeps_its_newest_runs() -> None:
    lineage = continued((), [run(epoch, epoch, epoch + 1) for epoch in range(RUNS_MAX + 3)])
    assert len(lineage) == RUNS_MAX
    assert lineage[-1].leader_epoch == RUNS_MAX + 2
    assert not is_of_another_log(place(1, 0), lineage)


def test_places_go_through_a_token() -> None:
    for places in (
        {},
        {0: place(3, 0)},
        {0: place(3, 5), 1: place(9, 5)},
        {2: place(3, 5), 4: place(9, 6, gap=2), 3: place(0)},
        {0: place(3), 1: place(4)},
    ):
        token = Token(table="ratings")
        add_places(token, {Partition(number): each for number, each in places.items()})
        assert places_of(Token.FromString(token.SerializeToString())) == places
        clear_places(token)
        assert token == Token(table="ratings")


@st.composite
def _logs(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Return two logs, as epochs by offset, of which the second has lost the tail of the first and gone on."""
    common = sorted(draw(st.lists(st.integers(0, 5), max_size=10)))
    last = common[-1] if common else 0
    # A leader's term is of one log alone.
    lost = sorted(draw(st.lists(st.sampled_from(range(last, 12, 2)), max_size=6)))
    grown = sorted(draw(st.lists(st.sampled_from(range(last + 1, 13, 2)), max_size=12)))
    return common + lost, common + grown


def _read(log: list[int], chosen: set[int]) -> Lineage:
    runs = [run(epoch, offset, offset + 1) for offset, epoch in enumerate(log) if offset in chosen]
    lineage: Lineage = ()
    for each in runs:
        assert is_continued_by(lineage, [each])
        lineage = continued(lineage, [each])
    return lineage


@given(logs=_logs(), chosen=st.sets(st.integers(0, 25)), at=st.integers(1, 25))
def test_only_places_of_lost_records_are_refused(logs: tuple[list[int], list[int]], chosen: set[int], at: int) -> None:
    before, now = logs
    everything = set(range(25))
    at = min(at, len(before))
    known = place_at(_read(before, everything), Offset(at))
    is_lost = before[:at] != now[:at] and len(now) >= at
    # Whoever has read all of the log knows exactly; compaction takes knowledge, and never makes a good place a bad one.
    assert is_of_another_log(known, _read(now, everything)) or not is_lost
    if before[:at] == now[:at]:
        assert not is_of_another_log(known, _read(now, chosen))
        known = place_at(_read(before, chosen), Offset(at))
        assert not is_of_another_log(known, _read(now, everything))
        assert not is_of_another_log(known, lineage_of(known))
        [run_of_it] = lineage_of(known) or [None]
        assert run_of_it is None or place_at((run_of_it,), known.next_offset) == known
