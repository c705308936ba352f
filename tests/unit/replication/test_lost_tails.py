"""A changelog that loses its tail and grows again: the same offsets are other records."""

from collections.abc import Iterable

import pytest

from tablegate.gateway.contract.types import Offset
from tablegate.gateway.query.errors import TableRebuilt
from tests.kit.call.asker import Asker
from tests.kit.call.subscribing import Copy
from tests.kit.replication.memory_log import MemoryBroker, source
from tests.kit.replication.replicator import Gateway, Job

LOST, GROWN = range(100, 120), range(200, 260)


def _lose_tail(job: Job, offsets: Iterable[Offset], grown: Iterable[int]) -> None:
    """Lose what is at and behind these offsets, by partition, and write other rows there."""
    for partition, offset in enumerate(offsets):
        job.broker.truncate_from(job.source(partition), offset)
    job.put(grown)


def _ends(job: Job) -> tuple[Offset, ...]:
    facts = job.broker.facts(job.topic)
    assert facts is not None
    return facts.end_offsets


def _restart_behind_another_tail(gateway: Gateway, job: Job) -> None:
    """Restart a gateway whose changelog ends where its store does, and has other records of movies 1 to 3 there."""
    job.publish().put(range(20))
    ends = _ends(job)
    job.put([1, 2, 3], count=500)
    gateway.steps()
    _lose_tail(job, ends, [])
    job.put([1, 2, 3], count=400)
    gateway.restart()


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("grown", [GROWN, range(200, 220), range(200, 202)])
def test_a_tail_that_grew_again_is_noticed(gateway: Gateway, job: Job, running: bool, grown: range) -> None:
    job.publish().put(range(20))
    ends = _ends(job)
    job.put(LOST)
    gateway.steps()
    assert gateway.rows().keys() == {*range(20), *LOST}
    _lose_tail(job, ends, grown)
    if not running:
        gateway.restart()
    for _ in range(40):
        gateway.steps(1, pass_s=0.5)
        # One moment may pass until a running gateway hears of it; one that starts asks before it answers.
        assert running or not gateway.is_served() or gateway.rows().keys().isdisjoint(LOST)
    assert gateway.is_served()
    assert gateway.rows().keys() == {*range(20), *grown}


def test_a_tail_that_grew_to_the_same_offset_is_noticed(gateway: Gateway, job: Job) -> None:
    _restart_behind_another_tail(gateway, job)
    gateway.seconds(20)
    assert {gateway.rows()[movie_id] for movie_id in (1, 2, 3)} == {400}


def test_rows_of_a_lost_tail_are_answered_at_no_moment_of_a_start(gateway: Gateway, job: Job) -> None:
    """Only the last record says that the changelog is another one."""
    _restart_behind_another_tail(gateway, job)
    for _ in range(40):
        gateway.steps(1, pass_s=0.5)
        assert not gateway.is_served() or {gateway.rows()[movie_id] for movie_id in (1, 2, 3)} == {400}
    assert gateway.is_served()


def test_leaders_that_change_without_a_loss_cost_no_restore(gateway: Gateway, job: Job) -> None:
    job.publish().put(range(20))
    gateway.steps()
    store_id = gateway.state().store_id
    for running in (True, False, False):
        for partition in range(2):
            job.broker.elect(job.source(partition))
        if not running:
            gateway.restart()
            job.put(range(30, 40))
        gateway.seconds(7)
        assert gateway.is_served()
    assert gateway.state().store_id == store_id
    assert gateway.rows().keys() == {*range(20), *range(30, 40)}


def test_a_compacted_end_costs_no_restore_while_its_leader_stays(gateway: Gateway, job: Job) -> None:
    job.publish().put(range(20))
    job.put(range(5), delete=True)
    gateway.steps()
    store_id = gateway.state().store_id
    for partition in range(2):
        job.broker.compact(job.source(partition), tombstones=True)
    gateway.restart()
    gateway.steps()
    assert gateway.is_served()
    assert gateway.state().store_id == store_id


def _asker(gateway: Gateway) -> Asker:
    return Asker(gateway.catalogue, gateway.store, "/examples.ratings.v1.RatingsService", gateway.clock.now_ms)


