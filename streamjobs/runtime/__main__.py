"""Runs a job: `python -m streamjobs.runtime --table ratings …`, or this file under spark-submit.

    spark-submit --master spark://host:7077 \\
      --jars "$(python -c 'from streamjobs.local.jars import jars; print(*jars("spark"), sep=",")')" \\
      streamjobs/runtime/__main__.py --table ratings --bootstrap host:9092 --checkpoint hdfs:///checkpoints/ratings-g1

The package must be installed where the driver runs; executors need nothing of it.
"""

import argparse
import sys
from pathlib import Path

from streamjobs.runtime.declarations import load_table
from streamjobs.runtime.errors import JobError
from streamjobs.runtime.options import Options
from streamjobs.runtime.runner import run_job
from streamjobs.table import Mode


def main(arguments: list[str] | None = None) -> int:
    """Run the job that the command line names; return the exit code."""
    parsed = _parser().parse_args(arguments)
    options = Options(
        bootstrap=parsed.bootstrap,
        checkpoint=parsed.checkpoint,
        master=parsed.master,
        mode=Mode(parsed.mode) if parsed.mode else None,
        schema_registry_url=parsed.schema_registry,
        partition_count=parsed.partitions,
        spark_log=parsed.spark_log,
    )
    try:
        run_job(load_table(parsed.table), options)
    except JobError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m streamjobs.runtime", description="Keep a declared table.")
    parser.add_argument("--table", required=True, help="example table, or path of a .py file that defines TABLE")
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT,…", help="Kafka brokers")
    parser.add_argument("--checkpoint", required=True, metavar="DIRECTORY", help="one for each table and generation")
    parser.add_argument("--master", help="Spark master; by default enough local threads")
    parser.add_argument("--mode", choices=[mode.value for mode in Mode], help="instead of the declaration's")
    parser.add_argument("--partitions", type=int, metavar="N", help="of a new changelog; by default as the source has")
    parser.add_argument("--schema-registry", metavar="URL", help="where writers' schemas are found by their ids")
    parser.add_argument("--spark-log", type=Path, metavar="FILE", help="what Spark itself writes; by default stderr")
    return parser


if __name__ == "__main__":
    sys.exit(main())
