"""The demo's wait for the answers of all tables: what is being waited for, and each answer as soon as it is there."""

import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from google.protobuf.message import Message
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from tablegate.examples.demo.questions import QUESTIONS, Question
from tablegate.examples.samples import Event
from tablegate.gateway.cli import show
from tablegate.gateway.cli.connecting import AskError, Gateway

ANSWERS_TIMEOUT_S = 300.0  # two quiet cores need a tenth of it
ASK_EVERY_S = 0.2


class NoAnswer(Exception):
    """A table does not answer; the message says which, and where to look."""


def progress_bars(*, transient: bool) -> Progress:
    """Return bars that show a step a line, with its time."""
    columns = (SpinnerColumn(finished_text="[green]✓[/green]"), TextColumn("{task.description:<42}"))
    return Progress(*columns, BarColumn(bar_width=24), TimeElapsedColumn(), console=show.OUT, transient=transient)


def say(text: str = "", *, markup: bool = True) -> None:
    """Print a line above the bars; a long one is not broken, so that commands can be copied."""
    show.OUT.print(text, markup=markup, soft_wrap=True)


def command_line(words: Sequence[str], address: str) -> str:
    """Return a `tablegate` command as one may copy it."""
    program = str(Path(sys.argv[0])) if Path(sys.argv[0]).name == "tablegate" else "tablegate"
    return shlex.join([program, *words, *(["--address", address] if address != "127.0.0.1:50051" else [])])


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
        say(f"All {len(QUESTIONS)} tables answer, {time.monotonic() - started_s:.0f} s after the start.")

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
        say(f"[dim]# {question.mode}, {elapsed_s:.0f} s after the start[/dim]")
        say(f"[bold]$ {command_line(question.words, self._address)}[/bold]")
        show.rows(rows)
        say()

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
