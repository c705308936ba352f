"""How much is read at once."""

import pytest
from tablegate.gateway.query.subscribe.cursor import ReadBudget


def test_rows_are_counted() -> None:
    room = ReadBudget(rows=3, bytes=100)
    assert room.reserve([1, 1]) == 2
    assert (room.rows, room.bytes) == (1, 98)
    assert room.reserve([1, 1]) == 1
    assert room.rows == 0
    assert room.reserve([1]) == 0


@pytest.mark.parametrize(("sizes", "count"), [([60, 60], 1), ([100, 1], 1), ([40, 60, 0], 3)])
def test_bytes_are_counted(sizes: list[int], count: int) -> None:
    room = ReadBudget(rows=10, bytes=100)
    assert room.reserve(sizes) == count
    assert room.rows == 0


def test_one_is_taken_however_long_and_nothing_after_it() -> None:
    room = ReadBudget(rows=10, bytes=100)
    assert room.reserve([1_000, 1]) == 1
    assert room.rows == 0


def test_nothing_takes_no_room() -> None:
    room = ReadBudget(rows=1, bytes=1)
    assert room.reserve([]) == 0
    assert (room.rows, room.bytes) == (1, 1)
