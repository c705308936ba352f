"""The test kit: declarations run on events by a real Spark, and come to what the folds say."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from tablegate.examples.samples import balances, browsers, customers, invoices, products, ratings, stocks
from tablegate.examples.samples.events import START_MS
from tablegate.jobs.errors import JobError
from tablegate.jobs.planning.declarations import load_table
from tablegate.jobs.table import (
    Global,
    Join,
    Json,
    Latest,
    Long,
    Mode,
    Processor,
    ProcessorOutput,
    RowOutput,
    Source,
    Table,
    Text,
    Window,
    rows_of,
)
from tablegate.jobs.testing import Change, DeadLetter, Event, Result, UnfitEvent, run_table, stop_spark
from tablegate.jobs.testing.events import START_TIME
from tablegate.jobs.testing.session import process_session
from tests.kit.job import fold_outputs, folds
from tests.kit.job.folds import Fold
from tests.kit.job.hard_events import extreme_bookings, hard, late_actions, malformed_like
from tests.kit.job.laid_records import Place, Record, lay

pytestmark = pytest.mark.jvm

BATCHES = 3


@pytest.fixture(scope="module", autouse=True)
def spark_ends_with_the_module() -> Iterator[None]:
    yield
    stop_spark()


def at(second: float) -> datetime:
    return START_TIME + timedelta(seconds=second)


def events_of(records: Iterable[Record]) -> list[Event]:
    return [
        Event(
            record.topic,
            key=record.key,
            value=record.value,
            partition=record.partition,
            timestamp=folds.time_of(record.timestamp_ms),
        )
        for record in records
    ]


def in_batches(records: Sequence[Record]) -> list[list[Event]]:
    events = events_of(records)
    size = len(events) // BATCHES + 1
    return [events[start : start + size] for start in range(0, len(events), size)]


def rating(movie_id: int, stars: float) -> Event:
    return Event("ratings", value={"movie_id": movie_id, "rating": stars})


class TestRowsThatExpire:
    SOURCE = Source("orders", Json("customer STRING, amount DOUBLE"))
    OUTPUT = RowOutput("changes", key=Text("customer"), value=Json("order_count"))
    TABLE = Table(
        name="order_totals",
        contract="gateway/tablegate/gateway/cli/starter-project/orders.proto",
        source=SOURCE,
        key={"customer": "customer"},
        columns={"order_count": "count(*)", "amount": "sum(amount)"},
        outputs=(OUTPUT,),
        expires_after_s=3_600,
        mode=Mode.MICROBATCH,
    )

    @staticmethod
    def order(customer: str, second: float) -> Event:
        return Event("orders", value={"customer": customer, "amount": 1.5}, timestamp=at(second))

    def test_are_deleted_before_the_batch_at_that_time(self) -> None:
        result = run_table(
            self.TABLE,
            [self.order("ann", 0), self.order("bob", 1_000)],
            [self.order("bob", 3_600)],
            [self.order("cem", 3_601), self.order("ann", 3_602)],
            [self.order("ann", 7_000)],
            then_wait_s=300,
        )
        changes = [(change.key[0], change.row and change.row["order_count"], change.batch) for change in result.changes]
        assert [*map(sorted, (changes[:2], changes[2:3]))] == [[("ann", 1, 1), ("bob", 1, 1)], [("bob", 2, 2)]]
        assert changes[3] == ("ann", None, 3)
        assert {*changes[4:6]} == {("ann", 1, 3), ("cem", 1, 3)}  # begun anew, behind its tombstone
        assert changes[6] == ("ann", 2, 4)
        assert {*changes[7:]} == {("bob", None, 5), ("cem", None, 5)}
        assert result.rows == {("ann",): {"order_count": 2, "amount": 3.0}}
        gone = [record.key for record in result.outputs["changes"] if record.value is None]
        assert sorted(gone) == ["ann", "bob", "cem"]

    def test_a_latest_side_forgets_its_deletes(self) -> None:
        table = replace(
            self.TABLE,
            source=None,
            outputs=(),
            sides={"order": Latest(Source("orders", Json("amount DOUBLE"), key=Text("customer")))},
            key={"customer": "customer"},
            columns={"order_count": "1", "amount": "order.amount"},
        )
        put = Event("orders", key="ann", value={"amount": 2.0}, timestamp=at(0))
        result = run_table(table, [put], [Event("orders", key="bob", value={"amount": 3.0}, timestamp=at(3_601))])
        assert list(result.rows) == [("bob",)]

    def test_an_aggregate_that_keeps_a_map_is_refused(self) -> None:
        columns = {**self.TABLE.columns, "amount": "double(size(first(map('a', amount))))"}
        with pytest.raises(JobError, match='"amount" has an aggregate that keeps a map'):
            run_table(replace(self.TABLE, columns=columns))


class TestRowsOfAnotherTable:
    CONTRACT = "gateway/tablegate/gateway/cli/starter-project/orders.proto"
    # Of another name than the table that is made of it, which has the same contract.
    TOTALS = replace(rows_of("order_totals", contract=CONTRACT, where="order_count > 0"), topic="totals")
    TABLE = replace(
        TestRowsThatExpire.TABLE,
        source=None,
        outputs=(),
        expires_after_s=None,
        sides={"totals": Latest(TOTALS)},
        columns={"order_count": "totals.order_count", "amount": "totals.amount * 2"},
    )

    @staticmethod
    def row(customer: str, count: int | None) -> Event:
        value = None if count is None else {"order_count": count, "amount": 1.0}
        return Event("totals", key={"customer": customer}, value=value)

    def test_newest_version_counts_and_deletes_delete(self) -> None:
        result = run_table(
            self.TABLE,
            [self.row("ann", 1), self.row("bob\0", 1), self.row("cem", 1)],
            [self.row("ann", 2), self.row("bob\0", None), self.row("cem", 0)],
            [Event("totals", key=b"\xff", value=None), Event("totals", key=b"", value=b"a marker")],
        )
        assert result.rows == {("ann",): {"order_count": 2, "amount": 2.0}}
        assert [letter.reason for letter in result.dead_letters] == ["key is not that of a row"]

    def test_events_of_other_keys_are_refused(self) -> None:
        for key in ("ann", {"client": "ann"}, {"customer": 1}):
            with pytest.raises(UnfitEvent, match="key"):
                run_table(self.TABLE, [Event("totals", key=key, value=None)])


class TestRatings:
    TABLE = load_table("ratings")

    def test_events_of_one_batch_make_one_change(self) -> None:
        result = run_table(self.TABLE, [rating(362, 10.0), rating(362, 8.0), rating(-1, 1.5)])
        assert result.rows == {
            (362,): {"average_rating": 9.0, "rating_count": 2, "update_time": at(1)},
            (-1,): {"average_rating": 1.5, "rating_count": 1, "update_time": at(2)},
        }
        assert sorted(result.outputs["rating-averages"]) == [(-1, 1.5), (362, 9.0)]
        assert {change.key: change.row for change in result.changes} == result.rows
        assert (result.dead_letters, result.ignored, result.late) == ((), {}, 0)

    def test_each_batch_makes_its_changes(self) -> None:
        result = run_table(self.TABLE, [rating(362, 10.0)], [], [rating(362, 8.0)])
        assert result.changes == (
            Change((362,), {"average_rating": 10.0, "rating_count": 1, "update_time": at(0)}, batch=1),
            Change((362,), {"average_rating": 9.0, "rating_count": 2, "update_time": at(1)}, batch=3),
        )
        assert result.outputs == {"rating-averages": ((362, 10.0), (362, 9.0))}

    def test_no_events(self) -> None:
        assert (
            run_table(self.TABLE)
            == run_table(self.TABLE, [])
            == Result(rows={}, changes=(), outputs={"rating-averages": ()}, dead_letters=(), ignored={}, late=0)
        )

    def test_malformed_events_are_told(self) -> None:
        result = run_table(self.TABLE, [Event("ratings", value=b"junk", key=b"k"), rating(1, 1.0)])
        assert result.dead_letters == (
            DeadLetter("ratings", 0, 0, b"k", b"junk", "value is not Avro in the Confluent wire format"),
        )
        assert list(result.rows) == [(1,)]


TABLES: dict[str, tuple[Any, Callable[[list[Record]], Fold]]] = {
    "ratings": (ratings, folds.fold_ratings),
    "balances": (balances, folds.fold_balances),
    "customers": (customers, folds.fold_customers),
    "suspicious_browsers": (browsers, folds.fold_suspicious_browsers),
    "stock_ticks": (stocks, folds.fold_stock_ticks),
    "product_views": (products, folds.fold_product_views),
    "reward_points": (invoices, folds.fold_reward_points),
}
BY_DAY = "balances", "customers", "product_views"
"""A table of one source, one of several, and one of a processor: jobs that keep all tables are held to the folds."""


@pytest.mark.parametrize(
    "name", [name if name in BY_DAY else pytest.param(name, marks=pytest.mark.long) for name in TABLES]
)
def test_hard_events_come_to_the_fold(name: str) -> None:
    system, fold = TABLES[name]
    good = [*system.known_events(), *(system.events(400, browsers=20) if system is browsers else system.events(400))]
    events = [
        *hard(good, malformed_share=0.3),
        *itertools.chain.from_iterable(malformed_like(event) for event in good[:3]),
    ]
    if name == "balances":
        events += extreme_bookings()
    records = [record for record in lay(events, system.TOPICS) if record.topic in topics_of(name)]
    result = run_table(load_table(name), *in_batches(records), then_wait_s=2)
    expected = fold(records)
    assert len(result.dead_letters) > 20
    assert {Place(one.topic, one.partition, one.offset) for one in result.dead_letters} == expected.malformed
    assert len(result.dead_letters) == len(expected.malformed)
    assert result.rows == expected.rows
    assert len(result.rows) > 1
    assert sum(result.ignored.values()) == expected.ignored
    check_outputs(name, result, expected, records)


def topics_of(name: str) -> set[str]:
    table = load_table(name)
    return {table.source_of(side).topic for side in table.all_sides}


def check_outputs(name: str, result: Result, expected: Fold, records: list[Record]) -> None:
    if name == "ratings":
        newest = dict(result.outputs["rating-averages"])
        assert newest == {key: row["average_rating"] for (key,), row in expected.rows.items()}
    if name == "customers":
        clients = dict(result.outputs["tp_clients"])
        found = {key.encode(): value for key, value in clients.items() if value is not None}
        assert found == fold_outputs.clients(expected)
    if name == "reward_points":
        shipped = Counter(value for _, value in result.outputs["shipment"])
        assert shipped == Counter(record.value for record in fold_outputs.shipments(records))
        fold_outputs.check_hadoop_records([value for _, value in result.outputs["hadoop-sink"]], records)
        fold_outputs.check_notifications([value for _, value in result.outputs["notification"]], records)


SIDES = {"tp_prospects": "name", "tp_accounts": "accountNumber", "tp_enrichment_accounts": "status"}
STEPS = len(SIDES) * 2


def test_customers_come_to_the_same_in_every_order_of_arrival() -> None:
    """Each side has two events, the second of which replaces the first or deletes it: 8 ways, in 90 orders each."""
    orders = sorted(set(itertools.permutations([*SIDES, *SIDES])))
    ways = list(itertools.product([True, False], repeat=len(SIDES)))
    batches: list[list[Event]] = [[] for _ in range(STEPS)]
    expected = {}
    for number, (order, way) in enumerate(itertools.product(orders, ways)):
        stays = dict(zip(SIDES, way, strict=True))
        seen: Counter[str] = Counter()
        for step, topic in enumerate(order):
            value = None if seen[topic] and not stays[topic] else {SIDES[topic]: f"{topic} {seen[topic]}"}
            seen[topic] += 1
            batches[step].append(Event(topic, key=str(number), value=value))
        if all(way):
            expected[number,] = {
                "name": "tp_prospects 1",
                "account_number": "tp_accounts 1",
                "status": "tp_enrichment_accounts 1",
            }
    assert (len(orders), len(ways), len(expected)) == (90, 8, 90)
    result = run_table(load_table("customers"), *batches)
    assert result.rows == expected
    # A customer whose last missing side comes at the end appears then.
    assert {change.batch for change in result.changes if change.row is not None} == {3, 4, 5, 6}


class TestBrowsers:
    TABLE = load_table("suspicious_browsers")

    def test_a_captcha_takes_the_row_until_it_is_forgotten(self) -> None:
        captchas = [
            [Event("captchas", key="b", value={"passed": True})],
            [Event("captchas", key="b", value=None)],
            [Event("captchas", key="b", value={"passed": False})],
        ]
        result = run_table(self.TABLE, [action("b") for _ in range(5)], *captchas)
        counted = {"action_count": 5}
        assert [change.row for change in result.changes] == [counted, None, counted, counted]
        assert result.rows == {("b",): counted}


def action(browser: str, second: float = 0.0) -> Event:
    return Event("browser_actions", value={"browser": browser, "action": "click", "time": at(second)})


class TestWindows:
    TABLE = load_table("action_counts")

    def test_windows(self) -> None:
        result = run_table(self.TABLE, [action("b", second) for second in (0, 1, 2)])
        assert {(key[0], (key[1] - START_TIME).total_seconds()): row for key, row in result.rows.items()} == {
            ("b", -4): {"window_end": at(1), "action_count": 1},
            ("b", -2): {"window_end": at(3), "action_count": 3},
            ("b", 0): {"window_end": at(5), "action_count": 3},
            ("b", 2): {"window_end": at(7), "action_count": 1},
        }

    def test_late_events_are_dropped(self) -> None:
        in_time = list(browsers.events(500))
        events = [*in_time, *late_actions(50, before_ms=START_MS), *browsers.events(100, seed=2)]
        records = [one for one in lay(events, browsers.TOPICS) if one.topic == "browser_actions"]
        late_from = sum(event.topic == "browser_actions" for event in in_time)
        late = events_of(records)[late_from : late_from + 50]
        result = run_table(self.TABLE, events_of(records[:late_from]), late, events_of(records[late_from + 50 :]))
        expected = folds.fold_action_counts(records)
        assert expected.late == 50
        assert result.rows == expected.rows
        assert result.late > 50
        assert not [change for change in result.changes if change.batch == 2]

    def test_what_is_late_depends_on_batches_before(self) -> None:
        table = replace(self.TABLE, window=Window(size_s=5, hop_s=2, late_s=1))
        together = run_table(table, [action("b", 60), action("b", 0)])
        assert (len(together.rows), together.late) == (6, 0)
        apart = run_table(table, [action("b", 60)], [action("b", 0)])
        assert (len(apart.rows), apart.late) == (3, 3)


def tick(symbol: str, price: str | None) -> Event:
    return Event("stock_ticks", key=symbol, value=price)


class TestStockTicks:
    TABLE = load_table("stock_ticks")
    TICKS = ([tick("stock-1", "1.00"), tick("stock-9", "2.00")], [tick("stock-1", ""), tick("stock-9", None)])

    def test_having(self) -> None:
        result = run_table(self.TABLE, *self.TICKS)
        assert not result.rows
        assert [
            change.row["price"] if change.row else None for change in result.changes if change.key == ("stock-1",)
        ] == [
            "1.00",
            None,
        ]

    def test_without_having(self) -> None:
        result = run_table(replace(self.TABLE, having=None), *self.TICKS)
        assert result.rows == {("stock-1",): {"price": "", "update_time": at(2)}}
        assert [change.key for change in result.changes if change.row is None] == [("stock-9",)]


class TestKeysThatNeverHadARow:
    """`having` deletes rows; where there never was one, nothing is written."""

    BROWSERS = tuple(f"browser-{number}" for number in range(1_000))

    def tombstones(self, table: Table, *batches: Sequence[Event]) -> list[str]:
        return [str(change.key[0]) for change in run_table(table, *batches).changes if change.row is None]

    def test_count_that_only_grows(self) -> None:
        once = [action(browser, 1) for browser in self.BROWSERS]
        often = [action("often", second) for second in range(5)]
        passed = [Event("captchas", key=browser, value={"passed": True}) for browser in ("often", "browser-1")]
        table = load_table("suspicious_browsers")
        assert self.tombstones(table, once, [*once, *often], passed) == ["often"]

    @pytest.mark.parametrize(
        ("having", "known"),
        [
            ("1 < action_count", True),
            ("action_count > 1 AND browser <> 'c'", True),
            ("action_count > 1 OR action_count > 2", True),
            ("action_count > 1 OR browser = 'c'", False),
            ("action_count = 2", False),
            ("NOT action_count < 2", False),
            ("action_count > -(-1)", False),
        ],
    )
    def test_what_is_known_to_grow(self, having: str, known: bool) -> None:
        table = replace(browsers_of_users(Join.LEFT), having=having)
        expected = [] if known else ["a"]
        assert self.tombstones(table, [action("a", 1)]) == expected

    def test_sum_may_have_been_larger(self) -> None:
        table = replace(
            browsers_of_users(Join.LEFT),
            columns={"action_count": "sum(IF(actions.action = 'undo', -1, 1))"},
            having="action_count > 1",
        )
        undone = [replace(action("a", second), value={"browser": "a", "action": "undo"}) for second in (3, 4)]
        assert self.tombstones(table, [action("a", 1), action("a", 2)], undone) == ["a"]


def browsers_of_users(join: Join) -> Table:
    """Return the table of suspicious browsers with captchas of users, whose name a browser's begins with."""
    return Table(
        name="suspicious_browsers",
        contract="examples/browsers/v1/browsers.proto",
        sides={
            "actions": Source("browser_actions", Json("browser STRING, action STRING, time TIMESTAMP")),
            "captchas": Global(
                Source("captchas", Json("passed BOOLEAN"), key=Text("user"), keyed=True),
                key="user",
                on="substring_index(browser, '/', 1)",
                join=join,
            ),
        },
        key={"browser": "browser"},
        columns={"action_count": "count_if(NOT coalesce(captchas.passed, false))"},
        mode=Mode.MICROBATCH,
    )


