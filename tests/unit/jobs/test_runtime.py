"""Parts of the runtime that need neither Java nor Kafka."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest

from tablegate.examples.tables.ratings import TABLE
from tablegate.gateway.contract.rows import row_schema
from tablegate.gateway.contract.types import BATCH_CHANGES_MAX
from tablegate.jobs.dataflow.frames import records_per_batch_max
from tablegate.jobs.dataflow.sink_records import ignored_kinds_of, malformed_of
from tablegate.jobs.dataflow.sources import RECORDS_PER_BATCH_MAX
from tablegate.jobs.errors import JobError, UnknownSchema
from tablegate.jobs.kafka.markers import source_offsets
from tablegate.jobs.kafka.topics import Topic
from tablegate.jobs.log import log
from tablegate.jobs.planning.declarations import load_contract
from tablegate.jobs.planning.plan import (
    check_atomic_unchanged,
    check_changelog,
    check_contract_unchanged,
    make_manifest,
    plan_without_cluster,
)
from tablegate.jobs.running.atomic_sink import AtomicSink
from tablegate.jobs.running.batch_changes import BatchChanges
from tablegate.jobs.running.handover import TRANSITIONS, HandoverPhase
from tablegate.jobs.running.queries import _Progress
from tablegate.jobs.running.query_errors import query_error
from tablegate.jobs.running.session import check_realtime, check_slots, local_slots
from tablegate.jobs.table import Mode, Window
from tablegate.v1 import changelog_pb2

ATOMIC = replace(TABLE, mode=Mode.MICROBATCH, trigger_s=None, outputs=(), atomic=True)


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


def test_atomic_that_changes_in_one_generation_is_refused() -> None:
    old = changelog_pb2.Manifest(generation=1, atomic=True)
    with pytest.raises(JobError, match="has changed since generation 1 was built; build the next"):
        check_atomic_unchanged(TABLE, old, 1)
    check_atomic_unchanged(TABLE, old, 2)
    check_atomic_unchanged(ATOMIC, old, 1)


@pytest.mark.parametrize(
    ("changes", "partitions", "records"),
    [
        ({}, 1, BATCH_CHANGES_MAX - 1),
        ({}, 12, BATCH_CHANGES_MAX - 12),
        ({"window": Window(size_s=60)}, 1, BATCH_CHANGES_MAX - 1),
        ({"window": Window(size_s=60, hop_s=7)}, 1, BATCH_CHANGES_MAX // 9 - 1),
        ({"window": Window(size_s=1e6, hop_s=1)}, 1, 1),
    ],
)
def test_an_atomic_batch_reads_no_more_than_it_may_change(
    changes: dict[str, Any], partitions: int, records: int, tmp_path: Path
) -> None:
    if changes:
        changes["key"] = {**TABLE.key, "start": "window.start"}
    plan = plan_without_cluster(ATOMIC, str(tmp_path))
    source = Topic("ratings", "", partitions)
    sides = {"": replace(plan.sides[""], topic=source)}
    assert records_per_batch_max(replace(plan, table=replace(ATOMIC, **changes), sides=sides)) == records
    assert records_per_batch_max(replace(plan, table=TABLE)) == RECORDS_PER_BATCH_MAX


class Rows:
    """What a batch is to its sink: rows that are asked for once."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def selectExpr(self, *_: str) -> "Rows":  # noqa: N802 - as Spark has it
        return self

    def toArrow(self) -> pyarrow.Table:  # noqa: N802
        names = ("partition", "key", "value", "version")
        return pyarrow.table({name: [None] * self._rows for name in names})


def test_a_batch_beyond_the_bound_is_refused_before_it_is_written(tmp_path: Path) -> None:
    sink = AtomicSink(plan_without_cluster(ATOMIC, str(tmp_path)), changes_max=3)
    rows: Any = Rows(4)
    with pytest.raises(JobError, match=r'table "ratings" batch 7 has 4 changes, and an atomic batch at most 3; have'):
        sink.write_batch(rows, 7)
    empty: Any = Rows(0)
    sink.write_batch(empty, 8)
    assert sink.changes.pop(8) == 0


