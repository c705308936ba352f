"""The checker of worlds: it accepts what is true, and names the guarantee that each kind of lie breaks."""

import ast
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.world import checker
from tests.kit.world.checker import Appended, CheckedCopy, Checker, Guarantee, GuaranteeBroken, Stated, TrueLog

KEYS = (1, 2, 3)


def _log() -> TrueLog:
    """Partition 0 of generation 1: key 1 twice and a stale record behind, key 2 deleted, key 3 written late."""
    log = TrueLog()
    counts = [(1, 1, 1), (2, 2, 2), (1, 3, 3), (2, 4, None), (1, 1, 1), (3, 5, 5)]
    for offset, (key, sequence, count) in enumerate(counts):
        log.append(1, 0, Appended(offset, key, (1, sequence), count, offset * 100, offset * 100))
    return log


def _at(position: int, *, generation: int = 1, as_of_ms: int | None = None) -> Stated:
    return Stated(generation, {0: position}, as_of_ms)


def _copy(checker: Checker, rows: dict[int, int]) -> CheckedCopy:
    copy = CheckedCopy(checker)
    for key, count in rows.items():
        copy.upsert(key, count, "a stream")
    return copy


TRUTHS: list[Callable[[Checker], object]] = [
    lambda checker: checker.rows(_at(0), KEYS, {}, "a read"),
    lambda checker: checker.rows(_at(2), KEYS, {1: 1, 2: 2}, "a read"),
    lambda checker: checker.rows(_at(5), KEYS, {1: 3}, "a read"),
    lambda checker: checker.rows(_at(6, as_of_ms=9_999), KEYS, {1: 3, 3: 5}, "a read"),
    lambda checker: checker.sought(_at(5), 1, 3, 1, "a search"),
    lambda checker: checker.sought(_at(5), 1, 1, None, "a search"),
    lambda checker: checker.sought(_at(5), 3, 5, None, "a search"),
    lambda checker: checker.fresh(_at(4), since_ms=399, what="a read"),
    lambda checker: checker.latest(_at(6), {(1, 0): 6}, "a read"),
    lambda checker: checker.own_write(_at(6), 2, None, 2, "a read"),
    lambda checker: checker.not_back(2, 2, None, "a read"),
    lambda checker: checker.walk([(_at(2), {1: 1}), (_at(6), {3: 5})], "a walk"),
    lambda checker: checker.browse([(_at(3), {2: 2}), (_at(5), {1: 3})], "a walk"),
    lambda checker: checker.browse([(_at(2), {1: 1}), (_at(6), {1: 3, 3: 5})], "a walk"),
    lambda checker: _copy(checker, {1: 3}).current(_at(5), "a stream"),
]
LIES: list[tuple[Guarantee, Callable[[Checker], object]]] = [
    (Guarantee.NOT_FOUND, lambda checker: checker.rows(_at(5), KEYS, {}, "a read")),
    (Guarantee.CONVERGENCE, lambda checker: checker.rows(_at(6), KEYS, {1: 1, 3: 5}, "a read")),
    (Guarantee.CONVERGENCE, lambda checker: checker.rows(_at(6), [1], {1: 2}, "a read")),
    (Guarantee.RESURRECTION, lambda checker: checker.rows(_at(6), KEYS, {1: 3, 2: 2, 3: 5}, "a read")),
    (Guarantee.NOT_FOUND, lambda checker: checker.sought(_at(5), 1, 3, None, "a search")),
    (Guarantee.NOT_FOUND, lambda checker: checker.sought(_at(5), 1, 1, 1, "a search")),
    (Guarantee.NOT_FOUND, lambda checker: checker.sought(Stated(1, {1: 5}, None), 1, 3, None, "a search")),
    (Guarantee.CONVERGENCE, lambda checker: checker.sought(_at(5), 1, 3, 2, "a search")),
    (Guarantee.NO_LOST_UPDATE, lambda checker: checker.rows(_at(7), KEYS, {1: 3, 3: 5}, "a read")),
    (Guarantee.STALENESS, lambda checker: checker.rows(_at(5, as_of_ms=501), KEYS, {1: 3}, "a read")),
    (Guarantee.STALENESS, lambda checker: checker.fresh(_at(4), since_ms=400, what="a read")),
    (Guarantee.NEVER_BACK, lambda checker: checker.at_least(_at(4), _at(5), "a read")),
    (Guarantee.NEVER_BACK, lambda checker: checker.at_least(_at(9), _at(5, generation=2), "a read")),
    (Guarantee.NEVER_BACK, lambda checker: checker.not_back(1, 3, 1, "a read")),
    (Guarantee.NEVER_BACK, lambda checker: checker.not_back(1, 3, None, "a read")),
    (Guarantee.LATEST, lambda checker: checker.latest(_at(5), {(1, 0): 6}, "a read")),
    (Guarantee.OWN_WRITES, lambda checker: checker.own_write(_at(6), 1, 1, 3, "a read")),
    (Guarantee.OWN_WRITES, lambda checker: checker.own_write(_at(6), 1, None, 3, "a read")),
    (Guarantee.PAGES, lambda checker: checker.walk([(_at(4), {1: 3}), (_at(6), {1: 3})], "a walk")),
    (Guarantee.PAGES, lambda checker: checker.walk([(_at(4), {}), (_at(6), {3: 5})], "a walk")),
    (Guarantee.PAGES, lambda checker: checker.walk([(_at(6), {1: 3}), (_at(4), {})], "a walk")),
    (Guarantee.PAGES, lambda checker: checker.browse([(_at(3), {2: 2}), (_at(5), {})], "a walk")),
    (Guarantee.PAGES, lambda checker: checker.browse([(_at(3), {1: 3}), (_at(5), {1: 3})], "a walk")),
    (Guarantee.WHOLE, lambda checker: _copy(checker, {}).current(_at(5), "a stream")),
    (Guarantee.WHOLE, lambda checker: _copy(checker, {1: 3}).upsert(1, 3, "a stream")),
    (Guarantee.WHOLE, lambda checker: _copy(checker, {1: 3}).delete(2, "a stream")),
]


