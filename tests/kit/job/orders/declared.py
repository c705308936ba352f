"""A table of protobuf records."""

from tablegate.jobs.table import Mode, Protobuf, Source, Table

ORDER = Protobuf("tests.orders.Order", file="orders.proto")
LINE = Protobuf("tests.orders.Order.Line", file="orders.proto")
LEGACY = Protobuf("tests.orders.Legacy", file="legacy.proto", framed=False)


def table_of(topic: str = "orders", *, value: Protobuf = ORDER, key: Protobuf | None = None) -> Table:
    """Return the table of a topic whose records are in these formats."""
    names = ", ".join(f"`{name}`" for name in value.field_names)
    return Table(
        name="customer_totals",
        contract="totals.proto",
        source=Source(topic, value, key=key),
        key={"order_id": value.field_names[0] if value is not ORDER else "order_id"},
        columns={
            "order_count": "count(*)",
            "cash": "coalesce(sum(cash.amount), 0)" if value is ORDER else "CAST(0 AS DECIMAL(28, 9))",
            "newest": f"to_json(max_by(struct({names}), kafka.offset), map('ignoreNullFields', 'false'))",
        },
        mode=Mode.MICROBATCH,
    )


TABLE = table_of()
