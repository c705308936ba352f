"""`tablegate diff`: each class is held to what gateways, jobs and clients do with the two contracts."""

import json
from io import BytesIO
from pathlib import Path
from struct import pack
from typing import Any

import fastavro
import pytest
from click.testing import CliRunner, Result
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tablegate.gateway.cli.diff.command import compare
from tablegate.gateway.cli.diff.differences import Difference, Effect, effects_of
from tablegate.gateway.contract.catalogue import Catalogue, Table
from tablegate.gateway.contract.keys import encode_key
from tablegate.gateway.contract.rows import row_schema
from tablegate.gateway.contract.types import Partition, StoreId, make_version
from tablegate.gateway.replication.manifests import problem_of
from tablegate.gateway.stores.redis.store import RedisStore
from tablegate.jobs import Json, Source
from tablegate.jobs import Table as Declaration
from tablegate.jobs.errors import JobError
from tablegate.jobs.kafka.topics import changelog_settings
from tablegate.jobs.planning.logic import logic_changes, logic_of
from tablegate.jobs.planning.plan import changelog_lifetime_us, check_contract_unchanged
from tablegate.jobs.planning.registry import choose_value_schema
from tablegate.v1.changelog_pb2 import KeyColumn, Manifest
from tests.kit.command_line import COMMAND
from tests.kit.programs.redis import RedisServer, needs_redis
from tests.kit.replication.memory_log import MemoryBroker
from tests.kit.replication.replicator import START_MS, FakeClock, Gateway, Job
from tests.kit.table.accounts import ACCOUNTS
from tests.kit.table.contracts import bind_sources, edited

pytestmark = pytest.mark.tools

THING = """syntax = "proto3";
package shop.v1;
import "tablegate/v1/options.proto";

enum Place {
  PLACE_UNSPECIFIED = 0;
  PLACE_SHOP = 1;
  PLACE_HOME = 2;
}

message Thing {
  option (tablegate.v1.table) = {name: "ratings", key: "city", key: "thing_id"};
  string city = 1;
  int64 thing_id = 2;
  int32 small = 3;
  int64 big = 4;
  float rough = 5;
  double fine = 6;
  string note = 7;
  Place place = 8;
  optional bool paid = 9;
  reserved 15;
}
"""
THING_ROW = {"city": "Bern", "thing_id": 7, "small": 2, "big": 2**40, "rough": 1.5, "fine": 2.5, "note": "a"} | {
    "place": 1,
    "paid": True,
}
WINDOWS = """syntax = "proto3";
package shop.v1;
import "tablegate/v1/options.proto";
import "google/protobuf/timestamp.proto";

message Visits {
  option (tablegate.v1.table) = {
    name: "ratings", key: "city", key: "begin"
    window: {size: {seconds: 60}, start_column: "begin"}
    retention: {seconds: 3600}
  };
  string city = 1;
  google.protobuf.Timestamp begin = 2;
  google.protobuf.Timestamp end = 3;
  int64 visit_count = 4;
}
"""
WINDOW_ROW = {"city": "Bern", "begin": START_MS * 1_000, "end": None, "visit_count": 5}


def bound(directory: Path, text: str) -> Catalogue:
    return bind_sources(directory, shop=text)


def of_rows(old: Catalogue, new: Catalogue) -> list[Difference]:
    """Return the differences of the table alone, without those of its queries."""
    [table] = compare(old, new)
    methods = {path.rpartition("/")[2] for path in (*old.queries, *new.queries)}
    return [each for each in table.differences if each.subject not in methods]


def of_queries(old: Catalogue, new: Catalogue) -> list[Difference]:
    """Return the differences that `of_rows` leaves out."""
    [table] = compare(old, new)
    return [each for each in table.differences if each not in of_rows(old, new)]


