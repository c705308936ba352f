"""The DataFrame that a user's function makes of decoded sources, checked before its query starts.

Decision: docs/decisions/0099-functions-of-users-in-jobs.md
"""

import functools
from collections.abc import Mapping
from dataclasses import replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from tablegate.jobs.dataflow.frame_batches import check_columns, frame_of
from tablegate.jobs.dataflow.java_errors import first_line
from tablegate.jobs.dataflow.keys import without_ansi
from tablegate.jobs.dataflow.processors import modules_of, pickled_by_value
from tablegate.jobs.dataflow.sink_records import counting_side
from tablegate.jobs.dataflow.sources import Reader, Records, all_records, decodable, decode_source, ignored_kinds
from tablegate.jobs.errors import JobError
from tablegate.jobs.frame_table import FrameTable
from tablegate.jobs.function_code import line_of
from tablegate.jobs.planning.plan import Plan, SourceStream
from tablegate.jobs.table import KAFKA_COLUMN, Source


def rows_of_function(spark: SparkSession, plan: Plan, reader: Reader) -> DataFrame:
    """Return the streaming DataFrame that the table's function returns; raise `JobError` where it is none of rows."""
    table = plan.table
    assert isinstance(table, FrameTable), "another table has expressions"
    assert table.rows is not None, "a declaration without it is no job's"
    arguments: dict[str, object] = {
        name: _fields(records.frame, table.sources[name]) for name, records in decoded_sources(plan, reader).items()
    }
    if table.session_parameter is not None:
        arguments[table.session_parameter] = spark
    try:
        with pickled_by_value(modules_of(table.rows)):
            frame = table.rows(**arguments)
    except JobError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the function is the user's: whatever it raises is theirs to read
        reason = first_line(error) if isinstance(error, PySparkException) else f"{type(error).__name__}: {error}"
        where = line_of(table.rows, error) or table.declared_at
        raise JobError(
            f'{where}: table "{table.name}": its function does not run: {" ".join(reason.split())}'
        ) from None
    if not isinstance(frame, DataFrame):
        raise JobError(f"{frame_of(table)}: rows= returns {type(frame).__name__}; return a streaming DataFrame")
    if not frame.isStreaming:
        raise JobError(
            f"{frame_of(table)}: rows= returns a DataFrame that is no stream; make it of a source, or publish it with "
            "tablegate.jobs.publishing.publish_batch"
        )
    check_columns(frame, table, plan.contract.row, plan.value_schema)
    return frame


def decoded_sources(plan: Plan, reader: Reader) -> Mapping[str, Records]:
    """Return the sources' records, of which a query reports how many are malformed or passed over."""
    ignored = ignored_kinds(side.schemas for side in plan.sides.values())
    found = {}
    for name in plan.table.all_sides:
        records = functools.reduce(all_records, (_decoded(stream, reader) for stream in plan.streams_of(name)))
        found[name] = replace(records, frame=counting_side(records, name, ignored=ignored))
    return found


def _decoded(stream: SourceStream, reader: Reader) -> Records:
    raw = reader.stream(stream.topics, batched=True, starting_offsets=stream.starting_offsets)
    # What a null value means is the function's to say.
    return decode_source(raw, stream.source, stream.schemas, deletes=True)


def _fields(records: DataFrame, source: Source) -> DataFrame:
    """Return the records that decode and meet `where`, with their fields and the struct `kafka`."""
    frame = decodable(records)
    if source.where is not None:
        try:
            # As in other tables: where it cannot be computed, the record does not meet it.
            with without_ansi(frame.sparkSession):
                frame = frame.where(sql.expr(source.where))
        except PySparkException as error:
            raise JobError(
                f'{source.declared_at}: source "{source.topic}" where does not compute: {first_line(error)}'
            ) from None
    return frame.select(KAFKA_COLUMN, *(f"`{name}`" for name in source.field_names))
