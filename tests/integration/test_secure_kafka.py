"""Kafka with TLS, passwords, certificates and rights: a job, a gateway and commands, each with the least rights."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation, ResourceType  # type: ignore[attr-defined]
from pyspark.sql import SparkSession

from tablegate.examples.demo.kafka import HOST, Broker, free_port
from tablegate.gateway.contract.kafka_settings import load_settings
from tablegate.gateway.contract.lineage import Place
from tablegate.gateway.contract.types import Offset
from tablegate.gateway.kafka.client import KafkaLog
from tablegate.gateway.kafka.fresh_options import FreshOptions
from tablegate.gateway.kafka.log import Fetched, LogUnavailable, TopicPartition
from tablegate.jobs.publishing import spark_jars
from tests.kit.gateway_processes.gateway import GatewayProcess, soon
from tests.kit.job.counting_job import orders, rows, write_job
from tests.kit.job.process import WAIT_S, JobProcess, wait_until
from tests.kit.programs.kafka import NewRecord, consume, create_topic, produce
from tests.kit.programs.secure_kafka import MECHANISMS, Right, SecureKafka

pytestmark = pytest.mark.jvm

# PLAIN and SCRAM differ in a word of the settings.
WITH_LONG = [pytest.param(one, marks=pytest.mark.long) if one == "PLAIN" else one for one in MECHANISMS]
# A job that reads by SCRAM is in `test_sources_are_read_of_a_cluster_of_their_own`, too.
JOBS = [pytest.param(one, marks=pytest.mark.long) if one in ("PLAIN", "SCRAM-SHA-512") else one for one in MECHANISMS]
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ, WRITE, CREATE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE
UI_PAGES = ("environment", "SQL", "jobs", "stages", "StreamingQuery")
DESCRIBE, DESCRIBE_CONFIGS = AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS


def gateway_rights(table: str) -> list[Right]:
    """Return what docs/how-to/connect-to-kafka.md says that a gateway needs."""
    return [
        (TOPIC, "tables", READ),
        (TOPIC, f"{table}-g", READ),
        *((TOPIC, "gateways", right) for right in (READ, WRITE, CREATE)),
    ]


def job_rights(table: str, source: str) -> list[Right]:
    """Return what docs/how-to/connect-to-kafka.md says that a job needs."""
    return [
        (TOPIC, source, READ),
        *(
            (TOPIC, name, right)
            for name in ("tables", f"{table}-")
            for right in (READ, WRITE, CREATE, DESCRIBE_CONFIGS)
        ),
        (GROUP, "tablegate", READ),
    ]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    with SecureKafka(tmp_path_factory.mktemp("secure"), ["job", "gateway", "nobody"]) as running:
        yield running


def command(*words: str, environment: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    run = [sys.executable, "-m", "tablegate.gateway.cli", *words]
    variables = {**os.environ, **(environment or {})}
    return subprocess.run(run, capture_output=True, text=True, check=False, timeout=WAIT_S, env=variables)


def counted(gateway: GatewayProcess, table: str) -> object:
    """Return how many orders of ann the gateway answers, or why not."""
    done = command("get", table, "customer=ann", "--address", str(gateway.address()), "--json")
    return json.loads(done.stdout)["order_count"] if done.stdout else done.stderr


def refusal(*words: str) -> str:
    """Return the one sentence with which a command ends."""
    done = command(*words)
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("mechanism", JOBS)
def test_rows_come_through_with_the_least_rights(kafka: SecureKafka, tmp_path: Path, mechanism: str) -> None:
    name = f"totals_{mechanism.lower().replace('-', '_')}"
    source = f"{name}-orders"
    create_topic(kafka.broker.bootstrap, source, 1, {})
    job = write_job(tmp_path, name, source)
    kafka.allow("job", job_rights(name, source))
    kafka.allow("gateway", gateway_rights(name))
    produce(kafka.broker.bootstrap, source, orders("ann", 3))

    checkpoints = tmp_path / "checkpoints"
    arguments = ("--table", job, "--kafka", str(kafka.settings(mechanism, "job")), "--checkpoints", str(checkpoints))
    with JobProcess(tmp_path / "job", *arguments, "--once") as running:
        shown = Path(f"/proc/{running.process.pid}/cmdline").read_bytes()
        assert running.process.wait(WAIT_S) == 0, running.errors()

    listed = command("job", "list", "--json", "--kafka", str(kafka.settings(mechanism, "job")))
    assert any(json.loads(line)["table"] == name for line in listed.stdout.splitlines()), listed.stderr

    port = free_port()
    key = tmp_path / "token.key"
    key.write_text("ab" * 32)
    options = ["--kafka", str(kafka.settings(mechanism, "gateway")), "--token-key", str(key)]
    options += ["--advertise", f"127.0.0.1:{port}", "--replicas", "1"]
    gateway = GatewayProcess(
        tmp_path / "data",
        kafka.bootstrap(mechanism),
        contract=tmp_path / "orders.proto",
        workers=1,
        reflection=True,
        listen=f"127.0.0.1:{port}",
        options=options,
    )
    with gateway:
        soon(lambda: counted(gateway, name) == "3", "the row is served")
    for file in [*tmp_path.rglob("*")]:
        if file.is_file() and kafka.password("job").encode() in file.read_bytes():
            pytest.fail(f"{file} has the password")
    assert kafka.password("job").encode() not in shown


def of_two_clusters(directory: Path, tables: str, sources: Path) -> Path:
    """Write the file of `--kafka` of sources that another file says how to reach, and of tables without security."""
    file = directory / "two.toml"
    of_sources = sources.read_text().replace('"password"', f'"{sources.with_name("password")}"')
    file.write_text(f'bootstrap = "{tables}"\n[sources]\n{of_sources}\n')
    return file


def test_sources_are_read_of_a_cluster_of_their_own(kafka: SecureKafka, broker: Broker, tmp_path: Path) -> None:
    source = "two-clusters-orders"
    create_topic(kafka.broker.bootstrap, source, 2, {})
    kafka.allow("job", [(TOPIC, source, READ)])  # of all others, the job can make none there
    job = write_job(tmp_path, "two_clusters", source)
    produce(kafka.broker.bootstrap, source, [*orders("ann", 3), *orders("bob", 1, partition=1), NewRecord(None, b"{")])
    file = of_two_clusters(tmp_path, broker.bootstrap, kafka.settings("SCRAM-SHA-512", "job"))
    arguments = ("--table", job, "--kafka", str(file), "--checkpoints", str(tmp_path / "checkpoints"), "--once")
    for more in (0, 2):
        produce(kafka.broker.bootstrap, source, orders("ann", more))
        with JobProcess(tmp_path / "job", *arguments) as running:
            assert running.process.wait(WAIT_S) == 0, running.errors()
        assert rows(broker.bootstrap, job) == {"ann": (3 + more, 0.0), "bob": (0, 1.0)}
    assert len(consume(broker.bootstrap, "two_clusters-dead-letters")) == 1
    listed = command("job", "list", "--json", "--kafka", str(file))
    [table] = [line for line in map(json.loads, listed.stdout.splitlines()) if line["table"] == "two_clusters"]
    assert table["records_behind"] == 0
    wrong = of_two_clusters(tmp_path, broker.bootstrap, kafka.settings("SCRAM-SHA-512", "job", password="wrong"))
    with JobProcess(tmp_path / "wrong", *arguments[:3], str(wrong), *arguments[4:]) as running:
        assert running.process.wait(WAIT_S) == 1
        assert f"Kafka at {kafka.bootstrap('SCRAM-SHA-512')} does not let in" in running.errors()
    mixed = Path(job).with_name("mixed.py")
    mixed.write_text(MIXED)
    (tmp_path / "mixed.proto").write_text((tmp_path / "orders.proto").read_text().replace("two_clusters", "mixed"))
    with JobProcess(tmp_path / "mixed", "--table", str(mixed), *arguments[2:]) as running:
        assert running.process.wait(WAIT_S) == 1
        assert 'reads table "two_clusters" at' in running.errors()


MIXED = """from tablegate.jobs import Latest, Table, rows_of

