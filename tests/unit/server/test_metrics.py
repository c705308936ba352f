"""What Prometheus is told: by a door in this process, with the numbers of another worker beside its own."""

import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tablegate.gateway.http.rpc.calls import Calls
from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.server.metrics import Metrics, store_lines
from tablegate.gateway.stores.notifier import Notifier
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
LINE = re.compile(r'[a-z_]+\{(?:[a-z_]+="[^"\\]*",?)*\} [0-9.e+]+|# (?:HELP|TYPE) [a-z_]+ .+')


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
        return [Metrics(calls, store, tmp_path, name="worker-0", parent=PARENT)]

    with ServerThread(lambda: HttpServer(methods, "127.0.0.1:0", web=web)) as door:
        yield door.port


def _scraped(port: int) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        lines: list[str] = answer.read().decode().splitlines()
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    return lines


def _request(method: str, **fields: Any) -> bytes:
    data: bytes = catalogue_of().queries[f"{SERVICE}/{method}"].request_class(**fields).SerializeToString()
    return data


def _calls(worker: str, method: str, code: str, count: int) -> str:
    labels = f'worker="{worker}",method="{SERVICE}/{method}",code="{code}"'
    return f"tablegate_calls_total{{{labels}}} {count}.0"


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
        assert _calls("worker-0", "GetRating", "OK", 3) in lines
        assert _calls("worker-0", "GetRating", "NOT_FOUND", 2) in lines
        assert _calls("worker-0", "ScanRatings", "OK", 1) in lines
        assert 'tablegate_streams{worker="worker-0"} 0.0' in lines

        stream = channel.unary_stream(f"{SERVICE}/SubscribeRatings")(_request("SubscribeRatings"))
        next(stream)
        assert 'tablegate_streams{worker="worker-0"} 1.0' in _scraped(port)
        stream.cancel()
        soon(lambda: _calls("worker-0", "SubscribeRatings", "CANCELLED", 1) in _scraped(port), "the cancel is counted")


def test_one_worker_answers_for_all_of_its_gateway(port: int, tmp_path: Path) -> None:
    for name, parent in (("worker-1", PARENT), ("worker-2", PARENT + 1)):
        calls = Calls()
        calls.answered[f"{SERVICE}/GetRating"] = 41
        Metrics(calls, MemoryStore(), tmp_path, name=name, parent=parent).publish()
    (tmp_path / "worker-3.json").write_text("")  # as a lost power leaves it

    lines = _scraped(port)

    assert _calls("worker-1", "GetRating", "OK", 41) in lines
    assert not any("worker-2" in line for line in lines), "it was of an earlier run"
    assert 'tablegate_streams{worker="worker-0"} 0.0' in lines


def test_partitions_and_tables(port: int) -> None:
    lines = [line for line in _scraped(port) if not line.startswith("#") and "worker" not in line]
    of = 'table="ratings",partition='
    assert lines == [
        "tablegate_beat_time_seconds{} 0.0",
        "tablegate_kafka_reachable{} 1.0",
        'tablegate_table_serving{table="ratings"} 0.0',
        'tablegate_skipped_records{table="ratings"} 2.0',
        'tablegate_stale_records{table="ratings"} 9.0',
        'tablegate_conflicting_records{table="ratings"} 1.0',
        'tablegate_pending_repairs{table="ratings"} 3.0',
        'tablegate_repaired_records{table="ratings"} 4.0',
        'tablegate_poison_records{table="ratings",reason="key is null"} 2.0',
        'tablegate_gateways_poison_records{reason="no gateway"} 1.0',
        'tablegate_table_fault{table="ratings"} 1.0',
        f'tablegate_partition_lag_records{{{of}"0"}} 7.0',
        f'tablegate_partition_lag_records{{{of}"1"}} 0.0',
        f'tablegate_partition_as_of_time_seconds{{{of}"1"}} 1700000000.25',
        f'tablegate_partition_phase{{{of}"0",phase="restoring"}} 1.0',
        f'tablegate_partition_phase{{{of}"0",phase="live"}} 0.0',
        f'tablegate_partition_phase{{{of}"0",phase="catching_up"}} 0.0',
        f'tablegate_partition_phase{{{of}"1",phase="restoring"}} 0.0',
        f'tablegate_partition_phase{{{of}"1",phase="live"}} 1.0',
        f'tablegate_partition_phase{{{of}"1",phase="catching_up"}} 0.0',
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
    lines = "".join(store_lines(GetStatusResponse(tables=[table]))).splitlines()
    assert [line for line in lines if "_state{" in line] == [
        'tablegate_table_state{table="ratings",state="serving"} 1.0',
        'tablegate_generation_state{table="ratings",generation="1",state="serving"} 1.0',
        'tablegate_generation_state{table="ratings",generation="2",state="ready"} 1.0',
        'tablegate_partition_state{table="ratings",partition="0",state="catching_up"} 1.0',
    ]
    assert [line for line in lines if not LINE.fullmatch(line)] == []
