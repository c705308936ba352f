"""Subscribers of a whole gateway on a real Kafka, through all that can befall it: each copy is the table."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tablegate.examples.demo.kafka import Broker, free_port
from tablegate.v1.query_pb2 import SUBSCRIBE_PHASE_CURRENT
from tests.kit.gateway_processes.changelog import RatingsChangelog, many
from tests.kit.gateway_processes.gateway import GatewayProcess, soon
from tests.kit.gateway_processes.watchers import HOT, ChangesWriter, CountingStream, Watcher, wait_for
from tests.kit.histories.checking import recorded

pytestmark = pytest.mark.jvm

MOVIES = 2_000
WORKERS = 2
FLOOD = 30  # times that each row is changed: many times what a connection and a queue hold
MIB = 2**20
OFTEN = {"progress_interval": {"nanos": 200_000_000}}


@pytest.fixture
def changelog(broker: Broker) -> RatingsChangelog:
    found = RatingsChangelog(broker.bootstrap)
    found.mark()
    found.publish()
    return found


@pytest.fixture
def gateway(tmp_path: Path, changelog: RatingsChangelog) -> Iterator[GatewayProcess]:
    running = GatewayProcess(
        tmp_path / "gateway", changelog.bootstrap, tables_topic=changelog.tables_topic, workers=WORKERS
    )
    with running:
        running.wait_until_serving()
        yield running


class Faults:
    """What is done to a gateway and its subscribers. Each returns when it bit and all streams are back."""

    def __init__(self, gateway: GatewayProcess, watchers: list[Watcher], choice: random.Random) -> None:
        self.bit: Counter[str] = Counter()
        self._gateway = gateway
        self._watchers = watchers
        self._choice = choice

    def run(self, name: str, meanwhile: Callable[[], None]) -> None:
        """Do the fault of a name; `meanwhile` is done before all is well again."""
        getattr(self, f"_{name}")(meanwhile)
        self.bit[name] += 1
        wait_for(self._watchers, lambda each: each.heard_of_stream > 0, f"all streams are back after: {name}")

    def _cancel(self, meanwhile: Callable[[], None]) -> None:
        """A subscriber ends its stream; or ends itself, and has only what it had saved."""
        watcher = self._choice.choice(self._watchers)
        cancelled = watcher.ends["CANCELLED"]
        goes_back = self._choice.random() < 0.5
        watcher.cancel(goes_back=goes_back)
        meanwhile()

        def has_ended(each: Watcher) -> bool:
            if each.ends["CANCELLED"] == cancelled:
                each.cancel(goes_back=goes_back)  # again: the one before may have met a stream that had just ended
            return each.ends["CANCELLED"] > cancelled

        wait_for([watcher], has_ended, "the stream ends")

    def _kill_worker(self, meanwhile: Callable[[], None]) -> None:
        """A worker dies; it bites where it had a stream."""
        while True:
            ends = self._ends()
            self._kill(b"worker", meanwhile)
            if self._ends() != ends:
                return

    def _kill_replicator(self, meanwhile: Callable[[], None]) -> None:
        """The replicator dies; it bites as what is written then waits for the next one."""
        heard = [watcher.given for watcher in self._watchers]
        self._kill(b"replicator", meanwhile)
        wait_for(
            [watcher for watcher in self._watchers if watcher.movie is None],
            lambda each: each.given > heard[self._watchers.index(each)],
            "changes come again",
        )

    def _restart(self, meanwhile: Callable[[], None]) -> None:
        """The gateway is ended and started; each stream is told so, with its last progress."""
        told = [watcher.ends["SHUTTING_DOWN"] for watcher in self._watchers]
        assert self._gateway.stop() == 0
        wait_for(
            self._watchers,
            lambda each: each.ends["SHUTTING_DOWN"] == told[self._watchers.index(each)] + 1,
            "each stream has been told so",
        )
        meanwhile()
        self._gateway.start()

    def _crash(self, meanwhile: Callable[[], None]) -> None:
        """All of the gateway dies."""
        ends = self._ends()
        self._gateway.kill()
        wait_for(self._watchers, lambda each: each.ends.total() > ends[id(each)], "the streams end")
        meanwhile()
        self._gateway.start()

    def _kill(self, kind: bytes, meanwhile: Callable[[], None]) -> None:
        """Kill one of the gateway's processes, and wait for another of the kind."""
        old = self._processes(kind)
        killed = self._choice.choice(old)
        os.kill(killed, signal.SIGKILL)
        meanwhile()
        soon(lambda: self._replaced(kind, old, killed), "another process starts")

    def _ends(self) -> Counter[int]:
        return Counter({id(watcher): watcher.ends.total() for watcher in self._watchers})

    def _processes(self, kind: bytes) -> list[int]:
        found = []
        for pid in self._gateway.children():
            try:
                if kind in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
            except OSError:
                continue
        return found

    def _replaced(self, kind: bytes, old: list[int], killed: int) -> bool:
        now = self._processes(kind)
        return len(now) == len(old) and killed not in now


def memory_bytes(gateway: GatewayProcess) -> int:
    """Return what the workers of a gateway have of their own; pages of the store's file are not theirs."""
    found = 0
    for pid in gateway.children():
        if b"worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
            [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "RssAnon" in line]
            found += int(line.split()[1]) * 1024
    return found


def _only(movie: int, counts: Mapping[int, int]) -> dict[int, int]:
    return {movie: counts[movie]} if movie in counts else {}


