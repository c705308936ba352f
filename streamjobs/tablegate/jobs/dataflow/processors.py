"""Declared processors as Spark operators (`transformWithState`).

Two halves run in two places. `apply_processor` and what it calls run in the driver: they check the types, and turn
Spark's types into ours. `SparkProcessor` runs in Python workers on the executors: there it restores a key's state, runs
the user's functions by `processor.Steps`, and stores the state.

Executors need nothing of this project. cloudpickle sends the code by value: all of `tablegate.jobs` that is reached
from `SparkProcessor`, and the user's own modules. So nothing that runs in a worker may reach code that imports more
than the standard library and PySpark.

Two detours around PySpark: rows instead of pandas (`_transform`), as a batch of a key has few rows; and timestamps as
microseconds, as Python has no year 0 or 10000 and must be able to say so instead of failing inside PySpark.

Decision: docs/decisions/0015-processors-need-pyarrow.md
"""

import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sql
from pyspark.sql import types as spark_types
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)
from pyspark.sql.streaming.stateful_processor_util import TransformWithStateInPandasUdfUtils
from pyspark.sql.udf import _create_udf
from pyspark.util import PythonEvalType

from tablegate import jobs
from tablegate.jobs.dataflow.columns import SEQUENCE_COLUMN
from tablegate.jobs.errors import JobError
from tablegate.jobs.function_code import plain_function
from tablegate.jobs.processor import Fields, Processor, ProcessorError, State, Steps
from tablegate.jobs.table import KAFKA_COLUMN, Source
from tablegate.jobs.values import SCALARS, Array, Column, Map, Misfit, Moment, Scalar, Struct, Type, decimal_type

RECORD_COLUMN = "record"
"""Struct of a record's fields and of `KAFKA_COLUMN`."""
_PICKLING = threading.RLock()  # cloudpickle has one list of modules for all tables, which start side by side

_KAFKA_FIELDS = ("topic", "partition", "offset", "timestamp", "element", "headers")
"""`element` is there where the source has `each`, `headers` where it has them."""
_KEY_TYPES = ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "STRING", "BINARY", "TIMESTAMP")


def emitted_rows(
    records: DataFrame, processor: Processor, key: Mapping[str, str], source: Source, *, owner: str
) -> DataFrame:
    """Return what a processor emits over well-formed records; `key` has the expressions of its key by name.

    Raise `JobError` where it reads what the source does not have.
    """
    reads = source.names if processor.reads is None else processor.reads
    for name in reads:
        if name not in source.names:
            raise JobError(
                f'{processor.declared_at}: {owner} processor "{type(processor).__name__}" reads "{name}", which source '
                f'"{source.topic}" does not have; it has {", ".join(source.names)}'
            )
    fields = ", ".join(f"`{name}`" for name in (*reads, KAFKA_COLUMN))
    keyed = records.select(
        *(sql.expr(expression).alias(name) for name, expression in key.items()),
        sql.expr(f"struct({fields})").alias(RECORD_COLUMN),
    )
    return apply_processor(keyed, processor, list(key), owner=owner)


def apply_processor(records: DataFrame, processor: Processor, key_columns: Sequence[str], *, owner: str) -> DataFrame:
    """Return what a processor emits over a stream: key columns, what it declares, `SEQUENCE_COLUMN`.

    `records` has the key columns and `RECORD_COLUMN`. The sequence of a key grows with each emitted row and is the
    same when a batch runs again. `owner` is the table or output that errors name, like `table "ratings"`. Raise
    `JobError` where a type does not do.
    """
    where = f'{processor.declared_at}: {owner} processor "{type(processor).__name__}"'
    steps = Steps(processor, owner, tuple(key_columns))
    _check_names(steps, where)
    key = [Column(name, _key_type(records.schema[name], where)) for name in key_columns]
    record_schema = records.schema[RECORD_COLUMN].dataType
    assert isinstance(record_schema, spark_types.StructType), "a record is a struct"
    spark_processor = SparkProcessor(
        steps,
        key_columns=key,
        record_type=_record_type(record_schema, where),
        state_ddl=_state_ddl(steps.state_columns),
        every_ms=None if processor.every_s is None else round(processor.every_s * 1000),
    )
    sent = records.select(
        *(_sent(sql.col(f"`{column.name}`"), column.type).alias(column.name) for column in key),
        _sent_record(record_schema).alias(RECORD_COLUMN),
    )
    emitted = _transform(sent, key, spark_processor, _emitted_schema(records, key, steps))
    return emitted.withColumns(
        {column.name: sql.timestamp_micros(f"`{column.name}`") for column in key if isinstance(column.type, Moment)}
    )


