"""`tablegate diff` of queries and messages: what a client meets that was compiled against the contract of before."""

from pathlib import Path

import pytest
from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from tablegate.gateway.cli.diff.command import compare
from tablegate.gateway.cli.diff.differences import Effect
from tablegate.gateway.cli.diff.messages import Kind, message_differences
from tablegate.gateway.contract.catalogue import Catalogue
from tests.kit.table.contracts import RATINGS, VISITS, bind_ratings, bind_visits, edited

pytestmark = pytest.mark.tools


def of_query(old: Catalogue, new: Catalogue, query: str) -> list[tuple[str, bool]]:
    """Return what is described of a query, and whether it breaks clients."""
    found = [each for table in compare(old, new) for each in table.differences if each.subject == query]
    assert all(each.rows is Effect.SAFE for each in found)
    return [(each.text, each.breaks_clients) for each in found]


@pytest.mark.parametrize(
    ("edits", "query", "words", "breaks"),
    [
        ([("rpc GetRating(", "rpc FindRating(")], "GetRating", "is gone: calls are answered UNIMPLEMENTED", True),
        ([("rpc GetRating(", "rpc FindRating(")], "FindRating", "is new, a Get", False),
        ([("v1;", "v2;")], "GetRating", "is gone", True),
        ([("get: {}", "get: {on_missing: ON_MISSING_EMPTY}")], "GetRating", "is answered empty", True),
        ([("max_keys: 500", "max_keys: 400")], "BatchGetRatings", "max_keys is 400, it was 500", True),
        ([("max_keys: 500", "max_keys: 600")], "BatchGetRatings", "max_keys is 600, it was 500", False),
        ([("size: 50", "size: 20")], "ListRatings", "default_page_size is 20, it was 50", True),
        ([("size: 1000", "size: 100")], "ListRatings", "max_page_size is 100, it was 1000", True),
        ([("scan: {}", "scan: {max_rows: 9}")], "ScanRatings", "max_rows is 9, it was 0", True),
        ([("{seconds: 10}", "{seconds: 5}")], "GetRating", "max_timeout is 5 s, it was 10 s", True),
        ([("{seconds: 10}", "{seconds: 20}")], "GetRating", "max_timeout is 20 s, it was 10 s", False),
        (
            [("subscribe: {scatter: true}", "subscribe: {scatter: true, slow: SLOW_SUBSCRIBER_DISCONNECT}")],
            "SubscribeRatings",
            "a slow subscriber is disconnected",
            True,
        ),
        ([("/v1/ratings:scan", "/v1/all")], "ScanRatings", "REST route GET /v1/ratings:scan is gone", True),
        ([("/v1/ratings:scan", "/v1/all")], "ScanRatings", "REST route GET /v1/all is new", False),
        ([("movie_id_from = 1", "movie_id_from = 9")], "ListRatings", "has number 9, it had 1", True),
        ([("movie_id_from = 1", "from_movie = 1")], "ListRatings", "is the new name of movie_id_from", True),
        ([("op: OP_LT\n", "op: OP_LTE\n")], "ListRatings", '"movie_id_before" means LTE column number 1, it me', True),
        ([("string next_page_token = 2", "string next_page_token = 9")], "ListRatings", "has number 9", True),
        (
            [("RatingKey missing = 2", "RatingKey missing = 5")],
            "BatchGetRatings",
            '"results.missing" has number 5',
            True,
        ),
        ([("  // What was read.\n  tablegate.v1.ReadInfo read_info = 2;\n", "")], "GetRating", "is gone, it was", True),
        ([("  tablegate.v1.Order order = 3;\n", "")], "ListRatings", 'request field "order" is gone', True),
        (
            [("    option idempotency_level = NO_SIDE_EFFECTS;\n", "")],
            "GetRating",
            "takes no Connect GET any more",
            True,
        ),
        (
            [("ScanRatingsRequest {\n", "ScanRatingsRequest {\n  optional int64 movie_id = 9;\n")],
            "ScanRatings",
            'request field "movie_id" is new, int64',
            False,
        ),
    ],
)
def test_queries(tmp_path: Path, edits: list[tuple[str, str]], query: str, words: str, breaks: bool) -> None:
    old, new = bind_ratings(tmp_path / "old", RATINGS), bind_ratings(tmp_path / "new", edited(RATINGS, *edits))
    described = of_query(old, new, query)
    assert [breaks_it for text, breaks_it in described if words in text] == [breaks], described