class TestGlobalSide:
    def captcha(self, user: str, value: object) -> Event:
        return Event("captchas", key=user, value=value)

    def batches(self) -> list[list[Event]]:
        actions = [action("ann/1"), action("ann/2"), action("bob/1")]
        return [
            actions,
            [self.captcha("ann", {"passed": True}), self.captcha("bob", {"passed": False}), *actions],
            [self.captcha("ann", None), self.captcha("bob", {"passed": True}), self.captcha("bob", b"{")],
            actions,
        ]

    def test_each_record_has_what_was_there_at_its_batch(self) -> None:
        result = run_table(browsers_of_users(Join.LEFT), *self.batches())
        counts = [(change.batch, change.key[0], (change.row or {})["action_count"]) for change in result.changes]
        assert sorted(counts) == [
            *((1, browser, 1) for browser in ("ann/1", "ann/2", "bob/1")),
            *((2, "ann/1", 1), (2, "ann/2", 1), (2, "bob/1", 2)),
            *((4, "ann/1", 2), (4, "ann/2", 2), (4, "bob/1", 2)),
        ]
        assert [(letter.topic, letter.offset) for letter in result.dead_letters] == [("captchas", 4)]

    def test_inner(self) -> None:
        result = run_table(browsers_of_users(Join.INNER), *self.batches())
        assert result.rows == {
            ("ann/1",): {"action_count": 0},
            ("ann/2",): {"action_count": 0},
            ("bob/1",): {"action_count": 1},
        }


