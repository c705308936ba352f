"""What a checkpoint says of where a job is, and how much a next generation would lack."""

from dataclasses import replace

import pytest

from tablegate.jobs.running.checkpoint import Identity, read_offset_log
from tablegate.jobs.running.resuming import lost_records

OLD = Identity(
    table="totals",
    generation=1,
    changelog_topic_id="c",
    source_topic_ids={"orders": "o"},
    first_offsets={"orders": {"0": 3, "1": 0}},
)
NEW = replace(OLD, generation=2, changelog_topic_id="d", first_offsets={"orders": {"0": 10, "1": 5}})
READ = {"orders": {0: 20, 1: 30}}


@pytest.mark.parametrize(
    ("new", "old", "lost"),
    [
        (OLD, OLD, {}),
        (NEW, OLD, {"orders": 12}),
        (NEW, None, {"orders": 15}),  # it may have been made of all
        (replace(NEW, source_topic_ids={"orders": "again"}), OLD, {"orders": 47}),
        (replace(NEW, first_offsets={"orders": {"0": 3, "1": 0, "2": 0}}), OLD, {}),
        (replace(NEW, source_topic_ids={"new": "n"}, first_offsets={"new": {"0": 9}}), OLD, {}),
        (replace(NEW, first_offsets={"orders": {"0": 1, "1": 0}}), OLD, {}),  # as by a seek that began later
    ],
)
def test_records_that_a_next_generation_lacks(new: Identity, old: Identity | None, lost: dict[str, int]) -> None:
    assert lost_records(new, old, READ) == lost


def test_offset_log_of_spark() -> None:
    settings = '{"batchWatermarkMs":0,"batchTimestampMs":1795370462235,"conf":{"spark.sql.shuffle.partitions":"4"}}'
    sources = ['{"a":{"0":24,"1":17}}', "-", '{"b":{"0":13}}', '{"a":{"0":20,"1":18}}']
    assert read_offset_log("\n".join(["v1", settings, *sources])) == {"a": {0: 20, 1: 17}, "b": {0: 13}}
