"""`python -m tests.bench.faults --peer DIR`: what readers see of instances that are killed, ours and the peer's.

The same readers ask for the same rows, up to 1,000 times a second in all, while these change, an instance gets SIGKILL
and is started again a second later. They try nothing twice. Counted are answers of "not found" for rows that exist,
rows that are older than the same reader has seen them, and for how long the worst row had no answer.

Each has what it offers. Readers of gateways pass the token of their last answer about a row. The peer has no tokens,
and no routing: a reader of two instances asks the other one where the first has not the row, or does not answer; "not
found" counts only where both say so. It folds the events itself; what gateways read is written as a job would.
"""

import itertools
import json
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Protocol, Self

import grpc
import typer
from confluent_kafka import Producer

from tablegate.examples.demo.kafka import Broker, free_port
from tablegate.examples.samples import create_topic
from tests.bench import peer
from tests.kit.gateway_processes.changelog import RatingsChangelog
from tests.kit.gateway_processes.cluster import Cluster
from tests.kit.gateway_processes.gateway import SERVICE
from tests.kit.table.filled import RATINGS, catalogue_of

QUERY = catalogue_of().queries[f"{SERVICE}/GetRating"]
MOVIES = range(1, 20_001)
READ = 40  # of them
CHANGED = 400  # of them
CHANGES_PER_TURN, TURN_S = 40, 0.1
READERS = 4
PAUSE_S = 0.004
DEADLINE_S = 1.0
QUIET_S = 3.0  # before each kill, and after all rows are answered again
DOWN_S = 1.0
AGAIN_MAX_S = 300.0
PARTITIONS = 4
CHANNEL = [
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.lb_policy_name", "round_robin"),
]

Ask = Callable[[int], int | None]
"""Return the count of a movie, None where there is no such row; raise `grpc.RpcError`."""


class Instances(Protocol):
    """What is killed: instances by number."""

    count: int

    def kill(self, number: int) -> None:
        """End one at once."""

    def start(self, number: int) -> None:
        """Start it again; its files are there."""

    def reader(self, stack: ExitStack) -> Ask:
        """Return what asks them."""


@dataclass
class Seen:
    """What readers saw. `answered_s`: of each row that is read, when it was answered, by the monotonic clock."""

    answers: int = 0
    refused: int = 0
    not_found: int = 0
    back: int = 0
    answered_s: dict[int, list[float]] = field(default_factory=lambda: {movie: [] for movie in MOVIES[:READ]})

    def without_s(self, begin_s: float, end_s: float) -> float:
        """Return the longest time between two moments in which one row had no answer."""
        longest_s = 0.0
        for times in self.answered_s.values():
            within = [begin_s, *(each for each in times if begin_s < each < end_s), end_s]
            longest_s = max(longest_s, *(after - before for before, after in itertools.pairwise(within)))
        return longest_s


class Readers:
    """Threads that read the same rows over and over while the block runs."""

    def __init__(self, instances: Instances) -> None:
        self.seen = Seen()
        self.counts: dict[int, int] = {}  # of each row, what was answered last
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(instances, first)) for first in range(READERS)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self, instances: Instances, first: int) -> None:
        with ExitStack() as stack:
            ask, newest = instances.reader(stack), dict[int, int]()
            begin = first * READ // READERS  # each reads another row at a time
            for movie in itertools.cycle([*MOVIES[begin:READ], *MOVIES[:begin]]):
                if self._stopping.wait(PAUSE_S):
                    return
                self._read(ask, newest, movie)

    def _read(self, ask: Ask, newest: dict[int, int], movie: int) -> None:
        try:
            count = ask(movie)
        except grpc.RpcError:
            with self._lock:
                self.seen.refused += 1
            return
        with self._lock:
            seen = self.seen
            seen.answers += 1
            seen.answered_s[movie].append(time.monotonic())
            if count is None:
                seen.not_found += 1
            else:
                seen.back += count < newest.get(movie, 0)
                newest[movie] = self.counts[movie] = count


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Return once something holds."""
    end_s = time.monotonic() + AGAIN_MAX_S
    while not holds():
        if time.monotonic() > end_s:
            raise RuntimeError(f"not within {AGAIN_MAX_S:.0f} s: {what}")
        time.sleep(0.05)


def wait_until_answered(seen: Seen) -> None:
    """Return once each row that is read was answered after now."""
    now_s = time.monotonic()
    wait_until(lambda: all(times and times[-1] > now_s for times in seen.answered_s.values()), "each row is answered")


def measured(who: str, instances: Instances, kills: int, rows: Mapping[int, tuple[float, int]]) -> str:
    """Kill instances one after the other; return a line of the table. `rows` is what the table has by now at least."""
    without_s = []
    wanted = {movie: rows[movie][1] for movie in MOVIES[:READ]}
    with Readers(instances) as readers:
        wait_until(lambda: all(readers.counts.get(each, 0) >= wanted[each] for each in wanted), "all rows are there")
        time.sleep(QUIET_S)
        readers.seen = Seen()  # what was not there yet does not count
        for number in range(kills):
            time.sleep(QUIET_S)
            begin_s = time.monotonic()
            instances.kill(number % instances.count)
            time.sleep(DOWN_S)
            instances.start(number % instances.count)
            wait_until_answered(readers.seen)
            time.sleep(QUIET_S)
            without_s.append(readers.seen.without_s(begin_s, time.monotonic()))
    seen = readers.seen
    cells = [who, f"{kills}", f"{seen.answers:,}", f"{seen.not_found:,}", f"{seen.back:,}", f"{seen.refused:,}"]
    return f"| {' | '.join([*cells, f'{median(without_s):.2f} s', f'{max(without_s):.2f} s'])} |"


def asking(address: str, stack: ExitStack) -> Ask:
    """Return what asks instances behind one target."""
    channel = stack.enter_context(grpc.insecure_channel(address, options=CHANNEL))
    get = channel.unary_unary(QUERY.path, response_deserializer=QUERY.response_class.FromString)
    tokens: dict[int, str] = {}

    def ask(movie: int) -> int | None:
        options = {"at_least": tokens[movie]} if tokens.get(movie) else None
        request = QUERY.request_class(movie_id=movie, read_options=options).SerializeToString()
        try:
            answer = get(request, timeout=DEADLINE_S)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return None
            raise
        tokens[movie] = answer.read_info.consistency_token
        count: int = answer.rating.rating_count
        return count

    return ask


class Gateways:
    """Ours: one gateway, or a cluster of them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._names = cluster.names_up
        self.count = len(self._names)

    def kill(self, number: int) -> None:
        self._cluster[self._names[number]].kill()

    def start(self, number: int) -> None:
        self._cluster[self._names[number]].start()
        self._cluster.wait_whole()

    def reader(self, stack: ExitStack) -> Ask:
        return asking(self._cluster.target(), stack)


