"""A row alone is served: the queries that are generated for it, as text and as descriptors."""

from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from hypothesis import given
from hypothesis import strategies as st

from tablegate.gateway.cli.contract_files import with_queries
from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.binder.problems import ContractError
from tablegate.gateway.contract.catalogue import (
    BatchGetQuery,
    Catalogue,
    CountQuery,
    GetQuery,
    RangeQuery,
    ScanQuery,
    SubscribeQuery,
)
from tests.kit.table.contracts import VISITS, bind_sources, compile_contract

pytestmark = pytest.mark.tools

KINDS = {GetQuery, BatchGetQuery, RangeQuery, ScanQuery, SubscribeQuery, CountQuery}
HEAD = """syntax = "proto3";
package shop.v1;
import "tablegate/v1/options.proto";
import "google/protobuf/timestamp.proto";
"""
RATING = """message Rating {
  option (tablegate.v1.table) = {name: "ratings", key: "movie_id"};
  int64 movie_id = 1;
  double average_rating = 2;
  google.protobuf.Timestamp update_time = 4;
}
"""
SERVICE = """import "tablegate/v1/query.proto";
import "rows.proto";
message GetVisitRequest { int64 id = 1; }
message GetVisitResponse { Visit visit = 1; }
service VisitsService {
  rpc GetVisit(GetVisitRequest) returns (GetVisitResponse) { option (tablegate.v1.query) = {get: {}}; }
}
"""
VISIT = """message Visit { option (tablegate.v1.table) = {name: "visits", key: "id"}; int64 id = 1; }
"""

KEY_TYPES = ("string", "bytes", "bool", "int32", "uint64", "sfixed32", ".google.protobuf.Timestamp", "Kind")
IMPORTED = {".Timestamp": "google/protobuf/timestamp.proto", ".Money": "google/type/money.proto"}
TYPES = (*KEY_TYPES, "double", "float", ".google.type.Money")
NAMES = (
    *("order", "keys", "read_options", "scan_options", "subscribe_options", "query_order", "next_page_token", "row"),
    *("page_size", "pageSize", "page_token", "a", "a_from", "a_before", "min_a", "minA", "query_min_a", "_a", "a_"),
    *(
        "message",
        "option",
        "rpc",
        "optional",
        "from",
        "class",
        "None",
        "self",
        "tablegate",
        "google",
        "shop",
        "DESCRIPTOR",
    ),
)
NUMBERS = st.integers(1, 20) | st.sampled_from((18_997, 18_999, 20_000, 2**29 - 2, 2**29 - 1))
PACKAGES = ("", "shop", "shop.v1", "acme.tablegate.v1", "google.acme", "shop.shop")
ROWS = ("Order", "Key", "Get", "order", "Tablegate", "URLCount", "tablegate")


@st.composite
def row_texts(draw: st.DrawFn) -> str:
    name = st.sampled_from(NAMES) | st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True)
    names = draw(st.lists(name, min_size=1, max_size=8, unique_by=lambda one: one.replace("_", "").lower()))
    key = names[: draw(st.integers(1, min(3, len(names))))]
    partition_by = key[: draw(st.integers(0, len(key)))]
    fields = []
    numbers = draw(st.lists(NUMBERS, min_size=len(names), max_size=len(names), unique=True))
    for number, one in zip(numbers, draw(st.permutations(names)), strict=True):
        type_ = draw(st.sampled_from(KEY_TYPES if one in key else TYPES))
        fields.append(f"  {draw(st.sampled_from(('', 'optional ')))}{type_} {one} = {number};")
    package = draw(st.sampled_from(PACKAGES))
    table = draw(st.sampled_from(("orders", "a_1", "x")))
    row = draw(st.sampled_from(ROWS if package else ROWS[:-1]))
    option = [*(f'key: "{one}"' for one in key), *(f'partition_by: "{one}"' for one in partition_by)]
    return "\n".join(
        [
            'syntax = "proto3";',
            f"package {package};" if package else "",
            *(f'import "{imported}";' for type_, imported in IMPORTED.items() if any(type_ in one for one in fields)),
            'import "tablegate/v1/options.proto";',
            "enum Kind { KIND_UNSPECIFIED = 0; }",
            f"message {row} {{",
            f'  option (.tablegate.v1.table) = {{name: "{table}" {" ".join(option)}}};',
            *fields,
            "}",
        ]
    )


