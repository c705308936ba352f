"""Outputs of a declaration that do not come from its rows: records of its sources, and what processors emit."""

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from tablegate.jobs.dataflow.changelog import check_output, output_record_sql
from tablegate.jobs.dataflow.decoding import encoded_sql
from tablegate.jobs.dataflow.rows import emitted_rows
from tablegate.jobs.dataflow.sources import well_formed
from tablegate.jobs.errors import JobError
from tablegate.jobs.running.java_errors import first_line
from tablegate.jobs.table import ITEM_COLUMN, ProcessorOutput, RecordOutput, Table


def record_output(keyed: DataFrame, output: RecordOutput, table: Table) -> DataFrame:
    """Return a source's records as the Kafka sink takes them; raise `JobError`."""
    records = well_formed(keyed)
    if output.each is not None:
        try:
            records = records.withColumn(ITEM_COLUMN, sql.explode(sql.expr(output.each)))
        except PySparkException as error:
            raise JobError(f"{_where(output, table)} each= does not compute: {first_line(error)}") from None
    return _as_records(records, output, table)


def processor_output(keyed: DataFrame, output: ProcessorOutput, table: Table) -> DataFrame:
    """Return what a processor emits as the Kafka sink takes it; raise `JobError`."""
    source = table.source_of(output.side or "")
    try:
        emitted = emitted_rows(
            well_formed(keyed), output.processor, output.by, source, owner=f'output "{output.topic}"'
        )
    except PySparkException as error:
        raise JobError(f"{_where(output, table)} by= does not compute: {first_line(error)}") from None
    return _as_records(emitted, output, table)


def _as_records(frame: DataFrame, output: RecordOutput | ProcessorOutput, table: Table) -> DataFrame:
    record = output_record_sql(output.topic, key=encoded_sql(output.key), value=encoded_sql(output.value))
    is_wanted = f"coalesce({output.where}, false)" if output.where is not None else "true"
    check_output(frame, record, is_wanted, _where(output, table))
    return frame.where(is_wanted).select(sql.expr(record).alias("record")).select("record.*")


def _where(output: RecordOutput | ProcessorOutput, table: Table) -> str:
    return f'{table.declared_at}: table "{table.name}" output "{output.topic}"'