def test_changes_of_a_batch_that_goes_on_stay_apart() -> None:
    changes = BatchChanges()
    for batch_id, count in ((6, 1), (7, 2), (8, 5), (7, 3)):
        changes.add(batch_id, count)
    assert [changes.pop(7), changes.pop(7), changes.pop(9)] == [6, 0, 5]


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
    clean = {"malformed: null_value": 0, "ignored: a.B": 3, "decoded": 5}
    dirty = {"malformed: null_value": 2, "malformed: not_framed": 0, "ignored: a.B": 1, "decoded": 5}
    both = {"numInputRows": 9, "observedMetrics": {"side left": clean, "side right": dirty, "rows": {}}}
    assert malformed_of(both, ["left", "right"]) == 2
    assert malformed_of(both, ["left"]) == 0
    assert ignored_kinds_of(both) == {"a.B": 4}


def test_a_batch_that_tells_no_counts_may_have_malformed_records() -> None:
    assert malformed_of({"numInputRows": 1}, ["left"]) is None
    assert malformed_of({"numInputRows": 0}, ["left"]) == 0
    silent = {"numInputRows": 1, "observedMetrics": {"side left": {"decoded": 1}}}
    assert malformed_of(silent, ["left", "right"]) is None


def test_a_query_that_may_end_is_not_taken_for_stopped(tmp_path: Path) -> None:
    """It may do so between two questions of one poll."""
    ended = SimpleNamespace(isActive=lambda: False, exception=lambda: SimpleNamespace(isDefined=lambda: False))
    query: Any = SimpleNamespace(_jsq=ended)
    plan = plan_without_cluster(TABLE, str(tmp_path))
    _Progress(query).check(plan, may_end=True)
    with pytest.raises(JobError, match="stopped from outside"):
        _Progress(query).check(plan, may_end=False)


def test_a_query_with_timers_is_stopped_when_they_have_run(tmp_path: Path) -> None:
    reports: list[Any] = []
    is_active = [True]

    def report(second: int, offset: int) -> None:
        offsets = {"startOffset": {"orders": {"0": int(bool(reports)) * 5}}, "endOffset": {"orders": {"0": offset}}}
        timestamp = f"2026-11-25T12:00:{second:02}.000Z"
        durations = {"addBatch": 400, "triggerExecution": 500}
        text = json.dumps({"timestamp": timestamp, "durationMs": durations, "sources": [offsets]})
        one = SimpleNamespace(batchId=lambda: len(reports), timestamp=lambda: timestamp, json=lambda: text)
        reports.append(one)

    interrupted = SimpleNamespace(isDefined=lambda: True)
    running = SimpleNamespace(
        isActive=lambda: is_active[0],
        exception=lambda: interrupted,
        stop=lambda: is_active.__setitem__(0, False),
        lastProgress=lambda: reports[-1],
        recentProgress=lambda: list(reports),
    )
    query: Any = SimpleNamespace(_jsq=running)
    progress = _Progress(query)
    for second, offset, stops in ((0, 5, False), (1, 5, False), (2, 9, False), (4, 5, False), (5, 5, True)):
        report(second, offset)
        progress.unseen()
        progress.stop_where_worked_off(2.0)
        assert is_active[0] is not stops
    assert progress.has_ended
    progress.check(plan_without_cluster(TABLE, str(tmp_path)), may_end=True)


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


def test_realtime_mode_by_the_version_of_spark() -> None:
    for version in ("4.3.0", "4.10.1", "5.0.0-preview1"):
        check_realtime(version, TABLE.declared_at, TABLE.name)
    with pytest.raises(JobError) as caught:
        check_realtime("4.2.1", TABLE.declared_at, TABLE.name)
    assert str(caught.value) == (
        f'{TABLE.declared_at}: table "ratings": Real-time Mode needs Spark 4.3 or newer, and this is 4.2.1; '
        "use mode=Mode.MICROBATCH, or --mode microbatch"
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


def test_a_full_disk_is_told_with_its_places() -> None:
    plan = plan_without_cluster(TABLE, "/data/checkpoints")
    error = query_error("IOException: No space left on device", plan)
    assert isinstance(error, JobError)
    assert str(error).startswith('table "ratings" has stopped, as a disk is full')
    assert f'make room under "{plan.checkpoint}"' in str(error)
