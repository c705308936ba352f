"""Declarations: what they remember, what they refuse, and that they need no Spark."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streamjobs.table import DeclarationError, Mode, Source, Table
from streamjobs.tables.ratings import RATING_SCHEMA, TABLE

GOOD: dict[str, Any] = {
    "name": "ratings",
    "contract": "ratings.proto",
    "source": Source("ratings", RATING_SCHEMA),
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
        ({"name": "Ratings"}, "no table name"),
        ({"name": "r" * 64}, "no table name"),
        ({"key": {}}, "no key"),
        ({"columns": {}}, "no columns"),
        ({"columns": {"movie_id": "count(*)"}}, '"movie_id" is in key and in columns'),
        ({"columns": {"rating_count": " "}}, 'column "rating_count" has no expression'),
        ({"generation": 0}, "generation 0 is not from 1"),
        ({"generation": 2**32}, "is not from 1 to 4294967295"),
        ({"mode": "realtime"}, "use Mode.REALTIME"),
        ({"trigger_s": 1}, "too short for realtime; use 5 or more"),
        ({"trigger_s": -1, "mode": Mode.MICROBATCH}, "too short for microbatch"),
    ],
)
def test_wrong_declaration_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        Table(**{**GOOD, **change})
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{__file__}:")


@pytest.mark.parametrize(
    ("topic", "schema", "words"),
    [
        ("no topic!", RATING_SCHEMA, "no topic name"),
        ("ratings", "{", "no Avro record"),
        ("ratings", '"long"', "no Avro record"),
        ("ratings", '{"type": "enum", "name": "E", "symbols": []}', "no Avro record"),
        ("ratings", '{"type": "record", "name": "R"}', "no Avro record"),
        (
            "ratings",
            '{"type": "record", "name": "R", "fields": [{"name": "kafka", "type": "long"}]}',
            'has a field "kafka"',
        ),
    ],
)
def test_wrong_source_is_refused(topic: str, schema: str, words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        Table(**{**GOOD, "source": _source(topic, schema)})
    assert words in str(caught.value)


def _source(topic: str, schema: str) -> Source:
    return Source(topic, schema)


def test_needs_no_spark() -> None:
    program = "import sys, streamjobs.tables.ratings; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_ratings_stands_where_it_says() -> None:
    assert TABLE.declared_at.file.endswith("streamjobs/tables/ratings.py")
    assert TABLE.source.field_names == ("movie_id", "rating")
