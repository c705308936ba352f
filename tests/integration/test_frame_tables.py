"""Tables of functions in jobs: what a Spark developer does to streams, by the testing kit and by Kafka and Spark."""

import json
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tablegate.examples.demo.kafka import Broker
from tablegate.jobs import FrameTable, Mode, Table
from tablegate.jobs.errors import JobError
from tablegate.jobs.kafka.topics import KafkaAdmin
from tablegate.jobs.testing import Event, run_table
from tests.kit.gateway_processes.gateway import GatewayProcess, soon
from tests.kit.job.process import JobProcess
from tests.kit.job.shop.tables import CUSTOMERS, FORECASTS, ORDERS, REVENUE, SESSIONS, VISITS_TABLE
from tests.kit.job.shop.written import ShopRows, write_shop
from tests.kit.programs.kafka import NewRecord, produce

pytestmark = pytest.mark.jvm

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def order(number: int, *lines: tuple[str, int, float]) -> Event:
    listed = [{"product": product, "pieces": pieces, "price": price} for product, pieces, price in lines]
    return Event("shop_orders", value={"id": number, "lines": listed})


def visit(user: int, pages: int, minute: int) -> Event:
    at = NOON.replace(minute=minute)
    return Event("shop_visits_of_users", value={"user": user, "pages": pages, "at": at}, timestamp=at)


def change(op: str, ts_ms: int, *, before: object = None, after: object = None) -> Event:
    return Event("shop_changes", value={"op": op, "ts_ms": ts_ms, "before": before, "after": after})


def test_order_lines_become_revenue_by_product() -> None:
    result = run_table(
        REVENUE,
        [order(1, ("pen", 2, 1.5), ("ink", 1, 4.0)), order(2, ("pen", 1, 1.5))],
        [order(3, ("ink", 1, 4.0)), Event("shop_orders", value=b"{no json")],
    )
    assert result.rows == {("pen",): {"revenue": 4.5, "pieces": 3}, ("ink",): {"revenue": 8.0, "pieces": 2}}
    assert [(change.key, change.batch) for change in result.changes[2:]] == [(("ink",), 2)]
    (letter,) = result.dead_letters
    assert (letter.topic, letter.offset, letter.value) == ("shop_orders", 3, b"{no json")


def test_a_stream_is_joined_with_a_table_and_scored_by_a_udf() -> None:
    result = run_table(VISITS_TABLE, [visit(1, 4, 0), visit(1, 6, 1), visit(2, 8, 0)])
    assert result.rows == {(1,): {"segment": "odd", "score": 3.0}, (2,): {"segment": "even", "score": 4.0}}


def test_a_fitted_model_gives_scores() -> None:
    result = run_table(FORECASTS, [Event("shop_houses", value={"house": 7, "size": 80.0})])
    assert result.rows[(7,)]["price"] == pytest.approx(170.0)


def test_sessions_end_by_their_gap() -> None:
    result = run_table(SESSIONS, [visit(1, 2, 0), visit(1, 3, 5)], [visit(1, 1, 30)])
    assert result.rows == {(1, NOON): {"pages": 5}}


def test_debeziums_changes_with_deletes() -> None:
    ann, bob = {"id": 1, "name": "Ann"}, {"id": 2, "name": "Bob"}
    result = run_table(
        CUSTOMERS,
        [change("c", 1, after=ann), change("u", 2, before=ann, after={"id": 1, "name": "Anna"})],
        [change("c", 3, after=bob), change("d", 4, before=ann), Event("shop_changes", value=None)],
    )
    assert result.rows == {(2,): {"name": "Bob"}}
    assert not result.dead_letters


