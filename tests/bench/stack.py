"""What a measurement runs on: a broker, a job and a gateway as processes of their own, on free ports."""

import io
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fastavro
import grpc
from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AdminClient
from google.protobuf import message_factory

from gateway.contract.binder import bind
from gateway.contract.descriptors import load_descriptors
from gateway.contract.keys import encode_key
from gateway.contract.rows import row_schema
from gateway.contract.versions import VERSION_HEADER, make_version
from gateway.v1 import changelog_pb2, status_pb2
from streamjobs.local.kafka import Broker
from streamjobs.local.samples import create_topic
from streamjobs.tables.ratings import RATING_SCHEMA
from tests.support.processes import process_tree

CONTRACT = Path("proto/examples/ratings/v1/ratings.proto")
STATUS_PATH = "/gateway.v1.GatewayService/GetStatus"
PARTITIONS = 4
READY_TIMEOUT_S = 180.0


def request_bytes(movie: int) -> bytes:
    """Return a GetRatingRequest for `movie` (positive), as bytes."""
    out = bytearray(b"\x08")
    while movie > 127:
        out.append(movie & 127 | 128)
        movie >>= 7
    out.append(movie)
    return bytes(out)


def read_count(response: bytes) -> int:
    """Return rating_count (field 3 of the row, field 1) of a GetRatingResponse, ours or the peer's."""
    at, count = 2, 0
    end = at + response[1]
    while at < end:
        tag = response[at]
        if tag & 7 == 1:
            at += 9
        elif tag & 7 == 2:
            at += 2 + response[at + 1]
        else:
            value, shift, at = 0, 0, at + 1
            while True:
                byte = response[at]
                value |= (byte & 127) << shift
                shift, at = shift + 7, at + 1
                if byte < 128:
                    break
            if tag >> 3 == 3:
                count = value
    return count


class GatewayProcess:
    """A gateway that serves."""

    def __init__(self, process: subprocess.Popen[bytes], address: str, log_path: Path) -> None:
        self.pid = process.pid
        self.address = address
        self._log_path = log_path

    def restored_rows_per_second(self) -> float:
        """Return what the replicator said of its restore."""
        lines = [json.loads(line) for line in self._log_path.read_text().splitlines() if line.startswith("{")]
        return next(float(line["rows_per_second"]) for line in lines if line["message"].endswith(": restored"))

    def replicator_pid(self) -> int:
        """Return the process of the gateway with the most threads of librdkafka: the one that follows Kafka."""

        def replicates(pid: int) -> bool:
            return any(
                Path(task, "comm").read_text().startswith("rdk:") for task in Path(f"/proc/{pid}/task").iterdir()
            )

        return next(pid for pid in process_tree(self.pid) if replicates(pid))


