"""What a replicator measures: restores, what it applies, and how late that is."""

import pytest

from tests.kit.replication.replicator import FakeClock, Gateway, Job

OF_RATINGS = ("ratings",)


def test_restores_and_changes_are_counted_by_table(gateway: Gateway, job: Job) -> None:
    job.publish().put(range(100))
    gateway.steps()
    measures = gateway.measures
    partitions = len(gateway.table_status().partitions)
    assert measures.restores == {OF_RATINGS: partitions}
    assert measures.applied_changes == {OF_RATINGS: 100}
    job.put([5], count=500)
    gateway.steps(1)
    assert measures.applied_changes == {OF_RATINGS: 101}
    assert sum(measures.applies[OF_RATINGS].counts) > partitions
    gateway.restart()
    gateway.steps()
    assert measures.restores == {OF_RATINGS: partitions}, "what is stored is followed on"


def test_how_late_a_record_is_read_is_measured_once_live(gateway: Gateway, job: Job, clock: FakeClock) -> None:
    job.publish().put(range(100))
    gateway.steps()
    delays = gateway.measures.apply_delays[OF_RATINGS]
    before, total_s = sum(delays.counts), delays.sum
    job.put([5], count=500)
    clock.passed_s += 7
    gateway.steps(1)
    assert sum(delays.counts) == before + 1
    assert delays.sum - total_s == pytest.approx(7, abs=0.1)
