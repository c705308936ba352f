"""Read your writes through everything: a producer's acknowledgement, a real job, a real gateway, a Get that waits.

An answer may be refused, on a machine that is slow; one that is given has the record in it.
"""

import itertools
from pathlib import Path

import pytest

from tablegate.examples.samples import ratings, stocks
from tablegate.jobs.table import Mode
from tests.kit.gateway_processes.own_writes import GET_TICK, OwnWrites, ticks

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(1_200)]

MOVIE = 1
RATINGS = 10
GET_RATING = "/examples.ratings.v1.RatingsService/GetRating"


@pytest.mark.parametrize("writes", [100, pytest.param(1_000, marks=pytest.mark.long)])
def test_a_row_of_a_keyed_source_tells_by_itself(tmp_path: Path, writes: int) -> None:
    with OwnWrites(tmp_path, "stock_ticks", Mode.REALTIME, GET_TICK) as own:
        for symbol, price in itertools.islice(ticks(), writes):
            acknowledged = own.write(stocks.tick(symbol, price))
            assert own.get(acknowledged, symbol=symbol).stock_tick.price == price
        # Had only markers told, each write would have waited for one of its own.
        assert own.marked_positions() < writes


def test_markers_tell_where_records_of_a_key_lie_anywhere(tmp_path: Path) -> None:
    with OwnWrites(tmp_path, "ratings", Mode.MICROBATCH, GET_RATING) as own:
        for number, event in enumerate(ratings.events(RATINGS, movies=MOVIE)):
            acknowledged = own.write(event._replace(partition=number % 2))
            assert own.get(acknowledged, movie_id=MOVIE).rating.rating_count == number + 1
