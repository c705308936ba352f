"""Parts of a table: by key, by bounds, by what else is in the row."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tablegate.gateway.query.errors import SlowSubscription
from tablegate.gateway.query.limits import QueryLimits
from tests.kit.call.subscribing import OFTEN, Stream, opened, options
from tests.kit.seeds import seeds
from tests.kit.table.parcels import Parcels, copy

SHORT_QUEUE = QueryLimits(subscriber_bytes_max=8 * 1024, message_rows_max=50)
PARTS: list[tuple[dict[str, Any], Callable[[str, int, int], bool]]] = [
    ({}, lambda depot, number, weight: True),
    ({"depot": "ash"}, lambda depot, number, weight: depot == "ash"),
    ({"depot": ""}, lambda depot, number, weight: depot == ""),
    ({"depot": "ash", "number_from": -1}, lambda depot, number, weight: depot == "ash" and number >= -1),
    ({"depot": "ash", "number_before": 0}, lambda depot, number, weight: depot == "ash" and number < 0),
    (
        {"depot": "ash\x00", "number_from": -2, "number_before": 2},
        lambda depot, number, weight: depot == "ash\x00" and -2 <= number < 2,
    ),
    ({"depot": "ash", "number_from": 2, "number_before": 2}, lambda depot, number, weight: False),
    ({"number_from": 1}, lambda depot, number, weight: number >= 1),
    ({"min_weight": 5}, lambda depot, number, weight: weight >= 5),
    ({"depots": ["ash", ""]}, lambda depot, number, weight: depot in ("ash", "")),
    ({"depot": "ash", "numbers": [-2, 1]}, lambda depot, number, weight: depot == "ash" and number in (-2, 1)),
    ({"depot": "birch", "min_weight": 5}, lambda depot, number, weight: depot == "birch" and weight >= 5),
]


@pytest.mark.parametrize("seed", seeds(8, in_check=2))
def test_each_part_is_what_its_params_say_and_no_more_is_told(seed: int) -> None:
    """A row that stops matching is a delete; one that did not match before, or does not again, is silence."""
    parcels = Parcels(seed, QueryLimits(publish_flush_s=0.0))
    for _ in range(40):
        parcels.anything()

    async def talk() -> None:
        copies = [copy() for _ in PARTS]
        for _ in range(3):
            async with AsyncExitStack() as stack:
                streams: list[Stream] = []
                for (params, holds), one in zip(PARTS, copies, strict=True):
                    fields = {**params, "subscribe_options": options(one.token, **OFTEN)}
                    stream = await stack.enter_async_context(opened(parcels.asker, "SubscribeParcels", **fields))
                    await stream.until_at(one, parcels.filled.next_offsets)
                    assert one.counts == parcels.part(holds)
                    streams.append(stream)
                expected = [one.given for one in copies]
                for _ in range(40):
                    before = [parcels.part(holds) for _, holds in PARTS]
                    parcels.anything()
                    parcels.asker.bell.notify()
                    for number, (_, holds) in enumerate(PARTS):
                        expected[number] += parcels.part(holds) != before[number]
                for (_, holds), one, stream in zip(PARTS, copies, streams, strict=True):
                    await stream.until_at(one, parcels.filled.next_offsets)
                    assert one.counts == parcels.part(holds)
                assert [one.given for one in copies] == expected
            for _ in range(10):
                parcels.anything()
        assert [one.resets for one in copies] == [1] * len(PARTS)

    asyncio.run(talk())


def test_of_many_changes_a_slow_subscriber_gets_the_last_of_each_row() -> None:
    parcels = Parcels(0, SHORT_QUEUE)
    parcels.put("ash", 1, 1)

    async def talk() -> None:
        one = copy()
        async with opened(parcels.asker, "SubscribeParcels", depot="ash") as stream:
            await stream.until(one, {("ash", 1): 1})
            given = one.given
            await _flood(parcels)
            await stream.until(one, parcels.part(lambda depot, number, weight: depot == "ash"))
            assert one.resets == 1
            assert one.given - given < parcels.moves / 4

    asyncio.run(talk())


def test_slow_subscriber_is_evicted_if_the_contract_says_so_and_resumes() -> None:
    parcels = Parcels(0, SHORT_QUEUE)
    parcels.put("ash", 1, 1)

    async def talk() -> None:
        one = copy()
        async with opened(parcels.asker, "FollowParcels", depot="ash") as stream:
            await stream.until(one, {("ash", 1): 1})
            await _flood(parcels)
            with pytest.raises(SlowSubscription):
                await stream.until(one, {})
        async with opened(parcels.asker, "FollowParcels", depot="ash", subscribe_options=options(one.token)) as stream:
            await stream.until(one, parcels.part(lambda depot, number, weight: depot == "ash"))
        assert one.resets == 1

    asyncio.run(talk())


async def _flood(parcels: Parcels) -> None:
    """Change a few rows for as long as a subscriber that takes nothing is bound to be let go."""
    for _ in range(30):
        for number in range(200):
            parcels.put("ash", number % 20, 1)
        parcels.asker.bell.notify()
        await asyncio.sleep(SHORT_QUEUE.publish_flush_s * 1.5)
