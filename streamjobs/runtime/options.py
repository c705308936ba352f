"""Where and how a job runs: what a declaration leaves open."""

from dataclasses import dataclass
from pathlib import Path

from streamjobs.table import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of one run.

    `checkpoint`: directory or URL that Spark can write, one for each table and generation. `master`: None is enough
    local threads. `mode`: None is the declaration's. `partition_count`: of a changelog that is yet to be made; None is
    as many as the source has. `spark_log`: file for what Spark itself writes; None is stderr.
    """

    bootstrap: str
    checkpoint: str
    master: str | None = None
    mode: Mode | None = None
    schema_registry_url: str | None = None
    partition_count: int | None = None
    spark_log: Path | None = None
