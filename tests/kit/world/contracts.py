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
        (key, f'{key}    index: {{name: "by_count" columns: "rating_count"}}\n'),
        ("}\n\n// A movie's rating.\n", _METHOD),
    )
    with tempfile.TemporaryDirectory() as directory:
        return bind_ratings(Path(directory), text + _REQUEST)
