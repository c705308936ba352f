"""A source with `each`: one record makes an input of each element of an array."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tablegate.examples.demo.kafka import Broker
from tablegate.jobs.errors import JobError
from tablegate.jobs.planning.options import Options
from tablegate.jobs.table import Json, Latest, Mode, Processor, RecordOutput, Source, Table, Text
from tablegate.jobs.testing import Event, run_table
from tests.kit.job.counting_job import CONTRACT, JobInProcess, Written, written
from tests.kit.job.process import wait_until
from tests.kit.programs.kafka import NewRecord, consume, new_topic, produce

pytestmark = [pytest.mark.jvm, pytest.mark.usefixtures("spark")]  # the kit takes the session that is there

FIELDS = "note STRING, lines ARRAY<STRUCT<customer: STRING, amount: STRING>>"
COLUMNS = {"order_count": "count(*)", "amount": "sum(CAST(item.amount AS DOUBLE))"}
JOB = """from tablegate.jobs import Json, Mode, Source, Table

TABLE = Table(
    name="{name}",
    contract="orders.proto",
    source=Source("{topic}", Json("{fields}"), each="lines"),
    key={{"customer": "item.customer"}},
    columns={columns},
    mode=Mode.{mode},
)
"""


def line(customer: str | None, amount: str = "1") -> dict[str, Any]:
    return {"customer": customer, "amount": amount}


def order(*lines: Any, note: str | None = None) -> Event:
    return Event("orders", value={"note": note, "lines": list(lines)})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    (tmp_path / "orders.proto").write_text(CONTRACT.read_text())
    return Table(
        name="order_totals",
        contract=str(tmp_path / "orders.proto"),
        source=Source("orders", Json(FIELDS), each="lines"),
        key={"customer": "item.customer"},
        columns=COLUMNS,
        mode=Mode.MICROBATCH,
    )


def row(count: int, amount: float) -> dict[str, Any]:
    return {"order_count": count, "amount": amount}


def test_each_element_is_an_input(table: Table) -> None:
    nothing = [order(), Event("orders", value={"note": "no lines"}), order(None)]
    result = run_table(
        table, [order(line("ann"), line("bob", "2"), line("ann", "4"))], [*nothing[:2], order(line("bob", "8"))]
    )
    assert result.rows == {("ann",): row(2, 5.0), ("bob",): row(2, 10.0)}
    assert (result.dead_letters, result.unseen_fields) == ((), ())


def test_record_with_bad_elements_is_set_aside_once(table: Table) -> None:
    bad = order(line("ann"), line(None), None, line("bob", "much"), line("ann", "2"))
    result = run_table(table, [bad, Event("orders", value=b"{"), Event("orders", value=None)])
    assert result.rows == {("ann",): row(2, 3.0)}
    assert [letter.offset for letter in result.dead_letters] == [0, 1, 2]
    assert result.dead_letters[0].reason == 'key column "customer" is null'


def test_where_sees_the_element(table: Table) -> None:
    source = replace(table.source_of(""), where="item.amount <> '0' AND note = 'yes'")
    events = [order(line("ann"), line("ann", "0"), note="yes"), order(line("ann"), note="no")]
    assert run_table(replace(table, source=source), events).rows == {("ann",): row(1, 1.0)}


def test_array_that_does_not_compute_is_malformed(table: Table) -> None:
    source = replace(table.source_of(""), each="transform(lines, one -> struct(one.customer, 1 / int(note) AS amount))")
    result = run_table(replace(table, source=source), [order(line("ann"), note="0"), order(line("bob"), note="1")])
    assert result.rows == {("bob",): row(1, 1.0)}
    assert [letter.reason for letter in result.dead_letters] == ["each cannot be computed with this record"]


def test_misspelt_array_is_told(table: Table) -> None:
    source = Source("orders", Json(FIELDS.replace("lines", "rows")), each="rows")
    result = run_table(
        replace(table, source=source), [Event("orders", value=b'{"note": "a", "lines": [{"customer": "ann"}]}')] * 2
    )
    assert (result.rows, result.unseen_fields) == ({}, ("orders: rows",))


@pytest.mark.parametrize(
    ("each", "words"),
    [
        ("note", 'source "orders" each is string, not array'),
        ("map(1, 2)", 'source "orders" each is map<int,int>, not array'),
        ("nothing", 'source "orders" each does not compute'),
    ],
)
def test_each_that_is_no_array_is_refused(table: Table, each: str, words: str) -> None:
    with pytest.raises(JobError, match=words):
        run_table(replace(table, source=replace(table.source_of(""), each=each)))


def test_beside_a_table_of_names(table: Table) -> None:
    sides = {"lines": table.source_of(""), "names": Latest(Source("names", Json("name STRING"), key=Text("customer")))}
    joined = replace(
        table,
        source=None,
        sides=sides,
        key={"customer": "lower(item.customer)"},
        columns={"order_count": "count(lines)", "amount": "sum(CAST(lines.item.amount AS DOUBLE))"},
    )
    joined = replace(joined, sides={**sides, "names": replace(sides["names"], key={"customer": "customer"})})
    named = Event("names", key="ann", value={"name": "Ann"})
    result = run_table(joined, [named, order(line("Ann", "2"), line("bob"), line("ann", "x"), line("ann"))])
    assert result.rows == {("ann",): row(2, 3.0)}
    assert [letter.offset for letter in result.dead_letters] == [0]


class Places(Processor):
    state = "places STRING"
    emits = "order_count BIGINT, amount DOUBLE"

    def on_record(self, key: Any, record: Any, state: Any) -> Iterator[dict[str, Any]]:
        state.places = (state.places or "") + str(record.kafka.element)
        assert record.item.amount == str(record.kafka.element)
        yield {"order_count": int(state.places), "amount": 0.0}


def test_processor_and_output_get_elements_in_their_order(table: Table) -> None:
    output = RecordOutput("lines", key=Text("item.customer"), value=Text("kafka.element"))
    processed = replace(
        table, processor=Places(), columns={"order_count": "order_count", "amount": "amount"}, outputs=(output,)
    )
    result = run_table(processed, [order(*(line("ann", str(place)) for place in range(8)))])
    assert result.rows == {("ann",): row(1234567, 0.0)}
    assert result.outputs == {"lines": tuple(("ann", str(place)) for place in range(8))}


@pytest.mark.parametrize("mode", ["MICROBATCH", "REALTIME, trigger_s=5"])
def test_job_reads_elements(spark: SparkSession, broker: Broker, tmp_path: Path, options: Options, mode: str) -> None:
    topic, name = new_topic(broker.bootstrap), f"elements_{mode[:5].lower()}"
    (tmp_path / "orders.proto").write_text(CONTRACT.read_text().replace('"order_totals"', f'"{name}"'))
    job = tmp_path / "job.py"
    job.write_text(JOB.format(name=name, topic=topic, fields=FIELDS, columns=COLUMNS, mode=mode))

    def record(*lines: Any) -> NewRecord:
        return NewRecord(None, json.dumps({"note": None, "lines": lines}).encode())

    def is_set_aside() -> bool:
        running.table.poll()
        return bool(consume(broker.bootstrap, f"{name}-dead-letters"))

    bad = record(line(None), line("bob", "5"), line(None), line("bob", "x"))
    good = record(line("ann"), line("bob"), line("ann", "2"))
    produce(broker.bootstrap, topic, [good, record(), record(line("ann")), bad])
    with JobInProcess(spark, str(job), options) as running:
        running.run_until_read(topic, 4)
        wait_until("the record is set aside", is_set_aside)
        produce(broker.bootstrap, topic, [record(line("bob"), line("bob"))])
        running.run_until_read(topic, 5)
    newest = {one.customer: one for one in written(broker.bootstrap, str(job))}
    assert newest == {"ann": Written("ann", 3, 3, 4.0, run=0), "bob": Written("bob", 4, 4, 8.0, run=0)}
    letters = consume(broker.bootstrap, f"{name}-dead-letters")
    assert [dict(letter.headers)["offset"] for letter in letters] == [b"3"]
    changes = [(one.customer, one.sequence) for one in written(broker.bootstrap, str(job))]
    assert len(set(changes)) == len(changes)  # no two changes of one version
