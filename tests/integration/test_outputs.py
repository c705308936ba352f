"""Outputs that get records of a source: what shares a query, where each goes on, and what goes to which topic."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tablegate.examples.demo.kafka import Broker
from tablegate.jobs.errors import JobError
from tablegate.jobs.planning.plan import Plan, plan_without_cluster
from tablegate.jobs.running.checkpoint import OFFSETS, Checkpoint
from tablegate.jobs.running.outputs import PLACES_FILE, IdempotentSink, OutputQuery, keep_places, output_queries
from tablegate.jobs.table import Json, Long, Mode, Output, RecordOutput, Source, Table, Text
from tablegate.jobs.testing import Event, run_table
from tests.kit.job.counting_job import CONTRACT
from tests.kit.programs.kafka import NewRecord, consume, new_topic, produce

pytestmark = [pytest.mark.jvm, pytest.mark.usefixtures("spark")]  # the kit takes the session that is there

FIELDS = "customer STRING, amount STRING, lines ARRAY<STRUCT<item: STRING>>, tags ARRAY<BIGINT>"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    (tmp_path / "orders.proto").write_text(CONTRACT.read_text())
    return Table(
        name="order_totals",
        contract=str(tmp_path / "orders.proto"),
        source=Source("orders", Json(FIELDS)),
        key={"customer": "customer"},
        columns={"order_count": "count(*)", "amount": "sum(try_cast(amount AS DOUBLE))"},
        mode=Mode.MICROBATCH,
    )


def order(customer: str, amount: str, *, lines: list[str] | None = None, tags: list[int] | None = None) -> Event:
    items = None if lines is None else [{"item": line} for line in lines]
    return Event("orders", value={"customer": customer, "amount": amount, "lines": items, "tags": tags})


def copied(topic: str) -> RecordOutput:
    return RecordOutput(topic, key=Text("customer"), value=Text("amount"))


def test_each_output_gets_its_records_in_order(table: Table) -> None:
    outputs: tuple[Output, ...] = (
        RecordOutput("lines", each="lines", key=Text("customer"), value=Text("item.item")),
        RecordOutput("numbers", key=Text("customer"), value=Long("CAST(amount AS BIGINT)"), where="amount <> '9'"),
        copied("copies"),
        RecordOutput("tags", each="tags", key=Text("customer"), value=Long("10 DIV item")),
        RecordOutput("copies", key=Text("customer"), value=Text("concat(amount, '!')")),
    )
    events = [
        order("ann", "1", lines=["a", "b"], tags=[5, 0, 2]),
        order("bob", "many", lines=[]),
        order("ann", "9", lines=["c"], tags=[1]),
    ]
    result = run_table(replace(table, outputs=outputs), events)
    assert result.outputs == {
        "lines": (("ann", "a"), ("ann", "b"), ("ann", "c")),
        "numbers": (("ann", 1),),
        "copies": (("ann", "1"), ("ann", "1!"), ("bob", "many"), ("bob", "many!"), ("ann", "9"), ("ann", "9!")),
        "tags": (("ann", 2), ("ann", 5), ("ann", 10)),
    }


def test_the_output_that_does_not_compute_is_named(table: Table) -> None:
    outputs = (copied("copies"), RecordOutput("wrong", each="line", key=Text("customer"), value=Text("item")))
    with pytest.raises(JobError, match='output "wrong" each= does not compute'):
        run_table(replace(table, outputs=outputs))
    with pytest.raises(JobError, match='output "after" does not compute'):  # `item` is of the other one alone
        run_table(
            replace(
                table,
                outputs=(
                    RecordOutput("lines", each="lines", key=Text("customer"), value=Text("item.item")),
                    RecordOutput("after", key=Text("customer"), value=Text("item.item")),
                ),
            )
        )


class Places:
    """The queries of a table's outputs, as one start of its job after the other has them."""

    def __init__(self, spark: SparkSession, table: Table, directory: Path) -> None:
        self._table = table
        self._directory = directory
        self.topic_id = ""
        self.checkpoint = Checkpoint(spark, self.plan(()).outputs_checkpoint)
        self._next_batch = 0

    def plan(self, outputs: tuple[Output, ...]) -> Plan:
        plan = plan_without_cluster(replace(self._table, outputs=outputs), str(self._directory))
        sides = {
            name: replace(side, topic=replace(side.topic, topic_id=self.topic_id)) for name, side in plan.sides.items()
        }
        return replace(plan, sides=sides)

    def queries(self, *topics: str) -> list[OutputQuery]:
        return output_queries(self.plan(tuple(map(copied, topics))), self.checkpoint)

    def start(self, *topics: str) -> dict[tuple[str, ...], list[str]]:
        """Start with outputs to these topics and run a batch; return the batches of each query, by its topics."""
        queries = self.queries(*topics)
        keep_places(queries, self.checkpoint)
        found = {}
        for query in queries:
            offsets = Path(self.checkpoint.query_location(query.name)) / "offsets"
            offsets.mkdir(parents=True, exist_ok=True)
            (offsets.parent / "metadata").touch()  # Spark writes one, with an id, where it finds none
            newest = self.checkpoint.newest_batch(query.name, OFFSETS)
            batches = range(0 if newest is None else newest + 1)
            texts = [*((offsets / str(batch)).read_text() for batch in batches), f"batch {self._next_batch}"]
            (offsets / str(len(batches))).write_text(texts[-1])
            found[tuple(output.topic for output in query.outputs)] = texts
        self._next_batch += 1
        return found


@pytest.fixture
def places(spark: SparkSession, table: Table, tmp_path: Path) -> Places:
    return Places(spark, table, tmp_path / "scratch")


