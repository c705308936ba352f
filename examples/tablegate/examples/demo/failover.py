"""The failover that the cluster demo shows: the owner of a row is killed while the row is read and written."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text
from tablegate.examples.demo.answers import NoAnswer, say
from tablegate.examples.demo.gateways import Gateways, Member, Places, names_of
from tablegate.examples.demo.reads import Answer, Reads
from tablegate.examples.samples import Event, EventProducer
from tablegate.gateway.cli import show
from tablegate.gateway.contract.catalogue import GetQuery

RATINGS_PER_S = 5
BEFORE_S = 4.0  # reads before the kill, and after all
STEP_S = 0.005
DRAW_S = 0.1
LOOK_S = 0.2  # how often a gateway is asked who has what
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

    def show(self, places: Places, *, rating_count: int) -> list[str]:
        """Do it, and tell of it; return what went wrong, in sentences: nothing, if it was good. Raise `NoAnswer`.

        `places` are those of now. The row has `rating_count` ratings, and no other is on its way.
        """
        owner, witness, *_ = [self._gateways[name] for name in places.replicas[self._partition]]
        addresses = [member.address for member in self._gateways.members]
        with Reads(addresses, self._query, self._movie_id) as reads:
            self._reads = reads
            self._began_s = time.monotonic()
            with Live(console=show.OUT, auto_refresh=False, transient=True) as live:
                self._live = live
                self._tell("reads begin")
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
            say(f"[red]✗[/red] {escape(problem)}")
        if not problems:
            say("[green]✓[/green] no read failed, none was NOT_FOUND, none was older than one before it")
            say(f"[green]✓[/green] all {self._sent} ratings of that time are in the answer")
        return problems

    # The acts.

    def _kill(self, owner: Member, witness: Member) -> float:
        """Kill the owner; return when, once the others have its partitions."""
        self._check("")
        self._dead = owner.name
        pid = owner.child.pid
        self._killed_s = killed_s = time.monotonic()
        owner.child.kill()
        self._tell(f"[bold red]kill -9 {pid}[/bold red]: {owner.label}, the owner, with all its processes")
        self._until(lambda: self._reads.first_after(killed_s) is not None, "nobody answered after the kill")
        first = self._reads.first_after(killed_s)
        assert first is not None
        after_ms = 1_000 * (first.ended_s - killed_s)
        self._tell(
            f"[bold]first answer to a new read {after_ms:.0f} ms after the kill[/bold], by "
            f"{self._gateways.label(first.gateway)}, {first.role}",
            at_s=first.ended_s,
        )
        self._until(
            lambda: self._knows(witness, lambda places: self._owner(places) not in ("", owner.name)),
            f"{owner.name} was not taken for dead",
        )
        self._tell(f"{owner.label} is taken for dead; {witness.label} owns partition {self._partition}")
        self._until(
            lambda: self._knows(witness, lambda places: owner.name not in places.alive and places.is_whole),
            f"nobody took the partitions of {owner.name}",
        )
        others = self._gateways.others(owner.name)
        self._tell(f"{names_of(others)} {'have each partition twice' if len(others) > 1 else 'has all partitions'}:")
        self._picture(witness)
        return killed_s

    def _start_again(self, owner: Member, witness: Member) -> None:
        owner.child.start()
        self._dead = ""
        self._tell(f"{owner.label} starts again")
        self._until(
            lambda: self._knows(witness, self._gateways.are_settled),
            f"{owner.name} did not take its partitions back",
        )
        self._tell(f"{owner.label} has caught up, and owns partition {self._partition} again:")
        self._picture(witness)

    def _finish(self, rating_count: int) -> int:
        """Read on until all ratings are in the answer, but not for long; return how many are not."""
        self._producer.flush()
        self._send_at_s = math.inf
        wanted = rating_count + self._sent
        end_s = time.monotonic() + LAST_RATING_TIMEOUT_S
        while self._reads.rating_count < wanted and time.monotonic() < end_s:
            self._step()
        self._reads.finish()
        self._tell("reads end")
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
            self._run_for(LOOK_S)

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

    def _knows(self, member: Member, hold: Callable[[Places], bool]) -> bool:
        places = self._gateways.places(member)
        return places is not None and bool(places.replicas) and hold(places)

    def _owner(self, places: Places) -> str:
        """Return the name of the gateway that owns the movie's partition; "" for none."""
        return next(iter(places.replicas[self._partition]), "")

    # What is shown.

    def _tell(self, text: str, *, at_s: float | None = None) -> None:
        say(f"  {(at_s or time.monotonic()) - self._began_s:5.1f} s  {text}")

    def _picture(self, member: Member) -> None:
        places = self._gateways.places(member)
        if places is not None:
            show.OUT.print(Padding(self._gateways.picture(places), (0, 0, 0, 11)))

    def _line(self) -> Group:
        reads = self._reads
        counts = Text("  reads answered: ")
        for member in self._gateways.members:
            counts.append(f"{reads.by_gateway[member.name]} by {member.name}", style=member.color).append("  ")
        failed = len(reads.failed)
        counts.append(f"failed: {failed}", style="red" if failed else "")
        counts.append(f"   ratings of the movie: {reads.rating_count}")
        room = max(show.OUT.width - 4, 1)
        return Group(Text(), counts, Text("  ").append(self._strip(reads.answers[-room:])))

    def _strip(self, answers: Sequence[Answer]) -> Text:
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
        say()
        around = answers[max(kill - STRIP_BEFORE, 0) : kill + STRIP_AFTER]
        show.OUT.print(Text("Who answered, around the kill: ").append(self._strip(around)))
        counts = [f"{reads.by_gateway[member.name]} by {member.label}" for member in self._gateways.members]
        say(
            f"{len(answers)} reads, {len(answers) - len(reads.failed)} answered: {', '.join(counts)}.\n"
            f"Half within {1_000 * reads.median_s():.0f} ms, the slowest in {1_000 * reads.slowest_s():.0f} ms."
        )