class Visits(Processor):
    """Tells how often a product was viewed, a minute after the first view since it was told."""

    state = "views BIGINT"
    emits = "views BIGINT, told_at TIMESTAMP"
    every_s = 60.0

    def on_record(self, key: Any, record: Any, state: Any) -> None:
        if record.customer == "nobody":
            raise ValueError("secret")
        state.views += 1

    def on_timer(self, key: Any, state: Any, now: datetime) -> Iterator[dict[str, object]]:
        yield {"views": state.views, "told_at": now}


class Numbered(Processor):
    """Gives each view of a customer its number."""

    state = "views BIGINT"
    emits = "number BIGINT, product STRING"

    def on_record(self, key: Any, record: Any, state: Any) -> Iterator[dict[str, object]]:
        state.views += 1
        yield {"number": state.views, "product": record.product}


class Read(Processor):
    """Tells which fields a record has."""

    state = "views BIGINT"
    emits = "names STRING"
    reads = ("product",)

    def on_record(self, key: Any, record: Any, state: Any) -> Iterator[dict[str, object]]:
        found = [name for name in ("product", "customer", "kafka") if hasattr(record, name)]
        yield {"names": " ".join(found)}


class ReadsWrong(Read):
    reads = ("product", "price")


class Sessions(Processor):
    """Keeps the newest session of a product: it ends where half an hour goes by without a view."""

    state = "start TIMESTAMP, last TIMESTAMP, views BIGINT"
    emits = "views BIGINT, started_at TIMESTAMP"

    def on_record(self, key: Any, record: Any, state: Any) -> Iterator[dict[str, object]]:
        now = record.kafka.timestamp
        if state.last is None or now - state.last > timedelta(minutes=30):
            state.start, state.views = now, 0
        state.last, state.views = now, state.views + 1
        yield {"views": state.views, "started_at": state.start}


