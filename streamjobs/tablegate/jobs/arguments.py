"""Arguments of the commands that run jobs: the same in `tablegate job …` and in `python -m tablegate.jobs.running`."""

from pathlib import Path
from typing import Annotated

import typer

from tablegate.gateway.contract.kafka_file import KafkaSettingsError
from tablegate.gateway.contract.kafka_settings import load_settings, use
from tablegate.gateway.contract.registry_settings import RegistrySettings, load_registry
from tablegate.jobs.errors import JobError
from tablegate.jobs.table import Mode

CHECKPOINTS = ".tablegate/checkpoints"

Checkpoints = Annotated[
    str,
    typer.Option(
        help="Directory or URL that Spark can write; each table has its own checkpoint below it.",
        metavar="DIRECTORY",
        envvar="TABLEGATE_CHECKPOINTS",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        help="Spark master, for example local[8] or spark://host:7077. Enough local threads without it.", metavar="URL"
    ),
]
OtherMode = Annotated[Mode | None, typer.Option("--mode", help="Instead of the declaration's.")]
Once = Annotated[
    bool, typer.Option("--once", help="Work off in micro-batches what the sources have, then end: for a scheduler.")
]
Partitions = Annotated[
    int | None,
    typer.Option(
        help="Of a new changelog; as many as the table had or, if it is new, as the source has.",
        min=1,
        metavar="N",
    ),
]
RegistryUrl = Annotated[
    str | None,
    typer.Option(
        "--schema-registry",
        help="Schema registry with the Confluent API; also url under registry in the file of --kafka.",
        metavar="URL",
    ),
]
MetricsAddress = Annotated[
    str | None,
    typer.Option("--metrics", help="Address to serve Prometheus' metrics at; nowhere without it.", metavar="HOST:PORT"),
]
Traces = Annotated[
    bool,
    typer.Option(
        "--traces",
        help="Send a span of each batch by OpenTelemetry, as its variables OTEL_… say. Needs the extra otel.",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", help="Setting of Spark. Repeatable. Jars go beside those of the job.", metavar="NAME=VALUE"),
]
SparkLog = Annotated[
    Path | None, typer.Option(help="File for what Spark itself writes; stderr without it.", metavar="FILE")
]


def spark_conf(given: list[str] | None) -> dict[str, str]:
    """Return settings of Spark by their names; raise `JobError`."""
    found = {}
    for text in given or ():
        name, separator, value = text.partition("=")
        if not separator or not name.startswith("spark."):
            raise JobError(f'--conf "{text}" is no setting of Spark; give NAME=VALUE, such as spark.ui.enabled=true')
        found[name] = value
    return found


def reach_kafka(bootstrap: str | None, file: Path | None, source_bootstrap: str | None = None) -> str:
    """Return the bootstrap servers of the cluster that the commands of this process work with; raise `JobError`.

    `source_bootstrap`: of the cluster of sources, where that is another one.
    """
    try:
        return use(load_settings(file, bootstrap=bootstrap, source_bootstrap=source_bootstrap))
    except KafkaSettingsError as error:
        raise JobError(str(error)) from None


def reach_registry(url: str | None, file: Path | None) -> RegistrySettings | None:
    """Return how the schema registry is reached; None where there is none; raise `JobError`."""
    try:
        return load_registry(file, url=url)
    except KafkaSettingsError as error:
        raise JobError(str(error)) from None
