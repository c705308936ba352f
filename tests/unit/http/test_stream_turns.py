"""Streams that are always ready leave room in each round of the event loop."""

import asyncio
import itertools
import socket
from contextlib import suppress
from functools import partial

from tablegate.gateway.http.rpc.turns import StreamTurns


class _Clock:
    """Time that passes as streams work."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def _rounds(turns: StreamTurns, clock: _Clock, streams: int, cost_s: float, count: int) -> list[list[int]]:
    """Return who had a turn in each round of the loop, of streams that are always ready."""
    rounds: list[list[int]] = [[]]

    async def stream(number: int) -> None:
        while True:
            await turns.wait()
            clock.now_s += cost_s
            rounds[-1].append(number)

    tasks = [asyncio.ensure_future(stream(number)) for number in range(streams)]
    while len(rounds) <= count:
        await asyncio.sleep(0)
        if rounds[-1]:
            rounds.append([])
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return rounds


def test_a_round_has_as_many_turns_as_fit_and_all_come_in_order() -> None:
    clock = _Clock()
    rounds = asyncio.run(_rounds(StreamTurns(0.002, clock), clock, streams=200, cost_s=0.001, count=300))
    assert max(map(len, rounds)) <= 2
    in_order = [number for each in rounds for number in each]
    assert in_order == [place % 200 for place in range(len(in_order))]
    assert len(in_order) >= 300


def test_many_cheap_turns_share_a_round_and_a_dear_one_is_alone() -> None:
    clock = _Clock()
    turns = StreamTurns(0.002, clock)
    rounds = asyncio.run(_rounds(turns, clock, streams=50, cost_s=0.00002, count=100))
    assert max(map(len, rounds)) == 50
    rounds = asyncio.run(_rounds(StreamTurns(0.002, clock), clock, streams=50, cost_s=0.1, count=20))
    assert max(map(len, rounds)) == 1


def test_dear_turns_behind_cheap_ones_share_no_round() -> None:
    """By what the cheap ones cost, all of them would fit into one."""
    clock = _Clock()
    turns = StreamTurns(0.002, clock)

    async def run() -> list[list[int]]:
        await _rounds(turns, clock, streams=50, cost_s=0.00002, count=100)
        rounds: list[list[int]] = [[]]

        def go_on(number: int) -> None:
            clock.now_s += 0.0015
            rounds[-1].append(number)

        for number in range(20):
            turns.call(partial(go_on, number))
        while sum(map(len, rounds)) < 20:
            rounds.append([])
            await asyncio.sleep(0)
        return rounds

    rounds = asyncio.run(run())
    assert max(map(len, rounds)) <= 2
    assert [number for each in rounds for number in each] == list(range(20))


def test_who_sends_to_many_goes_before_each_round_and_holds_up_no_stream() -> None:
    clock = _Clock()
    turns = StreamTurns(0.002, clock)
    log: list[str] = []

    def send() -> None:
        clock.now_s += 0.01
        log.append("many")
        if log.count("many") < 20:
            turns.call_for_many(send)

    async def stream() -> None:
        while True:
            await turns.wait()
            clock.now_s += 0.001
            log.append("stream")

    async def run() -> None:
        tasks = [asyncio.ensure_future(stream()) for _ in range(200)]
        while len(log) < 10:
            await asyncio.sleep(0)
        log.clear()
        turns.call(lambda: turns.call_for_many(send))
        turns.call(lambda: log.append("parked"))
        while log.count("many") < 20 or "parked" not in log:
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())
    sends = [place for place, name in enumerate(log) if name == "many"]
    assert all(2 <= later - sooner <= 3 for sooner, later in itertools.pairwise(sends))  # one or two streams between


def test_what_comes_in_one_round_is_read_before_the_next() -> None:
    async def run() -> list[str]:
        turns, log = StreamTurns(0.0), []  # of one turn each
        ours, theirs = socket.socketpair()
        with ours, theirs:
            asyncio.get_running_loop().add_reader(ours, lambda: log.append(ours.recv(1).decode()))
            for _ in range(5):
                await turns.wait()
                log.append("turn")
                theirs.send(b"c")
            asyncio.get_running_loop().remove_reader(ours)
        return log

    assert asyncio.run(run()) == ["turn", "c"] * 4 + ["turn"]


def test_a_stream_that_is_cancelled_takes_no_turn() -> None:
    async def run() -> None:
        turns = StreamTurns()
        tasks = [asyncio.ensure_future(turns.wait()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[1].cancel()
        with suppress(asyncio.CancelledError):
            await tasks[0]
        await tasks[2]
        await turns.wait()

    asyncio.run(run())