VISITS = Table(
    name="product_views",
    contract="examples/products/v1/products.proto",
    source=Source("views", Json("product STRING, customer STRING")),
    key={"product": "product"},
    columns={"view_count": "views"},
    processor=Visits(),
    outputs=(
        RowOutput("told", key=Text("product"), value=Json("views, told_at")),
        ProcessorOutput(
            "numbered", processor=Numbered(), by={"customer": "customer"}, key=Text("product"), value=Long("number")
        ),
    ),
    mode=Mode.MICROBATCH,
)


def view(product: str, customer: str = "ann") -> Event:
    return Event("views", value={"product": product, "customer": customer})


class TestProcessors:
    def test_timers_go_by_the_events(self) -> None:
        later = replace(view("a"), timestamp=at(59.9))
        latest = replace(view("b"), timestamp=at(61))
        result = run_table(VISITS, [view("a"), view("a")], [later], [latest], then_wait_s=60)
        assert [(change.batch, change.key, change.row) for change in result.changes] == [
            (3, ("a",), {"view_count": 3}),
            (4, ("b",), {"view_count": 1}),
        ]
        told = [(key, value["views"], value["told_at"]) for key, value in result.outputs["told"]]
        assert told == [("a", 3, "2026-01-01T00:01:01.000Z"), ("b", 1, "2026-01-01T00:02:01.000Z")]
        assert result.outputs["numbered"] == (("a", 1), ("a", 2), ("a", 3), ("b", 4))

    def test_newest_session_of_a_key(self) -> None:
        result = run_table(
            replace(VISITS, processor=Sessions(), outputs=()),
            [replace(view("a"), timestamp=at(second)) for second in (0, 1_800, 3_601)],
            [replace(view("a"), timestamp=at(second)) for second in (3_700, 3_800)],
        )
        assert [change.row for change in result.changes] == [{"view_count": count} for count in (1, 2, 1, 2, 3)]

    def test_a_processor_gets_what_it_reads(self) -> None:
        output = ProcessorOutput("names", processor=Read(), by={"by": "customer"}, key=Text("by"), value=Text("names"))
        assert run_table(replace(VISITS, outputs=(output,)), [view("a")]).outputs == {
            "names": (("ann", "product kafka"),)
        }

    def test_a_processor_that_reads_what_is_not_there(self) -> None:
        wrong = replace(VISITS, processor=ReadsWrong(), columns={"view_count": "1"}, outputs=())
        with pytest.raises(JobError, match=r'"ReadsWrong" reads "price", which source "views" does not have; it has '):
            run_table(wrong, [view("a")])

    def test_no_timer_before_its_time(self) -> None:
        assert not run_table(VISITS, [view("a")], then_wait_s=59).changes

    def test_an_error_in_a_processor_is_told_with_its_line(self) -> None:
        with pytest.raises(JobError) as caught:
            run_table(VISITS, [view("a", "nobody")])
        assert f'table "product_views" has stopped: {__file__}:' in str(caught.value)
        assert 'record of topic "views" partition 0 offset 0, on_record: raises ValueError' in str(caught.value)
        assert "secret" not in str(caught.value)


