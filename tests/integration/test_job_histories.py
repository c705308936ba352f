"""What clients of a real job's table see while its driver is killed, written as a history and judged when it is over.

The ratings of a movie only grow, and the sequence of a row's version is its count: so an answer says by itself which
version it has, and which ratings must be in it.
"""

import random
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from confluent_kafka import Producer

from tablegate.client import at_least_source
from tablegate.client.failures import failure_of
from tablegate.examples.demo.kafka import Broker
from tablegate.examples.samples import create_topic
from tablegate.gateway.contract.catalogue import Query
from tablegate.gateway.contract.types import RUN_HEADER
from tablegate.jobs.table import Mode
from tests.kit.gateway_processes.changelog import write_log
from tests.kit.gateway_processes.gateway import SERVICE, GatewayProcess, soon
from tests.kit.gateway_processes.watchers import Watcher
from tests.kit.histories.checking import recorded
from tests.kit.histories.client import HistoryClient
from tests.kit.histories.history import History
from tests.kit.job.process import JobProcess
from tests.kit.job.ratings_job import rating_record
from tests.kit.programs.kafka import acknowledged, consume
from tests.kit.table.filled import catalogue_of

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

CATALOGUE = catalogue_of()
MOVIES = range(1, 41)
GET, BATCH_GET = (CATALOGUE.queries[f"{SERVICE}/{name}"] for name in ("GetRating", "BatchGetRatings"))
SOURCE_PARTITIONS = 2
OWN_EVERY = 50  # turns: the table's markers come with its batches
MAX_WAIT_S = 6
TURNS = 100
GROUPS = 5  # of movies that are asked for together, each a session
KILLS = 2
CALL_S = 30.0
CATCH_UP_S = 120.0


class Reader(HistoryClient):
    """A client that rates movies, and asks for groups of them, no older than what it saw; now and then for its own."""

    def __init__(self, history: History, gateway: GatewayProcess, bootstrap: str) -> None:
        super().__init__(history)
        assert gateway.channel is not None
        self.turns = 0
        self.counts: Counter[int] = Counter()  # ratings of each movie that Kafka has
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "partitioner": "murmur2_random"})
        self._channel = gateway.channel
        self._choice = random.Random(1)

    def wait(self) -> None:
        """Wait until it has asked some more."""
        before = self.turns
        soon(lambda: self.turns >= before + TURNS, "the reader goes on", CATCH_UP_S)

    def work(self) -> None:
        while not self._stopping.is_set():
            self._write()
            self._batch()
            self.turns += 1

    def _write(self) -> None:
        movie = self._choice.choice(MOVIES)
        written = acknowledged(self._producer, "ratings", rating_record(movie, 5.0))
        self.counts[movie] += 1
        if self.turns % OWN_EVERY:
            return
        request: Any = GET.request_class(movie_id=movie)
        request.read_options.max_wait.seconds = MAX_WAIT_S
        self._ask(GET, "get", at_least_source(request, written), [movie], own=self.counts[movie])

    def _batch(self) -> None:
        group = self._choice.randrange(GROUPS)
        movies = list(MOVIES[group::GROUPS])
        request: Any = BATCH_GET.request_class()
        for movie in movies:
            request.keys.add(movie_id=movie)
        session = str(group)
        answer = self._ask(BATCH_GET, "batch", request, movies, **self._in_session(session, request))
        if answer is not None:
            self._keep(session, answer.read_info)

    def _ask(self, query: Query, op: str, request: Any, movies: list[int], **asked: Any) -> Any:
        call = self._channel.unary_unary(
            query.path, query.request_class.SerializeToString, query.response_class.FromString
        )
        self._history.invoke(self._process, op, keys=movies, **asked)
        try:
            answer: Any = call(request, timeout=CALL_S)
        except grpc.RpcError as error:
            failure = failure_of(error)
            self._history.fail(self._process, op, code=failure.code, reason=failure.reason)
            return None
        rows: Any = (
            [answer.rating] if op == "get" else [each.found for each in answer.results if each.HasField("found")]
        )
        self._ok(op, [(row.movie_id, row.rating_count) for row in rows], answer.read_info, by="")
        return answer


@pytest.mark.long
@pytest.mark.parametrize("mode", list(Mode))
def test_kills_of_the_driver_take_nothing_back(tmp_path: Path, mode: Mode) -> None:
    """Rows, copies and own writes, while the driver is killed and starts again."""
    topic = "ratings-g1-changelog"

    def write_changelog(history: History) -> None:
        records = consume(broker.bootstrap, topic)
        write_log(history, CATALOGUE.tables["ratings"], records, {record.partition for record in records})

    with (
        Broker(tmp_path / "kafka", log_file=tmp_path / "kafka.log") as broker,
        recorded(write_changelog) as history,
        ExitStack() as running,
    ):
        create_topic(broker.bootstrap, "ratings", SOURCE_PARTITIONS)
        arguments = ["--table", "ratings", "--bootstrap", broker.bootstrap, "--mode", mode.value]
        arguments += ["--checkpoints", str(tmp_path / "checkpoints")]

        def runs() -> set[int]:
            headers = [header for record in consume(broker.bootstrap, topic) for header in record.headers]
            return {int.from_bytes(value, "big") for name, value in headers if name == RUN_HEADER}

        def started() -> JobProcess:
            job = running.enter_context(JobProcess(tmp_path / "logs", *arguments))
            job.wait_for("running")
            return job

        job = started()
        gateway = running.enter_context(GatewayProcess(tmp_path / "gateway", broker.bootstrap))
        gateway.wait_until_serving()
        everything = running.enter_context(Watcher(history, gateway.address))
        one = running.enter_context(Watcher(history, gateway.address, movie=1))
        with Reader(history, gateway, broker.bootstrap) as reader:
            reader.wait()
            for _ in range(KILLS):
                with history.fault("SIGKILL of the driver") as saw:
                    before = runs()
                    job.kill()
                    job = started()
                    reader.wait()
                    assert max(runs()) > max(before)
                    saw("rows of another run")
        counts = dict(reader.counts)
        soon(lambda: everything.counts == counts, "the copy is the table", CATCH_UP_S)
        soon(lambda: one.counts == {1: counts[1]}, "the copy of a movie is its row", CATCH_UP_S)
        assert job.stop() == 0
