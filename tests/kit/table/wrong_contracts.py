"""Wrong contracts: edits of the good ones, with words that their problems must have."""

from typing import NamedTuple

from tablegate.gateway.contract.descriptors import proto_directory


class Edit(NamedTuple):
    """A wrong contract: what is replaced in a good one (each pair once), and words that its problems must have."""

    name: str
    replacements: tuple[tuple[str, str], ...]
    words: tuple[str, ...]

    def apply(self, text: str) -> str:
        for old, new in self.replacements:
            assert text.count(old) >= 1, f"{self.name}: {old!r} is not in the contract"
            text = text.replace(old, new, 1)
        return text


def edit(name: str, old: str, new: str, *words: str) -> Edit:
    return Edit(name, ((old, new),), words)


_TABLE = """    name: "ratings"
    key: "movie_id"
"""
_GET_REQUEST = """message GetRatingRequest {
  // Movie.
  int64 movie_id = 1 [(google.api.field_behavior) = REQUIRED];
"""
_LIST_FROM = """  optional int64 movie_id_from = 1 [(tablegate.v1.param) = {
    column: "movie_id"
    op: OP_GTE
  }];
"""
_SCAN_MIN = """  optional double min_average_rating = 1 [(tablegate.v1.param) = {
    column: "average_rating"
    op: OP_GTE
  }];
"""
_RESULT = """  oneof result {
    // The row.
    Rating found = 1;
    // No row has this key.
    RatingKey missing = 2;
  }
"""
_OTHER_TABLE = """
message Film {
  option (tablegate.v1.table) = {name: "films" key: "film_id"};
  int64 film_id = 1;
}
"""

# A later version's options.proto: what it adds must be refused here, not left out.
NEWER_OPTIONS = (
    (proto_directory() / "tablegate/v1/options.proto")
    .read_text("utf-8")
    .replace(
        "  Partitioner partitioner = 4;\n",
        "  Partitioner partitioner = 4;\n  google.protobuf.Duration shelf_life = 9;\n",
    )
    .replace("  OP_IN = 8;\n", "  OP_IN = 8;\n  OP_NEWER = 9;\n")
    .replace("    CountQuery count = 6;\n", "    CountQuery count = 6;\n    SampleQuery sample = 7;\n")
    .replace("message GetQuery {\n", "message SampleQuery {}\n\nmessage GetQuery {\n  bool sloppy = 15;\n")
    + "extend google.protobuf.FileOptions { string owner = 50731; }\n"
    + "extend google.protobuf.OneofOptions { bool any = 50731; }\n"
    + "extend google.protobuf.EnumOptions { bool open = 50731; }\n"
)
RULES = """
syntax = "proto3";
package buf.validate;
import "google/protobuf/descriptor.proto";
message FieldRules { int32 gte = 1; }
extend google.protobuf.FieldOptions { FieldRules field = 1159; }
"""

WRONG_OPTIONS = [
    edit(
        "table option of a newer version",
        _TABLE,
        f"{_TABLE}    shelf_life: {{seconds: 5}}\n",
        "message Rating",
        "(tablegate.v1.table)",
        "number 9",
    ),
    edit("newer operator", "op: OP_LT\n", "op: OP_NEWER\n", 'field "movie_id_before"', '"op"', "9"),
    edit("newer kind of query", "get: {}", "sample: {}", "method RatingsService.GetRating", "number 7"),
    edit("newer field inside of a kind", "get: {}", "get: {sloppy: true}", "RatingsService.GetRating", "number 15"),
    edit("option on a file", "// Average rating per movie.", 'option (tablegate.v1.owner) = "us";', "50731"),
    edit(
        "option on a oneof",
        "oneof result {",
        "oneof result {\n    option (tablegate.v1.any) = true;",
        '"result"',
        "50731",
    ),
    edit(
        "option on an enum",
        "// Key of a Rating.",
        "enum Sort {\n  option (tablegate.v1.open) = true;\n  SORT_UNSPECIFIED = 0;\n}",
        "Sort",
        "50731",
    ),
    Edit(
        "rules of buf.validate",
        (
            (
                'import "tablegate/v1/options.proto";',
                'import "tablegate/v1/options.proto";\nimport "buf/validate/validate.proto";',
            ),
            ("  int32 page_size = 4;", "  int32 page_size = 4 [(buf.validate.field).gte = 1];"),
        ),
        ("message ListRatingsRequest", 'field "page_size"', "buf.validate"),
    ),
]

