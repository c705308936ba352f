"""`tablegate demo`: Kafka, a job that keeps all example tables and a gateway, on this machine; a question of each."""

import fcntl
import itertools
import json
import os
import shlex
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from rich.progress import Progress, TaskID

from gateway.cli.children import Child, ChildEnded
from gateway.cli.demo_answers import Answers, NoAnswer, command_line, progress_bars, say
from gateway.cli.demo_tables import QUESTIONS, RATINGS, SYSTEMS
from gateway.contract.descriptors import DescriptorError, shipped_proto_directory
from streamjobs.local import LocalError
from streamjobs.local.jars import jars
from streamjobs.local.java import find_java
from streamjobs.local.kafka import Broker
from streamjobs.local.samples import EventProducer, create_topic, record_count

SAMPLES = 200  # of each system
SAMPLE_RATINGS = 2_000
SAMPLE_SEED = 1
TRICKLE_S = 0.5
TRICKLE_EVENTS = 3
"""Events that another system sends at once, after every second rating: its tables then make one batch for them."""
# Most of what two cores do while eight tables start is to compile Java. The quick compiler alone halves that.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class DemoError(Exception):
    """What stopped the demo, in one sentence."""


def demo(data: Path, *, once: bool, port: int) -> None:
    """Start everything, ask, print the answers; then stay until Ctrl-C, unless `once`. Raise `DemoError`."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with ExitStack() as stack:
            _lock(stack, data)
            running = _Running(stack, data, _free_port(port))
            _print_more(running.address)
            if not once:
                running.stay()
    except (NoAnswer, ChildEnded, LocalError, DescriptorError) as error:
        raise DemoError(str(error)) from None
    except KeyboardInterrupt:
        pass
    say(f"stopped; the next start finds its data in {data}")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _lock(stack: ExitStack, data: Path) -> None:
    data.mkdir(parents=True, exist_ok=True)
    lock = stack.enter_context((data / "lock").open("w"))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise DemoError(f'a demo runs in "{data}": stop it, or choose another directory with --data') from None


def _free_port(wanted: int) -> int:
    """Return `wanted`, or any free port where somebody has it."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found = int(probe.getsockname()[1])
            if found != wanted:
                say(f"port {wanted} is taken: the gateway listens on {found}")
            return found
    raise DemoError("no port is free on 127.0.0.1: end some program and try again")


class _Steps:
    """Progress bars: one line a step, its time behind it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    @contextmanager
    def step(self, text: str) -> Iterator[Callable[[int, int], None]]:
        """Show a step while the block runs; the block may say how much of how much is done."""
        task: TaskID = self._progress.add_task(text, total=None)

        def advance(done: int, total: int) -> None:
            self._progress.update(task, completed=done, total=total)

        yield advance
        self._progress.update(task, total=1, completed=1)


class _Running:
    """Kafka, the jobs and a gateway, started in this order as parts of `stack`; the gateway answers at `address`."""

    def __init__(self, stack: ExitStack, data: Path, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        started = time.monotonic()
        with progress_bars(transient=False) as progress:
            steps = _Steps(progress)
            with steps.step("Java and pinned jars") as advance:
                find_java()
                for kind in ("broker", "spark"):
                    jars(kind, advance)
            with steps.step("Kafka, one node"):
                broker = stack.enter_context(Broker(data / "kafka", log_file=data / "logs" / "kafka.log"))
            self._producer = EventProducer(broker.bootstrap)
            stack.callback(self._producer.flush)
            with steps.step(f"sample events of {len(SYSTEMS)} systems") as advance:
                is_first_start = self._send_samples(broker.bootstrap, advance)
        say(_modes())
        self._children = [stack.enter_context(child) for child in _children(data, broker.bootstrap, self.address)]
        answers = Answers(
            self.address,
            job_log=data / "logs" / "job.log",
            check=self._check,
            send=None if is_first_start else self._producer.send,
        )
        answers.wait(started)
        say(f"Kafka listens on {broker.bootstrap}; logs are in {data / 'logs'}.\n")

    def _send_samples(self, bootstrap: str, advance: Callable[[int, int], None]) -> bool:
        """Send events of the systems that have none; return whether there are such."""
        sent = False
        for number, system in enumerate(SYSTEMS):
            for topic, partitions in system.topics.items():
                create_topic(bootstrap, topic, partitions)
            if not any(record_count(bootstrap, topic) for topic in system.topics):
                count = SAMPLE_RATINGS if system is RATINGS else SAMPLES
                for event in itertools.chain(system.known_events(), system.events(count, SAMPLE_SEED)):
                    self._producer.send(event)
                sent = True
            advance(number + 1, len(SYSTEMS))
        self._producer.flush()
        return sent

    def _check(self) -> None:
        for child in self._children:
            child.check()

    def stay(self) -> None:
        """Send events of all systems, until Ctrl-C; raise `ChildEnded` where a process ends."""
        say("\nA rating comes every half second, events of the other systems in turn.\nCtrl-C stops everything.")
        seed = time.time_ns()
        ratings = RATINGS.events(None, seed)
        others = itertools.cycle([system.events(None, seed) for system in SYSTEMS if system is not RATINGS])
        for number in itertools.count():
            self._producer.send(next(ratings))
            if number % 2:
                for event in itertools.islice(next(others), TRICKLE_EVENTS):
                    self._producer.send(event)
            self._check()
            time.sleep(TRICKLE_S)


def _modes() -> str:
    return f"""
One Spark application keeps {len(QUESTIONS)} tables. ratings is in Real-time Mode: an event
is in answers after milliseconds, and tasks hold their threads all the time.
The others are in micro-batches, and hold no thread between two of them.
"""


def _children(data: Path, bootstrap: str, address: str) -> Sequence[Child]:
    logs = data / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    job = ["job", "run", *(question.table.name for question in QUESTIONS), "--bootstrap", bootstrap]
    job += ["--checkpoints", str(data / "checkpoints"), "--spark-log", str(logs / "spark.log")]
    serve = ["serve", "--bootstrap", bootstrap, "--data", str(data / "gateway"), "--listen", address, "--reflection"]
    for question in QUESTIONS:
        serve += ["--contract", str(shipped_proto_directory() / question.table.contract)]
    # The user's own options come last, where they win.
    java = {"JDK_JAVA_OPTIONS": f"{JAVA_OPTIONS} {os.environ.get('JDK_JAVA_OPTIONS', '')}".strip()}
    return Child("job", logs / "job.log", *job, environment=java), Child("gateway", logs / "gateway.log", *serve)


def _print_more(address: str) -> None:
    """Print what else to try."""
    say("To try:")
    for words in (
        ["range", "ratings", "movie_id_from=1", "--limit", "3"],
        ["scan", "balances", "min_booking_count=2", "--limit", "3"],
        ["tables"],
    ):
        say(f"  {command_line(words, address)}", markup=False)
    say("With grpcurl:")
    for request, path in (
        ({"movie_id": 362}, "ratings.v1.RatingsService/GetRating"),
        ({"keys": [{"customer_id": "customer-1"}]}, "balances.v1.BalancesService/BatchGetBalances"),
        ({"status": "REGULAR"}, "customers.v1.CustomersService/ScanCustomers"),
    ):
        data = shlex.quote(json.dumps(request))
        say(f"  grpcurl -plaintext -d {data} {address} examples.{path}", markup=False)
    say("With curl:")
    say(f"  curl {address}/v1/ratings/362", markup=False)
    say(f"  curl -N '{address}/v1/ratings:scan?minAverageRating=8'", markup=False)
    say(f"In a browser: http://{address}/docs")
