"""Sources by pattern: topics that are there at the start, that come while the job runs or is away, and that go."""

import json
import uuid
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from tablegate.client.failures import failure_of
from tablegate.examples.demo.kafka import Broker
from tablegate.examples.samples import create_topic
from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.descriptors import load_descriptors
from tablegate.gateway.contract.registry_settings import RegistrySettings
from tablegate.gateway.contract.types import VERSION_HEADER, Version, read_version
from tablegate.jobs.errors import JobError
from tablegate.jobs.frame_table import FrameTable
from tablegate.jobs.kafka.manifests import read_manifest
from tablegate.jobs.planning.declarations import load_table
from tablegate.jobs.planning.options import Options
from tablegate.jobs.running.operations import start_at_offsets
from tablegate.jobs.table import Json, Mode, RowOutput, Source, Table, Text
from tablegate.jobs.testing import Event, UnfitEvent, run_table
from tests.kit.gateway_processes.gateway import GatewayProcess, soon
from tests.kit.gateway_processes.row_queries import RowQueries
from tests.kit.job.counting_job import CONTRACT, JobInProcess, newest_by_key, orders, rows, write_job
from tests.kit.job.process import wait_until
from tests.kit.programs.kafka import NewRecord, consume, delete_topic, drop_records, produce

pytestmark = [pytest.mark.jvm, pytest.mark.usefixtures("spark")]  # the kit takes the session that is there

ORDERS = Json("customer STRING, amount DOUBLE")


def sums(prefix: str) -> dict[str, str]:
    return {"order_count": "count(*)", "amount": f"CAST(count_if(kafka.topic = '{prefix}.b') AS DOUBLE)"}


class Declared:
    """A table `<prefix>_totals` of all topics whose names begin with the prefix, its own changelog's among them."""

    def __init__(self, broker: Broker, directory: Path, mode: str = "MICROBATCH", columns: Any = None) -> None:
        self.bootstrap = broker.bootstrap
        self.prefix = f"p{uuid.uuid4().hex[:8]}"
        self.name = f"{self.prefix}_totals"
        self.job = write_job(
            directory,
            self.name,
            f"{self.prefix}.*",
            columns=columns or sums(self.prefix),
            source=", pattern=True",
            more=f"mode=Mode.{mode}",
        )

    def topic(self, name: str, count: int, *, partitions: int = 1) -> str:
        """Create a topic with so many orders of ann."""
        topic = f"{self.prefix}.{name}"
        create_topic(self.bootstrap, topic, partitions, {})
        produce(self.bootstrap, topic, orders("ann", count))
        return topic

    def of_ann(self, generation: int = 1) -> tuple[int, float]:
        return rows(self.bootstrap, self.job, generation)["ann"]

    def sources(self) -> list[str]:
        manifest = read_manifest(self.bootstrap, self.name)
        return [source.topic for source in manifest.sources] if manifest is not None else []


def test_topics_are_taken_up_when_they_come(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options
) -> None:
    declared = Declared(broker, tmp_path)
    first, second = declared.topic("a", 2), declared.topic("b", 3, partitions=2)
    produce(broker.bootstrap, second, [NewRecord(b"ann", b"malformed", partition=1)])
    with JobInProcess(spark, declared.job, options) as running:
        running.run_until_read(first, 2)
        running.run_until_read(second, 4)
        assert declared.sources() == [first, second]
        # While it runs: the names of its own topics match, too, and of what other jobs write.
        create_topic(broker.bootstrap, f"{declared.prefix}-g1-changelog", 1, {})
        third = declared.topic("c", 4)
        running.run_until_read(third, 4)
        assert running.table.next_offsets.keys() == {first, second, third}
        assert declared.sources() == [first, second, third]
    assert declared.of_ann() == (9, 3.0)
    # While it is away; its name comes before the others.
    fourth = declared.topic("0", 5)
    produce(broker.bootstrap, fourth, [NewRecord(b"ann", b"malformed, too")])
    produce(broker.bootstrap, first, orders("ann", 1))

    def are_set_aside() -> bool:
        running.table.poll()
        letters = {letter.value for letter in consume(broker.bootstrap, f"{declared.name}-dead-letters")}
        return letters == {b"malformed", b"malformed, too"}  # one may be there twice

    with JobInProcess(spark, declared.job, options) as running:
        running.run_until_read(fourth, 6)
        running.run_until_read(first, 3)
        wait_until("both are set aside", are_set_aside)
    assert declared.of_ann() == (15, 3.0)
    assert start_at_offsets(load_table(declared.job), broker.bootstrap, {fourth: {0: 1}}).offsets == {fourth: {0: 1}}
    with pytest.raises(JobError, match=f'"{declared.prefix}.x" is not a source .* it reads "{fourth}", "{first}"'):
        start_at_offsets(load_table(declared.job), broker.bootstrap, {f"{declared.prefix}.x": {0: 1}})


