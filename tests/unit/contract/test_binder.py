import contextlib
import random
import re

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tablegate.examples import CONTRACTS
from tablegate.gateway.contract.binder.binder import ContractError, bind, merge
from tablegate.gateway.contract.catalogue import (
    BatchGetQuery,
    GetQuery,
    Op,
    Partitioner,
    RangeQuery,
    ScanQuery,
    SubscribeQuery,
)
from tablegate.gateway.contract.descriptors import DescriptorError, load_descriptors, proto_directory
from tablegate.gateway.contract.keys import KeyColumn, KeyType
from tests.kit.table.contracts import RATINGS, VISITS, bind_ratings, bind_sources, bind_visits
from tests.kit.table.wrong_contracts import (
    NEWER_OPTIONS,
    RULES,
    WRONG_OPTIONS,
    WRONG_RATINGS,
    WRONG_VISITS,
    Edit,
)

SERVICE = "/examples.ratings.v1.RatingsService"
VISITS_SERVICE = "/shop.visits.v1.VisitsService"


def check_refused(error: ContractError, file: str, wanted: Edit) -> None:
    lines = str(error).splitlines()
    assert len(lines) == len(error.problems)
    fitting = [line for line in lines if all(word in line for word in wanted.words)]
    assert fitting, f"no line has all of {wanted.words}:\n{error}"
    for line in lines:
        assert line.startswith(f"{file}: ")
        assert "; " in line, "every problem says what to do"
    for problem in error.problems:
        assert problem.text
        assert problem.hint


def names(edits: list[Edit]) -> list[str]:
    return [edit.name for edit in edits]


@pytest.mark.parametrize("wrong", WRONG_RATINGS, ids=names(WRONG_RATINGS))
def test_wrong_ratings_is_refused(wrong, tmp_path):
    with pytest.raises(ContractError) as raised:
        bind_ratings(tmp_path, wrong.apply(RATINGS))
    check_refused(raised.value, "examples/ratings/v1/ratings.proto", wrong)


@pytest.mark.parametrize("wrong", WRONG_VISITS, ids=names(WRONG_VISITS))
def test_wrong_visits_is_refused(wrong, tmp_path):
    with pytest.raises(ContractError) as raised:
        bind_visits(tmp_path, wrong.apply(VISITS))
    check_refused(raised.value, "shop/visits/v1/visits.proto", wrong)


