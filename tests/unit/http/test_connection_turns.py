"""Turns of connections: who has used little comes before those who have used much."""

import asyncio
import gc
from collections import Counter
from collections.abc import Callable

import grpc
import pytest

from tablegate.gateway.http.connection_turns import ConnectionTurns, Turn, WaitLimits
from tablegate.gateway.http.listener import Limits, Listener
from tablegate.gateway.http.rpc.calls import Calls
from tablegate.gateway.http.rpc.grpc import GrpcProtocol
from tablegate.gateway.query.call import UnaryMethod
from tests.kit.gateways_in_process.answers import failure
from tests.kit.http.h2 import call
from tests.kit.http.h2 import served as served_http2
from tests.kit.http.http1 import until
from tests.kit.http.listening import GET, served

pytestmark = pytest.mark.tools


class Busy:
    """A connection that always has something to serve, each time for so long; `log` notes whose turn it was."""

    def __init__(self, name: str, turn: Turn, took_s: float, log: list[str], pass_s: Callable[[float], None]) -> None:
        self.name = name
        self.turn = turn
        self._took_s = took_s
        self._log = log
        self._pass_s = pass_s
        self.is_over = False
        turn.wait(self.serve)

    def serve(self) -> None:
        if self.is_over:
            return
        self._log.append(self.name)
        self._pass_s(self._took_s)
        self.turn.spend(0.0, self._took_s)
        self.turn.wait(self.serve)


class World:
    """Turns by a clock that only serving moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.turns = ConnectionTurns(
            round_s=0.005,
            clock=lambda: self.now_s,
            limits=WaitLimits(burst_s=0.5, wait_max_s=0.05),
            work_clock=lambda: self.now_s,
        )
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


def test_a_burst_is_served_however_long_its_end_waits() -> None:
    async def run() -> None:
        world = World()
        for number in range(40):
            world.busy(f"busy {number}", took_s=0.01)
        turn = world.turns.turn(lambda: 1_000)
        turn.note_arrival(100, 100)
        turn.wait(lambda: None)
        await world.run(45)
        assert not turn.has_waited_too_long(0)

    asyncio.run(run())


def test_in_an_overload_who_waited_too_long_is_refused_at_once() -> None:
    async def run() -> None:
        world = World()
        for number in range(40):
            world.busy(f"busy {number}", took_s=0.01)
        await world.run(60)
        late = world.turns.turn(lambda: 1_000)  # its turn would be long after all others

        def serve() -> None:
            world.log.append("late" if late.has_waited_too_long(0) else "served")

        for count in (100, 200):  # again, though its turn by its clock has not come
            late.note_arrival(count, 100)
            late.wait(serve)
            late.note_arrival(count, 100)
            begun = len(world.log)
            await world.run(8)
            assert "late" in world.log[begun:]
            assert "served" not in world.log[begun:]
            late.forget_arrivals()

    asyncio.run(run())


def test_each_byte_waits_from_when_it_came() -> None:
    world = World()
    world.now_s = 10.0  # of work since the last pause
    turn = world.turns.turn(lambda: 1)
    turn.note_arrival(100, 100)
    world.now_s += 0.03
    turn.note_arrival(200, 200)
    world.now_s += 0.03
    assert turn.has_waited_too_long(0)
    assert turn.has_waited_too_long(99)
    assert not turn.has_waited_too_long(100)
    world.now_s += 0.03
    assert turn.has_waited_too_long(100)
    turn.note_arrival(200, 0)  # all is parsed, and waits for its turn by the connection's clock alone
    assert turn.arrived_s() == world.now_s
    assert not turn.has_waited_too_long(200)


def test_after_a_pause_nothing_is_kept_of_those_who_waited() -> None:
    async def run() -> None:
        turns, served = ConnectionTurns(), []
        for number in range(100):
            turns.turn(lambda: 1).wait(lambda number=number: served.append(number))
        await until(lambda: len(served) == 100 and not turns.is_busy)
        gc.collect()
        assert not [each for each in gc.get_objects() if type(each) is Turn and each.turns is turns]

    asyncio.run(run())


def test_after_a_pause_a_burst_is_served_again() -> None:
    async def run() -> None:
        world = World()
        world.now_s = 10.0
        turn = world.turns.turn(lambda: 1)
        seen = []

        def serve() -> None:
            world.now_s += 0.2  # another turn took so long
            seen.append(turn.has_waited_too_long(0))

        turn.note_arrival(100, 100)
        turn.wait(serve)
        await until(lambda: seen == [False])

    asyncio.run(run())


AT_ONCE = Limits(wait=WaitLimits(burst_s=0.0, wait_max_s=0.0))  # whoever waits for a turn waits for too long


def test_connections_refuse_what_waited_too_long_and_go_on() -> None:
    async def run() -> None:
        async with served(limits=AT_ONCE) as it:
            world = World()
            client = await it.connect()
            busy = Busy("busy", it.listener._turns.turn(lambda: 1), 0.01, world.log, lambda _: None)
            await client.send(GET)
            assert (await client.answer())[0] == 429
            busy.is_over = True
            await until(lambda: not it.listener._turns.is_busy)
            await client.send(GET)
            assert await client.answer() == (200, b"")

    asyncio.run(run())


def test_grpc_says_that_the_process_has_no_time() -> None:
    async def run() -> None:
        calls = Calls()
        methods = {"/test.Service/Now": UnaryMethod(lambda data, _call: data, 2.0, 5.0)}
        app = GrpcProtocol(methods, calls, serve_other=lambda _: None)
        listener = Listener(app, "127.0.0.1:0", limits=AT_ONCE)
        await listener.start()
        world = World()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{listener.port}") as channel:
            now = channel.unary_unary("/test.Service/Now")
            assert await now(b"asked") == b"asked"
            busy = Busy("busy", listener._turns.turn(lambda: 1), 0.01, world.log, lambda _: None)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await now(b"asked")
            code, reason, details = failure(refused.value)
            assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
            assert len(details) == 2  # when to try again, too
            assert calls.measures.refused_calls == {("time waited",): 1}
            busy.is_over = True
        await listener.stop(0)

    asyncio.run(run())


def test_what_waited_is_refused_and_what_comes_later_is_served() -> None:
    """Over HTTP/2: a connection that waited for its turn is not held to that once it has caught up."""

    async def run() -> None:
        async with served_http2(turns=ConnectionTurns(limits=AT_ONCE.wait), turn_s=0.0) as server:
            client = await server.connect()
            client.send(call(1, b"/echo") + call(3, b"/echo") + call(5, b"/echo", b"part")[:-1])
            assert (await client.answer(3)).status == 429
            await until(lambda: not server.turns.is_busy)
            client.send(b"t")
            assert (await client.answer(5)).body == b"part"

    asyncio.run(run())
