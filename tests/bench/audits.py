"""How long `tablegate job audit` takes: `python -m tests.bench.audits [ROWS [AUDITS]]`.

A job makes a table of ROWS (10 million) ratings, each of a movie of its own, and stops. Then AUDITS (1) audits, each in
a process of its own, compare all of them. An audit that finds another number of rows, or one that differs, is an error.
"""

import json
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from tablegate.examples.demo.kafka import Broker
from tablegate.examples.samples import Event, create_topic, ratings, send
from tablegate.examples.samples.events import AvroValues
from tablegate.examples.tables.ratings import RATING_SCHEMA
from tests.bench.load import say
from tests.bench.usage import cpu_s
from tests.kit.programs.processes import process_tree

ROWS = 10_000_000
POLL_S = 0.1


def measure(rows: int, audits: int) -> None:
    """Print what the job that makes the table takes, and each audit."""
    with tempfile.TemporaryDirectory(prefix="tablegate-audits-") as directory, ExitStack() as stack:
        work = Path(directory)
        broker = stack.enter_context(Broker(work / "broker", log_file=work / "broker.log"))
        for topic, partitions in ratings.TOPICS.items():
            create_topic(broker.bootstrap, topic, partitions)
        say(f"writing {rows:,} ratings")
        send(broker.bootstrap, _ratings(rows))
        common = ["--bootstrap", broker.bootstrap, "--checkpoints", str(work / "checkpoints")]
        _timed("the job", work, [*_JOB, *common, "--mode", "microbatch", "--once"])
        for turn in range(audits):
            found = json.loads(_timed(f"audit {turn + 1}", work, [*_AUDIT, *common, "--json"]))
            if (found["equal"], found["compared"]) != (rows, rows):
                raise RuntimeError(f"the audit found {found}")


def _ratings(rows: int) -> Iterator[Event]:
    values = AvroValues(ratings.TOPIC, RATING_SCHEMA, registry=None)
    for movie_id in random.Random(1).sample(range(rows), rows):
        value = values.frame(RATING_SCHEMA, {"movie_id": movie_id, "rating": movie_id % 20 / 2})
        yield Event(ratings.TOPIC, struct.pack(">q", movie_id), value)


_JOB = [sys.executable, "-m", "tablegate.jobs.running", "--table", "ratings"]
_AUDIT = [sys.executable, "-m", "tablegate.gateway.cli", "job", "audit", "ratings"]


def _timed(what: str, work: Path, words: list[str]) -> str:
    """Run a program, and return what it printed; say how long it took, and the CPU of its processes."""
    out_path, log_path = work / "program.out", work / "program.log"
    begin_s, used_s = time.monotonic(), 0.0
    with (
        out_path.open("wb") as out,
        log_path.open("wb") as log,
        subprocess.Popen(words, stdout=out, stderr=log) as process,
    ):
        while process.poll() is None:
            used_s = max(used_s, cpu_s(process_tree(process.pid)))
            time.sleep(POLL_S)
    if process.returncode:
        raise RuntimeError(f"{what} ended with {process.returncode}: {log_path.read_text()[-2_000:]}")
    say(f"{what}: {time.monotonic() - begin_s:.1f} s, {used_s:.1f} s of CPU")
    return out_path.read_text()


if __name__ == "__main__":
    measure(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS, int(sys.argv[2]) if len(sys.argv) > 2 else 1)
