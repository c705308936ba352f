"""`tablegate demo`: Kafka, the ratings job and a gateway on this machine, and the questions a user would ask."""

import fcntl
import json
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from gateway.cli import show
from gateway.cli.ask import AskError, Gateway
from gateway.cli.children import Child, ChildEnded
from gateway.contract.descriptors import DescriptorError, shipped_proto_directory
from streamjobs.local import LocalError
from streamjobs.local.jars import jars
from streamjobs.local.java import find_java
from streamjobs.local.kafka import Broker
from streamjobs.local.samples import EventProducer, create_topic, ratings, record_count

CONTRACT = "examples/ratings/v1/ratings.proto"
TOPIC = "ratings"
SOURCE_PARTITIONS = 2
TABLE_PARTITIONS = 4
SAMPLE_RATINGS = 2_000
MASTER = "local[8]"  # Real-time Mode wants a slot for each source and shuffle partition at once
ANSWER_TIMEOUT_S = 180.0  # a cold laptop starts Spark in 30 s
TRICKLE_S = 0.5
OUT = Console(highlight=False, soft_wrap=True)


class DemoError(Exception):
    """What stopped the demo, in one sentence."""


def demo(data: Path, *, once: bool, port: int) -> None:
    """Start everything, ask, print the answers; then stay until Ctrl-C, unless `once`. Raise `DemoError`."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with ExitStack() as stack:
            _lock(stack, data)
            running = _Running(stack, data, _free_port(port))
            _ask(running.address)
            if not once:
                running.stay()
    except (AskError, ChildEnded, LocalError, DescriptorError) as error:
        raise DemoError(str(error)) from None
    except KeyboardInterrupt:
        pass
    OUT.print(f"stopped; the next start finds its data in {data}")


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
                OUT.print(f"port {wanted} is taken: the gateway listens on {found}")
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
    """Kafka, the job and a gateway, started in this order as parts of `stack`; the gateway answers at `address`."""

    def __init__(self, stack: ExitStack, data: Path, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        started = time.monotonic()
        columns = (SpinnerColumn(finished_text="[green]✓[/green]"), TextColumn("{task.description:<42}"))
        with Progress(*columns, BarColumn(bar_width=24), TimeElapsedColumn(), console=OUT) as progress:
            steps = _Steps(progress)
            with steps.step("Java and pinned jars") as advance:
                find_java()
                for kind in ("broker", "spark"):
                    jars(kind, advance)
            with steps.step("Kafka, one node"):
                broker = stack.enter_context(Broker(data / "kafka", log_file=data / "logs" / "kafka.log"))
                create_topic(broker.bootstrap, TOPIC, SOURCE_PARTITIONS)
            self._children = [stack.enter_context(child) for child in _children(data, broker.bootstrap, self.address)]
            self._producer = EventProducer(broker.bootstrap)
            stack.callback(self._producer.flush)
            with steps.step("sample ratings, in Avro") as advance:
                if record_count(broker.bootstrap, TOPIC) == 0:
                    self._send_samples(advance)
            with steps.step("PySpark job in Real-time Mode, and gateway"):
                self._wait_for_first_answer()
        OUT.print(f"first answer after {time.monotonic() - started:.0f} s; Kafka listens on {broker.bootstrap}\n")

    def _send_samples(self, advance: Callable[[int, int], None]) -> None:
        samples = [*ratings.known_events(), *ratings.events(SAMPLE_RATINGS)]
        for sent, event in enumerate(samples, start=1):
            self._producer.send(event)
            advance(sent, len(samples))
        self._producer.flush()

    def _check(self) -> None:
        for child in self._children:
            child.check()

    def _wait_for_first_answer(self) -> None:
        end = time.monotonic() + ANSWER_TIMEOUT_S
        while not _known_answer(self.address):
            self._check()
            if time.monotonic() > end:
                logs = " and ".join(str(child.log_path) for child in self._children)
                raise DemoError(f"no right answer for movie 362 within {ANSWER_TIMEOUT_S:.0f} s: see {logs}")
            time.sleep(0.2)

    def stay(self) -> None:
        """Send a rating now and then, until Ctrl-C; raise `ChildEnded` where a process ends."""
        OUT.print("\nA new rating comes every half second. Ctrl-C stops everything.")
        for event in ratings.events(seed=time.time_ns()):
            self._producer.send(event)
            self._check()
            time.sleep(TRICKLE_S)


def _children(data: Path, bootstrap: str, address: str) -> Sequence[Child]:
    logs = data / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    job = ["job", "run", "ratings", "--bootstrap", bootstrap, "--master", MASTER]
    job += ["--checkpoints", str(data / "checkpoints"), "--partitions", str(TABLE_PARTITIONS)]
    job += ["--spark-log", str(logs / "spark.log")]
    serve = ["serve", "--contract", str(shipped_proto_directory() / CONTRACT), "--bootstrap", bootstrap]
    serve += ["--data", str(data / "gateway"), "--listen", address, "--reflection"]
    return Child("job", logs / "job.log", *job), Child("gateway", logs / "gateway.log", *serve)


def _known_answer(address: str) -> bool:
    """Say whether movie 362 has its average 9.0 of 2 ratings."""
    with Gateway(address) as gateway:
        try:
            rows: list[Any] = list(gateway.get(TOPIC, ["movie_id=362"]))
            return [(row.average_rating, row.rating_count) for row in rows] == [(9.0, 2)]
        except AskError:
            return False


def _ask(address: str) -> None:
    """Print questions and their answers, as a user would see them, and what else to try."""
    with Gateway(address) as gateway:
        for words, rows in (
            (["get", "ratings", "movie_id=362"], gateway.get("ratings", ["movie_id=362"])),
            (
                ["range", "ratings", "movie_id_from=1", "--limit", "3"],
                gateway.range("ratings", ["movie_id_from=1"], limit=3, descending=False),
            ),
            (
                ["scan", "ratings", "min_average_rating=8", "--limit", "3"],
                gateway.scan("ratings", ["min_average_rating=8"], limit=3),
            ),
        ):
            OUT.print(f"[bold]$ {_command(words, address)}[/bold]")
            show.rows(list(rows))
            OUT.print()
    OUT.print("To try, with grpcurl:")
    for request, method in (
        ({"movie_id": 362}, "GetRating"),
        ({"keys": [{"movie_id": 362}, {"movie_id": 1}]}, "BatchGetRatings"),
        ({"page_size": 3}, "ListRatings"),
        ({"min_average_rating": 8}, "ScanRatings"),
    ):
        path = f"examples.ratings.v1.RatingsService/{method}"
        OUT.print(f"  grpcurl -plaintext -d {shlex.quote(json.dumps(request))} {address} {path}", markup=False)
    OUT.print("With curl:")
    OUT.print(f"  curl {address}/v1/ratings/362", markup=False)
    OUT.print(f"  curl -N '{address}/v1/ratings:scan?minAverageRating=8'", markup=False)
    OUT.print(f"In a browser: http://{address}/docs")


def _command(words: Sequence[str], address: str) -> str:
    program = str(Path(sys.argv[0])) if Path(sys.argv[0]).name == "tablegate" else "tablegate"
    return shlex.join([program, *words, *(["--address", address] if address != "127.0.0.1:50051" else [])])