def _transform(
    sent: DataFrame, key: Sequence[Column], processor: "SparkProcessor", schema: spark_types.StructType
) -> DataFrame:
    """Return `GroupedData.transformWithState` over rows.

    PySpark's own method requires pandas to be installed, and never uses it; so its parts are called directly.
    """
    time_mode = "None" if processor.every_ms is None else "ProcessingTime"
    udf = TransformWithStateInPandasUdfUtils(processor, time_mode)
    declared = type(processor.steps.processor)
    with pickled_by_value(sys.modules[one.__module__] for one in declared.__mro__ if issubclass(one, Processor)):
        function = _create_udf(
            udf.transformWithStateUDF, schema, PythonEvalType.SQL_TRANSFORM_WITH_STATE_PYTHON_ROW_UDF
        )
        called = function(*(sent[name] for name in sent.columns))
    session = sent.sparkSession
    transformed = sent.groupBy(*(column.name for column in key))._jgd.transformWithStateInPySpark(
        called._jc, session._jsparkSession.parseDataType(schema.json()), "update", time_mode, None, ""
    )
    return DataFrame(transformed, session)


@contextmanager
def pickled_by_value(modules: Iterable[ModuleType]) -> Iterator[None]:
    """Pickle the user's code and ours by value in the block: workers on other machines can import neither.

    `modules`: those of the user's that have the code; what lies beside them is pickled by value, too.
    """
    own = [*modules]
    beside = [module for one in own for module in _modules_beside(one)]
    wanted = {module.__name__: module for module in (jobs, *own, *beside)}
    with _PICKLING:
        for module in wanted.values():
            register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in wanted.values():
                unregister_pickle_by_value(module)


def modules_of(function: object) -> list[ModuleType]:
    """Return the module that has a function of the user's, or one within a UDF."""
    module = sys.modules.get(str(getattr(plain_function(function), "__module__", "")))
    return [module] if module is not None else []


def _modules_beside(module: ModuleType) -> Iterator[ModuleType]:
    """Yield the top-level modules and packages that were imported from the directory of a file of the user's."""
    its_file = getattr(module, "__file__", None)  # that of a notebook has not even the name
    if module.__name__.startswith(f"{jobs.__name__}.") or its_file is None:
        return
    directory = Path(its_file).parent
    if directory in map(Path, sysconfig.get_paths().values()):  # installed: workers have it too
        return
    for name, other in [*sys.modules.items()]:
        file = getattr(other, "__file__", None)
        if file is None or "." in name or name == "__main__":
            continue
        path = Path(file)
        if directory == (path.parents[1] if path.name == "__init__.py" else path.parent):
            yield other


def _check_names(steps: Steps, where: str) -> None:
    keys = {name.lower() for name in steps.key_columns}
    for column in steps.emit_columns:
        if column.name.lower() in keys:
            raise JobError(f'{where} emits "{column.name}", which is a key column and there anyway; remove it')


def _key_type(field: spark_types.StructField, where: str) -> Scalar:
    found = _type(field.dataType)
    if not isinstance(found, Scalar) or found.sql not in _KEY_TYPES:
        raise JobError(
            f'{where} key column "{field.name}" is {field.dataType.simpleString()}; '
            f"cast it to one of {', '.join(_KEY_TYPES)}"
        )
    return found


def _record_type(schema: spark_types.StructType, where: str) -> Struct:
    columns = []
    for field in schema.fields:
        if field.name == KAFKA_COLUMN:
            fields = [(name, field.dataType[name].dataType) for name in _kafka_fields(field)]
            found: Type | None = Struct(tuple(Column(name, _required(_type(one))) for name, one in fields), Fields)
        else:
            found = _type(field.dataType)
        if found is None:
            raise JobError(
                f'{where} gets a field "{field.name}" of type {field.dataType.simpleString()}, '
                "which processors do not support; leave it out of the schema"
            )
        columns.append(Column(field.name, found))
    return Struct(tuple(columns), Fields)


def _kafka_fields(kafka: spark_types.StructField) -> list[str]:
    return [name for name in _KAFKA_FIELDS if name in kafka.dataType.names]


def _type(of: spark_types.DataType) -> Type | None:
    """Return our type for a type of Spark's; None where there is none."""
    match of:
        case spark_types.DecimalType():
            return decimal_type(of.precision, of.scale)
        case spark_types.ArrayType():
            element = _type(of.elementType)
            return None if element is None else Array(element)
        case spark_types.MapType():
            key, value = _type(of.keyType), _type(of.valueType)
            return Map(key, value) if isinstance(key, Scalar) and value is not None else None
        case spark_types.StructType():
            fields = [(field.name, _type(field.dataType)) for field in of.fields]
            if any(found is None for _, found in fields):
                return None
            return Struct(tuple(Column(name, _required(found)) for name, found in fields), Fields)
    return SCALARS.get(of.simpleString().upper())


def _required(found: Type | None) -> Type:
    assert found is not None, "its type was checked before"
    return found


def _sent_record(schema: spark_types.StructType) -> SparkColumn:
    """Return the record with timestamps in microseconds, which Python can tell when it has no such time."""
    fields = []
    for field in schema.fields:
        column = sql.col(f"{RECORD_COLUMN}.`{field.name}`")
        if field.name == KAFKA_COLUMN:
            parts = [
                _sent(column[name], _type(field.dataType[name].dataType)).alias(name) for name in _kafka_fields(field)
            ]
            fields.append(sql.struct(*parts).alias(KAFKA_COLUMN))
        else:
            fields.append(_sent(column, _type(field.dataType)).alias(field.name))
    return sql.struct(*fields)