def test_own_writes_to_a_topic_that_has_come_are_read(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options
) -> None:
    declared = Declared(broker, tmp_path)
    first = declared.topic("a", 2)
    contract = tmp_path / "orders.proto"
    with (
        JobInProcess(spark, declared.job, options) as running,
        GatewayProcess(tmp_path / "gateway", broker.bootstrap, contract=contract, workers=1) as gateway,
    ):
        queries = RowQueries(gateway, bind(load_descriptors(contract)).queries.values())

        def count_at(topic: str, offset: int) -> int | str:
            """Return how many orders an answer has that has a record in it; or why there is none."""
            running.table.poll()
            position = {"topic": topic, "offsets": {0: offset}}
            try:
                read_options = {"at_least_source": {"topics": [position]}}
                return int(queries.get(customer="ann", read_options=read_options).order_count)
            except grpc.RpcError as error:
                return failure_of(error).reason

        soon(lambda: count_at(first, 1) == 2, "the first topic's orders", 120)
        assert count_at(f"{declared.prefix}.b", 2) == "UNTRACKED_SOURCE"
        second = declared.topic("b", 3)
        seen = set()

        def has_come() -> bool:
            seen.add(found := count_at(second, 2))
            return found == 5

        soon(has_come, "the second topic's orders", 120)
        # An answer with less would not have had the record in it.
        assert seen <= {"UNTRACKED_SOURCE", "NOT_CAUGHT_UP", 5}, seen


def test_matched_topic_that_is_gone(spark: SparkSession, broker: Broker, tmp_path: Path, options: Options) -> None:
    declared = Declared(broker, tmp_path)
    first, second = declared.topic("a", 2), declared.topic("b", 3)
    with JobInProcess(spark, declared.job, options) as running:
        running.run_until_read(first, 2)
        running.run_until_read(second, 3)
        delete_topic(broker.bootstrap, second)
        with pytest.raises(JobError, match=f'table "{declared.name}" has stopped, as .*{second}'):
            running.run_until_read(first, 1_000)
    with pytest.raises(JobError, match=f'source topic "{second}" .* which a pattern has matched, is not there'):
        JobInProcess(spark, declared.job, options)
    with pytest.raises(JobError, match=f'can no longer be read: 3 of source topic "{second}"'):
        JobInProcess(spark, declared.job, options, generation=2, is_rebuild=True)
    # Whoever accepts that has what is left.
    accepting = replace(options, accept_loss=True)
    with JobInProcess(spark, declared.job, accepting, generation=2, is_rebuild=True) as running:
        running.run_until_read(first, 2)
    assert declared.of_ann(2) == (2, 0.0)
    # Another one of its name is not the one that was read.
    create_topic(broker.bootstrap, second, 1, {})
    with pytest.raises(JobError, match=f'source topic "{second}" as it was before it was deleted and created again'):
        JobInProcess(spark, declared.job, options)
    delete_topic(broker.bootstrap, first)
    delete_topic(broker.bootstrap, second)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    soon(lambda: not {first, second} & admin.list_topics(timeout=20).topics.keys(), "the broker lists neither")
    with pytest.raises(JobError, match=r"reads the topics that .* matches, and there is none; create one, or correct"):
        JobInProcess(spark, declared.job, options)


def test_topic_waits_for_its_first_schema(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options, schema_registry: str
) -> None:
    declared = Declared(broker, tmp_path)
    declaration = Path(declared.job)
    text = declaration.read_text().replace('Json("customer STRING, amount DOUBLE")', f"Avro({schema()!r})")
    declaration.write_text(text.replace("import Json", "import Avro, Json"))
    first, second = f"{declared.prefix}.a", f"{declared.prefix}.b"
    for topic in (first, second):
        create_topic(broker.bootstrap, topic, 1, {})
    options = replace(options, registry=RegistrySettings(url=schema_registry))
    with pytest.raises(JobError, match=r"of the topics that .* matches, the schema registry has no schema"):
        JobInProcess(spark, declared.job, options)
    with closing(SchemaRegistryClient({"url": schema_registry})) as client:

        def write(topic: str, **more: object) -> None:
            context = SerializationContext(topic, MessageField.VALUE)
            value = AvroSerializer(client, schema(*more))({"customer": "ann", "amount": 1.0, **more}, context)
            produce(broker.bootstrap, topic, [NewRecord(b"ann", value)])

        write(first)
        with JobInProcess(spark, declared.job, options) as running:
            running.run_until_read(first, 1)
            write(second, source="shop")
            running.run_until_read(second, 1)
    written = newest_by_key(broker.bootstrap, declared.job).values()
    assert [read_version(Version(dict(record.headers)[VERSION_HEADER])) for record in written] == [(1, 2)]


