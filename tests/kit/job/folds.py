"""The example tables, folded in plain Python from the records of their sources: what a job must come to.

Each fold takes records in any order and returns the rows by key, times as `datetime`, money as `Decimal`; rows of a
gateway become the same by `columns_of`. `schemas` are those of the topic's Avro by id: by default the ids that a
producer without a registry gives.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_DOWN, Decimal
from typing import Any

from google.protobuf.message import Message
from tablegate.examples.tables.balances import FUNDS_ADDED_SCHEMA, FUNDS_RESERVED_SCHEMA
from tablegate.examples.tables.ratings import RATING_SCHEMA
from tablegate.examples.tables.reward_points import POS_INVOICE_SCHEMA

from tests.kit.job.laid_records import (
    Malformed,
    Place,
    Record,
    avro_value,
    decoded,
    json_value,
    newest,
    number_key,
    text_key,
)

RATING_SCHEMAS = {1: RATING_SCHEMA}
BALANCE_SCHEMAS = {1: FUNDS_ADDED_SCHEMA, 2: FUNDS_RESERVED_SCHEMA}
INVOICE_SCHEMAS = {1: POS_INVOICE_SCHEMA}

SUSPICIOUS_ACTIONS_MIN = 5
LOYALTY_FACTOR = 0.02
WINDOW_SIZE_MS = 5_000
WINDOW_HOP_MS = 2_000
LATENESS_MS = 10_000
CLEARLY_LATE_MS = 3_600_000  # between the two it depends on batches, so tests have no such records

_STOCK = re.compile("stock-[1-3]")
_NANO = Decimal("1e-9")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Rows = dict[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Fold:
    """What a table comes to: its rows, and the records that made none.

    `malformed` are set aside, `ignored` are of another type than the table reads, `late` came after their windows.
    """

    rows: Rows
    malformed: frozenset[Place]
    ignored: int = 0
    late: int = 0


def time_of(time_ms: int) -> datetime:
    """Return the time so many milliseconds since 1970."""
    return _EPOCH + timedelta(milliseconds=time_ms)


def columns_of(row: Message) -> dict[str, Any]:
    """Return the columns of a row message as the folds have them; one that is not set is None."""
    columns: dict[str, Any] = {}
    for column in row.DESCRIPTOR.fields:
        value: Any = getattr(row, column.name)
        if column.has_presence and not row.HasField(column.name):
            value = None
        elif column.message_type is not None and column.message_type.full_name == "google.protobuf.Timestamp":
            value = value.ToDatetime(tzinfo=UTC)
        elif column.message_type is not None:
            value = value.units + value.nanos * _NANO
        columns[column.name] = value
    return columns


def fold_ratings(records: Iterable[Record], schemas: Mapping[int, str] = RATING_SCHEMAS) -> Fold:
    """Return the average of each movie; ratings are halves, so that it is exact."""
    malformed: set[Place] = set()
    ratings: defaultdict[int, list[float]] = defaultdict(list)
    times_ms: dict[int, int] = {}
    for record, fields in _only(records, "ratings", "Rating", schemas, malformed):
        movie_id = fields["movie_id"]
        ratings[movie_id].append(fields["rating"])
        times_ms[movie_id] = max(times_ms.get(movie_id, 0), record.timestamp_ms)
    rows: Rows = {
        (movie_id,): {
            "average_rating": sum(given) / len(given),
            "rating_count": len(given),
            "update_time": time_of(times_ms[movie_id]),
        }
        for movie_id, given in ratings.items()
    }
    return Fold(rows, frozenset(malformed))


def fold_customers(records: Iterable[Record]) -> Fold:
    """Return the customers that have all three sides."""
    records = list(records)
    malformed: set[Place] = set()
    names = _side(records, "tp_prospects", "name", malformed)
    numbers = _side(records, "tp_accounts", "accountNumber", malformed)
    statuses = _side(records, "tp_enrichment_accounts", "status", malformed)
    rows: Rows = {
        (key,): {"name": names[key], "account_number": numbers[key], "status": statuses[key]}
        for key in names.keys() & numbers.keys() & statuses.keys()
    }
    return Fold(rows, frozenset(malformed))


def _side(records: Iterable[Record], topic: str, field: str, malformed: set[Place]) -> dict[int, str]:
    def decode(record: Record) -> tuple[int, str | None]:
        key = number_key(record)
        return key, None if record.value is None else json_value(record)[field]

    found = newest(decoded(records, topic, decode, malformed))
    return {key: content for key, (_, content) in found.items() if content is not None}


def fold_suspicious_browsers(records: Iterable[Record]) -> Fold:
    """Return the browsers with many actions that have not passed their latest captcha."""
    records = list(records)
    malformed: set[Place] = set()
    counts = Counter(browser for _, (browser, _) in decoded(records, "browser_actions", _action, malformed))

    def decode(record: Record) -> tuple[str, bool]:
        browser = text_key(record)
        return browser, record.value is not None and json_value(record)["passed"]

    captchas = newest(decoded(records, "captchas", decode, malformed))
    passed = {browser for browser, (_, has_passed) in captchas.items() if has_passed}
    rows: Rows = {
        (browser,): {"action_count": count}
        for browser, count in counts.items()
        if count >= SUSPICIOUS_ACTIONS_MIN and browser not in passed
    }
    return Fold(rows, frozenset(malformed))


def fold_user_browsers(records: Iterable[Record]) -> Fold:
    """Return the browsers with many actions whose user, who is the browser's last character, has passed no captcha.

    All captchas were there before the first action.
    """
    records = list(records)
    malformed: set[Place] = set()

    def decode(record: Record) -> tuple[str, bool]:
        return text_key(record), record.value is not None and json_value(record)["passed"]

    captchas = newest(decoded(records, "user_captchas", decode, malformed))
    passed = {user for user, (_, has_passed) in captchas.items() if has_passed}
    counts = Counter(
        browser
        for _, (browser, _) in decoded(records, "browser_actions", _action, malformed)
        if f"user-{browser[-1]}" not in passed
    )
    rows: Rows = {
        (browser,): {"action_count": count} for browser, count in counts.items() if count >= SUSPICIOUS_ACTIONS_MIN
    }
    return Fold(rows, frozenset(malformed))


def fold_action_counts(records: Iterable[Record], *, by_arrival: bool = False) -> Fold:
    """Return the actions of each browser and window; raise where a record is neither clearly late nor in time.

    `by_arrival`: windows are of the time that Kafka has of a record, not of that in it.
    """
    malformed: set[Place] = set()
    actions = sorted(
        decoded(records, "browser_actions", _action, malformed),
        key=lambda action: (action[0].timestamp_ms, action[0].place),
    )
    counts: Counter[tuple[str, int]] = Counter()
    newest_ms, late = 0, 0
    for record, (browser, told_ms) in actions:
        time_ms = record.timestamp_ms if by_arrival else told_ms
        newest_ms = max(newest_ms, time_ms)
        if time_ms < newest_ms - CLEARLY_LATE_MS:
            late += 1
        elif time_ms < newest_ms - LATENESS_MS:
            raise ValueError(
                f"{record.place} is {newest_ms - time_ms} ms behind: whether that is late is up to batches"
            )
        else:
            counts.update((browser, start_ms) for start_ms in window_starts_ms(time_ms))
    rows: Rows = {
        (browser, time_of(start_ms)): {"window_end": time_of(start_ms + WINDOW_SIZE_MS), "action_count": count}
        for (browser, start_ms), count in counts.items()
    }
    return Fold(rows, frozenset(malformed), late=late)


def window_starts_ms(time_ms: int) -> Iterator[int]:
    """Yield the starts of the windows that an event is in, the last first."""
    start_ms = time_ms - time_ms % WINDOW_HOP_MS
    while start_ms > time_ms - WINDOW_SIZE_MS:
        yield start_ms
        start_ms -= WINDOW_HOP_MS


def _action(record: Record) -> tuple[str, int]:
    fields = json_value(record)
    if fields.get("browser") is None:
        raise Malformed("no browser")
    time = datetime.fromisoformat(fields["time"])
    return fields["browser"], (time - _EPOCH) // timedelta(milliseconds=1)


def fold_balances(records: Iterable[Record], schemas: Mapping[int, str] = BALANCE_SCHEMAS) -> Fold:
    """Return the sum of each customer's bookings."""

    def decode(record: Record) -> tuple[str, Decimal] | None:
        fields = avro_value(record, "FundsAdded", schemas)
        return None if fields is None else (text_key(record), fields["amount"])

    malformed: set[Place] = set()
    amounts: defaultdict[str, list[Decimal]] = defaultdict(list)
    times_ms: dict[str, int] = {}
    ignored = 0
    for record, booking in decoded(records, "balance", decode, malformed):
        if booking is None:
            ignored += 1
            continue
        customer_id, amount = booking
        amounts[customer_id].append(amount)
        times_ms[customer_id] = max(times_ms.get(customer_id, 0), record.timestamp_ms)
    rows: Rows = {
        (customer_id,): {
            "balance": sum(booked, Decimal(0)).quantize(_NANO, rounding=ROUND_DOWN),
            "booking_count": len(booked),
            "update_time": time_of(times_ms[customer_id]),
        }
        for customer_id, booked in amounts.items()
    }
    return Fold(rows, frozenset(malformed), ignored=ignored)


