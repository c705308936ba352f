"""Balance per customer: the exact sum of what was added."""

from tablegate.jobs import Avro, Mode, Source, Table, Text

FUNDS_ADDED_SCHEMA = """{
  "type": "record",
  "name": "FundsAdded",
  "namespace": "examples.balances",
  "fields": [
    {"name": "customerId", "type": "string"},
    {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 4}}
  ]
}"""
FUNDS_RESERVED_SCHEMA = """{
  "type": "record",
  "name": "FundsReserved",
  "namespace": "examples.balances",
  "fields": [
    {"name": "customerId", "type": "string"},
    {"name": "reservationId", "type": "string"}
  ]
}"""
"""Another type of event in the same topic: no money moves by it."""

TABLE = Table(
    name="balances",
    contract="examples/balances/v1/balances.proto",
    source=Source(
        "balance",
        Avro(FUNDS_ADDED_SCHEMA, others=(FUNDS_RESERVED_SCHEMA,)),
        key=Text("customer"),
        # Events are keyed by customer, so a row's version is its newest event's offset: one reads one's own payment.
        keyed=True,
    ),
    key={"customer_id": "customer"},
    columns={"balance": "sum(amount)", "booking_count": "count(*)", "update_time": "max(kafka.timestamp)"},
    mode=Mode.MICROBATCH,
)