def schema(*more: str) -> str:
    """Return the schema of an order, with more fields that are texts."""
    fields = [{"name": "customer", "type": "string"}, {"name": "amount", "type": "double"}]
    fields += [{"name": name, "type": "string"} for name in more]
    return json.dumps({"type": "record", "name": "Order", "namespace": "patterns", "fields": fields})


def test_matched_topic_that_has_lost_its_head_is_refused(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options
) -> None:
    declared = Declared(broker, tmp_path)
    first = declared.topic("a", 2)
    with JobInProcess(spark, declared.job, options) as running:
        running.run_until_read(first, 2)
    second = declared.topic("b", 5)
    drop_records(broker.bootstrap, second, 3)
    with pytest.raises(JobError, match=f'"{second}" partition 0 has dropped 3 records that table .* offsets 0 to 2;'):
        JobInProcess(spark, declared.job, options)


def test_realtime_mode_takes_topics_up_with_its_next_start(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options, capsys: pytest.CaptureFixture[str]
) -> None:
    declared = Declared(broker, tmp_path, mode="REALTIME, trigger_s=5")
    first = declared.topic("a", 2)

    def is_waiting() -> bool:
        running.table.poll()
        return "topics_waiting" in capsys.readouterr().out

    with JobInProcess(spark, declared.job, options) as running:
        running.run_until_read(first, 2)
        second = declared.topic("b", 3)
        wait_until("the topic waits", is_waiting)
        produce(broker.bootstrap, first, orders("ann", 1))
        running.run_until_read(first, 3)
        assert running.table.next_offsets.keys() == {first}
    with JobInProcess(spark, declared.job, options) as running:
        running.run_until_read(second, 3)
        produce(broker.bootstrap, second, orders("ann", 1))
        running.run_until_read(second, 4)
    assert declared.of_ann() == (7, 4.0)


def order(topic: str, customer: str | None, amount: float) -> Event:
    return Event(topic, value={"customer": customer, "amount": amount})


def counted(orders: DataFrame) -> DataFrame:
    return orders.groupBy("customer").agg(sql.count("*").alias("order_count"), sql.sum("amount").alias("amount"))


def test_kit_gives_topics_to_patterns(tmp_path: Path) -> None:
    (tmp_path / "orders.proto").write_text(CONTRACT.read_text())
    contract = str(tmp_path / "orders.proto")
    table = Table(
        name="order_totals",
        contract=contract,
        source=Source(r"orders\.(eu|us)'?", ORDERS, pattern=True),
        key={"customer": "customer"},
        columns={"order_count": "count_if(kafka.topic = 'orders.us')", "amount": "sum(amount)"},
        outputs=(RowOutput("totals", key=Text("customer"), value=Text("amount")),),
        mode=Mode.MICROBATCH,
    )
    batches = [order("orders.eu", "ann", 1.0)], [order("orders.us", "ann", 2.0), order("orders.eu", None, 8.0)]
    result = run_table(table, *batches)
    assert result.rows == {("ann",): {"order_count": 1, "amount": 3.0}}
    assert [(letter.topic, letter.offset) for letter in result.dead_letters] == [("orders.eu", 1)]
    assert result.outputs["totals"] == (("ann", "1.0"), ("ann", "3.0"))
    assert run_table(table).rows == {}
    with pytest.raises(UnfitEvent, match=r'topic "orders" is none of the table\'s: "orders\\.\(eu\|us\)'):
        run_table(table, [order("orders", "ann", 1.0)])
    frames = FrameTable(
        name="order_totals", contract=contract, rows=counted, sources={"orders": Source(".*", ORDERS, pattern=True)}
    )
    assert run_table(frames, *batches).rows[("ann",)] == {"order_count": 2, "amount": 3.0}
    with pytest.raises(UnfitEvent, match='topic "a-dead-letters" is one that a pattern never matches'):
        run_table(frames, [order("a-dead-letters", "ann", 1.0)])