@pytest.mark.parametrize(
    ("edits", "words"),
    [
        (
            [
                (
                    "shop_name = 1;\n  optional Place",
                    "shop_name = 1;\n  google.protobuf.Timestamp start_time = 9;\n  optional Place",
                )
            ],
            'request field "start_time" is new',
        ),
        (
            [
                ("string shop_name = 1;\n  optional Place", "optional string shop_name = 1;\n  optional Place"),
                ("subscribe: {}", "subscribe: {scatter: true}"),
            ],
            'request field "shop_name" means EQ column number 1, it meant EQ column number 1, which must be given',
        ),
        (
            [("optional Place place = 2;\n  tablegate", "optional bool paid = 2;\n  tablegate")],
            'request field "paid" means EQ column number 4, it meant EQ column number 3',
        ),
    ],
)
def test_conditions(tmp_path: Path, edits: list[tuple[str, str]], words: str) -> None:
    old, new = bind_visits(tmp_path / "old"), bind_visits(tmp_path / "new", edited(VISITS, *edits))
    assert [text for text, _ in of_query(old, new, "SubscribeVisits") if text.startswith(words)]


START_BOUND = """\
  google.protobuf.Timestamp start_time_from = 2 [(tablegate.v1.param) = {column: "start_time" op: OP_GTE}];
"""


def test_a_request_that_needs_more(tmp_path: Path) -> None:
    less = edited(
        VISITS,
        ("ListVisitsRequest {\n  string shop_name = 1;\n", "ListVisitsRequest {\n"),
        ("range: {", "range: {scatter: true "),
        (START_BOUND, ""),
    )
    more = edited(
        VISITS,
        (START_BOUND, ""),
    )
    described = of_query(bind_visits(tmp_path / "old", less), bind_visits(tmp_path / "new", more), "ListVisits")
    assert ('request field "shop_name" must be given', True) in described


def test_a_query_that_reads_another_table_or_is_another_kind(tmp_path: Path) -> None:
    old = bind_ratings(tmp_path / "old", RATINGS)
    new = bind_ratings(
        tmp_path / "new",
        edited(RATINGS, ('name: "ratings"', 'name: "movies"'), ('table: "ratings"', 'table: "movies"')),
    )
    assert of_query(old, new, "GetRating") == [('reads table "movies", it read "ratings"', True)]
    no_query = edited(RATINGS, ("    option (tablegate.v1.query) = {\n      get: {}\n    };\n", ""))
    assert of_query(old, bind_ratings(tmp_path / "none", no_query), "GetRating") == [
        ("is no query any more: calls are answered UNIMPLEMENTED", True),
    ]


def nested(text: str) -> Descriptor:
    """Return message Outer of a .proto."""
    file = FileDescriptorProto(name="outer.proto", package="shop", syntax="proto3")
    text_format.Parse(text, file)
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    found: Descriptor = pool.FindMessageTypeByName("shop.Outer")
    return found


INNER = """
message_type { name: "Outer"
  field { name: "lines" number: 1 type: TYPE_MESSAGE type_name: "shop.Line" label: LABEL_REPEATED }
  field { name: "outer" number: 2 type: TYPE_MESSAGE type_name: ".shop.Outer" label: LABEL_OPTIONAL }
}
message_type { name: "Line"
  field { name: "sku" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "prices" number: 2 type: TYPE_MESSAGE type_name: ".shop.Line.PricesEntry" label: LABEL_REPEATED }
  field { name: "gift" number: 3 type: TYPE_BOOL label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "sale" number: 4 type: TYPE_BOOL label: LABEL_OPTIONAL oneof_index: 0 }
  oneof_decl { name: "reason" }
  nested_type { name: "PricesEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_DOUBLE label: LABEL_OPTIONAL }
  }
}
"""


@pytest.mark.parametrize(
    ("edit", "path", "kinds"),
    [
        (('"sku" number: 1', '"sku" number: 9'), "lines.sku", [Kind.RENUMBERED]),
        (('"sku" number: 1', '"code" number: 1'), "lines.code", [Kind.RENAMED]),
        (("TYPE_DOUBLE", "TYPE_FLOAT"), "lines.prices.value", [Kind.TYPE]),
        (('"prices" number: 2', '"prices" number: 5'), "lines.prices", [Kind.RENUMBERED]),
        (('"shop.Line" label: LABEL_REPEATED', '"shop.Line" label: LABEL_OPTIONAL'), "lines", [Kind.CARDINALITY]),
        (('"reason"', '"cause"'), "lines.sale", [Kind.ONEOF]),
        (
            (
                'type: TYPE_STRING label: LABEL_OPTIONAL }\n  field { name: "prices"',
                'type: TYPE_STRING label: LABEL_REPEATED }\n  field { name: "prices"',
            ),
            "lines.sku",
            [Kind.CARDINALITY],
        ),
    ],
)
def test_messages_inside_of_messages(edit: tuple[str, str], path: str, kinds: list[Kind]) -> None:
    old, new = nested(INNER), nested(edited(INNER, edit))
    found = list(message_differences(old, new))
    assert [each.kind for each in found if ".".join(each.path) == path] == kinds
    assert all(each.breaks_clients for each in found)
