"""What the example tables' output topics must hold, from the folds and from the records of the sources."""

import json
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.kit.job.folds import INVOICE_SCHEMAS, LOYALTY_FACTOR, Fold, invoices_of
from tests.kit.job.laid_records import Record

POPULAR_VIEWS = 1_000

_INVOICE_FIELDS = ("InvoiceNumber", "CreatedTime", "StoreID", "CustomerType", "PaymentMethod", "DeliveryType")
_ADDRESS_FIELDS = ("City", "State", "PinCode")
_ITEM_FIELDS = ("ItemCode", "ItemDescription", "ItemPrice", "ItemQty", "TotalValue")


def rating_averages(ratings: Fold) -> dict[bytes, bytes]:
    """Return the newest record of each key of `rating-averages`: a Long, and a Double, big endian."""
    return {struct.pack(">q", key): struct.pack(">d", row["average_rating"]) for (key,), row in ratings.rows.items()}


def clients(customers: Fold) -> dict[bytes, dict[str, Any]]:
    """Return the JSON of each key of `tp_clients` whose newest record has a value."""
    return {str(key).encode(): {"id": key, **row} for (key,), row in customers.rows.items()}


def popular_products(product_views: Fold) -> set[str]:
    """Return the products that have one record each in `popular_products`."""
    return {product for (product,), row in product_views.rows.items() if row["view_count"] >= POPULAR_VIEWS}


def shipments(records: Iterable[Record], schemas: Mapping[int, str] = INVOICE_SCHEMAS) -> list[Record]:
    """Return the invoices that `shipment` has, as they are in their source."""
    found = invoices_of(records, schemas, set())
    return [record for record, fields in found if fields["DeliveryType"] == "HOME-DELIVERY"]


def hadoop_records(records: Iterable[Record], schemas: Mapping[int, str] = INVOICE_SCHEMAS) -> Iterator[dict[str, Any]]:
    """Yield the records of `hadoop-sink`: one for each line item, without what tells where the customer lives."""
    for _, fields in invoices_of(records, schemas, set()):
        address = fields["DeliveryAddress"] or {}
        for item in fields["InvoiceLineItems"]:
            yield {
                **{name: fields[name] for name in _INVOICE_FIELDS},
                **{name: address.get(name) for name in _ADDRESS_FIELDS},
                **{name: item[name] for name in _ITEM_FIELDS},
            }


def check_hadoop_records(
    found: Iterable[Mapping[str, Any]], records: Iterable[Record], schemas: Mapping[int, str] = INVOICE_SCHEMAS
) -> None:
    """Fail unless `found` are the records of `hadoop-sink`, in any order; a field that is null may be left out."""
    assert counted(found) == counted(hadoop_records(records, schemas))


def counted(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Return how often each row is there, as JSON without the fields that are null."""
    return Counter(
        json.dumps({name: value for name, value in row.items() if value is not None}, sort_keys=True) for row in rows
    )


def check_notifications(
    found: Iterable[Mapping[str, Any]], records: Iterable[Record], schemas: Mapping[int, str] = INVOICE_SCHEMAS
) -> None:
    """Fail unless `found` has each prime invoice once, and each card's totals are its running sum in some order."""
    expected = Counter(
        (
            fields["InvoiceNumber"],
            fields["CustomerCardNo"],
            fields["TotalAmount"],
            fields["TotalAmount"] * LOYALTY_FACTOR,
        )
        for _, fields in invoices_of(records, schemas, set())
        if fields["CustomerType"] == "PRIME"
    )
    cards: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    written: Counter[tuple[str, str, float, float]] = Counter()
    for one in found:
        card, earned = one["CustomerCardNo"], one["EarnedLoyaltyPoints"]
        written[one["InvoiceNumber"], card, one["TotalAmount"], earned] += 1
        cards[card].append((one["TotalLoyaltyPoints"], earned))
    assert written == expected, f"missing: {list(expected - written)[:5]}, too many: {list(written - expected)[:5]}"
    for card, steps in cards.items():
        sum_so_far = 0.0
        for total, earned in sorted(steps):
            sum_so_far += earned
            assert total == sum_so_far, f"totals of {card} are no running sum: {sorted(steps)}"
