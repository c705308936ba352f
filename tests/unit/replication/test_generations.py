"""From one generation of a table to the next, in whatever order things happen: nothing goes back in time."""

import logging
import random
from collections import Counter

import pytest

from tablegate.gateway.contract.types import Offset, StoreId
from tablegate.gateway.kafka.log import TopicPartition
from tablegate.v1.changelog_pb2 import SourceTopic
from tests.kit.replication.memory_log import MemoryBroker, MemoryLog
from tests.kit.replication.replicator import PARTITIONS, FakeClock, Gateway, Job, key_of, ratings
from tests.kit.seeds import seeds


@pytest.fixture
def newer(broker: MemoryBroker) -> Job:
    """Generation 2: it has the movies 0 to 49, and no manifest yet."""
    newer = Job(broker, generation=2, sequence=1_000).create()
    newer.put(range(50))
    return newer


@pytest.fixture
def served(gateway: Gateway, job: Job) -> Gateway:
    """A gateway that serves generation 1: the movies 0 to 19, made from 10 records of each source partition."""
    job.publish().put(range(20))
    job.mark_all({0: 10, 1: 10})
    gateway.steps()
    assert generation(gateway) == 1
    return gateway


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def generation(gateway: Gateway) -> int:
    """Return the generation that is served whole; 0 where none is."""
    return gateway.state().manifest.generation if gateway.is_served() else 0


def warnings(lines: pytest.LogCaptureFixture) -> list[str]:
    return [line.message for line in lines.records if line.levelno >= logging.WARNING]


def delete_topic(job: Job) -> None:
    job.broker.delete(job.topic)


def make_topic_anew(job: Job) -> None:
    job.broker.create(job.topic, PARTITIONS)


def lose_the_last_records(job: Job) -> None:
    for partition in range(PARTITIONS):
        job.broker.truncate_from(job.source(partition), Offset(2))


def lose_the_next_records(job: Job) -> None:
    job.put(range(20, 30))
    facts = job.broker.facts(job.topic)
    assert facts is not None
    for partition, end in enumerate(facts.end_offsets):
        job.broker.truncate_before(job.source(partition), end)


DAMAGES = [delete_topic, make_topic_anew, lose_the_last_records, lose_the_next_records]


def test_old_generation_is_followed_to_the_final_marker_of_each_partition(
    served: Gateway, job: Job, newer: Job
) -> None:
    newer.mark_all({0: 10, 1: 10})
    newer.publish()
    served.seconds(20)
    job.put([7], count=777)
    job.mark_all({0: 11, 1: 10})
    served.steps()
    assert generation(served) == 1
    assert served.rows()[7] == 777
    assert served.position(0).source_offsets == {("ratings", 0): 11, ("ratings", 1): 10}
    newer.put([7], count=8_888)
    newer.mark_all({0: 12, 1: 12})
    job.mark(0, {0: 11, 1: 10}, final=True)
    served.seconds(20)
    assert generation(served) == 1
    job.mark(1, {0: 11, 1: 10}, final=True)
    served.steps()
    assert generation(served) == 2
    assert served.rows()[7] == 8_888
    assert served.position(1).source_offsets == {("ratings", 0): 12, ("ratings", 1): 12}
    served.steps()
    assert served.store.store_ids() == {StoreId(served.state().store_id)}


def test_a_last_marker_before_the_new_manifest(served: Gateway, job: Job, newer: Job) -> None:
    job.mark_all({0: 11, 1: 10}, final=True)
    served.seconds(20)
    assert generation(served) == 1
    newer.mark_all({0: 11, 1: 10})
    newer.publish()
    served.steps()
    assert generation(served) == 2


@pytest.mark.parametrize("late", range(PARTITIONS))
@pytest.mark.parametrize("source_partition", [0, 1])
def test_the_new_generation_has_to_have_what_the_old_one_had(
    served: Gateway, job: Job, newer: Job, late: int, source_partition: int, lines: pytest.LogCaptureFixture
) -> None:
    final = {0: 30, 1: 40}
    newer.publish()
    job.mark_all(final, final=True)
    served.seconds(10)
    assert generation(served) == 1
    behind = {**final, source_partition: final[source_partition] - 1}
    for partition in range(PARTITIONS):
        newer.mark(partition, behind if partition == late else {0: 99, 1: 99})
    served.seconds(10)
    assert generation(served) == 1
    newer.mark(late, final)
    served.steps()
    assert generation(served) == 2
    waits = [line.message for line in lines.records if "is not served yet" in line.message]
    assert waits[-1] == (
        f'table "ratings": generation 2 is not served yet: its partition {late} has no marker yet for offset '
        f'{final[source_partition]} of partition {source_partition} of source topic "ratings"'
    )
    assert len(waits) == len(set(waits))
    assert not warnings(lines)


