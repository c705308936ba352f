"""Turns of connections: who has used little comes before those who have used much."""

import asyncio
from collections import Counter
from collections.abc import Callable

from tablegate.gateway.http.connection_turns import ConnectionTurns, Turn
from tests.kit.http.http1 import until
from tests.kit.http.listening import GET, served


class Busy:
    """A connection that always has something to serve, each time for so long; `log` notes whose turn it was."""

    def __init__(self, name: str, turn: Turn, took_s: float, log: list[str], pass_s: Callable[[float], None]) -> None:
        self.name = name
        self.turn = turn
        self._took_s = took_s
        self._log = log
        self._pass_s = pass_s
        turn.wait(self.serve)

    def serve(self) -> None:
        self._log.append(self.name)
        self._pass_s(self._took_s)
        self.turn.spend(0.0, self._took_s)
        self.turn.wait(self.serve)


class World:
    """Turns by a clock that only serving moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.turns = ConnectionTurns(round_s=0.005, clock=lambda: self.now_s)
        self.log: list[str] = []

    def busy(self, name: str, *, took_s: float, siblings: int = 1) -> Busy:
        return Busy(name, self.turns.turn(lambda: siblings), took_s, self.log, self._pass)

    def _pass(self, seconds: float) -> None:
        self.now_s += seconds

    async def run(self, count: int) -> Counter[str]:
        """Serve so many turns more; return how many each had."""
        begun = len(self.log)
        while len(self.log) < begun + count:
            await asyncio.sleep(0)
        return Counter(self.log[begun:])


def test_each_has_as_much_time() -> None:
    async def run() -> None:
        world = World()
        for name, took_s in (("a", 0.001), ("b", 0.001), ("heavy", 0.01)):
            world.busy(name, took_s=took_s)
        had = await world.run(1_000)
        assert abs(had["a"] - had["b"]) <= 1
        assert 9 <= had["a"] / had["heavy"] <= 11

    asyncio.run(run())


def test_more_connections_of_an_address_get_no_more() -> None:
    async def run() -> None:
        world = World()
        for number in range(50):
            world.busy(f"many {number}", took_s=0.001, siblings=50)
        world.busy("one", took_s=0.001)
        await world.run(1_000)
        had = await world.run(1_000)
        assert 450 <= had["one"] <= 550

    asyncio.run(run())


def test_who_comes_is_served_soon_and_cannot_save_time_up() -> None:
    async def run() -> None:
        world = World()
        for number in range(100):
            world.busy(f"busy {number}", took_s=0.01)
        idle = world.turns.turn(lambda: 1)
        await world.run(1_000)
        begun = len(world.log)
        idle.wait(lambda: world.log.append("idle"))
        await world.run(3)
        assert "idle" in world.log[begun : begun + 3]
        late = world.busy("late", took_s=0.01)
        assert (await world.run(500))["late"] <= 10
        assert late.name in world.log

    asyncio.run(run())


def test_a_round_leaves_the_loop_to_others() -> None:
    async def run() -> None:
        world = World()
        for number in range(100):
            world.busy(f"busy {number}", took_s=0.001)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert 4 <= len(world.log) <= 12
        assert world.turns.is_busy

    asyncio.run(run())


def test_after_a_round_what_is_read_is_served_at_once_again() -> None:
    async def run() -> None:
        world = World()
        turn = world.turns.turn(lambda: 1)
        turn.spend(1.0, 0.004)
        assert not world.turns.is_busy
        turn.spend(1.1, 0.004)  # long after it
        assert not world.turns.is_busy
        turn.spend(1.104, 0.002)
        assert world.turns.is_busy
        await asyncio.sleep(0)
        assert not world.turns.is_busy

    asyncio.run(run())


def test_a_mistake_in_one_turn_leaves_the_others_theirs() -> None:
    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        world = World()

        def fail() -> None:
            raise RuntimeError

        world.turns.turn(lambda: 1).wait(fail)
        world.busy("other", took_s=0.001)
        await world.run(10)

    asyncio.run(run())


def test_requests_that_wait_for_their_turn_are_all_served() -> None:
    """Both versions of HTTP, while others keep the loop busy."""

    async def run() -> None:
        async with served() as it:
            turns = it.listener._turns
            world = World()
            Busy("busy", turns.turn(lambda: 1), 0.01, world.log, lambda _: None)
            clients = [await it.connect() for _ in range(3)]
            for client in clients:
                await client.send(GET * 20)
            for client in clients:
                assert [await client.answer() for _ in range(20)] == [(200, b"")] * 20
            await until(lambda: len(it.app.seen) == 60)

    asyncio.run(run())