class World:
    """A job that has written a row by the old contract, and a gateway that has stored it."""

    def __init__(self, old: Catalogue, row: dict[str, Any], store: RedisStore | None = None) -> None:
        self.table = old.tables["ratings"]
        clock = FakeClock()
        broker = MemoryBroker(clock.now_ms)
        broker.create("tables", 1)
        self.job = Job(broker, table=self.table).create()
        self.job.publish(self.manifest())
        key = encode_key(self.table.key, [row[column.name] for column in self.table.key])
        body = BytesIO()
        fastavro.schemaless_writer(body, fastavro.parse_schema(row_schema(self.table)), row)
        partition = self.table.partition_of(key, self.job.partitions)
        value = pack(">bI", 0, 1) + body.getvalue()
        broker.append(self.job.source(partition), key, value, version=make_version(1, 1))
        self.gateway = Gateway(broker, clock, old)
        if store is not None:
            self.gateway.store = store  # type: ignore[assignment]
            self.gateway.restart()
        self.gateway.steps()
        assert self.gateway.is_served()

    def manifest(self) -> Manifest:
        table, manifest = self.table, self.job.manifest()
        manifest.contract_fingerprint = table.fingerprint
        manifest.partitioner = table.partitioner.value  # type: ignore[assignment]
        manifest.partition_by_count = table.partition_by_count
        del manifest.key[:]
        manifest.key.extend(KeyColumn(name=each.name, type=each.type.value) for each in table.key)  # type: ignore[arg-type]
        manifest.value_schemas[1] = json.dumps(row_schema(table))
        return manifest

    def gateway_with(self, new: Catalogue) -> Effect:
        """Return what a gateway makes of the same changelog and store when it comes back with another contract."""
        before = self.gateway.state().store_id
        self.gateway.catalogue = new
        self.gateway.restart()
        self.gateway.steps()
        if not self.gateway.is_served() or self.gateway.table_status().poison_records:
            return Effect.REBUILD
        return Effect.SAFE if self.gateway.state().store_id == before else Effect.RESTORE

    def job_with(self, new: Table) -> Effect:
        """Return what a job makes of its table when it goes on with another contract."""
        before, now = declared(self.table), declared(new)
        try:
            check_contract_unchanged(now, new, self.manifest(), 1)
        except JobError:
            return Effect.REBUILD
        return Effect.REBUILD if logic_changes(logic_of(before), logic_of(now)) else Effect.SAFE


def declared(table: Table) -> Declaration:
    """Return a declaration with the columns of the contract: others are refused."""
    key = {column.name: column.name for column in table.key}
    columns = {field.name: f"max({field.name})" for field in table.row.fields if field.name not in key}
    source = Source("in", Json("a STRING"))
    return Declaration(name="ratings", contract="shop.proto", source=source, key=key, columns=columns)


def worst(*effects: Effect) -> Effect:
    return max(effects, key=list(Effect).index)


def reads_on(old: Table, new: Table) -> bool:
    """Return whether a client of the old contract reads each of its columns in a full row of the new one."""
    full: Any = new.row_class()
    values: dict[str, Any] = {**THING_ROW, "big": 9}
    for field in new.row.fields:
        value = values.get(field.name, 5)
        text = value if isinstance(value, str) or field.type != field.TYPE_STRING else str(value)
        setattr(full, field.name, text.encode() if field.type == field.TYPE_BYTES else text)
    seen = MessageToDict(GetMessageClass(old.row).FromString(full.SerializeToString()))
    sent = MessageToDict(full)
    columns = [field.json_name for field in old.row.fields]
    return all(name in sent and seen.get(name) == sent[name] for name in columns)


