"""`tablegate demo`: Kafka, a job that keeps all example tables and a gateway, on this machine; a question of each."""

import itertools
import json
import shlex
import time
from contextlib import ExitStack
from pathlib import Path

from tablegate.examples import CONTRACTS
from tablegate.examples.demo.answers import Answers, NoAnswer, command_line, progress_bars, say
from tablegate.examples.demo.children import Child, ChildEnded
from tablegate.examples.demo.parts import DemoError, Events, Steps, free_ports, job, take_directory
from tablegate.examples.demo.questions import QUESTIONS, RATINGS, SYSTEMS
from tablegate.gateway.contract.descriptors import DescriptorError
from tablegate.jobs.jars import SetupError

TRICKLE_S = 0.5
TRICKLE_EVENTS = 3
"""Events that another system sends at once, after every second rating: its tables then make one batch for them."""


def demo(data: Path, *, once: bool, port: int) -> None:
    """Start everything, ask, print the answers; then stay until Ctrl-C, unless `once`. Raise `DemoError`."""
    try:
        with ExitStack() as stack:
            take_directory(stack, data)
            [port] = free_ports(port, ["the gateway"])
            running = _Running(stack, data, port)
            _print_more(running.address)
            if not once:
                running.stay()
    except (NoAnswer, ChildEnded, SetupError, DescriptorError) as error:
        raise DemoError(str(error)) from None
    except KeyboardInterrupt:
        pass
    say(f"stopped; the next start finds its data in {data}")


class _Running:
    """Kafka, the jobs and a gateway, started in this order as parts of `stack`; the gateway answers at `address`."""

    def __init__(self, stack: ExitStack, data: Path, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        started = time.monotonic()
        with progress_bars(transient=False) as progress:
            events = Events(stack, data, SYSTEMS, Steps(progress))
        self._producer = events.producer
        say(_modes())
        tables = [question.table.name for question in QUESTIONS]
        children = (job(data, events.bootstrap, *tables), _gateway(data, events.bootstrap, self.address))
        self._children = [stack.enter_context(child) for child in children]
        answers = Answers(
            self.address,
            job_log=data / "logs" / "job.log",
            check=self._check,
            send=None if events.is_first_start else self._producer.send,
        )
        answers.wait(started)
        say(f"Kafka listens on {events.bootstrap}; logs are in {data / 'logs'}.\n")

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


def _gateway(data: Path, bootstrap: str, address: str) -> Child:
    serve = ["serve", "--bootstrap", bootstrap, "--data", str(data / "gateway"), "--listen", address, "--reflection"]
    for question in QUESTIONS:
        serve += ["--contract", str(CONTRACTS / question.table.contract)]
    return Child("gateway", data / "logs" / "gateway.log", *serve)


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
