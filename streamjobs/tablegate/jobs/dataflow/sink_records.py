"""What a table writes to Kafka, as frames of records that Spark's Kafka sink takes.

Decision: docs/decisions/0090-malformed-records-are-counted-first.md
"""

import functools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.avro.functions import to_avro

from tablegate.gateway.contract import catalogue
from tablegate.gateway.contract.kafka_settings import spark_options
from tablegate.gateway.contract.types import RUN_HEADER, VERSION_HEADER
from tablegate.jobs.dataflow.columns import COMPUTED_COLUMN, EXISTS_COLUMN, SEQUENCE_COLUMN, stored_columns
from tablegate.jobs.dataflow.decoding import encoded_sql
from tablegate.jobs.dataflow.expressions import attempt
from tablegate.jobs.dataflow.java_errors import error_reason, first_line
from tablegate.jobs.dataflow.keys import key_bytes_sql, partition_sql, without_ansi
from tablegate.jobs.dataflow.processors import emitted_rows
from tablegate.jobs.dataflow.sources import IGNORED_COLUMN, REASON_COLUMN, SEEN_COLUMN, Records, union, well_formed
from tablegate.jobs.errors import JobError
from tablegate.jobs.formats import OWN_SCHEMA_ID
from tablegate.jobs.table import ITEM_COLUMN, KAFKA_COLUMN, Output, ProcessorOutput, RecordOutput, RowOutput, Table

RECORD_TYPE = (
    "STRUCT<topic: STRING, partition: INT, key: BINARY, value: BINARY, "
    "headers: ARRAY<STRUCT<key: STRING, value: BINARY>>>"
)
"""A record as the Kafka sink takes it."""
ROW_BYTES_MAX = 2**20 - 1576  # of the 1 MiB that Kafka's producers and topics take by default, beside key and headers
_PARTITION, _KEY, _HEADERS, _BODY = "__partition", "__key", "__headers", "__body"
_OUTPUT, _TRIED = "__output", "__tried"
"""The place of the output that a record is for, and an attempt at its record."""


def changelog_records(
    rows: DataFrame,
    table: Table,
    contract: catalogue.Table,
    *,
    topic: str,
    generation: int,
    value_schema: Mapping[str, Any],
    schema_id: int,
    partition_count: int,
    row_outputs: bool,
    schema_ids: Mapping[str, int],
) -> DataFrame:
    """Return rows as the Kafka sink takes them: for the changelog, and for the topics that get the table's changes.

    `schema_ids`: of outputs in Avro, by their subjects.
    """
    # Casting to the contract's types may fail as columns may: a sum that its type cannot hold. One row that Kafka does
    # not take, as of a list that grows, would end the table at each start.
    rows = rows.withColumn(_BODY, attempt(row_body(rows, value_schema, contract)))
    fits = f"octet_length({_BODY}.value) <= {ROW_BYTES_MAX}"
    rows = rows.withColumn(COMPUTED_COLUMN, sql.expr(f"{COMPUTED_COLUMN} AND {_BODY} IS NOT NULL AND {fits}"))
    rows = rows.withColumn(EXISTS_COLUMN, sql.expr(f"{EXISTS_COLUMN} AND {COMPUTED_COLUMN}"))
    # A field without presence has no null: clients read zero, or an empty text. A list that is null is empty.
    zeros = [
        field.name
        for field in contract.row.fields
        if field.name in table.columns and not field.has_presence and not field.is_repeated
    ]
    wanted = [(_UNCOMPUTABLE, f"NOT {COMPUTED_COLUMN}")]
    wanted += [(_NULL + name, f"{EXISTS_COLUMN} AND `{name}` IS NULL") for name in zeros]
    rows = rows.observe(_UNCOMPUTABLE, *_counted(wanted))
    rows, record = with_record(
        rows,
        sql.col(f"{_BODY}.value"),
        contract,
        topic=topic,
        generation=generation,
        schema_id=schema_id,
        partition_count=partition_count,
    )
    outputs = [output for output in table.outputs if row_outputs and isinstance(output, RowOutput)]
    if not outputs:
        return rows.select(record.alias("record")).select("record.*")
    # One query writes all of these topics: a row costs its state once, and its copies are of the same batch.
    others = [_output_record(rows, output, table, schema_ids) for output in outputs]
    every = sql.array(record.cast(RECORD_TYPE), *(other["value"] for other in others))
    return rows.select(sql.inline(sql.filter(every, lambda one: one.isNotNull())))