TABLE = Table(
    name="mixed",
    contract="mixed.proto",
    sides={"totals": Latest(rows_of("two_clusters", contract="orders.proto"))},
    key={"customer": "customer"},
    columns={"order_count": "totals.order_count", "amount": "totals.amount"},
)
"""


@pytest.mark.parametrize("mechanism", MECHANISMS[1:])
def test_sample_ratings_go_where_only_users_may(kafka: SecureKafka, mechanism: str) -> None:
    topic = f"sample-{mechanism.lower()}"
    create_topic(kafka.broker.bootstrap, topic, 1, {})
    kafka.allow("job", [(TOPIC, topic, WRITE)])
    words = ("produce-sample", "--topic", topic, "--count", "3", "--kafka")
    done = command(*words, str(kafka.settings(mechanism, "job")))
    assert (done.returncode, done.stdout) == (0, f"sent 3 ratings to {topic}\n"), done.stderr
    assert len(consume(kafka.broker.bootstrap, topic)) == 3
    refused = command(*words, str(kafka.settings(mechanism, "job", password="wrong")))
    assert refused.returncode == 1
    assert f"error: Kafka at {kafka.bootstrap(mechanism)} does not let in " in refused.stderr


LOG_SETTINGS = """rootLogger.level = info
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
"""


@pytest.fixture(scope="module")
def spark_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "spark.log"


@pytest.fixture(scope="module")
def spark(spark_log: Path) -> Iterator[SparkSession]:
    """Give a session as a user makes it, which shows and logs all that Spark does."""
    log_settings = spark_log.with_name("log4j2.properties")
    log_settings.write_text(LOG_SETTINGS.format(file=spark_log))
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", spark_jars())
        .config("spark.driver.host", HOST)
        .config("spark.driver.bindAddress", HOST)
        .config("spark.ui.enabled", "true")  # the JVM may have another default, of such a session
        .config("spark.ui.port", str(free_port()))
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    # Not by an option of the JVM: the process may have one already, of another module's session.
    jvm: Any = session._jvm
    log4j = jvm.org.apache.logging.log4j.core.config.Configurator
    log4j.reconfigure(jvm.java.net.URI.create(log_settings.as_uri()))
    yield session
    session.stop()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_spark_shows_no_secret(
    kafka: SecureKafka, spark: SparkSession, spark_log: Path, tmp_path: Path, mechanism: str
) -> None:
    topic = f"shown-{mechanism.lower()}"
    create_topic(kafka.broker.bootstrap, topic, 1, {})
    kafka.allow("job", [(TOPIC, topic, right) for right in (READ, WRITE)])
    settings = load_settings(kafka.settings(mechanism, "job"), environ={})
    options = {f"kafka.{name}": value for name, value in settings.java().items()}  # as `spark_options` gives them
    row = spark.range(1).selectExpr("CAST('1' AS BINARY) AS value", f"'{topic}' AS topic")
    row.write.format("kafka").options(**options).save()
    stream = spark.readStream.format("kafka").options(**options, subscribe=topic, startingOffsets="earliest").load()
    written = stream.writeStream.format("memory").queryName(topic.replace("-", "_"))
    query = written.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(WAIT_S)
    assert spark.table(topic.replace("-", "_")).count() == 1

    assert "ConsumerConfig values" in spark_log.read_text()
    shown = {str(page): content for page, content in pages(spark)}
    shown |= {str(file): file.read_bytes() for file in [spark_log, *tmp_path.rglob("*")] if file.is_file()}
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # of a process that has ended
            shown[str(line)] = line.read_bytes()
    key = b"-----BEGIN PRIVATE KEY-----"
    assert [
        name for name, content in shown.items() if kafka.password("job").encode() in content or key in content
    ] == []


def pages(spark: SparkSession) -> Iterator[tuple[str, bytes]]:
    """Yield what Spark's web pages and its REST API show, with their addresses."""
    context = spark.sparkContext
    root = str(context.uiWebUrl)
    api = f"{root}/api/v1/applications/{context.applicationId}"
    plans = f"{api}/sql?details=true&planDescription=true&length=1000"
    asked = [plans, f"{api}/environment", *(f"{root}/{page}/" for page in UI_PAGES)]
    while asked:
        address = asked.pop(0)
        with urllib.request.urlopen(address, timeout=WAIT_S) as answer:
            content: bytes = answer.read()
        yield address, content
        if address == plans:
            assert b"kafka" in content.lower()
            asked += [f"{root}/SQL/execution/?id={execution['id']}" for execution in json.loads(content)]


