"""Traces of calls, sent by the real exporter to a receiver in this process: what is in them, and what calls owe it."""

import json
import logging
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from tablegate.examples.demo.kafka import free_port
from tablegate.gateway.access.gate import Gate
from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.server.child import ProcessFile
from tablegate.gateway.server.config import ServeConfig, ServeError
from tablegate.gateway.server.metrics import process_metrics
from tablegate.gateway.server.preflight import check_traces
from tablegate.gateway.telemetry.measures import Measures
from tablegate.gateway.telemetry.otel import FLUSH_S, PARTS_MAX, Traces
from tests.kit.gateway_processes.gateway import soon
from tests.kit.gateways_in_process.cluster import ALONE, GrpcCluster
from tests.kit.programs.otlp import (
    CLIENT,
    INTERNAL,
    SERVER,
    OtlpReceiver,
    ReceivedSpan,
    log_as_it_was,
    receiving,
    set_environment,
)
from tests.kit.table.filled import RATINGS, rating

TRACE_ID, CALLER_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = (("traceparent", f"00-{TRACE_ID}-{CALLER_ID}-01"), ("tracestate", "shop=17"))
NOT_SAMPLED = (("traceparent", f"00-{TRACE_ID}-{CALLER_ID}-00"),)
SERVICE = "examples.ratings.v1.RatingsService"
MOVIES = range(100, 120)


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    with receiving() as started:
        set_environment(monkeypatch, started.environment())
        yield started


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    with log_as_it_was():
        yield


class FileCollector(Collector):
    """What processes have kept, as metrics."""

    def __init__(self, file: ProcessFile) -> None:
        self._file = file

    def collect(self) -> Iterator[Metric]:
        return process_metrics(self._file.all())


def traced_cluster(
    *, parts_max: int = PARTS_MAX, flush_s: float = FLUSH_S, gate: Callable[[Catalogue], Gate] | None = None
) -> GrpcCluster:
    def make_tracer(gateway_id: str, measures: Measures) -> Traces:
        return Traces(gateway_id, "worker-0", measures, parts_max=parts_max, flush_s=flush_s)

    return GrpcCluster({"a": [0, 1, 2], "b": [3, 4, 5]}, make_tracer=make_tracer, gate=gate)


@pytest.fixture
def cluster(receiver: OtlpReceiver) -> Iterator[GrpcCluster]:
    with traced_cluster() as started:
        started.put(rating(movie) for movie in MOVIES)
        yield started


def movie_of(cluster: GrpcCluster, gateway: str) -> int:
    """Return a movie whose partition a gateway has."""
    table = cluster.whole.table
    return next(movie for movie in MOVIES if table.partition_of(rating(movie)) in cluster[gateway].held)


def received(receiver: OtlpReceiver, count: int) -> list[ReceivedSpan]:
    """Return the spans that came, which are so many."""
    soon(lambda: len(receiver.spans) >= count, f"{count} spans have come")
    assert len(receiver.spans) == count
    return receiver.spans


def test_a_get_is_a_span_in_its_clients_trace(cluster: GrpcCluster, receiver: OtlpReceiver) -> None:
    began_ns = time.time_ns()
    movie = movie_of(cluster, "a")
    cluster.ask("a", "GetRating", movie_id=movie, metadata=SAMPLED)
    call, read = received(receiver, 2)
    assert (call.name, call.kind) == (f"{SERVICE}/GetRating", SERVER)
    assert (call.trace_id, call.parent_id, call.state) == (TRACE_ID, CALLER_ID, "shop=17")
    assert call.attributes == {
        "rpc.system.name": "grpc",
        "rpc.method": f"{SERVICE}/GetRating",
        "rpc.response.status_code": "OK",
        "tablegate.partition": str(cluster.whole.table.partition_of(rating(movie))),
        "tablegate.role": "owner",
        "tablegate.gateway": "a",
    }
    assert (read.name, read.kind, read.parent_id) == ("store.read", INTERNAL, call.span_id)
    assert read.attributes == {"tablegate.table": "ratings"}
    assert began_ns <= call.begin_ns <= read.begin_ns <= read.end_ns <= call.end_ns <= time.time_ns()
    assert call.resource["service.name"] == "tablegate-gateway"
    assert (call.resource["tablegate.gateway"], call.resource["tablegate.process"]) == ("a", "worker-0")


