"""Invoices of shops, in Avro."""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tablegate.examples.samples.events import AvroValues, Clock, Event, numbers, steady_clock
from tablegate.examples.tables.reward_points import POS_INVOICE_SCHEMA
from tablegate.gateway.contract.registry_settings import RegistrySettings

TOPIC = "pos_invoices"
TOPICS = {TOPIC: 2}

KNOWN_CARD = "card-1"
KNOWN_INVOICE = "invoice-known"

_PLACES = (("Mumbai", "Maharashtra"), ("Bengaluru", "Karnataka"), ("Chennai", "Tamil Nadu"), ("Jaipur", "Rajasthan"))
_GOODS = ("lamp", "chair", "desk", "mirror", "carpet", "shelf", "vase", "clock", "sofa", "stool")
_STORES = 10
_HOME_DELIVERY_SHARE = 0.4
_PRICE_STEP = 12.5  # earns a quarter of a point, exactly
_GST_RATE = 0.025
_CESS_RATE = 0.00125


class LineItem(NamedTuple):
    """One kind of goods on an invoice."""

    code: str
    description: str
    price: float
    quantity: int


class Invoices:
    """Makes events of the topic; raises `SetupError` where the schema registry does not take the schema."""

    def __init__(self, *, topic: str = TOPIC, registry: RegistrySettings | None = None) -> None:
        self._topic = topic
        self._values = AvroValues(topic, POS_INVOICE_SCHEMA, registry=registry)

    def invoice(
        self,
        number: str,
        *,
        created_ms: int,
        store: str,
        card: str,
        prime: bool,
        items: Sequence[LineItem],
        payment_method: str = "CASH",
        address: Mapping[str, str] | None = None,
    ) -> Event:
        """Return an invoice; one with an address is delivered, others are taken away."""
        total = sum(item.price * item.quantity for item in items)
        record = {
            "InvoiceNumber": number,
            "CreatedTime": created_ms,
            "StoreID": store,
            "CustomerCardNo": card,
            "CustomerType": "PRIME" if prime else "NONPRIME",
            "TotalAmount": total,
            "NumberOfItems": len(items),
            "PaymentMethod": payment_method,
            "TaxableAmount": total,
            "CGST": total * _GST_RATE,
            "SGST": total * _GST_RATE,
            "CESS": total * _CESS_RATE,
            "DeliveryType": "TAKEAWAY" if address is None else "HOME-DELIVERY",
            "DeliveryAddress": address,
            "InvoiceLineItems": [_item_fields(item) for item in items],
        }
        return Event(self._topic, store.encode(), self._values.frame(POS_INVOICE_SCHEMA, record))


def _item_fields(item: LineItem) -> dict[str, Any]:
    return {
        "ItemCode": item.code,
        "ItemDescription": item.description,
        "ItemPrice": item.price,
        "ItemQty": item.quantity,
        "TotalValue": item.price * item.quantity,
    }


def known_events(
    *, clock: Clock | None = None, topic: str = TOPIC, registry: RegistrySettings | None = None
) -> Iterator[Event]:
    """Yield the one invoice that the known card ever gets: PRIME, 1,250.00, so 25 points."""
    now_ms = clock or steady_clock()
    items = [LineItem("item-1", "desk", 500.0, 2), LineItem("item-2", "lamp", 250.0, 1)]
    yield Invoices(topic=topic, registry=registry).invoice(
        KNOWN_INVOICE, created_ms=now_ms(), store="store-1", card=KNOWN_CARD, prime=True, items=items
    )


def events(
    count: int | None = None,
    *,
    seed: int = 1,
    cards: int = 500,
    clock: Clock | None = None,
    topic: str = TOPIC,
    registry: RegistrySettings | None = None,
) -> Iterator[Event]:
    """Yield `count` invoices of cards but the known one, of ten stores; without a count, for ever.

    Cards with even numbers are PRIME. Amounts are multiples of 12.50, so the points of an invoice and sums of them are
    exact in any order. Numbers of invoices are unique for each seed. Without a clock, a steady one starts at
    2026-11-21T10:00:00Z. The same arguments give the same events.
    """
    choice = random.Random(seed)
    now_ms = clock or steady_clock()
    invoices = Invoices(topic=topic, registry=registry)
    for number in numbers(count):
        card = choice.randint(2, cards)
        yield invoices.invoice(
            f"invoice-{seed}-{number}",
            created_ms=now_ms(),
            store=f"store-{choice.randint(1, _STORES)}",
            card=f"card-{card}",
            prime=card % 2 == 0,
            items=[_line_item(choice) for _ in range(choice.randint(1, 4))],
            payment_method=choice.choice(("CASH", "CARD")),
            address=_address(choice) if choice.random() < _HOME_DELIVERY_SHARE else None,
        )


def _line_item(choice: random.Random) -> LineItem:
    kind = choice.randrange(len(_GOODS))
    return LineItem(f"item-{kind + 1}", _GOODS[kind], choice.randint(1, 200) * _PRICE_STEP, choice.randint(1, 4))


def _address(choice: random.Random) -> dict[str, str]:
    city, state = choice.choice(_PLACES)
    return {
        "AddressLine": f"{choice.randint(1, 200)}, Station Road",
        "City": city,
        "State": state,
        "PinCode": f"{choice.randint(100_000, 999_999)}",
        "ContactNumber": f"98{choice.randrange(10**8):08}",
    }