def raising(orders: DataFrame) -> DataFrame:
    return orders.select(1 // 0)


def misspelt(orders: DataFrame) -> DataFrame:
    return orders.select("produkt")


def of_other_types(orders: DataFrame) -> DataFrame:
    return orders.selectExpr("id AS product", "1 AS revenue")


def no_stream(spark: SparkSession, orders: DataFrame) -> DataFrame:
    return spark.range(1)


def nothing(orders: DataFrame) -> None:
    return None


def sorted_lines(orders: DataFrame) -> DataFrame:
    return orders.selectExpr("'a' AS product", "1D AS revenue", "1L AS pieces").orderBy("product")


def line_in(function: Callable[..., Any]) -> str:
    return f"{__file__}:{function.__code__.co_firstlineno + 1}: "


@pytest.mark.parametrize(
    ("rows", "sentences"),
    [
        (raising, [f'{line_in(raising)}table "shop_revenue": its function does not run: ZeroDivisionError']),
        (misspelt, [line_in(misspelt), "produkt"]),
        (
            of_other_types,
            [
                'column "product" is bigint, the contract wants string: write CAST(product AS STRING)',
                'column "revenue" is int, the contract wants double: write CAST(revenue AS DOUBLE)',
                'column "pieces" is missing',
            ],
        ),
        (no_stream, ["returns a DataFrame that is no stream"]),
        (nothing, ["rows= returns NoneType; return a streaming DataFrame"]),
        (sorted_lines, ["does not run: ", "Sorting is not supported"]),
    ],
)
def test_what_a_function_returns_is_checked_first(rows: Callable[..., Any], sentences: list[str]) -> None:
    table = FrameTable(name="shop_revenue", contract=contract_of(), rows=rows, sources={"orders": ORDERS})
    with pytest.raises(JobError) as refused:
        run_table(table, [order(1, ("pen", 1, 1.0))])
    assert all(sentence in str(refused.value) for sentence in sentences), refused.value
    assert "\n" not in str(refused.value)


def contract_of() -> str:
    return str(Path(__file__).parents[1] / "kit" / "job" / "shop" / "shop.proto")


def lines(orders: DataFrame) -> DataFrame:
    return orders.selectExpr("id", "inline(lines)").selectExpr("product", "price AS revenue", "1L AS pieces", "id")


def test_of_several_rows_of_a_key_one_counts() -> None:
    table = FrameTable(name="shop_revenue", contract=contract_of(), rows=lines, sources={"orders": ORDERS})
    orders = [order(1, ("pen", 1, 1.0)), order(2, ("pen", 1, 2.0)), order(3, (None, 1, 2.0))]  # type: ignore[arg-type]
    with pytest.raises(JobError, match="several rows of one key; give order="):
        run_table(table, orders)
    ordered = FrameTable(name=table.name, contract=table.contract, rows=lines, sources=table.sources, order="id")
    result = run_table(ordered, orders)
    assert result.rows == {("pen",): {"revenue": 2.0, "pieces": 1}}
    (letter,) = result.dead_letters
    assert (letter.topic, letter.offset, letter.reason) == ("", -1, 'key column "product" is null')


def marked(orders: DataFrame) -> DataFrame:
    return orders.selectExpr("id", "inline(lines)").selectExpr(
        "product", "IF(price >= 0, price, NULL) AS revenue", "CAST(pieces AS BIGINT) AS pieces", "product AS text", "id"
    )


def table_of(rows: Callable[..., Any], **changes: Any) -> FrameTable:
    given: dict[str, Any] = {"name": "shop_revenue", "contract": contract_of(), "sources": {"orders": ORDERS}}
    return FrameTable(**{**given, **changes}, rows=rows)


def test_no_row_stops_the_others() -> None:
    """A key that no gateway takes, and a condition that cannot be computed: a batch would fail at each start again."""
    only = replace(ORDERS, where="5 DIV size(lines) > 0 AND CAST(substring(lines[0].product, 2) AS INT) < 9")
    orders = [
        order(1, ("a1", 1, 1.0), ("", 2, 2.0), ("b" * 500, 1, 1.0), ("bx", 1, 1.0)),
        order(2, ("ax", 1, 1.0)),
        order(3),
        order(4, ("a9", 1, 1.0)),
    ]
    table = table_of(marked, sources={"orders": only}, deletes="CAST(substring(text, 2) AS INT) > 8")
    result = run_table(table, orders)
    assert result.rows == {("a1",): {"revenue": 1.0, "pieces": 1}}
    reasons = [letter.reason for letter in result.dead_letters]
    assert sorted(reasons) == [
        "deletes= cannot be computed with this row",
        "deletes= cannot be computed with this row",
        "key has 502 bytes, more than 500",
    ]
    ordered = run_table(table_of(marked, order="CAST(substring(text, 2) AS INT)"), orders[:1])
    assert ("a1",) in ordered.rows
    assert {letter.reason for letter in ordered.dead_letters} >= {"order= cannot be computed with this row"}


def test_the_same_of_equal_rows_counts() -> None:
    several = [order(1, ("pen", 1, 1.0)), order(1, ("pen", 2, 2.0)), order(1, ("pen", 2, 1.0))]
    found = [run_table(table_of(marked, order="id"), some).rows for some in (several, several[::-1])]
    assert found[0] == found[1]


def as_they_come(visits: DataFrame) -> DataFrame:
    return visits.selectExpr("user", "at AS start", "CAST(pages AS BIGINT) AS pages")


def test_times_that_no_client_reads_are_in_no_row() -> None:
    first, last = datetime(1, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    moments = ["+10000-01-01T00:00:00Z", "0000-12-31T23:59:59Z", first, last]
    visits = [Event("shop_visits_of_users", value={"user": 1, "pages": 1, "at": at}) for at in moments]
    found = run_table(replace(SESSIONS, rows=as_they_come), visits)
    assert set(found.rows) == {(1, first), (1, last)}
    assert len(found.dead_letters) == 2
    table = Table(
        name="shop_sessions",
        contract=contract_of(),
        source=SESSIONS.sources["visits"],
        key={"user": "user", "start": "at"},
        columns={"pages": "sum(pages)"},
        mode=Mode.MICROBATCH,
    )
    assert set(run_table(table, visits).rows) == {(1, first), (1, last)}


def test_text_that_is_none_is_in_no_row() -> None:
    table = Table(
        name="shop_visits",
        contract=contract_of(),
        source=replace(VISITS_TABLE.sources["visits"], headers=True),
        key={"user": "user"},
        columns={"segment": "max(CAST(kafka.headers['segment'] AS STRING))", "score": "1D"},
        mode=Mode.MICROBATCH,
    )
    texts = {1: "é".encode(), 2: b"\xff", 3: None}
    visits = [replace(visit(user, 1, 0), headers=[("segment", text)]) for user, text in texts.items()]
    assert run_table(table, visits).rows == {(1,): {"segment": "é", "score": 1.0}, (3,): {"segment": "", "score": 1.0}}


def leaving(orders: DataFrame) -> DataFrame:
    sys.exit("bye")


def doubled(orders: DataFrame) -> DataFrame:
    return orders.selectExpr("'a' AS product", "1D AS revenue", "1L AS pieces", "'b' AS PRODUCT")


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (table_of(leaving), "its function does not run: SystemExit: bye"),
        (table_of(doubled), 'column "product" is there 2 times: drop all but one'),
        (table_of(marked, order="max(id)"), "order= does not compute: "),
        (table_of(marked, deletes="max(id) > 1"), "deletes= does not compute: "),
        (table_of(marked, order="map(id, 1)"), "order= does not compute: "),
    ],
)
def test_what_no_batch_could_compute_is_refused(table: FrameTable, sentence: str) -> None:
    with pytest.raises(JobError) as refused:
        run_table(table, [order(1, ("pen", 1, 1.0))])
    assert sentence in str(refused.value)
    assert "has stopped" not in str(refused.value)