@pytest.mark.parametrize(
    ("edits", "subject", "words", "rows", "breaks"),
    [
        ([("note = 7;", "note = 7;\n  string more = 10;")], "more", "is new, string", Effect.REBUILD, False),
        ([("  string note = 7;\n", "")], "note", "write `reserved 7;`", Effect.REBUILD, True),
        ([("note = 7", "text = 7")], "text", "is the new name of note", Effect.REBUILD, True),
        ([("note = 7", "note = 17")], "note", "has number 17, it had 7", Effect.RESTORE, True),
        ([("int32 small", "int64 small")], "small", "is int64, it was int32", Effect.RESTORE, True),
        ([("int64 big", "int32 big")], "big", "set aside rows with a number", Effect.REBUILD, True),
        ([("float rough", "double rough")], "rough", "is double, it was float", Effect.RESTORE, True),
        ([("double fine", "float fine")], "fine", "rows cannot be read as that", Effect.REBUILD, True),
        ([("string note", "bytes note")], "note", "rows cannot be read as that", Effect.REBUILD, True),
        ([("int64 big", "string big")], "big", "rows cannot be read as that", Effect.REBUILD, True),
        ([("int32 small", "Place small")], "small", "is shop.v1.Place, it was int32", Effect.RESTORE, True),
        ([("string note", "optional string note")], "note", "is optional now", Effect.RESTORE, False),
        ([("optional bool paid", "bool paid")], "paid", "is not optional any more", Effect.RESTORE, True),
        ([("PLACE_HOME = 2;", "PLACE_HOME = 2;\n  PLACE_BOAT = 3;")], "place.PLACE_BOAT", "is new", Effect.SAFE, False),
        ([("PLACE_SHOP", "PLACE_MALL")], "place.PLACE_SHOP", "is PLACE_MALL now", Effect.SAFE, True),
        ([("  PLACE_HOME = 2;\n", "")], "place.PLACE_HOME", "is gone", Effect.SAFE, True),
    ],
)
def test_columns(
    tmp_path: Path, edits: list[tuple[str, str]], subject: str, words: str, rows: Effect, breaks: bool
) -> None:
    old, new = bound(tmp_path / "old", THING), bound(tmp_path / "new", edited(THING, *edits))
    [found] = of_rows(old, new)
    assert found.subject == f'column "{subject}"'
    assert words in found.text
    assert (found.rows, found.breaks_clients) == (rows, breaks)
    world = World(old, THING_ROW)
    assert worst(world.gateway_with(new), world.job_with(new.tables["ratings"])) is rows
    if "optional" not in words and not subject.startswith("place"):
        assert reads_on(old.tables["ratings"], new.tables["ratings"]) is not breaks


def test_who_goes_first(tmp_path: Path) -> None:
    old = bound(tmp_path / "old", THING)
    more = bound(tmp_path / "more", edited(THING, ("note = 7;", "note = 7;\n  string more = 10;")))
    less = bound(tmp_path / "less", edited(THING, ("  string note = 7;\n", "")))
    world = World(old, THING_ROW)
    assert (world.gateway_with(less), world.job_with(less.tables["ratings"])) == (Effect.RESTORE, Effect.REBUILD)
    # A gateway of before reads what a job with more columns writes, and not what one with fewer does.
    assert World(more, {**THING_ROW, "more": "b"}).gateway_with(old) is not Effect.REBUILD
    assert World(less, THING_ROW).gateway_with(old) is Effect.REBUILD


@pytest.mark.parametrize(
    "edits", [("note = 7;", "note = 7;\n  string more = 10;"), ("  string note = 7;\n", ""), ("float", "double")]
)
def test_one_generation_may_have_values_of_both(tmp_path: Path, edits: tuple[str, str]) -> None:
    old, new = bound(tmp_path / "old", THING), bound(tmp_path / "new", edited(THING, edits))
    table = new.tables["ratings"]
    before = World(old, THING_ROW).manifest()
    _, schemas = choose_value_schema(row_schema(table), "changelog", 1, before, None)
    assert len(schemas) == 2
    both = Manifest()
    both.CopyFrom(before)
    both.value_schemas.update(schemas)
    assert problem_of(table, both) is None


