"""The archives of Java's classes, written before tests start many a Spark and broker: each starts in half the time.

`python -m tests.kit.programs.class_archives` lets both do what most tests let them do, and waits for their archives.
"""

import fcntl
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from pyspark import SparkContext

from tablegate.examples.demo.kafka import Broker
from tablegate.jobs.jars import SetupError
from tablegate.jobs.jars.class_archive import ClassArchive
from tablegate.jobs.jars.jars import cache_directory, jars
from tablegate.jobs.jars.java import find_java
from tablegate.jobs.planning.declarations import load_table
from tablegate.jobs.running.session import class_path, spark_session
from tablegate.jobs.testing import Event, run_table
from tests.kit.table.filled import ROOT


def write_archives() -> None:
    """Write the archives that are not there, once for all processes; nothing is done without Java and its jars."""
    try:
        java, paths = find_java(), {"spark": class_path(jars("spark")), "broker": [*map(str, jars("broker"))]}
    except SetupError:
        return
    with (cache_directory() / "tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all(ClassArchive(kind, java, path).options(records=False) for kind, path in paths.items()):
            program = [sys.executable, "-m", "tests.kit.programs.class_archives"]
            subprocess.run(program, cwd=ROOT, capture_output=True, check=False)


def _run_both() -> None:
    with tempfile.TemporaryDirectory() as directory:
        with Broker(Path(directory, "kafka")):
            pass
        log = Path(directory, "spark.log")
        with spark_session("archive", master="local[2]", checkpoints=directory, spark_log=log, records_classes=True):
            run_table(load_table("ratings"), [Event("ratings", value={"movie_id": 1, "rating": 1.0})])
            run_table(load_table("customers"))
            run_table(load_table("balances"))
    SparkContext._gateway.proc.stdin.close()  # Java ends then
    with suppress(ChildProcessError):
        while True:
            os.wait()


if __name__ == "__main__":
    _run_both()
