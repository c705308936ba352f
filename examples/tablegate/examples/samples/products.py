"""Views of products, in JSON."""

import random
from collections.abc import Iterator

from tablegate.examples.samples.events import Event, json_bytes, numbers

TOPIC = "product_views"
TOPICS = {TOPIC: 2}

KNOWN_PRODUCT = "product-1"
KNOWN_VIEW_COUNT = 3

_CUSTOMERS = 1_000


def view(product: str, customer: str) -> Event:
    """Return a view of a product."""
    return Event(TOPIC, product.encode(), json_bytes({"product": product, "customer": customer}))


def known_events() -> Iterator[Event]:
    """Yield all views that the known product ever gets."""
    for number in range(KNOWN_VIEW_COUNT):
        yield view(KNOWN_PRODUCT, f"customer-{number + 1}")


def events(count: int | None = None, *, seed: int = 1, products: int = 30) -> Iterator[Event]:
    """Yield `count` views of products but the known one; without a count, for ever.

    The first products have most of the views: of 20,000 views, three or four products have over 1,000 each. The same
    arguments give the same events.
    """
    choice = random.Random(seed)
    for _ in numbers(count):
        product = 2 + int((products - 1) * choice.random() ** 2)
        yield view(f"product-{product}", f"customer-{choice.randint(1, _CUSTOMERS)}")
