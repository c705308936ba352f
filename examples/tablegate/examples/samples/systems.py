"""The systems that produce events, as one interface: topics, known events, and others, as many as one likes."""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tablegate.examples.samples import balances, browsers, customers, invoices, products, ratings, stocks
from tablegate.examples.samples.events import Event

BROWSER_CLOCK_STEP_MS = 2_000
"""Known actions begin at a multiple of it, where a window begins: so they lie in three windows, and all in each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Something that produces events. `events` takes a count (None is for ever) and a seed."""

    topics: Mapping[str, int]
    known_events: Callable[[], Iterator[Event]]
    events: Callable[[int | None, int], Iterator[Event]]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _known_browser_events() -> Iterator[Event]:
    start_ms = _now_ms() // BROWSER_CLOCK_STEP_MS * BROWSER_CLOCK_STEP_MS
    return browsers.known_events(clock=itertools.count(start_ms).__next__)


RATINGS = System(
    topics=ratings.TOPICS,
    known_events=ratings.known_events,
    events=lambda count, seed: ratings.events(count, seed=seed),
)
BALANCES = System(
    topics=balances.TOPICS,
    known_events=balances.known_events,
    events=lambda count, seed: balances.events(count, seed=seed),
)
CUSTOMERS = System(
    topics=customers.TOPICS,
    known_events=customers.known_events,
    events=lambda count, seed: customers.events(count, seed=seed),
)
# Windows are of the time of events, and expire by it: so these are of now.
BROWSERS = System(
    topics=browsers.TOPICS,
    known_events=_known_browser_events,
    events=lambda count, seed: browsers.events(count, seed=seed, clock=_now_ms),
)
INVOICES = System(
    topics=invoices.TOPICS,
    known_events=lambda: invoices.known_events(clock=_now_ms),
    events=lambda count, seed: invoices.events(count, seed=seed, clock=_now_ms),
)
STOCKS = System(
    topics=stocks.TOPICS,
    known_events=stocks.known_events,
    events=lambda count, seed: stocks.events(count, seed=seed),
)
PRODUCTS = System(
    topics=products.TOPICS,
    known_events=products.known_events,
    events=lambda count, seed: products.events(count, seed=seed),
)
SYSTEMS = (RATINGS, BALANCES, CUSTOMERS, BROWSERS, INVOICES, STOCKS, PRODUCTS)