def test_an_enum_number_that_changes_is_not_seen_by_gateways(tmp_path: Path) -> None:
    swapped = edited(THING, ("SHOP = 1", "SHOP = 3"), ("HOME = 2", "HOME = 1"))
    old, new = bound(tmp_path / "old", THING), bound(tmp_path / "new", swapped)
    found = of_rows(old, new)
    assert {each.subject for each in found} == {'column "place.PLACE_SHOP"', 'column "place.PLACE_HOME"'}
    assert all(each.effects == (Effect.REBUILD, Effect.BREAKS_CLIENTS) for each in found)
    world = World(old, THING_ROW)
    assert world.gateway_with(new) is Effect.SAFE
    [row] = [message_of(row, new.tables["ratings"]) for row in stored_rows(world.gateway)]
    assert MessageToDict(row)["place"] == "PLACE_HOME"  # it was PLACE_SHOP


def stored_rows(gateway: Gateway) -> list[bytes]:
    with gateway.store.snapshot() as snapshot:
        store_id = StoreId(gateway.state().store_id)
        return [
            row
            for partition in range(gateway.state().manifest.partition_count)
            for _, row in snapshot.range(store_id, Partition(partition), start=b"", end=None, limit=10)
        ]


def message_of(row: bytes, table: Table) -> Message:
    return table.row_class.FromString(row)


@pytest.mark.parametrize(
    ("edits", "subjects"),
    [
        ([('key: "thing_id"}', 'key: "thing_id", key: "small"}')], ["key", "partition_by"]),
        ([('key: "city", key: "thing_id"', 'key: "thing_id", key: "city"')], ["key", "partition_by"]),
        ([(', key: "thing_id"', "")], ["key", "partition_by"]),
        ([("string city", "bytes city")], ["key", 'column "city"']),
        ([('key: "thing_id"}', 'key: "thing_id", partition_by: "city"}')], ["partition_by", "partitioner"]),
        ([('key: "thing_id"}', 'key: "thing_id", partitioner: PARTITIONER_CRC32}')], ["partitioner"]),
    ],
)
def test_what_places_rows(tmp_path: Path, edits: list[tuple[str, str]], subjects: list[str]) -> None:
    old, new = bound(tmp_path / "old", THING), bound(tmp_path / "new", edited(THING, *edits))
    found = of_rows(old, new)
    assert [each.subject for each in found] == subjects
    assert {each.rows for each in found} == {Effect.REBUILD}
    world = World(old, THING_ROW)
    assert world.gateway_with(new) is Effect.REBUILD
    with pytest.raises(JobError, match="tablegate job rebuild"):
        check_contract_unchanged(declared(new.tables["ratings"]), new.tables["ratings"], world.manifest(), 1)


@pytest.mark.parametrize(
    ("edits", "subject", "rows"),
    [
        ([("seconds: 60}", "seconds: 30}")], "window", Effect.REBUILD),
        ([("seconds: 60}", "seconds: 60}, hop: {seconds: 20}")], "window", Effect.REBUILD),
        ([('start_column: "begin"', 'start_column: "begin", end_column: "end"')], "window.end_column", Effect.SAFE),
        ([("3600", "7200")], "retention", Effect.RESTORE),
        ([("    retention: {seconds: 3600}\n", "")], "retention", Effect.RESTORE),
    ],
)
def test_windows_and_retention(tmp_path: Path, edits: list[tuple[str, str]], subject: str, rows: Effect) -> None:
    old, new = bound(tmp_path / "old", WINDOWS), bound(tmp_path / "new", edited(WINDOWS, *edits))
    [found] = of_rows(old, new)
    assert (found.subject, found.effects) == (subject, (rows,))
    world = World(old, WINDOW_ROW)
    assert worst(world.gateway_with(new), world.job_with(new.tables["ratings"])) is rows
    if subject == "retention":
        settings = [changelog_settings(changelog_lifetime_us(each.tables["ratings"])) for each in (old, new)]
        assert settings[0] != settings[1]
        assert "the job asks for other settings of the changelog's topic" in found.text