def test_two_installations_do_not_see_each_other(kafka: SecureKafka, tmp_path: Path) -> None:
    bootstrap, name = kafka.broker.bootstrap, "shared_name"
    environments = [{"TABLEGATE_KAFKA_TOPIC_PREFIX": "shop."}, {}]
    for number in range(2):
        create_topic(bootstrap, f"orders-{number}", 1, {})
        produce(bootstrap, f"orders-{number}", orders("ann", 3 + number))
        write_job(tmp_path / str(number), name, f"orders-{number}", more="mode=Mode.REALTIME")

    def arguments(number: int) -> list[str]:
        place = tmp_path / str(number)
        return ["--table", str(place / "job.py"), "--bootstrap", bootstrap, "--checkpoints", str(place / "checkpoints")]

    with JobProcess(tmp_path / "first", *arguments(0), environment=environments[0]) as first:
        wait_until("the first one runs", lambda: bool(first.events("running")), first)
        with JobProcess(tmp_path / "second", *arguments(1), "--once", environment=environments[1]) as second:
            assert second.process.wait(WAIT_S) == 0, second.errors()
        for number, environment in enumerate(environments):
            listed = command("job", "list", "--json", "--bootstrap", bootstrap, environment=environment)
            [state] = [one for line in listed.stdout.splitlines() if (one := json.loads(line))["table"] == name]
            assert state["running"] is (number == 0)
            gateway = GatewayProcess(
                tmp_path / f"data-{number}",
                bootstrap,
                contract=tmp_path / str(number) / "orders.proto",
                workers=1,
                reflection=True,
                tables_topic=None,
            )
            gateway.environment = environment
            with gateway:
                soon(lambda: counted(gateway, name) == str(3 + number), "the row of this one")  # noqa: B023
    topics = kafka.topics()
    ours = {topic for topic in topics if topic.removeprefix("shop.").startswith(name)}
    assert ours == {f"{prefix}{name}-{end}" for prefix in ("", "shop.") for end in ("g1-changelog", "dead-letters")}
    assert "shop.tables" in topics


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_gateway_takes_up_files_that_change(kafka: SecureKafka, tmp_path: Path, mechanism: str) -> None:
    topic = f"rotated-{mechanism.lower()}"
    create_topic(kafka.broker.bootstrap, topic, 1, {})
    kafka.allow("gateway", [(TOPIC, topic, READ)])
    if mechanism == "SSL":
        settings = load_settings(kafka.settings(mechanism, "gateway"), environ={})
        other = load_settings(kafka.settings(mechanism, "gateway", is_known_ca=False), environ={})
        assert settings.ca_file is not None
        assert other.ca_file is not None
        file, correct, wrong = tmp_path / "ca.pem", settings.ca_file.read_text(), other.ca_file.read_text()
        settings = replace(settings, ca_file=file)
    else:
        settings = load_settings(kafka.settings(mechanism, "gateway", password="old"), environ={})
        file, correct, wrong = Path(*settings.secret_files().values()), kafka.password("gateway"), "old"
    file.write_text(wrong)
    options = FreshOptions(settings.librdkafka(), settings.secret_files())
    # A password needs no new client.
    renew_s = 1.0 if mechanism in ("SSL", "OAUTHBEARER") else 3_600.0
    with closing(KafkaLog(settings.bootstrap, options, request_timeout_s=1.0, quiet_s=0.0, renew_s=renew_s)) as log:
        log.follow(TopicPartition(topic, 0), Place(Offset(0)))
        for text in (wrong, correct[: len(correct) // 2], ""):  # as an editor leaves it for a moment
            file.write_text(text)
            with pytest.raises(LogUnavailable):
                log.describe_topic(topic).result(WAIT_S)
            log.fetch(records_max=1, timeout_s=0.0)
        (tmp_path / "new").write_text(correct)
        (tmp_path / "new").rename(file)
        produce(kafka.broker.bootstrap, topic, [NewRecord(b"key", b"value")])
        found: list[Fetched] = []

        def is_read() -> bool:
            with suppress(LogUnavailable):
                log.describe_topic(topic).result(WAIT_S)
            found.extend(log.fetch(records_max=10, timeout_s=0.1))
            return [record.value for one in found for record in one.records] == [b"value"]

        soon(is_read, "the record is read")


def test_a_job_tells_of_a_file_that_has_changed(kafka: SecureKafka, tmp_path: Path) -> None:
    name, source = "watching", "watching-orders"
    create_topic(kafka.broker.bootstrap, source, 1, {})
    job = write_job(tmp_path, name, source)
    kafka.allow("job", job_rights(name, source))
    file = kafka.settings("PLAIN", "job")
    arguments = ("--table", job, "--kafka", str(file), "--checkpoints", str(tmp_path / "checkpoints"))
    with JobProcess(tmp_path / "job", *arguments) as running:
        running.wait_for("running")
        (file.parent / "password").write_text(kafka.password("job"))
        running.wait_for("kafka_file_changed")
        [event] = running.events("kafka_file_changed")
        assert event["file"] == str(file.parent / "password")
        assert "start the job again" in event["hint"]
        assert running.stop() == 0


@pytest.mark.parametrize("mechanism", WITH_LONG[1:])
def test_a_wrong_password_is_a_sentence(kafka: SecureKafka, tmp_path: Path, mechanism: str) -> None:
    wrong = str(kafka.settings(mechanism, "job", password="wrong"))
    user = 'client "job" by a token of' if mechanism == "OAUTHBEARER" else 'user "job" ('
    for line in (refusal("job", "list", "--kafka", wrong), _serve(tmp_path, wrong)):
        assert line.startswith(f"error: Kafka at {kafka.bootstrap(mechanism)} does not let in {user}")
        assert "correct username, password or mechanism" in line or "correct oauth_client_id, its secret" in line


AWS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "no-secret-of-anybody"}


def msk_settings(kafka: SecureKafka) -> Path:
    """Write the file of `--kafka` for IAM of MSK, which this broker takes for an OAUTHBEARER of its own."""
    plain = kafka.settings("PLAIN", "nobody")
    lines = [line for line in plain.read_text().splitlines() if "username" not in line and "password" not in line]
    file = plain.with_name("msk.toml")
    file.write_text("\n".join(lines).replace('"PLAIN"', '"AWS_MSK_IAM"') + '\naws_region = "eu-west-1"\n')
    return file


def test_a_signature_for_msk_comes_to_the_broker(kafka: SecureKafka, tmp_path: Path) -> None:
    """A broker of MSK would let it in; this one looks for claims in it, and says that there are none."""
    contract = str(Path(write_job(tmp_path, "orders", "orders")).with_name("orders.proto"))
    file = str(msk_settings(kafka))
    for words in (("job", "list"), ("serve", "--contract", contract, "--data", str(tmp_path / "data"))):
        done = command(*words, "--kafka", file, environment=AWS)
        assert done.returncode == 1
        why = f"error: Kafka at {kafka.bootstrap('PLAIN')} does not let in who has the credentials of AWS here ("
        assert why in done.stderr
        assert done.stderr.rstrip().endswith("allow it kafka-cluster:Connect, or give other credentials of AWS")


SPARK_WRITES = """
import sys
from pathlib import Path

from tablegate.gateway.contract.kafka_settings import load_settings, spark_options, use
from tablegate.jobs.running.session import spark_session

bootstrap = use(load_settings(Path(sys.argv[1])))
with spark_session("msk", master="local[1]", checkpoints="unused", spark_log=Path(sys.argv[2])) as spark:
    rows = spark.range(1).selectExpr("CAST('1' AS BINARY) AS value", "'orders' AS topic")
    rows.write.format("kafka").options(**spark_options(bootstrap), **{"kafka.max.block.ms": "5000"}).save()
"""


def test_spark_has_the_mechanism_of_msk(kafka: SecureKafka, tmp_path: Path) -> None:
    """A job's Spark gets the jar: the broker is asked for the mechanism, which it does not have."""
    job = tmp_path / "write.py"
    job.write_text(SPARK_WRITES)
    variables = {**os.environ, **AWS}
    run = [sys.executable, str(job), str(msk_settings(kafka)), str(tmp_path / "spark.log")]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=WAIT_S, env=variables)
    refused = "Client SASL mechanism 'AWS_MSK_IAM' not enabled in the server"
    assert refused in (tmp_path / "spark.log").read_text() + done.stderr