class TestErrors:
    TABLE = load_table("balances")

    def test_wrong_expression(self) -> None:
        with pytest.raises(JobError, match=r'column "booking_count" does not compute: \[UNRESOLVED_COLUMN'):
            run_table(replace(self.TABLE, columns={**self.TABLE.columns, "booking_count": "count(bookings)"}))

    def test_a_keyed_source_that_is_not(self) -> None:
        booking = {"customerId": "a", "amount": Decimal("1.0000")}
        with pytest.raises(JobError, match=r'table "balances" has stopped: .*source "balance" is declared keyed'):
            run_table(
                self.TABLE,
                [Event("balance", key="a", value=booking), Event("balance", key="a", value=booking, partition=1)],
            )

    def test_wrong_event(self) -> None:
        with pytest.raises(UnfitEvent, match='event 1: topic "x" is none'):
            run_table(self.TABLE, [Event("x", value=None)])
        with pytest.raises(UnfitEvent, match="expects lists of events"):
            run_table(self.TABLE, Event("balance", value=None))  # type: ignore[arg-type]


def test_spark_is_started_anew_after_the_user_has_stopped_it() -> None:
    table = load_table("ratings")
    run_table(table)
    process_session().stop()
    assert (362,) in run_table(table, [rating(362, 10.0)]).rows
