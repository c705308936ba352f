"""Events of the test kit: the records that they become, and the errors of those that cannot."""

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from tablegate.examples.samples.balances import Bookings
from tablegate.jobs.planning.declarations import load_table
from tablegate.jobs.table import Bytes, Double, Json, Latest, Long, Source, Table, Text
from tablegate.jobs.testing import Event, UnfitEvent
from tablegate.jobs.testing.events import START_TIME, Record, encode_events
from tests.kit.job.laid_records import Record as LaidRecord
from tests.kit.job.laid_records import avro_value

RATINGS, BALANCES, CUSTOMERS = load_table("ratings"), load_table("balances"), load_table("customers")
EVERY_FORMAT = Table(
    name="formats",
    contract="none.proto",
    sides={
        "texts": Latest(Source("texts", Text("text"), key=Long("id"))),
        "numbers": Latest(Source("numbers", Double("number"), key=Json("id BIGINT"))),
        "raws": Latest(Source("raws", Bytes("raw"), key=Text("id"))),
        "shared": Latest(Source("shared", Text("a"), key=Text("id"))),
        "also_shared": Latest(Source("shared", Json("b INT"), key=Text("id"))),
    },
    key={"id": "id"},
    columns={"text": "texts.text"},
)


def encoded(table: Table, *events: Event) -> list[Record]:
    (records,) = encode_events(table, [events])
    return records


def test_offsets_and_times_count_on_over_batches() -> None:
    at = datetime(2020, 2, 29, 12, 0, 0, 123_999, tzinfo=timezone(timedelta(hours=2)))
    first, second = encode_events(
        CUSTOMERS,
        [
            [Event("tp_prospects", value=None), Event("tp_prospects", value=None, partition=1, timestamp=at)],
            [Event("tp_accounts", value=None), Event("tp_prospects", value=None)],
        ],
    )
    assert [(record.topic, record.partition, record.offset) for record in (*first, *second)] == [
        ("tp_prospects", 0, 0),
        ("tp_prospects", 1, 0),
        ("tp_accounts", 0, 0),
        ("tp_prospects", 0, 1),
    ]
    assert [record.timestamp for record in (*first, *second)] == [
        START_TIME,
        datetime(2020, 2, 29, 10, 0, 0, 123_000, tzinfo=UTC),
        START_TIME + timedelta(seconds=2),
        START_TIME + timedelta(seconds=3),
    ]


def test_avro_is_that_of_a_producer() -> None:
    bookings = Bookings()
    (added, reserved) = encoded(
        BALANCES,
        Event("balance", key="ann", value={"customerId": "ann", "amount": Decimal("-1.0500")}),
        Event("balance", key="ann", value={"customerId": "ann", "reservationId": "r1"}, record_type="FundsReserved"),
    )
    assert (added.key, added.value) == bookings.added("ann", Decimal("-1.05"))[1:3]
    assert (reserved.key, reserved.value) == bookings.reserved("ann", "r1")[1:3]
    full = Event(
        "balance", value={"customerId": "a", "reservationId": "r"}, record_type="examples.balances.FundsReserved"
    )
    assert encoded(BALANCES, full) == encoded(BALANCES, replace(full, record_type="FundsReserved"))


def test_avro_defaults_are_filled_in() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "a", "type": "int", "default": 7},
            {"name": "b", "type": {"type": "record", "name": "B", "fields": [{"name": "c", "type": "string"}]}},
            {"name": "again", "type": ["null", "B"], "default": None},
        ],
    }
    assert RATINGS.source is not None
    table = replace(
        RATINGS, source=replace(RATINGS.source, value=replace(RATINGS.source.value, schema=json.dumps(schema)))
    )
    (record,) = encoded(table, Event("ratings", value={"b": {"c": "x"}, "again": {"c": "y"}}))
    found = avro_value(LaidRecord("ratings", 0, 0, 0, None, record.value), "R", {1: json.dumps(schema)})
    assert found == {"a": 7, "b": {"c": "x"}, "again": {"c": "y"}}


@pytest.mark.parametrize(
    ("event", "key", "value"),
    [
        (Event("texts", key=-2, value="ü"), b"\xff" * 7 + b"\xfe", "ü".encode()),
        (Event("numbers", key={"id": 1}, value=1), b'{"id": 1}', struct.pack(">d", 1.0)),
        (Event("numbers", value=float("inf")), None, struct.pack(">d", float("inf"))),
        (Event("raws", key="a", value=b"\0"), b"a", b"\0"),
        (Event("shared", key="a", value=b"{"), b"a", b"{"),
        (Event("shared", key="a", value=None), b"a", None),
    ],
)
def test_formats(event: Event, key: bytes | None, value: bytes | None) -> None:
    (record,) = encoded(EVERY_FORMAT, event)
    assert (record.key, record.value) == (key, value)


