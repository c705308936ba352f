"""Queries by indexes of any columns, against rows that plain Python filters and sorts."""

import itertools
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tablegate.gateway.access.views import View
from tablegate.gateway.contract.catalogue import Catalogue, RangeQuery
from tablegate.gateway.query.call import UnaryMethod
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tablegate.v1.query_pb2 import ORDER_DESCENDING
from tests.kit.call.asker import Asker
from tests.kit.seeds import seeds
from tests.kit.table.contracts import bind_sources
from tests.kit.table.filled import FilledTable, LocalCall

METHODS = 12
WALKS = 60
LONG = "n" * 600

TEXTS = ("", "a", "a\x00", "a\x00b", "ab", "\xff", "\U0001f600", LONG, LONG + "\x00", LONG + "z")
BYTES = (b"", b"\x00", b"\x00\x00", b"\x00\xff", b"\xff", b"\xff\xff", b"a", b"b" * 700, b"b" * 700 + b"\xff")
SIGNED = (-(2**63), -(2**63) + 1, -1, 0, 1, 255, 256, 2**63 - 1)
TIMES = ((-62135596800, 0), (-1, 999_999_999), (0, 0), (0, 1), (253402300799, 999_999_999))


class Kind(NamedTuple):
    """A type of columns, some of its values, and what Python sorts a value by."""

    type: str
    values: tuple[Any, ...]
    sort: Callable[[Any], Any] = lambda value: value


TEXT = Kind("string", TEXTS, lambda value: value.encode())
SHOP = TEXT._replace(values=TEXTS[:5])
BLOB = Kind("bytes", BYTES)
INT64 = Kind("sint64", SIGNED)
INT32 = Kind("int32", (-(2**31), -1, 0, 1, 2**31 - 1))
UINT64 = Kind("fixed64", (0, 1, 2**63, 2**64 - 1))
BOOL = Kind("bool", (False, True))
STATE = Kind("State", (-1, 0, 1, 2, 7))
TIME = Kind("google.protobuf.Timestamp", TIMES)


class Column(NamedTuple):
    """A column of the row, by its path."""

    path: tuple[str, ...]
    kind: Kind
    label: str = ""

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def is_repeated(self) -> bool:
        return self.label == "repeated"


PLAIN = [
    Column((name,), kind, label)
    for label in ("", "optional", "repeated")
    for name, kind in {
        f"{label}_text": TEXT,
        f"{label}_blob": BLOB,
        f"{label}_long": INT64,
        f"{label}_int": INT32,
        f"{label}_fixed": UINT64,
        f"{label}_bool": BOOL,
        f"{label}_state": STATE,
        f"{label}_time": TIME,
    }.items()
]
PLAIN = [column._replace(path=(column.path[0].strip("_"),)) for column in PLAIN]
NESTED = [
    Column(("inner", "text"), TEXT),
    Column(("inner", "long"), INT64, "optional"),
    Column(("inner", "times"), TIME, "repeated"),
    Column(("inner", "deep", "blob"), BLOB),
    Column(("inner", "deep", "tags"), TEXT, "repeated"),
]
KEY = [Column(("shop",), SHOP), Column(("number",), INT64)]
COLUMNS = [*PLAIN, *NESTED, *KEY]


def _fields(columns: list[Column], first: int) -> str:
    numbered = zip(columns, itertools.count(first), strict=False)
    return "".join(f"  {each.label} {each.kind.type} {each.path[-1]} = {number};\n" for each, number in numbered)


class Asked(NamedTuple):
    """A Range: columns that are fixed, then bounds on the next one."""

    fixed: list[Column]
    bounded: Column | None
    ops: list[str]


def _method(choice: random.Random, index: list[Column]) -> Asked:
    """Return a Range that an index fits."""
    first = next((at + 1 for at, column in enumerate(index) if column.is_repeated), 0)
    count = choice.randint(first, len(index))
    bounded = index[count] if count < len(index) else None
    ops: list[str] = []
    if bounded is not None:
        able = ["EQ"]
        if bounded.kind not in (BOOL, STATE):
            able += ["GT", "GTE", "LT", "LTE", *(["PREFIX"] if bounded.kind.type in ("string", "bytes") else [])]
        ops = choice.sample(able, choice.randint(0 if count else 1, len(able)))
    return Asked(index[:count], bounded, ops)


