"""Feast itself asks a gateway for features, in an environment of its own: `tablegate.client.feast`."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.kit.gateways_in_process.ratings import RatingsServer
from tests.kit.programs.api_tools import from_pypi
from tests.kit.table.filled import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_500)]

VERSION = "0.67.0"
INSTALL_S, PROGRAM_S = 900, 500  # Feast has 140 packages, which a busy machine takes minutes to load
PROGRAM = Path(__file__).with_name("feast_program.py")
UPDATED_S = 1_700_000_000


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program was answered, by name."""
    feast = from_pypi("feast", VERSION, "grpcio>=1.80", timeout_s=INSTALL_S)
    if feast is None:
        pytest.skip(f"Feast {VERSION} cannot be had from PyPI here")
    with RatingsServer() as server:
        server.put(range(1, 10))
        words = [str(feast.with_name("python")), str(PROGRAM), server.address, str(tmp_path_factory.mktemp("feast"))]
        sources = os.pathsep.join(str(ROOT / part) for part in ("clients/python", "proto"))
        environment = {**os.environ, "PYTHONPATH": sources, "FEAST_USAGE": "False"}
        done = subprocess.run(words, capture_output=True, text=True, timeout=PROGRAM_S, check=False, env=environment)
        counts = dict(server.counts)
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**answers, "counts": counts}


def test_features_are_columns_of_the_rows_of_the_keys(found: dict[str, Any]) -> None:
    answer, counts = found["ratings"], found["counts"]
    assert answer["rating_count"] == [counts[3], counts[1], None, counts[3]]
    assert answer["average_rating"] == [5.0, 5.0, None, 5.0]
    assert answer["update_time"][:3] == ["2023-11-14T22:13:20+00:00", "2023-11-14T22:13:20+00:00", None]
    assert answer["rating_count__ts"] == [UPDATED_S, UPDATED_S, 0, UPDATED_S]


def test_a_tag_names_the_table_of_a_view(found: dict[str, Any]) -> None:
    assert found["tagged"]["rating_count"] == [found["counts"][2]]
    assert found["tagged"]["average_rating"] == [5.0]


def test_a_view_that_is_declared_anew_has_the_new_types(found: dict[str, Any]) -> None:
    assert found["retyped"] == [["int32_val"] * 2, ["int64_val"] * 2, ["int32_val"] * 2]


def test_more_keys_than_one_batch_get_takes(found: dict[str, Any]) -> None:
    assert found["many"]["rating_count"] == [found["counts"].get(movie) for movie in range(600)]


def test_a_view_without_a_column_of_time_has_the_age_of_the_answer(found: dict[str, Any]) -> None:
    [time_s] = found["untimed"]["rating_count__ts"]
    assert UPDATED_S < time_s <= time.time() + 1


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        (
            "misspelt",
            'feature "ratings_count", and table "ratings" has movie_id, average_rating, rating_count, update_time:',
        ),
        ("mistyped", 'is declared as STRING, and column "rating_count" of table "ratings" can be INT32 or INT64'),
        ("listed", 'is declared as INT64_LIST, and column "rating_count" of table "ratings" can be INT32 or INT64'),
        ("keyed", 'view "keyed" has the join keys title, and table "ratings" the key movie_id: give it entities'),
        ("absent", 'has no table "absent": it has ratings'),
        ("away", "no gateway answers at 127.0.0.1:1 (UNAVAILABLE"),
        (
            "written",
            'feature view "ratings" is a table that its job writes, and Feast only reads it: leave materialize',
        ),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(found: dict[str, Any], case: str, sentence: str) -> None:
    assert found[case].startswith("QueryError: ")
    assert sentence in found[case]
    assert "\n" not in found[case]
