"""Alerts, provoked: a real Prometheus scrapes real gateways and a real job to which the thing happens.

Alerts fire without their `for`, as no test waits for minutes, and those of a slow job after shorter times; all else of
the rules is as it is in `deploy`. Those that need no Kafka are in `test_alerts_alone.py`.
"""

import os
import secrets
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import grpc
import pytest

from tablegate.examples import CONTRACTS
from tablegate.examples.demo.kafka import Broker, free_port
from tests.kit.gateway_processes.changelog import RatingsChangelog, many
from tests.kit.gateway_processes.cluster import Cluster
from tests.kit.gateway_processes.gateway import SERVICE, GatewayProcess, soon
from tests.kit.job.process import JobProcess, wait_until
from tests.kit.programs.kafka import NewRecord, new_topic, produce
from tests.kit.programs.prometheus import IS_INSTALLED, Prometheus
from tests.kit.table.filled import RATINGS

pytestmark = [pytest.mark.jvm, pytest.mark.skipif(not IS_INSTALLED, reason="prometheus is not installed")]

ROWS = 50
GET = f"{SERVICE}/GetRating"
ACCESS = """
[[rule]]
anonymous = true
tables = ["*"]

[[limit]]
name = "few"
calls_per_s = 2
"""


@pytest.fixture
def changelog(broker: Broker) -> RatingsChangelog:
    return RatingsChangelog(broker.bootstrap)


class Scraped:
    """A gateway that Prometheus scrapes at its admin port."""

    def __init__(
        self, directory: Path, changelog: RatingsChangelog, *options: str, shorter: Mapping[str, str] | None = None
    ) -> None:
        self.target = f"127.0.0.1:{free_port()}"
        self.gateway = GatewayProcess(
            directory / "gateway",
            changelog.bootstrap,
            tables_topic=changelog.tables_topic,
            workers=1,
            options=["--admin", self.target, *options],
        )
        self.prometheus = Prometheus(
            directory / "prometheus", {"gateways": [self.target]}, shorter={} if shorter is None else shorter
        )


@pytest.fixture
def scraped(tmp_path: Path, changelog: RatingsChangelog) -> Iterator[Scraped]:
    made = Scraped(tmp_path, changelog)
    with made.gateway, made.prometheus:
        yield made


def _publish(changelog: RatingsChangelog, gateway: GatewayProcess) -> None:
    changelog.publish()
    changelog.put(dict(many(ROWS)))
    changelog.mark()
    gateway.wait_until_serving(120)


def _code(gateway: GatewayProcess) -> grpc.StatusCode:
    """Return the status of a Get."""
    try:
        gateway.ask("GetRating", movie_id=1)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


def _wait_for_restores(prometheus: Prometheus, wanted: int) -> None:
    restored = 'sum(tablegate_restores_total{table="ratings"})'
    soon(lambda: (prometheus.value(restored) or 0) >= wanted, f"{wanted} restores of partitions", 120)


def test_alerts_of_a_table_without_a_manifest(scraped: Scraped, changelog: RatingsChangelog) -> None:
    gateway, prometheus = scraped.gateway, scraped.prometheus
    prometheus.wait_for("TablegateTableNotServed", "ratings")
    assert _code(gateway) is grpc.StatusCode.UNAVAILABLE
    failures = f'tablegate_call_duration_seconds_count{{code="UNAVAILABLE",method="{GET}"}}'
    soon(lambda: prometheus.value(failures), "the failure is scraped")
    for _ in range(5):
        assert _code(gateway) is grpc.StatusCode.UNAVAILABLE
    prometheus.wait_for("TablegateCallsFail", GET)
    _publish(changelog, gateway)
    soon(lambda: "TablegateTableNotServed" not in prometheus.firing(), "it is served now", 60)


def test_alerts_of_records_and_of_processes(scraped: Scraped, changelog: RatingsChangelog) -> None:
    gateway, prometheus = scraped.gateway, scraped.prometheus
    _publish(changelog, gateway)
    written_s = time.monotonic()
    soon(lambda: prometheus.value('sum(tablegate_restores_total{table="ratings"})') == 2, "restores are scraped", 60)
    assert "TablegateTableGrowsOld" not in prometheus.firing()

    # A record that is none, and one of a version that is there with another row.
    soon(lambda: prometheus.value('tablegate_skipped_records{table="ratings"}') == 0, "nothing is skipped yet")
    changelog._write(1, b"no row")
    changelog._sequences[2] -= 1
    changelog.put({2: (1.0, 99)})
    prometheus.wait_for("TablegateRecordsSkipped", "ratings")
    prometheus.wait_for("TablegateConflictingRecords", "ratings")

    # Its store is lost again and again.
    for restores in (4, 6, 8):
        gateway.kill_replicator(signal.SIGBUS)
        _wait_for_restores(prometheus, restores)
    prometheus.wait_for("TablegateRestoresRepeat", "ratings")

    # Nothing is written any more, and the replicator stands still.
    replicator = gateway.replicator()
    os.kill(replicator, signal.SIGSTOP)
    try:
        prometheus.wait_for("TablegateReplicatorHangs", scraped.target)
    finally:
        os.kill(replicator, signal.SIGCONT)
    prometheus.wait_for("TablegateTableGrowsOld", "ratings")
    assert time.monotonic() - written_s > 60

    gateway.kill()
    prometheus.wait_for("TablegateTargetDown", scraped.target)