class Stack:
    """A broker, and what is started on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True)
        self._catalogue = bind(load_descriptors(CONTRACT))
        self.protoset = directory / "contract.binpb"
        self.protoset.write_bytes(self._catalogue.files.SerializeToString())
        self._broker = Broker(directory / "kafka", log_file=directory / "kafka.log")

    def __enter__(self) -> "Stack":
        self._broker.start()
        self.bootstrap = self._broker.bootstrap
        self._producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0, "log_level": 0})
        return self

    def __exit__(self, *_: object) -> None:
        self._broker.stop()

    def free_port(self) -> int:
        """Return a port that nobody has."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    def create_source(self) -> None:
        """Create the topic `ratings`."""
        create_topic(self.bootstrap, "ratings", 2)

    def event(self, movie: int, rating: float) -> bytes:
        """Return a rating in Avro, in the Confluent wire format."""
        out = io.BytesIO(b"\x00\x00\x00\x00\x01")
        out.seek(5)
        schema = fastavro.parse_schema(json.loads(RATING_SCHEMA))
        fastavro.schemaless_writer(out, schema, {"movie_id": movie, "rating": rating})
        return out.getvalue()

    def produce(self, movie: int, rating: float) -> None:
        """Send one rating, without waiting for its acknowledgement."""
        self._producer.produce("ratings", self.event(movie, rating), key=str(movie))
        self._producer.poll(0)

    def batch_bytes(self, keys: list[int]) -> bytes:
        """Return a BatchGetRatingsRequest for `keys`, as bytes."""
        pool = self._catalogue.pool
        name = "examples.ratings.v1.BatchGetRatingsRequest"
        request = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()
        for key in keys:
            request.keys.add(movie_id=key)
        return bytes(request.SerializeToString())

    def count_scanned(self, messages: list[bytes]) -> int:
        """Return the rows in the messages of a Scan."""
        name = "examples.ratings.v1.ScanRatingsResponse"
        response = message_factory.GetMessageClass(self._catalogue.pool.FindMessageTypeByName(name))
        return sum(len(response.FromString(message).ratings) for message in messages)

    def seed_changelog(self, rows: int) -> None:
        """Write a changelog of `rows` rows and its manifest, as a job would have."""
        table = self._catalogue.tables["ratings"]
        topic = "ratings-g1-changelog"
        settings = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
        create_topic(self.bootstrap, topic, PARTITIONS, settings)
        create_topic(self.bootstrap, "tables", 1, {"cleanup.policy": "compact"})
        schema = fastavro.parse_schema(row_schema(table))
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 500_000}
        )
        version = make_version(1, 1)
        for movie in range(1, rows + 1):
            key = encode_key(table.key, [movie])
            out = io.BytesIO(b"\x00\x00\x00\x00\x01")
            out.seek(5)
            row = {"movie_id": movie, "average_rating": 5.0, "rating_count": 1, "update_time": 1_700_000_000_000_000}
            fastavro.schemaless_writer(out, schema, row)
            partition = table.partition_of(key, PARTITIONS)
            producer.produce(topic, out.getvalue(), key, partition=partition, headers=[(VERSION_HEADER, version)])
            if movie % 10_000 == 0:
                producer.poll(0)
                while len(producer) > 300_000:
                    producer.poll(0.1)
        producer.flush()
        producer.produce("tables", self._manifest(topic).SerializeToString(), key="ratings")
        producer.flush()

    def _manifest(self, topic: str) -> changelog_pb2.Manifest:
        table = self._catalogue.tables["ratings"]
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        found = admin.describe_topics(TopicCollection([topic]))
        return changelog_pb2.Manifest(
            table="ratings",
            generation=1,
            contract_fingerprint=table.fingerprint,
            changelog_topic=topic,
            changelog_topic_id=str(found[topic].result().topic_id),
            partition_count=PARTITIONS,
            partitioner=table.partitioner.value,
            key=[changelog_pb2.KeyColumn(name=column.name, type=column.type.value) for column in table.key],
            partition_by_count=table.partition_by_count,
            value_schemas={1: json.dumps(row_schema(table))},
            mode=changelog_pb2.JOB_MODE_REALTIME,
        )

    @contextmanager
    def _child(self, log_path: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        with log_path.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "gateway.cli", *arguments], stdout=log, stderr=subprocess.STDOUT
            )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @contextmanager
    def job(self, *, mode: str) -> Iterator[None]:
        """Run the ratings job; it may still be starting when the block begins."""
        with self._child(
            self.directory / "job.log",
            *("job", "run", "ratings", "--bootstrap", self.bootstrap, "--master", "local[8]"),
            *("--checkpoint", str(self.directory / "checkpoint"), "--mode", mode, "--partitions", str(PARTITIONS)),
        ):
            yield

    @contextmanager
    def gateway(self) -> Iterator[GatewayProcess]:
        """Run a gateway with an empty store; the block begins when it serves."""
        address = f"127.0.0.1:{self.free_port()}"
        log_path = self.directory / "gateway.log"
        with self._child(
            log_path,
            *("serve", "--contract", str(CONTRACT), "--bootstrap", self.bootstrap),
            *("--data", str(self.directory / "gateway"), "--listen", address, "--reflection"),
        ) as process:
            end = time.monotonic() + READY_TIMEOUT_S
            while not self._serves(address):
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"the gateway did not start: {log_path.read_text()[-2000:]}")
                time.sleep(0.05)
            yield GatewayProcess(process, address, log_path)

    def _serves(self, address: str) -> bool:
        with grpc.insecure_channel(address) as channel:
            try:
                answer = status_pb2.GetStatusResponse.FromString(channel.unary_unary(STATUS_PATH)(b"", timeout=2))
            except grpc.RpcError:
                return False
        return bool(answer.tables) and all(table.serving for table in answer.tables)