def _is_whole_key(asked: Asked) -> bool:
    return {column.name for column in asked.fixed} == {column.name for column in KEY} and not asked.ops


def _contract(indexes: list[list[Column]], methods: list[Asked]) -> str:
    """Return the contract of a table with these indexes and Ranges."""
    declared = "".join(
        f"    index: {{name: 'by{at}' {' '.join(f'columns: {each.name!r}' for each in index)}}}\n"
        for at, index in enumerate(indexes)
    )
    rpcs, messages = "", ""
    for at, asked in enumerate(methods):
        scatter = "" if any(column.name == "shop" for column in asked.fixed) else "scatter: true"
        rpcs += f"  rpc List{at}(List{at}Request) returns (ListResponse) {{\n"
        rpcs += f"    option (tablegate.v1.query) = {{range: {{{scatter}}}}};\n  }}\n"
        lines, number = "", 1
        for place, column in enumerate(asked.fixed):
            op = "OP_CONTAINS" if column.is_repeated else "OP_EQ"
            lines += f"  {column.kind.type} f{place} = {number}"
            lines += f' [(tablegate.v1.param) = {{column: "{column.name}" op: {op}}}'
            # A message may always be left out, so it has to be said that this one may not.
            lines += ", (google.api.field_behavior) = REQUIRED];\n" if column.kind is TIME else "];\n"
            number += 1
        for op in asked.ops:
            assert asked.bounded is not None
            lines += f"  optional {asked.bounded.kind.type} b{op.lower()} = {number}"
            lines += f' [(tablegate.v1.param) = {{column: "{asked.bounded.name}" op: OP_{op}}}];\n'
            number += 1
        lines += f"  tablegate.v1.Order order = {number};\n  int32 page_size = {number + 1};\n"
        lines += f"  string page_token = {number + 2};\n"
        messages += f"message List{at}Request {{\n{lines}}}\n"
    plain = _fields([*KEY, *PLAIN], 1)
    inner = _fields([column for column in NESTED if len(column.path) == 2], 1)
    deep = _fields([column for column in NESTED if len(column.path) == 3], 1)
    return f"""syntax = "proto3";
package things.v1;
import "google/api/field_behavior.proto";
import "google/protobuf/timestamp.proto";
import "tablegate/v1/options.proto";
import "tablegate/v1/query.proto";
service Things {{
{rpcs}}}
enum State {{
  STATE_UNSPECIFIED = 0;
  STATE_ONE = 1;
  STATE_TWO = 2;
}}
message Deep {{
{deep}}}
message Inner {{
{inner}  Deep deep = 50;
}}
message Thing {{
  option (tablegate.v1.table) = {{
    name: "things"
    key: "shop"
    key: "number"
    partition_by: "shop"
{declared}  }};
{plain}  Inner inner = 50;
}}
message ListResponse {{
  repeated Thing things = 1;
  string next_page_token = 2;
}}
{messages}"""


def _set(message: Any, field: str, value: Any) -> None:
    if isinstance(value, tuple):
        getattr(message, field).seconds, getattr(message, field).nanos = value
    else:
        setattr(message, field, value)


