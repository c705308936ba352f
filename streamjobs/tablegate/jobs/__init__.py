"""Jobs: what users write to declare tables. The PySpark runtime that keeps them is below, and is imported only to run.

    from tablegate.jobs import Json, Mode, Source, Table

    TABLE = Table(
        name="order_totals",
        contract="orders.proto",
        source=Source("orders", Json("customer STRING, amount DOUBLE")),
        key={"customer": "customer"},
        columns={"order_count": "count(*)", "amount": "sum(amount)"},
        mode=Mode.MICROBATCH,
    )

These names are stable, as are those of `tablegate.jobs.publishing` (DataFrames of your own as tables),
`tablegate.jobs.testing` (tests of declarations) and `tablegate.jobs.running` (jobs started from Python). Other modules
may change. This module imports no Spark, so declarations load fast.
"""

from tablegate.jobs.declared import DeclarationError
from tablegate.jobs.formats import Avro, Bytes, Double, Format, Json, Long, Protobuf, Text
from tablegate.jobs.frame_table import FrameTable
from tablegate.jobs.history import History
from tablegate.jobs.processor import Processor, ProcessorError, Trial, UnknownField
from tablegate.jobs.table import (
    KAFKA_COLUMN,
    Global,
    Join,
    Latest,
    Mode,
    Output,
    ProcessorOutput,
    RecordOutput,
    RowOutput,
    Side,
    Source,
    Table,
    Window,
    rows_of,
)

__all__ = [
    "KAFKA_COLUMN",
    "Avro",
    "Bytes",
    "DeclarationError",
    "Double",
    "Format",
    "FrameTable",
    "Global",
    "History",
    "Join",
    "Json",
    "Latest",
    "Long",
    "Mode",
    "Output",
    "Processor",
    "ProcessorError",
    "ProcessorOutput",
    "Protobuf",
    "RecordOutput",
    "RowOutput",
    "Side",
    "Source",
    "Table",
    "Text",
    "Trial",
    "UnknownField",
    "Window",
    "rows_of",
]