class Peers:
    """The peer: instances of one application."""

    def __init__(self, made: Path, bootstrap: str, directory: Path, count: int) -> None:
        self.count = count
        self._made, self._bootstrap, self._directory = made, bootstrap, directory
        self._ports = [free_port() for _ in range(count)]
        create_topic(bootstrap, f"faults-{count}-out", PARTITIONS)
        self._running = [self._started(number) for number in range(count)]

    def _started(self, number: int) -> peer.Peer:
        state = self._directory / f"state-{number}"
        application = f"faults-{self.count}"
        return peer.Peer(self._made, self._bootstrap, state, self._ports[number], application=application)

    def kill(self, number: int) -> None:
        self._running[number].kill()

    def start(self, number: int) -> None:
        self._running[number] = self._started(number)

    def reader(self, stack: ExitStack) -> Ask:
        asks = [asking(f"127.0.0.1:{port}", stack) for port in self._ports]

        def ask(movie: int) -> int | None:
            error: grpc.RpcError | None = None
            for each in asks:
                try:
                    count = each(movie)
                except grpc.RpcError as refused:
                    error = refused
                else:
                    if count is not None:
                        return count
            if error is not None:
                raise error
            return None

        return ask

    def stop(self) -> None:
        """End all of them."""
        for each in self._running:
            each.stop()


@contextmanager
def changing(bootstrap: str, changelog: RatingsChangelog) -> Iterator[None]:
    """Rate movies while the block runs: an event for the peer, and the row that a job makes of it for a gateway."""
    stopping, choice = threading.Event(), random.Random(1)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})

    def rate(some: Sequence[int]) -> None:
        for movie in some:
            producer.produce("ratings", value=json.dumps({"movie_id": movie, "rating": 5.0}))
        producer.flush()
        for movie in some:
            _, count = changelog.rows.get(movie, (0.0, 0))
            changelog.rows[movie] = (5.0, count + 1)
        changelog.put({movie: changelog.rows[movie] for movie in some})

    def run() -> None:
        while not stopping.wait(TURN_S):
            rate(choice.choices(MOVIES[:CHANGED], k=CHANGES_PER_TURN))

    for begin in range(0, len(MOVIES), 1_000):
        rate(MOVIES[begin : begin + 1_000])
    changelog.publish()
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def main(
    peer_dir: Annotated[Path | None, typer.Option("--peer", help="Directory of the peer's sources (Maven).")] = None,
    kills: Annotated[int, typer.Option(min=1, help="Instances killed, of each kind.")] = 5,
) -> None:
    """Count what readers see of instances that are killed; beside the peer's where its directory is named."""
    print("| who | kills | answers | not found | went back | refused | without an answer, median | longest |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="tablegate-faults-") as name, ExitStack() as stack:
        directory = Path(name)
        made = peer.build(peer_dir.resolve(), directory) if peer_dir and peer.can_build() else None
        broker = stack.enter_context(Broker(directory / "kafka", log_file=directory / "kafka.log", compiler=()))
        create_topic(broker.bootstrap, "ratings", PARTITIONS)
        changelog = RatingsChangelog(broker.bootstrap, partition_count=PARTITIONS)
        stack.enter_context(changing(broker.bootstrap, changelog))
        for count in (1, 3):
            place = directory / f"gateways-{count}"
            place.mkdir()
            cluster = Cluster(
                place,
                broker.bootstrap,
                contract=RATINGS,
                table=changelog.table.name,
                partition_count=PARTITIONS,
                tables_topic=changelog.tables_topic,
                names=[f"g{number}" for number in range(count)],
            )
            with cluster:
                print(measured(f"tablegate, gateways: {count}", Gateways(cluster), kills, changelog.rows), flush=True)
        for count in (1, 2) if made else ():
            place = directory / f"peers-{count}"
            place.mkdir()
            peers = Peers(made, broker.bootstrap, place, count)
            stack.callback(peers.stop)
            print(measured(f"peer, instances: {count}", peers, kills, changelog.rows), flush=True)
            peers.stop()


if __name__ == "__main__":
    typer.run(main)