def test_json_takes_times_and_amounts() -> None:
    value = {"name": "ü", "at": datetime(2026, 1, 2, tzinfo=UTC), "price": Decimal("1.50"), "nested": [{"a": None}]}
    (record,) = encoded(CUSTOMERS, Event("tp_prospects", key="1", value=value))
    assert json.loads(record.value or b"") == {
        "name": "ü",
        "at": "2026-01-02T00:00:00+00:00",
        "price": "1.50",
        "nested": [{"a": None}],
    }


RATING = {"movie_id": 1, "rating": 1.0}


@pytest.mark.parametrize(
    ("table", "event", "words"),
    [
        (
            RATINGS,
            Event("rating", value=RATING),
            'event 2: topic "rating" is none of the table\'s: "ratings"; correct it',
        ),
        (CUSTOMERS, Event("x", value=None), 'none of the table\'s: "tp_prospects", "tp_accounts", "tp_enrichment_acc'),
        (
            RATINGS,
            Event("ratings", value=RATING, partition=-1),
            "event 2: partition -1 is not a number from 0 on",
        ),
        (RATINGS, Event("ratings", value=RATING, timestamp=datetime(2026, 1, 1)), "is not a datetime with a time zone"),
        (RATINGS, Event("ratings", value=RATING, headers=[("a", "b")]), "('a', 'b') is not a name with its bytes"),  # type: ignore[list-item]
        (RATINGS, Event("ratings", value=RATING, key="a"), "key has no format in the declaration; give bytes, or give"),
        (RATINGS, Event("ratings", value="{}"), "value is '{}'; its format Avro needs a dict"),
        (
            RATINGS,
            Event("ratings", value={"movie_id": 1, "rating": "nine"}),
            (
                'topic "ratings" value is not a valid examples.ratings.Rating: '
                'field "rating" is \'nine\', which is not "double"'
            ),
        ),
        (
            RATINGS,
            Event("ratings", value={"movie_id": True, "rating": 1.0}),
            'field "movie_id" is True, which is not "lo',
        ),
        (RATINGS, Event("ratings", value={"movie_id": 2**63, "rating": 1.0}), 'field "movie_id" is 92233720368547758'),
        (RATINGS, Event("ratings", value={"movie_id": 1}), 'field "rating" is missing, and has no default'),
        (RATINGS, Event("ratings", value={**RATING, "stars": 1}), 'has no field "stars"; there are movie_id, rating'),
        (RATINGS, Event("ratings", value=RATING, record_type="Review"), 'record_type "Review" is none of examples.rat'),
        (RATINGS, Event("ratings", value=None, record_type="Rating"), "record_type is the type of a dict, and the val"),
        (
            BALANCES,
            Event("balance", value={"customerId": "a", "amount": Decimal("0.00001")}),
            'not a valid examples.balances.FundsAdded: field "amount": Scale',
        ),
        (CUSTOMERS, Event("tp_accounts", key=1, value=None), "key is 1; its format Text needs a str"),
        (CUSTOMERS, Event("tp_accounts", key="\ud800", value=None), "key has characters that UTF-8 cannot have"),
        (CUSTOMERS, Event("tp_accounts", value="{}"), "value is '{}'; its format Json needs a dict"),
        (CUSTOMERS, Event("tp_accounts", value={"a": {1, 2}}), "value is not JSON: a set has no JSON form"),
        (CUSTOMERS, Event("tp_accounts", value={}, record_type="A"), "value is in Json, which has no record_type"),
        (EVERY_FORMAT, Event("texts", key=2**63, value="a"), "its format Long needs an int of 64 bits"),
        (EVERY_FORMAT, Event("texts", key=True, value="a"), "key is True; its format Long needs an int"),
        (EVERY_FORMAT, Event("numbers", value="1"), "value is '1'; its format Double needs a float"),
        (EVERY_FORMAT, Event("raws", value="a"), "value is 'a'; its format Bytes needs bytes"),
        (EVERY_FORMAT, Event("shared", value="a"), "value has another format in each side of the table; give bytes"),
    ],
)
def test_what_cannot_be(table: Table, event: Event, words: str) -> None:
    good = Event(table.source_of(next(iter(table.all_sides))).topic, value=None)
    with pytest.raises(UnfitEvent) as caught:
        encode_events(table, [[good, event]])
    message = str(caught.value)
    assert words in message
    assert message.startswith("event 2: ")
    assert "\n" not in message


def test_the_batch_is_named_where_there_are_several() -> None:
    with pytest.raises(UnfitEvent, match=r"^batch 2, event 1: topic "):
        encode_events(RATINGS, [[Event("ratings", value=RATING)], [Event("x", value=None)]])


@pytest.mark.parametrize("wrong", [lambda: [("ratings", RATING)], lambda: ["ratings"], lambda: [None]])
def test_what_is_no_event(wrong: Callable[[], list[Event]]) -> None:
    with pytest.raises(UnfitEvent, match=r"event 1 is a \w+; give Event"):
        encode_events(RATINGS, [wrong()])
