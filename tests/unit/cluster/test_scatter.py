"""Who is asked for which partitions; and who next, where one fails or is slow."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

import pytest
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st

from tablegate.gateway.cluster.directory import Directory, Peer
from tablegate.gateway.cluster.scatter import (
    HEDGE_MAX_S,
    HEDGE_MIN_S,
    HEDGE_TIMES,
    HEDGES_SHARE,
    HEDGES_SPARE,
    Forwarder,
    NoReplica,
    PeerFailed,
    ScatterGather,
)
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.errors import (
    ForeignForward,
    InvalidPageToken,
    NotCaughtUp,
    PartitionUnavailable,
    ShuttingDown,
    status_of,
)
from tests.kit.replication.statuses import live, status

Part = tuple[str, tuple[int, ...]]
"""Who answered, and for which partitions."""

AWAY = PeerFailed(Status(code=14, message="connection refused"))
NOT_HERE = PeerFailed(status_of(PartitionUnavailable("ratings", 1, "it is being restored")))
LEAVING = PeerFailed(status_of(ShuttingDown()))
LATE = PeerFailed(status_of(NotCaughtUp("ratings", 1, "its changelog has more")))
CLOCK_OFF = PeerFailed(status_of(ForeignForward("was made too long ago, or by a clock that is ahead")))
WRONG = PeerFailed(status_of(InvalidPageToken("the page token is damaged")))
TOO_LARGE = PeerFailed(Status(code=8, message="CLIENT: Received message larger than max (9 vs. 8)"))
TIMED_OUT = PeerFailed(Status(code=4, message="Deadline Exceeded"))


class Asked:
    """Gateways that answer with their names. `ends` says how calls to some of them end: in an error, or never."""

    def __init__(self, held: Mapping[str, Iterable[int]], *, here: Iterable[int] = (), own_id: str = "own") -> None:
        self.directory = Directory()
        self.directory.update(
            status({name: live(*partitions) for name, partitions in held.items()}, own_id=own_id).SerializeToString()
        )
        self.forwarder = Forwarder(lambda _: "")
        self.here = [Partition(number) for number in here]
        self.ends: dict[str, PeerFailed | None] = {}
        self.calls: list[Part] = []
        self.cancelled: list[str] = []

    def peer(self, gateway_id: str) -> Peer:
        return Peer(gateway_id, f"{gateway_id}:7070", "z1")

    async def ask(self, peer: Peer, partitions: Sequence[Partition]) -> Part:
        part = peer.gateway_id, tuple(partitions)
        self.calls.append(part)
        if peer.gateway_id in self.ends:
            failed = self.ends[peer.gateway_id]
            if failed is not None:
                raise failed
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.append(peer.gateway_id)
                raise
        return part

    def spread(self, generation: int = 0) -> ScatterGather[Part]:
        return ScatterGather(
            self.directory,
            self.forwarder,
            self.ask,
            table="ratings",
            generation=generation,
            local=self.here,
            may_wait=False,
        )

    def answers(self, *partitions: int, generation: int = 0) -> list[Part]:
        return asyncio.run(self.spread(generation).results([Partition(number) for number in partitions]))

    def owner_and_standby(self, partition: int) -> tuple[str, str]:
        first, second = self.directory.replicas("ratings", Partition(partition))
        return first.gateway_id, second.gateway_id


def asked_of_two() -> tuple[Asked, str, str]:
    asked = Asked({"b": [1], "c": [1]})
    return asked, *asked.owner_and_standby(1)


def test_the_owner_is_asked_first() -> None:
    asked, owner, _ = asked_of_two()
    assert asked.answers(1) == asked.calls == [(owner, (1,))]


@pytest.mark.parametrize("failed", [AWAY, NOT_HERE, LEAVING, CLOCK_OFF])
def test_the_next_is_asked_where_one_has_not_got_it(failed: PeerFailed) -> None:
    asked, owner, standby = asked_of_two()
    asked.ends[owner] = failed
    assert asked.answers(1) == [(standby, (1,))]
    assert [name for name, _ in asked.calls] == [owner, standby]


def test_where_one_is_behind_another_may_be_fresher() -> None:
    """That a replica is behind says nothing of the others; and it is well, so it is asked first the next time."""
    asked, owner, standby = asked_of_two()
    asked.ends[owner] = LATE
    asked.answers(1)
    assert [name for name, _ in asked.calls] == [owner, standby]
    assert not LATE.is_away


def test_where_all_are_behind_the_client_hears_that() -> None:
    asked, owner, standby = asked_of_two()
    asked.ends = {owner: LATE, standby: AWAY}
    with pytest.raises(PeerFailed) as raised:
        asked.answers(1)
    assert raised.value is LATE
    assert [name for name, _ in asked.calls] == [owner, standby]


def test_an_answer_too_large_is_final_and_no_sign_of_a_dead_gateway() -> None:
    asked, owner, _ = asked_of_two()
    asked.ends[owner] = TOO_LARGE
    with pytest.raises(PeerFailed) as raised:
        asked.answers(1)
    assert raised.value is TOO_LARGE
    assert [name for name, _ in asked.calls] == [owner]
    assert not TOO_LARGE.is_away


@pytest.mark.parametrize("failed", [WRONG, TIMED_OUT])
def test_what_any_would_say_is_said(failed: PeerFailed) -> None:
    asked, owner, _ = asked_of_two()
    asked.ends[owner] = failed
    with pytest.raises(PeerFailed) as raised:
        asked.answers(1)
    assert raised.value is failed
    assert [name for name, _ in asked.calls] == [owner]


def test_a_token_that_all_refuse_is_an_error_of_its_own() -> None:
    asked, owner, standby = asked_of_two()
    asked.ends = {owner: CLOCK_OFF, standby: CLOCK_OFF}
    with pytest.raises(PeerFailed) as raised:
        asked.answers(1)
    assert raised.value.reason == "FOREIGN_FORWARD"
    assert [name for name, _ in asked.calls] == [owner, standby]


@pytest.mark.parametrize("refuses_first", [True, False])
def test_who_was_away_may_yet_accept_a_token_that_others_refuse(refuses_first: bool) -> None:
    asked, owner, standby = asked_of_two()
    asked.ends = dict(zip((owner, standby), (CLOCK_OFF, AWAY) if refuses_first else (AWAY, CLOCK_OFF), strict=True))
    with pytest.raises(NoReplica):
        asked.answers(1)


def test_where_nobody_has_it_nobody_is_asked_twice() -> None:
    asked, owner, standby = asked_of_two()
    asked.ends = {owner: NOT_HERE, standby: AWAY}
    with pytest.raises(NoReplica) as raised:
        asked.answers(1)
    assert raised.value.partition == 1
    assert [name for name, _ in asked.calls] == [owner, standby]
    with pytest.raises(NoReplica):
        asked.answers(2)


def test_silent_peer_holds_up_no_answer_and_is_asked_last_for_a_while() -> None:
    asked, owner, standby = asked_of_two()
    asked.ends[owner] = None
    assert asked.answers(1) == [(standby, (1,))]
    assert asked.cancelled == [owner]
    assert asked.forwarder.is_cooling(asked.peer(owner))
    del asked.ends[owner]
    assert asked.answers(1) == [(standby, (1,))]
    asked.ends[standby] = AWAY
    assert asked.answers(1) == [(owner, (1,))]


def test_where_all_are_slow_few_calls_are_made_twice() -> None:
    asked, owner, _ = asked_of_two()
    peer = asked.peer(owner)
    assert sum(asked.forwarder.may_hedge() for _ in range(1_000)) == HEDGES_SPARE
    for _ in range(100):
        asked.forwarder.answered(peer, 1.0)
    assert sum(asked.forwarder.may_hedge() for _ in range(1_000)) == pytest.approx(100 * HEDGES_SHARE, abs=1)
    asked.ends[owner] = None

    async def talk() -> None:
        answer = asyncio.ensure_future(asked.spread().results([Partition(1)]))
        await asyncio.wait({answer}, timeout=2 * asked.forwarder.hedge_s(peer))
        answer.cancel()

    asyncio.run(talk())
    assert [name for name, _ in asked.calls] == [owner]


def test_the_slower_a_gateway_the_later_is_another_asked() -> None:
    asked, owner, standby = asked_of_two()
    forwarder, quick, slow = asked.forwarder, asked.peer(owner), asked.peer(standby)
    for _ in range(200):
        forwarder.answered(quick, 0.0001)
        forwarder.answered(slow, 0.02)
    assert forwarder.hedge_s(quick) == HEDGE_MIN_S
    assert forwarder.hedge_s(slow) == pytest.approx(0.02 * HEDGE_TIMES)
    for _ in range(200):
        forwarder.answered(slow, 5)
    assert forwarder.hedge_s(slow) == HEDGE_MAX_S
    forwarder.keep([quick])
    assert forwarder.hedge_s(slow) < HEDGE_MAX_S


def test_a_slow_one_counts_where_the_next_has_nothing_to_say() -> None:
    asked, owner, standby = asked_of_two()
    asked.ends[standby] = NOT_HERE
    is_asked = asyncio.Event()

    async def ask(peer: Peer, partitions: Sequence[Partition]) -> Part:
        if peer.gateway_id == standby:
            is_asked.set()
        else:
            await is_asked.wait()
        return await asked.ask(peer, partitions)

    spread = ScatterGather(
        asked.directory, asked.forwarder, ask, table="ratings", generation=0, local=(), may_wait=False
    )
    assert asyncio.run(spread.results([Partition(1)])) == [(owner, (1,))]


def test_an_error_of_the_next_ends_the_wait_for_a_silent_one() -> None:
    asked, owner, standby = asked_of_two()
    asked.ends = {owner: None, standby: WRONG}
    with pytest.raises(PeerFailed) as raised:
        asked.answers(1)
    assert raised.value is WRONG


def test_a_call_that_is_cancelled_cancels_what_it_asked() -> None:
    asked, owner, standby = asked_of_two()
    asked.ends = {owner: None, standby: None}

    async def talk() -> None:
        answer = asyncio.ensure_future(asked.spread().results([Partition(1)]))
        while len(asked.calls) < 2:
            await asyncio.sleep(0)
        answer.cancel()
        await asyncio.wait({answer})
        assert answer.cancelled()
        await asyncio.sleep(0)

    asyncio.run(talk())
    assert sorted(asked.cancelled) == ["b", "c"]


def test_what_is_here_is_read_here_and_elsewhere_where_it_went_away() -> None:
    asked = Asked({"own": [0, 1], "b": [0, 1, 2]}, here=[0, 1])
    assert asked.answers(0, 1, 2) == [("own", (0, 1)), ("b", (2,))]
    asked.ends["own"] = NOT_HERE
    assert sorted(asked.answers(0, 1, 2)) == [("b", (0, 1)), ("b", (2,))]


def test_one_that_is_not_there_is_made_up_for_by_several() -> None:
    asked = Asked({"b": [0, 1, 2, 3], "c": [0, 1], "d": [2, 3]})
    assert asked.answers(0, 1, 2, 3) == [("b", (0, 1, 2, 3))]
    asked.ends["b"] = AWAY
    assert sorted(asked.answers(0, 1, 2, 3)) == [("c", (0, 1)), ("d", (2, 3))]


def test_only_those_of_the_generation_are_asked() -> None:
    asked = Asked({"b": [0]})
    assert asked.answers(0, generation=3) == [("b", (0,))]
    with pytest.raises(NoReplica):
        asked.answers(0, generation=4)


PARTITIONS = range(12)


@given(
    st.lists(st.lists(st.sampled_from("bcde"), min_size=1, max_size=4, unique=True), min_size=12, max_size=12),
    st.sets(st.sampled_from(PARTITIONS)),
    st.sets(st.sampled_from("bcde")),
)
def test_each_partition_is_answered_once(holders: list[list[str]], here: set[int], away: set[str]) -> None:
    held = {name: [number for number in PARTITIONS if name in holders[number]] for name in "bcde"}
    asked = Asked(held, here=here)
    asked.ends = dict.fromkeys(away, AWAY)
    unreachable = [number for number in PARTITIONS if number not in here and away.issuperset(holders[number])]
    if unreachable:
        with pytest.raises(NoReplica) as raised:
            asked.answers(*PARTITIONS)
        assert raised.value.partition in unreachable
        return
    parts = asked.answers(*PARTITIONS)
    assert sorted(number for _, numbers in parts for number in numbers) == list(PARTITIONS)
    assert all(number in (here if name == "own" else held[name]) for name, numbers in parts for number in numbers)
    assert not away.intersection(name for name, _ in parts)
    if not away:
        assert len(parts) == len(asked.calls) == len({name for name, _ in parts})