def test_a_forward_is_a_hop_between_two_server_spans(cluster: GrpcCluster, receiver: OtlpReceiver) -> None:
    cluster.ask("a", "GetRating", movie_id=movie_of(cluster, "b"), metadata=SAMPLED)
    spans = received(receiver, 5)
    assert {span.trace_id for span in spans} == {TRACE_ID}
    [first] = [span for span in spans if span.parent_id == CALLER_ID]
    [hop] = [span for span in spans if span.kind == CLIENT]
    [second] = [span for span in spans if span.parent_id == hop.span_id]
    assert hop.parent_id == first.span_id
    assert (first.resource["tablegate.gateway"], second.resource["tablegate.gateway"]) == ("a", "b")
    assert hop.attributes == {
        "rpc.system.name": "grpc",
        "rpc.method": f"{SERVICE}/GetRating",
        "rpc.response.status_code": "OK",
        "server.address": "127.0.0.1",
        "server.port": cluster["b"].port,
        "tablegate.gateway": "b",
    }
    reads = {span.parent_id: span for span in spans if span.name == "store.read"}
    assert reads[first.span_id].attributes["error.type"] == "PartitionUnavailable"
    assert "error.type" not in reads[second.span_id].attributes
    assert not any(span.is_error for span in spans)


def test_a_scan_of_two_gateways_is_one_trace(cluster: GrpcCluster, receiver: OtlpReceiver) -> None:
    rows = [row for message in cluster.stream("a", "ScanRatings", metadata=SAMPLED) for row in message.ratings]
    assert len(rows) == len(MOVIES)
    soon(lambda: len([span for span in receiver.spans if span.kind == SERVER]) == 2, "both gateways' spans have come")
    spans = receiver.spans
    [hop] = [span for span in spans if span.kind == CLIENT]
    first, second = [span for span in spans if span.kind == SERVER]
    assert (hop.parent_id, second.parent_id) == (first.span_id, hop.span_id)
    assert (hop.attributes["rpc.response.status_code"], hop.is_error) == ("OK", False)
    ids = {span.span_id for span in spans}
    assert {span.parent_id for span in spans if span is not first} <= ids
    assert {span.resource["tablegate.gateway"] for span in spans if span.name == "store.read"} == {"a", "b"}


def test_a_stream_that_its_client_ends_is_no_error(cluster: GrpcCluster, receiver: OtlpReceiver) -> None:
    rows: set[int] = set()
    for message in cluster.stream("a", "SubscribeRatings", metadata=SAMPLED):
        rows |= {change.upsert.movie_id for change in message.changes}
        if len(rows) == len(MOVIES):  # those of the other gateway among them
            break
    cluster.cancel_streams()
    soon(lambda: len(calls_of(receiver)) == 3, "its spans have come")
    assert sorted(span.kind for span in calls_of(receiver)) == [SERVER, SERVER, CLIENT]
    assert {span.attributes["rpc.response.status_code"] for span in calls_of(receiver)} == {"CANCELLED"}
    assert not any(span.is_error for span in calls_of(receiver))


def calls_of(receiver: OtlpReceiver) -> list[ReceivedSpan]:
    """Return the spans that are calls, and no parts of one."""
    return [span for span in receiver.spans if span.kind != INTERNAL]


def test_a_wait_for_freshness_is_a_part_of_its_call(cluster: GrpcCluster, receiver: OtlpReceiver) -> None:
    movie, gateway = movie_of(cluster, "a"), cluster["a"]
    request = cluster.request("GetRating", movie_id=movie)
    request.read_options.latest = True
    cluster.ask("a", "GetRating", request, metadata=SAMPLED)
    [call] = [span for span in received(receiver, 6) if span.kind == SERVER]
    [wait] = [span for span in receiver.spans if span.name == "freshness.wait"]
    assert wait.parent_id == call.span_id
    assert {span.parent_id for span in receiver.spans if span.name == "store.read"} == {call.span_id, wait.span_id}
    assert gateway.ends.asked == 1
    [waits] = gateway.measures.freshness_waits.values()
    assert [shown.span_id for shown in waits.exemplars.values()] == [wait.span_id]


