"""How every demo starts: its directory, free ports, Kafka with sample events, the job and its log."""

import fcntl
import itertools
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.progress import Progress, TaskID

from tablegate.examples.demo.console import print_line
from tablegate.examples.demo.kafka import Broker
from tablegate.examples.demo.processes import ChildProcess, ProcessEnded
from tablegate.examples.samples import EventProducer, create_topic, record_count
from tablegate.examples.samples.systems import RATINGS, System
from tablegate.jobs.jars.jars import Kind, jars
from tablegate.jobs.jars.java import SHORT_LIVED_OPTIONS, find_java

SAMPLES = 200  # of each system
SAMPLE_RATINGS = 2_000
SAMPLE_SEED = 1


class DemoError(Exception):
    """What stopped the demo, in one sentence."""


def end_by_signals() -> None:
    """Let SIGTERM be Ctrl-C, and Ctrl-C count: what a script has in the background would ignore it, and outlive it.

    A terminal that is closed is Ctrl-C, too, unless `nohup` is to outlive it: a demo that dies at once leaves processes
    that still end, and the next start would find their locks.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.default_int_handler)


def lock_directory(stack: ExitStack, data: Path) -> None:
    """Make the demo's directory and hold it; raise `DemoError` where that cannot be, or where a demo runs in it.

    SIGTERM is Ctrl-C from now.
    """
    end_by_signals()
    try:
        (data / "logs").mkdir(parents=True, exist_ok=True)
        lock = stack.enter_context((data / "lock").open("w"))
    except OSError as error:
        raise DemoError(f'"{data}" cannot be used: {error.strerror}; choose another directory with --data') from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise DemoError(f'a demo runs in "{data}": stop it, or choose another directory with --data') from None


def free_ports(first: int, names: Sequence[str]) -> list[int]:
    """Return a port for each name: `first` and those after it, or any free one where somebody has it, or for 0."""
    found = []
    with ExitStack() as probes:
        for wanted, name in enumerate(names, start=first):
            port = _free_port(probes, wanted)
            if wanted and port != wanted:
                print_line(f"port {wanted} is taken: {name} listens on {port}")
            found.append(port)
    return found


def _free_port(probes: ExitStack, wanted: int) -> int:
    for port in (wanted, 0):
        probe = probes.enter_context(socket.socket())
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            continue
        return int(probe.getsockname()[1])
    raise DemoError("no port is free on 127.0.0.1: end some program and try again")


class Steps:
    """Progress bars: one line a step, its time behind it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    @contextmanager
    def step(self, text: str) -> Iterator[Callable[[int, int], None]]:
        """Show a step while the block runs; the block may report how much of how much is done."""
        task: TaskID = self._progress.add_task(text, total=None)

        def advance(done: int, total: int) -> None:
            self._progress.update(task, completed=done, total=total)

        yield advance
        self._progress.update(task, total=1, completed=1)


def start_kafka(stack: ExitStack, broker: Broker, steps: Steps, *, jars_of: Sequence[Kind]) -> None:
    """Start a broker as a part of `stack`, with what it and others need; raise `SetupError`."""
    with steps.step("Java and pinned jars") as advance:
        find_java()
        for kind in jars_of:
            jars(kind, advance)
    with steps.step("Kafka, one node"):
        stack.enter_context(broker)


class KafkaWithSamples:
    """Kafka, as a part of `stack`, with sample events of `systems`; `producer` sends more.

    `is_first_start`: the known events were sent just now, not by an earlier start.
    """

    def __init__(self, stack: ExitStack, data: Path, systems: Sequence[System], steps: Steps) -> None:
        self._broker = Broker(data / "kafka", log_file=data / "logs" / "kafka.log")
        start_kafka(stack, self._broker, steps, jars_of=("broker", "spark"))
        self.bootstrap = self._broker.bootstrap
        self.producer = EventProducer(self.bootstrap)
        stack.callback(self._flush)
        names = f"{len(systems)} systems" if len(systems) > 1 else "one system"
        with steps.step(f"sample events of {names}") as advance:
            self.is_first_start = self._send_samples(systems, advance)

    def check(self) -> None:
        """Raise `ProcessEnded` unless Kafka lives."""
        if not self._broker.running:
            raise ProcessEnded(f"Kafka ended by itself (log: {self._broker.log_file})")

    def _flush(self) -> None:
        if self._broker.running:  # else it would be waited for, and events be blamed that nobody can send
            self.producer.flush()

    def _send_samples(self, systems: Sequence[System], advance: Callable[[int, int], None]) -> bool:
        """Send events of the systems that have none; return whether there are such."""
        sent = False
        for number, system in enumerate(systems):
            for topic, partitions in system.topics.items():
                create_topic(self.bootstrap, topic, partitions)
            if not any(record_count(self.bootstrap, topic) for topic in system.topics):
                count = SAMPLE_RATINGS if system is RATINGS else SAMPLES
                for event in itertools.chain(system.known_events(), system.events(count, SAMPLE_SEED)):
                    self.producer.send(event)
                sent = True
            advance(number + 1, len(systems))
        self.producer.flush()
        return sent


def job_process(data: Path, bootstrap: str, *arguments: str) -> ChildProcess:
    """Return the job that keeps the tables in `arguments`, not started yet."""
    logs = data / "logs"
    command = ["job", "run", *arguments, "--bootstrap", bootstrap]
    command += ["--checkpoints", str(data / "checkpoints"), "--spark-log", str(logs / "spark.log")]
    # Most of what two cores do while tables start is to compile Java. The user's own options come last, where they win.
    java = {"JDK_JAVA_OPTIONS": " ".join([*SHORT_LIVED_OPTIONS, os.environ.get("JDK_JAVA_OPTIONS", "")]).strip()}
    return ChildProcess("job", logs / "job.log", *command, environment=java)


def job_events(job_log: Path) -> tuple[set[str], bool]:
    """Return the tables whose queries run, and whether Spark is being started, by what the job has logged."""
    running, is_planned = set(), False
    for line in job_log.read_text(errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:  # half a line, or a word of Java's
            continue
        is_planned = True
        if event["event"] == "running":
            running.add(event["table"])
    return running, is_planned


class NoAnswer(Exception):
    """A table does not answer; the message says which, and where to look."""


ANSWERS_TIMEOUT_S = 300.0  # two quiet cores need a tenth of it