def fold_reward_points(records: Iterable[Record], schemas: Mapping[int, str] = INVOICE_SCHEMAS) -> Fold:
    """Return what the prime invoices of each card have earned; amounts are multiples of 12.50, so that it is exact."""
    malformed: set[Place] = set()
    amounts: defaultdict[str, list[float]] = defaultdict(list)
    times_ms: dict[str, int] = {}
    for record, fields in invoices_of(records, schemas, malformed):
        if fields["CustomerType"] == "PRIME":
            card = fields["CustomerCardNo"]
            amounts[card].append(fields["TotalAmount"])
            times_ms[card] = max(times_ms.get(card, 0), record.timestamp_ms)
    rows: Rows = {
        (card,): {
            "points": sum(earned) * LOYALTY_FACTOR,
            "invoice_count": len(earned),
            "update_time": time_of(times_ms[card]),
        }
        for card, earned in amounts.items()
    }
    return Fold(rows, frozenset(malformed))


def invoices_of(
    records: Iterable[Record], schemas: Mapping[int, str], malformed: set[Place]
) -> Iterator[tuple[Record, dict[str, Any]]]:
    """Yield the invoices with their fields."""
    return _only(records, "pos_invoices", "PosInvoice", schemas, malformed)


def _only(
    records: Iterable[Record], topic: str, name: str, schemas: Mapping[int, str], malformed: set[Place]
) -> Iterator[tuple[Record, dict[str, Any]]]:
    """Yield the records of a topic that has no other type than `name`, with their fields."""
    for record, fields in decoded(records, topic, lambda record: avro_value(record, name, schemas), malformed):
        assert fields is not None, f"{topic} has one type of record"
        yield record, fields


def fold_stock_ticks(records: Iterable[Record]) -> Fold:
    """Return the latest price of stocks 1 to 3, where there is one."""
    malformed: set[Place] = set()
    found = newest(
        decoded(records, "stock_ticks", lambda record: (text_key(record), (record.value or b"").decode()), malformed)
    )
    rows: Rows = {
        (symbol,): {"price": price, "update_time": time_of(record.timestamp_ms)}
        for symbol, (record, price) in found.items()
        if _STOCK.fullmatch(symbol) and price
    }
    return Fold(rows, frozenset(malformed))


def fold_product_views(records: Iterable[Record]) -> Fold:
    """Return the views of each product."""

    def decode(record: Record) -> str:
        product = json_value(record).get("product")
        if not isinstance(product, str):
            raise Malformed("no product")
        return product

    malformed: set[Place] = set()
    counts = Counter(product for _, product in decoded(records, "product_views", decode, malformed))
    return Fold({(product,): {"view_count": count} for product, count in counts.items()}, frozenset(malformed))