def row_body(rows: DataFrame, value_schema: Mapping[str, Any], contract: catalogue.Table) -> Column:
    """Return the Avro of a row, as the changelog has it. It raises where it is no row of the contract."""
    return to_avro(sql.struct(*stored_columns(rows, value_schema, contract.row)), json.dumps(value_schema))


def with_record(
    rows: DataFrame,
    body: Column,
    contract: catalogue.Table,
    *,
    topic: str,
    generation: int,
    schema_id: int,
    partition_count: int,
) -> tuple[DataFrame, Column]:
    """Return rows with what their records need, and a row's record for the changelog as a column of them.

    `body`: the row, as `row_body` has it.
    """
    # The Confluent wire format: 00, the schema's id in four bytes, the Avro. A row that is gone has a null value: it is
    # a tombstone, which compaction may remove.
    value = sql.when(sql.col(EXISTS_COLUMN), sql.concat(sql.expr(f"X'00{schema_id:08X}'"), body))
    # Four bytes and eight, both big endian: versions compare as bytes.
    version = f"concat(X'{generation:08X}', CAST({SEQUENCE_COLUMN} AS BINARY))"
    with without_ansi(rows.sparkSession):
        rows = rows.select(
            "*",
            sql.expr(partition_sql(contract, partition_count) or "CAST(NULL AS INT)").alias(_PARTITION),
            sql.expr(key_bytes_sql(contract.key)).alias(_KEY),
            sql.expr(f"array(struct('{VERSION_HEADER}' AS key, {version} AS value))").alias(_HEADERS),
        )
    record = sql.struct(
        sql.lit(topic).alias("topic"),
        sql.col(_PARTITION).alias("partition"),
        sql.col(_KEY).alias("key"),
        value.alias("value"),
        sql.col(_HEADERS).alias("headers"),
    )
    return rows, record


def with_run(records: DataFrame, topic: str, run: int) -> DataFrame:
    """Return records with the number of the run in each that goes to the changelog `topic`, beside its version."""
    header = f"struct('{RUN_HEADER}' AS key, X'{run:016X}' AS value)"
    headers = f"IF(topic = '{topic}', concat(headers, array({header})), headers) AS headers"
    return records.selectExpr("topic", "partition", "key", "value", headers)


def save_records(records: DataFrame, bootstrap: str) -> None:
    """Write a batch of records to Kafka, and return when it has them; raise what Spark raises, as it is."""
    records.write.format("kafka").options(**spark_options(bootstrap)).option("includeHeaders", "true").save()


def _output_record(rows: DataFrame, output: RowOutput, table: Table, schema_ids: Mapping[str, int]) -> Column:
    """Return an attempt at the record; null where the output does not want it."""
    where = f'{table.declared_at}: table "{table.name}" output "{output.topic}"'
    key, encoded = _encoded(output, schema_ids, where)
    value = f"IF({EXISTS_COLUMN}, {encoded}, NULL)"
    # A tombstone always goes out: the row that is gone may have met `where` before.
    is_wanted = f"(NOT {EXISTS_COLUMN} OR coalesce({output.where}, false))" if output.where is not None else "true"
    # The version, by which a consumer tells a change that a restarted job has written again.
    record = output_record_sql(output.topic, key=key, value=value, headers=_HEADERS)
    check_output(rows, record, is_wanted, where)
    return attempt(sql.expr(f"IF({is_wanted}, {record}, NULL)"))


def _encoded(output: Output, schema_ids: Mapping[str, int], where: str) -> tuple[str, str]:
    """Return the SQL of key and value; raise `JobError`."""
    own = [schema_ids.get(subject, OWN_SCHEMA_ID) for subject in (f"{output.topic}-key", f"{output.topic}-value")]
    try:
        return encoded_sql(output.key, own[0]), encoded_sql(output.value, own[1])
    except (PySparkException, Py4JError) as error:  # of Avro's own parser
        raise JobError(f"{where} has an Avro schema that Spark cannot read: {error_reason(error)}") from None


