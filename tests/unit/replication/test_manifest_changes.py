"""A manifest that says otherwise of where rows are, without a new generation: refused, and said as an error."""

import logging
from collections.abc import Callable

import pytest

from tablegate.gateway.contract.types import StoreId
from tablegate.gateway.query.errors import PartitionUnavailable, RowNotFound
from tablegate.gateway.replication.manifests import ManifestSequence
from tablegate.gateway.replication.stored import newest_name
from tablegate.v1 import options_pb2
from tablegate.v1.changelog_pb2 import Manifest
from tests.kit.call.asker import Asker
from tests.kit.replication.memory_log import MemoryBroker, source
from tests.kit.replication.replicator import PARTITIONS, Gateway, Job

Change = Callable[[Manifest], None]


def set_field(name: str, value: object) -> Change:
    return lambda manifest: setattr(manifest, name, value)


def rename_key(manifest: Manifest) -> None:
    manifest.key[0].name = "film_id"


def lengthen_key(manifest: Manifest) -> None:
    manifest.key.add(name="user_id", type=manifest.key[0].type)


CHANGES: list[tuple[Change, str]] = [
    (set_field("changelog_topic", "other"), 'changelog topic, "other" for "ratings-g1-changelog"'),
    (set_field("changelog_topic_id", "new"), "topic id, new for topic-2: its changelog was made anew"),
    (set_field("partition_count", 3), "partition count, 3 for 2"),
    (set_field("partitioner", options_pb2.PARTITIONER_CRC32), "partitioner, CRC32 for MURMUR2"),
    (set_field("partition_by_count", 0), "partitioning, by 0 key columns for 1"),
    (rename_key, "key, (film_id INT64) for (movie_id INT64)"),
    (lengthen_key, "key, (movie_id INT64, user_id INT64) for (movie_id INT64)"),
    (set_field("contract_fingerprint", b"othr"), "fingerprint, 6f746872 for "),
]
changed = pytest.mark.parametrize(("change", "words"), CHANGES, ids=[words.split(",")[0] for _, words in CHANGES])


@pytest.fixture
def served(gateway: Gateway, job: Job) -> Gateway:
    """A gateway that serves generation 1: the movies 0 to 9."""
    job.publish().put(range(10))
    gateway.steps()
    assert gateway.is_served()
    return gateway


def changed_manifest(job: Job, change: Change) -> Manifest:
    manifest = job.manifest()
    change(manifest)
    return manifest


def anew(job: Job, generation: int = 1) -> Job:
    """Make a generation's changelog anew; return the job that keeps it."""
    return Job(job.broker, generation=generation).create()


def remove_manifest(broker: MemoryBroker) -> None:
    broker.append(source("tables", 0), b"ratings", None)


def errors(lines: pytest.LogCaptureFixture) -> list[str]:
    return [line.getMessage() for line in lines.records if line.levelno >= logging.ERROR]


def asker(gateway: Gateway) -> Asker:
    return Asker(gateway.catalogue, gateway.store, "/examples.ratings.v1.RatingsService", gateway.clock.now_ms)


# Which manifests may follow each other.


@changed
def test_what_places_rows_stays_within_a_generation(job: Job, change: Change, words: str) -> None:
    good, wrong = job.manifest(), changed_manifest(job, change)
    succession = ManifestSequence(None)
    assert succession.breach_of(good) is None
    succession.accept(good)
    told = succession.breach_of(wrong)
    assert told is not None
    assert told.startswith(f'table "ratings": manifest of generation 1 was replaced by one with another {words}')
    assert told.endswith("; build the table's next generation with tablegate job rebuild")
    assert "\n" not in told
    assert succession.breach_of(good) is None
    wrong.generation = 2
    assert succession.breach_of(wrong) is None


def test_schemas_sources_and_mode_may_change(job: Job) -> None:
    later = job.manifest(mode=1, declared_generation=1)
    later.value_schemas[2] = "{}"
    later.sources.add(topic="more", partition_count=1)
    assert ManifestSequence(job.manifest()).breach_of(later) is None