@needs_redis
def test_shorter_retention_restores_a_store_that_is_shared(tmp_path: Path, redis_server: RedisServer) -> None:
    old, new = bound(tmp_path / "old", WINDOWS), bound(tmp_path / "new", edited(WINDOWS, ("3600", "1800")))
    [found] = of_rows(old, new)
    assert found.effects == (Effect.RESTORE, Effect.BREAKS_CLIENTS)
    assert World(old, WINDOW_ROW).gateway_with(new) is Effect.SAFE
    store = RedisStore(redis_server.new_url(), "a")
    assert World(old, WINDOW_ROW, store).gateway_with(new) is Effect.RESTORE
    store.close()


def test_indexes_come_and_go_without_a_restore(tmp_path: Path) -> None:
    """Nothing of them is in rows or in what jobs and gateways agree on: gateways go on with what they have stored."""
    key = 'key: "thing_id"'
    plain, big, small, unique = (
        bound(tmp_path / name, edited(THING, (key, key + index)))
        for name, index in (
            ("plain", ""),
            ("big", ', index: {name: "by", columns: "big"}'),
            ("small", ', index: {name: "by", columns: "small"}'),
            ("unique", ', index: {name: "by", columns: "small", unique: true}'),
        )
    )
    for old, new, words in (
        (plain, big, "is new, of (big): gateways build it in the background"),
        (big, small, "is of (small), it was of others"),
        (small, unique, "is unique"),
        (unique, small, "is not unique"),
        (big, plain, "is gone"),
    ):
        [difference] = of_rows(old, new)
        assert (difference.subject, difference.rows, difference.breaks_clients) == ('index "by"', Effect.SAFE, False)
        assert difference.text.startswith(words)


def test_a_query_that_reads_by_another_index(tmp_path: Path) -> None:
    """Keys of a batch mean something else then, and nothing refuses them; a walk only begins anew."""
    text = ACCOUNTS.read_text("utf-8")
    other = 'index: {\n      name: "by_code"\n      columns: "address.city"\n      unique: true\n    }\n    '
    added = edited(text, ('    index: {\n      name: "by_city"\n', f'    {other}index: {{\n      name: "by_city"\n'))
    by_code = edited(added, ('batch_get: {index: "by_number"}', 'batch_get: {index: "by_code"}'))
    state = '      columns: "tags"\n      columns: "state"\n'
    other_order = edited(text, (state, f'{state}      columns: "number"\n'))
    bindings = [
        bind_sources(tmp_path / str(at), accounts__v1__accounts=each)
        for at, each in enumerate((added, by_code, text, other_order))
    ]
    [batch] = of_queries(bindings[0], bindings[1])
    assert batch.breaks_clients
    assert batch.text == 'takes the values of index "by_code", it took those of index "by_number"'
    [walk] = of_queries(bindings[2], bindings[3])
    assert not walk.breaks_clients
    assert "rows come in another order, and page tokens are refused once" in walk.text


def test_what_is_no_difference(tmp_path: Path) -> None:
    text = edited(THING, ("  string city", "  // Where.\n  string city"), ("reserved 15", "reserved 15, 16"))
    assert compare(bound(tmp_path / "old", THING), bound(tmp_path / "new", text)) == []


def test_a_row_message_of_another_name_is_the_same_row(tmp_path: Path) -> None:
    old, new = bound(tmp_path / "old", THING), bound(tmp_path / "new", edited(THING, ("message Thing", "message Item")))
    [found] = of_rows(old, new)
    assert (found.subject, found.effects) == ("row", (Effect.SAFE,))
    world = World(old, THING_ROW)
    assert worst(world.gateway_with(new), world.job_with(new.tables["ratings"])) is Effect.SAFE


def test_a_number_that_was_reserved(tmp_path: Path) -> None:
    text = edited(THING, ("reserved 15", "string more = 15"))
    [found] = of_rows(bound(tmp_path / "old", THING), bound(tmp_path / "new", text))
    assert found.effects == (Effect.REBUILD, Effect.BREAKS_CLIENTS)
    assert "clients of earlier contracts know another field by it" in found.text


