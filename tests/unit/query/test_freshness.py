import asyncio
import time
from typing import Any

import pytest
from google.rpc import code_pb2

from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.errors import (
    DeadlineExceeded,
    FutureOffset,
    InvalidConsistencyToken,
    InvalidField,
    NotCaughtUp,
    RowNotFound,
    TableRebuilt,
    UntrackedSource,
    code_of,
)
from tests.kit.call.asker import Ratings, Shop, make_ratings
from tests.kit.table.filled import LocalCall, now_ms, rating


def _request(ratings: Ratings, max_wait_ms: int | None = 30, **options: Any) -> Any:
    request = ratings.asker.request("GetRating", movie_id=1)
    for name, value in options.items():
        setattr(request.read_options, name, value)
    if max_wait_ms is not None:
        request.read_options.max_wait.FromMilliseconds(max_wait_ms)
    return request


def _source(ratings: Ratings, offsets: dict[int, int], topic: str = "ratings") -> Any:
    request = _request(ratings)
    entry = request.read_options.at_least_source.topics.add(topic=topic)
    for partition, offset in offsets.items():
        entry.offsets[partition] = offset
    return request


def test_at_least_is_met_by_the_answer_that_gave_the_token(ratings: Ratings) -> None:
    ratings.table.put([rating(1)])
    token = ratings.ask("GetRating", movie_id=1).read_info.consistency_token
    assert ratings.ask("GetRating", _request(ratings, at_least=token)).rating.movie_id == 1
    page = ratings.ask("ListRatings").read_info.consistency_token
    assert ratings.ask("GetRating", _request(ratings, at_least=page)).rating.movie_id == 1


def test_a_read_waits_for_what_the_token_saw(ratings: Ratings) -> None:
    """The same token, asked of a replica that is behind, which then catches up."""
    behind = make_ratings()
    ratings.table.put([rating(1)])
    token = ratings.ask("GetRating", movie_id=1).read_info.consistency_token
    with pytest.raises(NotCaughtUp, match="not applied"):
        behind.ask("GetRating", _request(behind, at_least=token))

    async def catch_up() -> Any:
        asking = asyncio.create_task(behind.asker.ask_async("GetRating", _request(behind, 10_000, at_least=token)))
        await asyncio.sleep(0.05)
        assert not asking.done()
        behind.table.put([rating(1)])
        return await asking

    assert asyncio.run(catch_up()).rating.movie_id == 1


def test_a_token_asks_each_partition_for_its_own_offset(ratings: Ratings) -> None:
    """It is of partitions 1 and 2, and says nothing of partition 0."""
    behind = make_ratings()
    ids: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for movie_id in range(100):
        ids[ratings.table.table.partition_of(ratings.table.key_of(rating(movie_id)), 3)].append(movie_id)
    ratings.table.put(rating(movie_id) for movie_id in [ids[1][0], *ids[2][:3]])
    behind.table.put(rating(movie_id) for movie_id in [ids[1][0], *ids[2][:2]])
    both = ratings.asker.request("BatchGetRatings")
    for partition in (1, 2):
        both.keys.add(movie_id=ids[partition][0])
    request = _request(behind, at_least=ratings.ask("BatchGetRatings", both).read_info.consistency_token)
    request.movie_id = ids[1][0]
    assert behind.ask("GetRating", request).rating.movie_id == ids[1][0]
    request.movie_id = ids[2][0]
    with pytest.raises(NotCaughtUp, match="not applied"):
        behind.ask("GetRating", request)
    request.movie_id = ids[0][0]
    with pytest.raises(RowNotFound):
        behind.ask("GetRating", request)


def test_an_answer_of_several_partitions_is_as_old_as_the_oldest(ratings: Ratings) -> None:
    for partition, seconds in zip(ratings.table.next_offsets, (30, 10, 20), strict=True):
        ratings.table.move(partition, as_of_ms=seconds * 1_000)
    assert ratings.ask("ListRatings").read_info.as_of_time.seconds == 10
    assert ratings.asker.stream("ScanRatings")[-1].progress.read_info.as_of_time.seconds == 10


