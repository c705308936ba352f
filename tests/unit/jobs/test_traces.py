"""The spans of batches, sent by the real exporter to a receiver in this process: what they owe the reports of Spark."""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client import REGISTRY

from tablegate.examples.demo.kafka import free_port
from tablegate.jobs.errors import JobError
from tablegate.jobs.traces import sent
from tests.kit.gateway_processes.gateway import soon
from tests.kit.programs.otlp import INTERNAL, OtlpReceiver, log_as_it_was, receiving, set_environment

TABLE = {"tablegate.table": "orders", "tablegate.generation": 3, "tablegate.mode": "microbatch"}
MS = 1_000_000


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    with receiving() as started:
        set_environment(monkeypatch, started.environment())
        yield started


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    with log_as_it_was():
        yield


def report(begin_s: float, *, batch: int = 7, **took_ms: int) -> Mapping[str, Any]:
    """Return what matters of a report of Spark."""
    began = datetime.fromtimestamp(begin_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {
        "name": "orders-table",
        "timestamp": began,
        "batchId": batch,
        "numInputRows": 40,
        "durationMs": took_ms,
    }


WORKED = {
    "triggerExecution": 100,
    "latestOffset": 5,
    "walCommit": 10,
    "getBatch": 1,
    "queryPlanning": 20,
    "addBatch": 50,
    "commitOffsets": 10,
}


def test_a_batch_is_a_span_with_its_phases_one_behind_the_other(receiver: OtlpReceiver) -> None:
    begin_s = round(time.time() - 5, 3)
    with sent(wanted=True) as traces:
        assert traces is not None
        traces.add(report(begin_s, **WORKED), {**TABLE, "tablegate.changes": 12}, since_s=begin_s - 60)
    soon(lambda: len(receiver.spans) == 7, "all spans have come")
    [batch] = [span for span in receiver.spans if not span.parent_id]
    assert (batch.name, batch.kind, batch.is_error) == ("job.batch", INTERNAL, False)
    assert batch.attributes == {
        **TABLE,
        "tablegate.query": "orders-table",
        "tablegate.batch": 7,
        "tablegate.records": 40,
        "tablegate.changes": 12,
    }
    assert batch.resource["service.name"] == "tablegate-job"
    assert (batch.begin_ns, batch.end_ns) == (round(begin_s * 1000) * MS, round(begin_s * 1000) * MS + 100 * MS)
    phases = {span.name: span for span in receiver.spans if span.parent_id}
    assert {span.parent_id for span in phases.values()} == {batch.span_id}
    places = {
        name: ((one.begin_ns - batch.begin_ns) // MS, (one.end_ns - batch.begin_ns) // MS)
        for name, one in phases.items()
    }
    assert places == {
        "spark.latestOffset": (0, 5),
        "spark.walCommit": (5, 15),
        "spark.getBatch": (15, 16),
        "spark.queryPlanning": (16, 36),
        "spark.addBatch": (36, 86),
        "spark.commitOffsets": (86, 96),
    }


def test_a_report_that_nothing_is_new_is_no_batch(receiver: OtlpReceiver) -> None:
    now_s = time.time()
    with sent(wanted=True) as traces:
        assert traces is not None
        traces.add(report(now_s, triggerExecution=3, latestOffset=2), TABLE, since_s=now_s)
        traces.add(report(now_s, batch=8, triggerExecution=3, addBatch=2), TABLE, since_s=now_s)
    soon(lambda: len(receiver.spans) == 2, "the other batch has come")
    assert {span.attributes.get("tablegate.batch") for span in receiver.spans if not span.parent_id} == {8}


def test_a_batch_of_a_job_before_ends_when_it_is_seen(receiver: OtlpReceiver) -> None:
    """Spark runs again a batch that was planned before, and reports the time of that day."""
    now_s = time.time()
    with sent(wanted=True) as traces:
        assert traces is not None
        traces.add(report(now_s - 86_400, **WORKED), TABLE, since_s=now_s)
    soon(lambda: len(receiver.spans) == 7, "all spans have come")
    [batch] = [span for span in receiver.spans if not span.parent_id]
    assert now_s * 1e9 <= batch.end_ns <= time.time_ns()
    assert batch.end_ns - batch.begin_ns == 100 * MS


def test_phases_do_not_end_after_their_batch(receiver: OtlpReceiver) -> None:
    """Each is rounded by itself."""
    now_s = time.time()
    with sent(wanted=True) as traces:
        assert traces is not None
        traces.add(report(now_s, triggerExecution=10, latestOffset=4, addBatch=4, commitOffsets=4), TABLE, since_s=0)
    soon(lambda: len(receiver.spans) == 4, "all spans have come")
    [batch] = [span for span in receiver.spans if not span.parent_id]
    assert max(span.end_ns for span in receiver.spans) == batch.end_ns


def test_a_batch_that_is_not_sampled_is_not_sent(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, receiver.environment(OTEL_TRACES_SAMPLER="always_off"))
    before = counted("ended")
    with sent(wanted=True) as traces:
        assert traces is not None
        traces.add(report(time.time(), **WORKED), TABLE, since_s=0)
    assert not receiver.requests
    assert counted("ended") == before


def counted(result: str) -> float:
    return REGISTRY.get_sample_value("tablegate_job_spans_total", {"result": result}) or 0.0


def test_spans_are_counted_by_what_became_of_them(receiver: OtlpReceiver) -> None:
    before = {result: counted(result) for result in ("ended", "exported", "failed")}
    with sent(wanted=True) as traces:
        assert traces is not None
        traces.add(report(time.time(), **WORKED), TABLE, since_s=0)
    soon(lambda: counted("exported") == before["exported"] + 7, "they are exported")
    receiver.status = 400
    with sent(wanted=True) as traces:
        assert traces is not None
        traces.add(report(time.time(), **WORKED), TABLE, since_s=0)
    soon(lambda: counted("failed") == before["failed"] + 7, "their export has failed")
    assert counted("ended") == before["ended"] + 14


def test_no_receiver_is_a_line_of_the_jobs_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    away = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    set_environment(monkeypatch, {**away, "OTEL_EXPORTER_OTLP_TIMEOUT": "1"})
    written = ""

    def is_logged() -> bool:
        nonlocal written
        written += capsys.readouterr().out
        return '"event": "traces"' in written

    with sent(wanted=True) as traces:
        assert traces is not None
        traces.add(report(time.time(), **WORKED), TABLE, since_s=0)
        soon(is_logged, "the log says so")
    [line, *_] = [json.loads(each) for each in written.splitlines()]
    assert line["event"] == "traces"
    assert "spans batch" in line["reason"] or "Connection" in line["reason"]


def test_nothing_is_made_where_none_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with sent(wanted=False) as traces:
        assert traces is None


def test_a_wrong_environment_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    with pytest.raises(JobError, match='OTEL_EXPORTER_OTLP_PROTOCOL is "grpc", but spans go out by'), sent(wanted=True):
        pass


def test_traces_without_their_packages_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tablegate.gateway.telemetry.span_sender", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with (
        pytest.raises(JobError, match=r'--traces needs a library: pip install "tablegate-jobs\[otel\]"'),
        sent(wanted=True),
    ):
        pass