@pytest.mark.parametrize("truth", TRUTHS)
def test_what_is_true_passes(truth: Callable[[Checker], object]) -> None:
    truth(Checker(_log()))


@pytest.mark.parametrize(("guarantee", "lie"), LIES)
def test_a_lie_breaks_its_guarantee(guarantee: Guarantee, lie: Callable[[Checker], object]) -> None:
    with pytest.raises(GuaranteeBroken) as broken:
        lie(Checker(_log()))
    assert broken.value.guarantee is guarantee


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda copy: None, "has key 1 as 1 at 0@3"),
        (lambda copy: copy.upsert(1, 2, "a stream"), "has key 1 as 2 at 0@3"),
        (lambda copy: copy.delete(2, "a stream"), "has key 2 as None at 0@3|has key 1 as 1 at 0@3"),
        (lambda copy: [copy.upsert(1, 3, "a stream"), copy.upsert(3, 5, "a stream")], "has key 3 as 5 at 0@3"),
        (lambda copy: [copy.upsert(1, 3, "a stream"), copy.upsert(9, 1, "a stream")], "has key 9"),
    ],
)
def test_a_copy_that_was_whole_has_to_stay_so(change: Callable[[CheckedCopy], object], why: str) -> None:
    copy = _copy(Checker(_log()), {1: 1, 2: 2})
    copy.current(_at(2), "a stream")
    change(copy)
    with pytest.raises(GuaranteeBroken, match=why) as broken:
        copy.current(_at(3), "a stream")
    assert broken.value.guarantee is Guarantee.WHOLE


def test_each_key_of_a_copy_is_held_to_the_log_after_a_reset() -> None:
    copy = _copy(Checker(_log()), {1: 1, 2: 2})
    copy.current(_at(2), "a stream")
    copy.reset()
    copy.upsert(2, 2, "a stream")
    with pytest.raises(GuaranteeBroken, match="has key 1 as None at 0@2"):
        copy.current(_at(2), "a stream")


