"""An audit of a table: it names each row of the changelog that is not what the job's state says, and no other."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tablegate.examples.demo.kafka import Broker
from tablegate.gateway.contract.types import RUN_HEADER, VERSION_HEADER, make_version, run_key
from tablegate.jobs.errors import JobError
from tablegate.jobs.kafka.job_group import Tenure
from tablegate.jobs.kafka.markers import Markers
from tablegate.jobs.kafka.topics import KafkaAdmin
from tablegate.jobs.planning.declarations import load_table
from tablegate.jobs.planning.options import Options
from tablegate.jobs.running.audit import EQUAL, SKIPPED, Audit, audit_job, audit_table
from tablegate.v1.changelog_pb2 import ProgressMarker
from tests.kit.job.counting_job import JobInProcess, orders, write_job, written
from tests.kit.job.process import wait_until
from tests.kit.programs.kafka import NewRecord, RawRecord, consume, new_topic, produce

pytestmark = pytest.mark.jvm

CUSTOMERS = ("ann", "bob", "cid", "dan", "eve")
# Their buffers have names that occur twice, and the second column is no aggregate but made of several.
COLUMNS = {"order_count": "count(*)", "amount": "sum(amount) / max(amount) + avg(amount)"}
CONTRACT = """syntax = "proto3";
package tests.audited;
import "tablegate/v1/options.proto";
import "tablegate/v1/query.proto";
import "google/protobuf/timestamp.proto";
message Placed {
  option (tablegate.v1.table) = { name: "placed" key: "customer" key: "id" };
  string customer = 1;
  string id = 2;
  double amount = 3;
}
message Joined {
  option (tablegate.v1.table) = { name: "joined" key: "customer" };
  string customer = 1;
  int64 order_count = 2;
  double amount = 3;
  optional string name = 4;
  repeated double amounts = 5;
  map<string, double> largest = 6;
  Newest newest = 7;
}
message Newest { optional double amount = 1; string name = 2; }
message Windowed {
  option (tablegate.v1.table) = {
    name: "windowed" key: "customer" key: "start"
    window: { size: {seconds: 1} start_column: "start" } retention: {seconds: 86400}
  };
  string customer = 1;
  google.protobuf.Timestamp start = 2;
  int64 order_count = 3;
}
service AuditedService {
  rpc ScanPlaced(ScanPlacedRequest) returns (stream ScanPlacedResponse) {
    option (tablegate.v1.query) = { scan: {} };
  }
  rpc ScanJoined(ScanJoinedRequest) returns (stream ScanJoinedResponse) {
    option (tablegate.v1.query) = { scan: {} };
  }
  rpc ScanWindowed(ScanWindowedRequest) returns (stream ScanWindowedResponse) {
    option (tablegate.v1.query) = { scan: {} };
  }
}
message ScanPlacedRequest { tablegate.v1.ScanOptions scan_options = 1; }
message ScanPlacedResponse { repeated Placed rows = 1; tablegate.v1.ScanProgress progress = 2; }
message ScanJoinedRequest { tablegate.v1.ScanOptions scan_options = 1; }
message ScanJoinedResponse { repeated Joined rows = 1; tablegate.v1.ScanProgress progress = 2; }
message ScanWindowedRequest { tablegate.v1.ScanOptions scan_options = 1; }
message ScanWindowedResponse { repeated Windowed rows = 1; tablegate.v1.ScanProgress progress = 2; }
"""
TABLES = """from tablegate.jobs import Join, Json, Latest, Mode, Source, Table, Text, Window

