"""The parent of a gateway's processes: it starts them, restarts those that die, and ends them all.

It does nothing else, so that nothing in it can fail: no gRPC, no Kafka, no store, one thread. A child gets its settings
as a line on stdin, sends events as lines of JSON on stdout, and has closed stdout when it is dead: one `select` over
these pipes, and over the pipe that signals wake, is all that the loop waits for.

A child that dies starts again after a pause, which doubles while it keeps dying. The order matters twice. At the start,
workers wait for the replicator's first event, as before it the store says of an earlier run that it is live. At the
end, workers drain first and the replicator stops after them, so that what they answer stays fresh. A child that does
not end in its time is killed; one whose parent is killed ends by itself (`child.die_with_parent`).

One that lives and does nothing is killed as well, where its spec has a limit: it sends beats as its loop turns, and has
neither sent one nor written to a disk for so long. A write that takes long is no reason to begin it again, and a
supervisor that stood still itself, with the whole machine perhaps, knows nothing of the others.

Decision: docs/decisions/0061-a-replicator-that-hangs-is-restarted.md
"""

import json
import logging
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from tablegate.gateway.server.child import BEAT

BACKOFF_S = 0.2  # before a dead process starts again; doubles while it keeps dying
BACKOFF_MAX_S = 5.0
STEADY_S = 30.0  # a process that lived this long starts again at once
TURNS_PER_LIMIT = 4  # how often in the limit of a process that hangs its beats are looked at
KILL_MARGIN_S = 3.0  # beyond what a process was given to end by itself
REPLICATOR_STOP_S = 10.0  # it ends its batch and syncs the store

EXITED = "exited"  # the event of a process that ended
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_NOHUP = (signal.SIGHUP, signal.SIG_IGN)