def output_record_sql(topic: str, *, key: str, value: str, headers: str = "NULL") -> str:
    """Return the SQL of a record for another topic than the changelog."""
    return f"CAST(struct('{topic}', CAST(NULL AS INT), {key}, {value}, {headers}) AS {RECORD_TYPE})"


def check_output(frame: DataFrame, record: str, is_wanted: str, what: str) -> None:
    """Raise `JobError` where an output's expressions do not compute."""
    try:
        frame.select(sql.expr(record), sql.expr(is_wanted).cast("boolean"))
    except PySparkException as error:
        raise JobError(f"{what} does not compute: {first_line(error)}") from None


def record_outputs(
    keyed: DataFrame, outputs: Sequence[RecordOutput], table: Table, schema_ids: Mapping[str, int]
) -> DataFrame:
    """Return a source's records as the Kafka sink takes them, for all these outputs; raise `JobError`.

    The source is read and decoded once. Then each record is there once for each output, by its place in `_OUTPUT`.
    """
    places = range(len(outputs))
    frame = well_formed(keyed).withColumn(_OUTPUT, sql.explode(sql.array(*map(sql.lit, places))))
    for place, output in enumerate(outputs):
        is_its = f"{_OUTPUT} = {place}"
        if output.each is not None:
            frame = _with_items(frame, output, is_its, _where(output, table))
        tried = _tried_record(frame, output, table, schema_ids, when=is_its)
        frame = frame.withColumn(f"{_TRIED}{place}", tried)
        if output.each is not None:
            frame = frame.drop(ITEM_COLUMN)
    tried = sql.expr(f"CASE {_OUTPUT} {' '.join(f'WHEN {place} THEN {_TRIED}{place}' for place in places)} END")
    return _computed(frame.select(_OUTPUT, tried.alias(_TRIED)), [output.topic for output in outputs])


def _with_items(frame: DataFrame, output: RecordOutput, is_its: str, where: str) -> DataFrame:
    """Return the output's records once for each element of `each`, and those of other outputs as they are."""
    assert output.each is not None
    try:
        items = frame.withColumn("__items", attempt(sql.when(sql.expr(is_its), sql.expr(output.each))))
        # Of other outputs there is nothing in it, so that this is one element, which is null.
        elements = sql.when(sql.expr(is_its), sql.col("__items.value")).otherwise(
            sql.array(sql.expr("__items.value[0]"))
        )
        return items.withColumn(ITEM_COLUMN, sql.explode(elements)).drop("__items")
    except PySparkException as error:
        raise JobError(f"{where} each= does not compute: {first_line(error)}") from None


def processor_output(
    keyed: DataFrame, output: ProcessorOutput, table: Table, schema_ids: Mapping[str, int]
) -> DataFrame:
    """Return what a processor emits as the Kafka sink takes it; raise `JobError`."""
    source = table.source_of(output.side or "")
    try:
        emitted = emitted_rows(
            well_formed(keyed), output.processor, output.by, source, owner=f'output "{output.topic}"'
        )
    except PySparkException as error:
        raise JobError(f"{_where(output, table)} by= does not compute: {first_line(error)}") from None
    tried = _tried_record(emitted, output, table, schema_ids, when="true")
    return _computed(emitted.select(sql.lit(0).alias(_OUTPUT), tried.alias(_TRIED)), [output.topic])


def _tried_record(
    frame: DataFrame, output: RecordOutput | ProcessorOutput, table: Table, schema_ids: Mapping[str, int], *, when: str
) -> Column:
    """Return an attempt at the record; null in it where the output does not want it, or `when` is not met."""
    key, value = _encoded(output, schema_ids, _where(output, table))
    record = output_record_sql(output.topic, key=key, value=value)
    is_wanted = f"coalesce({output.where}, false)" if output.where is not None else "true"
    check_output(frame, record, is_wanted, _where(output, table))
    return attempt(sql.expr(f"IF({when} AND {is_wanted}, {record}, NULL)"))


