"""Finding declarations and contracts, and holding the one against the other."""

import os
import sys
from pathlib import Path

import pytest

from tablegate.examples.tables.ratings import TABLE
from tablegate.jobs.errors import JobError
from tablegate.jobs.planning.declarations import load_contract, load_table
from tests.kit.job.declared import COLUMNS, write_job


def test_example_by_name() -> None:
    assert load_table("ratings") == TABLE
    contract = load_contract(load_table("ratings"))
    assert [column.name for column in contract.key] == ["movie_id"]


def test_file_by_path(tmp_path: Path) -> None:
    table = load_table(write_job(tmp_path))
    assert str(table.declared_at) == f"{tmp_path / 'job.py'}:4"
    assert load_contract(table).name == "ratings"


def test_a_file_that_was_changed_at_once_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python keeps bytecode by the second and the length of the file, and both may be the same."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for name in ("ratings", "rat_ngs"):
        job = write_job(tmp_path, name=name)
        os.utime(job, (1_795_000_000, 1_795_000_000))
        assert load_table(job).name == name


def test_contract_beside_the_declaration_comes_first(tmp_path: Path) -> None:
    (tmp_path / "broken.proto").write_text('syntax = "proto3"; message {')
    with pytest.raises(JobError, match=r"job\.py:4: .*does not compile"):
        load_contract(load_table(write_job(tmp_path, contract="broken.proto")))


@pytest.mark.parametrize("job", ["nothing", "nothing.py", "../tables/ratings"])
def test_unknown_job(job: str) -> None:
    with pytest.raises(JobError, match=r"give one of action_counts, .*ratings|correct the path"):
        load_table(job)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "no TABLE; define"),
        ("TABLE = 'ratings'", "no TABLE; define"),
        ("x = 1\nx = = 2", "job.py:2: the file does not run: SyntaxError"),
        ("\n\nimport no_such_module", "job.py:3: the file does not run: ModuleNotFoundError"),
        (
            (
                "from tablegate.jobs.table import *\n"
                "TABLE = Table(name='ratings', contract='c', source=None, key={}, columns={})"
            ),
            'job.py:2: table "ratings": no key',
        ),
    ],
)
def test_file_that_declares_nothing(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "job.py"
    path.write_text(text)
    with pytest.raises(JobError) as caught:
        load_table(str(path))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"contract": "nowhere.proto"}, 'contract "nowhere.proto" is neither in'),
        ({"name": "scores"}, 'has no table "scores"'),
        ({"key": {"movie": "movie_id"}}, 'the contract has "movie_id"'),
        ({"columns": {"average_rating": "avg(rating)"}}, 'lacks column "rating_count"'),
        ({"columns": {**COLUMNS, "best": "max(rating)"}}, 'has a column "best" that the contract lacks'),
    ],
)
def test_disagreement_with_the_contract(tmp_path: Path, change: dict[str, dict[str, str]], words: str) -> None:
    with pytest.raises(JobError) as caught:
        load_contract(load_table(write_job(tmp_path, **change)))  # type: ignore[arg-type]
    assert words in str(caught.value)
    assert f"{tmp_path / 'job.py'}:4" in str(caught.value)