_logger = logging.getLogger("tablegate.gateway.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """A process to keep alive.

    `settings` is the line it reads from stdin, `environment` what it has beside ours; it has `stop_s` to end by itself;
    those that are `first_to_stop` have ended before the others get their signal. It starts once any process has sent
    the event `start_after`, where that is given. `before_restart` gets the signal that killed it, 0 for none. SIGUSR1
    is passed on to it once it has sent the event `drain_after`, where that is given, and again after a restart. From
    its first event `BEAT` on it is killed where it sends none for `hang_limit_s`, where that is given.
    """

    name: str
    command: Sequence[str]
    settings: str
    stop_s: float
    first_to_stop: bool = False
    start_after: str | None = None
    pass_fds: Sequence[int] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    before_restart: Callable[[int], None] | None = None
    drain_after: str | None = None
    hang_limit_s: float | None = None


class _Child:
    """A process, and how often it was started."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.process: subprocess.Popen[bytes] | None = None
        self.started = 0.0
        self.start_at = 0.0
        self.may_drain = False  # it listens for SIGUSR1
        self._beat_s: float | None = None  # when it last sent a beat, or was seen to write; None: it sent none yet
        self._written_bytes: int | None = None  # by then
        self._backoff_s = BACKOFF_S
        self._unread = b""

    def start(self, now: float) -> None:
        """Start it. In a group of its own: Ctrl-C in a terminal is the parent's to handle."""
        self.started = now
        self.may_drain = False
        self._beat_s = None
        self._unread = b""
        self.process = subprocess.Popen(
            self.spec.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=self.spec.pass_fds,
            env={**os.environ, **self.spec.environment},
            process_group=0,
        )
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(self.spec.settings.encode() + b"\n")
            self.process.stdin.close()
        except BrokenPipeError:
            _logger.debug("process died before it had its settings", extra={"child": self.spec.name})

    def plan_restart(self, now: float) -> float:
        """Set when it starts again; return in how many seconds."""
        # Only a process that ran for a while starts again at once. One that dies as it starts is given more and more
        # time.
        if now - self.started >= STEADY_S:
            self._backoff_s = BACKOFF_S
        self.start_at = now + self._backoff_s
        delay_s, self._backoff_s = self._backoff_s, min(2 * self._backoff_s, BACKOFF_MAX_S)
        return delay_s

    def beat(self, now: float) -> None:
        """Record that its loop has turned."""
        assert self.process is not None
        self._beat_s, self._written_bytes = now, written_bytes(self.process.pid)

    def excuse(self, now: float) -> None:
        """Begin to wait for its next beat now."""
        self._beat_s = None if self._beat_s is None else now

    def hangs(self, now: float) -> bool:
        """Return whether it has done nothing for its limit."""
        limit_s = self.spec.hang_limit_s
        if self.process is None or limit_s is None or self._beat_s is None or now < self._beat_s + limit_s:
            return False
        written = written_bytes(self.process.pid)
        if written == self._written_bytes:
            return True
        self._beat_s, self._written_bytes = now, written  # it is in a long write, which goes on
        return False

    def lines(self, data: bytes) -> list[Mapping[str, Any]]:
        """Return the whole lines that `data` completes."""
        *whole, self._unread = (self._unread + data).split(b"\n")
        events: list[Mapping[str, Any]] = []
        for line in whole:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # a library that prints
            if isinstance(event, dict):
                events.append(event)
        return events


class Supervisor:
    """Keeps processes alive until SIGTERM, SIGINT or SIGHUP. `on_event` gets their events, and "exited".

    Where SIGHUP is ignored, as under nohup, it stays so: the gateway is to outlive its terminal.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        on_event: Callable[[str, Mapping[str, Any]], None],
        *,
        kill_margin_s: float = KILL_MARGIN_S,
    ) -> None:
        self._children = [_Child(spec) for spec in specs]
        self._on_event = on_event
        self._kill_margin_s = kill_margin_s
        self._selector = selectors.DefaultSelector()
        self._stopping = False
        self._is_draining = False
        self._interrupts = 0
        self._seen: set[str | None] = {None}  # events, of any process
        limits_s = [spec.hang_limit_s for spec in specs if spec.hang_limit_s is not None]
        self._turn_s = min(limits_s) / TURNS_PER_LIMIT if limits_s else None  # None: nothing is due but starts
        self._turned_s = time.monotonic()

    def stop(self) -> None:
        """Make `run` end the processes and return."""
        self._stopping = True

    def run(self) -> None:
        """Run until a signal or `stop`; all processes have ended when it returns."""
        # A signal that comes just before `select` would be noticed after it only: this pipe wakes it.
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(wake_read, selectors.EVENT_READ, None)
        old_wake = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        numbers = [each for each in STOP_SIGNALS if (each, signal.getsignal(each)) != _NOHUP]
        old = {number: signal.signal(number, self._on_signal) for number in numbers}
        old[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._on_drain)
        try:
            while not self._stopping:
                self._start_due()
                self._wait(self._next_turn_s())
                self._kill_hanging()
        finally:
            self._stop_all()
            for number, handler in old.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old_wake)
            self._selector.close()
            os.close(wake_read)
            os.close(wake_write)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        self._interrupts += number == signal.SIGINT

    def _on_drain(self, _number: int, _frame: FrameType | None) -> None:
        self._is_draining = True
        for child in self._children:
            self._forward_drain(child)

    def _forward_drain(self, child: _Child) -> None:
        # SIGUSR1 ends a process that has not set its handler yet, so it is passed on only after the child has said that
        # it may be.
        if self._is_draining and child.may_drain and child.process is not None:
            child.process.send_signal(signal.SIGUSR1)

    def _start_due(self) -> None:
        now = time.monotonic()
        for child in self._children:
            if child.process is None and child.spec.start_after in self._seen and now >= child.start_at:
                child.start(now)
                assert child.process is not None
                assert child.process.stdout is not None
                self._selector.register(child.process.stdout, selectors.EVENT_READ, child)
                _logger.info("started a process", extra={"child": child.spec.name, "pid": child.process.pid})

    def _next_start_s(self) -> float | None:
        waiting = [
            child.start_at for child in self._children if child.process is None and child.spec.start_after in self._seen
        ]
        return max(0.0, min(waiting) - time.monotonic()) if waiting else None

    def _next_turn_s(self) -> float | None:
        due_s = [each for each in (self._next_start_s(), self._turn_s) if each is not None]
        return min(due_s, default=None)

    def _kill_hanging(self) -> None:
        if self._turn_s is None:
            return
        now = time.monotonic()
        stood_still = now - self._turned_s > 2 * self._turn_s  # their beats may be unread, or they stood still, too
        self._turned_s = now
        for child in self._children:
            if stood_still:
                child.excuse(now)
            elif child.hangs(now):
                assert child.process is not None
                limit_s = child.spec.hang_limit_s
                _logger.error("a process hangs; it is killed", extra={"child": child.spec.name, "limit_s": limit_s})
                child.excuse(now)  # until it is dead
                child.process.kill()

    def _wait(self, timeout_s: float | None) -> None:
        for key, _ in self._selector.select(timeout_s):
            data = os.read(key.fd, 65_536)
            child: _Child | None = key.data
            if child is None:
                continue
            if data:
                for event in child.lines(data):
                    if event.get("event") == BEAT:
                        child.beat(time.monotonic())
                        continue
                    self._seen.add(str(event.get("event")))
                    if child.spec.drain_after is not None and child.spec.drain_after == event.get("event"):
                        child.may_drain = True
                        self._forward_drain(child)
                    self._on_event(child.spec.name, event)
            else:
                self._reap(child)

    def _reap(self, child: _Child) -> None:
        """Collect the exit of a process that closed its output: it is dead, or as good as."""
        process = child.process
        assert process is not None
        assert process.stdout is not None
        self._selector.unregister(process.stdout)
        process.stdout.close()
        # Its output is closed, so it can say nothing more: what still runs of it is of no use.
        try:
            code = process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        child.process = None
        more: dict[str, Any] = {"child": child.spec.name, "exit_code": code}
        if code < 0:
            more = {"child": child.spec.name, "signal": _signal_name(-code)}
        self._on_event(child.spec.name, {"event": EXITED})
        if self._stopping:
            _logger.info("a process ended", extra=more)
            return
        delay_s = child.plan_restart(time.monotonic())
        _logger.warning("a process died; it starts again", extra={**more, "after_s": delay_s})
        if child.spec.before_restart is not None:
            child.spec.before_restart(-code if code < 0 else 0)

    def _stop_all(self) -> None:
        self._stopping = True
        # Workers drain while the replicator still applies: what they answer until their end is fresh.
        self._stop([child for child in self._children if child.spec.first_to_stop])
        self._stop(self._children)

    def _stop(self, children: Sequence[_Child]) -> None:
        alive = [child for child in children if child.process is not None]
        for child in alive:
            assert child.process is not None
            child.process.terminate()
        # All have the same deadline, that of the slowest: one after the other would add up.
        deadline = time.monotonic() + max((child.spec.stop_s for child in alive), default=0.0) + self._kill_margin_s
        while any(child.process is not None for child in alive):
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self._interrupts > 1:  # the second Ctrl-C of somebody who does not want to wait
                for child in alive:
                    if child.process is not None:
                        _logger.warning("a process did not end; it is killed", extra={"child": child.spec.name})
                        child.process.kill()
                left_s = 1.0
            self._wait(max(0.0, left_s))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def written_bytes(pid: int) -> int | None:
    """Return how many bytes a process has written to disks so far; None where that is not known."""
    try:
        text = Path(f"/proc/{pid}/io").read_text()
        return int(text.partition("\nwrite_bytes:")[2].split()[0])
    except (OSError, ValueError, IndexError):
        return None
