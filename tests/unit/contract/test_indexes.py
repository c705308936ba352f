"""Indexes of a contract: what is bound, what is refused, and in which order their bytes are."""

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from tablegate.gateway.contract.binder.problems import ContractError
from tablegate.gateway.contract.catalogue import BatchGetQuery, Catalogue, GetQuery, RangeQuery
from tablegate.gateway.contract.indexes import INDEX_BYTES_MAX, RowIndexes, make_entry, split_entry
from tests.kit.table.accounts import ACCOUNTS, SERVICE, account, accounts_table, index
from tests.kit.table.contracts import bind_sources, edited

TEXT = ACCOUNTS.read_text("utf-8")
BY_CITY = """      name: "by_city"
      columns: "address.city"
      columns: "balance"
"""
UNIQUE_NUMBER = """      columns: "number"
      unique: true
"""
NEXT_INDEX = """    }
    index: {
      name: "by_bank_and_number"
"""
MORE_INDEXES = "    index: {name: 'more' columns: 'state'}\n" * 5
MANY_FIELDS = "".join(f"  int64 n{number} = {number};\n" for number in range(100, 163))
MANY_COLUMNS = "".join(f'      columns: "n{number}"\n' for number in range(100, 163))


def bound(tmp_path: Path, *edits: tuple[str, str]) -> Catalogue:
    return bind_sources(tmp_path, accounts__v1__accounts=edited(TEXT, *edits))


def test_a_query_reads_by_the_index_that_its_params_fit(tmp_path: Path) -> None:
    queries = bound(tmp_path).queries
    found = {path.rpartition("/")[2]: getattr(query, "index", None) for path, query in queries.items()}
    assert {name: each and each.name for name, each in found.items()} == {
        "GetAccount": None,
        "GetAccountByNumber": "by_number",
        "GetAccountOfBank": "by_bank_and_number",
        "BatchGetAccountsByNumber": "by_number",
        "ListAccountsInCity": "by_city",
        "ListAccountsOfBank": "by_bank_and_opening",
        "ListAccountsByTag": "by_tag",
    }
    assert isinstance(queries[f"{SERVICE}/GetAccountByNumber"], GetQuery)
    assert isinstance(queries[f"{SERVICE}/BatchGetAccountsByNumber"], BatchGetQuery)
    in_city = queries[f"{SERVICE}/ListAccountsInCity"]
    assert isinstance(in_city, RangeQuery)
    assert [param.column_name for param in in_city.prefix] == ["address.city"]
    assert in_city.scatter
    of_bank = queries[f"{SERVICE}/ListAccountsOfBank"]
    assert isinstance(of_bank, RangeQuery)
    assert not of_bank.scatter


def test_the_key_comes_before_an_index(tmp_path: Path) -> None:
    """A Range over leading key columns reads keys, though an index begins with the same."""
    opened = """  google.protobuf.Timestamp opened_from = 2 [(tablegate.v1.param) = {
    column: "opened_time"
    op: OP_GTE
  }];
  google.protobuf.Timestamp opened_before = 3 [(tablegate.v1.param) = {
    column: "opened_time"
    op: OP_LT
  }];
"""
    catalogue = bound(tmp_path, (opened, ""))
    query = catalogue.queries[f"{SERVICE}/ListAccountsOfBank"]
    assert isinstance(query, RangeQuery)
    assert query.index is None


def test_what_jobs_and_gateways_agree_on_has_no_index(tmp_path: Path) -> None:
    """An index may be added and removed at any time: neither rows nor jobs know of it."""
    with_it = bound(tmp_path).tables["accounts"]
    batch = 'batch_get: {index: "by_number"}'
    without = bound(tmp_path, ('      name: "by_tag"', '      name: "by_tags"'), (batch, batch)).tables["accounts"]
    assert with_it.fingerprint == without.fingerprint
    assert with_it.row_digest == without.row_digest
    assert with_it.row_indexes.ids == without.row_indexes.ids  # an index is its columns


