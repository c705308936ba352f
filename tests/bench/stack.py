"""What a measurement runs on: a broker, a job and a gateway as processes of their own, on free ports."""

import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fastavro
import grpc
from confluent_kafka import Producer
from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tablegate.examples.demo.kafka import Broker, free_port
from tablegate.examples.samples import create_topic
from tablegate.examples.tables.ratings import RATING_SCHEMA
from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.binder.queries import BATCH_KEYS_MAX
from tablegate.gateway.contract.descriptors import load_descriptors
from tablegate.v1 import options_pb2, status_pb2
from tests.bench.changelog import PARTITIONS, Changelog
from tests.kit.http.certificates import Authority
from tests.kit.programs.processes import process_tree

CONTRACT = Path("examples/tablegate/examples/contracts/examples/ratings/v1/ratings.proto")
STATUS_PATH = "/tablegate.v1.GatewayService/GetStatus"
WORKERS = 2
READY_TIMEOUT_S = 180.0
_EVENT_SCHEMA = fastavro.parse_schema(json.loads(RATING_SCHEMA))


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


def _contract() -> FileDescriptorSet:
    """Return the example's contract, with batches as large as the binder takes."""
    files = load_descriptors(CONTRACT)
    for method in (method for file in files.file for service in file.service for method in service.method):
        query: Any = method.options.Extensions[options_pb2.query]  # type: ignore[index, unused-ignore]
        if query.HasField("batch_get"):
            query.batch_get.max_keys = BATCH_KEYS_MAX
    return files


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
        self.protoset = directory / "contract.binpb"
        self.protoset.write_bytes(_contract().SerializeToString())
        self._catalogue = bind(load_descriptors(self.protoset))
        self.changelog = Changelog(self._catalogue.tables["ratings"])
        self._broker = Broker(directory / "kafka", log_file=directory / "kafka.log", compiler=())

    def __enter__(self) -> "Stack":
        self._broker.start()
        self.bootstrap = self._broker.bootstrap
        self._producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0, "log_level": 0})
        return self

    def __exit__(self, *_: object) -> None:
        self._broker.stop()

    def create_source(self) -> None:
        """Create the topic `ratings`."""
        create_topic(self.bootstrap, "ratings", 2)

    def event(self, movie: int, rating: float) -> bytes:
        """Return a rating in Avro, in the Confluent wire format."""
        out = io.BytesIO(b"\x00\x00\x00\x00\x01")
        out.seek(5)
        fastavro.schemaless_writer(out, _EVENT_SCHEMA, {"movie_id": movie, "rating": rating})
        return out.getvalue()

    def produce(self, movie: int, rating: float) -> None:
        """Send one rating, without waiting for its acknowledgement."""
        self._producer.produce("ratings", self.event(movie, rating), key=str(movie))
        self._producer.poll(0)

    def batch_bytes(self, keys: list[int]) -> bytes:
        """Return a BatchGetRatingsRequest for `keys`, as bytes."""
        request = self.message("BatchGetRatingsRequest")
        for key in keys:
            request.keys.add(movie_id=key)
        return bytes(request.SerializeToString())

    def page_bytes(self, first_movie: int, rows: int) -> bytes:
        """Return a ListRatingsRequest for the page that begins with `first_movie`, as bytes."""
        request = self.message("ListRatingsRequest")
        request.movie_id_from = first_movie
        request.page_size = rows
        return bytes(request.SerializeToString())

    def count_rows(self, path: str, messages: list[bytes]) -> int:
        """Return the rows in the answers of a method: in their field 1."""
        method = self._catalogue.pool.FindMethodByName(path.strip("/").replace("/", "."))
        response = message_factory.GetMessageClass(method.output_type)
        field = method.output_type.fields_by_number[1].name
        rows = [row for message in messages for row in getattr(response.FromString(message), field)]
        # A batch has results for keys without a row, too.
        return sum(1 for row in rows if "missing" not in row.DESCRIPTOR.fields_by_name or row.HasField("found"))

    def message(self, name: str) -> Any:
        """Return an empty message of the contract."""
        found = self._catalogue.pool.FindMessageTypeByName(f"examples.ratings.v1.{name}")
        return message_factory.GetMessageClass(found)()

    def seed_changelog(self, rows: int) -> None:
        """Write a changelog of `rows` rows and its manifest, as a job would have."""
        self.changelog.seed(self.bootstrap, rows)

    @contextmanager
    def _child(self, log_path: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        with log_path.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tablegate.gateway.cli", *arguments], stdout=log, stderr=subprocess.STDOUT
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
            *("--checkpoints", str(self.directory / "checkpoints"), "--mode", mode, "--partitions", str(PARTITIONS)),
        ):
            yield

    @contextmanager
    def gateway(
        self, *, authority: Authority | None = None, contracts: Sequence[Path] = (), name: str = "gateway"
    ) -> Iterator[GatewayProcess]:
        """Run a gateway with an empty store; the block begins when it serves. With TLS where `authority` is.

        `contracts`: what it serves, if not the ratings alone.
        """
        address = f"127.0.0.1:{free_port()}"
        name = f"{name}-tls" if authority else name
        log_path = self.directory / f"{name}.log"
        pair = authority.issue(name) if authority else None
        tls = ("--tls-cert", str(pair.certificate), "--tls-key", str(pair.key)) if pair else ()
        with self._child(
            log_path,
            *("serve", "--bootstrap", self.bootstrap, "--workers", str(WORKERS)),
            *(word for path in contracts or [self.protoset] for word in ("--contract", str(path))),
            *("--data", str(self.directory / name), "--listen", address, "--reflection", *tls),
        ) as process:
            end = time.monotonic() + READY_TIMEOUT_S
            while not self._serves(address, authority):
                said = log_path.read_text()
                if process.poll() is not None or "a process died" in said or time.monotonic() > end:
                    raise RuntimeError(f"the gateway did not start: {said[-2000:]}")
                time.sleep(0.05)
            yield GatewayProcess(process, address, log_path)

    def _serves(self, address: str, authority: Authority | None) -> bool:
        trusted = grpc.ssl_channel_credentials(authority.certificate.read_bytes()) if authority else None
        with grpc.secure_channel(address, trusted) if trusted else grpc.insecure_channel(address) as channel:
            try:
                answer = status_pb2.GetStatusResponse.FromString(channel.unary_unary(STATUS_PATH)(b"", timeout=2))
            except grpc.RpcError:
                return False
        return bool(answer.tables) and all(table.serving for table in answer.tables)