def test_an_unknown_ca_is_a_sentence(kafka: SecureKafka, tmp_path: Path) -> None:
    wrong = str(kafka.settings("SSL", "job", is_known_ca=False))
    for line in (refusal("job", "list", "--kafka", wrong), _serve(tmp_path, wrong)):
        assert line.startswith(f"error: Kafka at {kafka.bootstrap('SSL')} has a certificate that ca_file ")
        assert line.endswith("does not prove; give the CA that signed it")


def test_a_gateway_names_the_right_that_it_lacks(kafka: SecureKafka, tmp_path: Path) -> None:
    gateway = GatewayProcess(
        tmp_path / "data",
        kafka.bootstrap("PLAIN"),
        contract=Path(write_job(tmp_path, "orders", "orders")).with_name("orders.proto"),
        workers=1,
        options=["--kafka", str(kafka.settings("PLAIN", "nobody"))],
    )
    why = 'Kafka gives user "nobody" no right to Read on topic "tables"; add it with kafka-acls.sh --add '
    with gateway:
        soon(lambda: why in gateway.log_file.read_text().replace('\\"', '"'), why)


def test_table_add_names_the_right_to_read_that_it_lacks(kafka: SecureKafka, tmp_path: Path) -> None:
    """It said that the topic had no records yet."""
    contract = Path(write_job(tmp_path, "orders", "orders")).with_name("orders.proto")
    for topic in ("theirs", "tables"):
        if topic not in kafka.topics():
            create_topic(kafka.broker.bootstrap, topic, 1, {})
    produce(kafka.broker.bootstrap, "theirs", [NewRecord(b"ann", b"{}")])
    rights = [(TOPIC, "theirs", DESCRIBE), (TOPIC, "theirs", DESCRIBE_CONFIGS), (TOPIC, "tables", READ)]
    kafka.allow("nobody", rights)
    words = ("table", "add", "orders", "--topic", "theirs", "--key", "utf8", "--value", "json")
    line = refusal(
        *words, "--retention", "7d", "--contract", str(contract), "--kafka", str(kafka.settings("PLAIN", "nobody"))
    )
    kafka.forbid("nobody", rights)
    assert line.startswith(
        'error: Kafka gives user "nobody" no right to Read on topic "theirs"; add it with kafka-acls.sh'
    )


