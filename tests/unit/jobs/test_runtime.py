"""Parts of the runtime that need neither Java nor Kafka."""

import json
from typing import Any

import pytest
from tablegate.examples.tables.ratings import TABLE
from tablegate.gateway.contract.rows import row_schema
from tablegate.jobs.dataflow.sink_records import counts
from tablegate.jobs.errors import JobError, UnknownSchema
from tablegate.jobs.kafka.markers import source_offsets
from tablegate.jobs.kafka.topics import Topic
from tablegate.jobs.log import log
from tablegate.jobs.planning.declarations import load_contract
from tablegate.jobs.planning.plan import check_changelog, check_contract_unchanged, make_manifest
from tablegate.jobs.running.handover import TRANSITIONS, HandoverPhase
from tablegate.jobs.running.session import check_slots, local_slots
from tablegate.jobs.table import Mode
from tablegate.v1 import changelog_pb2


def text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, separators=(",", ":"))


def test_manifest_of_ratings() -> None:
    contract = load_contract(TABLE)
    manifest = make_manifest(
        TABLE,
        contract,
        generation=3,
        changelog=Topic("ratings-g3-changelog", "id", 4),
        sources=[Topic("ratings", "other", 2)],
        keyed=False,
        mode=Mode.MICROBATCH,
        value_schemas={1: text(row_schema(contract))},
    )
    assert manifest.partition_count == 4
    assert manifest.contract_fingerprint == contract.fingerprint
    assert manifest.key == [changelog_pb2.KeyColumn(name="movie_id", type=changelog_pb2.KEY_TYPE_INT64)]
    assert manifest.sources == [changelog_pb2.SourceTopic(topic="ratings", partition_count=2)]
    assert manifest.mode == changelog_pb2.JOB_MODE_MICROBATCH
    assert manifest.generation == 3
    check_contract_unchanged(TABLE, contract, manifest, 3)


def test_changed_key_in_one_generation_is_refused() -> None:
    old = changelog_pb2.Manifest(generation=1, contract_fingerprint=b"other")
    with pytest.raises(JobError, match="have changed since generation 1 was built; build the next"):
        check_contract_unchanged(TABLE, load_contract(TABLE), old, 1)
    check_contract_unchanged(TABLE, load_contract(TABLE), old, 2)


@pytest.mark.parametrize(
    ("changelog", "words"),
    [
        (Topic("ratings-g1-changelog", "other", 4), "was deleted and made again since generation 1 was built; build"),
        (Topic("ratings-g1-changelog", "id", 5), "has 5 partitions for 4 since generation 1 was built; build the next"),
    ],
)
def test_a_changelog_that_is_another_one_is_refused(changelog: Topic, words: str) -> None:
    old = changelog_pb2.Manifest(generation=1, changelog_topic_id="id", partition_count=4)
    with pytest.raises(JobError, match=words):
        check_changelog(TABLE, changelog, old, 1)
    check_changelog(TABLE, changelog, old, 2)
    check_changelog(TABLE, changelog, None, 1)
    check_changelog(TABLE, Topic("ratings-g1-changelog", "id", 4), old, 1)


def test_offsets_of_all_sources() -> None:
    progress = {
        "sources": [
            {"endOffset": {"ratings": {"0": 5, "1": 9}}},
            {"endOffset": None},
            {"endOffset": {"ratings": {"0": 7, "1": 8}}},
            {"endOffset": {"other": {"0": 1}}},
        ]
    }
    # Two sides read the same topic: what both of them have read counts.
    assert source_offsets(progress) == {"ratings": {0: 5, 1: 8}, "other": {0: 1}}


def test_counts_of_a_batch() -> None:
    assert counts({}) == ({}, {})
    found = {"malformed: null_value": 2, "malformed: not_framed": 0, "ignored: a.B": 3}
    assert counts({"observedMetrics": {"counts": found}}) == ({"null_value": 2}, {"a.B": 3})


def test_unknown_schema_is_found_in_what_spark_says() -> None:
    found = UnknownSchema.found_in(
        f"SparkRuntimeException: [USER_RAISED_EXCEPTION] {UnknownSchema.message_prefix('a.b')}17 SQLSTATE"
    )
    assert found is not None
    assert (found.topic, found.schema_id) == ("a.b", 17)
    assert UnknownSchema.found_in("ArithmeticException: overflow") is None


@pytest.mark.parametrize(
    ("master", "slots"),
    [("local", 1), ("local[5]", 5), ("local[5, 2]", 5), ("spark://host:7077", None), ("yarn", None)],
)
def test_slots_of_a_master(master: str, slots: int | None) -> None:
    assert local_slots(master) == slots


def test_too_few_slots() -> None:
    check_slots("local[5]", 5)
    check_slots("yarn", 5)
    with pytest.raises(JobError) as caught:
        check_slots("local[4]", 5)
    assert str(caught.value) == (
        "Real-time Mode needs 5 slots (one for each partition of sources and of tables, and 2 for micro-batches beside "
        'them), master "local[4]" has 4; use local[5]'
    )


def test_log_line(capsys: pytest.CaptureFixture[str]) -> None:
    log("batch", batch=3)
    line = json.loads(capsys.readouterr().out)
    assert line.pop("time").endswith("Z")
    assert line == {"event": "batch", "batch": 3}


def test_the_phases_of_a_handover_follow_each_other_once() -> None:
    phases = [HandoverPhase.BUILDING]
    while phases[-1] in TRANSITIONS:
        phases.append(TRANSITIONS[phases[-1]])
    assert phases == list(HandoverPhase)