def test_copies_are_found_wrong_as_those_that_are_new() -> None:
    """Whoever looks at each key of a new copy finds no more than who looks at what may have changed."""
    for seed in range(300):
        chance, log = random.Random(seed), TrueLog()
        for number in range(60):
            key = chance.randrange(8)
            count = None if chance.random() < 0.2 else number
            record = Appended(log.end(1, key % 2), key, (1, number), count, number, number)
            log.append(1, key % 2, record)
        checker = Checker(log)
        copy, at = CheckedCopy(checker), [0, 0]
        for _ in range(12):
            for partition in (0, 1):
                at[partition] = min(at[partition] + chance.randrange(4), log.end(1, partition))
                fold = log.fold(1, partition, at[partition])
                for key in range(partition, 8, 2):
                    if copy.rows.get(key) != fold.get(key) and chance.random() < 0.98:
                        if key in fold:
                            copy.upsert(key, fold[key], "a stream")
                        else:
                            copy.delete(key, "a stream")
            stated = Stated(1, dict(enumerate(at)), None)
            found = [_broken_by(each, stated) for each in (copy, CheckedCopy(checker, rows=copy.rows))]
            assert found[0] == found[1], f"seed {seed}"
            if found[0]:
                break


def _broken_by(copy: CheckedCopy, stated: Stated) -> bool:
    try:
        copy.current(stated, "a stream")
    except GuaranteeBroken:
        return True
    return False


def test_what_lost_its_tail_may_be_told_until_gateways_know() -> None:
    log = _log()
    log.lose_tail(1, 0, 4)
    log.append(1, 0, Appended(4, 1, (1, 9), 9, 600, 600))
    log.append(1, 0, Appended(5, 2, (1, 8), 8, 700, 700))
    checker = Checker(log)
    for rows in ({1: 3, 3: 5}, {1: 9, 2: 8}):
        checker.rows(_at(6), KEYS, rows, "a read")
    checker.is_settled = True
    checker.rows(_at(6), KEYS, {1: 9, 2: 8}, "a read")
    with pytest.raises(GuaranteeBroken) as broken:
        checker.rows(_at(6), KEYS, {1: 3, 2: 8}, "a read")
    assert broken.value.guarantee is Guarantee.LOST_LOG


def test_a_write_that_the_brokers_have_lost_is_held_against_nobody() -> None:
    log = _log()
    log.lose_tail(1, 0, 2)
    log.append(1, 0, Appended(2, 1, (1, 6), 6, 600, 600))
    checker = Checker(log)
    checker.own_write(_at(3), 1, 1, 3, "a read")
    with pytest.raises(GuaranteeBroken) as broken:
        checker.own_write(_at(3), 1, 1, 6, "a read")
    assert broken.value.guarantee is Guarantee.OWN_WRITES


def test_the_latest_is_what_the_brokers_have_kept_since() -> None:
    log = _log()
    ends, losses = {(1, 0): log.end(1, 0)}, log.losses()
    assert log.kept(ends, losses) == ends == {(1, 0): 6}
    log.lose_tail(1, 0, 2)
    log.append(1, 0, Appended(2, 1, (1, 6), 6, 600, 600))
    Checker(log).latest(_at(2), log.kept(ends, losses), "a read")
    with pytest.raises(GuaranteeBroken) as broken:
        Checker(log).latest(_at(2), log.kept({(1, 0): 3}, log.losses()), "a read")
    assert broken.value.guarantee is Guarantee.LATEST


def test_a_brokers_clock_that_went_back_makes_no_answer_a_lie() -> None:
    log = _log()
    log.append(1, 0, Appended(6, 1, (1, 6), 6, 600, 100))
    checker = Checker(log)
    checker.rows(_at(6, as_of_ms=500), KEYS, {1: 3, 3: 5}, "a read")
    with pytest.raises(GuaranteeBroken) as broken:
        checker.rows(_at(6, as_of_ms=501), KEYS, {1: 3, 3: 5}, "a read")
    assert broken.value.guarantee is Guarantee.STALENESS


def test_nothing_behind_the_last_marker_belongs_to_the_table() -> None:
    log = _log()
    log.end_with(1, 0, 4)
    Checker(log).rows(_at(6), KEYS, {1: 3}, "a read")


def test_the_checker_imports_nothing_of_the_product() -> None:
    tree = ast.parse(Path(checker.__file__).read_text("utf-8"))
    names = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert names == {"bisect", "collections.abc", "dataclasses", "enum", "typing"}
