"""Parts of the runtime that need neither Java nor Kafka."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.contract.rows import row_schema
from gateway.v1 import changelog_pb2
from streamjobs.runtime.dead_letters import count_by_kind
from streamjobs.runtime.declarations import load_contract
from streamjobs.runtime.errors import JobError
from streamjobs.runtime.log import log
from streamjobs.runtime.manifests import check_succession, make_manifest
from streamjobs.runtime.markers import marker_of
from streamjobs.runtime.schemas import SchemaRegistry, choose_value_schema
from streamjobs.runtime.session import check_slots, local_slots
from streamjobs.runtime.topics import Topic
from streamjobs.table import Mode
from streamjobs.tables.ratings import RATING_SCHEMA, TABLE
from tests.unit.streamjobs.registry import FakeRegistry

SCHEMA = {"type": "record", "name": "R", "fields": []}
OTHER = {"type": "record", "name": "Other", "fields": []}


def text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, separators=(",", ":"))


def test_first_value_schema_has_id_1() -> None:
    assert choose_value_schema(SCHEMA, "c", 1, None, None) == (1, {1: text(SCHEMA)})


def test_unchanged_value_schema_keeps_its_id() -> None:
    old = changelog_pb2.Manifest(generation=1, value_schemas={1: text(OTHER), 2: text(SCHEMA), 3: text(OTHER)})
    chosen, schemas = choose_value_schema(SCHEMA, "c", 1, old, None)
    assert chosen == 2
    assert schemas == dict(old.value_schemas)


def test_changed_value_schema_gets_the_next_id_and_the_old_stay() -> None:
    old = changelog_pb2.Manifest(generation=1, value_schemas={4: text(OTHER)})
    assert choose_value_schema(SCHEMA, "c", 1, old, None) == (5, {4: text(OTHER), 5: text(SCHEMA)})


def test_new_generation_starts_with_its_own_schemas() -> None:
    old = changelog_pb2.Manifest(generation=1, value_schemas={4: text(OTHER)})
    assert choose_value_schema(SCHEMA, "c", 2, old, None) == (1, {1: text(SCHEMA)})


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as running:
        yield running


def test_value_schema_is_registered(registry: FakeRegistry) -> None:
    registry.register("other", text(OTHER))
    client = SchemaRegistry(registry.url)
    assert choose_value_schema(SCHEMA, "c", 1, None, client) == (2, {2: text(SCHEMA)})
    assert registry.subjects["c-value"] == [2]
    assert choose_value_schema(SCHEMA, "c", 1, None, client)[0] == 2


def test_registry_id_that_another_schema_has(registry: FakeRegistry) -> None:
    old = changelog_pb2.Manifest(generation=1, value_schemas={1: text(OTHER)})
    with pytest.raises(JobError, match="raise the table's generation"):
        choose_value_schema(SCHEMA, "c", 1, old, SchemaRegistry(registry.url))


def test_writer_schemas_of_a_topic(registry: FakeRegistry) -> None:
    registry.register("unrelated-value", text(OTHER))
    registry.register("ratings-value", RATING_SCHEMA)
    registry.register("ratings-value", text(OTHER))
    schemas = SchemaRegistry(registry.url).writer_schemas(TABLE.source)
    assert schemas == {2: RATING_SCHEMA, 1: text(OTHER)}


def test_writer_schemas_of_a_subject_that_is_not_there(registry: FakeRegistry) -> None:
    with pytest.raises(JobError, match='has no subject "ratings-value"; let a producer register'):
        SchemaRegistry(registry.url).writer_schemas(TABLE.source)


def test_registry_away() -> None:
    with pytest.raises(JobError, match=r"no schema registry answers at http://127\.0\.0\.1:9; start it"):
        SchemaRegistry("http://127.0.0.1:9").writer_schemas(TABLE.source)


def test_manifest_of_ratings() -> None:
    contract = load_contract(TABLE)
    manifest = make_manifest(
        TABLE,
        contract,
        changelog=Topic("ratings-g1-changelog", "id", 4),
        source=Topic("ratings", "other", 2),
        mode=Mode.MICROBATCH,
        value_schemas={1: text(row_schema(contract))},
    )
    assert manifest.partition_count == 4
    assert manifest.contract_fingerprint == contract.fingerprint
    assert manifest.key == [changelog_pb2.KeyColumn(name="movie_id", type=changelog_pb2.KEY_TYPE_INT64)]
    assert manifest.sources == [changelog_pb2.SourceTopic(topic="ratings", partition_count=2)]
    assert manifest.mode == changelog_pb2.JOB_MODE_MICROBATCH
    check_succession(TABLE, contract, manifest)
    check_succession(dataclasses.replace(TABLE, generation=2), contract, manifest)


def test_older_generation_is_refused() -> None:
    old = changelog_pb2.Manifest(generation=3)
    with pytest.raises(JobError, match="already at generation 3, this declaration says 1"):
        check_succession(TABLE, load_contract(TABLE), old)


def test_changed_key_in_one_generation_is_refused() -> None:
    old = changelog_pb2.Manifest(generation=1, contract_fingerprint=b"other")
    with pytest.raises(JobError, match="has changed since generation 1 was built; raise generation to 2"):
        check_succession(TABLE, load_contract(TABLE), old)


def test_marker_has_the_offsets_of_all_sources() -> None:
    progress = {"batchId": 7, "sources": [{"endOffset": {"ratings": {"0": 5, "1": 9}}}, {"endOffset": None}]}
    marker = marker_of(progress, generation=2)
    assert (marker.generation, marker.batch_id) == (2, 7)
    assert {source.topic: dict(source.next_offsets) for source in marker.sources} == {"ratings": {0: 5, 1: 9}}


def test_counts_of_dead_letters() -> None:
    assert count_by_kind({}) == {}
    assert count_by_kind({"observedMetrics": {"malformed": {"null_value": 2, "not_framed": 0}}}) == {"null_value": 2}


@pytest.mark.parametrize(
    ("master", "slots"),
    [("local", 1), ("local[5]", 5), ("local[5, 2]", 5), ("spark://host:7077", None), ("yarn", None)],
)
def test_slots_of_a_master(master: str, slots: int | None) -> None:
    assert local_slots(master) == slots


def test_too_few_slots() -> None:
    check_slots("local[5]", source_partitions=2, shuffle_partitions=2)
    check_slots("yarn", source_partitions=2, shuffle_partitions=2)
    with pytest.raises(JobError) as caught:
        check_slots("local[4]", source_partitions=2, shuffle_partitions=2)
    assert str(caught.value) == (
        "Real-time Mode needs 5 slots (2 source partitions, 2 shuffle partitions, 1 for dead letters), "
        'master "local[4]" has 4; use local[5]'
    )


def test_log_line(capsys: pytest.CaptureFixture[str]) -> None:
    log("batch", batch=3)
    line = json.loads(capsys.readouterr().out)
    assert line.pop("time").endswith("Z")
    assert line == {"event": "batch", "batch": 3}
