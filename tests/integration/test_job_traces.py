"""Traces of a job as a process, with a real Kafka and a real Spark, to a receiver."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tablegate.examples.demo.kafka import HOST, Broker, free_port
from tests.kit.job.process import JobProcess, wait_until
from tests.kit.job.ratings_job import PARTITIONS, some_ratings, write_job
from tests.kit.programs.kafka import NewRecord, new_topic, produce
from tests.kit.programs.otlp import OtlpReceiver, ReceivedSpan, receiving

pytestmark = pytest.mark.jvm

RECORDS = 300
# What every batch of micro-batches has.
PHASES = {"latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets"}


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with receiving() as started:
        yield started


class Job:
    """A job of the ratings table, its topic, and how it is started."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        self.table = f"traced_{uuid.uuid4().hex[:8]}"
        self.topic = new_topic(broker.bootstrap, PARTITIONS, prefix="ratings")
        self._broker = broker
        self._directory = directory
        self._declaration = write_job(directory, self.table, self.topic)

    def produce(self, records: list[NewRecord]) -> None:
        produce(self._broker.bootstrap, self.topic, records)

    def start(self, mode: str, environment: dict[str, str]) -> JobProcess:
        arguments = ["--table", self._declaration, "--bootstrap", self._broker.bootstrap, "--mode", mode, "--traces"]
        arguments += ["--checkpoints", str(self._directory / "checkpoints")]
        return JobProcess(self._directory / "logs", *arguments, environment=environment)


@pytest.fixture
def job(broker: Broker, tmp_path: Path) -> Job:
    return Job(broker, tmp_path)


def batches(receiver: OtlpReceiver) -> list[ReceivedSpan]:
    return [span for span in receiver.spans if span.name == "job.batch"]


def records(receiver: OtlpReceiver) -> int:
    return sum(span.attributes["tablegate.records"] for span in batches(receiver))


def test_each_batch_of_a_job_is_a_trace_of_its_phases(job: Job, receiver: OtlpReceiver) -> None:
    """Then the receiver hangs, and the job works and ends as if it did not."""
    job.produce(some_ratings(RECORDS, seed=1))
    variables = receiver.environment(OTEL_EXPORTER_OTLP_TIMEOUT="3600")
    with job.start("microbatch", {**variables}) as running:
        wait_until("the spans of all records", lambda: records(receiver) == RECORDS, running)
        job.produce([NewRecord(b"a", b"not Avro")])
        wait_until("the span of a malformed one", lambda: records(receiver) == RECORDS + 1, running)
        spans = batches(receiver)
        assert len({span.trace_id for span in spans}) == len(spans)
        assert len({span.attributes["tablegate.batch"] for span in spans}) == len(spans)
        for span in spans:
            of = {name: span.attributes[f"tablegate.{name}"] for name in ("table", "query", "generation", "mode")}
            assert of == {
                "table": job.table,
                "query": f"{job.table}-table",
                "generation": 1,
                "mode": "microbatch",
            }
            parts = [part for part in receiver.spans if part.parent_id == span.span_id]
            assert {part.name.removeprefix("spark.") for part in parts} == PHASES
            assert all(span.begin_ns <= part.begin_ns <= part.end_ns <= span.end_ns for part in parts)
        assert sum(span.attributes["tablegate.changes"] for span in spans) > 0
        assert [span.attributes["tablegate.malformed"] for span in spans if span.attributes["tablegate.records"]][
            -1
        ] == 1
        assert {span.resource["service.name"] for span in spans} == {"tablegate-job"}

        receiver.goes_on.clear()
        asked = receiver.requests
        job.produce(some_ratings(RECORDS, seed=2))
        wait_until("a span is on its way", lambda: receiver.requests > asked, running)
        wait_until("dead letters meanwhile", lambda: bool(running.events("dead_letters")), running)
        assert running.stop() == 0
        assert batches(receiver) == spans, "the job has worked, and ended, and no span had arrived"
        assert running.errors().count("Traceback") == 0


@pytest.mark.long
def test_a_batch_of_realtime_mode_is_as_long_as_its_trigger(job: Job, receiver: OtlpReceiver) -> None:
    job.produce(some_ratings(RECORDS, seed=1))
    with job.start("realtime", {**receiver.environment()}) as running:
        running.wait_for("running")
        job.produce(some_ratings(RECORDS, seed=2))
        wait_until("the spans of all records", lambda: records(receiver) == 2 * RECORDS, running)
        long = [span for span in batches(receiver) if span.attributes["tablegate.mode"] == "realtime"]
        assert long
        assert all(span.end_ns - span.begin_ns >= 5e9 for span in long), "trigger_s"
        assert running.stop() == 0


@pytest.mark.long
def test_a_job_works_and_ends_without_a_receiver(job: Job, receiver: OtlpReceiver) -> None:
    away = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{HOST}:{free_port()}", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    job.produce(some_ratings(RECORDS, seed=1))
    with job.start("microbatch", away) as running:
        running.wait_for("traces")
        wait_until("a batch", lambda: any(batch["records"] for batch in running.events("batch")), running)
        assert running.stop() == 0
        assert running.events("stopped")
