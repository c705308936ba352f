"""Rows that are trimmed to a field mask, compared with what protobuf's own FieldMask makes of them."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.field_mask_pb2 import FieldMask

from tablegate.gateway.contract.catalogue import Catalogue, Table
from tablegate.gateway.query.errors import CorruptRow, InvalidField
from tablegate.gateway.query.masks import PATHS_MAX, mask_reader, trimmer, wanted_of
from tests.kit.seeds import seeds
from tests.kit.table.contracts import bind_sources

_INTEGERS = ("int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32", "sfixed64")
_KINDS = (*_INTEGERS, "double", "float", "bool", "string", "bytes", "Color")


def _fields(syntax: str) -> str:
    single = "optional " if syntax == "proto2" else ""
    lines = []
    for at, kind in enumerate(_KINDS):
        lines.append(f"{single}{kind} {kind.lower()}_one = {10 + at};")
        lines.append(f"optional {kind} {kind.lower()}_maybe = {40 + at};")
        lines.append(f"repeated {kind} {kind.lower()}_list = {70 + at};")
    return "\n  ".join(lines)


def _contract(syntax: str) -> str:
    single = "optional " if syntax == "proto2" else ""
    first = "" if syntax == "proto3" else "required string must = 5;"
    return f"""
syntax = "{syntax}";
package test.masks.{syntax};
import "google/protobuf/field_mask.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "tablegate/v1/options.proto";

enum Color {{
  COLOR_UNSPECIFIED = 0;
  COLOR_RED = 1;
  COLOR_MINUS = -1;
}}

message Leaf {{
  {_fields(syntax)}
  {first}
  google.protobuf.Timestamp at_time = 200;
}}

message Branch {{
  {single}Leaf leaf = 1;
  repeated Leaf leaves = 2;
  {single}string foo_1 = 3;
  oneof of {{
    Leaf this = 4;
    string that = 5;
    Color other = 6;
  }}
}}

message Row {{
  option (tablegate.v1.table) = {{
    name: "rows"
    key: "id"
  }};
  {single}int64 id = 1;
  {single}Branch branch = 2;
  repeated Branch branches = 3;
  map<string, Leaf> by_name = 4;
  map<int32, bytes> by_number = 5;
  oneof choice {{
    Branch chosen = 6;
    int64 number = 7;
    google.protobuf.Struct struct = 8;
  }}
  google.protobuf.Timestamp update_time = 9 ;
  {_fields(syntax)}
  google.protobuf.Value any_json = 250;
  {single}Leaf far = 100000;
}}

message GetRowRequest {{
  {single}int64 id = 1;
  google.protobuf.FieldMask read_mask = 2;
}}

message GetRowResponse {{
  {single}Row row = 1;
}}