class Things:
    """Rows as dictionaries of Python: columns without a value are not in them."""

    def __init__(self, choice: random.Random, row_class: Any) -> None:
        self._choice = choice
        self._row_class = row_class
        self.rows: dict[tuple[str, int], dict[str, Any]] = {}

    def new(self) -> Any:
        """Return a row, and keep it in the place of that of its key."""
        choice, message = self._choice, self._row_class()
        row: dict[str, Any] = {"shop": choice.choice(TEXTS[:5]), "number": choice.randrange(4)}
        message.shop, message.number = row["shop"], row["number"]
        for column in (*PLAIN, *NESTED):
            outer = message
            for name in column.path[:-1]:
                outer = getattr(outer, name)
            if choice.random() < 0.5:
                if column.is_repeated:
                    values = choice.choices(column.kind.values, k=choice.randint(1, 3))
                    row[column.name] = values
                    for value in values:
                        if isinstance(value, tuple):
                            getattr(outer, column.path[-1]).add(seconds=value[0], nanos=value[1])
                        else:
                            getattr(outer, column.path[-1]).append(value)
                else:
                    row[column.name] = choice.choice(column.kind.values)
                    _set(outer, column.path[-1], row[column.name])
                    if len(column.path) > 1:
                        outer.SetInParent()
        self._fill_defaults(row, message)
        self.rows[row["shop"], row["number"]] = row
        return message

    def _fill_defaults(self, row: dict[str, Any], message: Any) -> None:
        """A column without presence has a value wherever its message is there."""
        for column in (*PLAIN, *NESTED):
            if column.name in row or column.label or column.kind is TIME:
                continue
            outer = message
            for name in column.path[:-1]:
                if not outer.HasField(name):
                    break
                outer = getattr(outer, name)
            else:
                row[column.name] = getattr(outer, column.path[-1])

    def delete(self) -> Any | None:
        """Return the key's message of a row, which is gone."""
        if not self.rows:
            return None
        shop, number = key = self._choice.choice(sorted(self.rows))
        del self.rows[key]
        return self._row_class(shop=shop, number=number)


def _passes(column: Column, op: str, value: Any, wanted: Any) -> bool:
    mine, its = column.kind.sort(value), column.kind.sort(wanted)
    tests: dict[str, Callable[[], bool]] = {
        "EQ": lambda: mine == its,
        "GT": lambda: mine > its,
        "GTE": lambda: mine >= its,
        "LT": lambda: mine < its,
        "LTE": lambda: mine <= its,
        "PREFIX": lambda: mine.startswith(its),
    }
    return tests[op]()


def _holds(row: dict[str, Any], asked: Asked, fixed: list[Any], bounds: dict[str, Any]) -> bool:
    for column, wanted in zip(asked.fixed, fixed, strict=True):
        if column.name not in row:
            return False
        if wanted not in row[column.name] if column.is_repeated else row[column.name] != wanted:
            return False
    for op, wanted in bounds.items():
        assert asked.bounded is not None
        if asked.bounded.name not in row or not _passes(asked.bounded, op, row[asked.bounded.name], wanted):
            return False
    return True


def _sorted_by(row: dict[str, Any], columns: list[Column]) -> tuple[Any, ...]:
    """Return what a row is sorted by, behind fixed columns: no value comes first; then the key."""
    values = [
        (column.name in row, column.kind.sort(row[column.name]) if column.name in row else 0) for column in columns
    ]
    return (*values, row["shop"].encode(), row["number"])


def _is_long(row: dict[str, Any], columns: list[Column]) -> bool:
    values = [row.get(column.name) for column in columns]
    elements = [each for value in values for each in (value if isinstance(value, list) else [value])]
    return any(len(each) > 300 for each in elements if isinstance(each, (str, bytes)))


def _wanted(choice: random.Random, column: Column, rows: list[dict[str, Any]]) -> Any:
    """Return a value to ask for: mostly one that some row has."""
    having = [row[column.name] for row in rows if column.name in row]
    if not having or choice.random() < 0.2:
        return choice.choice(column.kind.values)
    value = choice.choice(having)
    return choice.choice(value) if column.is_repeated else value


class World(NamedTuple):
    """A table with random indexes, and random Ranges over them."""

    catalogue: Catalogue
    filled: FilledTable
    things: Things
    methods: list[Asked]
    indexes: list[list[Column]]
    asker: Asker


@pytest.fixture
def world(tmp_path: Path, seed: int) -> Iterator[World]:
    choice = random.Random(seed)
    indexes: list[list[Column]] = []
    while len(indexes) < 8:
        index = choice.sample(COLUMNS, choice.randint(1, 3))
        if sum(column.is_repeated for column in index) <= 1 and index not in indexes:
            indexes.append(index)
    methods = [_method(choice, choice.choice(indexes)) for _ in range(METHODS)]
    methods = [asked for asked in methods if not _is_whole_key(asked)]
    catalogue = bind_sources(tmp_path, things__v1__things=_contract(indexes, methods))
    store = LmdbStore(tmp_path / "store", boot_id="boot")
    filled = FilledTable(store, catalogue.tables["things"], 3)
    filled.publish()
    asker = Asker(catalogue, store, "/things.v1.Things", None)
    yield World(catalogue, filled, Things(choice, filled.table.row_class), methods, indexes, asker)
    store.close()