@pytest.mark.parametrize("wrong", WRONG_OPTIONS, ids=names(WRONG_OPTIONS))
def test_what_this_version_does_not_know_is_refused(wrong, tmp_path):
    for name, text in (("tablegate/v1/options.proto", NEWER_OPTIONS), ("buf/validate/validate.proto", RULES)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with pytest.raises(ContractError) as raised:
        bind_ratings(tmp_path, wrong.apply(RATINGS))
    check_refused(raised.value, "examples/ratings/v1/ratings.proto", wrong)


def test_the_corpus_is_as_large_as_promised():
    every = [*WRONG_RATINGS, *WRONG_VISITS, *WRONG_OPTIONS]
    assert len(every) >= 60
    assert len({wrong.name for wrong in every}) == len(every)


def test_newer_read_options_are_refused(tmp_path):
    query = (proto_directory() / "tablegate/v1/query.proto").read_text()
    path = tmp_path / "tablegate/v1/query.proto"
    path.parent.mkdir(parents=True)
    path.write_text(query.replace("message ReadOptions {\n", "message ReadOptions {\n  bool sloppy = 30;\n"))
    with pytest.raises(
        ContractError, match=r'tablegate/v1/query\.proto: message ReadOptions, field "sloppy": .*version'
    ):
        bind_ratings(tmp_path)


def test_an_older_query_proto_is_fine(tmp_path):
    query = (proto_directory() / "tablegate/v1/query.proto").read_text()
    path = tmp_path / "tablegate/v1/query.proto"
    path.parent.mkdir(parents=True)
    path.write_text(query.replace("  bool latest = 5;\n", ""))
    assert bind_ratings(tmp_path).queries


def test_all_problems_come_at_once(tmp_path):
    text = RATINGS.replace("max_keys: 500", "max_keys: 5000").replace("        scatter: true\n", "")
    with pytest.raises(ContractError) as raised:
        bind_ratings(tmp_path, text.replace("optional double", "double"))
    assert len(raised.value.problems) == 4


def test_ratings_binds(tmp_path):
    catalogue = bind_ratings(tmp_path)
    assert catalogue.services == ("examples.ratings.v1.RatingsService",)
    assert not catalogue.other_methods
    table = catalogue.tables["ratings"]
    assert table.key == (KeyColumn("movie_id", KeyType.INT64),)
    assert (table.partition_by_count, table.partitioner) == (1, Partitioner.MURMUR2)
    row = table.row_class(movie_id=362, average_rating=9.0)
    assert row.DESCRIPTOR is table.row

    get = catalogue.queries[f"{SERVICE}/GetRating"]
    assert isinstance(get, GetQuery)
    assert [(param.field.name, param.op, param.key_index, param.required) for param in get.params] == [
        ("movie_id", Op.EQ, 0, True)
    ]
    assert (get.row.name, get.read_info.name, get.read_options.name) == ("rating", "read_info", "read_options")
    assert (get.default_timeout_s, get.max_timeout_s, get.missing_is_empty) == (2.0, 10.0, False)

    batch = catalogue.queries[f"{SERVICE}/BatchGetRatings"]
    assert isinstance(batch, BatchGetQuery)
    assert (batch.keys.name, batch.found.name, batch.missing.name, batch.max_keys) == ("keys", "found", "missing", 500)
    assert [field.name for field in batch.key_fields] == ["movie_id"]

    ranged = catalogue.queries[f"{SERVICE}/ListRatings"]
    assert isinstance(ranged, RangeQuery)
    assert ranged.prefix == ()
    assert [(param.field.name, param.op) for param in ranged.bounds] == [
        ("movie_id_from", Op.GTE),
        ("movie_id_before", Op.LT),
    ]
    assert (ranged.default_page_size, ranged.max_page_size, ranged.scatter) == (50, 1000, True)

    scan = catalogue.queries[f"{SERVICE}/ScanRatings"]
    assert isinstance(scan, ScanQuery)
    assert [(param.column.name, param.key_index, param.required) for param in scan.filters] == [
        ("average_rating", None, False),
        ("rating_count", None, False),
    ]

    subscribe = catalogue.queries[f"{SERVICE}/SubscribeRatings"]
    assert isinstance(subscribe, SubscribeQuery)
    assert [(param.op, param.required) for param in subscribe.params] == [(Op.EQ, False)]


def test_visits_binds(tmp_path):
    catalogue = bind_visits(tmp_path)
    table = catalogue.tables["visits"]
    assert table.key == (KeyColumn("shop_name", KeyType.STRING), KeyColumn("start_time", KeyType.TIMESTAMP))
    assert (table.partition_by_count, table.partitioner) == (1, Partitioner.CRC32)
    assert catalogue.other_methods == {f"{VISITS_SERVICE}/ForgetVisits": False}
    get = catalogue.queries[f"{VISITS_SERVICE}/GetVisit"]
    assert isinstance(get, GetQuery)
    assert get.missing_is_empty
    assert all(param.required for param in get.params)
    assert get.read_info is None
    ranged = catalogue.queries[f"{VISITS_SERVICE}/ListVisits"]
    assert isinstance(ranged, RangeQuery)
    assert [param.column.name for param in ranged.prefix] == ["shop_name"]
    assert [(param.column.name, param.op) for param in ranged.bounds] == [("start_time", Op.GTE)]
    assert (ranged.default_page_size, ranged.max_page_size, ranged.scatter, ranged.order) == (20, 20, False, None)


def test_get_params_come_in_key_order(tmp_path):
    text = VISITS.replace(
        "message GetVisitRequest {\n  string shop_name = 1;\n  google.protobuf.Timestamp start_time = 2;",
        "message GetVisitRequest {\n  google.protobuf.Timestamp start_time = 1;\n  string shop_name = 2;",
    )
    get = bind_visits(tmp_path, text).queries[f"{VISITS_SERVICE}/GetVisit"]
    assert isinstance(get, GetQuery)
    assert [param.column.name for param in get.params] == ["shop_name", "start_time"]


def test_a_required_timestamp_is_part_of_the_prefix(tmp_path):
    text = VISITS.replace('key: "shop_name"\n    key: "start_time"', 'key: "start_time"\n    key: "shop_name"')
    text = text.replace('partition_by: "shop_name"', "").replace("subscribe: {}", "subscribe: {scatter: true}")
    text = text.replace(
        "  string shop_name = 1;\n  google.protobuf.Timestamp start_time_from = 2 [(tablegate.v1.param) = {"
        'column: "start_time" op: OP_GTE}];',
        "  google.protobuf.Timestamp start_time = 1 [(google.api.field_behavior) = REQUIRED];\n"
        '  optional string shop = 2 [(tablegate.v1.param) = {column: "shop_name" op: OP_PREFIX}];',
    )
    text = text.replace("range: {max_page_size: 20}", "range: {max_page_size: 20 scatter: true}")
    text = text.replace("  string shop_name = 1;\n  optional Place place", "  optional Place place")
    ranged = bind_visits(tmp_path, text).queries[f"{VISITS_SERVICE}/ListVisits"]
    assert isinstance(ranged, RangeQuery)
    assert [param.column.name for param in ranged.prefix] == ["start_time"]
    assert [(param.column.name, param.op) for param in ranged.bounds] == [("shop_name", Op.PREFIX)]


def test_batch_keys_may_be_plain_values(tmp_path):
    text = RATINGS.replace("repeated RatingKey keys = 1", "repeated int64 movie_ids = 1")
    text = text.replace("    RatingKey missing = 2;", "    int64 missing = 2;")
    batch = bind_ratings(tmp_path, text).queries[f"{SERVICE}/BatchGetRatings"]
    assert isinstance(batch, BatchGetQuery)
    assert (batch.keys.name, batch.key_fields) == ("movie_ids", ())


@pytest.mark.parametrize("column_type", ["uint64", "fixed64", "sint32", "bool", "string", "bytes"])
def test_key_types(column_type, tmp_path):
    text = RATINGS.replace("int64 movie_id", f"{column_type} movie_id")
    if column_type == "bool":
        text = text.replace("op: OP_GTE\n  }];\n  // Only ids before", "op: OP_EQ\n  }];\n  // Only ids before")
        text = text.replace(
            """  optional bool movie_id_before = 2 [(tablegate.v1.param) = {
    column: "movie_id"
    op: OP_LT
  }];
""",
            "",
        )
    expected = {"bool": KeyType.BOOL, "string": KeyType.STRING, "bytes": KeyType.BYTES}.get(column_type, KeyType.INT64)
    assert bind_ratings(tmp_path, text).tables["ratings"].key[0].type is expected


def test_several_contracts_make_one_catalogue(tmp_path):
    catalogue = bind_sources(tmp_path, examples__ratings__v1__ratings=RATINGS, shop__visits__v1__visits=VISITS)
    assert set(catalogue.tables) == {"ratings", "visits"}
    assert len(catalogue.services) == 2
    assert len(catalogue.queries) == 9


def test_one_table_name_in_two_contracts_is_refused(tmp_path):
    with pytest.raises(
        ContractError, match=r'visits\.proto: message Visit: table "ratings" is also .*examples\.ratings'
    ):
        bind_sources(
            tmp_path,
            examples__ratings__v1__ratings=RATINGS,
            shop__visits__v1__visits=VISITS.replace('name: "visits"', 'name: "ratings"'),
        )


def test_two_files_of_one_name_are_refused(tmp_path):
    sets = []
    for name, text in (("one", VISITS), ("two", VISITS.replace('name: "visits"', 'name: "calls"'))):
        path = tmp_path / name / "shop/visits/v1/visits.proto"
        path.parent.mkdir(parents=True)
        path.write_text(text)
        sets.append(load_descriptors(path))
    with pytest.raises(ContractError, match=r"visits\.proto: the contracts hold two different files"):
        merge(sets)


def test_a_file_that_another_imports_by_a_longer_name_is_there_once(tmp_path):
    part = tmp_path / "shop/v1/parts.proto"
    part.parent.mkdir(parents=True)
    part.write_text('syntax = "proto3";\npackage common;\nmessage Part { string name = 1; }\n')
    order = part.with_name("visits.proto")
    order.write_text(VISITS.replace("\nmessage Visit {", '\nimport "shop/v1/parts.proto";\nmessage Visit {\n', 1))
    sets = [load_descriptors(path) for path in (part, order)]
    assert sets[0].file[-1].name == "parts.proto"
    for both in (sets, sets[::-1]):
        assert "visits" in bind(merge(both)).tables


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'syntax = "proto3";\npackage shop.visits.v1;\nmessage Visit {}\n',
            ["no message is a table", "no method is a"],
        ),
        (re.sub(r"option \(tablegate\.v1\.query\) = .*", "", VISITS), ["no method is a query"]),
    ],
)
def test_a_contract_without_tables_or_queries_is_refused(text, said, tmp_path):
    if "enum Place" in text:
        text = text.replace('[(tablegate.v1.param) = {column: "start_time" op: OP_GTE}]', "")
    with pytest.raises(ContractError) as raised:
        bind_visits(tmp_path, text)
    assert [problem.text[: len(words)] for problem, words in zip(raised.value.problems, said, strict=True)] == said


