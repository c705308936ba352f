"""How jobs run: what is not in declarations, but differs from one installation to the next."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tablegate.gateway.contract.registry_settings import RegistrySettings
from tablegate.jobs.table import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of one Spark application.

    `checkpoints`: directory or URL that Spark can write; each table has its own below it. `master`: None is enough
    local threads. `mode`: None is each declaration's. `registry`: where Avro's schemas are; None is nowhere.
    `partition_count`: of a changelog that is yet to be made; None is as many as the first source has. `spark_log`: file
    for what Spark itself writes; None is stderr. `once`: work off in micro-batches what the sources have, then end.
    `conf`: settings of Spark, which go before our defaults. `metrics`: HOST:PORT to serve Prometheus' metrics at; None
    is nowhere. `traces`: make spans of batches, and send them as the environment says.
    `accept_loss`: a new generation may lack records that the old one was made of, as the sources have dropped them.
    `from_state`: a new generation begins from the state of the old one; columns in `from_now` with what comes then.
    """

    bootstrap: str
    checkpoints: str
    master: str | None = None
    mode: Mode | None = None
    registry: RegistrySettings | None = None
    partition_count: int | None = None
    spark_log: Path | None = None
    accept_loss: bool = False
    from_state: bool = False
    from_now: tuple[str, ...] = ()
    once: bool = False
    metrics: str | None = None
    traces: bool = False
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a new generation begins to read: at a time, at offsets by topic and partition, or at the topics' start."""

    time_ms: int | None = None
    offsets: Mapping[str, Mapping[int, int]] | None = None
