"""An archive of the classes that Spark loads: each Spark of a test starts in half the time with it.

`python -m tests.kit.programs.spark_classes` makes Spark load them, and Java write the archive at its end.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pyspark

from tablegate.jobs.jars import SetupError
from tablegate.jobs.jars.java import find_java
from tablegate.jobs.planning.declarations import load_table
from tablegate.jobs.testing import Event, run_table
from tests.kit.table.filled import ROOT

DIRECTORY = ROOT / ".cache" / "spark-classes"
JARS = Path(pyspark.__file__).parent / "jars"
SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"  # where an archive does not fit, Java goes on without it


def with_archive(options: str) -> str:
    """Return Java's options with those for the archive, which is made where there is none.

    Unchanged where Java cannot make one.
    """
    try:
        java = find_java().resolve()
    except SetupError:
        return options
    # Java takes no archive of another Java, or of jars that have changed.
    made_of = [f"{path} {path.stat().st_mtime_ns}" for path in (java, *sorted(JARS.glob("*.jar")))]
    archive = DIRECTORY / f"{hashlib.sha256(repr([options, made_of]).encode()).hexdigest()[:16]}.jsa"
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    with (DIRECTORY / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _make(archive, options)
    return f"{options} -XX:SharedArchiveFile={archive} {SILENT}" if archive.exists() else options


def _make(archive: Path, options: str) -> None:
    draft = archive.with_suffix(".draft")
    for old in DIRECTORY.glob("*.jsa"):
        old.unlink()
    recording = f"{options} -XX:ArchiveClassesAtExit={draft} {SILENT}"
    subprocess.run(
        [sys.executable, "-m", "tests.kit.programs.spark_classes"],
        cwd=ROOT,
        env={**os.environ, "SPARK_SUBMIT_OPTS": recording},
        capture_output=True,
        check=False,
    )
    if draft.exists():
        draft.rename(archive)


def _load() -> None:
    """Let Spark do what most tests let it do: a plain fold, a join, a processor."""
    run_table(load_table("ratings"), [Event("ratings", value={"movie_id": 1, "rating": 1.0})])
    run_table(load_table("customers"))
    run_table(load_table("balances"))


if __name__ == "__main__":
    _load()
