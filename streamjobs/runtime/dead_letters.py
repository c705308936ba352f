"""Malformed records, as records of the dead-letter topic: as they came, with the reason."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from gateway.contract.catalogue import Table as ContractTable
from streamjobs.runtime.sources import REASON_COLUMN, reasons
from streamjobs.table import KAFKA_COLUMN

_COUNTS = "malformed"
"""Name under which Spark reports how many records of each kind a batch had."""

_HEADERS = {
    "reason": f"{REASON_COLUMN}.text",
    "topic": f"{KAFKA_COLUMN}.topic",
    "partition": f"CAST({KAFKA_COLUMN}.partition AS STRING)",
    "offset": f"CAST({KAFKA_COLUMN}.offset AS STRING)",
}


def dead_letters(decoded: DataFrame, contract: ContractTable, writer_schemas: Mapping[int, str] | None) -> DataFrame:
    """Return the malformed records as the Kafka sink takes them; `count_by_kind` has their counts."""
    counts = [
        sql.expr(f"count_if({REASON_COLUMN}.kind = '{kind}')").alias(kind) for kind in reasons(contract, writer_schemas)
    ]
    headers = ", ".join(f"struct('{name}' AS key, encode({text}, 'UTF-8') AS value)" for name, text in _HEADERS.items())
    return (
        decoded.coalesce(1)  # one task for all partitions, so that it takes one slot: `realtime_slots`
        .where(f"{REASON_COLUMN} IS NOT NULL")
        .observe(_COUNTS, *counts)
        .select(f"{KAFKA_COLUMN}.key", f"{KAFKA_COLUMN}.value", sql.expr(f"array({headers})").alias("headers"))
    )


def count_by_kind(progress: Mapping[str, Any]) -> dict[str, int]:
    """Return how many records of each kind a batch set aside, by its progress; kinds without any are left out."""
    counts: Mapping[str, int] = progress.get("observedMetrics", {}).get(_COUNTS, {})
    return {kind: count for kind, count in counts.items() if count}
