"""The declaration: how the table is kept. Check it: tablegate job check orders.py."""

from tablegate.jobs import Json, Mode, Source, Table

TABLE = Table(
    name="order_totals",  # as in the contract
    contract="orders.proto",
    # Records of the topic "orders" look like {"customer": "ann", "amount": 12.5}. There are Avro, Text, Long, …, too.
    source=Source("orders", Json("customer STRING, amount DOUBLE"), where="amount > 0"),
    # Spark SQL: an expression for each column of the row. Those of the key see one record …
    key={"customer": "customer"},
    # … and these are aggregates over all records of a key.
    columns={"order_count": "count(*)", "amount": "sum(amount)"},
    # A change is answered within a second or so. Mode.REALTIME does that in milliseconds, and takes more cores.
    mode=Mode.MICROBATCH,
)
