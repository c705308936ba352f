"""The folds that jobs are held to: known answers, orders, time, and what is malformed."""

import random
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
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
from tablegate.gateway.contract.binder.binder import bind, merge
from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.descriptors import load_descriptors

from tests.kit.job import fold_outputs, folds
from tests.kit.job.folds import Fold
from tests.kit.job.hard_events import (
    ODD_NAMES,
    extreme_bookings,
    hard,
    late_actions,
    malformed_like,
    odd_ticks,
    odd_views,
)
from tests.kit.job.laid_records import Record, lay
from tests.kit.table.filled import ROOT, catalogue_of

SYSTEMS = (ratings, balances, customers, browsers, invoices, stocks, products)
EXAMPLES = sorted((ROOT / "examples/tablegate/examples/contracts/examples").glob("*/v1/*.proto"))
TOPICS = {topic: count for system in SYSTEMS for topic, count in system.TOPICS.items()}
FOLDS: dict[str, tuple[Any, Callable[[list[Record]], Fold]]] = {
    "ratings": (ratings, folds.fold_ratings),
    "balances": (balances, folds.fold_balances),
    "customers": (customers, folds.fold_customers),
    "suspicious_browsers": (browsers, folds.fold_suspicious_browsers),
    "action_counts": (browsers, folds.fold_action_counts),
    "reward_points": (invoices, folds.fold_reward_points),
    "stock_ticks": (stocks, folds.fold_stock_ticks),
    "product_views": (products, folds.fold_product_views),
}


@cache
def example_tables() -> Mapping[str, Table]:
    return bind(merge([load_descriptors(path) for path in EXAMPLES])).tables


each_table = pytest.mark.parametrize("table", FOLDS)


def laid(events: Iterable[Event]) -> list[Record]:
    return lay(events, TOPICS)


def values(fold: Fold) -> dict[Any, dict[str, Any]]:
    """Return the rows without the times at which records came."""
    return {
        key: {name: value for name, value in row.items() if name != "update_time"} for key, row in fold.rows.items()
    }


class TestKnownAnswers:
    def test_tables(self) -> None:
        records = laid(event for system in SYSTEMS for event in system.known_events())
        known = {table: values(fold(records)) for table, (_, fold) in FOLDS.items()}
        actions = known.pop("action_counts")
        assert known == {
            "ratings": {(362,): {"average_rating": 9.0, "rating_count": 2}},
            "balances": {("customer-1",): {"balance": Decimal("14.75"), "booking_count": 2}},
            "customers": {(1,): {"name": "augusto", "account_number": "000.000.000-0", "status": "REGULAR"}},
            "suspicious_browsers": {("browser-1",): {"action_count": 6}},
            "reward_points": {("card-1",): {"points": 25.0, "invoice_count": 1}},
            "stock_ticks": {("stock-1",): {"price": "132.25"}},
            "product_views": {("product-1",): {"view_count": 3}},
        }
        assert {row["action_count"] for row in actions.values()} == {6}
        assert {key[1].isoformat() for key in actions} == {
            "2026-11-21T09:59:56+00:00",
            "2026-11-21T09:59:58+00:00",
            "2026-11-21T10:00:00+00:00",
        }

    @each_table
    def test_many_events_have_many_rows_of_the_contract(self, table: str) -> None:
        system, fold = FOLDS[table]
        found = fold(laid(system.events(20_000)))
        assert not found.malformed
        assert len(found.rows) >= 2
        contract = example_tables()[table]
        names = sorted(field.name for field in contract.row.fields)
        for key, row in found.rows.items():
            assert len(key) == len(contract.key)
            assert sorted([*(column.name for column in contract.key), *row]) == names


