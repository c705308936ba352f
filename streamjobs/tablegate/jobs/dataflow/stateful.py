"""A processor as Spark runs it, in Python workers. They unpickle this module by value: it needs only PySpark there."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)
from tablegate.jobs.processor import Fields, ProcessorError, State, Steps
from tablegate.jobs.values import Column, Misfit, Struct

SEQUENCE_COLUMN = "__sequence"
"""How many records a key has emitted, the row's own counted."""
TIMER_COLUMN = "__timer_ms"
"""When the timer of a key that has one will run."""

Key = tuple[Any, ...]


class SparkProcessor(StatefulProcessor):  # type: ignore[misc] # PySpark's types are not looked at
    """Runs a processor's steps over Spark's groups.

    State is one value a key: the processor's columns, `SEQUENCE_COLUMN`, `TIMER_COLUMN`. So a batch asks Spark once
    for it and gives it back once, whatever the number of records: each time is a round trip to the JVM.
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
        """Run `on_record` for each row of a key. All of them are in memory: Spark has shuffled their order away."""
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
        """Run `on_timer`."""
        named = self._key(key)
        now = datetime.fromtimestamp(timerValues.getCurrentProcessingTimeInMs() / 1000, UTC)
        return self._run(key, lambda state: self.steps.on_timer(named, state, now), timer_ms=None)

    def close(self) -> None:
        """See `StatefulProcessor`."""

    def _run(
        self, key: Key, emit: Callable[[State], Iterable[dict[str, Any]]], *, timer_ms: int | None
    ) -> Iterator[Row]:
        """Yield what is emitted, then keep the state. `timer_ms`: when the timer is to run, unless one is set."""
        found = self._stored.get()
        *kept, sequence, set_ms = found if found is not None else (None, 0, None)
        state = self.steps.state(kept if found is not None else None)
        key_values = {column.name: value for column, value in zip(self._key_columns, key, strict=True)}
        try:
            for emitted in emit(state):
                sequence += 1
                yield Row(**key_values, **emitted, **{SEQUENCE_COLUMN: sequence})
            stored = self.steps.stored(state)
        except ProcessorError as error:
            # Without its cause, whose text may hold values that belong in no log.
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


def _position(record: Mapping[str, Any]) -> tuple[str, int, int]:
    kafka = record["kafka"]
    return kafka["topic"], kafka["partition"], kafka["offset"]
