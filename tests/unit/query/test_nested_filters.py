"""Filters on what is in messages of a row, and on what is repeated."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tablegate.gateway.contract.binder.problems import ContractError
from tablegate.gateway.contract.catalogue import ScanQuery
from tablegate.gateway.query.requests import filters_reader
from tests.kit.table.contracts import bind_sources
from tests.kit.table.filled import ORDERS

TEXT = ORDERS.read_text()
FILTERS = """
service OrdersService {
  rpc ScanOrders(ScanOrdersRequest) returns (stream ScanOrdersResponse) { option (tablegate.v1.query) = { scan: {} }; }
}
message ScanOrdersRequest {
FIELDS
}
message ScanOrdersResponse { repeated Order orders = 1; }
"""
EACH = """
  optional string city = 1 [(tablegate.v1.param).column = "address.city"];
  optional int32 min_floor = 2 [(tablegate.v1.param) = { column: "address.floor" op: OP_GTE }];
  optional string tag = 3 [(tablegate.v1.param) = { column: "tags" op: OP_CONTAINS }];
  google.protobuf.Timestamp time = 4 [(tablegate.v1.param) = { column: "times" op: OP_CONTAINS }];
  optional string street = 5 [(tablegate.v1.param) = { column: "invoice.street" op: OP_PREFIX }];
  optional string nickname = 6 [(tablegate.v1.param).column = "nickname.value"];
  optional Status status = 7 [(tablegate.v1.param) = { column: "history" op: OP_CONTAINS }];
  optional string card = 8;
  optional string address_street = 9 [(tablegate.v1.param).column = "address.street"];
  repeated string cities = 10 [(tablegate.v1.param) = { column: "address.city" op: OP_IN }];
  repeated string streets = 11 [(tablegate.v1.param) = { column: "address.street" op: OP_IN }];
  repeated string cards = 12 [(tablegate.v1.param) = { column: "card" op: OP_IN }];
"""


def bound(fields: str) -> ScanQuery:
    with TemporaryDirectory() as directory:
        text = TEXT + FILTERS.replace("FIELDS", fields)
        found = bind_sources(Path(directory), test__orders__v1__orders=text).queries
    [query] = found.values()
    assert isinstance(query, ScanQuery)
    return query


@cache
def each() -> ScanQuery:
    return bound(EACH)


def passes(row: dict[str, Any], **wanted: Any) -> bool:
    message = each().table.row_class(**row)
    return all(test(message) for test in filters_reader(each().filters)(each().request_class(**wanted)))


@pytest.mark.parametrize(
    ("row", "wanted", "is_passing"),
    [
        ({"address": {"city": "Bern"}}, {"city": "Bern"}, True),
        ({"address": {"city": "Bern"}}, {"city": "Basel"}, False),
        ({"address": {}}, {"city": ""}, False),  # the city has presence, and is not set
        ({}, {"city": ""}, False),
        ({"address": {}}, {"address_street": ""}, True),  # the street has none: it is empty
        ({}, {"address_street": ""}, False),  # no address, no street
        ({"address": {"floor": 3}}, {"min_floor": 3}, True),
        ({"address": {"floor": 2}}, {"min_floor": 3}, False),
        ({}, {"min_floor": -1}, False),
        ({"address": {"city": "Bern"}}, {"cities": ["Basel", "Bern"]}, True),
        ({"address": {"city": "Bern"}}, {"cities": ["Basel"]}, False),
        ({"address": {"city": "Bern"}}, {"cities": []}, True),  # none given is no constraint
        ({}, {"cities": [""]}, False),
        ({"address": {}}, {"streets": ["Main", ""]}, True),
        ({"card": "x"}, {"cards": ["x", "y"], "streets": ["Main"]}, False),
        ({"card": "x", "address": {"street": "Main"}}, {"cards": ["x", "y"], "streets": ["Main"]}, True),
        ({"tags": ["a", "b"]}, {"tag": "b"}, True),
        ({"tags": ["a", "b"]}, {"tag": ""}, False),
        ({"tags": []}, {"tag": "b"}, False),
        ({"tags": ["a", "b"]}, {}, True),
        ({"times": [{"seconds": 5}]}, {"time": {"seconds": 5}}, True),
        ({"times": [{"seconds": 5}]}, {"time": {"seconds": 5, "nanos": 1}}, False),
        ({"invoice": {"street": "Main"}}, {"street": "Ma"}, True),
        ({"card": "x"}, {"street": ""}, False),
        ({"nickname": {"value": ""}}, {"nickname": ""}, True),
        ({}, {"nickname": ""}, False),
        ({"history": [0, 1]}, {"status": 1}, True),
        ({"history": [0]}, {"status": 1}, False),
        ({"card": ""}, {"card": ""}, True),
        ({"cash": 1.0}, {"card": ""}, False),
    ],
)
def test_which_rows_pass(row: dict[str, Any], wanted: dict[str, Any], is_passing: bool) -> None:
    assert passes(row, **wanted) is is_passing


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ('optional string a = 1 [(tablegate.v1.param).column = "items.sku"];', '"items" is repeated'),
        (
            'optional string a = 1 [(tablegate.v1.param).column = "address.zip"];',
            '"address.zip", which message Order does',
        ),
        ('optional string a = 1 [(tablegate.v1.param).column = "card.x"];', '"card.x", which message Order does'),
        ('optional string a = 1 [(tablegate.v1.param).column = "address."];', '"address.", which message Order does'),
        ("optional string tags = 1;", 'OP_EQ has no meaning for column "tags" of type repeated string'),
        ("Address address = 1;", 'column "address", and no operator compares a test.orders.v1.Address'),
        ("optional string labels = 1;", "no operator compares a map"),
        (
            'optional int32 a = 1 [(tablegate.v1.param).column = "address.city"];',
            'that of column "address.city" is string',
        ),
        (
            'optional string a = 1 [(tablegate.v1.param) = { column: "card" op: OP_CONTAINS }];',
            'OP_CONTAINS has no meaning for column "card"',
        ),
        (
            "\n".join(f'optional string a{n} = {n} [(tablegate.v1.param).column = "address.city"];' for n in (1, 2)),
            'column "address.city" has this constraint from another field already',
        ),
        ('string a = 1 [(tablegate.v1.param).column = "address.city"];', "has no presence"),
        ("optional string took = 1;", "no operator compares a google.protobuf.Duration"),
    ],
)
def test_what_constrains_nothing_is_refused(fields: str, words: str) -> None:
    with pytest.raises(ContractError) as refused:
        bound(fields)
    assert words in str(refused.value)


def test_streets_of_two_addresses_are_two_columns() -> None:
    query = bound(
        'optional string a = 1 [(tablegate.v1.param).column = "address.street"];'
        'optional string b = 2 [(tablegate.v1.param).column = "invoice.street"];'
    )
    assert [param.column_name for param in query.filters] == ["address.street", "invoice.street"]


def test_a_column_inside_of_a_message_is_no_key_column() -> None:
    more = TEXT.replace("message Address {", "message Address { int64 id = 9;")
    text = more + FILTERS.replace("FIELDS", 'optional int64 id = 1 [(tablegate.v1.param).column = "address.id"];')
    with TemporaryDirectory() as directory:
        [query] = bind_sources(Path(directory), test__orders__v1__orders=text).queries.values()
    assert isinstance(query, ScanQuery)
    assert [param.key_index for param in query.filters] == [None]