def test_a_table_that_is_new_or_gone_or_renamed(tmp_path: Path) -> None:
    other = edited(THING, ('"ratings"', '"things"'))
    old, new = bound(tmp_path / "old", THING), bound(tmp_path / "new", other)
    gone, renamed = compare(old, new)
    assert (gone.table, effects_of([gone])) == ("ratings", (Effect.BREAKS_CLIENTS,))
    assert renamed.table == "things"
    assert renamed.differences[0] == Difference(
        "table", 'is the new name of "ratings": it has no rows until its job has published it', Effect.REBUILD
    )
    both = bind_sources(tmp_path / "both", shop=THING, more=edited(other, ("shop.v1", "more.v1")))
    [added] = compare(old, both)
    assert (added.table, effects_of([added])) == ("things", (Effect.SAFE,))


def run(*words: object) -> Result:
    return CliRunner().invoke(COMMAND, ["diff", *map(str, words)], env={"COLUMNS": "80"})


def test_command(tmp_path: Path) -> None:
    old, new = tmp_path / "old.proto", tmp_path / "new" / "things.proto"
    old.write_text(THING, "utf-8")
    new.parent.mkdir()
    new.write_text(edited(THING, ("int32 small", "int64 small"), ("PLACE_HOME = 2;", "PLACE_HOME = 2; PLACE_A = 3;")))
    same = run(old, old)
    assert (same.exit_code, same.stdout) == (0, "no difference\n")
    for path in (new, new.parent):
        other = run(old, path)
        assert other.exit_code == 3, other.output
        first, head, worst_line, *_ = other.stdout.splitlines()
        assert first == "ratings  RESTORE, BREAKS CLIENTS"
        assert head.split() == ["effect", "subject", "difference"]
        assert worst_line.startswith('RESTORE, BREAKS CLIENTS  column "small"')
    safe = edited(THING, ("PLACE_HOME = 2;", "PLACE_HOME = 2; PLACE_A = 3;"))
    new.write_text(safe)
    assert run(old, new).exit_code == 0


def test_command_in_json(tmp_path: Path) -> None:
    old, new = tmp_path / "old.proto", tmp_path / "new.proto"
    old.write_text(THING, "utf-8")
    new.write_text(edited(THING, ("string note = 7", "string note = 7 [deprecated = true];\n  string more = 10")))
    done = run(old, new, "--json")
    assert done.exit_code == 3
    document = json.loads(done.stdout)
    assert document["effects"] == ["REBUILD"]
    [table] = document["tables"]
    assert (table["table"], table["effects"]) == ("ratings", ["REBUILD"])
    assert table["differences"][0] == {
        "effects": ["REBUILD"],
        "subject": 'column "more"',
        "text": "is new, string; no row has it until the job computes it",
    }


def test_directory_whose_files_import_each_other(tmp_path: Path) -> None:
    place = THING[THING.index("enum Place") : THING.index("message Thing")]
    for name in ("old", "new"):
        (tmp_path / name / "common").mkdir(parents=True)
        head = 'syntax = "proto3";\npackage shop.v1;\n'
        (tmp_path / name / "common" / "place.proto").write_text(head + place, "utf-8")
        text = edited(THING, (place, ""), ('options.proto";', 'options.proto";\nimport "common/place.proto";'))
        (tmp_path / name / "things.proto").write_text(text, "utf-8")
    done = run(tmp_path / "old", tmp_path / "new")
    assert (done.exit_code, done.stdout) == (0, "no difference\n"), done.stderr


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    good, wrong = tmp_path / "good.proto", tmp_path / "wrong.proto"
    good.write_text(THING, "utf-8")
    wrong.write_text(edited(THING, ('key: "city"', 'key: "town"')), "utf-8")
    (tmp_path / "empty").mkdir()
    for path, words in (
        (tmp_path / "none.proto", "is not a file"),
        (wrong, "1 problem in the contract"),
        (tmp_path / "empty", "has no .proto; give one that has, or a file"),
    ):
        done = run(good, path)
        assert (done.exit_code, done.stdout) == (1, "")
        assert words in done.stderr.replace("\n", " ")
