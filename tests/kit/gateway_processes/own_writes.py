"""A table that a real job keeps of what is written here, and a gateway that is asked for what was acknowledged."""

import itertools
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import grpc
from confluent_kafka import Message, Producer

from tablegate.client import at_least_source
from tablegate.client.failures import failure_of
from tablegate.examples import CONTRACTS
from tablegate.examples.demo.kafka import Broker
from tablegate.examples.samples import Event, create_topic
from tablegate.jobs.kafka.topics import changelog_name
from tablegate.jobs.planning.declarations import load_table
from tablegate.jobs.table import Mode
from tablegate.v1.changelog_pb2 import ProgressMarker
from tests.kit.gateway_processes.gateway import GatewayProcess
from tests.kit.job.process import JobProcess
from tests.kit.programs.kafka import NewRecord, acknowledged, consume
from tests.kit.table.filled import catalogue_of

SOURCE_PARTITIONS = 2
MAX_WAIT_S = 5
DEADLINE_S = 30.0

GET_TICK = "/examples.stocks.v1.StocksService/GetStockTick"
SYMBOLS = ("stock-1", "stock-2", "stock-3")


class OwnWrites:
    """A broker, the job of a table and a gateway, all of its own. `table`: as `tablegate job run` takes it, with an
    example's contract. `get_path` is the table's Get.

    `refused`: answers of NOT_CAUGHT_UP. One thread.
    """

    def __init__(self, directory: Path, table: str, mode: Mode, get_path: str) -> None:
        self.refused = 0
        self._directory = directory
        self._job_argument = table
        self._table = load_table(table)
        self._mode = mode
        self._contract = CONTRACTS / self._table.contract
        self._query = catalogue_of(self._contract).queries[get_path]
        self._running = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            directory = self._directory
            directory.mkdir(parents=True, exist_ok=True)
            broker = starting.enter_context(Broker(directory / "kafka", log_file=directory / "broker.log"))
            self.bootstrap = broker.bootstrap
            for side in self._table.all_sides:
                create_topic(self.bootstrap, self._table.source_of(side).topic, SOURCE_PARTITIONS)
            self._job = starting.enter_context(self._started_job())
            self._job.wait_for("running")
            gateway = GatewayProcess(directory / "gateway", self.bootstrap, contract=self._contract)
            starting.enter_context(gateway).wait_until_serving()
            assert gateway.channel is not None
            self._get = gateway.channel.unary_unary(
                self._query.path,
                request_serializer=self._query.request_class.SerializeToString,
                response_deserializer=self._query.response_class.FromString,
            )
            self._producer = Producer(
                {
                    "bootstrap.servers": self.bootstrap,
                    "linger.ms": 0,
                    "partitioner": "murmur2_random",
                    "log_level": 0,
                }
            )
            self._running = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def write(self, event: Event) -> Message:
        """Write one record; return its partition and offset, as Kafka acknowledged it."""
        return acknowledged(self._producer, event.topic, NewRecord(event.key, event.value, partition=event.partition))

    def get(self, record: Message, **key: Any) -> Any:
        """Return the first answer that says it has the record in it, however often the gateway refuses before."""
        request: Any = self._query.request_class(**key)
        request.read_options.max_wait.seconds = MAX_WAIT_S
        request = at_least_source(request, record)
        while True:
            try:
                return self._get(request, timeout=DEADLINE_S)
            except grpc.RpcError as error:
                if failure_of(error).reason != "NOT_CAUGHT_UP":
                    raise
            self.refused += 1
            assert self._job.process.poll() is None, f"the job has ended: {self._job.errors()}"

    def marked_positions(self) -> int:
        """Return at how many positions of its source the job has written markers."""
        records = consume(self.bootstrap, changelog_name(self.bootstrap, self._table.name, self._table.generation))
        markers = [ProgressMarker.FromString(record.value or b"") for record in records if record.key == b""]
        return len({tuple(sorted(marker.sources[0].next_offsets.items())) for marker in markers if marker.sources})

    def _started_job(self) -> JobProcess:
        words = ["--table", self._job_argument, "--mode", self._mode.value, "--bootstrap", self.bootstrap]
        words += ["--checkpoints", str(self._directory / "checkpoints")]
        words += ["--spark-log", str(self._directory / "spark.log")]
        return JobProcess(self._directory / "logs", *words)


def ticks() -> Iterator[tuple[str, str]]:
    """Yield a symbol that has a row and a price that none had before, for ever; always the same."""
    choice = random.Random(1)
    for number in itertools.count():
        yield choice.choice(SYMBOLS), f"{number}.25"
