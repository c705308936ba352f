"""Bookings on customers' accounts: Avro of two record types in one topic."""

import random
from collections.abc import Iterator
from decimal import Decimal

from tablegate.examples.samples.events import AvroValues, Event, numbers
from tablegate.examples.tables.balances import FUNDS_ADDED_SCHEMA, FUNDS_RESERVED_SCHEMA
from tablegate.gateway.contract.registry_settings import RegistrySettings

TOPIC = "balance"
TOPICS = {TOPIC: 2}

KNOWN_CUSTOMER = "customer-1"
KNOWN_AMOUNTS = (Decimal("10.50"), Decimal("4.25"))

_RESERVED_SHARE = 0.2
_AMOUNT_UNITS_MAX = 5_000_000  # 500.0000


class Bookings:
    """Makes events of the topic; raises `SetupError` where the schema registry does not take the schemas.

    Without a registry, FundsAdded has schema id 1 and FundsReserved 2.
    """

    def __init__(self, *, topic: str = TOPIC, registry: RegistrySettings | None = None) -> None:
        self._topic = topic
        self._values = AvroValues(topic, FUNDS_ADDED_SCHEMA, FUNDS_RESERVED_SCHEMA, registry=registry)

    def added(self, customer_id: str, amount: Decimal) -> Event:
        """Return a booking: at most 14 digits before the point, and 4 behind it."""
        return self._event(FUNDS_ADDED_SCHEMA, customer_id, {"amount": amount})

    def reserved(self, customer_id: str, reservation_id: str) -> Event:
        """Return a reservation."""
        return self._event(FUNDS_RESERVED_SCHEMA, customer_id, {"reservationId": reservation_id})

    def _event(self, schema: str, customer_id: str, fields: dict[str, object]) -> Event:
        value = self._values.frame(schema, {"customerId": customer_id, **fields})
        return Event(self._topic, customer_id.encode(), value)


def known_events(*, topic: str = TOPIC, registry: RegistrySettings | None = None) -> Iterator[Event]:
    """Yield all bookings that the known customer ever gets: 14.75 in all."""
    bookings = Bookings(topic=topic, registry=registry)
    for amount in KNOWN_AMOUNTS:
        yield bookings.added(KNOWN_CUSTOMER, amount)


def events(
    count: int | None = None,
    *,
    seed: int = 1,
    customers: int = 500,
    topic: str = TOPIC,
    registry: RegistrySettings | None = None,
) -> Iterator[Event]:
    """Yield `count` events of customers but the known one, four fifths of them bookings; without a count, for ever.

    The same arguments give the same events.
    """
    choice = random.Random(seed)
    bookings = Bookings(topic=topic, registry=registry)
    for number in numbers(count):
        customer_id = f"customer-{choice.randint(2, customers)}"
        if choice.random() < _RESERVED_SHARE:
            yield bookings.reserved(customer_id, f"reservation-{seed}-{number}")
        else:
            yield bookings.added(customer_id, Decimal(choice.randint(1, _AMOUNT_UNITS_MAX)).scaleb(-4))
