"""Malformed records, as records of the dead-letter topic: as they came, with the reason."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from tablegate.jobs.dataflow.changelog import RECORD_TYPE
from tablegate.jobs.dataflow.sources import IGNORED_COLUMN, REASON_COLUMN, Records
from tablegate.jobs.table import KAFKA_COLUMN

_COUNTS = "counts"
"""Name under which Spark reports how many records of each kind a batch had."""
_MALFORMED, _IGNORED = "malformed: ", "ignored: "

_HEADERS = {
    "reason": f"{REASON_COLUMN}.text",
    "topic": f"{KAFKA_COLUMN}.topic",
    "partition": f"CAST({KAFKA_COLUMN}.partition AS STRING)",
    "offset": f"CAST({KAFKA_COLUMN}.offset AS STRING)",
}


def dead_letters(sides: Sequence[Records], topic: str, *, ignored: Iterable[str]) -> DataFrame:
    """Return the malformed records of all sides as the Kafka sink takes them; `counts` has how many of each kind.

    `ignored`: names of record types that are passed over, and counted.
    """
    every = functools.reduce(
        DataFrame.unionByName, (side.frame.select(KAFKA_COLUMN, REASON_COLUMN, IGNORED_COLUMN) for side in sides)
    )
    kinds = sorted({kind for side in sides for kind in side.kinds})
    wanted = [(_MALFORMED + kind, f"{REASON_COLUMN}.kind = '{kind}'") for kind in kinds]
    wanted += [(_IGNORED + name, f"{IGNORED_COLUMN} = '{name}'") for name in ignored]
    headers = ", ".join(f"struct('{name}' AS key, encode({text}, 'UTF-8') AS value)" for name, text in _HEADERS.items())
    fields = f"'{topic}', CAST(NULL AS INT), {KAFKA_COLUMN}.key, {KAFKA_COLUMN}.value, array({headers})"
    record = f"CAST(struct({fields}) AS {RECORD_TYPE})"
    return (
        every.coalesce(1)  # one task for all partitions, so that it takes one slot: `realtime_slots`
        .where(f"{REASON_COLUMN} IS NOT NULL OR {IGNORED_COLUMN} IS NOT NULL")
        .observe(_COUNTS, *(sql.expr(f"count_if({condition})").alias(name) for name, condition in wanted))
        .where(f"{REASON_COLUMN} IS NOT NULL")
        .select(sql.expr(record).alias("record"))
        .select("record.*")
    )


def counts(progress: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """Return how many records a batch set aside and passed over, by kind; kinds without any are left out."""
    found: Mapping[str, int] = progress.get("observedMetrics", {}).get(_COUNTS) or {}
    malformed = {kind.removeprefix(_MALFORMED): n for kind, n in found.items() if n and kind.startswith(_MALFORMED)}
    ignored = {kind.removeprefix(_IGNORED): n for kind, n in found.items() if n and kind.startswith(_IGNORED)}
    return malformed, ignored