@given(row_texts())
def test_every_row_is_served_by_what_its_text_says(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    directory = tmp_path_factory.getbasetemp()
    files = compiled(directory / "generated.proto", text)
    catalogue = bind(files)
    assert {type(query) for query in catalogue.queries.values()} == KINDS
    assert {route.path for route in catalogue.routes} == set(catalogue.queries)
    full = compiled(directory / "generated.proto", with_queries(text, files).text)
    assert bare(own(full)) == bare(own(catalogue.files))
    assert bind(full).queries.keys() == catalogue.queries.keys()
    assert comments(own(full)) >= comments(own(catalogue.files)), "they are the same in both"


def compiled(path: Path, text: str) -> FileDescriptorSet:
    path.write_text(text)
    return compile_contract(path, path.parent)


def own(files: FileDescriptorSet) -> FileDescriptorProto:
    return next(file for file in files.file if file.name == "generated.proto")


def bare(file: FileDescriptorProto) -> FileDescriptorProto:
    """Return a file without its comments, and with its imports in order."""
    copy = FileDescriptorProto()
    copy.CopyFrom(file)
    copy.ClearField("source_code_info")
    copy.dependency[:] = sorted(copy.dependency)
    return copy


def comments(file: FileDescriptorProto) -> set[tuple[tuple[int, ...], str]]:
    locations = file.source_code_info.location
    return {(tuple(at.path), at.leading_comments) for at in locations if at.leading_comments}


def test_names_follow_from_the_table_and_its_row(tmp_path: Path) -> None:
    assert list(bind_sources(tmp_path, rows=HEAD + RATING).queries) == [
        "/shop.v1.RatingsService/GetRating",
        "/shop.v1.RatingsService/BatchGetRatings",
        "/shop.v1.RatingsService/ListRatings",
        "/shop.v1.RatingsService/ScanRatings",
        "/shop.v1.RatingsService/SubscribeRatings",
        "/shop.v1.RatingsService/CountRatings",
    ]


def test_it_is_the_same_once_more(tmp_path: Path) -> None:
    catalogue = bind_sources(tmp_path, rows=HEAD + RATING)
    assert bind(catalogue.files).files == catalogue.files


def test_several_rows_of_several_files(tmp_path: Path) -> None:
    other = (HEAD + RATING).replace("Rating", "Score").replace('"ratings"', '"movie_scores"')
    catalogue = bind_sources(tmp_path, rows=HEAD + RATING + VISIT, scores=other)
    assert set(catalogue.services) == {f"shop.v1.{name}Service" for name in ("Ratings", "Visits", "MovieScores")}


def test_rows_inside_of_another_message(tmp_path: Path) -> None:
    assert len(bind_sources(tmp_path, rows=HEAD + f"message Shop {{\n{RATING}}}\n").queries) == len(KINDS)


def test_beside_a_contract_with_a_service(tmp_path: Path) -> None:
    catalogue = bind_sources(tmp_path, visits=VISITS, rows=HEAD + RATING)
    assert set(catalogue.services) == {"shop.visits.v1.VisitsService", "shop.v1.RatingsService"}


def test_a_service_that_imports_the_rows_says_all_their_queries(tmp_path: Path) -> None:
    catalogue = bind_sources(
        tmp_path,
        rows=HEAD + RATING + VISIT,
        service='syntax = "proto3";\npackage shop.v1;\nimport "tablegate/v1/options.proto";\n' + SERVICE,
    )
    assert list(catalogue.queries) == ["/shop.v1.VisitsService/GetVisit"]
    assert set(catalogue.tables) == {"ratings", "visits"}


def problems_of(tmp_path: Path, **sources: str) -> list[str]:
    with pytest.raises(ContractError) as raised:
        bind_sources(tmp_path, **sources)
    return [str(problem) for problem in raised.value.problems]


def test_a_name_that_is_taken_is_told(tmp_path: Path) -> None:
    others = HEAD.replace("timestamp", "empty") + "enum RatingsService { A = 0; }"
    text = HEAD + RATING + "message RatingKey {}\nmessage GetRatingRequest {}\n"
    assert problems_of(tmp_path, rows=text, others=others) == [
        f'rows.proto: message Rating: "{name}" is there already, and the queries of table "ratings" need the name; '
        "rename it, or write a service by hand"
        for name in ("GetRatingRequest", "RatingKey", "RatingsService")
    ]


def test_two_rows_of_one_name_are_told(tmp_path: Path) -> None:
    other = RATING.replace('"ratings"', '"scores"')
    problems = problems_of(
        tmp_path, rows=HEAD + f"message Shop {{\n{RATING}}}\n", others=HEAD + f"message Club {{\n{other}}}\n"
    )
    assert 'others.proto: message Club.Rating: "RatingKey" is there already' in "\n".join(problems)


def test_rows_of_proto2_are_told(tmp_path: Path) -> None:
    row = VISIT.replace("int64", "optional int64")
    [problem] = problems_of(tmp_path, rows='syntax = "proto2";\nimport "tablegate/v1/options.proto";\n' + row)
    assert problem.startswith("rows.proto: is not proto3, and queries are written in proto3; ")


def test_what_is_wrong_with_the_row_is_all_that_is_told(tmp_path: Path) -> None:
    [problem] = problems_of(tmp_path, rows=HEAD + RATING.replace("movie_id = 1", "id = 1"))
    assert "the key names a column that message Rating does not have" in problem


@pytest.mark.parametrize("partition_by", ["", 'partition_by: "a"'])
def test_a_list_reads_one_partition_where_the_key_allows(partition_by: str, tmp_path: Path) -> None:
    option = f'option (tablegate.v1.table) = {{name: "things", key: "a", key: "b" {partition_by}}};'
    catalogue: Catalogue = bind_sources(
        tmp_path, rows=f"{HEAD}message Thing {{\n{option}\nstring a = 1;\nint64 b = 2;\n}}\n"
    )
    [found] = [query for query in catalogue.queries.values() if isinstance(query, RangeQuery)]
    assert found.scatter is not bool(partition_by)
    assert [param.column.name for param in found.prefix] == (["a"] if partition_by else [])
    bounds = [(param.field.name, param.op.name) for param in found.bounds]
    column = "b" if partition_by else "a"
    assert bounds == [("a", "EQ")] * (not partition_by) + [(f"{column}_from", "GTE"), (f"{column}_before", "LT")]


def test_numbers_stay_while_columns_come_and_go(tmp_path: Path) -> None:
    def numbers(text: str) -> dict[tuple[str, str], int]:
        queries = bind_sources(tmp_path, rows=HEAD + text).queries
        requests = (query.request_class.DESCRIPTOR for query in queries.values())
        return {(request.name, field.name): field.number for request in requests for field in request.fields}

    before = numbers(RATING)
    after = numbers(RATING.replace("int64 movie_id", "string country = 3;\nint64 movie_id"))
    assert before.items() < after.items()
    assert numbers(RATING.replace("double average_rating = 2;", "")).items() < before.items()


def test_an_optional_column_whose_name_begins_with_an_underscore(tmp_path: Path) -> None:
    catalogue = bind_sources(tmp_path, rows=HEAD + RATING.replace("double", "optional double _a = 3;\n  double"))
    assert len(catalogue.queries) == len(KINDS)