def test_what_a_client_sends_stands_in_no_span(cluster: GrpcCluster, receiver: OtlpReceiver) -> None:
    metadata = (*SAMPLED, ("authorization", "Bearer secret-1"), ("user-agent", "secret-2"), ("baggage", "id=secret-3"))
    cluster.ask("a", "GetRating", movie_id=movie_of(cluster, "b"), metadata=(*metadata, ("x-request-id", "secret-4")))
    texts = [span.message for span in received(receiver, 5)]
    assert not [text for text in texts if "secret" in text]


def test_calls_of_other_protocols_are_spans(cluster: GrpcCluster, receiver: OtlpReceiver) -> None:
    url = f"http://127.0.0.1:{cluster['a'].port}"
    headers, movie = dict(SAMPLED), movie_of(cluster, "a")
    connect = {**headers, "content-type": "application/json"}
    for request in (
        urllib.request.Request(f"{url}/{SERVICE}/GetRating", json.dumps({"movieId": movie}).encode(), connect),
        urllib.request.Request(f"{url}/v1/ratings/{movie}", headers=headers),
    ):
        urllib.request.urlopen(request, timeout=30).close()
    servers = [span for span in received(receiver, 4) if span.kind == SERVER]
    assert [span.attributes["rpc.system.name"] for span in servers] == ["connectrpc", "rest"]
    assert {(span.name, span.parent_id) for span in servers} == {(f"{SERVICE}/GetRating", CALLER_ID)}


def test_a_call_that_is_not_let_in_is_a_span(receiver: OtlpReceiver, tmp_path: Path) -> None:
    access = tmp_path / "access.toml"
    access.write_text('[api_keys]\nfile = "keys.toml"\n[[rule]]\ntables = ["*"]\n')
    (tmp_path / "keys.toml").write_text(f'[[key]]\nname = "shop"\nsha256 = "{64 * "0"}"\n')
    with traced_cluster(gate=lambda catalogue: Gate(access, catalogue)) as cluster, pytest.raises(grpc.RpcError):
        cluster.ask("a", "GetRating", movie_id=1, metadata=SAMPLED)
    [span] = received(receiver, 1)
    assert (span.attributes["rpc.response.status_code"], span.parent_id) == ("UNAUTHENTICATED", CALLER_ID)


def test_lines_of_the_log_name_the_trace_of_a_call(cluster: GrpcCluster, receiver: OtlpReceiver) -> None:
    logged: list[str] = []
    cluster["a"].served_calls.on_ended = lambda call, *_: logged.append(call.trace_id)
    for metadata in (SAMPLED, NOT_SAMPLED, None):
        cluster.ask("a", "GetRating", movie_id=movie_of(cluster, "a"), metadata=metadata)
    own = received(receiver, 4)[-1].trace_id
    assert logged == [TRACE_ID, TRACE_ID, own]


def test_errors_are_a_servers_fault_or_its_clients(cluster: GrpcCluster, receiver: OtlpReceiver) -> None:
    with pytest.raises(grpc.RpcError):
        cluster.ask("a", "GetRating", movie_id=1, metadata=SAMPLED)
    soon(lambda: [span for span in receiver.spans if span.kind == SERVER], "its span has come")
    [missing] = [span for span in receiver.spans if span.parent_id == CALLER_ID]
    assert (missing.attributes["rpc.response.status_code"], missing.is_error) == ("NOT_FOUND", False)
    cluster["b"].stop()
    with pytest.raises(grpc.RpcError):
        cluster.ask("a", "GetRating", movie_id=movie_of(cluster, "b"), metadata=SAMPLED)
    soon(lambda: len([span for span in receiver.spans if span.parent_id == CALLER_ID]) == 2, "that span has come, too")
    away = [span for span in receiver.spans if span.parent_id == CALLER_ID][1]
    assert (away.attributes["rpc.response.status_code"], away.is_error) == ("UNAVAILABLE", True)
    hops = [span for span in receiver.spans if span.kind == CLIENT and span.parent_id == away.span_id]
    assert {hop.attributes["error.type"] for hop in hops} == {"UNAVAILABLE"}


def test_a_client_that_does_not_sample_is_not_traced(cluster: GrpcCluster, receiver: OtlpReceiver) -> None:
    cluster.ask("a", "GetRating", movie_id=movie_of(cluster, "b"), metadata=NOT_SAMPLED)
    cluster.ask("a", "GetRating", movie_id=movie_of(cluster, "a"))
    received(receiver, 2)  # those of the second, which is in no trace: it begins one
    assert TRACE_ID not in {span.trace_id for span in receiver.spans}
    assert all(not histogram.exemplars for labels, histogram in cluster["b"].measures.calls.items())


