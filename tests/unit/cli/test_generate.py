"""`tablegate generate`: a row message becomes a contract with the five queries."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tablegate.examples import CONTRACTS
from tablegate.gateway.cli.generate import generate
from tablegate.gateway.cli.main import app
from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.binder.problems import ContractError
from tablegate.gateway.contract.catalogue import (
    BatchGetQuery,
    Catalogue,
    GetQuery,
    RangeQuery,
    ScanQuery,
    SubscribeQuery,
)
from tablegate.gateway.contract.descriptors import DescriptorError, load_descriptors
from tests.kit.table.filled import catalogue_of

HEAD = """syntax = "proto3";
package shop.v1;
import "tablegate/v1/options.proto";
import "google/protobuf/timestamp.proto";
"""
RATING = """message Rating {
  option (tablegate.v1.table) = {name: "ratings", key: "movie_id"};
  int64 movie_id = 1;
  double average_rating = 2;
  int64 rating_count = 3;
  google.protobuf.Timestamp update_time = 4;
}
"""
EXAMPLES = sorted(CONTRACTS.glob("examples/*/v1/*.proto"))
EXAMPLES_IN_CHECK = 4
KINDS = {GetQuery, BatchGetQuery, RangeQuery, ScanQuery, SubscribeQuery}
KEY_TYPES = ("string", "bytes", "bool", "int32", "uint64", "sfixed32", "google.protobuf.Timestamp", "Kind")


def generated(directory: Path, text: str) -> Catalogue:
    rows, out = directory / "rows.proto", directory / "rows_queries.proto"
    rows.write_text(text)
    generate(rows, out)
    return bind(load_descriptors(out))


def only_rows(text: str) -> str:
    """Return a contract without its service and without the messages of its requests and responses."""
    row = re.search(r"^message (\w+) \{\n  option \(tablegate\.v1\.table\)", text, re.MULTILINE)
    assert row is not None
    kept = [text[: text.index("service ")].rpartition("\n//")[0]]
    for message in re.findall(r"^(?:message|enum) .*?^}$", text, re.MULTILINE | re.DOTALL):
        name = message.split()[1]
        if message.startswith("enum") or name == row[1]:
            kept.append(message)
    return "\n".join(kept) + "\n"


def test_twelve_lines_are_a_contract_with_all_queries(tmp_path: Path) -> None:
    text = HEAD + RATING
    assert len(text.splitlines()) <= 12
    catalogue = generated(tmp_path, text)
    assert {type(query) for query in catalogue.queries.values()} == KINDS
    assert set(catalogue.tables) == {"ratings"}
    assert {route.path for route in catalogue.routes} == set(catalogue.queries)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.tools if number >= EXAMPLES_IN_CHECK else (), id=path.stem)
        for number, path in enumerate(EXAMPLES)
    ],
)
def test_the_rows_of_each_example_are_enough(path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    catalogue = generated(tmp_path, only_rows(text))
    assert catalogue.tables.keys() == catalogue_of(path).tables.keys()
    assert {type(query) for query in catalogue.queries.values()} == KINDS


@pytest.mark.tools
@pytest.mark.parametrize(("first", "second"), list(zip(KEY_TYPES, KEY_TYPES[3:] + KEY_TYPES[:3], strict=True)))
@pytest.mark.parametrize("partition_by", ["", 'partition_by: "a"'])
def test_keys_of_every_type(first: str, second: str, partition_by: str, tmp_path: Path) -> None:
    kind = "enum Kind {\n  KIND_UNSPECIFIED = 0;\n}\n"
    option = f'option (tablegate.v1.table) = {{name: "things", key: "a", key: "b" {partition_by}}};'
    catalogue = generated(tmp_path, f"{HEAD}{kind}message Thing {{\n{option}\n{first} a = 1;\n{second} b = 2;\n}}\n")
    assert {type(query) for query in catalogue.queries.values()} == KINDS
    [found] = [query for query in catalogue.queries.values() if isinstance(query, RangeQuery)]
    assert found.scatter is not bool(partition_by)
    assert [param.column.name for param in found.prefix] == (["a"] if partition_by else [])


def test_a_name_that_is_taken_is_told_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ContractError) as raised:
        generated(tmp_path, HEAD + RATING + "message RatingKey {}\nmessage GetRatingRequest {}\n")
    assert [str(problem) for problem in raised.value.problems] == [
        f'rows.proto: message Rating: "{name}" is there already, and the queries of table "ratings" need the name; '
        "rename it, or write the queries by hand"
        for name in ("GetRatingRequest", "RatingKey")
    ]
    assert not (tmp_path / "rows_queries.proto").exists()


def test_what_was_written_before_stays_where_it_fails(tmp_path: Path) -> None:
    generated(tmp_path, HEAD + RATING)
    before = (tmp_path / "rows_queries.proto").read_text()
    with pytest.raises(ContractError, match="no message is a table"):
        generated(tmp_path, HEAD + "message Rating {}\n")
    assert (tmp_path / "rows_queries.proto").read_text() == before


def test_what_does_not_compile_is_not_left_behind(tmp_path: Path) -> None:
    with pytest.raises(DescriptorError, match='"read_options" is already defined'):
        generated(tmp_path, HEAD + RATING.replace("movie_id", "read_options"))
    assert not (tmp_path / "rows_queries.proto").exists()


def test_rows_inside_of_another_message(tmp_path: Path) -> None:
    assert len(generated(tmp_path, HEAD + f"message Shop {{\n{RATING}}}\n").queries) == len(KINDS)


def test_two_rows_of_one_name_are_told(tmp_path: Path) -> None:
    other = RATING.replace('"ratings"', '"scores"')
    with pytest.raises(ContractError, match='"RatingKey" is there already, and the queries of table "scores" need'):
        generated(tmp_path, HEAD + f"message Shop {{\n{RATING}}}\nmessage Club {{\n{other}}}\n")
    assert not (tmp_path / "rows_queries.proto").exists()


@pytest.mark.parametrize("package", ["acme.tablegate.v1", "acme.google.v1"])
def test_a_package_with_a_name_of_ours_in_it(package: str, tmp_path: Path) -> None:
    text = (HEAD + RATING).replace("shop.v1", package)
    text = text.replace("(tablegate.v1", "(.tablegate.v1").replace(" google.protobuf.T", " .google.protobuf.T")
    assert len(generated(tmp_path, text).queries) == len(KINDS)


def test_a_file_name_that_is_not_ascii(tmp_path: Path) -> None:
    rows = tmp_path / "bücher.proto"
    rows.write_text(HEAD + RATING)
    assert CliRunner().invoke(app, ["generate", str(rows)]).exit_code == 0
    checked = CliRunner().invoke(app, ["check", str(tmp_path / "bücher_queries.proto")])
    assert checked.exit_code == 0, checked.stderr


def test_a_directory_is_no_file_of_rows() -> None:
    done = CliRunner().invoke(app, ["generate", "."])
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert 'contract "." is not a file' in done.stderr


def test_several_tables_of_one_file(tmp_path: Path) -> None:
    other = RATING.replace("Rating", "Score").replace('"ratings"', '"movie_scores"')
    catalogue = generated(tmp_path, HEAD + RATING + other)
    assert set(catalogue.services) == {"shop.v1.RatingsService", "shop.v1.MovieScoresService"}
    assert len(catalogue.queries) == 2 * len(KINDS)


def test_the_command_says_what_it_wrote_and_what_is_next(tmp_path: Path) -> None:
    rows = tmp_path / "ratings.proto"
    rows.write_text(HEAD + RATING)
    done = CliRunner().invoke(app, ["generate", str(rows)])
    out = tmp_path / "ratings_queries.proto"
    assert (done.exit_code, done.stdout) == (0, f"wrote {out}: the queries of 1 table; next: tablegate check {out}\n")
    rows.write_text(HEAD + RATING.replace("movie_id = 1", "id = 1"))
    failed = CliRunner().invoke(app, ["generate", str(rows)])
    assert failed.exit_code == 1
    assert "the key names a column that message Rating does not have" in failed.stderr
    missing = CliRunner().invoke(app, ["generate", str(tmp_path / "nothing.proto")])
    assert missing.exit_code == 1
    assert "is not a file" in missing.stderr