WRONG_RATINGS = [
    # Tables.
    edit("no table name", 'name: "ratings"', "", "message Rating", 'field "name"', "no name"),
    edit("bad table name", 'name: "ratings"', 'name: "Ratings-1"', "message Rating", '"Ratings-1"', "lower-case"),
    edit("no key", '    key: "movie_id"\n', "", "message Rating", 'field "key"', "no key"),
    edit("unknown key column", 'key: "movie_id"', 'key: "film_id"', "message Rating", 'field "film_id"'),
    edit("column twice in key", _TABLE, f'{_TABLE}    key: "movie_id"\n', 'field "movie_id"', "twice"),
    edit("float key", 'key: "movie_id"', 'key: "average_rating"', 'field "average_rating"', "double", "in the key"),
    edit(
        "message key",
        _TABLE + "  };",
        '    name: "ratings"\n    key: "info"\n  };\n  tablegate.v1.ReadInfo info = 9;',
        'field "info"',
        "tablegate.v1.ReadInfo",
    ),
    edit(
        "partition_by is no prefix",
        _TABLE,
        f'{_TABLE}    key: "rating_count"\n    partition_by: "rating_count"\n',
        'field "partition_by"',
        "no prefix",
    ),
    edit("partition_by unknown", _TABLE, f'{_TABLE}    partition_by: "film"\n', 'field "partition_by"', "film"),
    edit(
        "murmur2 of a part",
        _TABLE,
        f'{_TABLE}    key: "rating_count"\n    partition_by: "movie_id"\n    partitioner: PARTITIONER_MURMUR2\n',
        'field "partitioner"',
        "MURMUR2",
    ),
    edit("repeated column", "int64 rating_count", "repeated int64 rating_count", "repeated int64", "OP_CONTAINS"),
    edit("map column", "int64 rating_count", "map<string, int64> rating_count", "no operator compares a map"),
    edit(
        "message column",
        "  google.protobuf.Timestamp update_time = 4;",
        "  Rating update_time = 4;",
        'field "update_time"',
        "contains itself",
    ),
    edit(
        "table twice",
        "// Key of a Rating.",
        'message Film {\n  option (tablegate.v1.table) = {name: "ratings" key: "id"};\n  int64 id = 1;\n}\n',
        "message Film",
        '"ratings"',
        "another name",
    ),
    # Options.
    edit("query without kind", "get: {}", "", "method RatingsService.GetRating", "get, batch_get"),
    edit("negative timeout", "{seconds: 2}", "{seconds: -2}", "service RatingsService", "default_timeout", "-2 s"),
    edit("default above the longest", "{seconds: 2}", "{seconds: 20}", "service RatingsService", "20 s", "10 s"),
    edit("timeout of days", "{seconds: 10}", "{seconds: 100000}", "service RatingsService", "max_timeout"),
    edit(
        "param nobody reads",
        "message RatingKey {\n  // Movie.\n  int64 movie_id = 1 [",
        "message RatingKey {\n  // Movie.\n  int64 movie_id = 1 [(tablegate.v1.param).op = OP_EQ, ",
        "message RatingKey",
        'field "movie_id"',
        "no query",
    ),
    # Shapes.
    edit("Get that streams", "returns (GetRatingResponse)", "returns (stream GetRatingResponse)", "GetRating", "shape"),
    edit("Get of a stream", "rpc GetRating(", "rpc GetRating(stream ", "GetRating", "shape", "remove"),
    edit("Scan that does not stream", "(stream ScanRatingsResponse)", "(ScanRatingsResponse)", "ScanRatings", "shape"),
    edit("Subscribe that does not", "(stream SubscribeRatingsResponse)", "(SubscribeRatingsResponse)", "shape"),
    # Requests.
    edit(
        "unbound field", _GET_REQUEST, f"{_GET_REQUEST}  string language = 9;\n", 'field "language"', "binds to nothing"
    ),
    edit("unknown column", 'column: "average_rating"', 'column: "mean"', 'field "min_average_rating"', '"mean"'),
    edit("param of another type", _GET_REQUEST, _GET_REQUEST.replace("int64", "int32"), 'field "movie_id"', "int32"),
    edit(
        "presence is missing", _SCAN_MIN, _SCAN_MIN.replace("optional ", ""), 'field "min_average_rating"', "optional"
    ),
    edit("repeated param", _SCAN_MIN, _SCAN_MIN.replace("optional", "repeated"), '"min_average_rating"', "repeated"),
    edit("prefix of a number", _SCAN_MIN, _SCAN_MIN.replace("OP_GTE", "OP_PREFIX"), "OP_PREFIX", "double"),
    edit("same constraint twice", "op: OP_LT\n", "op: OP_GTE\n", 'field "movie_id_before"', "another field"),
    edit(
        "Get without its key", _GET_REQUEST, "message GetRatingRequest {\n", "GetRatingRequest", '"movie_id"', "Range"
    ),
    edit(
        "Get of another column",
        _GET_REQUEST,
        f"{_GET_REQUEST}  int64 rating_count = 9 [(tablegate.v1.param).op = OP_EQ];\n",
        'field "rating_count"',
    ),
    edit(
        "Get with a bound",
        _GET_REQUEST,
        f'{_GET_REQUEST}  optional int64 above = 9 [(tablegate.v1.param) = {{column: "movie_id" op: OP_GT}}];\n',
        'field "above"',
        "OP_EQ",
    ),
    edit(
        "Get with an order", _GET_REQUEST, f"{_GET_REQUEST}  tablegate.v1.Order order = 9;\n", 'field "order"', "a Get"
    ),
    edit(
        "two read options",
        _GET_REQUEST,
        f"{_GET_REQUEST}  tablegate.v1.ReadOptions more = 9;\n",
        'field "read_options"',
        "second",
    ),
    edit(
        "repeated read options",
        "  tablegate.v1.ReadOptions read_options = 6;",
        "  repeated tablegate.v1.ReadOptions read_options = 6;",
        "ListRatingsRequest",
        'field "read_options"',
    ),
    edit(
        "two masks",
        _GET_REQUEST,
        f"{_GET_REQUEST}  google.protobuf.FieldMask more = 9;\n",
        'field "read_mask"',
        "second google.protobuf.FieldMask",
    ),
    edit(
        "repeated mask",
        "google.protobuf.FieldMask read_mask = 5;",
        "repeated google.protobuf.FieldMask read_mask = 5;",
        "ScanRatingsRequest",
        "must be a field of its own",
    ),
    edit(
        "mask in a response",
        "message BatchGetRatingsResponse {\n",
        "message BatchGetRatingsResponse {\n  google.protobuf.FieldMask read_mask = 9;\n",
        "BatchGetRatingsResponse",
        "a BatchGet has no place for google.protobuf.FieldMask here",
    ),
    edit(
        "mask in a key",
        "message RatingKey {\n",
        "message RatingKey {\n  google.protobuf.FieldMask read_mask = 9;\n",
        "RatingKey",
        'is no key column of table "ratings"',
    ),
    edit(
        "mask as a param",
        "google.protobuf.FieldMask read_mask = 7;",
        'google.protobuf.FieldMask read_mask = 7 [(tablegate.v1.param).column = "update_time"];',
        'field "read_mask"',
        "google.protobuf.Timestamp",
    ),
    edit(
        "param option on keys",
        "repeated RatingKey keys = 1 [",
        "repeated RatingKey keys = 1 [(tablegate.v1.param).op = OP_EQ, ",
        'field "keys"',
        "BatchGet",
    ),
    edit(
        "second repeated field",
        "message BatchGetRatingsRequest {\n",
        "message BatchGetRatingsRequest {\n  repeated int64 movie_ids = 9;\n",
        "BatchGetRatingsRequest",
        "one repeated field",
    ),
    edit(
        "plain keys for a row of another type",
        "repeated RatingKey keys",
        "repeated string keys",
        'field "keys"',
        "is no key of table",
    ),
    edit("keys not repeated", "repeated RatingKey keys", "RatingKey keys", "BatchGetRatingsRequest", "not repeated"),
    edit(
        "key lacks a column",
        "message RatingKey {\n  // Movie.\n  int64 movie_id = 1 [(google.api.field_behavior) = REQUIRED];",
        "message RatingKey {",
        "message RatingKey",
        '"movie_id"',
    ),
    edit(
        "key has more",
        "message RatingKey {\n",
        "message RatingKey {\n  int64 rating_count = 2;\n",
        "RatingKey",
        '"rating_count"',
    ),
    edit(
        "key of another type",
        "message RatingKey {\n  // Movie.\n  int64",
        "message RatingKey {\n  // Movie.\n  sint64",
        "RatingKey",
        "int64",
    ),
    edit("batch too large", "max_keys: 500", "max_keys: 5000", "BatchGetRatings", "max_keys", "5000"),
    edit("negative batch", "max_keys: 500", "max_keys: -1", "BatchGetRatings", "max_keys", "-1"),
    edit("pages too large", "max_page_size: 1000", "max_page_size: 1001", "ListRatings", "max_page_size"),
    edit("page sizes crossed", "max_page_size: 1000", "max_page_size: 10", "ListRatings", "default_page_size", "10"),
    edit("page_size is no int32", "int32 page_size = 4", "int64 page_size = 4", 'field "page_size"', "int32 page_size"),
    edit("no page_token", "  string page_token = 5;\n", "", "ListRatingsRequest", "page_token"),
    edit("no next_page_token", "  string next_page_token = 2;\n", "", "ListRatingsResponse", "next_page_token"),
    edit("Range of the whole key", _LIST_FROM, "  int64 movie_id = 1;\n", "ListRatings", "a Get"),
    edit("scatter is not said", "        scatter: true\n", "", "ListRatings", "every partition", "movie_id"),
    edit(
        "Subscribe without scatter",
        "subscribe: {scatter: true}",
        "subscribe: {}",
        "SubscribeRatings",
        "every partition",
    ),
    edit("negative rows", "scan: {}", "scan: {max_rows: -5}", "ScanRatings", "max_rows", "-5"),
    edit("Scan with a given key", _SCAN_MIN, "  int64 movie_id = 1;\n", "ScanRatingsRequest", '"movie_id"', "optional"),
    edit(
        "resume without progress",
        "  tablegate.v1.ScanProgress progress = 2;\n",
        "",
        "ScanRatingsResponse",
        "ScanProgress",
    ),
    edit("no subscribe options", "  tablegate.v1.SubscribeOptions subscribe_options = 2;\n", "", "SubscribeOptions"),
    # Responses.
    edit(
        "two tables in a response",
        "message GetRatingResponse {\n",
        f"{_OTHER_TABLE}message GetRatingResponse {{\n  Film film = 9;\n",
        "GetRatingResponse",
        "2 tables",
    ),
    edit("no row in a response", "  // The row.\n  Rating rating = 1;\n", "", "GetRatingResponse", "no row"),
    edit(
        "repeated row of a Get",
        "  Rating rating = 1;",
        "  repeated Rating rating = 1;",
        'field "rating"',
        "a single Rating",
    ),
    edit(
        "single row of a Range",
        "repeated Rating ratings = 1;\n  // Empty",
        "Rating ratings = 1;\n  // Empty",
        "ListRatingsResponse",
    ),
    edit(
        "unfilled response field",
        "message GetRatingResponse {\n",
        "message GetRatingResponse {\n  string etag = 9;\n",
        '"etag"',
        "remove it",
    ),
    edit(
        "read info of a Scan",
        "message ScanRatingsResponse {\n",
        "message ScanRatingsResponse {\n  tablegate.v1.ReadInfo info = 9;\n",
        '"info"',
    ),
    edit(
        "result without a oneof",
        _RESULT,
        "  Rating found = 1;\n  RatingKey missing = 2;\n",
        "RatingResult",
        "oneof",
    ),
    edit(
        "result with more",
        "    RatingKey missing = 2;",
        "    RatingKey missing = 2;\n    string reason = 3;",
        "RatingResult",
        "nothing else",
    ),
    edit(
        "missing of another type", "    RatingKey missing = 2;", "    int64 missing = 2;", "RatingResult", '"missing"'
    ),
    edit("delete is no key", "    RatingKey delete = 2;", "    int64 delete = 2;", "RatingChange", '"delete"'),
    edit("table that is not there", "get: {}", 'get: {}\n      table: "films"', "GetRating", '"films"'),
    Edit(
        "table of another row",
        (("get: {}", 'get: {}\n      table: "films"'), ("// Key of a Rating.", _OTHER_TABLE)),
        ("GetRating", '"films"', '"ratings"'),
    ),
    Edit(
        "service without queries",
        (("// Average rating per movie.", "service Other {\n  option (tablegate.v1.serving) = {};\n}"),),
        ("service Other", "no method"),
    ),
]

