"""Events that producers should not send and do: repeated, malformed, late, extreme."""

import random
from collections.abc import Iterable, Iterator
from decimal import Decimal

from tablegate.examples.samples import Event
from tablegate.examples.samples.balances import Bookings
from tablegate.examples.samples.browsers import action
from tablegate.examples.samples.products import view
from tablegate.examples.samples.stocks import tick
from tablegate.gateway.contract.registry_settings import RegistrySettings

ODD_NAMES = ("a\0b", "\0", "ü", "😀", "a b/c?d=%20", 'say "so"\\', "x" * 200, "name", "name\0")
"""Key texts that escapes, byte orders and addresses get wrong."""

REPEATED_LATER_MAX = 50  # events after which a repeated one comes, at most

_AVRO_TOPICS = ("ratings", "balance", "pos_invoices")
_FIELD_WITH_KEY = {"browser_actions": "browser", "product_views": "product"}
"""JSON whose key is in the value; that of the record says nothing more."""
_NUMBER_KEYS = ("tp_prospects", "tp_accounts", "tp_enrichment_accounts")
_TEXT_KEYS = ("balance", "captchas", "stock_ticks")

_FRAME_BYTES = 5
_UNKNOWN_SCHEMA = b"\0\x7f\xff\xff\xff"


def hard(
    events: Iterable[Event], *, seed: int = 1, repeated_share: float = 0.02, malformed_share: float = 0.02
) -> Iterator[Event]:
    """Yield the events with some of them again, at once or a little later, and malformed ones between them.

    Every way in which an event can be malformed gets its turn. The same arguments give the same events.
    """
    choice = random.Random(seed)
    again: list[Event] = []
    turn = 0
    for event in events:
        yield event
        if choice.random() < repeated_share:
            again.append(event)
        if again and choice.random() < 1 / REPEATED_LATER_MAX:
            yield again.pop(0)
        ways = malformed_like(event)
        if ways and choice.random() < malformed_share:
            yield ways[turn % len(ways)]
            turn += 1
    yield from again


def malformed_like(event: Event) -> list[Event]:
    """Return one event for each way in which one like this can be malformed.

    An event whose type no table reads is passed over all the same, unless it is no longer framed.
    """
    keys: list[bytes | None] = []
    if event.topic in _NUMBER_KEYS:
        keys += [None, b"\xff\xfe", b"", b"one", b"12x", b"99999999999999999999"]
    elif event.topic in _TEXT_KEYS:
        keys += [None, b"\xff\xfe"]
    values: list[bytes | None] = []
    if event.topic in _AVRO_TOPICS and event.value is not None:
        values += _not_avro(event.value)
    elif event.topic in _FIELD_WITH_KEY:
        values += [None, b'{"action":"click","customer":"customer-1","time":"2026-11-21T10:00:00.000Z"}']
    if event.topic not in (*_AVRO_TOPICS, "stock_ticks") and event.value is not None:
        values += [b"", b"not json", event.value[:-1], event.value[: len(event.value) // 2]]
    return [event._replace(key=key) for key in keys] + [event._replace(value=value) for value in values]


def _not_avro(value: bytes) -> list[bytes | None]:
    body = value[_FRAME_BYTES:]
    # A schema id that nobody knows may be taken for the one known schema, where there is no registry: so its body does
    # not decode either.
    return [
        None,
        b"",
        b"\0",
        value[:_FRAME_BYTES],
        value[:-1],
        value[: _FRAME_BYTES + 1],
        b"\x01" + value[1:],
        body,
        b'{"rating": 1}',
        _UNKNOWN_SCHEMA + body[:1],
    ]


def late_actions(count: int, *, before_ms: int, seed: int = 1, browsers: int = 500) -> Iterator[Event]:
    """Yield actions of two to three hours before `before_ms`: send them when a batch has seen others of about then."""
    choice = random.Random(seed)
    for _ in range(count):
        time_ms = before_ms - choice.randint(2 * 3_600_000, 3 * 3_600_000)
        yield action(f"browser-{choice.randint(2, browsers)}", "late", time_ms)


def extreme_bookings(*, topic: str = "balance", registry: RegistrySettings | None = None) -> Iterator[Event]:
    """Yield bookings of the largest and smallest amounts, of both signs, that end at zero, and of odd customers."""
    bookings = Bookings(topic=topic, registry=registry)
    largest, smallest = Decimal("99999999999999.9999"), Decimal("0.0001")
    for customer_id, amounts in (
        ("extreme-large", [largest] * 3),
        ("extreme-negative", [-largest] * 3),
        ("extreme-small", [smallest]),
        ("extreme-below-zero", [-smallest]),
        ("extreme-minus-units", [Decimal("-10.5"), Decimal("-0.2501")]),
        ("extreme-zero", [Decimal("10.50"), Decimal("-10.50")]),
        ("extreme-both", [largest, -largest, -smallest]),
    ):
        for amount in amounts:
            yield bookings.added(customer_id, amount)
    for name in ODD_NAMES:
        yield bookings.added(name, smallest)
    yield bookings.reserved("extreme-only-reserved", "reservation-1")


def odd_ticks() -> Iterator[Event]:
    """Yield a price each of symbols that only look like stocks 1 to 3."""
    for symbol in ("stock-1\n", "\nstock-2", "Stock-3", "stock-1 ", "stock-01", "stock-0", "stock-4", "stock-\u0661"):
        yield tick(symbol, "1.00")


def odd_views() -> Iterator[Event]:
    """Yield a view each of products with odd names."""
    for name in ODD_NAMES:
        yield view(name, "customer-1")