def test_what_the_new_job_does_not_read_is_not_awaited(served: Gateway, job: Job, newer: Job) -> None:
    job.mark(0, {0: 99}, topic="films", final=True)
    job.mark(1, {0: 99}, topic="films", final=True)
    newer.publish()
    served.steps()
    assert generation(served) == 2


def test_what_the_new_job_reads_is_awaited_whatever_the_old_one_is_called(
    served: Gateway, job: Job, newer: Job
) -> None:
    job.mark_all({0: 99}, topic="films", final=True)
    newer.publish(newer.manifest(sources=[SourceTopic(topic="films", partition_count=1)]))
    served.steps()
    assert generation(served) == 1
    newer.mark_all({0: 99}, topic="films")
    served.steps()
    assert generation(served) == 2


def test_the_last_marker_alone_says_what_is_awaited(served: Gateway, job: Job, newer: Job) -> None:
    """Its offsets may be lower than those of a marker before it, where a source topic was made anew."""
    job.mark_all({0: 500, 1: 500})
    served.steps()
    job.mark_all({0: 3}, final=True)
    newer.mark_all({0: 3})
    newer.publish()
    served.steps()
    assert generation(served) == 2


@pytest.mark.parametrize("together", [True, False])
def test_rows_after_the_last_marker_are_not_applied(served: Gateway, job: Job, newer: Job, together: bool) -> None:
    as_of_ms = served.position(0).as_of_ms
    job.mark_all({0: 10, 1: 10}, final=True)
    if not together:
        served.steps()
    served.clock.passed_s += 60
    job.put(range(100, 110))
    job.mark_all({0: 20, 1: 20})
    served.seconds(1)
    served.restart()
    served.seconds(10)
    assert set(served.rows()) == set(range(20))
    assert served.position(0).source_offsets == {("ratings", 0): 10, ("ratings", 1): 10}
    assert served.position(0).as_of_ms < as_of_ms + 60_000
    newer.mark_all({0: 10, 1: 10})
    newer.publish()
    served.steps()
    assert generation(served) == 2


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("restart", [True, False])
@pytest.mark.parametrize("told", [True, False])
def test_after_its_last_marker_a_generation_needs_its_topic_no_more(
    served: Gateway, job: Job, newer: Job, damage: object, restart: bool, told: bool, lines: pytest.LogCaptureFixture
) -> None:
    """Whether the next manifest is there already, `told`, or comes later."""
    assert callable(damage)
    if told:
        newer.publish()
    job.mark_all({0: 11, 1: 10}, final=True)
    served.steps()
    damage(job)
    for _ in range(2):
        if restart:
            served.restart()
        served.seconds(20)
        assert generation(served) == 1
        assert set(served.rows()) == set(range(20))
    served.clock.passed_s += 86_400 * 3
    served.seconds(20)
    assert generation(served) == 1
    newer.mark_all({0: 11, 1: 10})
    newer.publish()
    served.seconds(20)
    assert generation(served) == 2
    assert not [line for line in warnings(lines) if "generation 1" in line]


@pytest.mark.parametrize("gone", [True, False])
def test_rows_that_are_missing_are_not_taken_for_all_there_is(served: Gateway, job: Job, gone: bool) -> None:
    """Where a shorter retention removed rows, a generation that is stored to its end has to be restored."""
    job.mark_all({0: 10, 1: 10}, final=True)
    served.steps()
    state = served.state()
    state.retention_us = 1
    served.store.put_table("ratings", state)
    if gone:
        delete_topic(job)
    served.restart()
    for _ in range(60):
        served.steps(1, pass_s=0.3)
        assert generation(served) == 0 or set(served.rows()) == set(range(20))
    assert generation(served) == (0 if gone else 1)
    assert gone or served.state().store_id != state.store_id