@pytest.mark.parametrize(
    ("changes", "rounds"),
    [
        pytest.param(100_000, 1, marks=pytest.mark.timeout(600)),
        pytest.param(1_000_000, 10, marks=[pytest.mark.long, pytest.mark.timeout(3_600)]),
    ],
)
def test_faults_cost_no_change(gateway: GatewayProcess, changelog: RatingsChangelog, changes: int, rounds: int) -> None:
    """Twenty faults a round. Whoever asks for one movie gets each of its changes, once and in order."""
    names = ["cancel"] * 10 + ["kill_worker"] * 4 + ["kill_replicator"] * 4 + ["restart", "crash"]
    choice = random.Random(changes)
    names = [name for _ in range(rounds) for name in choice.sample(names, len(names))]
    writer = ChangesWriter(changelog, MOVIES, seed=changes)
    writer.write(MOVIES)
    with ExitStack() as stack:
        history = stack.enter_context(recorded(changelog.write_log))
        watchers = [Watcher(history, gateway.address, movie) for movie in (None, None, *HOT)]
        for watcher in watchers:
            stack.enter_context(watcher)
        wait_for(watchers, lambda each: each.phase == SUBSCRIBE_PHASE_CURRENT, "all streams are open")
        faults = Faults(gateway, watchers, choice)
        portion = (changes - writer.written) // len(names) // 2
        for name in names:
            writer.write(portion)
            faults.run(name, lambda: writer.write(portion))
        writer.write(changes - writer.written)
        expected = {None: writer.counts, **{movie: _only(movie, writer.counts) for movie in HOT}}
        wait_for(watchers, lambda each: each.counts == expected[each.movie], "each copy is the table")
    assert writer.written >= changes
    assert faults.bit.total() == len(names) >= 20 * rounds
    assert [watcher.resets for watcher in watchers] == [1] * len(watchers)
    assert sum(watcher.wholes for watcher in watchers) > 20


@pytest.mark.parametrize("away_s", [10.0, pytest.param(60.0, marks=pytest.mark.long)], ids=["ten seconds", "a minute"])
def test_streams_stay_while_kafka_is_away_and_say_how_old_they_are(tmp_path: Path, away_s: float) -> None:
    with Broker(tmp_path / "kafka", port=free_port(), log_file=tmp_path / "kafka.log") as broker:
        changelog = RatingsChangelog(broker.bootstrap)
        writer = ChangesWriter(changelog, MOVIES)
        writer.write(MOVIES)
        changelog.publish()
        with (
            GatewayProcess(tmp_path / "gateway", broker.bootstrap, tables_topic=changelog.tables_topic) as gateway,
            recorded(changelog.write_log) as history,
            Watcher(history, gateway.address, **OFTEN) as everything,
            Watcher(history, gateway.address, movie=1, **OFTEN) as one,
        ):
            watchers = [everything, one]
            gateway.wait_until_serving()
            wait_for(watchers, lambda each: bool(each.counts), "the rows")
            wait_for([everything], lambda each: each.counts == writer.counts, "all rows")
            streams = [watcher.streams for watcher in watchers]
            broker.kill()
            gone_ms = time.time_ns() // 1_000_000
            end_s = time.monotonic() + away_s
            while time.monotonic() < end_s:
                heard = [watcher.heard for watcher in watchers]
                wait_for(watchers, lambda each: each.heard > heard[watchers.index(each)], "progress goes on")  # noqa: B023
                for watcher in watchers:
                    assert 0 < watcher.as_of_ms <= gone_ms
            broker.start()
            writer.write(1_000)
            wait_for(watchers, lambda each: each.as_of_ms > gone_ms, "it says that it is fresh again")
            wait_for([everything], lambda each: each.counts == writer.counts, "changes come again")
            assert [watcher.streams for watcher in watchers] == streams
            assert [watcher.resets for watcher in watchers] == [1, 1]


@pytest.mark.parametrize(
    ("subscribers", "slow"), [(80, 20), pytest.param(200, 50, marks=[pytest.mark.long, pytest.mark.timeout(1_800)])]
)
def test_subscribers_that_never_read_cost_little_and_nobody_else(
    gateway: GatewayProcess, changelog: RatingsChangelog, subscribers: int, slow: int
) -> None:
    changelog.put(dict(many(MOVIES)))
    soon(lambda: gateway.rows() == changelog.rows, "all rows are there")
    address = gateway.address()
    assert address is not None
    with ExitStack() as stack:
        streams = [stack.enter_context(CountingStream(address, reads=number >= slow)) for number in range(subscribers)]
        readers, sleepers = streams[slow:], streams[:slow]
        soon(lambda: all(stream.copy == changelog.rows for stream in readers), "all have all rows", 120)
        before = memory_bytes(gateway)
        for number in range(2, 2 + FLOOD):
            changelog.put(dict.fromkeys(range(MOVIES), (1.0, number)))
        soon(lambda: all(stream.copy == changelog.rows for stream in readers), "all have all changes", 300)
        grown = memory_bytes(gateway) - before
        assert grown <= (64 + slow) * MIB
        for stream in sleepers:
            stream.read()
        # One that took nothing for a minute was ended by the server: then the machine was slow, not we.
        soon(
            lambda: all(stream.ended or stream.copy == changelog.rows for stream in sleepers), "the slow have all", 300
        )
    assert not [stream.ended for stream in readers if stream.ended != "CANCELLED"]
    assert not [stream for stream in streams if stream.went_back]
    missed = [MOVIES * (FLOOD + 1) - stream.given for stream in sleepers]
    assert min(missed) > 0, "one was not slow: nothing was shown"