service RowService {{
  rpc GetRow(GetRowRequest) returns (GetRowResponse) {{
    option (tablegate.v1.query) = {{ get: {{}} }};
  }}
}}
""".replace("google.protobuf.", f"{single}google.protobuf.").replace(
        "optional google.protobuf.Struct", "google.protobuf.Struct"
    )


@pytest.fixture(scope="module", params=["proto3", "proto2"])
def catalogue(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    return bind_sources(tmp_path_factory.mktemp("masks"), rows=_contract(request.param))


@pytest.fixture(scope="module")
def table(catalogue: Catalogue) -> Table:
    return catalogue.tables["rows"]


def paths_of(message: Descriptor, before: str = "") -> Iterator[str]:
    """Yield every path of a message, those that go on inside of a single message too."""
    for field in message.fields:
        yield before + field.name
        inner = field.message_type
        if inner is not None and not field.is_repeated and not inner.full_name.startswith("google.protobuf.Val"):
            yield from paths_of(inner, f"{before}{field.name}.")


class Rows:
    """Random bytes of rows: several messages in a row, which the runtime merges; some fields unpacked or unknown."""

    def __init__(self, table: Table, seed: int) -> None:
        self._row_class = table.row_class
        self._choice = random.Random(seed)

    def made(self) -> bytes:
        parts = [self._filled(self._row_class()).SerializePartialToString() for _ in range(self._choice.choice((1, 3)))]
        if self._choice.random() < 0.3:
            parts.insert(self._choice.randrange(len(parts) + 1), b"\xc2\x3e\x03abc\xc8\x3e\x96\x01")  # of no field
        if self._choice.random() < 0.5:
            parts.insert(self._choice.randrange(len(parts) + 1), b"\xb0\x04\x05\xb0\x04\x06")  # int32_list, unpacked
        return b"".join(parts)

    def _filled(self, message: Any, depth: int = 0) -> Any:
        for field in message.DESCRIPTOR.fields:
            if self._choice.random() > (0.25 if depth else 0.4):
                continue
            value = getattr(message, field.name)
            inner = field.message_type
            if inner is None:
                if field.is_repeated:
                    value.extend([self._scalar(field) for _ in range(3)])
                else:
                    setattr(message, field.name, self._scalar(field))
            elif inner.GetOptions().map_entry:
                for _ in range(2):
                    key = self._scalar(inner.fields_by_name["key"])
                    if inner.fields_by_name["value"].message_type is None:
                        value[key] = b"value"
                    else:
                        self._filled(value[key], depth + 1)
            elif inner.full_name.startswith("google.protobuf."):
                self._well_known(value)
            elif depth < 4:
                for one in [value.add(), value.add()] if field.is_repeated else [value]:
                    one.SetInParent()
                    self._filled(one, depth + 1)
        return message

    def _well_known(self, value: Any) -> None:
        match value.DESCRIPTOR.name:
            case "Timestamp":
                value.seconds = self._choice.randrange(10**9)
                value.nanos = self._choice.randrange(2)
            case "Struct":
                value.update({"a": [1, "two", {"b": None}]})
            case "Value":
                value.string_value = "text"

    def _scalar(self, field: Any) -> Any:
        if field.enum_type is not None:
            return self._choice.choice((0, 1, -1))
        match field.cpp_type:
            case field.CPPTYPE_STRING:
                return self._choice.choice(("", "text", "é\x00")) if field.type == field.TYPE_STRING else b"\xff\x00"
            case field.CPPTYPE_BOOL:
                return self._choice.random() < 0.5
            case field.CPPTYPE_FLOAT | field.CPPTYPE_DOUBLE:
                return self._choice.choice((0.0, -0.0, 1.5, float("inf")))
            case field.CPPTYPE_UINT32:
                return self._choice.choice((0, 1, 2**32 - 1))
            case field.CPPTYPE_UINT64:
                return self._choice.choice((0, 300, 2**64 - 1))
            case field.CPPTYPE_INT32:
                return self._choice.choice((0, -1, 2**31 - 1))
        return self._choice.choice((0, -1, 2**63 - 1))


def expected(row: Any, paths: Sequence[str]) -> Any:
    """Return what protobuf's FieldMask keeps of a row; messages in it that are there stay, be they empty then."""
    kept = type(row)()
    FieldMask(paths=paths).MergeMessage(row, kept, replace_message_field=True, replace_repeated_field=True)
    for path in paths:
        source, into = row, kept
        for name in path.split(".")[:-1]:
            if not source.HasField(name):
                break
            source, into = getattr(source, name), getattr(into, name)
            into.SetInParent()
    return kept


def _same(one: Any, other: Any) -> bool:
    return bool(one.SerializePartialToString(deterministic=True) == other.SerializePartialToString(deterministic=True))


@pytest.mark.parametrize("seed", seeds(60, in_check=8))
def test_trimmed_rows_are_what_protobuf_keeps(table: Table, seed: int) -> None:
    choice, rows = random.Random(seed), Rows(table, seed)
    every = list(paths_of(table.row))
    without_oneofs = [path for path in every if not {"chosen", "number", "struct", "of"} & {*path.split(".")}]
    for _ in range(6):
        some = choice.choice((every, without_oneofs))
        paths = [choice.choice(some) for _ in range(choice.choice((1, 2, 5, 40)))]
        wanted = wanted_of("read_mask", paths, table.row)
        assert wanted is not None
        trim = trimmer(wanted, table)
        for _ in range(10):
            data = rows.made()
            row: Any = table.row_class()
            row.MergeFromString(data)
            row.DiscardUnknownFields()
            trimmed: Any = table.row_class()
            trimmed.MergeFromString(trim(data))
            required = [f"{holder}.must" for holder in _holders(paths) if _has_must(table.row, holder)]
            assert _same(trimmed, expected(row, [*paths, *required])), paths


def _holders(paths: Sequence[str]) -> set[str]:
    return {path[:at] for path in paths for at, char in enumerate(path) if char == "."}


def _has_must(message: Descriptor, path: str) -> bool:
    for name in path.split("."):
        inner = message.fields_by_name[name].message_type
        assert inner is not None
        message = inner
    return "must" in message.fields_by_name