def _sent(column: SparkColumn, of: Type | None) -> SparkColumn:
    return sql.unix_micros(column) if isinstance(of, Moment) else column


def _state_ddl(columns: Sequence[Column]) -> str:
    declared = [f"{column.name} {column.type.stored_sql}" for column in columns]
    return ", ".join((*declared, f"{SEQUENCE_COLUMN} BIGINT", f"{TIMER_COLUMN} BIGINT"))


def _emitted_schema(records: DataFrame, key: Sequence[Column], steps: Steps) -> spark_types.StructType:
    schema = spark_types.StructType()
    for column in key:
        is_moment = isinstance(column.type, Moment)
        schema.add(column.name, spark_types.LongType() if is_moment else records.schema[column.name].dataType)
    for field in spark_types.StructType.fromDDL(steps.processor.emits).fields:
        schema.add(field)
    return schema.add(SEQUENCE_COLUMN, spark_types.LongType())


TIMER_COLUMN = "__timer_ms"
"""When the timer of a key that has one will run."""

Key = tuple[Any, ...]


class SparkProcessor(StatefulProcessor):  # type: ignore[misc] # mypy skips PySpark
    """Runs a processor's steps over Spark's groups, in a Python worker.

    The state of a key is one value: the processor's columns, `SEQUENCE_COLUMN` and `TIMER_COLUMN`. Reading and writing
    it are round trips to the JVM, so a batch does each once a key, whatever the number of records.
    """

    def __init__(
        self,
        steps: Steps,
        *,
        key_columns: Sequence[Column],
        record_type: Struct,
        state_ddl: str,
        every_ms: int | None,
    ) -> None:
        self.steps = steps
        self._key_columns = key_columns
        self._record_type = record_type
        self._state_ddl = state_ddl
        self.every_ms = every_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        """See `StatefulProcessor`."""
        self._handle = handle
        self._stored: ValueState = handle.getValueState("state", self._state_ddl)

    def handleInputRows(self, key: Key, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803
        """Run `on_record` for each row of a key. They are sorted in memory, as the shuffle has lost their order."""
        records = sorted((row["record"] for row in rows), key=_position)
        named = self._key(key)

        def emit(state: State) -> Iterator[dict[str, Any]]:
            for record in records:
                yield from self.steps.on_record(named, self._record(record), state)

        timer_ms = None
        if self.every_ms is not None:
            timer_ms = next_timer_ms(timerValues.getCurrentProcessingTimeInMs(), self.every_ms)
        return self._run(key, emit, timer_ms=timer_ms)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Key,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: ARG002, N803
    ) -> Iterator[Row]:
        """Run `on_timer` for a key whose timer has expired."""
        named = self._key(key)
        now = datetime.fromtimestamp(timerValues.getCurrentProcessingTimeInMs() / 1000, UTC)
        return self._run(key, lambda state: self.steps.on_timer(named, state, now), timer_ms=None)

    def close(self) -> None:
        """See `StatefulProcessor`."""

    def _run(
        self, key: Key, emit: Callable[[State], Iterable[dict[str, Any]]], *, timer_ms: int | None
    ) -> Iterator[Row]:
        """Yield what is emitted, then store the state. `timer_ms`: when the timer is to run, unless one is set."""
        found = self._stored.get()
        *columns, sequence, set_ms = found if found is not None else (None, 0, None)
        state = self.steps.state(columns if found is not None else None)
        key_values = {column.name: value for column, value in zip(self._key_columns, key, strict=True)}
        try:
            for emitted in emit(state):
                sequence += 1
                yield Row(**key_values, **emitted, **{SEQUENCE_COLUMN: sequence})
            stored = self.steps.stored(state)
        except ProcessorError as error:
            # Without its cause: that text may hold values, which must not get into a log.
            raise ProcessorError(str(error)) from None
        if timer_ms is not None and set_ms is None:
            self._handle.registerTimer(timer_ms)
            set_ms = timer_ms
        elif timer_ms is None:
            set_ms = None
        self._stored.update((*stored, sequence, set_ms))

    def _key(self, key: Key) -> Fields:
        values = zip(self._key_columns, key, strict=True)
        return Fields({column.name: column.type.load(value) for column, value in values})

    def _record(self, record: dict[str, Any]) -> Fields:
        try:
            loaded: Fields = self._record_type.load(record)
        except Misfit as misfit:
            raise self.steps.unloadable(Fields(record["kafka"]), misfit) from None
        return loaded


def next_timer_ms(now_ms: int, every_ms: int) -> int:
    """Return the time whose timer runs in the first batch at or after the next whole multiple of `every_ms`.

    Batches start at whole multiples of their trigger. Spark runs timers from before a batch's time, not at it.
    """
    return now_ms // every_ms * every_ms + every_ms - 1


def _position(record: Mapping[str, Any]) -> tuple[str, int, int, int]:
    kafka = record["kafka"]
    return kafka["topic"], kafka["partition"], kafka["offset"], kafka.get("element", 0)