class TestHardEvents:
    @each_table
    def test_malformed_records_change_no_row(self, table: str) -> None:
        system, fold = FOLDS[table]
        good = [*system.known_events(), *system.events(5_000)]
        records = laid(hard(good, repeated_share=0.0, malformed_share=0.2))
        found = fold(records)
        assert len(found.malformed) > 100
        assert values(found) == values(fold(laid(good)))
        read = {place.topic for place in found.malformed}
        added = sum(record.topic in read for record in records) - sum(event.topic in read for event in good)
        # A record of a type that the table does not read may be as broken as it likes.
        assert added == len(found.malformed) + found.ignored - fold(laid(good)).ignored

    @pytest.mark.parametrize(
        ("fold", "event"),
        [
            (folds.fold_ratings, next(ratings.known_events())),
            (folds.fold_balances, next(balances.known_events())),
            (folds.fold_customers, customers.prospect(1, "a")),
            (folds.fold_customers, customers.account(1, "a")),
            (folds.fold_customers, customers.enrichment(1, "a")),
            (folds.fold_customers, customers.deleted(customers.ACCOUNTS, 1)),
            (folds.fold_suspicious_browsers, browsers.action("b", "click", START_MS)),
            (folds.fold_suspicious_browsers, browsers.captcha("b", passed=True)),
            (folds.fold_suspicious_browsers, browsers.forgotten("b")),
            (folds.fold_action_counts, browsers.action("b", "click", START_MS)),
            (folds.fold_reward_points, next(invoices.known_events())),
            (folds.fold_stock_ticks, stocks.tick("stock-1", "1.00")),
            (folds.fold_stock_ticks, stocks.tick("stock-1", None)),
            (folds.fold_product_views, products.view("p", "c")),
        ],
    )
    def test_every_way_to_be_malformed_is_found(self, fold: Callable[[list[Record]], Fold], event: Event) -> None:
        assert not fold(laid([event])).malformed
        ways = malformed_like(event)
        assert len(ways) > 1
        for way in ways:
            records = laid([way])
            assert fold(records) == Fold({}, frozenset({records[0].place})), way

    def test_repeated_events_come_again(self) -> None:
        good = list(products.events(5_000))
        repeated = list(hard(good, repeated_share=0.1, malformed_share=0.0))
        assert 300 < len(repeated) - len(good) < 700
        assert set(repeated) == set(good)
        views = folds.fold_product_views(laid(repeated)).rows.values()
        assert sum(row["view_count"] for row in views) == len(repeated)

    def test_same_seed_same_events(self) -> None:
        good = list(browsers.events(1_000))
        assert list(hard(good, seed=3)) == list(hard(good, seed=3)) != list(hard(good, seed=4))

    def test_extreme_bookings(self) -> None:
        found = {key[0]: row["balance"] for key, row in folds.fold_balances(laid(extreme_bookings())).rows.items()}
        assert found.pop("extreme-large") == Decimal("299999999999999.9997")
        assert found.pop("extreme-negative") == Decimal("-299999999999999.9997")
        assert found.pop("extreme-small") == Decimal("0.0001")
        assert found.pop("extreme-below-zero") == found.pop("extreme-both") == Decimal("-0.0001")
        assert found.pop("extreme-minus-units") == Decimal("-10.7501")
        assert found.pop("extreme-zero") == 0
        assert found.keys() == set(ODD_NAMES)

    def test_odd_ticks(self) -> None:
        assert folds.fold_stock_ticks(laid(odd_ticks())) == Fold({}, frozenset())

    def test_odd_views(self) -> None:
        assert folds.fold_product_views(laid(odd_views())).rows.keys() == {(name,) for name in ODD_NAMES}


SIDES = [
    customers.prospect(1, "a"),
    customers.prospect(1, "b"),
    customers.account(1, "1"),
    customers.deleted(customers.ACCOUNTS, 1),
    customers.account(1, "2"),
    customers.enrichment(1, "REGULAR"),
]


class TestCustomers:
    @given(st.permutations(range(3)).flatmap(lambda _: st.lists(st.integers(0, 2), min_size=30, max_size=30)))
    def test_topics_may_come_in_any_order(self, turns: list[int]) -> None:
        waiting = [[event for event in SIDES if event.topic == topic] for topic in customers.TOPICS]
        events = [waiting[turn].pop(0) for turn in turns if waiting[turn]]
        events += [event for rest in waiting for event in rest]
        expected = {"name": "b", "account_number": "2", "status": "REGULAR"}
        assert folds.fold_customers(laid(events)).rows == {(1,): expected}

    @pytest.mark.parametrize("topic", customers.TOPICS)
    def test_any_side_that_is_deleted_or_missing_takes_the_row(self, topic: str) -> None:
        assert not folds.fold_customers(laid([*SIDES, customers.deleted(topic, 1)])).rows
        assert not folds.fold_customers(laid(event for event in SIDES if event.topic != topic)).rows

    def test_records_of_a_key_in_two_partitions_have_no_newest(self) -> None:
        event = customers.prospect(1, "a")
        with pytest.raises(ValueError, match="lie in two partitions"):
            folds.fold_customers(laid([event._replace(partition=0), event._replace(partition=1)]))

    def test_clients(self) -> None:
        found = folds.fold_customers(laid(customers.known_events()))
        client = {"id": 1, "name": "augusto", "account_number": "000.000.000-0", "status": "REGULAR"}
        assert fold_outputs.clients(found) == {b"1": client}


