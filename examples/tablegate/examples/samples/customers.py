"""Prospects, accounts and enrichments of accounts, in JSON: three topics with the same keys."""

import random
from collections.abc import Iterator

from tablegate.examples.samples.events import Event, json_bytes, numbers

PROSPECTS = "tp_prospects"
ACCOUNTS = "tp_accounts"
ENRICHMENTS = "tp_enrichment_accounts"
TOPICS = {PROSPECTS: 4, ACCOUNTS: 4, ENRICHMENTS: 4}

KNOWN_CUSTOMER = 1

_NAMES = ("augusto", "beatriz", "joão", "chloë", "ines", "林", "pedro", "sofia")
_STATUSES = ("REGULAR", "BLOCKED", "CLOSED")
_DELETED_SHARE = 0.05


def prospect(customer_id: int, name: str) -> Event:
    """Return a prospect."""
    return _side(PROSPECTS, customer_id, {"name": name})


def account(customer_id: int, account_number: str) -> Event:
    """Return an account."""
    return _side(ACCOUNTS, customer_id, {"accountNumber": account_number})


def enrichment(customer_id: int, status: str) -> Event:
    """Return the enrichment of an account."""
    return _side(ENRICHMENTS, customer_id, {"status": status})


def deleted(topic: str, customer_id: int) -> Event:
    """Return the tombstone of one side."""
    return Event(topic, str(customer_id).encode(), None)


def _side(topic: str, customer_id: int, fields: dict[str, object]) -> Event:
    return Event(topic, str(customer_id).encode(), json_bytes({"id": customer_id, **fields}))


def known_events() -> Iterator[Event]:
    """Yield all events of the known customer: augusto, 000.000.000-0, REGULAR."""
    yield enrichment(KNOWN_CUSTOMER, "REGULAR")
    yield prospect(KNOWN_CUSTOMER, "augusto")
    yield account(KNOWN_CUSTOMER, "000.000.000-0")


def events(count: int | None = None, *, seed: int = 1, customers: int = 500) -> Iterator[Event]:
    """Yield `count` new, changed and deleted sides of customers 2 … `customers`; without a count, for ever.

    The same arguments give the same events.
    """
    choice = random.Random(seed)
    for _ in numbers(count):
        customer_id = choice.randint(2, customers)
        topic = choice.choice((PROSPECTS, ACCOUNTS, ENRICHMENTS))
        if choice.random() < _DELETED_SHARE:
            yield deleted(topic, customer_id)
        elif topic == PROSPECTS:
            yield prospect(customer_id, choice.choice(_NAMES))
        elif topic == ACCOUNTS:
            number = f"{choice.randrange(10**10):010}"
            yield account(customer_id, f"{number[:3]}.{number[3:6]}.{number[6:9]}-{number[9]}")
        else:
            yield enrichment(customer_id, choice.choice(_STATUSES))
