"""Arguments of the commands that reach Kafka: the same for gateways and for jobs."""

from pathlib import Path
from typing import Annotated

import typer

Bootstrap = Annotated[
    str | None,
    typer.Option(
        help="Kafka brokers; also bootstrap in the file of --kafka.",
        metavar="HOST:PORT,...",
        envvar="TABLEGATE_BOOTSTRAP",
        show_default=False,
    ),
]
SourceBootstrap = Annotated[
    str | None,
    typer.Option(
        help="Kafka brokers of the sources, where another cluster has these; also bootstrap under sources in the file.",
        metavar="HOST:PORT,...",
        show_default=False,
    ),
]
KafkaFile = Annotated[
    Path | None,
    typer.Option(
        "--kafka",
        help="How Kafka is reached: a TOML file with TLS and SASL settings.",
        metavar="FILE",
        envvar="TABLEGATE_KAFKA",
    ),
]