FIELDS = Json("customer STRING, amount DOUBLE")
PLACED = Table(
    name="placed",
    contract="audited.proto",
    sides={{"orders": Latest(Source("{orders}", FIELDS, key=Text("id")))}},
    key={{"customer": "customer", "id": "id"}},
    columns={{"amount": "orders.amount"}},
    mode=Mode.MICROBATCH,
)
JOINED = Table(
    name="joined",
    contract="audited.proto",
    sides={{
        "orders": Source("{orders}", FIELDS),
        "names": Latest(Source("{names}", Json("name STRING"), key=Text("customer")), join=Join.LEFT),
    }},
    key={{"customer": "customer"}},
    columns={{
        "order_count": "count(orders)",
        "amount": "sum(orders.amount)",
        "name": "names.name",
        "amounts": "sort_array(collect_list(orders.amount))",
        "largest": "map('amount', max(orders.amount))",
        "newest": "struct(names.name AS name, max(orders.amount) AS amount)",
    }},
    having="order_count > 1",
    mode=Mode.MICROBATCH,
)
WINDOWED = Table(
    name="windowed",
    contract="audited.proto",
    source=Source("{orders}", FIELDS),
    key={{"customer": "customer", "start": "window.start"}},
    columns={{"order_count": "count(*)"}},
    window=Window(size_s=1),
    mode=Mode.MICROBATCH,
)
TABLES = (PLACED, JOINED, WINDOWED)
"""


def audit(spark: SparkSession, job: str, options: Options) -> Audit:
    return audit_table(spark, load_table(job), bootstrap=options.bootstrap, checkpoints=options.checkpoints)


def found_counts(found: Audit) -> dict[str, int]:
    """Return the counts that are not zero."""
    return {verdict: count for verdict, count in found.counts.items() if count}


class Vandal:
    """Writes to the changelog of a table what its job would not."""

    def __init__(self, bootstrap: str, table: str) -> None:
        self._bootstrap = bootstrap
        self._topic = f"{table}-g1-changelog"

    def newest(self, customer: str) -> RawRecord:
        """Return the newest record of a customer."""
        return [one for one in consume(self._bootstrap, self._topic) if one.key == self._key(customer)][-1]

    def write(
        self,
        customer: str,
        sequence: int,
        value: bytes | None,
        *,
        partition: int | None = None,
        run: int | None = None,
        more: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Write a record of a customer; by default into the partition of its key. `more`: headers behind its own."""
        headers: list[tuple[str, bytes]] = [(VERSION_HEADER, make_version(1, sequence))]
        if run is not None:
            headers.append((RUN_HEADER, run.to_bytes(8, "big")))
        headers += more
        produce(self._bootstrap, self._topic, [NewRecord(self._key(customer), value, headers, partition)])

    def begin_run(self) -> int:
        """Begin a run, as a job does when it starts."""
        changelog = KafkaAdmin(self._bootstrap).find(self._topic)
        assert changelog is not None
        return Markers(self._bootstrap, changelog, 1).begin_run(lambda: Tenure("vandal", 0))

    def begin_late(self, run: int) -> None:
        """Begin a run in every partition, as a job does that was frozen when it had its number."""
        changelog = KafkaAdmin(self._bootstrap).find(self._topic)
        assert changelog is not None
        marker = ProgressMarker(generation=1, batch_id=-1, run=run).SerializeToString()
        late = [NewRecord(run_key(run), marker, (), partition) for partition in range(changelog.partition_count)]
        produce(self._bootstrap, self._topic, late)

    @staticmethod
    def _key(customer: str) -> bytes:
        return customer.encode() + b"\0\0"


def test_job_that_runs_is_equal(spark: SparkSession, broker: Broker, tmp_path: Path, options: Options) -> None:
    topic = new_topic(broker.bootstrap, 2)
    job = write_job(tmp_path, "audited_running", topic, columns=COLUMNS)
    count = 0

    def order() -> None:
        nonlocal count
        records = [
            one for at, name in enumerate(CUSTOMERS) for one in orders(name, 1, partition=at % 2, amount=count + 1)
        ]
        produce(broker.bootstrap, topic, records)
        count += len(records)

    order()
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, count)
        assert found_counts(audit(spark, job, options)) == {EQUAL: len(CUSTOMERS)}
        stop = threading.Event()

        def go_on() -> None:
            while not stop.wait(0.1):
                order()

        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            for _ in range(2):
                found = audit(spark, job, options)
                assert (found.is_settled, found.is_equal) == (True, True), found
                assert found.compared + found.counts[SKIPPED] == len(CUSTOMERS)
        finally:
            stop.set()
            thread.join()
        running.run_until_read(topic, count)
    found = audit(spark, job, options)
    assert (found_counts(found), found.is_settled) == ({EQUAL: len(CUSTOMERS)}, True)