class Question(NamedTuple):
    """Values for the fields of a Range, and who asks."""

    asked: Asked
    fixed: list[Any]
    bounds: dict[str, Any]
    descending: bool
    shops: tuple[str, ...] | None  # whose rows are seen; None: all

    @classmethod
    def drawn(cls, choice: random.Random, asked: Asked, rows: list[dict[str, Any]]) -> "Question":
        fixed = [_wanted(choice, column, rows) for column in asked.fixed]
        bounds: dict[str, Any] = {}
        if asked.bounded is not None:
            ops = [op for op in asked.ops if choice.random() < 0.5]
            bounds = {op: choice.choice(asked.bounded.kind.values) for op in ops}
        shops = tuple(choice.sample(TEXTS[:5], 2)) if choice.random() < 0.3 else None
        return cls(asked, fixed, bounds, choice.random() < 0.5, shops)

    def holds(self, row: dict[str, Any]) -> bool:
        if self.shops is not None and row["shop"] not in self.shops:
            return False
        return _holds(row, self.asked, self.fixed, self.bounds)

    def fields(self) -> dict[str, Any]:
        """Return the fields of a request."""
        fields: dict[str, Any] = {f"f{place}": _field(value) for place, value in enumerate(self.fixed)}
        fields |= {f"b{op.lower()}": _field(value) for op, value in self.bounds.items()}
        return fields | ({"order": ORDER_DESCENDING} if self.descending else {})


def _field(value: Any) -> Any:
    return {"seconds": value[0], "nanos": value[1]} if isinstance(value, tuple) else value


def _walk(world: World, choice: random.Random, method: str, question: Question) -> list[tuple[str, int]]:
    """Return the keys of all pages."""
    path = f"{world.asker.service}/{method}"
    unary, response_class = world.asker.methods[path], world.catalogue.queries[path].response_class
    assert isinstance(unary, UnaryMethod)
    call = LocalCall(view=None if question.shops is None else View(rows=(("shop", question.shops),)))
    handler = unary.handler if unary.handler_for is None or call.view is None else unary.handler_for(call)
    keys: list[tuple[str, int]] = []
    token = ""
    while True:
        fields = question.fields() | {"page_size": choice.randint(1, 7), "page_token": token}
        answer = handler(world.asker.request(method, **fields).SerializeToString(), call)
        assert isinstance(answer, bytes)
        page: Any = response_class.FromString(answer)
        keys += [(row.shop, row.number) for row in page.things]
        token = page.next_page_token
        if not token:
            return keys


@pytest.mark.parametrize("seed", seeds(12, in_check=2))
def test_a_range_by_an_index_is_what_python_makes_of_the_rows(world: World, seed: int) -> None:
    choice = random.Random(seed + 1000)
    found_some = 0
    for turn in range(WALKS):
        world.filled.put(world.things.new() for _ in range(choice.randrange(15)))
        if choice.random() < 0.5 and (gone := world.things.delete()) is not None:
            world.filled.delete([gone])
        at = choice.randrange(len(world.methods))
        query = world.catalogue.queries[f"{world.asker.service}/List{at}"]
        assert isinstance(query, RangeQuery)
        if query.index is None:
            continue  # its columns are the key's, too
        rows = list(world.things.rows.values())
        question = Question.drawn(choice, world.methods[at], rows)
        keys = _walk(world, choice, f"List{at}", question)
        wanted = [row for row in rows if question.holds(row)]
        assert sorted(keys) == sorted((row["shop"], row["number"]) for row in wanted), (turn, question)
        names = query.index.column_names
        order = next(each for each in world.indexes if [column.name for column in each] == names)
        if not any(_is_long(row, order) for row in wanted):  # those of a longer text are in the order of their keys
            behind = order[len(question.fixed) :]
            wanted.sort(key=partial(_sorted_by, columns=behind), reverse=question.descending)
            assert keys == [(row["shop"], row["number"]) for row in wanted], (turn, question)
        found_some += bool(keys)
    assert found_some
