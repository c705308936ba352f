"""GET /metrics: what Prometheus asks of a gateway. Any worker answers for all of them.

Lag and age are in the store, the same for every worker. Calls are each worker's own: it keeps them in a file, where the
one that is asked finds those of the others. They have a label for the worker, for each counts from its own start.

Decision: docs/decisions/0038-one-worker-answers-metrics.md
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from google.rpc import code_pb2

from tablegate.gateway.http.exchange import TEXT, Exchange, ResponseHeaders
from tablegate.gateway.http.rpc.calls import Calls
from tablegate.gateway.stores.base import StoreReader, StoreUnavailable
from tablegate.v1.cluster_pb2 import ReplicaPhase
from tablegate.v1.status_pb2 import GenerationState, GetStatusResponse, PartitionState, TableState, TableStatus

PATH = b"/metrics"
PHASES = {number: name.removeprefix("REPLICA_PHASE_").lower() for name, number in ReplicaPhase.items() if number}

_HEAD = ResponseHeaders(
    200, ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"), (b"cache-control", b"no-store"))
)
_METHOD_NOT_ALLOWED = ResponseHeaders(405, (TEXT, (b"allow", b"GET, HEAD")))
Sample = tuple[Mapping[str, object], float]
"""Labels, whose values have nothing that the text format would escape, and a number."""


class Metrics:
    """Serves /metrics; keeps this worker's numbers in `directory`, which those of one `parent` process share."""

    def __init__(self, calls: Calls, store: StoreReader, directory: Path, *, name: str, parent: int) -> None:
        self._calls = calls
        self._store = store
        self._file = directory / f"{name}.json"
        self._name = name
        self._parent = parent
        self._published = ""

    def serve(self, exchange: Exchange) -> bool:
        """Serve an exchange; return whether its path was that of the metrics."""
        if exchange.target.partition(b"?")[0] != PATH:
            return False
        if exchange.method in (b"GET", b"HEAD"):
            self.publish()
            exchange.respond(_HEAD, "".join(self._lines()).encode())
        else:
            exchange.respond(_METHOD_NOT_ALLOWED, b"metrics are asked for by GET\n")
        return True

    def publish(self) -> None:
        """Keep the numbers where the other workers find them, if they have changed."""
        calls = [(path, code_pb2.OK, count) for path, count in self._calls.answered.items()]
        calls += [(path, code, count) for (path, code), count in self._calls.failed.items()]
        numbers = {"parent": self._parent, "worker": self._name, "streams": self._calls.streams, "calls": calls}
        text = json.dumps(numbers)
        if text == self._published:
            return
        with suppress(OSError):  # a full disk: the other workers show what it had of an earlier moment
            self._file.parent.mkdir(exist_ok=True)
            draft = self._file.with_suffix(".new")
            draft.write_text(text)
            draft.replace(self._file)
            self._published = text

    def _workers(self) -> list[dict[str, Any]]:
        found = []
        for file in sorted(self._file.parent.glob("*.json")):
            try:
                numbers = json.loads(file.read_text())
            except (OSError, ValueError):  # a disk was full, or lost its power
                continue
            if numbers["parent"] == self._parent:  # not of an earlier run, which may have had more of them
                found.append(numbers)
        return found

    def _lines(self) -> Iterator[str]:
        yield from worker_lines(self._workers())
        try:
            with self._store.snapshot() as snapshot:
                yield from store_lines(GetStatusResponse.FromString(snapshot.status()))
        except StoreUnavailable:
            return  # what is not known is left out