def test_changed_changelog_is_named(spark: SparkSession, broker: Broker, tmp_path: Path, options: Options) -> None:
    topic = new_topic(broker.bootstrap)
    name = "audited_changed"
    job = write_job(tmp_path, name, topic, columns=COLUMNS)
    with JobInProcess(spark, job, options) as running:
        for times in (1, 2):
            produce(broker.bootstrap, topic, [one for name in CUSTOMERS for one in orders(name, 2)])
            running.run_until_read(topic, 2 * len(CUSTOMERS) * times)
    vandal = Vandal(broker.bootstrap, name)
    ann, dan = vandal.newest("ann").value, vandal.newest("dan").value
    assert ann is not None
    assert dan is not None
    # What gateways skip is not served, and so is no difference: a value that does not decode, or has another key.
    for skipped in (b"junk", b"\0\0\0\0\1\xff", ann):
        vandal.write("eve", 100, skipped)
    # Of two headers of a name the last counts, and this is no version.
    vandal.write("ann", 100, None, more=[(VERSION_HEADER, b"none")])
    vandal.write("ann", 100, None, more=[("traceparent", b"00"), (VERSION_HEADER, b"none")])
    # A job that was frozen.
    run = vandal.begin_run()
    vandal.begin_late(run - 1)
    vandal.write("eve", 101, None, run=run - 1)
    vandal.write("ann", 101, None, run=run - 1)
    assert found_counts(audit(spark, job, options)) == {EQUAL: len(CUSTOMERS)}

    double = ann[-8:]
    traced = [("traceparent", b"00"), ("tracestate", b"")]
    vandal.write("ann", 90, ann.replace(double, b"\0\0\0\0\0\0\xf0\x3f"), more=traced)
    vandal.write("bob", 90, None, run=run)
    vandal.write("cid", 3, None)  # older than its row
    vandal.write("zoe", 1, dan.replace(b"dan", b"zoe"))
    command = [sys.executable, "-m", "tablegate.gateway.cli", "job", "audit", job, "--json"]
    where = ["--bootstrap", broker.bootstrap, "--checkpoints", options.checkpoints, "--master", "local[1]"]
    result = subprocess.run([*command, *where], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (1, "")
    found = json.loads(result.stdout)
    differences = found.pop("differences")
    assert found == {
        "table": name,
        "generation": 1,
        "batch": found["batch"],
        "settled": True,
        "compared": 6,
        "equal": 3,
        "different": 1,
        "missing_in_changelog": 1,
        "missing_in_state": 1,
        "skipped": 0,
    }
    row = {"order_count": 4, "amount": 5.0}
    assert [tuple(one.values()) for one in differences] == [
        ("different", ["amount"], {"customer": "ann", **row, "amount": 1.0}, 90, {"customer": "ann", **row}, 4),
        ("missing_in_changelog", [], None, 90, {"customer": "bob", **row}, 4),
        ("missing_in_state", [], {"customer": "zoe", **row}, 1, None, None),
    ]


def test_joins_moves_and_windows(spark: SparkSession, broker: Broker, tmp_path: Path, options: Options) -> None:
    placed, names = new_topic(broker.bootstrap), new_topic(broker.bootstrap)
    (tmp_path / "audited.proto").write_text(CONTRACT)
    jobs = tmp_path / "jobs.py"
    jobs.write_text(TABLES.format(orders=placed, names=names))

    def order(number: str, customer: str, amount: float) -> NewRecord:
        return NewRecord(number.encode(), json.dumps({"customer": customer, "amount": amount}).encode())

    produce(broker.bootstrap, names, [NewRecord(b"ann", b'{"name": "Ann"}'), NewRecord(b"cid", b'{"name": "Cid"}')])
    produce(broker.bootstrap, placed, [order("1", "ann", 0.5), order("2", "ann", 1.5), order("3", "bob", 2.5)])
    commits = Path(options.checkpoints, "windowed/g1/table/commits")
    found = {}
    for name in ("placed", "joined", "windowed"):
        job = f"{jobs}:{name}"
        with JobInProcess(spark, job, options) as running:
            running.run_until_read(placed, 3)
            if name == "placed":
                time.sleep(1.0)  # so that these are in other windows
                more = [order("1", "cid", 9.5), order("4", "bob", 30.5), NewRecord(b"2", None)]
                produce(broker.bootstrap, placed, more)
                produce(broker.bootstrap, names, [NewRecord(b"ann", b'{"name": "Anna"}'), NewRecord(b"cid", None)])
            running.run_until_read(placed, 6)
            if name == "windowed":
                wait_until("the batch that closes windows", (commits / "1").exists)
        found[name] = found_counts(audit(spark, job, options))
    # Order 1 has moved to cid, and 2 is gone; as records of a source they are of ann, who has two, and cid has but one.
    assert {name: found[name] for name in ("placed", "joined")} == {"placed": {EQUAL: 3}, "joined": {EQUAL: 2}}
    # The first orders are in windows that the later ones have ended; whose own is open.
    assert found["windowed"].keys() == {EQUAL, SKIPPED}
    assert found["windowed"][SKIPPED] >= 2


@pytest.mark.long
def test_realtime_mode(spark: SparkSession, broker: Broker, tmp_path: Path, options: Options) -> None:
    topic = new_topic(broker.bootstrap)
    name = "audited_realtime"
    job = write_job(
        tmp_path, name, topic, columns={"order_count": "count(*)", "amount": "sum(amount)"}, more="trigger_s=5"
    )
    vandal = Vandal(broker.bootstrap, name)
    with JobInProcess(spark, job, options):
        produce(broker.bootstrap, topic, [one for name in CUSTOMERS for one in orders(name, 3)])
        wait_until("rows", lambda: {row.customer for row in written(broker.bootstrap, job)} == set(CUSTOMERS))
        found = audit(spark, job, options)
        assert (found_counts(found), found.is_settled) == ({EQUAL: len(CUSTOMERS)}, True)
        vandal.write("ann", 90, None)
        found = audit(spark, job, options)
        assert found_counts(found) == {EQUAL: 4, "missing in changelog": 1}
    # Nobody can tell who wrote what is newer than the last commit.
    found = audit(spark, job, options)
    assert (found_counts(found), found.is_settled) == ({EQUAL: 4, SKIPPED: 1}, False)


def test_processor_is_refused() -> None:
    table = load_table("product_views")
    with pytest.raises(JobError) as caught:
        audit_job(table, bootstrap="127.0.0.1:1", checkpoints="none", master=None, spark_log=None)
    assert str(caught.value) == (
        f'{table.declared_at}: table "product_views" cannot be audited: its rows are what the processor '
        '"Views" emits, and its state does not tell them'
    )


def test_checkpoint_that_is_not_there(spark: SparkSession, broker: Broker, tmp_path: Path, options: Options) -> None:
    topic = new_topic(broker.bootstrap)
    job = write_job(tmp_path, "audited_elsewhere", topic)
    with pytest.raises(JobError, match="has no manifest at"):
        audit(spark, job, options)
    with JobInProcess(spark, job, options):
        pass
    with pytest.raises(JobError, match="has not finished a batch of generation 1: audit it when it has"):
        audit(spark, job, options)
    write_job(tmp_path, "audited_elsewhere", topic, columns=COLUMNS)
    with pytest.raises(JobError, match='column "order_count" is count'):
        audit(spark, job, options)
    other = Options(bootstrap=options.bootstrap, checkpoints=str(tmp_path / "elsewhere"))
    with pytest.raises(JobError, match="give the --checkpoints of its job"):
        audit(spark, job, other)