def _computed(tried: DataFrame, topics: Sequence[str]) -> DataFrame:
    """Return the records that could be computed, of which a query reports how many could not, by their topics.

    `tried`: `_OUTPUT`, the place in `topics`, and `_TRIED`.
    """
    wanted = [
        (f"{_UNCOMPUTABLE}: {topic}", f"{_OUTPUT} = {place} AND {_TRIED} IS NULL") for place, topic in enumerate(topics)
    ]
    # Named by topics: the kit for tests has all outputs in one query.
    counted = tried.observe(f"{_UNCOMPUTABLE}: {', '.join(topics)}", *_counted(wanted))
    return counted.where(f"{_TRIED}.value IS NOT NULL").select(f"{_TRIED}.value.*")


def _where(output: RecordOutput | ProcessorOutput, table: Table) -> str:
    return f'{table.declared_at}: table "{table.name}" output "{output.topic}"'


_UNCOMPUTABLE, _NULL = "uncomputable", "null: "
"""Names under which Spark reports how many rows, or records of an output, could not be computed, or had a null."""


def uncomputable(progress: Mapping[str, Any]) -> dict[str, int]:
    """Return how many records of each output, by its topic, or rows of the table, "", a batch could not compute."""
    found = _of_rows(progress).items()
    return {name[len(_UNCOMPUTABLE) + 2 :]: lost for name, lost in found if lost and name.startswith(_UNCOMPUTABLE)}


def null_columns(progress: Mapping[str, Any]) -> dict[str, int]:
    """Return in how many rows of a batch a column was null whose field has no presence, so that it reads as zero."""
    found = _of_rows(progress)
    return {name.removeprefix(_NULL): rows for name, rows in found.items() if rows and name.startswith(_NULL)}


def _of_rows(progress: Mapping[str, Any]) -> Mapping[str, int]:
    """Return what a query reports of its rows: that of a table, or of the outputs that it is of."""
    observed: Mapping[str, Mapping[str, int]] = progress.get("observedMetrics", {})
    return next((found for name, found in observed.items() if name.startswith(_UNCOMPUTABLE) and found), {})


_SIDE = "side "
"""How the names begin under which Spark reports what a batch had of each side: records of each kind, and fields."""
_MALFORMED, _IGNORED = "malformed: ", "ignored: "
_SEEN, _DECODED = "seen: ", "decoded"

_DEAD_LETTER_HEADERS = {
    "reason": f"{REASON_COLUMN}.text",
    "topic": f"{KAFKA_COLUMN}.topic",
    "partition": f"CAST({KAFKA_COLUMN}.partition AS STRING)",
    "offset": f"CAST({KAFKA_COLUMN}.offset AS STRING)",
}


# A letter has to fit into what a producer and a topic take by default, 1 MB, also where the source's topic takes more.
DEAD_LETTER_BYTES_MAX = {"key": 64 * 1024, "value": 768 * 1024}


def _size_header_sql(name: str, bytes_max: int) -> str:
    """Return the SQL of the header that says how long a key or value was of which only the head is there."""
    size = f"octet_length({KAFKA_COLUMN}.{name})"
    header = f"struct('{name}_bytes' AS key, encode(CAST({size} AS STRING), 'UTF-8') AS value)"
    return f"IF({size} > {bytes_max}, {header}, NULL)"


def counting_side(side: Records, name: str, *, ignored: Iterable[str]) -> DataFrame:
    """Return a side's records, of which a query reports how many are malformed, passed over, and have each field.

    `ignored`: names of record types that are passed over.
    """
    wanted = [(_MALFORMED + kind, f"{REASON_COLUMN}.kind = '{kind}'") for kind in side.kinds]
    wanted += [(_IGNORED + kind, f"{IGNORED_COLUMN} = '{kind}'") for kind in ignored]
    wanted += [(_SEEN + field, f"{SEEN_COLUMN} & {1 << place}L <> 0") for place, field in enumerate(side.fields)]
    wanted.append((_DECODED, f"{SEEN_COLUMN} IS NOT NULL"))
    return side.frame.observe(_SIDE + name, *_counted(wanted))


