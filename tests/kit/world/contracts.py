"""The contracts of a world: the table of ratings, and the same with an index, which gateways come to have and lose."""

import tempfile
from functools import cache
from pathlib import Path

from tablegate.gateway.contract.catalogue import Catalogue
from tests.kit.table.contracts import RATINGS, bind_ratings, edited
from tests.kit.table.filled import catalogue_of

_METHOD = """
  rpc ListRatingsByCount(ListRatingsByCountRequest) returns (ListRatingsResponse) {
    option (tablegate.v1.query) = {
      range: {scatter: true}
    };
  }
  rpc GetRatingByCount(GetRatingByCountRequest) returns (GetRatingResponse) {
    option (tablegate.v1.query) = {
      get: {on_missing: ON_MISSING_EMPTY}
    };
  }
  rpc BatchGetRatingsByCount(BatchGetRatingsByCountRequest) returns (BatchGetRatingsByCountResponse) {
    option (tablegate.v1.query) = {
      batch_get: {index: "by_count"}
    };
  }
}

// A movie's rating.
"""
_REQUEST = """
message ListRatingsByCountRequest {
  optional int64 min_count = 1 [(tablegate.v1.param) = {column: "rating_count" op: OP_GTE}];
  tablegate.v1.Order order = 2;
  int32 page_size = 3;
  string page_token = 4;
}

message GetRatingByCountRequest {
  int64 rating_count = 1 [(google.api.field_behavior) = REQUIRED];
}

message BatchGetRatingsByCountRequest {
  repeated int64 counts = 1;
}

message BatchGetRatingsByCountResponse {
  repeated Result results = 1;
  tablegate.v1.ReadInfo read_info = 2;

  message Result {
    oneof result {
      Rating rating = 1;
      int64 missing = 2;
    }
  }
}
"""


def plain() -> Catalogue:
    """Return the contract without an index."""
    return catalogue_of()


@cache
def indexed() -> Catalogue:
    """Return the contract with one, and a query by it."""
    key = '    key: "movie_id"\n'
    text = edited(
        RATINGS,
        (key, f'{key}    index: {{name: "by_count" columns: "rating_count" unique: true}}\n'),
        ("}\n\n// A movie's rating.\n", _METHOD),
    )
    with tempfile.TemporaryDirectory() as directory:
        return bind_ratings(Path(directory), text + _REQUEST)