def test_alert_of_a_partition_without_a_replica(tmp_path: Path, changelog: RatingsChangelog) -> None:
    changelog.publish()
    changelog.put(dict(many(ROWS)))
    changelog.mark()
    cluster = Cluster(
        tmp_path,
        changelog.bootstrap,
        contract=RATINGS,
        table="ratings",
        partition_count=changelog.partition_count,
        tables_topic=changelog.tables_topic,
        names=("g1", "g2"),
        replicas=1,
    )
    targets = {"gateways": [cluster[name].listens_at for name in ("g1", "g2")]}
    with cluster, Prometheus(tmp_path / "prometheus", targets) as prometheus:
        soon(lambda: prometheus.value("count(tablegate_table_serving)") == 2, "both are scraped", 60)
        soon(lambda: "TablegatePartitionWithoutReplica" not in prometheus.firing(), "each partition has one", 60)
        cluster["g2"].kill()
        prometheus.wait_for("TablegatePartitionWithoutReplica", "ratings")
        # The other one takes the partition over.
        soon(lambda: "TablegatePartitionWithoutReplica" not in prometheus.firing(), "it has a replica again", 120)


def test_alert_of_refusals(tmp_path: Path, changelog: RatingsChangelog) -> None:
    """More than one a second, over five minutes: four hundred at once are enough."""
    (tmp_path / "access.toml").write_text(ACCESS)
    made = Scraped(tmp_path, changelog, "--access", str(tmp_path / "access.toml"))
    gateway, prometheus = made.gateway, made.prometheus
    with gateway, prometheus:
        _publish(changelog, gateway)
        soon(lambda: _code(gateway) is grpc.StatusCode.RESOURCE_EXHAUSTED, "a call is refused")
        soon(lambda: prometheus.value('tablegate_refused_calls_total{limit="few"}'), "a refusal is scraped")
        assert "TablegateRefusalsRise" not in prometheus.firing()
        codes = [_code(gateway) for _ in range(800)]
        assert codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) > 400
        prometheus.wait_for("TablegateRefusalsRise", "few")


def test_alert_of_a_subscriber_that_does_not_read(tmp_path: Path, changelog: RatingsChangelog) -> None:
    made = Scraped(tmp_path, changelog, shorter={"stream_behind_seconds > 60": "stream_behind_seconds > 5"})
    gateway, prometheus = made.gateway, made.prometheus
    with gateway, prometheus:
        _publish(changelog, gateway)
        address = gateway.address()
        assert address is not None
        with grpc.insecure_channel(address) as channel:
            stream = channel.unary_stream(f"{SERVICE}/SubscribeRatings")(b"")
            next(stream)
            written = 0

            def is_behind() -> bool:
                nonlocal written
                for _ in range(20):
                    written += 1
                    changelog.put(dict.fromkeys(range(ROWS), (1.0, written)))
                return bool(prometheus.value("tablegate_streams_behind"))

            soon(is_behind, "what it does not read waits for it", 120)
            prometheus.wait_for("TablegateSubscriberBehind", made.target)
            stream.cancel()
            soon(lambda: "TablegateSubscriberBehind" not in prometheus.firing(), "it is gone", 60)


JOB = """from tablegate.jobs import Json, Mode, Source, Table

def table(name, topic, keyed):
    return Table(
        name=name,
        contract=f"{{name}}.proto",
        source=Source(topic, Json("browser STRING, amount BIGINT"), keyed=keyed),
        key={{"browser": "browser"}},
        columns={{"action_count": "sum(amount)"}},
        mode=Mode.MICROBATCH,
    )

TABLES = (table("{shaky}", "{shaky_source}", True), table("{steady}", "{steady_source}", False))
"""
CONTRACT = CONTRACTS / "examples/browsers/v1/browsers.proto"


def _record(text: str, partition: int = 0) -> NewRecord:
    return NewRecord(None, text.encode(), partition=partition)


