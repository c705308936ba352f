"""Whole jobs on real Kafka and Spark: what they write, how they survive, what they refuse."""

import json
import sys
import time
import urllib.request
import uuid
import zipfile
from pathlib import Path

import pyspark
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from prometheus_client.parser import text_string_to_metric_families

from tablegate.examples.demo.kafka import Broker, free_port
from tablegate.examples.samples import create_topic
from tablegate.examples.tables.ratings import RATING_SCHEMA
from tablegate.gateway.contract.rows import row_schema
from tablegate.jobs import running as jobs_running
from tablegate.jobs.errors import JobError
from tablegate.jobs.jars.jars import jars
from tablegate.jobs.kafka.manifests import publish_manifest, read_manifest
from tablegate.jobs.planning.declarations import load_contract, load_table
from tablegate.jobs.planning.options import Options
from tablegate.jobs.planning.plan import make_plan
from tablegate.jobs.table import Table
from tablegate.v1 import changelog_pb2
from tests.kit.gateway_processes.gateway import GatewayProcess, MonotoneReader, soon
from tests.kit.job.process import Changelog, JobProcess, wait_until
from tests.kit.job.ratings_job import MOVIES, PARTITIONS, RATINGS, fold_source, rating_record, some_ratings, write_job
from tests.kit.programs.kafka import NewRecord, consume, new_topic, produce
from tests.kit.programs.registry_with_guids import RegistryWithGuids

pytestmark = pytest.mark.jvm


def end_offsets(bootstrap: str, topic: str) -> dict[int, int]:
    ends = dict.fromkeys(range(PARTITIONS), 0)
    for record in consume(bootstrap, topic):
        ends[record.partition] = record.offset + 1
    return ends


