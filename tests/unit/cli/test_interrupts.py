"""Ctrl-C where gRPC begins a call: it is noted, but nobody reads its events yet, and a close would wait for it."""

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from tablegate.examples.demo.failover import Reads
from tablegate.gateway.cli.connecting import interrupts_deferred
from tablegate.gateway.cli.gateway import Gateway
from tablegate.gateway.contract.catalogue import GetQuery
from tests.kit.table.filled import catalogue_of

HANGS_S = 20  # it takes a millisecond


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
    _check_closes(reads.__exit__, monkeypatch)


def test_commands_end(address: str, interrupted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(address)
    with pytest.raises(KeyboardInterrupt):
        gateway.catalogue()
    assert interrupted
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
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            with pytest.raises(KeyboardInterrupt) as raised:
                _interrupt(number)
            assert raised.traceback[-1].name == "interrupts_deferred"
            assert signal.getsignal(number) is signal.default_int_handler
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
