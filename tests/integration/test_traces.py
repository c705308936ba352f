"""Traces of gateways as processes, with a real Kafka: from a client through two of them to a receiver."""

import secrets
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import grpc
import pytest

from tablegate.examples.demo.kafka import HOST, free_port
from tests.kit.gateway_processes.changelog import RatingsChangelog, many
from tests.kit.gateway_processes.cluster import Member
from tests.kit.gateway_processes.gateway import SERVICE, GatewayProcess, soon
from tests.kit.programs.otlp import CLIENT, SERVER, OtlpReceiver, ReceivedSpan, receiving
from tests.kit.table.filled import RATINGS, catalogue_of

pytestmark = pytest.mark.jvm

PARTITIONS, ROWS = 6, 60
GET = f"{SERVICE}/GetRating"
CALLER_ID = "00f067aa0ba902b7"

Start = Callable[..., Member]


@pytest.fixture
def changelog(broker: object) -> RatingsChangelog:
    changelog = RatingsChangelog(broker.bootstrap, partition_count=PARTITIONS)  # type: ignore[attr-defined]
    changelog.put(dict(many(ROWS)))
    changelog.mark(source_next_offset=ROWS)
    changelog.publish()
    return changelog


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with receiving() as started:
        yield started


@pytest.fixture
def start(tmp_path: Path, changelog: RatingsChangelog, receiver: OtlpReceiver) -> Iterator[Start]:
    """Return a function that starts a gateway of a cluster, with traces."""
    keys, topic = tmp_path / "token.keys", f"gateways-{secrets.token_hex(6)}"
    keys.write_text(f"{secrets.token_hex(32)}\n")
    gateways: list[Member] = []

    def start_one(name: str, **variables: str) -> Member:
        address = f"{HOST}:{free_port()}"
        options = ["--advertise", address, "--gateway-id", name, "--replicas", "1", "--traces"]
        gateway = Member(
            tmp_path / name,
            changelog.bootstrap,
            listen=address,
            contract=RATINGS,
            tables_topic=changelog.tables_topic,
            options=[*options, "--token-key", str(keys), "--gateways-topic", topic],
        )
        gateway.environment = receiver.environment(**variables)
        gateways.append(gateway)
        gateway.start()
        return gateway

    yield start_one
    for gateway in gateways:
        gateway.stop()


def ask(gateway: GatewayProcess, movie: int, *, latest: bool = False) -> str:
    """Ask a gateway for a movie, in a trace; return its id."""
    assert gateway.channel is not None
    trace_id = secrets.token_hex(16)
    request = catalogue_of().queries[GET].request_class(movie_id=movie)
    if latest:
        request.read_options.latest = True
    metadata = (("traceparent", f"00-{trace_id}-{CALLER_ID}-01"),)
    gateway.channel.unary_unary(GET)(request.SerializeToString(), timeout=20, metadata=metadata)
    return trace_id


def trace(receiver: OtlpReceiver, trace_id: str) -> Sequence[ReceivedSpan]:
    """Return the spans of a trace, whose first is there: it ended last, and those of other gateways may be to come."""

    def has_come() -> list[ReceivedSpan]:
        return [span for span in receiver.spans if span.trace_id == trace_id]

    soon(lambda: any(span.parent_id == CALLER_ID for span in has_come()), "the trace has come")
    return has_come()


def is_shared(gateway: Member) -> bool:
    """Return whether each partition is on one of two gateways, as one of them knows it."""
    held = [set(partitions) for partitions in gateway.placement("ratings").values()]
    return (
        len(held) == 2 and all(held) and sorted(number for each in held for number in each) == list(range(PARTITIONS))
    )