def test_a_gateway_that_goes_does_not_wait(ratings: Ratings, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(_seconds: float) -> None:
        raise AssertionError("waits")

    monkeypatch.setattr(asyncio, "sleep", wait)
    ratings.table.put([rating(1)])
    behind = make_ratings()
    token = ratings.ask("GetRating", movie_id=1).read_info.consistency_token
    with pytest.raises(NotCaughtUp):
        behind.ask("GetRating", _request(behind, None, at_least=token), LocalCall(draining=True))


def test_the_wait_is_half_of_the_time_left(ratings: Ratings) -> None:
    ratings.table.put([rating(1)])
    behind = make_ratings()
    token = ratings.ask("GetRating", movie_id=1).read_info.consistency_token
    started = time.monotonic()
    with pytest.raises(NotCaughtUp):
        behind.ask("GetRating", _request(behind, None, at_least=token), LocalCall(0.2))
    assert time.monotonic() - started > 0.09  # and not to the deadline, which would be another error
    with pytest.raises(DeadlineExceeded):
        behind.ask("GetRating", _request(behind, 500, at_least=token), LocalCall(0.05))


def test_tokens_that_do_not_belong_are_refused(ratings: Ratings, shop: Shop) -> None:
    ratings.table.put([rating(number) for number in range(60)])
    page = ratings.ask("ListRatings")
    for text in ("", "junk", page.next_page_token, page.read_info.consistency_token[:-4]):
        with pytest.raises(InvalidConsistencyToken):
            ratings.ask("GetRating", _request(ratings, at_least=text))
    ratings.table.generation = 2
    ratings.table.publish()
    with pytest.raises(TableRebuilt):
        ratings.ask("GetRating", _request(ratings, at_least=page.read_info.consistency_token))
    ratings.table.generation = 0
    ratings.table.publish()
    with pytest.raises(NotCaughtUp, match="newer generation"):
        ratings.ask("GetRating", _request(ratings, at_least=page.read_info.consistency_token))


def test_read_your_writes(ratings: Ratings) -> None:
    ratings.table.put([rating(1)])
    with pytest.raises(NotCaughtUp, match="source offset"):
        ratings.ask("GetRating", _source(ratings, {0: 7}))
    for partition in ratings.table.next_offsets:
        ratings.table.move(partition, source_offsets={("ratings", 0): 8, ("ratings", 1): 0})
    assert ratings.ask("GetRating", _source(ratings, {0: 7})).rating.movie_id == 1
    with pytest.raises(NotCaughtUp):
        ratings.ask("GetRating", _source(ratings, {0: 7, 1: 0}))
    with pytest.raises(NotCaughtUp):
        ratings.ask("GetRating", _source(ratings, {0: 8}))


def test_sources_that_are_not_read_are_refused(ratings: Ratings) -> None:
    with pytest.raises(UntrackedSource, match='"clicks"'):
        ratings.ask("GetRating", _source(ratings, {0: 1}, topic="clicks"))
    with pytest.raises(UntrackedSource, match="no partition 2"):
        ratings.ask("GetRating", _source(ratings, {2: 1}))
    with pytest.raises(InvalidField, match="negative"):
        ratings.ask("GetRating", _source(ratings, {0: -1}))
    with pytest.raises(InvalidField, match="no offset"):
        ratings.ask("GetRating", _source(ratings, {}))


def test_a_topic_that_is_not_read_is_refused_before_kafka_is_asked(ratings: Ratings) -> None:
    """Be there another offset to wait for as well, or a row that has it."""
    ratings.table.keyed = True
    ratings.table.publish()
    ratings.table.put([rating(1), rating(2)])
    for wanted in ({0: 1}, {0: 100}):
        request = _source(ratings, wanted)
        request.read_options.max_wait.seconds = 2
        request.read_options.at_least_source.topics.add(topic="secrets").offsets[0] = 0
        with pytest.raises(
            UntrackedSource, match=r'field "read_options\.at_least_source\.topics\.topic".*"secrets"'
        ) as raised:
            ratings.ask("GetRating", request)
        assert code_of(raised.value) == code_pb2.INVALID_ARGUMENT
    with pytest.raises(InvalidField, match=r"topics\.topic.*249 characters"):
        ratings.ask("GetRating", _source(ratings, {0: 0}, topic="t" * 100_000))
    assert not ratings.asker.ends.asked


def test_of_two_offsets_of_a_partition_the_higher_counts(ratings: Ratings) -> None:
    ratings.table.put([rating(1)])
    for partition in ratings.table.next_offsets:
        ratings.table.move(partition, source_offsets={("ratings", 0): 8})
    for offsets in ((7, 8), (8, 7)):
        request = _source(ratings, {})
        del request.read_options.at_least_source.topics[:]
        for offset in offsets:
            request.read_options.at_least_source.topics.add(topic="ratings").offsets[0] = offset
        with pytest.raises(NotCaughtUp):
            ratings.ask("GetRating", request)


def test_staleness_is_never_hidden() -> None:
    clock = [now_ms()]
    ratings = make_ratings(1, now_ms=lambda: clock[0])
    ratings.table.put([rating(1)])
    ratings.table.move(Partition(0), as_of_ms=clock[0])
    ratings.asker.ends.offsets = _ends(ratings)
    request = _request(ratings, 10)
    request.read_options.max_staleness.seconds = 1
    clock[0] += 900
    assert ratings.ask("GetRating", request).rating.movie_id == 1
    clock[0] += 200
    with pytest.raises(NotCaughtUp, match="s old"):
        ratings.ask("GetRating", request)
    assert ratings.ask("GetRating", movie_id=1).rating.movie_id == 1


def _ends(ratings: Ratings) -> dict[str, dict[int, int]]:
    return {CHANGELOG: {int(partition): offset for partition, offset in ratings.table.next_offsets.items()}}


def _fresh(ratings: Ratings, seconds: float, max_wait_ms: int = 30) -> Any:
    request = _request(ratings, max_wait_ms)
    request.read_options.max_staleness.FromMilliseconds(round(seconds * 1_000))
    return request


@pytest.mark.parametrize("behind_s", [0, 61, 7_200])
def test_a_clock_that_is_behind_makes_nothing_fresh(behind_s: float) -> None:
    """Its own clock says that the row is of this moment; but the changelog has had another one since."""
    ratings = make_ratings(1, now_ms=lambda: now_ms() - round(behind_s * 1_000))
    ratings.table.put([rating(1)])
    ratings.table.move(Partition(0), as_of_ms=now_ms())
    ratings.asker.ends.offsets = {CHANGELOG: {0: ratings.table.next_offsets[Partition(0)] + 1}}
    with pytest.raises(NotCaughtUp, match="its changelog has more"):
        ratings.ask("GetRating", _fresh(ratings, 3_600))
    ratings.asker.ends.offsets = None
    behind = make_ratings(1, now_ms=lambda: now_ms() - round(behind_s * 1_000))
    behind.table.put([rating(1)])
    behind.asker.ends.offsets = None
    with pytest.raises(NotCaughtUp, match="Kafka does not answer"):
        behind.ask("GetRating", _fresh(behind, 3_600))


def test_kafka_is_asked_no_more_often_than_the_age_that_is_asked_for() -> None:
    clock = now_ms()
    ratings = make_ratings(1, now_ms=lambda: clock)
    ratings.table.put([rating(1)])
    ratings.table.move(Partition(0), as_of_ms=clock)
    ratings.asker.ends.offsets = _ends(ratings)
    for max_wait_ms in (30, 0, 0):
        assert ratings.ask("GetRating", _fresh(ratings, 3_600, max_wait_ms)).rating.movie_id == 1
    assert ratings.asker.ends.asked == 1
    with pytest.raises(NotCaughtUp, match="Kafka was asked"):
        ratings.ask("GetRating", _fresh(ratings, 0))
    asked = ratings.asker.ends.asked
    assert asked > 1
    ratings.asker.ends.offsets = None  # what was proved stays so for as long
    assert ratings.ask("GetRating", _fresh(ratings, 3_600)).rating.movie_id == 1
    assert ratings.asker.ends.asked == asked


def test_who_does_not_wait_for_rows_may_still_have_kafka_asked() -> None:
    ratings = make_ratings(1)
    ratings.table.put([rating(1)])
    ratings.table.move(Partition(0), as_of_ms=now_ms())
    ratings.asker.ends.offsets = _ends(ratings)
    assert ratings.ask("GetRating", _fresh(ratings, 3_600, 0)).rating.movie_id == 1


def test_a_read_waits_for_what_the_changelog_had() -> None:
    ratings = make_ratings(1)
    ratings.table.put([rating(1, count=1)])
    ratings.table.move(Partition(0), as_of_ms=now_ms())
    ratings.asker.ends.offsets = {CHANGELOG: {0: ratings.table.next_offsets[Partition(0)] + 1}}

    async def catch_up() -> Any:
        asking = asyncio.create_task(ratings.asker.ask_async("GetRating", _fresh(ratings, 60, 10_000)))
        await asyncio.sleep(0.05)
        assert not asking.done()
        ratings.table.put([rating(1, count=2)])
        ratings.table.move(Partition(0), as_of_ms=now_ms())
        ratings.asker.bell.notify()
        return await asking

    assert asyncio.run(catch_up()).rating.rating_count == 2


def test_ends_of_another_generation_prove_nothing() -> None:
    ratings = make_ratings(1)
    ratings.table.put([rating(1)])
    ratings.table.move(Partition(0), as_of_ms=now_ms())
    ratings.asker.ends.offsets = _ends(ratings)
    assert ratings.ask("GetRating", _fresh(ratings, 3_600)).rating.movie_id == 1
    ratings.asker.ends.offsets = None
    ratings.table.generation = 2
    ratings.table.publish()
    ratings.table.move(Partition(0), as_of_ms=now_ms())
    with pytest.raises(NotCaughtUp, match="Kafka does not answer"):
        ratings.ask("GetRating", _fresh(ratings, 3_600))


def test_odd_options_are_refused(ratings: Ratings) -> None:
    ratings.table.put([rating(1)])
    for name in ("latest", "minimize_latency"):
        with pytest.raises(InvalidField, match=f"read_options.{name}"):
            ratings.ask("GetRating", _request(ratings, **{name: False}))
    assert ratings.ask("GetRating", _request(ratings, minimize_latency=True)).rating.movie_id == 1
    request = _request(ratings)
    request.read_options.max_staleness.seconds = -1
    with pytest.raises(InvalidField, match=r"read_options\.max_staleness"):
        ratings.ask("GetRating", request)
    request = _request(ratings)
    request.read_options.max_wait.seconds = -1
    with pytest.raises(InvalidField, match=r"read_options\.max_wait"):
        ratings.ask("GetRating", request)


def test_every_query_waits(ratings: Ratings) -> None:
    """BatchGet, Range and Scan check every partition that they read."""
    ahead = make_ratings()
    ahead.table.put(rating(number) for number in range(20))
    token = ahead.ask("ListRatings").read_info.consistency_token
    for method in ("BatchGetRatings", "ListRatings", "ScanRatings"):
        request = ratings.asker.request(method)
        request.read_options.at_least = token
        request.read_options.max_wait.nanos = 1_000_000
        if method == "BatchGetRatings":
            request.keys.add(movie_id=1)
        ask = ratings.asker.stream if method == "ScanRatings" else ratings.ask
        with pytest.raises(NotCaughtUp):
            ask(method, request)


CHANGELOG = "ratings-g1-changelog"


def test_latest_is_what_the_changelog_had_when_the_call_arrived(ratings: Ratings) -> None:
    ratings.table.put([rating(movie_id, count=1) for movie_id in range(10)])
    at = {int(partition): offset for partition, offset in ratings.table.next_offsets.items()}
    ratings.asker.ends.offsets = {CHANGELOG: at}
    assert ratings.ask("GetRating", _request(ratings, latest=True)).rating.movie_id == 1
    assert len(ratings.ask("ListRatings", read_options={"latest": True}).ratings) == 10
    assert ratings.asker.ends.asked == 2
    ratings.asker.ends.offsets = {CHANGELOG: {partition: offset + 1 for partition, offset in at.items()}}
    with pytest.raises(NotCaughtUp, match="has more"):
        ratings.ask("GetRating", _request(ratings, latest=True))

    async def catch_up() -> Any:
        asking = asyncio.create_task(ratings.asker.ask_async("GetRating", _request(ratings, 10_000, latest=True)))
        await asyncio.sleep(0.05)
        assert not asking.done()
        ratings.table.put([rating(1, count=2)])
        ratings.asker.bell.notify()
        return await asking

    assert asyncio.run(catch_up()).rating.rating_count == 2


def test_latest_is_not_answered_while_nobody_knows_it(ratings: Ratings) -> None:
    ratings.table.put([rating(1)])
    ratings.asker.ends.offsets = None
    with pytest.raises(NotCaughtUp, match="Kafka does not answer"):
        ratings.ask("GetRating", _request(ratings, latest=True))


def test_an_offset_that_nobody_has_written_is_told_before_the_wait_is_over(ratings: Ratings) -> None:
    ratings.table.put([rating(1)])
    ratings.asker.ends.offsets = {"ratings": {0: 5, 1: 7}}
    request = _source(ratings, {1: 7})
    request.read_options.max_wait.seconds = 60
    with pytest.raises(FutureOffset, match="partition 1"):
        ratings.ask("GetRating", request, LocalCall(120.0))
    with pytest.raises(NotCaughtUp):
        ratings.ask("GetRating", _source(ratings, {1: 6}))


def test_a_row_whose_version_is_an_offset_says_itself_that_it_is_fresh(ratings: Ratings) -> None:
    ratings.table.put([rating(1), rating(2)])  # sequences 1 and 2
    with pytest.raises(NotCaughtUp):
        ratings.ask("GetRating", _source(ratings, {0: 1}))
    ratings.table.keyed = True
    ratings.table.publish()
    ratings.table.put([rating(1), rating(2)])  # sequences 3 and 4
    assert ratings.ask("GetRating", _source(ratings, {0: 3})).rating.movie_id == 1
    with pytest.raises(NotCaughtUp):
        ratings.ask("GetRating", _source(ratings, {0: 4}))
    batch = ratings.asker.request("BatchGetRatings", keys=[{"movie_id": 1}, {"movie_id": 2}])
    batch.read_options.CopyFrom(_source(ratings, {0: 3}).read_options)
    assert len(ratings.ask("BatchGetRatings", batch).results) == 2
    batch.read_options.CopyFrom(_source(ratings, {1: 4}).read_options)
    with pytest.raises(NotCaughtUp):  # one of the two rows may be older
        ratings.ask("BatchGetRatings", batch)
    ratings.table.delete([rating(1)])
    with pytest.raises(RowNotFound):
        ratings.ask("GetRating", _source(ratings, {0: 5}))
    with pytest.raises(UntrackedSource):
        ratings.ask("GetRating", _source(ratings, {0: 1}, topic="others"))
