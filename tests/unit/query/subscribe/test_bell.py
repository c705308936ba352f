"""The bell: whoever looks and then waits misses nothing."""

import asyncio

from tablegate.gateway.query.notifier import Notifier

LONG_S = 1_000.0


def test_a_ring_wakes_all_who_wait() -> None:
    async def talk() -> None:
        bell = Notifier()
        waiting = [asyncio.ensure_future(bell.wait(LONG_S)) for _ in range(3)]
        await asyncio.sleep(0)
        bell.ring()
        bell.ring()
        await asyncio.wait_for(asyncio.gather(*waiting), 10)

    asyncio.run(talk())


def test_a_ring_before_the_wait_wakes_nobody_and_the_wait_ends_by_itself() -> None:
    async def talk() -> None:
        bell = Notifier()
        bell.ring()
        waiting = asyncio.ensure_future(bell.wait(LONG_S))
        await asyncio.sleep(0)
        assert not waiting.done()
        bell.ring()
        await asyncio.wait_for(waiting, 10)
        await asyncio.wait_for(bell.wait(0.0), 10)

    asyncio.run(talk())


def test_who_is_cancelled_waits_no_more() -> None:
    async def talk() -> None:
        bell = Notifier()
        waiting = asyncio.ensure_future(bell.wait(LONG_S))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        bell.ring()
        assert waiting.cancelled()

    asyncio.run(talk())


def test_a_toll_is_a_ring_and_more() -> None:
    async def talk() -> None:
        bell, heard = Notifier(), list[str]()
        bell.listen(on_ring=lambda: heard.append("ring"), on_toll=lambda: heard.append("toll"))
        waiting = asyncio.ensure_future(bell.wait(LONG_S))
        await asyncio.sleep(0)
        bell.ring()
        assert heard == ["ring"]
        bell.toll()
        assert heard == ["ring", "ring", "toll"]
        await asyncio.wait_for(waiting, 10)

    asyncio.run(talk())
