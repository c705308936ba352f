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
        help="Schema registry with the Confluent API; also url of [registry] in the file of --kafka.",
        metavar="URL",
    ),
]
SparkLog = Annotated[
    Path | None, typer.Option(help="File for what Spark itself writes; stderr without it.", metavar="FILE")
]


def reach_kafka(bootstrap: str | None, file: Path | None) -> str:
    """Return the bootstrap servers of the cluster that the commands of this process work with; raise `JobError`."""
    try:
        return use(load_settings(file, bootstrap=bootstrap))
    except KafkaSettingsError as error:
        raise JobError(str(error)) from None


def reach_registry(url: str | None, file: Path | None) -> RegistrySettings | None:
    """Return how the schema registry is reached; None where there is none; raise `JobError`."""
    try:
        return load_registry(file, url=url)
    except KafkaSettingsError as error:
        raise JobError(str(error)) from None
