"""`tablegate demo`: Kafka, a job that keeps all example tables and a gateway, on this machine; a question of each.

Decision: docs/decisions/0018-demo-modes.md
"""

import itertools
import json
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from google.protobuf.message import Message

from tablegate.examples import CONTRACTS
from tablegate.examples.demo.console import command_line, print_line, progress_bars
from tablegate.examples.demo.launch import (
    ANSWERS_TIMEOUT_S,
    DemoError,
    KafkaWithSamples,
    NoAnswer,
    Steps,
    free_ports,
    job_events,
    job_process,
    lock_directory,
)
from tablegate.examples.demo.processes import ChildProcess, ProcessEnded
from tablegate.examples.demo.questions import QUESTIONS, Question
from tablegate.examples.samples import Event
from tablegate.examples.samples.systems import RATINGS, SYSTEMS
from tablegate.gateway.cli import show
from tablegate.gateway.cli.connecting import AskError
from tablegate.gateway.cli.gateway import Gateway
from tablegate.gateway.contract.descriptors import DescriptorError
from tablegate.jobs.jars import SetupError

TRICKLE_S = 0.5
TRICKLE_EVENTS = 3
"""Events that another system sends at once, after every second rating: its tables then make one batch for them."""


def demo(data: Path, *, once: bool, port: int) -> None:
    """Start everything, ask, print the answers; then stay until Ctrl-C, unless `once`. Raise `DemoError`."""
    try:
        with ExitStack() as stack:
            lock_directory(stack, data)
            [port] = free_ports(port, ["the gateway"])
            running = _Running(stack, data, port)
            _print_more(running.address)
            if not once:
                running.stay()
    except (NoAnswer, ProcessEnded, SetupError, DescriptorError) as error:
        raise DemoError(str(error)) from None
    except KeyboardInterrupt:
        pass
    print_line(f"stopped; the next start finds its data in {data}")


