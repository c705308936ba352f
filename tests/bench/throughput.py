"""Throughput: how fast jobs work off a backlog; ratings beside the peer."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from confluent_kafka import Message

from tablegate.examples.demo.kafka import Broker, free_port
from tablegate.examples.samples import create_topic
from tablegate.gateway.contract.types import VERSION_HEADER, Version, read_version
from tablegate.jobs.kafka.topics import changelog_name
from tablegate.jobs.planning.declarations import example_names, load_table
from tablegate.jobs.table import Mode, Table
from tests.bench.backlog import Backlog
from tests.bench.catching_up import Counted, Marked, Output, Pace, follow
from tests.bench.figures import Figures
from tests.bench.load import say
from tests.bench.peer import Peer
from tests.bench.usage import cpu_s
from tests.kit.programs.processes import process_tree

REPEAT = 3
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
LOG_SHOWN = 2_000

PEER_SETTINGS: dict[Mode, dict[str, object]] = {
    Mode.MICROBATCH: {},  # its defaults: a cache that folds changes of a second into one, as a micro-batch does
    Mode.REALTIME: {"cache": 0, "linger": 0},  # each change at once
}
MODE_NAMES = {Mode.MICROBATCH: "micro-batches", Mode.REALTIME: "Real-time Mode"}


@dataclass(frozen=True, slots=True)
class Run:
    """One backlog worked off. CPU in µs a record: of the job with all its processes, and of the broker meanwhile."""

    pace: Pace
    cpu_us: float
    broker_cpu_us: float


@dataclass(frozen=True, slots=True)
class Contestant:
    """Works off the backlog of a table: `run` does it once, on a broker of its own."""

    who: str
    run: Callable[[str], Run]


def measure(
    work: Path, built: Path | None, figures: Figures, *, names: Sequence[str], records: int, repeat: int
) -> None:
    """Record the pace of the jobs of these tables (of all where none is named), in each mode that they may run in."""
    tables = [load_table(name) for name in names or example_names()]
    tables.sort(key=lambda table: table.name != "ratings")  # the one with a peer first
    backlog = Backlog(work / "throughput", tables, records)
    for table in tables:
        for mode in Mode:
            if mode is Mode.REALTIME and table.why_not_realtime() is not None:
                continue
            contestants = [Contestant("tablegate", _Job(backlog, table, mode).run)]
            if built and table.name == "ratings":
                contestants.append(Contestant("peer", _PeerJob(backlog, table, built, mode).run))
            _contest(figures, f"{table.name}, {MODE_NAMES[mode]}", contestants, min(repeat, REPEAT))


def _contest(figures: Figures, name: str, contestants: list[Contestant], repeat: int) -> None:
    runs: dict[str, list[Run]] = {contestant.who: [] for contestant in contestants}
    for turn in range(repeat):
        for contestant in contestants:
            say(f"{name}: {contestant.who}, {turn + 1} of {repeat}")
            runs[contestant.who].append(contestant.run(f"{contestant.who}-{turn}"))
    for which, unit, of in _MEASURED:
        values = {who: [value for run in each if (value := of(run)) is not None] for who, each in runs.items()}
        for who, each in values.items():
            if each:
                figures.record(f"{name}, {which}", who, each, unit)
        if unit == "records/s" and all(len(each) == repeat for each in values.values()) and "peer" in values:
            shares = [ours / peers for ours, peers in zip(values["tablegate"], values["peer"], strict=True)]
            figures.record(f"{name}, {which}, of the peer's", "tablegate", shares, "x")


_MEASURED: tuple[tuple[str, str, Callable[[Run], float | None]], ...] = (
    ("cold", "records/s", lambda run: run.pace.cold),
    ("warm", "records/s", lambda run: run.pace.warm),
    ("CPU", "µs a record", lambda run: run.cpu_us),
    ("CPU of the broker", "µs a record", lambda run: run.broker_cpu_us),
)


class _Job:
    """Our job of a table."""

    def __init__(self, backlog: Backlog, table: Table, mode: Mode) -> None:
        self._backlog = backlog
        self._table = table
        self._mode = mode

    def run(self, name: str) -> Run:
        output: Output = Marked(rows_end=self._mode is Mode.REALTIME)
        if self._table.name == "ratings":  # told by the rows, as the peer's
            output = Counted(_sequence)
        with self._backlog.broker(name) as broker, self._process(broker) as (process, log_path):
            started_s = _running_time(process, log_path)
            topic = changelog_name(broker.bootstrap, self._table.name, self._table.generation)
            return _work_off(broker, process.pid, started_s, topic, output, self._backlog.of(self._table), process.poll)

    @contextmanager
    def _process(self, broker: Broker) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        data = broker.data_dir  # removed with the broker's
        words = [
            sys.executable,
            "-m",
            "tablegate.jobs.running",
            "--table",
            self._table.name,
            "--mode",
            self._mode.value,
        ]
        words += ["--bootstrap", broker.bootstrap, "--checkpoints", str(data / "checkpoints")]
        words += ["--spark-log", str(data / "spark.log")]
        log_path = data / "job.log"
        with log_path.open("wb") as log, subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT) as process:
            try:
                yield process, log_path
            finally:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(STOP_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    process.kill()


class _PeerJob:
    """The peer's job of ratings."""

    def __init__(self, backlog: Backlog, table: Table, built: Path, mode: Mode) -> None:
        self._backlog = backlog
        self._table = table
        self._built = built
        self._settings = PEER_SETTINGS[mode]

    def run(self, name: str) -> Run:
        with self._backlog.broker(name) as broker:
            # It would give its results the times of their inputs.
            create_topic(broker.bootstrap, "peer-out", 2, {"message.timestamp.type": "LogAppendTime"})
            peer = Peer(self._built, broker.bootstrap, broker.data_dir / "state", free_port(), **self._settings)
            try:
                records = self._backlog.of(self._table)
                return _work_off(broker, peer.pid, time.time(), "peer-out", Counted(_peer_count), records, peer.poll)
            finally:
                peer.stop()


