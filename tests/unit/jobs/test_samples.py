"""Sample events: the same for the same arguments, with known answers, and framed as their producers do."""

import itertools
import json
from collections import Counter
from datetime import datetime
from decimal import Decimal
from functools import cache
from io import BytesIO
from types import ModuleType
from typing import Any

import fastavro
import pytest

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
from tablegate.examples.samples.events import START_MS, AvroValues
from tablegate.examples.tables.balances import FUNDS_ADDED_SCHEMA, FUNDS_RESERVED_SCHEMA
from tablegate.examples.tables.ratings import RATING_SCHEMA
from tablegate.examples.tables.reward_points import POS_INVOICE_SCHEMA
from tablegate.gateway.contract.registry_settings import RegistrySettings
from tablegate.jobs.jars import SetupError

pytestmark = pytest.mark.tools

SYSTEMS = [ratings, balances, customers, browsers, invoices, stocks, products]
AVRO = {
    "ratings": {1: RATING_SCHEMA},
    "balance": {1: FUNDS_ADDED_SCHEMA, 2: FUNDS_RESERVED_SCHEMA},
    "pos_invoices": {1: POS_INVOICE_SCHEMA},
}

each_system = pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.__name__.rpartition(".")[2])


def fields_of(event: Event) -> Any:
    assert event.value is not None
    if event.topic not in AVRO:
        return json.loads(event.value)
    assert event.value[0] == 0
    body = BytesIO(event.value[5:])
    fields = fastavro.schemaless_reader(body, _schema(event.topic, int.from_bytes(event.value[1:5], "big")), None)
    assert body.read() == b""
    return fields


@cache
def _schema(topic: str, schema_id: int) -> Any:
    return fastavro.parse_schema(json.loads(AVRO[topic][schema_id]))


@each_system
class TestEachSystem:
    def test_same_arguments_same_events(self, system: ModuleType) -> None:
        some = list(system.events(2_000, seed=7))
        assert len(some) == 2_000
        assert some == list(itertools.islice(system.events(seed=7), 2_000))
        assert some != list(system.events(2_000, seed=8))

    def test_keys_of_known_events_are_left_alone(self, system: ModuleType) -> None:
        known = {_subject(event) for event in system.known_events()}
        others = {_subject(event) for event in system.events(20_000)}
        assert len(known) == 1
        assert len(others) > 10
        assert not known & others

    def test_topics(self, system: ModuleType) -> None:
        events = [*system.known_events(), *system.events(1_000)]
        assert {event.topic for event in events} == set(system.TOPICS)
        assert all(event.key is not None and event.partition is event.timestamp_ms is None for event in events)


def _subject(event: Event) -> object:
    """Return what answers are known of: of invoices the card, else the key."""
    return fields_of(event)["CustomerCardNo"] if event.topic == invoices.TOPIC else event.key


def test_ratings_are_halves_of_each_movie() -> None:
    found = [fields_of(event) for event in ratings.events(20_000)]
    assert {one["movie_id"] for one in found} == set(range(1, 501)) - {362}
    assert all(1.0 <= one["rating"] <= 10.0 and one["rating"] * 2 == int(one["rating"] * 2) for one in found)
    known = [fields_of(event)["rating"] for event in ratings.known_events()]
    assert (sum(known) / len(known), len(known)) == (9.0, 2)


def test_balance_has_two_record_types_with_ids_in_their_order() -> None:
    events = list(balances.events(2_000))
    kinds = Counter((event.value or b"")[4] for event in events)
    assert kinds.keys() == {1, 2}
    assert kinds[1] > kinds[2] > 100
    for event in events:
        fields = fields_of(event)
        assert event.key == fields["customerId"].encode()
        assert ("amount" in fields) == ((event.value or b"")[4] == 1)
    assert sum(fields_of(event)["amount"] for event in balances.known_events()) == Decimal("14.75")