def test_a_sampler_of_the_environment_decides(monkeypatch: pytest.MonkeyPatch, receiver: OtlpReceiver) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop-gateways")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    with traced_cluster() as cluster:
        cluster.put(rating(movie) for movie in MOVIES)
        cluster.ask("a", "GetRating", movie_id=movie_of(cluster, "a"))
        cluster.ask("a", "GetRating", movie_id=movie_of(cluster, "a"), metadata=SAMPLED)
        call, _ = received(receiver, 2)
    assert call.trace_id == TRACE_ID
    assert call.resource["service.name"] == "shop-gateways"
    assert call.resource["deployment.environment.name"] == "test"


def test_a_call_has_only_so_many_parts(receiver: OtlpReceiver) -> None:
    with traced_cluster(parts_max=1) as cluster:
        cluster.put(rating(movie) for movie in MOVIES)
        movies = [movie for movie in MOVIES if cluster.whole.table.partition_of(rating(movie)) in cluster["b"].held]
        cluster.ask("a", "GetRating", movie_id=movies[0], metadata=SAMPLED)
        first, read, second, _ = received(receiver, 4)
    assert read.parent_id == first.span_id
    assert second.parent_id == first.span_id, "the hop is not seen, and what it asked for is of its call"


def test_exemplars_stand_in_openmetrics(cluster: GrpcCluster, receiver: OtlpReceiver, tmp_path: Path) -> None:
    cluster.ask("a", "GetRating", movie_id=movie_of(cluster, "b"), metadata=SAMPLED)
    [call] = [span for span in received(receiver, 5) if span.parent_id == CALLER_ID]
    [hop] = [span for span in receiver.spans if span.kind == CLIENT]
    # As the worker that is asked finds them: in the files of all.
    ProcessFile(tmp_path, name="worker-0", parent=1).write(cluster["a"].measures.numbers())
    ProcessFile(tmp_path, name="worker-1", parent=1).write(Measures().numbers())
    registry = CollectorRegistry()
    registry.register(FileCollector(ProcessFile(tmp_path, name="worker-1", parent=1)))
    shown = {
        sample.name: (sample.exemplar.labels, sample.exemplar.value <= float(sample.labels["le"]))
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
        if sample.exemplar is not None
    }
    assert shown == {
        "tablegate_call_duration_seconds_bucket": ({"trace_id": TRACE_ID, "span_id": call.span_id}, True),
        "tablegate_forward_duration_seconds_bucket": ({"trace_id": TRACE_ID, "span_id": hop.span_id}, True),
    }


def test_the_newest_exemplar_counts() -> None:
    measures, other = Measures(now_s=lambda: 1.0), Measures(now_s=lambda: 2.0)
    for each, trace_id in ((measures, "old"), (other, "new")):
        histogram = each.freshness_waits[("ratings",)]
        histogram.now_s = each.deliveries[("ratings",)].now_s
        histogram.add(0.2)
        histogram.show(0.2, trace_id, "id")
    for first, second in ((measures, other), (other, measures)):
        both = Measures()
        both.add(first.numbers())
        both.add(second.numbers())
        [shown] = both.freshness_waits[("ratings",)].exemplars.values()
        assert shown.trace_id == "new"


# A receiver that is no use.


@pytest.fixture
def short_queue(monkeypatch: pytest.MonkeyPatch, receiver: OtlpReceiver) -> OtlpReceiver:
    """A receiver, and room for few spans that wait for it."""
    for name, value in (("MAX_QUEUE_SIZE", "20"), ("MAX_EXPORT_BATCH_SIZE", "10")):
        monkeypatch.setenv(f"OTEL_BSP_{name}", value)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    return receiver


def ask_often(cluster: GrpcCluster) -> None:
    cluster.put(rating(movie) for movie in MOVIES)
    for _ in range(10):
        for movie in MOVIES:
            assert cluster.ask(ALONE, "GetRating", movie_id=movie, metadata=SAMPLED).rating.movie_id == movie