def _work_off(
    broker: Broker,
    pid: int,
    started_s: float,
    topic: str,
    output: Output,
    records: int,
    exit_code: Callable[[], object],
) -> Run:
    def check() -> None:
        if exit_code() is not None:
            raise RuntimeError(f"the job that writes {topic} has ended")

    def spent_s() -> tuple[float, float]:
        return cpu_s(process_tree(pid)), cpu_s([broker.pid])

    before_s, broker_before_s = spent_s()
    follow(broker.bootstrap, topic, output, records, check)
    after_s, broker_after_s = spent_s()
    return Run(
        output.pace(started_s),
        (after_s - before_s) / records * 1e6,
        (broker_after_s - broker_before_s) / records * 1e6,
    )


def _sequence(message: Message) -> int:
    """Return how many records a row of ours is made of: the sequence of its version, as ratings are not keyed."""
    version = dict(message.headers() or [])[VERSION_HEADER]
    assert isinstance(version, bytes)
    return read_version(Version(version))[1]


def _peer_count(message: Message) -> int:
    """Return how many records a row of the peer is made of: sum and count, 8 bytes each."""
    return int.from_bytes((message.value() or b"")[8:16], "big")


def _running_time(process: subprocess.Popen[bytes], log_path: Path) -> float:
    """Return when the job said that it runs, in seconds since 1970; raise `RuntimeError` where it does not."""
    end = time.monotonic() + START_TIMEOUT_S
    while True:
        said = log_path.read_text()
        for line in said.splitlines():
            if line.startswith("{") and json.loads(line)["event"] == "running":
                return datetime.fromisoformat(json.loads(line)["time"]).timestamp()
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"the job did not start: {said[-LOG_SHOWN:]}")
        time.sleep(0.05)