def test_the_last_of_a_oneof_counts_though_it_is_not_wanted(table: Table) -> None:
    wanted = wanted_of("read_mask", ["number", "branch.this"], table.row)
    assert wanted is not None
    first, then = table.row_class(number=7), table.row_class(chosen={"foo_1": "x"})
    first.branch.this.string_one, then.branch.that = "a", "b"
    data = first.SerializePartialToString() + then.SerializePartialToString()
    kept: Any = table.row_class.FromString(trimmer(wanted, table)(data))
    assert (kept.WhichOneof("choice"), kept.branch.WhichOneof("of")) == (None, None)


def test_parts_of_one_message_are_one(table: Table) -> None:
    wanted = wanted_of("read_mask", ["branch.leaf.int64_one", "far"], table.row)
    assert wanted is not None
    parts: list[Any] = [table.row_class(), table.row_class()]
    parts[0].branch.leaf.int64_one, parts[1].branch.leaf.int64_one = 1, 2
    parts[0].far.string_one, parts[1].far.bool_one = "stays", True
    trimmed = trimmer(wanted, table)(b"".join(part.SerializePartialToString() for part in parts))
    row: Any = table.row_class()
    row.MergeFromString(trimmed)
    assert (row.branch.leaf.int64_one, row.far.string_one, row.far.bool_one) == (2, "stays", True)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("nothing", 'names "nothing", and Row has no such field; name columns of Row, or "\\*" for all'),
        ("branch.nothing", 'names "branch.nothing", and Branch has no such field'),
        ("branch.", 'names "branch.", and Branch has no such field'),
        (".branch", 'names ".branch", and Row has no such field'),
        ("branch..leaf", "Branch has no such field"),
        ("", "names a path at place 0, and Row has no such field"),
        ("branches.foo_1", '"branches" holds no single message, so a path ends with it'),
        ("by_name.x", '"by_name" holds no single message'),
        ("id.x", '"id" holds no single message'),
        ("branch.*", "Branch has no such field"),
        ("x" * 300, "names a path at place 0"),
        ("a\nlog line", "names a path at place 0"),
    ],
)
def test_a_path_of_no_field_is_refused_by_its_name(table: Table, path: str, problem: str) -> None:
    for paths in ([path], ["*", path], [path, "*"]):
        with pytest.raises(InvalidField, match=problem if paths[0] == path else None) as caught:
            wanted_of("read_mask", paths, table.row)
        assert caught.value.field == "read_mask"
        assert len(str(caught.value)) < 200


def test_paths_repeat_cover_and_go_by_names_in_json(table: Table) -> None:
    assert wanted_of("read_mask", ["branch.leaf", "branch", "branch.foo_1"], table.row) == {"branch": None}
    assert wanted_of("read_mask", ["branch", "branch.leaf.atTime"], table.row) == {"branch": None}
    assert wanted_of("read_mask", ["id", "id", "branch.foo1"], table.row) == {"id": None, "branch": {"foo_1": None}}
    assert wanted_of("read_mask", ["id", "*"], table.row) is None
    with pytest.raises(InvalidField, match="Leaf has no such field"):
        wanted_of("read_mask", ["branch", "branch.leaf.nothing"], table.row)


def test_a_mask_of_every_path_keeps_everything(table: Table) -> None:
    wanted = wanted_of("read_mask", [path for path in paths_of(table.row) if "." not in path], table.row)
    assert wanted is not None
    data = Rows(table, 5).made()
    row, trimmed = table.row_class(), table.row_class()
    row.MergeFromString(data)
    trimmed.MergeFromString(trimmer(wanted, table)(data))
    row.DiscardUnknownFields()
    assert _same(row, trimmed)


def test_a_mask_has_at_most_so_many_paths(catalogue: Catalogue) -> None:
    query = next(iter(catalogue.queries.values()))
    read = mask_reader(query)
    request: Any = query.request_class(id=1)
    assert read(request) is None
    request.read_mask.SetInParent()
    assert read(request) is None
    request.read_mask.paths.extend(["branch"] * PATHS_MAX)
    trim = read(request)
    assert trim is not None
    assert read(request) is trim, "it is compiled once"
    request.read_mask.paths.append("id")
    with pytest.raises(InvalidField, match=f"has {PATHS_MAX + 1} paths, and at most {PATHS_MAX}"):
        read(request)
    assert query.table.row_class.FromString(trim(query.table.row_class(id=7, number=1).SerializeToString())).id == 7


@pytest.mark.parametrize("path", ["update_time", "number"])
def test_a_damaged_row_is_an_error(table: Table, path: str) -> None:
    wanted = wanted_of("read_mask", [path], table.row)
    assert wanted is not None
    with pytest.raises(CorruptRow, match='table "rows" has a damaged row'):
        trimmer(wanted, table)(b"\x08")