def test_no_call_waits_for_a_receiver_that_hangs(monkeypatch: pytest.MonkeyPatch, short_queue: OtlpReceiver) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
    short_queue.goes_on.clear()
    with traced_cluster(flush_s=0.01) as cluster:
        ask_often(cluster)
        spans = cluster.whole.measures.spans
        soon(lambda: short_queue.requests == 1, "the first batch is on its way")
        soon(lambda: spans == {("ended",): 400}, "all were answered, and no span has arrived")
    assert not short_queue.goes_on.is_set(), "gateways have stopped, and none waited"
    short_queue.goes_on.set()
    soon(lambda: spans[("exported",)] >= 10, "what waited comes")
    assert spans[("exported",)] <= 40, "there was room for no more: two batches and a queue"


@pytest.mark.tools
@pytest.mark.parametrize("status", [500, 503, 0])
def test_calls_go_on_where_spans_are_refused(
    status: int, monkeypatch: pytest.MonkeyPatch, short_queue: OtlpReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    short_queue.status = status
    if not status:  # nobody is there
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    with traced_cluster() as cluster:
        spans = cluster.whole.measures.spans
        ask_often(cluster)
        soon(lambda: spans[("failed",)] >= 20, "batches have failed")
        soon(lambda: spans[("ended",)] == 400, "all have ended")
        assert ("exported",) not in spans
    lines = [record for record in caplog.records if "Failed to export" in record.getMessage()]
    assert [line.levelname for line in lines] == ["WARNING"]


# What a gateway is started with.


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"OTEL_TRACES_EXPORTER": "console"}, 'OTEL_TRACES_EXPORTER is "console", but spans go out by otlp alone'),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, 'OTEL_EXPORTER_OTLP_PROTOCOL is "grpc", but .* http/protobuf alone'),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "collector:4318"}, "TRACES_ENDPOINT is no URL; give one, such as"),
        ({"OTEL_EXPORTER_OTLP_CERTIFICATE": "/no/ca.pem"}, 'CERTIFICATE names "/no/ca.pem", which cannot be read'),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "-1"}, "cannot be set up by the variables OTEL_…: max_queue_size must be"),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "a=b,key: Bearer hush=="}, "HEADERS cannot be read; give name=value, with"),
        ({"OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER": "no"}, "cannot be set up .*: Requested component 'no'"),
    ],
)
def test_a_wrong_environment_is_a_sentence(
    variables: dict[str, str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    set_environment(monkeypatch, variables)
    with pytest.raises(ServeError, match=sentence) as refused:
        check_traces(config_of(tmp_path, traces=True))
    assert "hush" not in str(refused.value) + caplog.text
    check_traces(config_of(tmp_path, traces=False))


def test_a_long_answer_of_a_receiver_makes_no_long_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    check_traces(config_of(tmp_path, traces=True))
    logging.getLogger("opentelemetry.exporter").error("Failed to export, reason: %s", "<html>" * 100_000)
    [line] = [each.getMessage() for each in caplog.records if "reason" in each.getMessage()]
    assert line.startswith("Failed to export, reason: <html>")
    assert len(line) <= 500


@pytest.mark.parametrize("headers", ["", "a=b", "a = b , c=Bearer%20d==", "api-key=x y,"])
def test_headers_that_opentelemetry_reads_are_accepted(
    headers: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    set_environment(monkeypatch, {"OTEL_EXPORTER_OTLP_HEADERS": headers})
    check_traces(config_of(tmp_path, traces=True))
    assert not caplog.records


def test_a_number_that_is_none_is_a_line_without_a_stack(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    set_environment(monkeypatch, {"OTEL_BSP_SCHEDULE_DELAY": "5s"})
    check_traces(config_of(tmp_path, traces=True))
    [line] = [each.getMessage() for each in caplog.records if "SCHEDULE_DELAY" in each.getMessage()]
    assert "Defaulting to 5000" in line
    assert "'5s'" in line
    assert "Traceback" not in caplog.text


def test_traces_without_their_packages_name_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "tablegate.gateway.telemetry.span_sender")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ServeError, match=r'--traces needs a library: pip install "tablegate-gateway\[otel\]"'):
        check_traces(config_of(tmp_path, traces=True))


def config_of(data: Path, *, traces: bool) -> ServeConfig:
    return ServeConfig(contracts=(RATINGS,), bootstrap="127.0.0.1:1", data=data, traces=traces)
