"""One random history of a table has the same answers, whichever store and however many gateways serve it.

What has happened meanwhile makes no difference either: restarts, lost stores, compaction, a rebuild into as many
partitions or others.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.kit.programs.redis import RedisServer, needs_redis
from tests.kit.seeds import seeds
from tests.kit.world.asked import OtherAnswer
from tests.kit.world.history import Chapter, Happening, Subject, Written, history_of, ratings, windows
from tests.kit.world.ways import Way, play

GATEWAYS = (1, 3)
SEEDS = 30
REDIS_SEEDS = 20
LONG_SEEDS = 1_000
LONG_AT_ONCE = 50


def subject_of(seed: int) -> Subject:
    """Return the table of a seed: one whose rows stay, or one with retention."""
    return windows() if seed % 2 else ratings()


def play_in_process(seed: int, directory: Path) -> None:
    """Serve a history by memory stores and by LMDB."""
    subject = subject_of(seed)
    chapters = history_of(subject, seed)
    for way in (Way(store, count) for store in ("memory", "LMDB") for count in GATEWAYS):
        play(chapters, subject, way, seed=seed, directory=directory / f"{seed}-{way}")


def play_in_redis(seed: int, redis_server: RedisServer) -> None:
    """Serve a history by gateways that share a Redis."""
    subject = subject_of(seed)
    chapters = history_of(subject, seed)
    for count in GATEWAYS:
        play(chapters, subject, Way("Redis", count), seed=seed, redis=redis_server)


@pytest.mark.tools
@pytest.mark.parametrize("seed", seeds(SEEDS, in_check=1))
def test_memory_and_lmdb_answer_the_same(tmp_path: Path, seed: int) -> None:
    play_in_process(seed, tmp_path)


@pytest.mark.tools
def test_what_waits_until_this_very_moment_is_answered() -> None:
    """A stream may be due at the moment in which all are asked, as the clock stands still then."""
    play(history_of(ratings(), 130), ratings(), Way("memory", 3), seed=130)


@needs_redis
@pytest.mark.tools
@pytest.mark.parametrize("seed", range(REDIS_SEEDS))
def test_redis_answers_the_same(redis_server: RedisServer, seed: int) -> None:
    play_in_redis(seed, redis_server)


@pytest.mark.long
@pytest.mark.parametrize("first", range(SEEDS, LONG_SEEDS, LONG_AT_ONCE))
def test_memory_and_lmdb_answer_the_same_many_times(tmp_path: Path, first: int) -> None:
    for seed in range(first, min(first + LONG_AT_ONCE, LONG_SEEDS)):
        play_in_process(seed, tmp_path)


@needs_redis
@pytest.mark.long
@pytest.mark.parametrize("first", range(REDIS_SEEDS, LONG_SEEDS, LONG_AT_ONCE))
def test_redis_answers_the_same_many_times(redis_server: RedisServer, first: int) -> None:
    for seed in range(first, min(first + LONG_AT_ONCE, LONG_SEEDS)):
        play_in_redis(seed, redis_server)


def without_one_change(chapter: Chapter) -> Chapter:
    """Return a chapter in which one change is not sent, that is not the last of its key."""
    key = next(key for key, sent in chapter.sent.items() if len(sent) > 1)
    return replace(chapter, sent={**chapter.sent, key: chapter.sent[key][1:]})


def without_one_row(chapter: Chapter) -> Chapter:
    """Return a chapter that ends with a row less."""
    return replace(chapter, rows=dict(list(chapter.rows.items())[1:]))


def with_an_older_row(chapter: Chapter) -> Chapter:
    """Return a chapter that ends with an older version of a row."""
    [(key, count), *_] = chapter.rows.items()
    return replace(chapter, rows={**chapter.rows, key: count - 1})


@pytest.mark.tools
@pytest.mark.parametrize("change", [without_one_change, without_one_row, with_an_older_row])
def test_any_other_answer_is_noticed(change: object) -> None:
    assert callable(change)
    subject = ratings()
    chapters = history_of(subject, 0)
    quiet = next(number for number, each in enumerate(chapters) if number and each.happening is Happening.NOTHING)
    chapters[quiet] = change(chapters[quiet])
    with pytest.raises(OtherAnswer, match=f"chapter {quiet}"):
        play(chapters, subject, Way("memory", 1), seed=0)


def test_histories_have_all_that_may_happen() -> None:
    """Of few seeds: each happening, a rebuild beside each, late and repeated records, and records that are none."""
    subject = ratings()
    chapters = [chapter for seed in range(20) for chapter in history_of(subject, seed)]
    assert {chapter.happening for chapter in chapters} == set(Happening)
    assert {chapter.partitions for chapter in chapters} == {2, 3, 4, 5}
    again = late = odd = deletes = 0
    for seed in range(20):
        newest: dict[bytes, bytes] = {}
        for step in (each for chapter in history_of(subject, seed) for each in (*chapter.before, *chapter.after)):
            if not isinstance(step, Written) or not step.key:
                odd += isinstance(step, Written) and step.key is None
            elif step.version is not None:
                before = newest.get(step.key, b"")
                again += step.version == before
                late += step.version < before
                deletes += step.value is None
                newest[step.key] = max(before, step.version)
    assert min(again, late, odd, deletes) > 10
