"""What Prometheus is told: by a server in this process, with the numbers of another worker beside its own."""

import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tablegate.gateway.http.rpc.calls import Calls
from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.server.child import ProcessFile
from tablegate.gateway.server.metrics import Metrics, process_metrics, store_metrics
from tablegate.gateway.stores.notifier import Notifier
from tablegate.gateway.telemetry.measures import Measures
from tablegate.v1.cluster_pb2 import REPLICA_PHASE_LIVE, REPLICA_PHASE_RESTORING
from tablegate.v1.status_pb2 import (
    GenerationState,
    GetStatusResponse,
    PartitionState,
    PartitionStatus,
    TableState,
    TableStatus,
)
from tests.kit.gateway_processes.gateway import soon
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, catalogue_of, rating, ratings_table

SERVICE = "/examples.ratings.v1.RatingsService"
PARENT = 17


def _status() -> GetStatusResponse:
    behind = PartitionStatus(partition=0, phase=REPLICA_PHASE_RESTORING, next_offset=3, end_offset=10)
    live = PartitionStatus(partition=1, phase=REPLICA_PHASE_LIVE, next_offset=5, end_offset=5)
    live.as_of_time.FromMilliseconds(1_700_000_000_250)
    table = TableStatus(
        table="ratings", partitions=[behind, live], poison_records=2, stale_records=9, fault="a mistake"
    )
    table.conflicting_records, table.pending_repairs, table.repaired_records = 1, 3, 4
    table.poison.add(reason="key is null", count=2)
    status = GetStatusResponse(tables=[table], kafka_reachable=True)
    status.gateways_poison.add(reason="no gateway", count=1)
    return status


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    store, catalogue = MemoryStore(), catalogue_of()
    ratings_table(store).put([rating(362)])
    store.set_status(_status().SerializeToString())
    methods = query_methods(catalogue, store, SIGNER, Notifier())

    def web(_methods: object, calls: Calls) -> list[Metrics]:
        return [
            Metrics(
                calls,
                store,
                file_of(tmp_path, "worker-0"),
                lambda: {"connections": 3, "kept_bytes": 5, "kept_bytes_max": 9},
            )
        ]

    with ServerThread(lambda: HttpServer(methods, "127.0.0.1:0", web=web)) as server:
        yield server.port


def _scraped(port: int) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        text: str = answer.read().decode()
    list(text_string_to_metric_families(text))  # it raises where the text is none
    return text.splitlines()


def _request(method: str, **fields: Any) -> bytes:
    data: bytes = catalogue_of().queries[f"{SERVICE}/{method}"].request_class(**fields).SerializeToString()
    return data


def file_of(directory: Path, name: str, parent: int = PARENT) -> ProcessFile:
    return ProcessFile(directory, name=name, parent=parent)


def _calls(method: str, code: str, count: int) -> str:
    return f'tablegate_call_duration_seconds_count{{code="{code}",method="{SERVICE}/{method}"}} {count}.0'