@pytest.mark.parametrize("damage", DAMAGES)
def test_broken_generation_is_served_until_the_next_is_restored(
    served: Gateway,
    job: Job,
    newer: Job,
    damage: object,
    lines: pytest.LogCaptureFixture,
) -> None:
    served.store.changes_max = 1
    assert callable(damage)
    newer.put(range(50, 200))
    job.mark(0, {0: 11, 1: 10}, final=True)
    newer.publish()
    served.steps(3)
    damage(job)
    seen = []
    for _ in range(300):
        served.steps(1, pass_s=0.1)
        seen.append(generation(served))
        if seen[-1] == 1:
            assert set(served.rows()) == set(range(20))
    assert seen == sorted(seen)
    assert set(seen) == {1, 2}
    found = warnings(lines)
    assert "; what is stored of generation 1 is served until the next one is restored" in found[0]
    assert found[1:] == [
        (
            'table "ratings": the changelog of generation 1 ended without its last markers: '
            "rows of generation 2 may be older than what was served"
        )
    ]


def test_what_cannot_be_followed_on_is_fetched_no_more(
    served: Gateway, job: Job, newer: Job, lines: pytest.LogCaptureFixture
) -> None:
    """A topic that was made anew has records at the old offsets in time."""
    served.store.changes_max = 1
    newer.put(range(50, 400))
    newer.publish()
    served.steps(3)
    make_topic_anew(job)
    job.put(range(40))
    while not warnings(lines):
        served.steps(1, pass_s=1)
    job.put(range(100, 140), count=10**6)
    served.steps(20)
    assert generation(served) == 1
    assert not set(served.rows()) & set(range(100, 140))


def test_a_topic_whose_last_markers_were_applied_is_fetched_no_more(served: Gateway, job: Job) -> None:
    sources = {job.source(partition) for partition in range(PARTITIONS)}
    assert _followed(served) > sources
    job.mark(0, {0: 10, 1: 10}, final=True)
    served.steps(1)
    assert _followed(served) & sources == {job.source(1)}
    served.restart()
    served.seconds(10)
    assert _followed(served) & sources == {job.source(1)}
    table = served.replicator._tables["ratings"]
    assert table.serving is not None
    store_id = served.state().store_id
    table.lost(table.serving.replicas[0])  # what was fetched before, and is told of only now
    served.seconds(10)
    assert generation(served) == 1
    assert served.state().store_id == store_id


def _followed(gateway: Gateway) -> set[TopicPartition]:
    log = gateway.replicator._log
    assert isinstance(log, MemoryLog)
    return set(log._positions)


@pytest.mark.parametrize("damage", DAMAGES)
def test_without_last_markers_a_broken_generation_is_given_up_at_a_restart(
    served: Gateway, job: Job, newer: Job, damage: object, lines: pytest.LogCaptureFixture
) -> None:
    assert callable(damage)
    newer.publish()
    served.steps()
    damage(job)
    served.restart()
    seen = []
    for _ in range(30):
        served.steps(1)
        seen.append(generation(served))
    assert set(seen) == {0, 2}
    assert any(line.endswith("generation 1 is given up for the next one") for line in warnings(lines))
    assert served.store.store_ids() == {StoreId(served.state().store_id)}


def test_a_generation_that_breaks_before_it_is_live_again_is_given_up(
    served: Gateway, job: Job, newer: Job, lines: pytest.LogCaptureFixture
) -> None:
    job.put(range(20, 300))
    served.restart()
    newer.publish()
    served.store.changes_max = 1
    served.steps(20)
    assert served.state().manifest.generation == 1
    delete_topic(job)
    served.seconds(60)
    assert generation(served) == 2
    assert any(line.endswith("generation 1 is given up for the next one") for line in warnings(lines))


@pytest.mark.parametrize("both", [True, False])
def test_after_a_restart_the_old_generation_is_served_first(
    served: Gateway, job: Job, newer: Job, both: bool, lines: pytest.LogCaptureFixture
) -> None:
    """Whether the new one is stored too, or was told of while the gateway was away."""
    newer.mark_all({0: 10, 1: 10})
    if both:
        newer.publish()
        served.seconds(10)
    old_ids = served.store.store_ids()
    assert len(old_ids) == (2 if both else 1)
    job.put([7], count=777)
    if not both:
        newer.publish()
    for _ in range(3):
        served.restart()
        served.seconds(10)
        assert generation(served) == 1
        assert served.rows()[7] == 777
    assert served.store.store_ids() >= old_ids
    job.mark_all({0: 11, 1: 10}, final=True)
    served.restart()
    served.seconds(10)
    assert generation(served) == 1
    newer.mark_all({0: 11, 1: 10})
    served.restart()
    served.seconds(10)
    assert generation(served) == 2
    assert not warnings(lines)
    served.restart()
    served.seconds(10)
    assert generation(served) == 2


