"""Declarations: what they remember, what they refuse, and that they need no Spark."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tablegate.examples.tables.product_views import Views
from tablegate.examples.tables.ratings import RATING_SCHEMA, TABLE
from tablegate.jobs.table import (
    Avro,
    Bytes,
    DeclarationError,
    Format,
    Global,
    Json,
    Latest,
    Long,
    Mode,
    RecordOutput,
    RowOutput,
    Source,
    Table,
    Text,
    Window,
    rows_of,
)

OTHER = Source("other", Json("x INT"))
GLOBAL = Global(OTHER, key="x", on="x")
WINDOWED: dict[str, Any] = {"key": {"movie_id": "movie_id", "start": "window.start"}}
GOOD: dict[str, Any] = {
    "name": "ratings",
    "contract": "ratings.proto",
    "source": Source("ratings", Avro(RATING_SCHEMA)),
    "key": {"movie_id": "movie_id"},
    "columns": {"rating_count": "count(*)"},
}


def test_remembers_where_it_stands() -> None:
    table = Table(**GOOD)
    assert table.declared_at.file == __file__
    assert Path(__file__).read_text().splitlines()[table.declared_at.line - 1].strip() == "table = Table(**GOOD)"


def test_equal_declarations_are_equal_wherever_they_stand() -> None:
    one = Table(**GOOD)
    other = Table(**GOOD)
    assert one == other


def test_frozen() -> None:
    table = Table(**GOOD)
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        table.key["other"] = "1"  # type: ignore[index]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "Ratings"}, "the name is not valid"),
        ({"name": "r" * 64}, "the name is not valid"),
        ({"key": {}}, "no key"),
        ({"columns": {}}, "no columns"),
        ({"columns": {"movie_id": "count(*)"}}, '"movie_id" is in key and in columns'),
        ({"columns": {"rating_count": " "}}, 'column "rating_count" has no expression'),
        ({"generation": 0}, "generation 0 is not from 1"),
        ({"generation": 2**32}, "is not from 1 to 4294967295"),
        ({"mode": "realtime"}, "use Mode.REALTIME"),
        ({"trigger_s": 1}, "too short for Real-time Mode; use 5 or more"),
        ({"trigger_s": 10, "mode": Mode.MICROBATCH}, "in micro-batches give emit_interval_s"),
        ({"emit_interval_s": 1}, "Real-time Mode emits each change"),
        ({"emit_interval_s": -1, "mode": Mode.MICROBATCH}, "is negative"),
        ({"expires_after_s": 59, "mode": Mode.MICROBATCH}, "expires_after_s 59 is not a time of 60 seconds or more"),
        ({"expires_after_s": float("inf"), "mode": Mode.MICROBATCH}, "expires_after_s inf is not a time"),
        ({"expires_after_s": float("nan"), "mode": Mode.MICROBATCH}, "expires_after_s nan is not a time"),
        ({"expires_after_s": 60}, "does not support rows that expire"),
        ({"expires_after_s": 60, "mode": Mode.MICROBATCH, "atomic": True}, "an atomic batch is bounded"),
        (
            {"expires_after_s": 60, "mode": Mode.MICROBATCH, "window": Window(size_s=1), **WINDOWED},
            "whose rows end by the contract's retention",
        ),
        (
            {"expires_after_s": 60, "mode": Mode.MICROBATCH, "processor": Views()},
            "let it emit what does not meet having",
        ),
        (
            {
                "expires_after_s": 60,
                "mode": Mode.MICROBATCH,
                "source": Source("ratings", Avro(RATING_SCHEMA), keyed=True),
            },
            "versions are offsets, and a delete by time has none; remove keyed",
        ),
        (
            {
                "expires_after_s": 60,
                "mode": Mode.MICROBATCH,
                "source": None,
                "sides": {"a": OTHER, "b": Latest(OTHER)},
            },
            'the newest record of side "b" would be forgotten',
        ),
        ({"source": None}, "give either source or sides"),
        ({"sides": {"a": Latest(OTHER)}}, "give either source or sides"),
        ({"source": None, "sides": {"Ratings": Latest(OTHER)}}, '"Ratings" is not a valid side name'),
        ({"source": None, "sides": {"kafka": Latest(OTHER)}}, '"kafka" is not a valid side name'),
        ({"source": None, "sides": {"a": Latest(OTHER, key={"id": "1"})}}, "has other key columns than the table"),
        ({"source": None, "sides": {"a": GLOBAL}, "mode": Mode.MICROBATCH}, "all sides are global"),
        ({"source": None, "sides": {"a": OTHER, "b": GLOBAL}}, 'does not support the global side "b"; use mode='),
        ({"processor": Views()}, "Real-time Mode does not support a processor"),
        ({"atomic": True}, "Real-time Mode does not support atomic batches; use mode=Mode.MICROBATCH"),
        (
            {
                "atomic": True,
                "mode": Mode.MICROBATCH,
                "outputs": (RowOutput("o", key=Text("1"), value=Text("1")),),
            },
            "an atomic batch goes to the changelog alone; remove the output, or atomic",
        ),
        ({"window": Window(size_s=5)}, 'one key column must be "window.start"'),
        ({"key": {"movie_id": "movie_id", "start": "window.start"}}, "give window=Window"),
        ({**WINDOWED, "window": Window(size_s=0)}, "size_s above 0"),
        ({**WINDOWED, "window": Window(size_s=5, hop_s=6)}, "at most size_s"),
        ({**WINDOWED, "window": Window(size_s=5, late_s=-1)}, "late_s -1 is negative"),
        ({**WINDOWED, "window": Window(size_s=5, ahead_s=-1)}, "ahead_s -1 is negative"),
        (
            {"key": {"a": "session_window(kafka.timestamp, '5 minutes').start"}},
            "keep the newest session of a key by a processor",
        ),
        ({"key": {"a": "window(kafka.timestamp, '5 minutes').start"}}, "makes windows of its own; give window=Window"),
        (
            {"source": None, "sides": {"a": Latest(OTHER, key={"movie_id": "session_window(t, '5 minutes').start"})}},
            'key column "movie_id" makes session windows',
        ),
        ({"outputs": (RowOutput("o", key=Text("1"), value=Json("a", at="b")),)}, "which is for sources; remove at"),
        (
            {"outputs": (RowOutput("no topic", key=Text("1"), value=Text("1")),)},
            'output topic "no topic" is not a valid topic name',
        ),
        ({"outputs": (RecordOutput("o", key=Text("1"), value=Text("1"), side="a"),)}, "remove side="),
        (
            {
                "source": None,
                "sides": {"a": OTHER, "b": Latest(OTHER)},
                "outputs": (RecordOutput("o", key=Text("1"), value=Text("1")),),
            },
            'needs side=, one of "a", "b"',
        ),
    ],
)
def test_wrong_declaration_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        Table(**{**GOOD, **change})
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{__file__}:")


@pytest.mark.parametrize(
    ("topic", "value", "words"),
    [
        ("no topic!", Avro(RATING_SCHEMA), "not a valid topic name"),
        ("..", Avro(RATING_SCHEMA), "not a valid topic name"),
        ("ratings", Avro("{"), "not an Avro record"),
        ("ratings", Avro('"long"'), "not an Avro record"),
        ("ratings", Avro('{"type": "enum", "name": "E", "symbols": []}'), "not an Avro record"),
        ("ratings", Avro('{"type": "record", "name": "R"}'), "not an Avro record"),
        (
            "ratings",
            Avro('{"type": "record", "name": "R", "fields": [{"name": "kafka", "type": "long"}]}'),
            'has a field "kafka"',
        ),
        ("ratings", Json("id"), "lists no fields"),
        ("ratings", Json("id INT", at="a.b"), 'at="a.b") names no object'),
        ("ratings", Json("__id BIGINT"), 'has a field "__id"'),
        ("ratings", Json("id BIGINT, Id STRING"), 'has field "Id" twice'),
        ("ratings", Text("upper(x)"), "names no field"),
        ("ratings", Bytes(""), "names no field"),
    ],
)
def test_wrong_source_is_refused(topic: str, value: Format, words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        Source(topic, value)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{__file__}:")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"each": " "}, "has an empty each"),
        ({"each": "lines", "keyed": True}, "remove keyed=True"),
        ({"each": "lines", "key": Text("Item")}, 'has a field "item"'),
    ],
)
def test_wrong_each_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        Source(**{"topic": "orders", "value": Json("lines ARRAY<STRING>"), **change})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"more_topics": "b"}, 'more_topics of source "a" is a text'),
        ({"more_topics": ("b!",)}, 'source topic "b!" is not a valid topic name'),
        ({"more_topics": ("b", "a")}, 'source "a" has a topic twice'),
        ({"more_topics": ("b",), "keyed": True}, "offsets of two topics have no order; remove keyed=True"),
    ],
)
def test_wrong_topics_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        Source("a", Json("x INT"), **change)
    assert words in str(caught.value)


def test_table_of_several_topics_is_refused() -> None:
    newest = Latest(Source("a", Json("x INT"), key=Text("id"), more_topics=("b",)))
    with pytest.raises(DeclarationError, match='side "newest" has several topics'):
        Table(**{**GOOD, "source": None, "sides": {"newest": newest}})


EACH = Source("orders", Json("lines ARRAY<STRING>"), each="lines")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"source": None, "sides": {"lines": Latest(EACH)}}, 'side "lines" has each'),
        ({"source": EACH, "atomic": True, "mode": Mode.MICROBATCH}, "remove each, or atomic"),
        (
            {"source": EACH, "outputs": (RecordOutput("o", key=Text("item"), value=Text("item"), each="lines"),)},
            "both name the element item",
        ),
    ],
)
def test_each_where_it_cannot_be_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        Table(**{**GOOD, "key": {"line": "item"}, **change})
    assert words in str(caught.value)


ONE = Avro('{"type": "record", "name": "A", "fields": [{"name": "movie_id", "type": "long"}]}')
NONE = Avro('{"type": "record", "name": "A", "fields": []}')


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([Avro("{")], "the schema is not an Avro record"),
        ([NONE], "has an Avro record without fields"),
        ([dataclasses.replace(ONE, others=(RATING_SCHEMA,))], "is for sources; remove others"),
        ([ONE, Avro(RATING_SCHEMA)], 'outputs to "o" have different schemas'),
    ],
)
def test_wrong_avro_of_an_output_is_refused(values: list[Avro], words: str) -> None:
    outputs = tuple(RowOutput("o", key=Long("movie_id"), value=value) for value in values)
    with pytest.raises(DeclarationError) as caught:
        Table(**{**GOOD, "outputs": outputs})
    assert words in str(caught.value)


def copied(topic: str, side: str | None = None) -> RecordOutput:
    return RecordOutput(topic, key=Text("a"), value=Text("a"), side=side)


@pytest.mark.parametrize(
    ("topics", "outputs", "is_refused"),
    [
        (["one", "two"], (copied("o", "a"), copied("o", "b")), False),
        (["one", "one"], (copied("o", "a"), copied("p", "b"), copied("p", "b")), False),
        (["one", "one"], (copied("p", "a"), copied("o", "a"), copied("o", "b")), True),
    ],
)
def test_outputs_of_two_queries_have_a_topic_or_a_source_of_their_own(
    topics: list[str], outputs: tuple[RecordOutput, ...], is_refused: bool
) -> None:
    sides = {name: Source(topic, Json("a STRING")) for name, topic in zip("ab", topics, strict=True)}
    arguments = {**GOOD, "source": None, "sides": sides, "outputs": outputs}
    if not is_refused:
        assert Table(**arguments).outputs == outputs
        return
    with pytest.raises(DeclarationError, match='two outputs write to "o" what they make of topic "one" apart from'):
        Table(**arguments)


def test_key_in_avro_is_of_one_type() -> None:
    assert Source("ratings", Json("a INT"), key=Avro(RATING_SCHEMA)).field_names == ("a", "movie_id", "rating")
    with pytest.raises(DeclarationError, match="has a key of several types; remove others"):
        Source("ratings", Json("a INT"), key=Avro(RATING_SCHEMA, others=(RATING_SCHEMA,)))


def test_fields_of_an_object_in_the_record() -> None:
    assert Source("t", Json("a INT", at="payload"), key=Json("id INT", at="payload")).field_names == ("a", "id")


LATEST = Source("orders", Json("customer STRING, amount BIGINT"), key=Text("id"))
INDEX = {"customer": "customer", "id": "id"}


@pytest.mark.parametrize(
    ("key", "moves"),
    [
        ({"id": "id"}, False),
        ({"id": "upper(id)"}, False),
        (INDEX, True),
        ({"customer": "customer(id)", "id": "id"}, False),
    ],
)
def test_rows_move_where_the_value_makes_their_key(key: dict[str, str], moves: bool) -> None:
    table = Table(**{**GOOD, "source": None, "sides": {"orders": Latest(LATEST)}, "key": key})
    assert table.rows_move == moves
    assert not table.has_keyed_versions


@pytest.mark.parametrize(
    ("sides", "key", "words"),
    [
        (
            {"a": Latest(LATEST)},
            {"customer": "customer"},
            'several records may have the same; add key columns that are "id"',
        ),
        ({"a": Latest(dataclasses.replace(LATEST, key=None))}, {"customer": "customer"}, "which needs a format"),
        ({"a": Latest(dataclasses.replace(LATEST, keyed=True))}, INDEX, "remove keyed=True"),
        ({"a": Latest(LATEST), "b": Latest(OTHER, key={"customer": "1", "id": "1"})}, INDEX, "a table of its own"),
    ],
)
def test_rows_that_could_not_move_are_refused(sides: dict[str, Any], key: dict[str, str], words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        Table(**{**GOOD, "source": None, "sides": sides, "key": key})
    assert words in str(caught.value)


def test_fields_of_value_and_key() -> None:
    fields = "id BIGINT, price DECIMAL(10, 2), tags ARRAY<STRUCT<a: INT, b: STRING>>, `note` STRING"
    assert Source("t", Json(fields), key=Long("number")).field_names == ("id", "price", "tags", "note", "number")


def test_needs_no_spark() -> None:
    program = "import sys, tablegate.examples.tables.ratings; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_ratings_stands_where_it_says() -> None:
    assert TABLE.declared_at.file.endswith("examples/tablegate/examples/tables/ratings.py")
    assert TABLE.source_of("").field_names == ("movie_id", "rating")


ROWS = rows_of("order_totals", contract="gateway/tablegate/gateway/cli/starter-project/orders.proto")
BY_CUSTOMER: dict[str, Any] = {
    "name": "big_orders",
    "contract": "big.proto",
    "key": {"customer": "customer"},
    "columns": {"amount": "totals.amount"},
}


def test_rows_of_a_table_have_the_columns_of_its_contract() -> None:
    assert ROWS.is_table
    assert ROWS.field_names == ("order_count", "amount", "customer")
    table = Table(**BY_CUSTOMER, sides={"totals": Latest(ROWS)})
    assert table.value_fields_in_key("totals") == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"source": ROWS}, 'the source has the rows of table "order_totals", of which each change would count'),
        ({"sides": {"totals": ROWS}}, 'side "totals" has the rows of table "order_totals"'),
        ({"sides": {"totals": Latest(ROWS)}, "name": "order_totals"}, 'side "totals" has the rows of the table itself'),
    ],
)
def test_rows_of_a_table_are_for_sides_that_are_tables(change: dict[str, Any], words: str) -> None:
    with pytest.raises(DeclarationError, match=words):
        Table(**{**BY_CUSTOMER, **change})


@pytest.mark.parametrize(
    ("table", "contract", "words"),
    [
        ("order_totals", "nowhere.proto", 'contract "nowhere.proto" is neither in'),
        ("other", "gateway/tablegate/gateway/cli/starter-project/orders.proto", 'has no table "other"'),
        ("action_counts", "examples/actions/v1/actions.proto", "its windows end without a record"),
    ],
)
def test_rows_of_what_is_no_such_table_are_refused(table: str, contract: str, words: str) -> None:
    with pytest.raises(DeclarationError, match=words) as refused:
        rows_of(table, contract=contract)
    assert str(refused.value).startswith(__file__)
