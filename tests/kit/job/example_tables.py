"""The example tables and their variants: jobs, folds, and hard events of all their sources in three parts."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tablegate.examples.samples import (
    Event,
    balances,
    browsers,
    customers,
    invoices,
    products,
    ratings,
    steady_clock,
    stocks,
)
from tablegate.examples.samples.events import START_MS
from tablegate.jobs.planning.declarations import load_table
from tablegate.jobs.table import Mode, Table

from tests.kit.job import folds
from tests.kit.job.folds import Fold
from tests.kit.job.hard_events import extreme_bookings, hard, late_actions, malformed_like, odd_ticks, odd_views
from tests.kit.job.laid_records import Record

PARTS = 3
SYSTEMS = (ratings, balances, customers, browsers, invoices, stocks, products)
USER_CAPTCHAS = "user_captchas"
TOPICS = {**{topic: count for system in SYSTEMS for topic, count in system.TOPICS.items()}, USER_CAPTCHAS: 2}
"""Source topics, and how many partitions each has."""

LATE_ACTIONS = 50
_VARIANTS = Path(__file__).parent / "variants" / "variants.py"


@dataclass(frozen=True, slots=True)
class Example:
    """A table with the arguments of its job, and the rows that it must have in the end."""

    job: str
    fold: Callable[[Iterable[Record]], Fold]

    @property
    def table(self) -> Table:
        """The declaration."""
        return load_table(self.job)


EXAMPLES = (
    Example("ratings", folds.fold_ratings),
    Example("balances", folds.fold_balances),
    Example("customers", folds.fold_customers),
    Example("suspicious_browsers", folds.fold_suspicious_browsers),
    Example("action_counts", folds.fold_action_counts),
    Example("reward_points", folds.fold_reward_points),
    Example("stock_ticks", folds.fold_stock_ticks),
    Example("product_views", folds.fold_product_views),
    Example(f"{_VARIANTS}:arrival_counts", partial(folds.fold_action_counts, by_arrival=True)),
    Example(f"{_VARIANTS}:user_browsers", folds.fold_user_browsers),
)


def examples_of(mode: Mode) -> list[Example]:
    """Return the tables whose declarations permit the mode."""
    return [example for example in EXAMPLES if mode is Mode.MICROBATCH or example.table.why_not_realtime() is None]


def parts_of(size: int) -> list[list[Event]]:
    """Return about `size` events of each system in three parts, to be sent one after the other.

    Each part has repeated and malformed events and deletes. The second has those of extreme values and odd names, the
    third begins with late ones; captchas of users are all in the first.
    """
    parts = []
    for part in range(PARTS):
        count = size // PARTS
        clock = steady_clock(START_MS + part * count)
        streams: list[Iterable[Event]] = [
            ratings.events(count, seed=part),
            balances.events(count, seed=part),
            customers.events(count, seed=part, customers=size // 40),
            browsers.events(count, seed=part, browsers=size // 20, clock=clock),
            invoices.events(count, seed=part),
            stocks.events(count, seed=part),
            # The first product has more views than make it popular, whatever the size.
            products.events(count, seed=part, products=max(3, size * 30 // 20_000)),
        ]
        events = [*_first(part), *itertools.chain.from_iterable(_hard(stream, part) for stream in streams)]
        parts.append(events)
    return parts


def _first(part: int) -> Iterator[Event]:
    """Yield what a part begins with."""
    if part == 0:
        for system in SYSTEMS:
            yield from system.known_events()
        captchas = (browsers.captcha(f"user-{number % 10}", passed=number % 3 == 0) for number in range(40))
        forgotten = (browsers.forgotten(f"user-{number}") for number in (2, 5))
        for event in _hard([*captchas, *forgotten], part):
            yield event._replace(topic=USER_CAPTCHAS)
    elif part == 1:
        yield from extreme_bookings()
        yield from odd_views()
        yield from odd_ticks()
    else:
        yield from late_actions(LATE_ACTIONS, before_ms=START_MS)


def _hard(events: Iterable[Event], part: int) -> Iterator[Event]:
    """Yield the events made hard; every way to be malformed is there at least once."""
    events = list(events)
    yield from hard(events, seed=part)
    for event in {event.topic: event for event in events if event.value is not None}.values():
        yield from malformed_like(event)