@pytest.mark.parametrize(
    ("missing", "why"),
    [
        ((TOPIC, "purchases", READ), 'Describe on topic "purchases"'),
        ((TOPIC, "tables", DESCRIBE_CONFIGS), 'DescribeConfigs on topic "tables"'),
        ((TOPIC, "strict-", CREATE), 'Create on topic "strict-g1-changelog"'),
        ((GROUP, "tablegate", READ), 'Describe on group "tablegate-'),
    ],
)
def test_a_job_names_the_right_that_it_lacks(kafka: SecureKafka, tmp_path: Path, missing: Right, why: str) -> None:
    if "purchases" not in kafka.topics():
        create_topic(kafka.broker.bootstrap, "purchases", 1, {})
    job = write_job(tmp_path, "strict", "purchases")
    kafka.allow("nobody", job_rights("strict", "purchases"))
    kafka.forbid("nobody", [missing])
    settings = str(kafka.settings("PLAIN", "nobody"))
    line = refusal("job", "run", job, "--kafka", settings, "--checkpoints", str(tmp_path / "checkpoints"))
    kafka.forbid("nobody", [right for right in job_rights("strict", "purchases") if right != missing])
    assert f'Kafka gives user "nobody" no right to {why}' in line
    assert "; add it with kafka-acls.sh --add --allow-principal User:nobody --operation" in line


def _serve(tmp_path: Path, kafka: str) -> str:
    contract = str(Path(write_job(tmp_path, "orders", "orders")).with_name("orders.proto"))
    return refusal("serve", "--contract", contract, "--kafka", kafka, "--data", str(tmp_path / "data"))