def worker_lines(workers: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the families of what workers have kept of their calls: `worker`, `streams`, `calls` (path, code, count)."""
    workers = list(workers)
    calls = (
        ({"worker": numbers["worker"], "method": path, "code": code_pb2.Code.Name(code)}, count)
        for numbers in workers
        for path, code, count in numbers["calls"]
    )
    yield from _family("calls_total", "counter", "Calls that have ended, by method and status.", calls)
    streams = (({"worker": numbers["worker"]}, numbers["streams"]) for numbers in workers)
    yield from _family("streams", "gauge", "Streams that are open.", streams)


def store_lines(status: GetStatusResponse) -> Iterator[str]:
    """Yield the families of what the replicator has stored."""
    tables = [({"table": table.table}, table) for table in status.tables]
    stored = [({**of, "partition": each.partition}, each) for of, table in tables for each in table.partitions]
    beat: list[Sample] = [({}, status.beat_time.ToMilliseconds() / 1000)]
    yield from _family("beat_time_seconds", "gauge", "When the replicator last said that it lives.", beat)
    yield from _family("kafka_reachable", "gauge", "1 while the brokers answer.", [({}, status.kafka_reachable)])
    serving = ((of, table.serving) for of, table in tables)
    yield from _family("table_serving", "gauge", "1 while all partitions are served.", serving)
    states = (({**of, "state": _state(TableState.Name(table.state))}, 1) for of, table in tables if table.state)
    yield from _family("table_state", "gauge", "1 with the state of the table.", states)
    generations = (
        ({**of, "generation": each.generation, "state": _state(GenerationState.Name(each.state))}, 1)
        for of, table in tables
        for each in table.generations
    )
    yield from _family("generation_state", "gauge", "1 with the state of each generation.", generations)
    skipped = ((of, table.poison_records) for of, table in tables)
    yield from _family("skipped_records", "gauge", "Records that could not be applied.", skipped)
    yield from _repair_lines(tables)
    poison = (({**of, "reason": each.reason}, each.count) for of, table in tables for each in table.poison)
    yield from _family("poison_records", "gauge", "Records and manifests that were set aside, by reason.", poison)
    others = (({"reason": each.reason}, each.count) for each in status.gateways_poison)
    yield from _family("gateways_poison_records", "gauge", "Gateways' records that were set aside, by reason.", others)
    faults = ((of, bool(table.fault)) for of, table in tables)
    yield from _family("table_fault", "gauge", "1 while nothing of the table is applied, by a mistake of ours.", faults)
    lags = ((of, max(each.end_offset - each.next_offset, 0)) for of, each in stored)
    yield from _family("partition_lag_records", "gauge", "Records that are not applied yet.", lags)
    ages = ((of, each.as_of_time.ToMilliseconds() / 1000) for of, each in stored if each.HasField("as_of_time"))
    about = "Nothing that was committed before is missing in the store."
    yield from _family("partition_as_of_time_seconds", "gauge", about, ages)
    phases = (({**of, "phase": name}, each.phase == phase) for of, each in stored for phase, name in PHASES.items())
    yield from _family("partition_phase", "gauge", "1 for the phase that the replica is in.", phases)
    partitions = (({**of, "state": _state(PartitionState.Name(each.state))}, 1) for of, each in stored if each.state)
    yield from _family("partition_state", "gauge", "1 with the state of the partition.", partitions)


def _repair_lines(tables: Sequence[tuple[Mapping[str, object], TableStatus]]) -> Iterator[str]:
    stale = ((of, table.stale_records) for of, table in tables)
    about = "Records that were older than the row that was there, and were dropped."
    yield from _family("stale_records", "gauge", about, stale)
    conflicting = ((of, table.conflicting_records) for of, table in tables)
    about = "Records with the version of the row that was there, and other content."
    yield from _family("conflicting_records", "gauge", about, conflicting)
    pending = ((of, table.pending_repairs) for of, table in tables)
    about = "Keys whose newest record is not their last in the changelog."
    yield from _family("pending_repairs", "gauge", about, pending)
    repaired = ((of, table.repaired_records) for of, table in tables)
    about = "Newest records that this gateway has appended again."
    yield from _family("repaired_records", "gauge", about, repaired)


def _state(name: str) -> str:
    """Return the name of a state without that of its enum."""
    return name.partition("_STATE_")[2].lower()


def _family(name: str, kind: str, about: str, samples: Iterable[Sample]) -> Iterator[str]:
    name = f"tablegate_{name}"
    yield f"# HELP {name} {about}\n# TYPE {name} {kind}\n"
    for labels, value in samples:
        text = ",".join(f'{label}="{named}"' for label, named in labels.items())
        yield f"{name}{{{text}}} {float(value)}\n"