def test_an_empty_set_is_refused():
    with pytest.raises(ContractError, match="no message is a table"):
        bind(FileDescriptorSet())


def test_the_set_may_come_in_any_order(tmp_path):
    path = CONTRACTS / "examples/ratings/v1/ratings.proto"
    files = load_descriptors(path)
    turned = FileDescriptorSet(file=reversed(files.file))
    assert set(bind(turned).queries) == set(bind(files).queries)


def test_a_set_without_its_imports_is_refused(tmp_path):
    files = load_descriptors(CONTRACTS / "examples/ratings/v1/ratings.proto")
    alone = FileDescriptorSet(file=[file for file in files.file if file.name.startswith("examples/")])
    with pytest.raises(
        ContractError, match=r'ratings\.proto: imports "tablegate/v1/options\.proto".*--include_imports'
    ):
        bind(alone)


def test_a_set_that_contradicts_itself_is_refused():
    files = load_descriptors(CONTRACTS / "examples/ratings/v1/ratings.proto")
    files.file[-1].message_type[0].field[0].type_name = ".nowhere.Row"
    files.file[-1].message_type[0].field[0].type = 11
    with pytest.raises(ContractError, match=r"ratings\.proto: protobuf refuses it: .*; compile the contract again"):
        bind(files)


def test_fingerprint_is_of_key_and_partitioning(tmp_path):
    ratings = bind_ratings(tmp_path / "a").tables["ratings"]
    more = bind_ratings(tmp_path / "b", RATINGS.replace("message Rating {\n", "message Rating {\n  bool hot = 9;\n"))
    other = bind_ratings(tmp_path / "c", RATINGS.replace("int64 movie_id", "string movie_id"))
    assert ratings.fingerprint == more.tables["ratings"].fingerprint
    assert ratings.fingerprint != other.tables["ratings"].fingerprint


@pytest.mark.tools
def test_damaged_descriptor_sets_are_refused_in_words(tmp_path):
    raw = load_descriptors(CONTRACTS / "examples/ratings/v1/ratings.proto").SerializeToString()
    own = raw.index(b"examples/ratings/v1/ratings.proto")
    random_ = random.Random(7)
    path = tmp_path / "contract.binpb"
    for _ in range(300):
        damaged = bytearray(raw)
        for _ in range(random_.randint(1, 3)):
            damaged[random_.randrange(own, len(raw))] = random_.randrange(256)
        path.write_bytes(damaged)
        with contextlib.suppress(ContractError, DescriptorError):  # some damage is in comments and JSON names
            bind(load_descriptors(path))
