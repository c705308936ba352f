"""Prices of stocks, as text."""

import random
from collections.abc import Iterator

from tablegate.examples.samples.events import Event, numbers

TOPIC = "stock_ticks"
TOPICS = {TOPIC: 2}

KNOWN_SYMBOL = "stock-1"
KNOWN_PRICE = "132.25"

_SYMBOLS = (*(f"stock-{number}" for number in range(2, 13)), "my-stock-2")
_DELETED_SHARE = 0.02
_EMPTY_SHARE = 0.03


def tick(symbol: str, price: str | None) -> Event:
    """Return a price, which may be empty; None deletes the stock."""
    return Event(TOPIC, symbol.encode(), None if price is None else price.encode())


def known_events() -> Iterator[Event]:
    """Yield the one price that the known stock ever gets."""
    yield tick(KNOWN_SYMBOL, KNOWN_PRICE)


def events(count: int | None = None, *, seed: int = 1) -> Iterator[Event]:
    """Yield `count` prices of stocks but the known one, some of them empty or deletes; without a count, for ever.

    The same arguments give the same events. `stock-12` and `my-stock-2` are among the symbols.
    """
    choice = random.Random(seed)
    for _ in numbers(count):
        symbol = choice.choice(_SYMBOLS)
        kind = choice.random()
        if kind < _DELETED_SHARE:
            yield tick(symbol, None)
        elif kind < _DELETED_SHARE + _EMPTY_SHARE:
            yield tick(symbol, "")
        else:
            yield tick(symbol, f"{choice.randint(400, 80_000) / 4:.2f}")