def _restored(broker: MemoryBroker, gateway: Gateway, *, is_other: bool) -> Asker:
    """Return who asks the gateway that saw the loss; or another one, which never saw the records that were lost."""
    if is_other:
        gateway = Gateway(broker, gateway.clock)
    gateway.seconds(20)
    assert gateway.is_served()
    return _asker(gateway)


@pytest.mark.parametrize("is_other", [False, True])
def test_a_consistency_token_of_lost_records_is_refused(
    broker: MemoryBroker, gateway: Gateway, job: Job, is_other: bool
) -> None:
    job.publish().put(range(20))
    gateway.steps()
    ends, before = _ends(job), _asker(gateway).ask("GetRating", movie_id=1).read_info.consistency_token
    job.put(LOST)
    gateway.steps()
    lost = _asker(gateway).ask("GetRating", movie_id=1).read_info.consistency_token
    _lose_tail(job, ends, GROWN)
    asker = _restored(broker, gateway, is_other=is_other)
    with pytest.raises(TableRebuilt, match="lost records that the token's answer had; start over without it"):
        asker.ask("GetRating", movie_id=1, read_options={"at_least": lost})
    assert asker.ask("GetRating", movie_id=1, read_options={"at_least": before}).rating.movie_id == 1
    now = asker.ask("GetRating", movie_id=1).read_info.consistency_token
    assert asker.ask("GetRating", movie_id=1, read_options={"at_least": now}).rating.movie_id == 1


@pytest.mark.parametrize("is_other", [False, True])
def test_a_walk_that_has_read_lost_records_is_refused(
    broker: MemoryBroker, gateway: Gateway, job: Job, is_other: bool
) -> None:
    """Pages and scans: a walk of before the loss goes on, as what it has read is still there."""
    job.publish().put(range(20))
    gateway.steps()
    ends = _ends(job)
    before = _begun_walks(_asker(gateway))
    job.put(LOST)
    gateway.steps()
    lost = _begun_walks(_asker(gateway))
    _lose_tail(job, ends, GROWN)
    asker = _restored(broker, gateway, is_other=is_other)
    with pytest.raises(TableRebuilt, match="lost records that the token's answer had; start over without it"):
        asker.ask("ListRatings", page_token=lost[0])
    with pytest.raises(TableRebuilt, match="lost records that the token's answer had; start over without it"):
        asker.stream("ScanRatings", scan_options={"resume_token": lost[1]})
    assert asker.ask("ListRatings", page_token=before[0]).ratings
    assert asker.stream("ScanRatings", scan_options={"resume_token": before[1]})


def _begun_walks(asker: Asker) -> tuple[str, str]:
    """Return the tokens with which a walk over pages, and a scan, that were begun go on."""
    page = asker.ask("ListRatings", page_size=5)
    [message] = asker.stream("ScanRatings", most=1)
    return page.next_page_token, message.progress.resume_token


@pytest.mark.parametrize("is_other", [False, True])
@pytest.mark.parametrize("saw_lost", [False, True])
def test_a_resume_token_of_lost_records_begins_anew(
    broker: MemoryBroker, gateway: Gateway, job: Job, is_other: bool, saw_lost: bool
) -> None:
    job.publish().put(range(20))
    gateway.steps()
    ends, copy = _ends(job), Copy()
    if saw_lost:
        job.put(LOST)
        gateway.steps()
    for message in _asker(gateway).stream("SubscribeRatings", most=2):
        copy.take(message)
    _lose_tail(job, ends, GROWN)
    asker = _restored(broker, gateway, is_other=is_other)
    resets = copy.resets
    for message in asker.stream("SubscribeRatings", most=1 + saw_lost, subscribe_options={"resume_token": copy.token}):
        copy.take(message)
    assert copy.resets == resets + saw_lost
    assert copy.rows.keys() == {*range(20), *GROWN}


def test_manifests_that_were_lost_are_read_anew(broker: MemoryBroker, gateway: Gateway, job: Job) -> None:
    job.publish().put(range(5))
    job.mark_all({0: 5, 1: 5}, final=True)
    gateway.steps()
    broker.truncate_from(source("tables", 0), Offset(0))
    newer = Job(broker, generation=2).create()
    newer.put(range(7))
    newer.mark_all({0: 7, 1: 7})
    newer.publish()
    gateway.seconds(12)
    assert gateway.state().manifest.generation == 2
    assert gateway.rows().keys() == set(range(7))
