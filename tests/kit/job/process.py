"""A job as a process of its own, and a reader of its changelog."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.rows import RowDecoder
from tablegate.gateway.contract.types import VERSION_HEADER, is_marker_key
from tablegate.v1 import changelog_pb2
from tests.kit.programs.processes import stopped

WAIT_S = 180.0  # many times what it takes: these machines are shared


def wait_until(what: str, holds: Callable[[], bool], job: "JobProcess | None" = None) -> None:
    """Return when `holds()` does; fail when it takes too long, or the job ends meanwhile."""
    end_s = time.monotonic() + WAIT_S
    while True:
        begin_s = time.monotonic()
        is_over = job is not None and job.process.poll() is not None  # asked first: its last act may be what is awaited
        if holds():
            return
        assert job is None or not is_over, f"the job ended before {what}: {job.errors()}"
        assert time.monotonic() < end_s, f"no {what} within {WAIT_S:g} s"
        pause_after_check(begin_s)


def pause_after_check(begin_s: float) -> None:
    """Sleep before the next check, the longer the slower it was: what it waits for needs the processor more."""
    time.sleep(min(max(0.2, 4 * (time.monotonic() - begin_s)), 2.0))


class JobProcess:
    """A job that runs while the block does; SIGKILL at its end, if it still does."""

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        command: Sequence[str] = (sys.executable, "-m", "tablegate.jobs.running"),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        run = len(list(directory.glob("*.out")))
        self._out = directory / f"job-{run}.out"
        self._err = directory / f"job-{run}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL, and return when the Java process that the job started has ended too."""
        java = self._java_pids()
        self.process.kill()
        self.process.wait()
        wait_until("end of the job's Java", lambda: not any(os.path.exists(f"/proc/{pid}") for pid in java))

    def freeze(self) -> None:
        """Stop the job and its Java process where they are, as a machine does that sleeps."""
        for pid in (self.process.pid, *self._java_pids()):
            os.kill(pid, signal.SIGSTOP)

    def wait_frozen(self) -> None:
        """Return when the job has stopped by itself."""
        wait_until("stop of the job", lambda: stopped(self.process.pid), self)

    def thaw(self) -> None:
        """Let the job go on that has stopped."""
        self.thaw_java()
        self.process.send_signal(signal.SIGCONT)

    def thaw_java(self) -> None:
        """Let the frozen Java process go on, while the Python of the driver, which would end it, still sleeps."""
        for pid in self._java_pids():
            os.kill(pid, signal.SIGCONT)

    def _java_pids(self) -> list[int]:
        """Return the Java processes that the job has started."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in children.read_text().split()] if children.exists() else []

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the job's log lines of one kind."""
        lines = [line for line in self._out.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def errors(self) -> str:
        """Return what the job wrote to stderr."""
        return self._err.read_text()

    def wait_for(self, event: str) -> None:
        """Return when the job has logged `event`."""
        wait_until(f'"{event}" of the job', lambda: bool(self.events(event)), self)

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.terminate()
        return self.process.wait(WAIT_S)


class Row(NamedTuple):
    """A row of the ratings table."""

    average: float
    count: int
    update_time_ms: int


class Changelog:
    """A changelog, followed from its start: its rows of highest version, and its newest progress markers."""

    def __init__(self, bootstrap: str, topic: str, table: Table, partition_count: int) -> None:
        self._table = table
        self._partition_count = partition_count
        self._newest: dict[bytes, tuple[bytes, bytes]] = {}
        self.markers: dict[int, changelog_pb2.ProgressMarker] = {}
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "tests", "fetch.wait.max.ms": 50})
        self._consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(partition_count)])

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def read(self) -> None:
        """Read what has been written so far."""
        while records := self._consumer.consume(10_000, timeout=0.3):
            for record in records:
                assert record.error() is None, record.error()
                self._fold(record.partition() or 0, record.key() or b"", record.value() or b"", record.headers())

    def _fold(self, partition: int, key: bytes, value: bytes, headers: Any) -> None:
        if is_marker_key(key):
            self.markers[partition] = changelog_pb2.ProgressMarker.FromString(value)
            return
        assert partition == self._table.partition_of(key, self._partition_count)
        version = dict(headers)[VERSION_HEADER]
        if key not in self._newest or version > self._newest[key][0]:
            self._newest[key] = version, value

    def rows(self, value_schemas: dict[int, str]) -> dict[int, Row]:
        """Return the rows of the ratings table so far, by movie."""
        self.read()
        decoder = RowDecoder(self._table, value_schemas)
        rows: dict[int, Row] = {}
        for _, value in self._newest.values():
            row: Any = self._table.row_class.FromString(decoder.decode(value))
            rows[row.movie_id] = Row(row.average_rating, row.rating_count, row.update_time.ToMilliseconds())
        return rows

    def source_offsets(self, topic: str) -> dict[int, int] | None:
        """Return the offsets of a source in the newest markers; None while partitions have different ones."""
        self.read()
        marked = [
            {source.topic: dict(source.next_offsets) for source in marker.sources}.get(topic)
            for marker in self.markers.values()
        ]
        is_complete = len(marked) == self._partition_count and all(offsets == marked[0] for offsets in marked)
        return marked[0] if is_complete else None