def test_alerts_of_a_job_with_a_table_that_stops(broker: Broker, tmp_path: Path) -> None:
    """One table is declared keyed, and its source is not: it stops. The other meets what is no JSON, and goes on."""
    names = {name: f"{name}_{secrets.token_hex(4)}" for name in ("shaky", "steady")}
    sources = {f"{name}_source": new_topic(broker.bootstrap, 2) for name in names}
    (tmp_path / "job.py").write_text(JOB.format(**names, **sources))
    for name in names.values():
        contract = CONTRACT.read_text().replace('name: "suspicious_browsers"', f'name: "{name}"')
        (tmp_path / f"{name}.proto").write_text(contract)
    target = f"127.0.0.1:{free_port()}"
    arguments = ["--table", str(tmp_path / "job.py"), "--bootstrap", broker.bootstrap, "--metrics", target]
    arguments += ["--checkpoints", str(tmp_path / "checkpoints")]
    good = '{"browser": "a", "amount": 1}'
    produce(broker.bootstrap, sources["steady_source"], [_record(good)])
    with (
        Prometheus(tmp_path / "prometheus", {"jobs": [target]}) as prometheus,
        JobProcess(tmp_path / "logs", *arguments) as running,
    ):
        running.wait_for("running")
        letters = f'tablegate_job_dead_letters_total{{table="{names["steady"]}"}}'
        produce(broker.bootstrap, sources["steady_source"], [_record("no JSON")])
        soon(lambda: prometheus.value(letters), "the first dead letter is scraped", 120)
        produce(broker.bootstrap, sources["steady_source"], [_record("no JSON, either")])
        prometheus.wait_for("TablegateJobDeadLetters", names["steady"])
        assert names["shaky"] not in prometheus.firing().get("TablegateJobStopped", ())
        produce(broker.bootstrap, sources["shaky_source"], [_record(good, partition) for partition in (0, 1)])
        prometheus.wait_for("TablegateJobStopped", names["shaky"])
        assert names["steady"] not in prometheus.firing()["TablegateJobStopped"]
        running.kill()
        prometheus.wait_for("TablegateTargetDown", target)


SLOW_JOB = """import time

from tablegate.jobs import Json, Mode, Processor, Source, Table

class Slow(Processor):
    state = "count BIGINT"
    emits = "count BIGINT"

    def on_record(self, key, record, state):
        time.sleep(record.amount / 1000)
        state.count += 1
        yield {{"count": state.count}}

TABLE = Table(
    name="{name}",
    contract="contract.proto",
    source=Source("{source}", Json("browser STRING, amount BIGINT")),
    key={{"browser": "browser"}},
    columns={{"action_count": "count"}},
    processor=Slow(),
    mode=Mode.MICROBATCH,
)
"""
# Minutes, as no test waits for them.
SHORTER = {"tablegate_job_marker_time_seconds > 120": "tablegate_job_marker_time_seconds > 8", "[15m]": "[10s]"}


def _plan_as_another_job_would(checkpoint: Path) -> None:
    """Plan the next batch of a query, as a job does that was frozen and has woken: with nothing in it."""
    offsets = checkpoint / "table" / "offsets"
    newest = max(int(file.name) for file in offsets.iterdir() if file.name.isdigit())
    (offsets / f"{newest}.copy").write_bytes((offsets / str(newest)).read_bytes())
    (offsets / f"{newest}.copy").rename(offsets / str(newest + 1))


@pytest.mark.timeout(900)
def test_alerts_of_a_job_that_restarts_and_is_too_slow(broker: Broker, tmp_path: Path) -> None:
    name = f"slow_{secrets.token_hex(4)}"
    source = new_topic(broker.bootstrap, 1)
    (tmp_path / "job.py").write_text(SLOW_JOB.format(name=name, source=source))
    contract = CONTRACT.read_text().replace('name: "suspicious_browsers"', f'name: "{name}"')
    (tmp_path / "contract.proto").write_text(contract)
    target = f"127.0.0.1:{free_port()}"
    arguments = ["--table", str(tmp_path / "job.py"), "--bootstrap", broker.bootstrap, "--metrics", target]
    arguments += ["--checkpoints", str(tmp_path / "checkpoints")]
    records = 0

    def write(sleep_ms: int, count: int = 1) -> None:
        nonlocal records
        records += count
        produce(broker.bootstrap, source, [_record(f'{{"browser": "a", "amount": {sleep_ms}}}')] * count)

    prometheus = Prometheus(tmp_path / "prometheus", {"jobs": [target]}, shorter=SHORTER)
    with prometheus, JobProcess(tmp_path / "logs", *arguments) as running:
        read = f'tablegate_job_records_total{{table="{name}"}}'
        write(0)
        soon(lambda: (prometheus.value(read) or 0) >= records, "the first record is read", 240)
        [checkpoint] = (tmp_path / "checkpoints").glob("*/g1")

        # The first is where the metric begins; more than three after it.
        for restarts in range(1, 6):
            _plan_as_another_job_would(checkpoint)
            write(0)
            wait_until(
                "restart", lambda restarts=restarts: len(running.events("checkpoint_conflict")) == restarts, running
            )
            soon(lambda: (prometheus.value(read) or 0) >= records, "it goes on", 120)
            # A busy machine may have it restart once more, as its Python worker comes too late.
            assert restarts > 1 or "TablegateJobRestarts" not in prometheus.firing()
        prometheus.wait_for("TablegateJobRestarts", name)

        wanted = {"TablegateJobMarkersOld", "TablegateJobFallsBehind"}
        soon(lambda: not wanted & {*prometheus.firing()}, "it keeps up", 120)
        end_s = time.monotonic() + 180
        while wanted:
            assert time.monotonic() < end_s, f"these do not fire: {wanted}"
            write(500, 10)  # it works off two a second
            time.sleep(1)
            wanted -= {alert for alert, tables in prometheus.firing().items() if name in tables}
