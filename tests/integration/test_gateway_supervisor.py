"""The supervisor over small processes: restarts, events, ends."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tablegate.gateway.server.supervisor import BACKOFF_S, ChildSpec, Supervisor

GIVE_UP_S = 60.0  # many times what it takes: these machines are shared
TELL = "import json, os, sys, time, signal\nname = sys.stdin.readline().strip()\n"
TELL += "def tell(event): print(json.dumps({'event': event, 'pid': os.getpid()}), flush=True)\n"


def _spec(name: str, code: str, **more: Any) -> ChildSpec:
    return ChildSpec(name=name, command=(sys.executable, "-c", TELL + code), settings=name, **{"stop_s": 2.0, **more})


class Watched:
    """Runs a supervisor until enough has happened, then sends a signal to this process."""

    def __init__(self, *specs: ChildSpec, until: Callable[[list[tuple[str, str]]], bool], **limits: float) -> None:
        self.events: list[tuple[str, str]] = []
        self.pids: list[int] = []
        self._until = until
        self._stopped = False
        give_up = threading.Timer(GIVE_UP_S, os.kill, (os.getpid(), signal.SIGTERM))
        give_up.start()
        started = time.monotonic()
        Supervisor(specs, self._on_event, **limits).run()
        self.seconds = time.monotonic() - started
        give_up.cancel()
        assert until(self.events)

    def _on_event(self, name: str, event: Mapping[str, Any]) -> None:
        self.events.append((name, event["event"]))
        self.pids += [event["pid"]] if "pid" in event else []
        if not self._stopped and self._until(self.events):
            self._stopped = True
            os.kill(os.getpid(), signal.SIGTERM)


def test_processes_are_told_their_settings_and_end_on_sigterm() -> None:
    code = "tell('up-' + name)\ntry: time.sleep(60)\nexcept KeyboardInterrupt: pass"
    specs = [_spec(name, code, stop_s=2 * GIVE_UP_S) for name in ("a", "b")]
    watched = Watched(*specs, until=lambda events: len(events) >= 2)
    assert set(watched.events) == {("a", "up-a"), ("b", "up-b"), ("a", "exited"), ("b", "exited")}
    assert watched.seconds < GIVE_UP_S, "it waits no longer than they take"
    assert not [pid for pid in watched.pids if Path(f"/proc/{pid}").exists()]


def test_a_terminal_that_closes_ends_nothing_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        code = "tell('up')\nos.kill(os.getppid(), signal.SIGHUP)\nsys.exit(3)"
        watched = Watched(_spec("a", code), until=lambda events: events.count(("a", "up")) >= 2)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert watched.seconds > BACKOFF_S


def test_a_dead_process_starts_again_later_and_later() -> None:
    watched = Watched(_spec("a", "tell('up')\nsys.exit(3)"), until=lambda events: events.count(("a", "up")) >= 4)
    waits = BACKOFF_S * (1 + 2 + 4)
    assert watched.seconds > waits
    assert len(set(watched.pids)) >= 4


def test_what_killed_a_process_is_told_before_it_starts_again() -> None:
    killed: list[int] = []
    code = f"tell('up')\nos.kill(os.getpid(), {int(signal.SIGBUS)})"
    Watched(_spec("a", code, before_restart=killed.append), until=lambda events: events.count(("a", "up")) >= 2)
    assert killed[0] == signal.SIGBUS


def test_a_process_that_does_not_end_is_killed() -> None:
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntell('up')\ntime.sleep(600)"
    watched = Watched(_spec("a", code, stop_s=0.3), until=bool, kill_margin_s=0.2)
    assert watched.seconds < GIVE_UP_S
    assert watched.events[-1] == ("a", "exited")


def test_workers_end_before_the_replicator_is_told() -> None:
    slow = "def end(*_):\n    time.sleep(0.3); tell('ending'); sys.exit()\nsignal.signal(signal.SIGTERM, end)\n"
    slow += "tell('up')\ntime.sleep(60)"
    watched = Watched(
        _spec("replicator", slow, stop_s=GIVE_UP_S),
        _spec("worker", slow, stop_s=GIVE_UP_S, first_to_stop=True),
        until=lambda events: len(events) >= 2,
    )
    assert watched.events[2:] == [
        ("worker", "ending"),
        ("worker", "exited"),
        ("replicator", "ending"),
        ("replicator", "exited"),
    ]


def test_noise_on_stdout_is_no_event() -> None:
    code = "print('hello'); print('[1]'); print('{\"event\": \"up\"}', flush=True); time.sleep(60)"
    watched = Watched(_spec("a", code), until=bool)
    assert watched.events[0] == ("a", "up")


def test_supervisor_passes_a_drain_on_and_again_after_a_restart() -> None:
    listens = "def drain(*_):\n    tell('draining'); sys.exit()\n"
    listens += "time.sleep(0.3); signal.signal(signal.SIGUSR1, drain); tell('open'); time.sleep(60)"

    def until(events: list[tuple[str, str]]) -> bool:
        if len(events) == 1:  # mostly that of the worker, so that the replicator listens only later
            os.kill(os.getpid(), signal.SIGUSR1)
        return events.count(("replicator", "draining")) >= 2

    watched = Watched(
        _spec("replicator", listens, drain_after="open"), _spec("worker", "tell('up')\ntime.sleep(60)"), until=until
    )
    lives = [event for name, event in watched.events if name == "replicator"]
    assert lives[:6] == ["open", "draining", "exited", "open", "draining", "exited"]
    assert watched.events.index(("worker", "exited")) > watched.events.index(("replicator", "exited"))


BEATS = "def beat(): print(json.dumps({'event': 'beat'}), flush=True)\ntell('up')\nfor _ in range(3): beat()\n"


def _starts(watched: Watched) -> int:
    return watched.events.count(("a", "up"))


def test_a_process_that_stands_still_is_killed_and_starts_again() -> None:
    code = BEATS + "os.kill(os.getpid(), signal.SIGSTOP)"
    watched = Watched(_spec("a", code, hang_limit_s=0.4), until=lambda events: events.count(("a", "up")) >= 3)
    assert len(set(watched.pids)) >= 3
    assert ("a", "beat") not in watched.events


def test_a_process_whose_loop_does_not_turn_is_killed() -> None:
    watched = Watched(
        _spec("a", BEATS + "while True: pass", hang_limit_s=0.4), until=lambda events: events.count(("a", "up")) >= 2
    )
    assert len(set(watched.pids)) >= 2


def test_a_process_in_a_write_that_goes_on_is_left_alone(tmp_path: Path) -> None:
    """It beats no more, for twice the limit, and writes; then it says so."""
    code = BEATS + f"file = open({str(tmp_path / 'file')!r}, 'wb', buffering=0)\n"
    code += "for _ in range(40):\n    file.write(bytes(65536)); time.sleep(0.05)\ntell('written')\n"
    code += "while True:\n    beat(); time.sleep(0.05)"
    watched = Watched(_spec("a", code, hang_limit_s=1.0), until=lambda events: ("a", "written") in events)
    assert _starts(watched) == 1


def test_a_process_that_never_sent_a_beat_is_not_watched() -> None:
    code = "tell('up')\ntime.sleep(2)\ntell('later')\ntime.sleep(60)"
    watched = Watched(_spec("a", code, hang_limit_s=0.2), until=lambda events: ("a", "later") in events)
    assert _starts(watched) == 1


def test_a_supervisor_that_stood_still_kills_nobody(tmp_path: Path) -> None:
    """As one does whose machine sleeps, with all its processes."""
    pid = tmp_path / "pid"
    code = BEATS + f"open({str(pid)!r}, 'w').write(str(os.getpid()))\nbeat()\ntell('sleeps')\n"
    code += "os.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(0.2)\ntell('woken')\n"
    code += "while True:\n    beat(); time.sleep(0.05)"

    def until(events: list[tuple[str, str]]) -> bool:
        if events[-1] == ("a", "sleeps"):
            time.sleep(2.0)
            os.kill(int(pid.read_text()), signal.SIGCONT)
        return ("a", "woken") in events

    watched = Watched(_spec("a", code, hang_limit_s=1.0), until=until)
    assert _starts(watched) == 1
