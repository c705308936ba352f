"""Runs jobs: `python -m tablegate.jobs.running --table ratings …`, or this file under spark-submit.

    spark-submit --master spark://host:7077 \\
      --jars "$(python -c 'from tablegate.jobs.jars.jars import jars; print(*jars("spark"), sep=",")')" \\
      streamjobs/tablegate/jobs/running/__main__.py --table ratings --bootstrap host:9092 --checkpoints hdfs:///checkpoints

The package must be installed where the driver runs; executors need nothing of it. `tablegate job run` is the same for
people.
"""

import faulthandler
import sys
from typing import Annotated

import typer

from tablegate.gateway.contract.kafka_arguments import Bootstrap, KafkaFile, SourceBootstrap
from tablegate.jobs.arguments import (
    Checkpoints,
    Conf,
    Master,
    MetricsAddress,
    Once,
    OtherMode,
    Partitions,
    RegistryUrl,
    SparkLog,
    Traces,
    reach_kafka,
    reach_registry,
    spark_conf,
)
from tablegate.jobs.errors import JobError
from tablegate.jobs.planning.options import Options
from tablegate.jobs.running.runner import run_declared


def main(
    table: Annotated[
        list[str],
        typer.Option(help="Example table, or a .py file that defines TABLE or TABLES. Repeatable.", metavar="NAME"),
    ],
    checkpoints: Checkpoints,
    bootstrap: Bootstrap = None,
    kafka: KafkaFile = None,
    source_bootstrap: SourceBootstrap = None,
    master: Master = None,
    mode: OtherMode = None,
    partitions: Partitions = None,
    schema_registry: RegistryUrl = None,
    conf: Conf = None,
    spark_log: SparkLog = None,
    once: Once = False,
    metrics: MetricsAddress = None,
    traces: Traces = False,
) -> None:
    """Keep declared tables until SIGTERM, or with --once until all is worked off."""
    try:
        options = Options(
            bootstrap=reach_kafka(bootstrap, kafka, source_bootstrap),
            checkpoints=checkpoints,
            master=master,
            mode=mode,
            partition_count=partitions,
            registry=reach_registry(schema_registry, kafka),
            spark_log=spark_log,
            conf=spark_conf(conf),
            once=once,
            metrics=metrics,
            traces=traces,
        )
        run_declared(table, options)
    except JobError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    faulthandler.enable()  # a crash in a library's C code then says on stderr what ran
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app(prog_name="python -m tablegate.jobs.running")