def test_a_forwarded_call_is_one_trace_of_two_gateways(start: Start, receiver: OtlpReceiver) -> None:
    first, second = start("gw-1"), start("gw-2")
    for gateway in (first, second):
        soon(lambda gateway=gateway: is_shared(gateway), "each has a part of the table", 60)

    def both_serve(trace_id: str) -> bool:
        servers = [span for span in trace(receiver, trace_id) if span.kind == SERVER]
        return {span.resource["tablegate.gateway"] for span in servers} == {"gw-1", "gw-2"}

    traces = [ask(first, movie) for movie in range(10)]
    soon(lambda: any(map(both_serve, traces)), "a call has gone through both")
    spans = trace(receiver, next(filter(both_serve, traces)))
    [begun] = [span for span in spans if span.parent_id == CALLER_ID]
    [hop] = [span for span in spans if span.kind == CLIENT]
    [served] = [span for span in spans if span.parent_id == hop.span_id]
    assert hop.parent_id == begun.span_id
    assert (begun.name, hop.name, served.name) == (GET[1:],) * 3
    assert (begun.resource["tablegate.gateway"], served.resource["tablegate.gateway"]) == ("gw-1", "gw-2")
    assert hop.attributes["server.port"] == int(second.listens_at.rpartition(":")[2])
    assert begun.begin_ns <= hop.begin_ns <= served.begin_ns <= served.end_ns <= hop.end_ns <= begun.end_ns
    [read] = [span for span in spans if span.parent_id == served.span_id]
    assert (read.name, read.attributes["tablegate.table"]) == ("store.read", "ratings")


def test_spans_and_exemplars_come_from_all_workers(
    tmp_path: Path, changelog: RatingsChangelog, receiver: OtlpReceiver
) -> None:
    gateway = GatewayProcess(
        tmp_path / "gateway", changelog.bootstrap, tables_topic=changelog.tables_topic, options=["--traces"]
    )
    gateway.environment = receiver.environment()
    with gateway:
        gateway.wait_until_serving()
        address = gateway.address()

        def by_another_connection() -> bool:
            gateway.channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
            with gateway.channel:
                trace(receiver, ask(gateway, 7))
            return {span.resource["tablegate.process"] for span in receiver.spans} == {"worker-0", "worker-1"}

        soon(by_another_connection, "both workers have sent spans")
        with grpc.insecure_channel(address) as gateway.channel:
            waited = trace(receiver, ask(gateway, 7, latest=True))
        [wait] = [span for span in waited if span.name == "freshness.wait"]
        shown = f'# {{span_id="{wait.span_id}",trace_id="{wait.trace_id}"}}'
        soon(lambda: shown in metrics(address, accept="application/openmetrics-text"), "any worker shows the exemplar")
        assert "trace_id" not in metrics(address, accept="text/plain")


def metrics(address: str | None, *, accept: str) -> str:
    request = urllib.request.Request(f"http://{address}/metrics", headers={"accept": accept})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(answer.read(), "utf-8")


def test_a_gateway_serves_and_stops_while_its_receiver_hangs(start: Start, receiver: OtlpReceiver) -> None:
    receiver.goes_on.clear()
    gateway = start("gw-1", OTEL_EXPORTER_OTLP_TIMEOUT="3600", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="1")
    gateway.wait_until_serving()
    for movie in range(ROWS):
        ask(gateway, movie)
    soon(lambda: receiver.requests == 1, "the first span is on its way")
    assert gateway.stop() == 0
    assert not receiver.spans, "the gateway has answered, and ended, and no span had arrived"


def test_a_gateway_serves_and_stops_without_a_receiver(start: Start, receiver: OtlpReceiver) -> None:
    gateway = start("gw-1", OTEL_EXPORTER_OTLP_ENDPOINT=f"http://{HOST}:{free_port()}")
    gateway.wait_until_serving()
    for movie in range(ROWS):
        ask(gateway, movie)
    soon(lambda: any("spans batch" in line["message"] for line in gateway.log()), "the log says so")
    levels = {line["level"] for line in gateway.log() if "spans batch" in line["message"]}
    assert levels == {"warning"}
    assert gateway.stop() == 0
    assert not receiver.requests