WRONG_VISITS = [
    edit(
        "Get with half a key",
        "  google.protobuf.Timestamp start_time = 2;\n}\n\nmessage GetVisitResponse",
        "}\n\nmessage GetVisitResponse",
        "GetVisitRequest",
        '"start_time"',
    ),
    edit(
        "Range with a gap",
        "message ListVisitsRequest {\n  string shop_name = 1;\n",
        "message ListVisitsRequest {\n",
        "ListVisits",
        "does not fix shop_name",
    ),
    edit("scatter for nothing", "range: {max_page_size: 20}", "range: {scatter: true}", "ListVisits", "one partition"),
    edit(
        "bound of an enum",
        "optional Place place = 2;",
        "optional Place place = 2 [(tablegate.v1.param).op = OP_GT];",
        '"place"',
        "OP_GT",
    ),
    edit(
        "murmur2",
        'partition_by: "shop_name"',
        'partition_by: "shop_name" partitioner: PARTITIONER_MURMUR2',
        '"partitioner"',
    ),
    edit(
        "partition by the second", 'partition_by: "shop_name"', 'partition_by: "start_time"', '"partition_by"', "prefix"
    ),
    edit(
        "given param in a oneof",
        "message ListVisitsRequest {\n  string shop_name = 1;\n",
        "message ListVisitsRequest {\n"
        "  oneof shop {\n    string shop_name = 1 [(google.api.field_behavior) = REQUIRED];\n  }\n",
        '"shop_name"',
        "oneof",
    ),
    edit(
        "given second column alone",
        "message ListVisitsRequest {\n  string shop_name = 1;\n  google.protobuf.Timestamp start_time_from = 2 "
        '[(tablegate.v1.param) = {column: "start_time" op: OP_GTE}];',
        "message ListVisitsRequest {\n"
        "  google.protobuf.Timestamp start_time = 2 [(google.api.field_behavior) = REQUIRED];",
        '"start_time"',
        "shop_name",
    ),
    edit(
        "key type of another enum",
        "optional Place place = 2;",
        "optional tablegate.v1.Order place = 2 [(tablegate.v1.param).op = OP_EQ];",
        '"place"',
        "tablegate.v1.Order",
    ),
]