@pytest.mark.parametrize(
    ("edits", "words"),
    [
        ([(BY_CITY, BY_CITY.replace("balance", "wealth"))], ['names column "wealth", which message Account']),
        ([(BY_CITY, BY_CITY.replace("address.city", "address.town"))], ['names column "address.town", which message']),
        (
            [("optional int64 balance = 5;", "optional double balance = 5;"), (BY_CITY, BY_CITY)],
            ['field "balance"', 'names column "balance", a double: equal numbers may differ in their bytes'],
        ),
        ([(BY_CITY, BY_CITY.replace("address.city", "address"))], ["a accounts.v1.Address", "name a field of it"]),
        ([(BY_CITY, BY_CITY.replace("by_city", "By City"))], ['"By City" is no name for an index']),
        ([(BY_CITY, BY_CITY.replace("by_city", "by_tag"))], ['two indexes are called "by_tag"']),
        ([(BY_CITY, '      name: "by_city"\n')], ['index "by_city" has no columns']),
        ([(BY_CITY, BY_CITY + '      columns: "balance"\n')], ['index "by_city" names a column twice']),
        (
            [(BY_CITY, '      name: "by_city"\n      columns: "number"\n')],
            ['index "by_city" has the columns of index "by_number"'],
        ),
        (
            [
                ("  repeated string tags = 6;", "  repeated string tags = 6;\n  repeated string notes = 9;"),
                ('      columns: "tags"\n', '      columns: "tags"\n      columns: "notes"\n'),
            ],
            ["has several repeated columns"],
        ),
        (
            [
                ("  repeated string tags = 6;", "  repeated string tags = 6;\n  repeated Address homes = 9;"),
                ('      columns: "tags"\n', '      columns: "homes.city"\n'),
            ],
            ['"homes" is repeated'],
        ),
        (
            [("    index: {\n" + BY_CITY, MORE_INDEXES + "    index: {\n" + BY_CITY)],
            ["the table has 10 indexes", "leave at most 8"],
        ),
        (
            [
                ("  string number = 3;", MANY_FIELDS + "  string number = 3;"),
                (BY_CITY, BY_CITY + MANY_COLUMNS),
            ],
            ['index "by_city" take at least', "and an index key has 500"],
        ),
        (
            [('batch_get: {index: "by_number"}', 'batch_get: {index: "by_name"}')],
            ['reads by index "by_name", which table "accounts" does not have', "by_number"],
        ),
        (
            [('batch_get: {index: "by_number"}', 'batch_get: {index: "by_city"}')],
            ['reads by index "by_city", which is not unique'],
        ),
        (
            [(UNIQUE_NUMBER + NEXT_INDEX, UNIQUE_NUMBER.replace("      unique: true\n", "") + NEXT_INDEX)],
            ["a Get takes all columns of the key, or of a unique index"],
        ),
        (
            [(BY_CITY, '      name: "by_city"\n      columns: "balance"\n      columns: "address.city"\n')],
            ["is in no index whose columns are given from the first on", "by_city: balance, address.city"],
        ),
        (
            [("range: {}", "range: {scatter: true}")],
            ["says scatter, and its request fixes one partition"],
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_an_index_is_refused_in_words(
    tmp_path: Path, edits: list[tuple[str, str]], words: list[str]
) -> None:
    with pytest.raises(ContractError) as raised:
        bound(tmp_path, *edits)
    text = str(raised.value)
    assert "accounts/v1/accounts.proto: " in text
    for each in words:
        assert each in text


def test_a_repeated_column_that_is_not_fixed_gives_no_range(tmp_path: Path) -> None:
    """A row would come once for each of its elements."""
    tags = '      columns: "tags"\n      columns: "state"\n'
    turned = '      columns: "state"\n      columns: "tags"\n'
    state = "  optional State state = 2;\n"
    with pytest.raises(ContractError, match="is in no index"):
        bound(tmp_path, (tags, turned), (state, ""))


def _sort_value(value: Any, *, is_set: bool) -> tuple[bool, Any]:
    return (is_set, value if is_set else 0)


def test_bytes_are_in_the_order_of_columns() -> None:
    choice = random.Random(1)
    rows = [account(choice) for _ in range(300)]
    rows = [row for row in rows if len(row.address.city) < 100]
    by_city = index("by_city")

    def values(row: Any) -> Any:
        has_city = row.HasField("address")
        return (
            _sort_value(row.address.city.encode(), is_set=has_city),
            _sort_value(row.balance, is_set=row.HasField("balance")),
        )

    ordered = sorted(rows, key=lambda row: by_city.values_of(row)[0])
    assert [values(row) for row in ordered] == sorted(map(values, rows))


def test_an_entry_is_taken_apart_again() -> None:
    for values, key in itertools.product((b"", b"a", b"x" * INDEX_BYTES_MAX), (b"k", b"x" * 500)):
        assert split_entry(make_entry(values, key)) == (values, key)


def test_a_row_is_found_by_each_element_once() -> None:
    row: Any = accounts_table().row_class(tags=["a", "b", "a"], state=1)
    by_tag = index("by_tag")
    assert len(by_tag.keys_of(row.SerializeToString())) == 2
    assert by_tag.keys_of(accounts_table().row_class().SerializeToString()) == []


def test_keys_of_all_indexes_are_those_of_each() -> None:
    """Of one, of two and of more, with a column that is repeated and without."""
    table, choice = accounts_table(), random.Random(2)
    rows = [account(choice).SerializeToString() for _ in range(100)]
    for count in range(1, len(table.indexes) + 1):
        for some in itertools.combinations(table.indexes, count):
            indexes = RowIndexes(some, table.row_class)
            for row in rows[:: len(table.indexes)]:
                assert indexes.keys_of(row) == [key for each in some for key in each.keys_of(row)]


def test_what_is_longer_than_a_key_is_cut() -> None:
    row: Any = accounts_table().row_class(number="n" * 2_000)
    [cut] = index("by_number").keys_of(row.SerializeToString())
    assert len(cut) == INDEX_BYTES_MAX + 4
    assert index("by_number").holds(row.SerializeToString(), b"n" * 2_000, b"n" * 2_000 + b"\x00\x01")
    assert not index("by_number").holds(row.SerializeToString(), b"n" * 2_001, None)