KIND_COLUMN = "__kind"
"""What is wrong with a record, in one word, beside its dead letter."""


def dead_letters(sides: Sequence[Records], topic: str) -> DataFrame:
    """Return the malformed records of sides as the Kafka sink takes them, and `KIND_COLUMN`."""
    columns = (KAFKA_COLUMN, REASON_COLUMN)
    every = functools.reduce(union, (side.frame.select(*columns) for side in sides))
    every = every.coalesce(1)  # one task for all partitions, so that it needs one slot: `realtime_slots`
    headers = ", ".join(
        f"struct('{name}' AS key, encode({text}, 'UTF-8') AS value)" for name, text in _DEAD_LETTER_HEADERS.items()
    )
    # A null, where nothing is cut, is no header.
    sizes = ", ".join(_size_header_sql(name, bytes_max) for name, bytes_max in DEAD_LETTER_BYTES_MAX.items())
    key, value = (f"substring({KAFKA_COLUMN}.{name}, 1, {most})" for name, most in DEAD_LETTER_BYTES_MAX.items())
    record = output_record_sql(
        topic, key=key, value=value, headers=f"filter(array({headers}, {sizes}), h -> h IS NOT NULL)"
    )
    malformed = every.where(f"{REASON_COLUMN} IS NOT NULL")
    kafka: Any = every.schema[KAFKA_COLUMN].dataType
    if "element" in kafka.names and not every.isStreaming:
        # A record is set aside once, with the reason of one of its elements. In a stream that would need a state.
        place = f"struct({KAFKA_COLUMN}.topic, {KAFKA_COLUMN}.partition, {KAFKA_COLUMN}.offset)"
        malformed = malformed.withColumn("__place", sql.expr(place)).dropDuplicates(["__place"])
    return malformed.selectExpr(f"{REASON_COLUMN}.kind AS {KIND_COLUMN}", f"{record} AS record").select(
        KIND_COLUMN, "record.*"
    )


def _counted(wanted: Iterable[tuple[str, str]]) -> list[Column]:
    return [sql.expr(f"count_if({condition})").alias(name) for name, condition in wanted]


def malformed_of(progress: Mapping[str, Any], sides: Iterable[str]) -> int | None:
    """Return how many malformed records a batch had, of all these sides; None where it does not say."""
    observed: Mapping[str, Mapping[str, int]] = progress.get("observedMetrics", {})
    found = [observed.get(_SIDE + name) for name in sides]
    if progress["numInputRows"] and not all(found):
        return None
    return sum(n for side in found if side for name, n in side.items() if name.startswith(_MALFORMED))


def ignored_kinds_of(progress: Mapping[str, Any]) -> Counter[str]:
    """Return how many records a batch passed over, by the name of their type."""
    ignored: Counter[str] = Counter()
    for found in _sides(progress):
        ignored.update({name.removeprefix(_IGNORED): n for name, n in found.items() if n and name.startswith(_IGNORED)})
    return ignored


def _sides(progress: Mapping[str, Any]) -> list[Mapping[str, int]]:
    observed: Mapping[str, Mapping[str, int]] = progress.get("observedMetrics", {})
    return [found for name, found in observed.items() if name.startswith(_SIDE) and found]


class UnseenFields:
    """Finds the fields of JSON sources that no record has: most likely, their names are wrong in the declaration."""

    def __init__(self) -> None:
        self._missing: Counter[str] = Counter()
        self._seen: set[str] = set()

    def add(self, progress: Mapping[str, Any]) -> None:
        """Count a batch."""
        for found in _sides(progress):
            for name, records in found.items():
                if name.startswith(_SEEN):
                    field = name.removeprefix(_SEEN)
                    self._missing[field] += found[_DECODED] - records
                    if records:
                        self._seen.add(field)

    def pop(self, records_min: int) -> dict[str, int]:
        """Return how many records lacked each field that none has had; each field once, after so many records."""
        found = {
            name: records
            for name, records in self._missing.items()
            if records >= records_min and name not in self._seen
        }
        self._seen |= set(found)
        return found