def test_a_gateway_without_rows_restores_the_newest_alone(gateway: Gateway, job: Job, newer: Job) -> None:
    job.publish().put(range(20))
    newer.publish()
    gateway.steps()
    assert generation(gateway) == 2
    assert gateway.store.store_ids() == {StoreId(gateway.state().store_id)}


def test_a_generation_that_nobody_was_answered_from_is_not_waited_for(gateway: Gateway, job: Job, newer: Job) -> None:
    gateway.store.changes_max = 5
    job.publish().put(range(2_000))
    gateway.steps(10)
    assert gateway.state().manifest.generation == 1
    newer.publish()
    gateway.steps(30)
    assert generation(gateway) == 2


def test_a_store_that_is_too_old_is_not_served_first(served: Gateway, job: Job, newer: Job) -> None:
    newer.publish()
    job.broker.is_up = False
    served.seconds(10)
    served.clock.passed_s += 86_400
    job.broker.is_up = True
    served.restart()
    served.seconds(10)
    assert generation(served) == 2


def test_rows_that_the_contract_no_longer_fits_are_not_served_first(
    served: Gateway, job: Job, newer: Job, lines: pytest.LogCaptureFixture
) -> None:
    state = served.state()
    state.manifest.contract_fingerprint = b"other"
    served.store.put_table("ratings", state)
    newer.publish()
    served.restart()
    served.seconds(10)
    assert generation(served) == 2
    assert any(line.endswith("what is stored of it is not served on") for line in warnings(lines))


@pytest.mark.parametrize("closed", [True, False])
def test_the_old_generation_is_served_on_while_the_new_topic_is_missing(
    served: Gateway, job: Job, newer: Job, closed: bool, lines: pytest.LogCaptureFixture
) -> None:
    job.mark_all({0: 10, 1: 10}, final=closed)
    newer.publish()
    delete_topic(newer)
    served.seconds(30)
    assert generation(served) == 1
    told = [line for line in warnings(lines) if "does not exist" in line]
    assert told == [
        (
            'table "ratings": changelog topic "ratings-g2-changelog" does not exist; start the table\'s job; '
            "generation 1 is served on"
        )
    ]
    third = Job(job.broker, generation=3).create()
    third.put(range(30))
    third.mark_all({0: 10, 1: 10})
    third.publish()
    job.mark_all({0: 10, 1: 10}, final=True)
    served.seconds(10)
    assert generation(served) == 3
    assert len(served.rows()) == 30


def test_with_both_topics_gone_and_no_last_marker_nothing_is_served(served: Gateway, job: Job, newer: Job) -> None:
    newer.publish()
    delete_topic(job)
    delete_topic(newer)
    served.seconds(20)
    assert generation(served) == 0
    assert served.state().problem.endswith("does not exist; start the table's job")
    third = Job(job.broker, generation=3).create()
    third.put(range(30))
    third.publish()
    served.seconds(10)
    assert generation(served) == 3


def test_third_generation_replaces_a_second_that_was_never_served(
    served: Gateway, job: Job, newer: Job, broker: MemoryBroker
) -> None:
    newer.publish()
    served.seconds(10)
    third = Job(broker, generation=3).create()
    third.put(range(5))
    third.publish()
    newer.mark_all({0: 10, 1: 10}, final=True)
    job.mark_all({0: 10, 1: 10}, final=True)
    served.seconds(10)
    assert generation(served) == 1
    third.mark_all({0: 10, 1: 10})
    served.steps()
    assert generation(served) == 3
    served.steps()
    assert served.store.store_ids() == {StoreId(served.state().store_id)}


def test_a_damaged_new_generation_is_built_again_beside(served: Gateway, job: Job, newer: Job) -> None:
    newer.publish()
    served.seconds(10)
    lose_the_last_records(newer)
    for _ in range(20):
        served.seconds(1)
        assert generation(served) == 1
    newer.put(range(60))
    newer.mark_all({0: 10, 1: 10})
    job.mark_all({0: 10, 1: 10}, final=True)
    served.seconds(10)
    assert generation(served) == 2
    assert len(served.rows()) == 60


