"""Points per customer card, over the invoices of all stores; and three topics made from the same invoices."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tablegate.jobs import (
    Avro,
    Bytes,
    Json,
    Mode,
    Processor,
    ProcessorOutput,
    RecordOutput,
    Source,
    Table,
    Text,
)

POS_INVOICE_SCHEMA = Path(__file__).with_name("pos_invoice.avsc").read_text().strip()
LOYALTY_FACTOR = float(os.environ.get("LOYALTY_FACTOR", "0.02"))
"""Points for each unit of money."""


class Notifications(Processor):
    """One notification for each invoice of a prime customer, with the card's running total."""

    state = "total DOUBLE"
    emits = "invoice STRING, amount DOUBLE, earned DOUBLE, total DOUBLE"
    reads = ("InvoiceNumber", "CustomerType", "TotalAmount")

    def on_record(self, key: Any, record: Any, state: Any) -> Iterator[dict[str, object]]:  # noqa: ARG002
        """Add an invoice's points."""
        if record.CustomerType == "PRIME":
            earned = record.TotalAmount * LOYALTY_FACTOR
            state.total += earned
            amount = record.TotalAmount
            yield {"invoice": record.InvoiceNumber, "amount": amount, "earned": earned, "total": state.total}


INVOICE = "InvoiceNumber, CreatedTime, StoreID, CustomerType, PaymentMethod, DeliveryType"
# Where a customer lives and how to call them stays out.
PLACE = "DeliveryAddress.City, DeliveryAddress.State, DeliveryAddress.PinCode"

TABLE = Table(
    name="reward_points",
    contract="examples/rewards/v1/rewards.proto",
    # Invoices are keyed by store: the sum is over a card's invoices of every store, so it has a key of its own.
    source=Source("pos_invoices", Avro(POS_INVOICE_SCHEMA)),
    key={"customer_card_no": "CustomerCardNo"},
    columns={
        "points": f"sum(TotalAmount) FILTER (WHERE CustomerType = 'PRIME') * {LOYALTY_FACTOR}D",
        "invoice_count": "count_if(CustomerType = 'PRIME')",
        "update_time": "max(kafka.timestamp) FILTER (WHERE CustomerType = 'PRIME')",
    },
    having="invoice_count > 0",
    outputs=(
        RecordOutput(
            "shipment", key=Text("StoreID"), value=Bytes("kafka.value"), where="DeliveryType = 'HOME-DELIVERY'"
        ),
        RecordOutput(
            "hadoop-sink",
            each="InvoiceLineItems",
            key=Text("StoreID"),
            value=Json(f"{INVOICE}, {PLACE}, item.*"),
        ),
        ProcessorOutput(
            "notification",
            processor=Notifications(),
            by={"card": "CustomerCardNo"},
            key=Text("invoice"),
            value=Json(
                "invoice AS InvoiceNumber, card AS CustomerCardNo, amount AS TotalAmount, "
                "earned AS EarnedLoyaltyPoints, total AS TotalLoyaltyPoints"
            ),
        ),
    ),
    mode=Mode.MICROBATCH,
)