@pytest.mark.parametrize("mode", ["realtime", pytest.param("microbatch", marks=pytest.mark.long)])
def test_table_equals_the_fold_of_its_input(broker: Broker, tmp_path: Path, mode: str) -> None:
    name = f"fold_{mode}"
    source = new_topic(broker.bootstrap, PARTITIONS, prefix="ratings")
    job = write_job(tmp_path, name, source)
    contract = load_contract(load_table(job))
    schemas = {1: json.dumps(row_schema(contract))}
    arguments = ["--table", job, "--bootstrap", broker.bootstrap, "--checkpoints", str(tmp_path / "checkpoint")]
    arguments += ["--mode", mode, "--partitions", str(PARTITIONS + 1)]
    metrics = f"127.0.0.1:{free_port()}"
    malformed = [
        NewRecord(b"a", None),
        NewRecord(b"b", b"not Avro"),
        NewRecord(None, (rating_record(1, 2.0).value or b"")[:-1]),
    ]

    with (
        GatewayProcess(tmp_path / "gateway", broker.bootstrap, contract=tmp_path / "contract.proto") as gateway,
        MonotoneReader(gateway, range(-MOVIES // 2, MOVIES // 2)) as reader,
    ):
        produce(broker.bootstrap, source, some_ratings(RATINGS // 2, seed=1))
        with JobProcess(tmp_path / "logs", *arguments) as running:
            running.wait_for("running")
            changelog = Changelog(broker.bootstrap, f"{name}-g1-changelog", contract, PARTITIONS + 1)
            wanted = fold_source(broker.bootstrap, source)
            wait_until("rows of the first half", lambda: changelog.rows(schemas) == wanted, running)
            produce(broker.bootstrap, source, malformed)
            produce(broker.bootstrap, source, some_ratings(RATINGS // 4, seed=2))
            running.kill()  # somewhere in the work on the third quarter
        produce(broker.bootstrap, source, some_ratings(RATINGS // 4, seed=3))
        wanted = fold_source(broker.bootstrap, source)
        ends = end_offsets(broker.bootstrap, source)
        pages, jar = f"http://127.0.0.1:{free_port()}", _jar(tmp_path / "users.jar")
        more = ["--metrics", metrics, "--conf", "spark.ui.enabled=true", "--conf", f"spark.jars={jar}"]
        more += ["--conf", f"spark.ui.port={pages.rpartition(':')[2]}"]
        with JobProcess(tmp_path / "logs", *arguments, *more) as running:
            wait_until("rows of everything", lambda: changelog.rows(schemas) == wanted, running)
            wait_until("markers with the source's ends", lambda: changelog.source_offsets(source) == ends, running)
            wait_until("all dead letters", lambda: len(_dead_letters(broker, name)) == len(malformed), running)
            wait_until("log of the dead letters", lambda: bool(running.events("dead_letters")), running)
            _check_metrics(f"http://{metrics}/metrics", name, source)
            _check_spark_settings(pages, jar)
            assert running.stop() == 0
            assert running.events("stopped")
            assert "Traceback" not in running.errors()
        averages = {movie: (row.average, row.count) for movie, row in wanted.items()}
        soon(lambda: gateway.rows() == averages, "the gateway has every row")
    assert not reader.violations
    assert reader.answers > MOVIES

    assert sum(row.count for row in changelog.rows(schemas).values()) == RATINGS
    assert len(changelog.rows(schemas)) == MOVIES
    changelog.close()
    _check_dead_letters(broker, name, source, malformed)
    manifest = read_manifest(broker.bootstrap, name)
    assert manifest is not None
    assert (manifest.changelog_topic, manifest.partition_count) == (f"{name}-g1-changelog", PARTITIONS + 1)
    assert manifest.contract_fingerprint == contract.fingerprint
    assert manifest.mode == changelog_pb2.JobMode.Value(f"JOB_MODE_{mode.upper()}")


def _asked(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def _jar(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as jar:
        jar.writestr("users/own.txt", "own")
    return path


def _check_spark_settings(pages: str, jar: Path) -> None:
    """The pages of Spark are there, and the jar is beside those of the job."""
    [application] = json.loads(_asked(f"{pages}/api/v1/applications"))
    environment = json.loads(_asked(f"{pages}/api/v1/applications/{application['id']}/environment"))
    classes = {entry.rpartition("/")[2] for entry, _ in environment["classpathEntries"]}
    assert {jar.name, *(own.name for own in jars("spark"))} <= classes


def _check_metrics(url: str, name: str, source: str) -> None:
    wait_until("lag since the second batch", lambda: "tablegate_job_source_lag_records{" in _asked(url))
    text = _asked(url)
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    mine = {sample.name: sample for sample in samples if sample.labels.get("table") == name}
    assert mine["tablegate_job_running"].value == 1
    assert mine["tablegate_job_generation"].value == 1
    assert mine["tablegate_job_records_total"].value > 0
    assert mine["tablegate_job_changes_total"].value > 0
    assert mine["tablegate_job_batch_seconds_count"].value > 0
    assert mine["tablegate_job_source_lag_records"].labels["topic"] == source
    assert mine["tablegate_job_marker_time_seconds"].value <= time.time()
    assert mine["tablegate_job_state_rows"].value == MOVIES
    assert mine["tablegate_job_state_bytes"].value > 0
    dead = {sample.labels["kind"] for sample in samples if sample.name == "tablegate_job_dead_letters_total"}
    assert "undecodable" in dead


def _dead_letters(broker: Broker, name: str) -> dict[tuple[bytes | None, bytes | None], dict[str, bytes]]:
    letters = consume(broker.bootstrap, f"{name}-dead-letters")
    return {(letter.key, letter.value): dict(letter.headers) for letter in letters}


def _check_dead_letters(broker: Broker, name: str, source: str, malformed: list[NewRecord]) -> None:
    found = _dead_letters(broker, name)
    assert set(found) == {(record.key, record.value) for record in malformed}
    reasons = [found[record.key, record.value]["reason"].decode() for record in malformed]
    assert reasons == [
        "value is null",
        "value is not Avro in the Confluent wire format",
        "value does not decode by its Avro schema",
    ]
    places = {(record.partition, record.offset): record for record in consume(broker.bootstrap, source)}
    for (key, value), headers in found.items():
        original = places[int(headers["partition"]), int(headers["offset"])]
        assert (original.key, original.value, headers["topic"]) == (key, value, source.encode())


def test_spark_submit_and_schema_registry(broker: Broker, schema_registry: str, tmp_path: Path) -> None:
    name = f"submitted_{uuid.uuid4().hex[:12]}"
    source = new_topic(broker.bootstrap, PARTITIONS, prefix="ratings")
    job = write_job(tmp_path, name, source)
    contract = load_contract(load_table(job))
    script = Path(jobs_running.__path__[0], "__main__.py")
    submit = Path(pyspark.__path__[0], "bin", "spark-submit")
    command = [str(submit), "--master", "local[2]", "--jars", ",".join(map(str, jars("spark")))]
    command += ["--conf", "spark.ui.enabled=false", "--conf", f"spark.pyspark.python={sys.executable}", str(script)]
    arguments = ["--table", job, "--bootstrap", broker.bootstrap, "--checkpoints", str(tmp_path / "checkpoint")]
    arguments += ["--mode", "microbatch", "--schema-registry", schema_registry]
    with SchemaRegistryClient({"url": schema_registry}) as registry:
        writer = registry.register_schema(f"{source}-value", Schema(RATING_SCHEMA, "AVRO"))
        unknown = writer + 1_000_000
        produce(broker.bootstrap, source, [rating_record(362, 10.0, writer), rating_record(362, 8.0, writer)])
        produce(broker.bootstrap, source, [rating_record(362, 1.0, unknown)])
        with JobProcess(tmp_path / "logs", *arguments, command=command) as running:
            running.wait_for("running")
            value_schema = registry.get_latest_version(f"{name}-g1-changelog-value")
            schemas = {value_schema.schema_id or 0: value_schema.schema.schema_str or ""}
            changelog = Changelog(broker.bootstrap, f"{name}-g1-changelog", contract, PARTITIONS)
            wait_until("row of movie 362", lambda: changelog.rows(schemas).get(362, (0, 0))[:2] == (9.0, 2), running)
            changelog.close()
            wait_until("dead letter", lambda: bool(consume(broker.bootstrap, f"{name}-dead-letters")), running)
            running.stop()
    (letter,) = consume(broker.bootstrap, f"{name}-dead-letters")
    assert dict(letter.headers)["reason"].startswith(
        f"schema {unknown} cannot be read as the declared one: the schema registry does not know it".encode()
    )


@pytest.mark.parametrize("mode", [pytest.param("realtime", marks=pytest.mark.long), "microbatch"])
def test_ids_of_schemas_in_headers(broker: Broker, schema_registry: str, tmp_path: Path, mode: str) -> None:
    name = f"headers_{uuid.uuid4().hex[:12]}"
    source = new_topic(broker.bootstrap, PARTITIONS, prefix="ratings")
    job = write_job(tmp_path, name, source)
    contract = load_contract(load_table(job))
    arguments = ["--table", job, "--bootstrap", broker.bootstrap, "--checkpoints", str(tmp_path / "checkpoint")]

    def written(registry: SchemaRegistryClient, topic: str, schema: str, rating: float) -> NewRecord:
        conf = {"schema.id.serializer": header_schema_id_serializer}
        context = SerializationContext(topic, MessageField.VALUE, [])
        value = AvroSerializer(registry, schema, conf=conf)({"movie_id": 362, "rating": rating}, context)
        assert isinstance(context.headers, list)
        [(header, guid)] = context.headers
        assert (header, len(guid)) == ("__value_schema_id", 17)
        return NewRecord(None, value, headers=((header, guid),))

    with (
        RegistryWithGuids(schema_registry) as running,
        SchemaRegistryClient({"url": running.url}) as registry,
    ):
        newer = json.loads(RATING_SCHEMA)
        newer["fields"].append({"name": f"comment_{name}", "type": "string", "default": ""})
        produce(broker.bootstrap, source, [written(registry, source, RATING_SCHEMA, 10.0)])
        # Of a subject that no strategy gives this topic: it is known by its GUID alone.
        produce(broker.bootstrap, source, [written(registry, f"copied-{source}", json.dumps(newer), 8.0)])
        arguments += ["--mode", mode, "--schema-registry", running.url]
        with JobProcess(tmp_path / "logs", *arguments) as process:
            process.wait_for("running")
            value_schema = registry.get_latest_version(f"{name}-g1-changelog-value")
            schemas = {value_schema.schema_id or 0: value_schema.schema.schema_str or ""}
            changelog = Changelog(broker.bootstrap, f"{name}-g1-changelog", contract, PARTITIONS)
            wait_until("row of movie 362", lambda: changelog.rows(schemas).get(362, (0, 0))[:2] == (9.0, 2), process)
            changelog.close()
            assert {event["topic"] for event in process.events("unknown_schema")} == {source}
            process.stop()


# Errors that need no Spark.


@pytest.fixture
def options(broker: Broker, tmp_path: Path) -> Options:
    return Options(bootstrap=broker.bootstrap, checkpoints=str(tmp_path / "checkpoint"))


def test_source_topic_that_does_not_exist(broker: Broker, tmp_path: Path) -> None:
    job = write_job(tmp_path, "sourceless", "no-such-topic")
    with JobProcess(tmp_path, "--table", job, "--bootstrap", broker.bootstrap, "--checkpoints", "unused") as running:
        assert running.process.wait(30) == 1
        assert running.errors() == (
            f'error: source topic "no-such-topic" does not exist at {broker.bootstrap}; '
            "create it, or correct its name\n"
        )


def test_broker_away_at_the_start(tmp_path: Path) -> None:
    job = write_job(tmp_path, "away", "ratings")
    with JobProcess(tmp_path, "--table", job, "--bootstrap", "127.0.0.1:9", "--checkpoints", "unused") as running:
        assert running.process.wait(30) == 1
        assert running.errors() == (
            "error: no Kafka broker answers at 127.0.0.1:9 within 10 s; start it, or correct --bootstrap or --kafka\n"
        )


def test_restart_keeps_topics_and_schema_ids(broker: Broker, tmp_path: Path, options: Options) -> None:
    table = load_table(write_job(tmp_path, "kept", new_topic(broker.bootstrap, 3)))
    first = make_plan(table, options)
    assert (first.changelog.partition_count, first.schema_id) == (3, 1)
    publish_manifest(broker.bootstrap, first.manifest)
    second = make_plan(table, options)
    assert (second.changelog, second.schema_id) == (first.changelog, 1)


def test_other_partition_count(broker: Broker, tmp_path: Path, options: Options) -> None:
    table = load_table(write_job(tmp_path, "counted", new_topic(broker.bootstrap, 3)))
    make_plan(table, options)
    other = Options(bootstrap=options.bootstrap, checkpoints=options.checkpoints, partition_count=4)
    with pytest.raises(JobError, match='"counted-g1-changelog" has 3 partitions, not 4; start the job with 3'):
        make_plan(table, other)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("cleanup.policy", "delete"), ("message.timestamp.type", "CreateTime"), ("min.compaction.lag.ms", "0")],
)
def test_changelog_with_other_settings(
    broker: Broker, tmp_path: Path, options: Options, setting: str, value: str
) -> None:
    name = f"set_{setting.replace('.', '_')}"
    settings = {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": "21600000",
        "message.timestamp.type": "LogAppendTime",
    }
    create_topic(broker.bootstrap, f"{name}-g1-changelog", 1, {**settings, setting: value})
    table = load_table(write_job(tmp_path, name, new_topic(broker.bootstrap, 1)))
    with pytest.raises(JobError) as caught:
        make_plan(table, options)
    assert f'topic "{name}-g1-changelog" has {setting}={value}, not {settings[setting]}; alter it' in str(caught.value)


def test_changelog_of_windows_keeps_rows_until_they_are_gone(broker: Broker, tmp_path: Path, options: Options) -> None:
    table = write_windowed(tmp_path, "ending", new_topic(broker.bootstrap, 1))
    plan = make_plan(table, options)
    wanted_ms = (5 + 86_400 + 86_400) * 1_000  # window, retention, margin
    assert topic_settings(broker, plan.changelog.name) >= {
        ("cleanup.policy", "compact,delete"),
        ("retention.ms", str(wanted_ms)),
    }
    make_plan(table, options)


@pytest.mark.parametrize(
    ("name", "retention_ms", "policy", "refused"),
    [
        ("wide", "172805001", "delete,compact", None),
        ("endless", "-1", "compact,delete", None),
        ("short", "172804999", "compact,delete", "retention.ms=172804999, not 172805000 or more; alter it"),
        ("compact_only", "172805000", "compact", "cleanup.policy=compact, not compact,delete; alter it"),
    ],
)
def test_changelog_of_windows_with_other_settings(
    broker: Broker, tmp_path: Path, options: Options, name: str, retention_ms: str, policy: str, refused: str | None
) -> None:
    settings = {"min.compaction.lag.ms": "21600000", "message.timestamp.type": "LogAppendTime"}
    settings |= {"cleanup.policy": policy, "retention.ms": retention_ms}
    create_topic(broker.bootstrap, f"{name}-g1-changelog", 1, settings)
    table = write_windowed(tmp_path, name, new_topic(broker.bootstrap, 1))
    if refused is None:
        make_plan(table, options)
        return
    with pytest.raises(JobError) as caught:
        make_plan(table, options)
    assert f'topic "{name}-g1-changelog" has {refused}' in str(caught.value)


def write_windowed(directory: Path, name: str, topic: str) -> Table:
    """Declare action_counts under another name: windows of 5 s, a retention of a day."""
    contract = Path("examples/tablegate/examples/contracts/examples/actions/v1/actions.proto").read_text()
    (directory / "contract.proto").write_text(contract.replace('name: "action_counts"', f'name: "{name}"'))
    declared = Path("examples/tablegate/examples/tables/action_counts.py").read_text()
    for before, after in (
        ('"action_counts"', f'"{name}"'),
        ("examples/actions/v1/actions.proto", "contract.proto"),
        ('"browser_actions"', f'"{topic}"'),
    ):
        assert before in declared
        declared = declared.replace(before, after)
    (directory / "job.py").write_text(declared)
    return load_table(str(directory / "job.py"))


def topic_settings(broker: Broker, topic: str) -> set[tuple[str, str]]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    described = admin.describe_configs([resource])[resource].result(10)
    return {(name, entry.value) for name, entry in described.items()}


def test_older_declaration_is_refused_unless_it_is_built_anew(broker: Broker, tmp_path: Path, options: Options) -> None:
    source = new_topic(broker.bootstrap, 1)
    newer = make_plan(load_table(write_job(tmp_path, "aged", source, generation=3)), options)
    publish_manifest(broker.bootstrap, newer.manifest)
    job = write_job(tmp_path, "aged", source, generation=2)
    older = load_table(job)
    with pytest.raises(JobError) as caught:
        make_plan(older, options)
    assert 'table "aged" is declared with generation 2, and was built from a newer declaration, with 3' in str(
        caught.value
    )
    assert str(caught.value).endswith(f"go back to this one: tablegate job rebuild {job}:aged")
    publish_manifest(broker.bootstrap, make_plan(older, options, generation=4).manifest)
    assert make_plan(older, options).generation == 4


def test_older_generation_is_not_published_over_a_newer_one(broker: Broker, tmp_path: Path, options: Options) -> None:
    table = load_table(write_job(tmp_path, "raced", new_topic(broker.bootstrap, 1)))
    old = make_plan(table, options)
    publish_manifest(broker.bootstrap, make_plan(table, options, generation=2).manifest)
    with pytest.raises(JobError, match='"raced" is at generation 2, built by another job, so generation 1 is not'):
        publish_manifest(broker.bootstrap, old.manifest)
    found = read_manifest(broker.bootstrap, "raced")
    assert found is not None
    assert found.generation == 2