def test_how_old_a_store_may_be_is_of_the_older_one(served: Gateway, newer: Job) -> None:
    newer.publish()
    served.seconds(20)
    table = served.replicator._tables["ratings"]
    assert table.serving is not None
    assert table.building is not None
    now_ms = served.clock.now_ms()
    assert now_ms - table.serving.caught_up_ms < 6_000
    assert now_ms - table.building.caught_up_ms < 6_000
    served.steps(2)
    table.serving.caught_up_ms -= 500_000
    served.steps(1)
    assert table.caught_up_ms == table.serving.caught_up_ms < table.building.caught_up_ms


def test_a_full_disk_in_the_middle_is_waited_for(served: Gateway, job: Job, newer: Job) -> None:
    served.full = True
    newer.mark_all({0: 10, 1: 10})
    newer.publish()
    job.mark_all({0: 10, 1: 10}, final=True)
    served.seconds(10)
    assert generation(served) == 1
    served.full = False
    served.seconds(10)
    assert generation(served) == 2


class Folding:
    """A job that counts the records of each movie, over sources that are lists of movies."""

    def __init__(self, job: Job, sources: list[list[int]]) -> None:
        self.job = job
        self.sources = sources
        self.taken = dict.fromkeys(range(len(sources)), 0)
        self.counts: Counter[int] = Counter()

    def work(self, source_partition: int, limit: int) -> None:
        start = self.taken[source_partition]
        for movie in self.sources[source_partition][start : start + limit]:
            self.counts[movie] += 1
            self.job.put([movie], count=self.counts[movie])
            self.taken[source_partition] += 1

    def mark(self, *, final: bool = False) -> None:
        self.job.mark_all(self.taken, final=final)


@pytest.mark.tools
@pytest.mark.parametrize("seed", seeds(150, in_check=8))
def test_no_count_goes_down_in_any_order(seed: int) -> None:
    """Jobs, a zombie, restarts, deleted topics in a random order; and at the end the new generation is served."""
    dice = random.Random(seed)
    clock = FakeClock()
    broker = MemoryBroker(clock.now_ms)
    broker.create("tables", 1)
    gateway = Gateway(broker, clock)
    sources: list[list[int]] = [[], []]
    old = Folding(Job(broker, generation=1).create(), sources)
    new = Folding(Job(broker, generation=2).create(), sources)
    old.job.publish()
    best: Counter[int] = Counter()
    published = closed = deleted = False

    def look() -> None:
        gateway.steps(dice.choice([1, 1, 2, 5]), pass_s=dice.choice([0.01, 0.5, 3]))
        if gateway.is_served():
            rows = gateway.rows()
            down = {movie: (count, rows.get(movie, 0)) for movie, count in best.items() if rows.get(movie, 0) < count}
            assert not down, f"generation {generation(gateway)}: {down}"
            best.update({movie: count - best[movie] for movie, count in rows.items()})

    for _ in range(120):
        match dice.randrange(11):
            case 0 | 1:
                sources[dice.randrange(2)].append(dice.randrange(6))
            case 2 | 3 if not deleted:
                old.work(dice.randrange(2), 3)  # after its last markers, it is a zombie
            case 4 if not closed:
                old.mark()
            case 5 | 6:
                new.work(dice.randrange(2), 4)
            case 7:
                new.mark()
            case 8 if not published and dice.random() < 0.3:
                published = bool(new.job.publish())
            case 9 if not closed and dice.random() < 0.2:
                closed = True
                old.mark(final=True)
            case 10 if dice.random() < 0.3:
                gateway.restart()
            case 8 if closed and not deleted and dice.random() < 0.2 and _has_the_end(gateway):
                deleted = True
                broker.delete(old.job.topic)
        look()
    if not closed:
        old.mark(final=True)
    if not published:
        new.job.publish()
    for source_partition in range(2):
        new.work(source_partition, 1_000)
    new.mark()
    for _ in range(40):
        look()
    assert generation(gateway) == 2
    assert gateway.rows() == {movie: count for movie, count in new.counts.items() if count}


def _has_the_end(gateway: Gateway) -> bool:
    """Return whether the gateway has the last markers of what it serves: a topic is deleted long after them."""
    state = gateway.state()
    return state.manifest.generation == 1 and all(gateway.position(number).is_final for number in range(PARTITIONS))


def test_partitions_of_the_simulation_are_both_used() -> None:
    assert {ratings().partition_of(key_of(movie), PARTITIONS) for movie in range(6)} == {0, 1}