def test_customers_are_as_the_known_one() -> None:
    assert {event.topic: event.value for event in customers.known_events()} == {
        "tp_prospects": b'{"id":1,"name":"augusto"}',
        "tp_accounts": b'{"id":1,"accountNumber":"000.000.000-0"}',
        "tp_enrichment_accounts": b'{"id":1,"status":"REGULAR"}',
    }
    deleted = 0
    for event in customers.events(5_000):
        if event.value is None:
            deleted += 1
        else:
            assert str(fields_of(event)["id"]).encode() == event.key
    assert deleted > 100


class TestTimes:
    def test_actions_are_near_the_clock(self) -> None:
        events = browsers.events(2_000, clock=steady_clock(START_MS, step_ms=500))
        for number, event in enumerate(events):
            if event.topic == browsers.ACTIONS:
                fields = fields_of(event)
                assert len(fields["time"]) == len("2026-11-21T10:00:00.123Z")
                behind_ms = START_MS + number * 500 - datetime.fromisoformat(fields["time"]).timestamp() * 1000
                assert 0 <= behind_ms <= 2_000
                assert event.key == fields["browser"].encode()

    def test_text_of_a_time(self) -> None:
        assert fields_of(browsers.action("b", "click", START_MS + 7))["time"] == "2026-11-21T10:00:00.007Z"

    def test_invoices_have_the_time_of_the_clock(self) -> None:
        created = [fields_of(event)["CreatedTime"] for event in invoices.events(3, clock=steady_clock(5, step_ms=10))]
        assert created == [5, 15, 25]


def test_captchas_are_passed_failed_and_forgotten() -> None:
    found = [event for event in browsers.events(20_000) if event.topic == browsers.CAPTCHAS]
    kinds = Counter(None if event.value is None else fields_of(event)["passed"] for event in found)
    assert kinds.keys() == {True, False, None}
    assert min(kinds.values()) > 100


def test_invoices_add_up() -> None:
    found = [fields_of(event) for event in [*invoices.events(2_000, seed=1), *invoices.events(2_000, seed=2)]]
    assert len({one["InvoiceNumber"] for one in found}) == len(found)
    for one in found:
        assert one["TotalAmount"] == sum(item["TotalValue"] for item in one["InvoiceLineItems"])
        assert one["TotalAmount"] % 12.5 == 0
        assert (one["TotalAmount"] * 0.02 * 4).is_integer()
        assert one["NumberOfItems"] == len(one["InvoiceLineItems"])
        assert (one["DeliveryType"] == "HOME-DELIVERY") == (one["DeliveryAddress"] is not None)
    assert len({(one["CustomerType"], one["DeliveryType"]) for one in found}) == 4


def test_stocks_have_prices_empty_ones_and_deletes() -> None:
    events = list(stocks.events(20_000))
    assert {b"stock-2", b"stock-3", b"stock-12", b"my-stock-2"} < {event.key for event in events}
    assert len([event for event in events if event.value is None]) > 100
    assert len([event for event in events if event.value == b""]) > 100
    assert all(event.value is None or event.value == b"" or float(event.value) > 0 for event in events)


def test_some_products_are_popular_and_most_are_not() -> None:
    counts = Counter(event.key for event in products.events(20_000))
    popular = [key for key, count in counts.items() if count >= 1_000]
    assert 2 <= len(popular) <= len(counts) / 4


def test_registry_that_is_away() -> None:
    away = "http://127.0.0.1:1"
    with pytest.raises(SetupError, match=rf"^no schema registry answers at {away} \(.+\); start it"):
        next(balances.events(registry=RegistrySettings(url=away)))


def test_record_of_another_schema_is_no_event() -> None:
    values = AvroValues("ratings", RATING_SCHEMA, registry=None)
    with pytest.raises(ValueError, match="movie_id"):
        values.frame(RATING_SCHEMA, {"rating": 1.0})
