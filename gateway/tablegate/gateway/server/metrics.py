"""GET /metrics: what Prometheus asks of a gateway. Any worker answers for all of them.

Lag and age are in the store, the same for every worker. What a process counts it keeps in a file, where the worker that
is asked finds those of the others and adds them up. A worker that is started again goes on from its file: so no counter
goes back while the gateway runs, which Prometheus would take for a restart of all.

Prometheus's client library writes the text; what is counted for each call is counted by `http.rpc.calls`, which costs
less, and by `telemetry.measures` in general.

Decision: docs/decisions/0038-one-worker-answers-metrics.md
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib import metadata
from itertools import accumulate
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from typing_extensions import override

from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.http.exchange import TEXT, Exchange, ResponseHeaders
from tablegate.gateway.http.rpc.calls import Calls
from tablegate.gateway.server.child import Numbers, ProcessFile
from tablegate.gateway.stores.base import Snapshot, StoreReader, StoreUnavailable, StoreUsage
from tablegate.gateway.telemetry.measures import Histograms, Measures
from tablegate.v1.cluster_pb2 import ReplicaPhase
from tablegate.v1.status_pb2 import GenerationState, GetStatusResponse, PartitionState, TableState, TableStatus

PATH = b"/metrics"
PHASES = {number: name.removeprefix("REPLICA_PHASE_").lower() for name, number in ReplicaPhase.items() if number}

_METHOD_NOT_ALLOWED = ResponseHeaders(405, (TEXT, (b"allow", b"GET, HEAD")))
Sample = tuple[Sequence[str], float]
"""Values of the labels, and a number."""


class Metrics(Collector):
    """Serves /metrics, and keeps this worker's numbers in its file.

    `connections`: how many clients have here ("connections"), what they hold and may hold ("kept_bytes",
    "kept_bytes_max"), and what else is to stand in the file.
    """

    def __init__(self, calls: Calls, store: StoreReader, file: ProcessFile, connections: Callable[[], Numbers]) -> None:
        self._calls = calls
        self._store = store
        self._file = file
        self._connections = connections
        self._registry = CollectorRegistry()
        self._registry.register(self)
        calls.measures.add(file.before())

    def serve(self, exchange: Exchange) -> bool:
        """Serve an exchange; return whether its path was that of the metrics."""
        if exchange.target.partition(b"?")[0] != PATH:
            return False
        if exchange.method in (b"GET", b"HEAD"):
            self.publish()
            encode, content_type = choose_encoder(exchange.headers.get(b"accept", b"").decode("latin-1"))
            fields = ((b"content-type", content_type.encode()), (b"cache-control", b"no-store"))
            exchange.respond(ResponseHeaders(200, fields), encode(self._registry))
        else:
            exchange.respond(_METHOD_NOT_ALLOWED, b"metrics are asked for by GET\n")
        return True

    def publish(self) -> None:
        """Keep the numbers where the other workers find them."""
        self._file.write({**self._calls.measures.numbers(), "streams": self._calls.streams, **self._connections()})

    @override
    def collect(self) -> Iterator[Metric]:
        yield from process_metrics(self._file.all())
        try:
            with self._store.snapshot() as snapshot:
                status = GetStatusResponse.FromString(snapshot.status())
                yield from store_metrics(status)
                usage = snapshot.usage()
                if usage is not None:  # of Redis each partition would be a question to it
                    yield from usage_metrics(usage, list(history_reaches(snapshot, status)))
        except StoreUnavailable:
            return  # what is not known is left out


def process_metrics(processes: Sequence[Numbers]) -> Iterator[Metric]:
    """Yield what processes have kept: what they measured, of all together, and what each process uses."""
    yield _gauge("build_info", "1 with the version of the gateway.", ["version"], [([_version()], 1)])
    measures = Measures()
    for numbers in processes:
        measures.add(numbers)
    yield from map(_histogram, measures.histograms)
    for counts in measures.counts:
        yield _counter(counts.name, counts.about, counts.labels, counts.items())
    for name, about in (("streams", "Streams that are open."), ("connections", "Connections that clients have.")):
        yield _gauge(name, about, [], [([], sum(numbers.get(name, 0) for numbers in processes))])
    behind = [each["streams_behind"] for each in processes if "streams_behind" in each]
    about = "Subscribe streams that have not been sent all changes for a second or longer."
    yield _gauge("streams_behind", about, [], [([], sum(count for count, _ in behind))])
    about = "For how long the stream that is behind the longest has not been sent all changes; 0 while none is behind."
    yield _gauge("stream_behind_seconds", about, [], [([], max((longest_s for _, longest_s in behind), default=0.0))])
    about = "Bytes that the process holds for the clients of its connections."
    yield _gauge("process_kept_bytes", about, ["process"], _each(processes, "kept_bytes"))
    about = "The most that it may hold: clients are refused from three quarters on, and lose connections at the end."
    yield _gauge("process_kept_bytes_max", about, ["process"], _each(processes, "kept_bytes_max"))
    yield _counter("process_cpu_seconds", "CPU that the process has used.", ["process"], _each(processes, "cpu_s"))
    about = "When the newest snapshot file was written, in Unix time; of partitions that this gateway is to write."
    times = [
        ([table, str(partition)], time_ms / 1_000)
        for each in processes
        for table, partition, time_ms, _ in each.get("snapshot_files", ())
        if time_ms
    ]
    yield _gauge("snapshot_time_seconds", about, ["table", "partition"], times)
    about = "1 while snapshot files can be written, 0 since they could not; nothing where the gateway writes none."
    yield _gauge(
        "snapshots_writable",
        about,
        [],
        [([], int(not each["snapshots_problem"])) for each in processes if "snapshots_problem" in each],
    )
    for name, about, key in (
        ("resident_memory_bytes", "Memory of the process, shared pages too.", "memory_bytes"),
        ("open_fds", "Files and sockets that the process has open.", "open_files"),
        ("start_time_seconds", "When the process was started, in Unix time.", "start_s"),
    ):
        yield _gauge(f"process_{name}", about, ["process"], _each(processes, key))


@cache
def _version() -> str:
    return metadata.version("tablegate-gateway")  # it reads files


def _each(processes: Sequence[Numbers], key: str) -> list[Sample]:
    return [([numbers["process"]], numbers[key]) for numbers in processes if key in numbers]


def _histogram(histograms: Histograms) -> Metric:
    family = HistogramMetricFamily(f"tablegate_{histograms.name}", histograms.about, labels=histograms.labels)
    bounds = [*map(str, histograms.bounds), "+Inf"]
    for labels, histogram in histograms.items():
        buckets: list[Any] = list(zip(bounds, accumulate(histogram.counts), strict=True))
        for place, shown in histogram.exemplars.items():
            ids = {"trace_id": shown.trace_id, "span_id": shown.span_id}
            buckets[place] = (*buckets[place], Exemplar(ids, shown.value, shown.time_s))
        family.add_metric(labels, buckets, histogram.sum)
    return family


def store_metrics(status: GetStatusResponse) -> Iterator[Metric]:
    """Yield what the replicator has stored."""
    tables = [([table.table], table) for table in status.tables]
    stored = [([*of, str(each.partition)], each) for of, table in tables for each in table.partitions]
    of_table, of_partition = ["table"], ["table", "partition"]
    beat_s = status.beat_time.ToMilliseconds() / 1000
    yield _gauge("beat_time_seconds", "When the replicator last said that it lives.", [], [([], beat_s)])
    yield _gauge("kafka_reachable", "1 while the brokers answer.", [], [([], status.kafka_reachable)])
    serving = [(of, table.serving) for of, table in tables]
    yield _gauge("table_serving", "1 while all partitions are served.", of_table, serving)
    states = [([*of, _state(TableState.Name(table.state))], 1) for of, table in tables if table.state]
    yield _gauge("table_state", "1 with the state of the table.", [*of_table, "state"], states)
    counts = [(of, table.manifest.partition_count) for of, table in tables if table.HasField("manifest")]
    yield _gauge("table_partitions", "Partitions of the generation that is served.", of_table, counts)
    restoring = [(of, table) for of, table in tables if table.restore_rows_per_second]
    rates = [(of, table.restore_rows_per_second) for of, table in restoring]
    yield _gauge("restore_rows_per_second", "How fast the table is restored, while it is.", of_table, rates)
    left = [(of, table.restore_seconds_left) for of, table in restoring]
    yield _gauge("restore_left_seconds", "How long its restore will take.", of_table, left)
    generations = [
        ([*of, str(each.generation), _state(GenerationState.Name(each.state))], 1)
        for of, table in tables
        for each in table.generations
    ]
    about = "1 with the state of each generation."
    yield _gauge("generation_state", about, [*of_table, "generation", "state"], generations)
    yield from _record_metrics(tables)
    others = [([each.reason], each.count) for each in status.gateways_poison]
    about = "Gateways' records that were set aside, by reason."
    yield _gauge("gateways_poison_records", about, ["reason"], others)
    faults = [(of, bool(table.fault)) for of, table in tables]
    about = "1 while nothing of the table is applied, by a mistake of ours."
    yield _gauge("table_fault", about, of_table, faults)
    lags = [(of, max(each.end_offset - each.next_offset, 0)) for of, each in stored]
    yield _gauge("partition_lag_records", "Records that are not applied yet.", of_partition, lags)
    ages = [(of, each.as_of_time.ToMilliseconds() / 1000) for of, each in stored if each.HasField("as_of_time")]
    about = "Nothing that was committed before is missing in the store."
    yield _gauge("partition_as_of_time_seconds", about, of_partition, ages)
    phases = [([*of, name], each.phase == phase) for of, each in stored for phase, name in PHASES.items()]
    about = "1 for the phase that the replica is in."
    yield _gauge("partition_phase", about, [*of_partition, "phase"], phases)
    partitions = [([*of, _state(PartitionState.Name(each.state))], 1) for of, each in stored if each.state]
    yield _gauge("partition_state", "1 with the state of the partition.", [*of_partition, "state"], partitions)


class HistoryReach(NamedTuple):
    """How far back the history of a partition goes; `oldest_ms`: 0 where it is empty."""

    table: str
    partition: Partition
    records: int
    oldest_ms: int


def history_reaches(snapshot: Snapshot, status: GetStatusResponse) -> Iterator[HistoryReach]:
    """Yield how far back histories go. It reads two keys a partition."""
    for table in status.tables:
        state = snapshot.table(table.table)
        store_id = StoreId(0 if state is None else state.store_id)  # 0: there is none, and no position of it
        for each in table.partitions:
            partition = Partition(each.partition)
            position = snapshot.position(store_id, partition)
            if position is not None:
                oldest = snapshot.history(store_id, partition, start=position.history_start, limit=1)
                records = max(position.next_offset - position.history_start, 0)
                yield HistoryReach(table.table, partition, records, oldest[0].time_ms if oldest else 0)


def usage_metrics(usage: StoreUsage, reaches: Sequence[HistoryReach]) -> Iterator[Metric]:
    """Yield what a store on this machine has, and how far back its history goes."""
    about = "How long the file of the store is. It never shrinks: what is free in it is used again."
    yield _gauge("store_size_bytes", about, [], [([], usage.size_bytes)])
    yield _gauge("store_disk_free_bytes", "What is free on the disk of the store.", [], [([], usage.free_bytes)])
    about = "Entries of the store of all tables, by kind. Tombstones are among the rows, too, until they are dropped."
    yield _gauge("store_entries", about, ["kind"], [([kind], count) for kind, count in usage.entries.items()])
    of = [([each.table, str(each.partition)], each) for each in reaches]
    about = "Offsets of the changelog that the history has: who subscribes again after fewer gets no new snapshot."
    yield _gauge("partition_history_records", about, ["table", "partition"], [(at, each.records) for at, each in of])
    about = "When Kafka had the oldest change of the history, in Unix time; of partitions with a history."
    oldest = [(at, each.oldest_ms / 1_000) for at, each in of if each.oldest_ms]
    yield _gauge("partition_history_start_time_seconds", about, ["table", "partition"], oldest)


def _record_metrics(tables: Sequence[tuple[list[str], TableStatus]]) -> Iterator[Metric]:
    labels = ["table"]
    skipped = [(of, table.poison_records) for of, table in tables]
    yield _gauge("skipped_records", "Records that could not be applied.", labels, skipped)
    stale = [(of, table.stale_records) for of, table in tables]
    about = "Records that were older than the row that was there, and were dropped."
    yield _gauge("stale_records", about, labels, stale)
    conflicting = [(of, table.conflicting_records) for of, table in tables]
    about = "Records with the version of the row that was there, and other content."
    yield _gauge("conflicting_records", about, labels, conflicting)
    pending = [(of, table.pending_repairs) for of, table in tables]
    about = "Keys whose newest record is not their last in the changelog."
    yield _gauge("pending_repairs", about, labels, pending)
    repaired = [(of, table.repaired_records) for of, table in tables]
    about = "Newest records that this gateway has appended again."
    yield _gauge("repaired_records", about, labels, repaired)
    poison = [([*of, each.reason], each.count) for of, table in tables for each in table.poison]
    about = "Records and manifests that were set aside, by reason."
    yield _gauge("poison_records", about, [*labels, "reason"], poison)


def _state(name: str) -> str:
    """Return the name of a state without that of its enum."""
    return name.partition("_STATE_")[2].lower()


def _gauge(name: str, about: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    return _filled(GaugeMetricFamily(f"tablegate_{name}", about, labels=labels), samples)


def _counter(name: str, about: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    return _filled(CounterMetricFamily(f"tablegate_{name}", about, labels=labels), samples)


def _filled(family: Any, samples: Iterable[Sample]) -> Metric:
    for labels, value in samples:
        family.add_metric(labels, value)
    return family  # type: ignore[no-any-return]