class TestBrowsers:
    CLICKS = tuple(browsers.action("b", "click", START_MS) for _ in range(5))

    def test_fewer_actions_are_not_suspicious(self) -> None:
        assert not folds.fold_suspicious_browsers(laid(self.CLICKS[1:])).rows

    @pytest.mark.parametrize(
        ("outcomes", "suspicious"),
        [
            ([browsers.captcha("b", passed=True)], False),
            ([browsers.captcha("b", passed=False)], True),
            ([browsers.captcha("b", passed=True), browsers.captcha("b", passed=False)], True),
            ([browsers.captcha("b", passed=True), browsers.forgotten("b")], True),
            ([browsers.forgotten("b"), browsers.captcha("b", passed=True)], False),
            ([browsers.captcha("another", passed=True)], True),
        ],
    )
    def test_the_latest_captcha_counts(self, outcomes: list[Event], suspicious: bool) -> None:
        for events in ([*self.CLICKS, *outcomes], [*outcomes, *self.CLICKS]):
            rows = folds.fold_suspicious_browsers(laid(events)).rows
            assert rows == ({("b",): {"action_count": 5}} if suspicious else {})


class TestWindows:
    @given(st.integers(0, 2**42))
    def test_an_event_is_in_each_window_around_it(self, time_ms: int) -> None:
        near = range((time_ms // 2_000 - 5) * 2_000, time_ms + 10_000, 2_000)
        around = {start for start in near if start <= time_ms < start + 5_000}
        assert set(folds.window_starts_ms(time_ms)) == around
        assert len(around) in (2, 3)

    def test_counts(self) -> None:
        clock = steady_clock(step_ms=1_000)
        found = folds.fold_action_counts(laid(browsers.action("b", "click", clock()) for _ in range(3)))
        starts = {key[1]: (row["window_end"], row["action_count"]) for key, row in found.rows.items()}

        def at(second: int) -> datetime:
            return datetime(2026, 11, 21, 10, tzinfo=UTC) + timedelta(seconds=second)

        assert starts == {at(-4): (at(1), 1), at(-2): (at(3), 3), at(0): (at(5), 3), at(2): (at(7), 1)}

    def test_late_actions_are_dropped(self) -> None:
        in_time = list(browsers.events(5_000))
        records = laid([*in_time, *late_actions(500, before_ms=START_MS), *browsers.events(1_000, seed=2)])
        found = folds.fold_action_counts(records)
        assert found.late == 500
        expected = folds.fold_action_counts(laid([*in_time, *browsers.events(1_000, seed=2)]))
        assert (found.rows, expected.late) == (expected.rows, 0)

    def test_what_is_neither_late_nor_in_time_is_refused(self) -> None:
        events = [browsers.action("b", "click", START_MS - behind_ms) for behind_ms in (0, 10_001)]
        with pytest.raises(ValueError, match="is 10001 ms behind"):
            folds.fold_action_counts(laid(events))


class TestStocks:
    @pytest.mark.parametrize(
        ("ticks", "price"),
        [
            ([("stock-3", "1.00"), ("stock-3", "2.00")], "2.00"),
            ([("stock-3", "1.00"), ("stock-3", "")], None),
            ([("stock-3", "1.00"), ("stock-3", None)], None),
            ([("stock-3", None), ("stock-3", "1.00")], "1.00"),
            ([("stock-4", "1.00")], None),
            ([("stock-12", "1.00")], None),
            ([("my-stock-2", "1.00")], None),
        ],
    )
    def test_newest_price_of_three_stocks(self, ticks: list[tuple[str, str | None]], price: str | None) -> None:
        rows = folds.fold_stock_ticks(laid(stocks.tick(symbol, price) for symbol, price in ticks)).rows
        assert [row["price"] for row in rows.values()] == ([] if price is None else [price])


def test_reservations_are_ignored_and_counted() -> None:
    events = list(balances.events(2_000))
    found = folds.fold_balances(laid(events))
    assert found.ignored == sum((event.value or b"")[4] == 2 for event in events)
    assert sum(row["booking_count"] for row in found.rows.values()) + found.ignored == 2_000


def test_update_time_is_that_of_the_newest_record() -> None:
    events = [event._replace(timestamp_ms=ms) for event, ms in zip(ratings.known_events(), (2_000, 1_001), strict=True)]
    (row,) = folds.fold_ratings(laid(events)).rows.values()
    assert row["update_time"] == datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)


def test_columns_of_a_row_message() -> None:
    row: Any = catalogue_of().tables["ratings"].row_class(movie_id=362, average_rating=9.0)
    assert folds.columns_of(row) == {"movie_id": 362, "average_rating": 9.0, "rating_count": 0, "update_time": None}
    row.update_time.FromMilliseconds(START_MS + 1)
    assert folds.columns_of(row)["update_time"] == datetime(2026, 11, 21, 10, 0, 0, 1_000, tzinfo=UTC)


class TestOutputs:
    def test_rating_averages(self) -> None:
        found = folds.fold_ratings(laid(ratings.known_events()))
        assert fold_outputs.rating_averages(found) == {(362).to_bytes(8, "big"): struct.pack(">d", 9.0)}

    def test_popular_products(self) -> None:
        events = [products.view("a", "c")] * 1_000 + [products.view("b", "c")] * 999
        assert fold_outputs.popular_products(folds.fold_product_views(laid(events))) == {"a"}

    def test_shipments_are_the_invoices_that_are_delivered(self) -> None:
        records = laid(invoices.events(200))
        shipped = fold_outputs.shipments(records)
        assert 0 < len(shipped) < len(records)
        assert all(b"HOME-DELIVERY" in (record.value or b"") for record in shipped)
        assert all(b"TAKEAWAY" in (record.value or b"") for record in records if record not in shipped)

    def test_hadoop_records_have_no_address_line_and_no_phone(self) -> None:
        records = laid(invoices.events(200))
        found = list(fold_outputs.hadoop_records(records))
        assert len(found) > len(records)
        assert {len(one) for one in found} == {14}
        assert any(one["City"] for one in found)
        assert not any("Station Road" in str(one) or "Address" in str(one) for one in found)
        fold_outputs.check_hadoop_records(reversed(found), records)
        without_nulls = [{name: value for name, value in one.items() if value is not None} for one in found]
        fold_outputs.check_hadoop_records(without_nulls, records)
        for wrong in (found[1:], [*found, found[0]], [{**found[0], "ItemQty": 99}, *found[1:]]):
            with pytest.raises(AssertionError):
                fold_outputs.check_hadoop_records(wrong, records)


class TestNotifications:
    def setup_method(self) -> None:
        self.records = laid(invoices.events(500, cards=20))
        totals: dict[str, float] = {}
        self.good: list[dict[str, Any]] = []
        shuffled = list(folds.invoices_of(self.records, folds.INVOICE_SCHEMAS, set()))
        random.Random(1).shuffle(shuffled)
        for _, invoice in shuffled:
            if invoice["CustomerType"] == "PRIME":
                card, earned = invoice["CustomerCardNo"], invoice["TotalAmount"] * 0.02
                totals[card] = totals.get(card, 0.0) + earned
                self.good.append(
                    {
                        **{name: invoice[name] for name in ("InvoiceNumber", "CustomerCardNo", "TotalAmount")},
                        "EarnedLoyaltyPoints": earned,
                        "TotalLoyaltyPoints": totals[card],
                    }
                )
        self.totals = totals

    def test_any_order_is_right(self) -> None:
        fold_outputs.check_notifications(reversed(self.good), self.records)
        points = folds.fold_reward_points(self.records).rows
        assert {card: row["points"] for (card,), row in points.items()} == self.totals

    @pytest.mark.parametrize(
        "plant",
        [
            lambda good: good.pop(),
            lambda good: good.append(good[-1]),
            lambda good: good[-1].update(TotalLoyaltyPoints=good[-1]["TotalLoyaltyPoints"] + 0.25),
            lambda good: good[-1].update(EarnedLoyaltyPoints=0.0),
            lambda good: good[-1].update(TotalLoyaltyPoints=good[-1]["EarnedLoyaltyPoints"]),
            lambda good: good[-1].update(CustomerCardNo="card-99"),
        ],
        ids=["lost", "twice", "total", "earned", "no sum", "card"],
    )
    def test_what_is_wrong_is_found(self, plant: Callable[[list[dict[str, Any]]], object]) -> None:
        plant(self.good)
        with pytest.raises(AssertionError):
            fold_outputs.check_notifications(self.good, self.records)