def command(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "tablegate.gateway.cli", "job", *words], capture_output=True, text=True, check=False
    )


def send(broker: Broker, prefix: str, *events: Event) -> None:
    """Write events, in JSON, to topics of a prefix."""
    for event in events:
        body = json.dumps(event.value, default=str).encode()
        produce(broker.bootstrap, event.topic.replace("shop_", prefix), [NewRecord(None, body)])


@pytest.mark.long
def test_a_job_keeps_checks_and_rebuilds_tables_of_functions(broker: Broker, tmp_path: Path) -> None:
    prefix = f"shop{uuid.uuid4().hex[:8]}_"
    file = write_shop(tmp_path / "shop", prefix)
    contract = file.with_name("shop.proto")
    checked = command("check", str(file))
    assert checked.returncode == 0, checked.stderr
    assert f"ok {prefix}revenue: rows of a function, micro-batches" in checked.stdout

    admin = KafkaAdmin(broker.bootstrap)
    for topic in ("orders", "visits_of_users", "houses", "changes"):
        admin.ensure(f"{prefix}{topic}", {}, new_partition_count=1)
    ann = {"id": 1, "name": "Ann"}
    send(broker, prefix, order(1, ("pen", 2, 1.5), ("ink", 1, 4.0)), visit(1, 4, 0), visit(2, 8, 30))
    send(broker, prefix, Event("shop_houses", value={"house": 7, "size": 80.0}))
    send(broker, prefix, change("c", 1, after=ann), change("c", 2, after={"id": 2, "name": "Bob"}))
    arguments = ["--bootstrap", broker.bootstrap, "--checkpoints", str(tmp_path / "checkpoints")]
    with GatewayProcess(tmp_path / "data", broker.bootstrap, contract=contract, workers=1) as gateway:
        rows = ShopRows(gateway, contract, prefix)
        with JobProcess(tmp_path / "logs", "--table", str(file), *arguments) as job:
            soon(lambda: rows.of("customers", "id", "name") == [(1, "Ann"), (2, "Bob")], "the last table's rows", 120)
            soon(lambda: rows.of("revenue", "product", "pieces") == [("ink", 1), ("pen", 2)], "revenue")
            soon(lambda: rows.of("visits", "user", "score") == [(1, 2.0), (2, 4.0)], "visits")
            soon(lambda: rows.of("sessions", "user", "pages") == [(1, 4)], "the session that has ended")
            soon(lambda: [round(price) for _, price in rows.of("forecasts", "house", "price")] == [170], "forecasts")
            listed = json.loads(
                next(
                    line
                    for line in command("list", "--json", "--bootstrap", broker.bootstrap).stdout.splitlines()
                    if f"{prefix}revenue" in line
                )
            )
            assert (listed["running"], listed["mode"], listed["sources"]) == (True, "microbatch", [f"{prefix}orders"])
            assert listed["records_behind"] == 0
            soon(
                lambda: (
                    sum(event["changes"] for event in job.events("batch") if event["table"] == f"{prefix}revenue") == 2
                ),
                "the log counts its two rows",
            )
            job.kill()

        # It goes on from its checkpoints.
        send(broker, prefix, order(2, ("pen", 1, 1.5)), change("d", 3, before=ann), visit(1, 6, 40))
        with JobProcess(tmp_path / "logs", "--table", str(file), "--once", *arguments) as job:
            assert job.process.wait(180) == 0, job.errors()
        soon(lambda: rows.of("customers", "id", "name") == [(2, "Bob")], "the delete")
        soon(lambda: rows.of("visits", "user", "score") == [(1, 3.0), (2, 4.0)], "the visit")
        soon(lambda: rows.of("revenue", "product", "revenue") == [("ink", 4.0), ("pen", 4.5)], "the order")

        # Another function is refused, and builds the next generation.
        file.write_text(file.read_text().replace("pieces * price", "pieces * price * 10"))
        with JobProcess(tmp_path / "logs", "--table", f"{file}:{prefix}revenue", *arguments) as job:
            assert job.process.wait(180) == 1
            assert f'table "{prefix}revenue" has changed since generation 1 was begun: the code of rows' in job.errors()
        rebuilt = command("rebuild", f"{file}:{prefix}revenue", *arguments)
        assert rebuilt.returncode == 0, rebuilt.stderr
        soon(lambda: rows.of("revenue", "product", "revenue") == [("ink", 40.0), ("pen", 45.0)], "the new generation")