class _Running:
    """Kafka, the jobs and a gateway, started in this order as parts of `stack`; the gateway answers at `address`."""

    def __init__(self, stack: ExitStack, data: Path, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        started = time.monotonic()
        with progress_bars(transient=False) as progress:
            self._kafka = kafka = KafkaWithSamples(stack, data, SYSTEMS, Steps(progress))
        self._producer = kafka.producer
        print_line(_modes())
        tables = [question.table.name for question in QUESTIONS]
        children = (job_process(data, kafka.bootstrap, *tables), _gateway(data, kafka.bootstrap, self.address))
        self._children = [stack.enter_context(child) for child in children]
        answers = Answers(
            self.address,
            job_log=data / "logs" / "job.log",
            check=self._check,
            send=None if kafka.is_first_start else self._producer.send,
        )
        answers.wait(started)
        print_line(f"Kafka listens on {kafka.bootstrap}; logs are in {data / 'logs'}.\n")

    def _check(self) -> None:
        self._kafka.check()  # first: the others end with it
        for child in self._children:
            child.check()

    def stay(self) -> None:
        """Send events of all systems, until Ctrl-C; raise `ProcessEnded` where a process ends."""
        print_line("\nA rating comes every half second, events of the other systems in turn.\nCtrl-C stops everything.")
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


def _gateway(data: Path, bootstrap: str, address: str) -> ChildProcess:
    serve = ["serve", "--bootstrap", bootstrap, "--data", str(data / "gateway"), "--listen", address, "--reflection"]
    for question in QUESTIONS:
        serve += ["--contract", str(CONTRACTS / question.table.contract)]
    return ChildProcess("gateway", data / "logs" / "gateway.log", *serve)


def _print_more(address: str) -> None:
    """Print what else to try."""
    print_line("To try:")
    for words in (
        ["range", "ratings", "movie_id_from=1", "--limit", "3"],
        ["scan", "balances", "min_booking_count=2", "--limit", "3"],
        ["tables"],
    ):
        print_line(f"  {command_line(words, address)}", markup=False)
    print_line("With grpcurl:")
    for request, path in (
        ({"movie_id": 362}, "ratings.v1.RatingsService/GetRating"),
        ({"keys": [{"customer_id": "customer-1"}]}, "balances.v1.BalancesService/BatchGetBalances"),
        ({"status": "REGULAR"}, "customers.v1.CustomersService/ScanCustomers"),
    ):
        data = shlex.quote(json.dumps(request))
        print_line(f"  grpcurl -plaintext -d {data} {address} examples.{path}", markup=False)
    print_line("With curl:")
    print_line(f"  curl {address}/v1/ratings/362", markup=False)
    print_line(f"  curl -N '{address}/v1/ratings:scan?minAverageRating=8'", markup=False)
    print_line(f"In a browser: http://{address}/")
    print_line(f"The console, which shows it all as it moves: http://{address}/console")


class Answers:
    """Asks a gateway until each table has answered for the known events.

    `check` raises where a process has ended. `send` sends an event again, where the known ones of an earlier start may
    have expired; None where they were sent just now.
    """

    def __init__(
        self, address: str, *, job_log: Path, check: Callable[[], None], send: Callable[[Event], None] | None
    ) -> None:
        self._address = address
        self._job_log = job_log
        self._check = check
        self._send = send
        self._waiting = list(QUESTIONS)
        self._gateway: Gateway | None = None

    def wait(self, started_s: float) -> None:
        """Print each answer when it is there, and return after the last; raise `NoAnswer` when one does not come.

        `started_s` is the monotonic time of the demo's start.
        """
        end_s = time.monotonic() + ANSWERS_TIMEOUT_S
        with ExitStack() as stack:
            bars = stack.enter_context(progress_bars(transient=True))
            tasks = {question.table.name: bars.add_task("", total=None) for question in QUESTIONS}
            while self._waiting:
                self._check()
                if self._gateway is None:
                    self._connect(stack)
                for question in tuple(self._waiting):
                    self._ask(question, started_s)
                for name, state in self._states().items():
                    is_done = state == "answers"
                    bars.update(
                        tasks[name], description=f"{name:<20} {state}", total=1 if is_done else None, completed=is_done
                    )
                if time.monotonic() > end_s:
                    raise NoAnswer(self._nothing_comes())
                time.sleep(ASK_EVERY_S)
        print_line(f"All {len(QUESTIONS)} tables answer, {time.monotonic() - started_s:.0f} s after the start.")

    def _connect(self, stack: ExitStack) -> None:
        # A channel that was made before the gateway listens would wait longer after each try.
        gateway = Gateway(self._address)
        try:
            gateway.catalogue()
        except AskError:
            gateway.__exit__()
            return
        self._gateway = stack.enter_context(gateway)

    def _ask(self, question: Question, started_s: float) -> None:
        if self._gateway is None:
            return
        try:
            rows = question.ask(self._gateway)
        except AskError:  # not served yet, or not found yet
            return
        if question.is_known(rows):
            self._waiting.remove(question)
            self._print(question, rows, time.monotonic() - started_s)
        elif not rows and question.expires and self._send is not None:
            for event in question.system.known_events():
                self._send(event)
            self._send = None

    def _print(self, question: Question, rows: Sequence[Message], elapsed_s: float) -> None:
        print_line(f"[dim]# {question.mode}, {elapsed_s:.0f} s after the start[/dim]")
        print_line(f"[bold]$ {command_line(question.words, self._address)}[/bold]")
        show.rows(rows)
        print_line()

    def _states(self) -> dict[str, str]:
        """Return what each table does or waits for."""
        running, is_planned = job_events(self._job_log)
        waiting = {question.table.name for question in self._waiting}
        states = {}
        for question in QUESTIONS:
            name = question.table.name
            if name not in waiting:
                states[name] = "answers"
            elif name in running:
                states[name] = "makes rows"
            elif running:
                is_next = "starts its query" not in states.values()
                states[name] = "starts its query" if is_next else "waits for its turn"
            else:
                states[name] = "waits for Spark" if is_planned else "makes its topics"
        return states

    def _nothing_comes(self) -> str:
        names = ", ".join(question.table.name for question in self._waiting)
        return (
            f"no right answer of {names} within {ANSWERS_TIMEOUT_S:.0f} s: the logs beside {self._job_log} say why; "
            "start the demo again when the machine is less busy, or with another --data"
        )


ASK_EVERY_S = 0.2