def test_calls_are_counted_by_method_and_status(port: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        get = channel.unary_unary(f"{SERVICE}/GetRating")
        for _ in range(3):
            get(_request("GetRating", movie_id=362), timeout=30)
        for _ in range(2):
            with pytest.raises(grpc.RpcError):
                get(_request("GetRating", movie_id=1), timeout=30)
        list(channel.unary_stream(f"{SERVICE}/ScanRatings")(_request("ScanRatings"), timeout=30))
        lines = _scraped(port)
        assert _calls("GetRating", "OK", 3) in lines
        assert _calls("GetRating", "NOT_FOUND", 2) in lines
        assert _calls("ScanRatings", "OK", 1) in lines
        assert "tablegate_streams 0.0" in lines

        stream = channel.unary_stream(f"{SERVICE}/SubscribeRatings")(_request("SubscribeRatings"))
        next(stream)
        assert "tablegate_streams 1.0" in _scraped(port)
        stream.cancel()
        soon(lambda: _calls("SubscribeRatings", "CANCELLED", 1) in _scraped(port), "the cancel is counted")


def _worker_of_before(directory: Path, name: str, parent: int = PARENT) -> None:
    """Leave the file of a worker that ended, with 41 calls of a tenth of a second."""
    calls = Calls()
    for _ in range(41):
        calls.measures.calls[f"{SERVICE}/GetRating", "OK"].add(0.1)
    calls.measures.refused_calls[("streams",)] = 2
    Metrics(
        calls,
        MemoryStore(),
        file_of(directory, name, parent),
        lambda: {"connections": 4, "kept_bytes": 6, "kept_bytes_max": 8},
    ).publish()


def test_one_worker_answers_for_all_of_its_gateway(port: int, tmp_path: Path) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        channel.unary_unary(f"{SERVICE}/GetRating")(_request("GetRating", movie_id=362), timeout=30)
    _worker_of_before(tmp_path, "worker-1")
    _worker_of_before(tmp_path, "worker-2", PARENT + 1)  # of an earlier run
    file_of(tmp_path, "replicator").write({})
    (tmp_path / "worker-3.json").write_text("")  # as a lost power leaves it

    lines = _scraped(port)

    assert _calls("GetRating", "OK", 42) in lines
    assert "tablegate_connections 7.0" in lines
    assert 'tablegate_process_kept_bytes{process="worker-1"} 6.0' in lines
    assert 'tablegate_process_kept_bytes_max{process="worker-1"} 8.0' in lines
    assert 'tablegate_refused_calls_total{limit="streams"} 2.0' in lines
    processes = [line for line in lines if line.startswith("tablegate_process_cpu_seconds_total{")]
    assert [re.findall(r'"([^"]+)"', line) for line in processes] == [["replicator"], ["worker-0"], ["worker-1"]]


def test_a_worker_that_is_started_again_goes_on_counting(tmp_path: Path) -> None:
    _worker_of_before(tmp_path, "worker-0")
    calls = Calls()
    Metrics(calls, MemoryStore(), file_of(tmp_path, "worker-0"), dict)
    durations = calls.measures.calls[f"{SERVICE}/GetRating", "OK"]
    durations.add(0.1)
    assert sum(durations.counts) == 42
    assert durations.sum == pytest.approx(4.2)
    assert calls.measures.refused_calls == {("streams",): 2}


def test_durations_are_in_buckets() -> None:
    measures = Measures()
    for seconds in (0.0, 0.0001, 0.00011, 3.0, 99.0):
        measures.calls[f"{SERVICE}/GetRating", "OK"].add(seconds)
    process = {"process": "worker-0", **measures.numbers()}
    [family] = [each for each in process_metrics([process]) if each.name == "tablegate_call_duration_seconds"]
    buckets = {sample.labels["le"]: sample.value for sample in family.samples if sample.name.endswith("_bucket")}
    assert [buckets[bound] for bound in ("0.0001", "0.00025", "2.5", "5.0", "10.0", "+Inf")] == [2, 3, 3, 4, 4, 5]


def test_open_metrics_are_given_to_who_asks(port: int) -> None:
    accept = {"accept": "application/openmetrics-text; version=1.0.0"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=accept)
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        assert answer.read().endswith(b"# EOF\n")


def test_partitions_and_tables(port: int) -> None:
    lines = [line for line in _scraped(port) if not line.startswith("#")]
    first, behind = (
        next(number for number, line in enumerate(lines) if line.startswith(f"tablegate_{name}"))
        for name in ("beat", "store_size")
    )
    lines = lines[first:behind]
    assert lines == [
        "tablegate_beat_time_seconds 0.0",
        "tablegate_kafka_reachable 1.0",
        'tablegate_table_serving{table="ratings"} 0.0',
        'tablegate_skipped_records{table="ratings"} 2.0',
        'tablegate_stale_records{table="ratings"} 9.0',
        'tablegate_conflicting_records{table="ratings"} 1.0',
        'tablegate_pending_repairs{table="ratings"} 3.0',
        'tablegate_repaired_records{table="ratings"} 4.0',
        'tablegate_poison_records{reason="key is null",table="ratings"} 2.0',
        'tablegate_gateways_poison_records{reason="no gateway"} 1.0',
        'tablegate_table_fault{table="ratings"} 1.0',
        'tablegate_partition_lag_records{partition="0",table="ratings"} 7.0',
        'tablegate_partition_lag_records{partition="1",table="ratings"} 0.0',
        'tablegate_partition_as_of_time_seconds{partition="1",table="ratings"} 1.70000000025e+09',
        'tablegate_partition_phase{partition="0",phase="restoring",table="ratings"} 1.0',
        'tablegate_partition_phase{partition="0",phase="live",table="ratings"} 0.0',
        'tablegate_partition_phase{partition="0",phase="catching_up",table="ratings"} 0.0',
        'tablegate_partition_phase{partition="1",phase="restoring",table="ratings"} 0.0',
        'tablegate_partition_phase{partition="1",phase="live",table="ratings"} 1.0',
        'tablegate_partition_phase{partition="1",phase="catching_up",table="ratings"} 0.0',
    ]


def test_other_methods_are_refused(port: int) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", data=b"", timeout=30)
    with refused.value:
        assert refused.value.code == 405


def test_states_are_named_where_the_replicator_does() -> None:
    table = TableStatus(table="ratings", state=TableState.TABLE_STATE_SERVING)
    table.generations.add(generation=1, state=GenerationState.GENERATION_STATE_SERVING)
    table.generations.add(generation=2, state=GenerationState.GENERATION_STATE_READY)
    table.partitions.add(partition=0, state=PartitionState.PARTITION_STATE_CATCHING_UP)
    table.partitions.add(partition=1)  # of a gateway of an earlier version
    families = store_metrics(GetStatusResponse(tables=[table]))
    samples = [sample for family in families if family.name.endswith("_state") for sample in family.samples]
    assert [(sample.name, sample.labels) for sample in samples] == [
        ("tablegate_table_state", {"table": "ratings", "state": "serving"}),
        ("tablegate_generation_state", {"table": "ratings", "generation": "1", "state": "serving"}),
        ("tablegate_generation_state", {"table": "ratings", "generation": "2", "state": "ready"}),
        ("tablegate_partition_state", {"table": "ratings", "partition": "0", "state": "catching_up"}),
    ]


@pytest.mark.tools
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_metrics_follow_the_rules_of_promtool(port: int, tmp_path: Path) -> None:
    measures = Measures()
    for histograms in measures.histograms:
        histograms[histograms.labels].add(1)
    for counts in measures.counts:
        counts[counts.labels] += 1
    file_of(tmp_path, "worker-1").write(measures.numbers())
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        channel.unary_unary(f"{SERVICE}/GetRating")(_request("GetRating", movie_id=362), timeout=30)
    text = "\n".join(_scraped(port)) + "\n"
    for name in (*(each.name for each in measures.histograms), *(each.name for each in measures.counts)):
        assert f"\ntablegate_{name}" in text
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_what_the_store_has_is_shown(port: int) -> None:
    lines = _scraped(port)
    assert 'tablegate_store_entries{kind="rows"} 1.0' in lines
    assert 'tablegate_store_entries{kind="history"} 1.0' in lines
    histories = [line for line in lines if line.startswith("tablegate_partition_history_records{")]
    assert sorted(histories) == [
        'tablegate_partition_history_records{partition="0",table="ratings"} 0.0',
        'tablegate_partition_history_records{partition="1",table="ratings"} 1.0',
    ]
    [oldest] = [line for line in lines if line.startswith("tablegate_partition_history_start_time_seconds{")]
    assert oldest.startswith('tablegate_partition_history_start_time_seconds{partition="1",table="ratings"} 1.')


def test_no_label_is_made_of_what_a_client_sends(port: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for path in ('/evil"}.Service/Method', f"{SERVICE}/Evil", "/evil/x"):
            with pytest.raises(grpc.RpcError):
                channel.unary_unary(path)(b"evil", timeout=30, metadata=(("x-evil", "evil"), ("user-agent", "evil")))
        with pytest.raises(grpc.RpcError):
            channel.unary_unary(f"{SERVICE}/GetRating")(b"evil", timeout=30)
    text = "\n".join(_scraped(port))
    assert "evil" not in text.lower()
    assert _calls("GetRating", "INVALID_ARGUMENT", 1) in text