def test_outputs_that_begin_together_stay_together(places: Places) -> None:
    assert places.start("a", "b") == {("a", "b"): ["batch 0"]}
    assert places.start("b", "a") == {("b", "a"): ["batch 0", "batch 1"]}


def test_an_output_that_is_added_begins_at_the_start(places: Places) -> None:
    places.start("a")
    assert places.start("a", "b", "c") == {("a",): ["batch 0", "batch 1"], ("b", "c"): ["batch 1"]}
    assert places.start("a", "b", "c") == {
        ("a",): ["batch 0", "batch 1", "batch 2"],
        ("b", "c"): ["batch 1", "batch 2"],
    }


def test_an_output_that_comes_back_goes_on_where_it_was(places: Places) -> None:
    places.start("a", "b", "c")
    assert places.start("a", "c") == {("a", "c"): ["batch 0", "batch 1"]}
    assert places.start("c") == {("c",): ["batch 0", "batch 1", "batch 2"]}
    assert places.start("a", "b", "c") == {
        ("a",): ["batch 0", "batch 1", "batch 3"],
        ("b",): ["batch 0", "batch 3"],
        ("c",): ["batch 0", "batch 1", "batch 2", "batch 3"],
    }


def test_a_topics_id_with_a_slash_makes_no_directory(places: Places) -> None:
    places.topic_id = "x/y/z"
    places.start("a")
    assert places.start("a") == {("a",): ["batch 0", "batch 1"]}
    (query,) = places.queries("a")
    assert (query.name, query.before) == ("a-x_y_z", "a-x_y_z")


def test_an_output_begun_under_a_name_with_a_slash_goes_on(places: Places) -> None:
    places.topic_id = "x/y"
    for name, number in (("a-x/y", 7), ("records-of-both", 8)):
        offsets = Path(places.checkpoint.query_location(name)) / "offsets"
        offsets.mkdir(parents=True)
        (offsets / "0").write_text(f"batch {number}")
    places.checkpoint.decide(PLACES_FILE, '{"b-x/y": "records-of-both", "c-x/y": "records-of-both"}')
    begun = Path(places.checkpoint.query_location("begun-batches/a-x/y.json"))
    begun.parent.mkdir(parents=True)
    begun.write_text("{}")
    assert places.start("a", "b", "c", "d") == {
        ("a",): ["batch 7", "batch 0"],
        ("b", "c"): ["batch 8", "batch 0"],
        ("d",): ["batch 0"],
    }
    assert {place for query in places.queries("a", "b", "c", "d") for place in query.places} == {
        "a-x/y",
        "b-x/y",
        "c-x/y",
        "d-x_y",
    }
    assert begun.exists(), "of the batch that it runs now"


def test_a_new_start_knows_nothing_of_batches_before(places: Places) -> None:
    (query,) = places.queries("a", "b", "c")
    files = [Path(places.checkpoint.query_location(f"begun-batches/{place}.json")) for place in query.places]
    files[0].parent.mkdir(parents=True)
    for file in files:
        file.write_text("{}")  # of a query whose checkpoint is gone
    places.start("a", "b")
    assert [file.exists() for file in files] == [False, False, True]
    files[0].write_text("{}")  # of the batch that it runs now
    places.start("a", "b", "c")
    assert [file.exists() for file in files] == [True, False, False]


def test_a_batch_done_again_leaves_out_what_its_own_query_wrote(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    topic = new_topic(broker.bootstrap, 2)
    checkpoint = Checkpoint(spark, str(tmp_path / "outputs"))
    ours, other = (IdempotentSink(broker.bootstrap, {topic: name}, f"{name}/orders", checkpoint) for name in "ab")

    def rows(*values: bytes) -> DataFrame:
        found = [(topic, value[:1], value) for value in values]
        return spark.createDataFrame(found, "topic STRING, key BINARY, value BINARY")

    ours.write_batch(rows(b"1"), 0)  # a kill comes before the rest of it
    other.write_batch(rows(b"1", b"2"), 0)
    produce(broker.bootstrap, topic, [NewRecord(b"2", b"2")])  # of somebody who has no header
    ours.write_batch(rows(b"1", b"2", b"2"), 0)
    ours.write_batch(rows(b"1"), 1)
    found = Counter((record.value, tuple(record.headers)) for record in consume(broker.bootstrap, topic))
    by_ours, by_other = ((("w", f"{name}/orders".encode()),) for name in "ab")
    assert found == {(b"1", by_ours): 2, (b"2", by_ours): 2, (b"1", by_other): 1, (b"2", by_other): 1, (b"2", ()): 1}


def test_a_copy_has_no_id_of_another_query(places: Places) -> None:
    places.start("a", "b")
    (alone,) = places.queries("a")
    keep_places([alone], places.checkpoint)
    directory = Path(places.checkpoint.query_location(alone.name))
    assert (directory / "offsets" / "0").exists()
    assert not (directory / "metadata").exists()


def test_a_copy_that_a_crash_cut_off_is_made_again(places: Places) -> None:
    places.start("a", "b")
    (alone,) = places.queries("a")
    half = Path(places.checkpoint.query_location(alone.name)) / "offsets"
    half.mkdir(parents=True)
    (half / "7").write_text("half")
    assert places.start("a") == {("a",): ["batch 0", "batch 1"]}


def test_places_that_cannot_be_read_are_no_new_start(places: Places) -> None:
    places.start("a", "b")
    file = Path(places.checkpoint.query_location(PLACES_FILE))
    file.write_text("{")
    file.with_name(f".{PLACES_FILE}.crc").unlink()  # with it, Spark's file system refuses the file before it is read
    with pytest.raises(JobError, match=r"damaged outputs\.json"):
        places.queries("a", "b")
