"""The failover that the cluster demo shows: the owner of a row is killed while the row is read and written.

`Failover` is the script of the show. `Reads`, below, is the client that reads the row all the time, and judges the
answers: no read may fail, find nothing, or return an older row than a read before it.
"""

import json
import math
import queue
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from tablegate.examples.demo.console import print_line
from tablegate.examples.demo.gateways import ClusterMember, Gateways, PlacementView, names_of
from tablegate.examples.demo.launch import NoAnswer
from tablegate.examples.samples import Event, EventProducer
from tablegate.gateway.cli import show
from tablegate.gateway.cli.connecting import close, interrupts_deferred
from tablegate.gateway.contract.catalogue import GetQuery

RATINGS_PER_S = 5
BEFORE_S = 4.0  # reads before the kill, and after all
STEP_S = 0.005
DRAW_S = 0.1
CHECK_S = 0.2  # how often a gateway is asked who has what
ACT_TIMEOUT_S = 90.0  # a partition moves 10 s after its gateway died; then it is restored
LAST_RATING_TIMEOUT_S = 10.0  # it takes milliseconds
STRIP_BEFORE, STRIP_AFTER = 20, 40  # reads around the kill that are shown at the end


class Failover:
    """Kills the owner of a movie's row and starts it again, while the movie is read and rated."""

    def __init__(
        self,
        gateways: Gateways,
        producer: EventProducer,
        query: GetQuery,
        *,
        movie_id: int,
        partition: int,
        events: Iterator[Event],
        check: Callable[[str], None],
        logs: Path,
    ) -> None:
        self._gateways = gateways
        self._producer = producer
        self._query = query
        self._movie_id = movie_id
        self._partition = partition
        self._check = check
        self._logs = logs
        self._events = events
        self._sent = 0
        self._send_at_s = 0.0
        self._draw_at_s = 0.0
        self._dead = ""
        self._killed_s: float | None = None

    def show(self, placement: PlacementView, *, rating_count: int) -> list[str]:
        """Run the failover and print its events; return what went wrong, in sentences. Raise `NoAnswer`.

        `placement` are those of now. The row has `rating_count` ratings, and no other is on its way.
        """
        owner, witness, *_ = [self._gateways[name] for name in placement.replicas[self._partition]]
        addresses = [member.address for member in self._gateways.members]
        with Reads(addresses, self._query, self._movie_id) as reads:
            self._reads = reads
            self._began_s = time.monotonic()
            with Live(console=show.OUT, auto_refresh=False, transient=True) as live:
                self._live = live
                self._print_event("reads begin")
                self._run_for(BEFORE_S)
                killed_s = self._kill(owner, witness)
                self._start_again(owner, witness)
                self._run_for(BEFORE_S)
                missing = self._finish(rating_count)
            self._sum_up(killed_s)
            problems = reads.problems()
        if missing:
            problems.append(f"{missing} of the {self._sent} ratings that Kafka acknowledged are not in the answer")
        for problem in problems:
            print_line(f"[red]✗[/red] {escape(problem)}")
        if not problems:
            print_line("[green]✓[/green] no read failed, none was NOT_FOUND, none was older than one before it")
            print_line(f"[green]✓[/green] all {self._sent} ratings of that time are in the answer")
        return problems

    # The acts.

    def _kill(self, owner: ClusterMember, witness: ClusterMember) -> float:
        """Kill the owner; return when, once the others have its partitions."""
        self._check("")
        self._dead = owner.name
        pid = owner.child.pid
        self._killed_s = killed_s = time.monotonic()
        owner.child.kill()
        self._print_event(f"[bold red]kill -9 {pid}[/bold red]: {owner.label}, the owner, with all its processes")
        self._until(lambda: self._reads.first_after(killed_s) is not None, "nobody answered after the kill")
        first = self._reads.first_after(killed_s)
        assert first is not None
        after_ms = 1_000 * (first.ended_s - killed_s)
        self._print_event(
            f"[bold]first answer to a new read {after_ms:.0f} ms after the kill[/bold], by "
            f"{self._gateways.label(first.gateway)}, {first.role}",
            at_s=first.ended_s,
        )
        self._until(
            lambda: self._knows(witness, lambda placement: self._owner(placement) not in ("", owner.name)),
            f"{owner.name} was not found to be dead",
        )
        self._print_event(f"{owner.label} is found to be dead; {witness.label} owns partition {self._partition}")
        self._until(
            lambda: self._knows(witness, lambda placement: owner.name not in placement.alive and placement.is_complete),
            f"nobody took the partitions of {owner.name}",
        )
        others = self._gateways.others(owner.name)
        self._print_event(
            f"{names_of(others)} {'have each partition twice' if len(others) > 1 else 'has all partitions'}:"
        )
        self._print_placement(witness)
        return killed_s

    def _start_again(self, owner: ClusterMember, witness: ClusterMember) -> None:
        owner.child.start()
        self._dead = ""
        self._print_event(f"{owner.label} starts again")
        self._until(
            lambda: self._knows(witness, self._gateways.are_settled),
            f"{owner.name} did not take its partitions back",
        )
        self._print_event(f"{owner.label} has caught up, and owns partition {self._partition} again:")
        self._print_placement(witness)

    def _finish(self, rating_count: int) -> int:
        """Read on until all ratings are in the answer, but not for long; return how many are not."""
        self._producer.flush()
        self._send_at_s = math.inf
        wanted = rating_count + self._sent
        end_s = time.monotonic() + LAST_RATING_TIMEOUT_S
        while self._reads.rating_count < wanted and time.monotonic() < end_s:
            self._step()
        self._reads.finish()
        self._print_event("reads end")
        return wanted - self._reads.rating_count

    # While they go on.

    def _run_for(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self._step()

    def _until(self, holds: Callable[[], bool], problem: str) -> None:
        end_s = time.monotonic() + ACT_TIMEOUT_S
        while not holds():
            self._check(self._dead)
            if time.monotonic() > end_s:
                raise NoAnswer(f"{problem} within {ACT_TIMEOUT_S:.0f} s: the logs in {self._logs} say why")
            self._run_for(CHECK_S)

    def _step(self) -> None:
        """Read and rate, where it is time to."""
        now_s = time.monotonic()
        if now_s >= self._send_at_s:
            self._send_at_s = now_s + 1 / RATINGS_PER_S
            self._producer.send(next(self._events))
            self._sent += 1
        self._reads.step()
        if now_s >= self._draw_at_s:
            self._draw_at_s = now_s + DRAW_S
            self._live.update(self._line(), refresh=True)
        time.sleep(STEP_S)

    def _knows(self, member: ClusterMember, hold: Callable[[PlacementView], bool]) -> bool:
        placement = self._gateways.placement(member)
        return placement is not None and bool(placement.replicas) and hold(placement)

    def _owner(self, placement: PlacementView) -> str:
        """Return the name of the gateway that owns the movie's partition; "" for none."""
        return next(iter(placement.replicas[self._partition]), "")

    # What is shown.

    def _print_event(self, text: str, *, at_s: float | None = None) -> None:
        print_line(f"  {(at_s or time.monotonic()) - self._began_s:5.1f} s  {text}")

    def _print_placement(self, member: ClusterMember) -> None:
        placement = self._gateways.placement(member)
        if placement is not None:
            show.OUT.print(Padding(self._gateways.placement_table(placement), (0, 0, 0, 11)))

    def _line(self) -> Group:
        reads = self._reads
        counts = Text("  reads answered: ")
        for member in self._gateways.members:
            counts.append(f"{reads.by_gateway[member.name]} by {member.name}", style=member.color).append("  ")
        failed = len(reads.failed)
        counts.append(f"failed: {failed}", style="red" if failed else "")
        counts.append(f"   ratings of the movie: {reads.rating_count}")
        width = max(show.OUT.width - 4, 1)
        return Group(Text(), counts, Text("  ").append(self._strip(reads.answers[-width:])))

    def _strip(self, answers: Sequence["Answer"]) -> Text:
        """Return a mark for each read: the number of the gateway that answered, ✗ for none, a line for the kill."""
        strip, was_before = Text(), False
        for answer in answers:
            is_before = self._killed_s is None or answer.began_s < self._killed_s
            if was_before and not is_before:
                strip.append("┃", style="bold red")
            was_before = is_before
            if answer.error:
                strip.append("✗", style="bold red")
            else:
                strip.append(answer.gateway[-1], style=self._gateways.color(answer.gateway))
        return strip

    def _sum_up(self, killed_s: float) -> None:
        reads = self._reads
        answers = sorted(reads.answers, key=lambda answer: answer.began_s)
        kill = sum(answer.began_s < killed_s for answer in answers)
        print_line()
        around = answers[max(kill - STRIP_BEFORE, 0) : kill + STRIP_AFTER]
        show.OUT.print(Text("Who answered, around the kill: ").append(self._strip(around)))
        counts = [f"{reads.by_gateway[member.name]} by {member.label}" for member in self._gateways.members]
        print_line(
            f"{len(answers)} reads, {len(answers) - len(reads.failed)} answered: {', '.join(counts)}.\n"
            f"Half within {1_000 * reads.median_s():.0f} ms, the slowest in {1_000 * reads.slowest_s():.0f} ms."
        )


READS_PER_S = 20
READ_TIMEOUT_S = 2.0
UNNAMED = "?"  # a gateway that has just started may not know yet that it is one of several

# Settings that any gRPC client has: use the addresses in turn, and retry where one is not there.
_RETRY = {
    "maxAttempts": 4,
    "initialBackoff": "0.02s",
    "maxBackoff": "0.2s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}
_SERVICE = {"loadBalancingConfig": [{"round_robin": {}}], "methodConfig": [{"name": [{}], "retryPolicy": _RETRY}]}
_OPTIONS = (("grpc.service_config", json.dumps(_SERVICE)), ("grpc.max_reconnect_backoff_ms", 1_000))


class Answer(NamedTuple):
    """What a read came to: the gateway that answered, or "" and the `error`; its time, and when that was."""

    gateway: str
    role: str
    error: str
    began_s: float
    ended_s: float
    rating_count: int


@dataclass(frozen=True, slots=True)
class _Seen:
    """The answer of the newest read that was answered: no later read may be older."""

    number: int = -1
    rating_count: int = 0
    token: str = ""


class Reads:
    """Reads the row of a movie over and over. `step` begins those that are due and records those that are done.

    Each asks for at least what was seen when it began. Nothing waits for an answer: a slow one delays no other read.
    One thread; times are of `time.monotonic`.
    """

    def __init__(self, addresses: Sequence[str], query: GetQuery, movie_id: int) -> None:
        self.answers: list[Answer] = []
        self.went_back: list[str] = []
        self._channel = grpc.insecure_channel(f"ipv4:{','.join(addresses)}", _OPTIONS)
        self._call: Any = self._channel.unary_unary(
            query.path,
            request_serializer=query.request_class.SerializeToString,
            response_deserializer=query.response_class.FromString,
        )
        self._query = query
        self._movie_id = movie_id
        self._seen = _Seen()
        self._begun = 0
        self._next_s = time.monotonic()
        self._done: queue.SimpleQueue[tuple[int, float, int, float, Any]] = queue.SimpleQueue()

    def __enter__(self) -> "Reads":
        return self

    def __exit__(self, *_: object) -> None:
        close(self._channel)

    @property
    def rating_count(self) -> int:
        """How many ratings the movie has, by the newest answer."""
        return self._seen.rating_count

    def step(self) -> None:
        """Begin what is due, and record what is done."""
        while not self._done.empty():
            self._record(*self._done.get())
        if time.monotonic() >= self._next_s:
            self._next_s += 1 / READS_PER_S
            self._begin()

    def finish(self) -> None:
        """Wait for what is still to come."""
        while len(self.answers) < self._begun:
            self._record(*self._done.get())

    def _begin(self) -> None:
        request: Any = self._query.request_class(movie_id=self._movie_id)
        if self._seen.token:
            request.read_options.at_least = self._seen.token
        number, seen, began_s = self._begun, self._seen.rating_count, time.monotonic()
        self._begun += 1
        with interrupts_deferred():
            future = self._call.future(request, timeout=READ_TIMEOUT_S)
        future.add_done_callback(lambda done: self._done.put((number, began_s, seen, time.monotonic(), done)))

    def _record(self, number: int, began_s: float, seen: int, ended_s: float, done: Any) -> None:
        trailer = dict(done.trailing_metadata() or ())
        error = done.exception()
        if error is not None:
            name = f"{done.code().name}: {done.details()}"
            self.answers.append(Answer("", "", name, began_s, ended_s, 0))
            return
        answer = done.result()
        count = answer.rating.rating_count
        if count < seen:
            self.went_back.append(f"{trailer.get('tablegate-gateway')} answered with {count} ratings after {seen}")
        if number > self._seen.number:
            self._seen = _Seen(number, max(count, seen), answer.read_info.consistency_token)
        gateway, role = str(trailer.get("tablegate-gateway", UNNAMED)), str(trailer.get("tablegate-role", ""))
        self.answers.append(Answer(gateway, role, "", began_s, ended_s, count))

    # What came of them.

    @property
    def failed(self) -> list[Answer]:
        """Those without an answer."""
        return [answer for answer in self.answers if answer.error]

    @property
    def not_found(self) -> int:
        """How many got NOT_FOUND, though the row exists."""
        return sum(answer.error.startswith("NOT_FOUND") for answer in self.answers)

    @property
    def by_gateway(self) -> Counter[str]:
        """How many each gateway answered."""
        return Counter(answer.gateway for answer in self.answers if not answer.error)

    def problems(self) -> list[str]:
        """Return what went wrong, in sentences: nothing, where each read was answered, and rightly."""
        problems = []
        if self.failed:
            reasons = "; ".join(sorted({answer.error for answer in self.failed}))
            problems.append(f"{len(self.failed)} of {len(self.answers)} reads failed: {reasons}")
        if self.not_found:
            problems.append(f"{self.not_found} reads got NOT_FOUND for a row that exists")
        if self.went_back:
            problems.append(f"{len(self.went_back)} answers were older than one before: {self.went_back[0]}")
        return problems

    def first_after(self, moment_s: float) -> Answer | None:
        """Return the first answer to a read that began after a moment."""
        later = [answer for answer in self.answers if not answer.error and answer.began_s >= moment_s]
        return min(later, key=lambda answer: answer.ended_s, default=None)

    def slowest_s(self) -> float:
        """Return how long the slowest answer took."""
        return max((answer.ended_s - answer.began_s for answer in self.answers if not answer.error), default=0.0)

    def median_s(self) -> float:
        """Return how long half of the answers took at most."""
        times = [answer.ended_s - answer.began_s for answer in self.answers if not answer.error]
        return statistics.median(times) if times else 0.0
