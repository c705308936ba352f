"""Ctrl-C where gRPC begins a call: it is noted, but nobody reads its events yet, and a close would wait for it."""

import importlib
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tablegate.examples.demo.failover import Reads
from tablegate.examples.samples import Event, EventProducer
from tablegate.gateway import cli
from tablegate.gateway.cli.connecting import interrupts_deferred
from tablegate.gateway.cli.gateway import Gateway
from tablegate.gateway.cli.row_files import Format, write_rows
from tablegate.gateway.cli.subscribe import follow
from tablegate.gateway.contract.catalogue import GetQuery
from tests.kit.table.filled import catalogue_of, rating

HANGS_S = 20  # it takes a millisecond
subscribe_file = follow.__code__.co_filename


@pytest.fixture
def address() -> Iterator[str]:
    """Where somebody listens, and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Ctrl-C comes before the main thread starts one; the names of those threads."""
    names: list[str] = []
    start = threading.Thread.start

    def interrupted_start(thread: threading.Thread) -> None:
        if threading.current_thread() is threading.main_thread():
            names.append(thread.name)
            signal.raise_signal(signal.SIGINT)
        start(thread)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(threading.Thread, "start", interrupted_start)
    try:
        yield names
    finally:
        signal.signal(signal.SIGINT, before)


def _check_closes(close: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    closing_thread = threading.Thread(target=close, daemon=True)
    closing_thread.start()
    closing_thread.join(HANGS_S)
    assert not closing_thread.is_alive()


def test_reads_of_the_demo_end(address: str, interrupted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    query = next(query for query in catalogue_of().queries.values() if isinstance(query, GetQuery))
    reads = Reads([address], query, 1)
    with pytest.raises(KeyboardInterrupt):
        reads.step()
    assert interrupted
    _check_closes(reads._channel.close, monkeypatch)


def test_commands_end(address: str, interrupted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(address)
    with pytest.raises(KeyboardInterrupt):
        gateway.catalogue()
    assert interrupted
    _check_closes(gateway._channel.close, monkeypatch)


def test_a_lock_that_ctrl_c_left_locked_is_not_waited_for(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(address)
    stream: Any = gateway._channel.unary_stream("/a.Service/Method", None, None)(b"")
    with stream._state.condition:
        _check_closes(gateway.__exit__, monkeypatch)


def test_who_handles_ctrl_c_otherwise_is_left_alone() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        with interrupts_deferred():
            signal.raise_signal(signal.SIGINT)
            assert came == [signal.SIGINT]
        assert signal.getsignal(signal.SIGTERM) is not signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt(number: int) -> None:
    with interrupts_deferred():
        signal.raise_signal(number)


def test_ctrl_c_counts_again_after_the_block() -> None:
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        for number in before:
            with pytest.raises(KeyboardInterrupt) as raised:
                _interrupt(number)
            assert raised.traceback[-1].name == "interrupts_deferred"
            assert signal.getsignal(number) is signal.default_int_handler
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("ends_with", [None, SystemExit(3), KeyboardInterrupt()])
def test_ctrl_c_is_of_no_account_at_the_end_of_python(
    ends_with: BaseException | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> None:
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if ends_with is not None:
            raise ends_with

    monkeypatch.setattr(importlib.import_module("tablegate.gateway.cli.main"), "main", run)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code: Any = None
        try:
            runpy.run_path(cli.__file__)["main"]()
        except SystemExit as error:
            code = error.code
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        assert code == {SystemExit: 3, KeyboardInterrupt: 130}.get(type(ends_with))
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_a_subscription_wherever_it_comes() -> None:
    """It comes at each line of the command in turn: it ends the command as Ctrl-C does, or is how it ends."""

    class Begun:
        def subscribe(self, *_: object, **__: object) -> Any:
            raise KeyboardInterrupt

    gateway: Any = Begun()
    passed: list[int] = []
    sigterm = signal.getsignal(signal.SIGTERM)
    for line in range(100):
        passed.clear()

        def interrupt(frame: FrameType, event: str, _: object, line: int = line) -> Any:
            if frame.f_code.co_filename != subscribe_file:
                return None
            if event == "line":
                passed.append(frame.f_lineno)
                if len(passed) > line:
                    raise KeyboardInterrupt
            return interrupt

        before = sys.gettrace()
        sys.settrace(interrupt)
        try:
            follow(gateway, "ratings", [], as_json=True, resume=None, changes_only=False)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
            signal.signal(signal.SIGTERM, sigterm)
        if len(passed) <= line:
            break
    assert 5 < line < 99


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_file_that_a_signal_cuts_short_leaves_nothing(number: int, tmp_path: Path) -> None:
    def rows() -> Iterator[Any]:
        yield rating(1)
        assert callable(signal.getsignal(number)), "it would end the process at once"
        signal.raise_signal(number)
        yield rating(2)

    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as ended:
            write_rows(rows(), type(rating(1)), Format.JSON, tmp_path / "rows.json")
        assert ended.value.code == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert not list(tmp_path.iterdir())


FLUSHES = """
import signal
from tablegate.examples.samples import Event, EventProducer

brokers = ",".join(f"127.0.0.1:{port}" for port in range(1, 100))
signal.signal(signal.SIGALRM, signal.default_int_handler)
for number in range(40):
    producer = EventProducer(brokers)
    producer.send(Event("ratings", b"", b""))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01 + 0.001 * number)
        producer.flush()
    except KeyboardInterrupt:
        print(number)
"""


@pytest.mark.tools
def test_ctrl_c_while_events_wait_for_kafka_is_ctrl_c() -> None:
    """While it is said of many brokers that none of them is there; in a process, whose stderr shows what is lost."""
    done = subprocess.run([sys.executable, "-c", FLUSHES], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.split() == [str(number) for number in range(40)]


@pytest.mark.parametrize("use", ["send", "flush"])
def test_ctrl_c_in_a_callback_of_the_producer_is_ctrl_c(use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        signal.raise_signal(signal.SIGALRM)

    def use_it() -> None:
        for _ in range(1_000):  # more than are sent until Kafka's client has told that nobody is there
            producer.send(Event("ratings", b"", b""))
            if use == "send":
                time.sleep(0.001)
            else:
                producer.flush()

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    monkeypatch.setattr("tablegate.examples.samples.kafka.refused_connection", interrupted)
    producer = EventProducer("127.0.0.1:1", delivery_timeout_s=5)
    try:
        with pytest.raises(KeyboardInterrupt):
            use_it()
    finally:
        signal.signal(signal.SIGALRM, before)