def test_one_topic_id_in_two_spellings_is_no_change(job: Job) -> None:
    java, librdkafka = (job.manifest(changelog_topic_id=spelled) for spelled in ("a+b/", "a-b_"))
    assert ManifestSequence(java).breach_of(librdkafka) is None


@changed
def test_after_a_removal_anything_may_follow(job: Job, change: Change, words: str) -> None:
    succession = ManifestSequence(job.manifest())
    again = changed_manifest(job, change)
    succession.end()
    assert succession.breach_of(again) is None
    succession.accept(again)
    assert succession.breach_of(job.manifest()) is not None


def test_an_older_manifest_says_nothing_of_the_newest_generation(job: Job) -> None:
    newest = job.manifest(generation=2)
    succession = ManifestSequence(newest)
    older = job.manifest(changelog_topic_id="old")
    assert succession.breach_of(older) is None
    succession.accept(older)
    assert succession.breach_of(newest) is None
    assert succession.breach_of(job.manifest(generation=2, changelog_topic_id="new")) is not None


# What a gateway does.


@changed
@pytest.mark.parametrize("restart", [True, False])
def test_a_changed_manifest_is_refused_and_alarmed(
    served: Gateway, job: Job, change: Change, words: str, restart: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether the gateway was there when it came, or finds it after a restart."""
    old_id, rows = served.state().store_id, served.rows()
    job.publish(changed_manifest(job, change))
    if restart:
        served.restart()
    served.seconds(10)
    assert not served.is_served()
    assert not served.table_status().serving
    assert words in served.table_status().problem
    assert served.state().problem == served.table_status().problem
    assert errors(caplog) == [served.table_status().problem]
    served.restart()
    served.seconds(10)
    assert not served.is_served()
    job.publish()
    served.seconds(10)
    assert served.is_served()
    assert served.table_status().problem == ""
    assert (served.state().store_id, served.rows()) == (old_id, rows)


@changed
def test_nobody_hears_not_found_while_a_changed_manifest_stands(
    served: Gateway, job: Job, change: Change, words: str
) -> None:
    ask = asker(served).ask
    assert ask("GetRating", movie_id=3).rating.rating_count == 4
    with pytest.raises(RowNotFound):
        ask("GetRating", movie_id=77)
    job.publish(changed_manifest(job, change))
    served.steps(1)
    for _ in range(20):
        served.steps(1, pass_s=0.5)
        for movie_id in (3, 77):
            with pytest.raises(PartitionUnavailable) as caught:
                ask("GetRating", movie_id=movie_id)
            assert words in str(caught.value)


@changed
def test_a_contract_that_changed_along_does_not_make_it_good(
    served: Gateway, job: Job, change: Change, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The store has what another contract placed, and the gateway has the newer one, which agrees with the job's."""
    state = served.state()
    change(state.manifest)
    for name in ("ratings", newest_name("ratings")):
        served.store.put_table(name, state)
    served.restart()
    served.seconds(10)
    assert not served.is_served()
    assert len(errors(caplog)) == 1
    newer = anew(job, generation=2)
    newer.put(range(5))
    newer.publish()
    served.seconds(10)
    assert served.is_served()
    assert set(served.rows()) == set(range(5))
    assert served.state().store_id != state.store_id


@pytest.mark.parametrize("restart", [True, False])
def test_a_manifest_that_nobody_could_follow_holds_no_later_one(gateway: Gateway, job: Job, restart: bool) -> None:
    """A job of another contract came first."""
    job.publish(changed_manifest(job, rename_key)).put(range(10))
    gateway.seconds(10)
    assert "the contract (movie_id INT64)" in gateway.table_status().problem
    job.publish()
    if restart:
        gateway.restart()
    gateway.seconds(10)
    assert gateway.is_served()
    assert set(gateway.rows()) == set(range(10))


@pytest.mark.parametrize("restarts", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("records", [0, 10, 40])
def test_a_changelog_made_anew_is_not_served_without_a_new_generation(
    served: Gateway, job: Job, records: int, restarts: tuple[bool, bool], caplog: pytest.LogCaptureFixture
) -> None:
    """Whether its offsets end below what was applied, there, or beyond; and before the new manifest is seen, or not."""
    other = anew(job)
    other.put(range(100, 100 + records))
    for told, restart in zip((False, True), restarts, strict=True):
        if told:
            other.publish()
            job.broker.compact(source("tables", 0))
        if restart:
            served.restart()
        served.seconds(10)
        assert not served.is_served()
        assert "was made anew" in served.table_status().problem
    assert "topic id, topic-3 for topic-2" in served.table_status().problem
    assert errors(caplog) == [served.table_status().problem]


@pytest.mark.parametrize("away", [True, False])
def test_a_table_that_was_given_up_begins_anew(
    served: Gateway, job: Job, away: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its manifest was removed, which the gateway may see with the next one only, or after a restart."""
    old_id = served.state().store_id
    remove_manifest(job.broker)
    other = anew(job)
    other.put(range(100, 105))
    other.publish()
    other.publish()
    if away:
        served.restart()
    served.seconds(10)
    assert served.is_served()
    assert set(served.rows()) == set(range(100, 105))
    assert served.state().store_id != old_id
    assert served.store.store_ids() == {StoreId(served.state().store_id)}
    assert not errors(caplog)


def test_a_table_that_was_given_up_in_another_layout_is_restored(served: Gateway, job: Job) -> None:
    """Its changelog topic stayed: what is stored lies where the old manifest said."""
    state = served.state()
    state.manifest.partitioner = options_pb2.PARTITIONER_CRC32
    served.store.put_table("ratings", state)
    remove_manifest(job.broker)
    job.publish()
    served.restart()
    served.seconds(10)
    assert served.is_served()
    assert set(served.rows()) == set(range(10))
    assert served.state().store_id != state.store_id


def test_a_change_after_a_table_was_given_up_is_refused(served: Gateway, job: Job) -> None:
    """All that a gateway sees at once when it comes back: removed, published anew, and changed."""
    remove_manifest(job.broker)
    anew(job).publish()
    anew(job).publish()
    served.restart()
    served.seconds(10)
    assert not served.is_served()
    assert "topic id, topic-4 for topic-3" in served.table_status().problem


@changed
@pytest.mark.parametrize("restart", [True, False])
def test_beside_a_generation_that_changed_the_older_one_is_served_on(
    served: Gateway, job: Job, change: Change, words: str, restart: bool, caplog: pytest.LogCaptureFixture
) -> None:
    newer = anew(job, generation=2)
    newer.put(range(50))
    newer.publish()
    served.seconds(10)
    newer.mark_all({})
    serving = served.replicator._tables["ratings"].serving
    newer.publish(changed_manifest(newer, change))
    job.put([7], count=777)
    job.mark_all({}, final=True)
    for _ in range(3):
        if restart:
            served.restart()
        served.seconds(10)
        assert served.is_served()
        assert served.state().manifest.generation == 1
        assert served.rows()[7] == 777
        assert served.store.store_ids() == {StoreId(served.state().store_id)}
    assert restart or served.replicator._tables["ratings"].serving is serving
    assert len(errors(caplog)) >= 1
    assert all(line.endswith("; generation 1 is served on") for line in errors(caplog))
    third = anew(job, generation=3)
    third.put(range(5))
    third.publish()
    served.seconds(10)
    assert served.is_served()
    assert served.state().manifest.generation == 3


def test_partitions_added_to_a_changelog_are_refused(served: Gateway, job: Job) -> None:
    wider = Job(job.broker, partitions=PARTITIONS + 1)
    topics = job.broker._topics
    topic_id = topics[job.topic].topic_id
    wider.create()
    topics[job.topic].topic_id = wider.topic_id = topic_id
    served.seconds(10)
    assert "has 3 partitions, its manifest says 2" in served.table_status().problem
    wider.publish()
    served.seconds(10)
    assert "partition count, 3 for 2" in served.table_status().problem
    assert not served.is_served()
