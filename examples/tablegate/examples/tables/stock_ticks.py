"""Newest price of some stocks: a topic that is a table, and a view of it."""

from tablegate.jobs import Latest, Mode, Source, Table, Text

TABLE = Table(
    name="stock_ticks",
    contract="examples/stocks/v1/stocks.proto",
    sides={"tick": Latest(Source("stock_ticks", Text("price"), key=Text("symbol"), keyed=True))},
    key={"symbol": "symbol"},
    columns={"price": "tick.price", "update_time": "max_by(kafka.timestamp, kafka.offset)"},
    # Without it, every symbol of the topic would have its row.
    having=r"symbol RLIKE '^stock-[1-3]\\z' AND price <> ''",
    mode=Mode.MICROBATCH,
)
