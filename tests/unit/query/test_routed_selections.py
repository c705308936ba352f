"""Subscriptions to parts of a table, over gateways that have some partitions each."""

import asyncio
import random
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from tablegate.gateway.contract.types import Partition
from tablegate.v1.query_pb2 import SUBSCRIBE_PHASE_CURRENT
from tests.kit.call.subscribing import TIMEOUT_S, Copy, options
from tests.kit.gateways_in_process.cluster_without_network import QUICK_LIMITS, LocalCluster
from tests.kit.seeds import seeds
from tests.kit.table.filled import rating
from tests.kit.table.parcels import DEPOTS, NUMBERS, PARCELS, copy

QUICK: dict[str, Any] = {"progress_interval": {"nanos": 20_000_000}}
HELD = {0: [0], 1: [1, 2], 2: [2]}
SHORT_MESSAGES = replace(QUICK_LIMITS, message_rows_max=3)


async def until(stream: Any, one: Copy, wanted: dict[Any, int], order: str) -> None:
    """Take messages until the copy is current and as wanted."""

    def is_there() -> bool:
        rows = {key: getattr(row, order) for key, row in one.rows.items()}
        return one.phase == SUBSCRIBE_PHASE_CURRENT and rows == wanted

    while not is_there():
        one.take(await asyncio.wait_for(anext(stream), TIMEOUT_S))


PARTS: list[tuple[str, dict[str, Any], Any]] = [
    ("SubscribeParcels", {}, lambda _depot, _number, _weight: True),
    ("SubscribeParcels", {"depot": "ash"}, lambda depot, _number, _weight: depot == "ash"),
    ("SubscribeParcels", {"min_weight": 5}, lambda _depot, _number, weight: weight >= 5),
]


@pytest.mark.parametrize("seed", seeds(3, in_check=1))
@pytest.mark.parametrize("part", range(len(PARTS)))
def test_a_part_of_the_table_through_each_gateway(part: int, seed: int) -> None:
    method, fields, holds = PARTS[part]
    choice = random.Random(seed)

    async def talk() -> None:
        cluster = LocalCluster(
            HELD,
            path=PARCELS,
            table="parcels",
            service="/parcels.v1.ParcelsService",
            partition_count=3,
            limits=SHORT_MESSAGES,
        )
        rows: dict[tuple[str, int], tuple[int, int]] = {}
        moves = 0

        def anything() -> None:
            nonlocal moves
            depot, number = choice.choice(DEPOTS), choice.choice(NUMBERS)
            row: Any = cluster.whole.table.row_class(depot=depot, number=number)
            if choice.random() < 0.25:
                cluster.delete([row])
                rows.pop((depot, number), None)
            else:
                moves += 1
                row.weight, row.moves = choice.randrange(10), moves
                cluster.put([row])
                rows[depot, number] = (row.weight, moves)

        def wanted() -> dict[Any, int]:
            return {key: moves for key, (weight, moves) in rows.items() if holds(*key, weight)}

        for _ in range(40):
            anything()
        one = copy()
        for _ in range(4):
            asked = options(one.token, **QUICK)
            stream = cluster.stream(choice.randrange(3), method, subscribe_options=asked, **fields)
            async with aclosing(stream):
                for _ in range(5):
                    anything()
                    one.take(await anext(stream))
                await until(stream, one, wanted(), "moves")
            anything()
        assert one.resets == 1

    asyncio.run(talk())


def test_certain_keys_beside_the_whole_table_of_the_same_gateway() -> None:
    """What others subscribe to in its partitions is not given."""

    async def talk() -> None:
        cluster = LocalCluster({0: [0, 1, 2, 3, 4, 5], 1: [1, 3], 2: [2, 3]}, limits=SHORT_MESSAGES)
        cluster[0].drop(Partition(3))
        cluster.announce()
        cluster.put(rating(number, count=1) for number in range(60))
        keys = [{"movie_id": number} for number in range(0, 60, 7)]
        some, each = Copy(), Copy()
        asked = options(**QUICK)
        async with (
            aclosing(cluster.stream(2, "SubscribeRatings", keys=keys, subscribe_options=asked)) as one,
            aclosing(cluster.stream(0, "SubscribeRatings", subscribe_options=asked)) as other,
        ):
            for count in range(1, 5):
                await until(one, some, dict.fromkeys(range(0, 60, 7), count), "rating_count")
                await until(other, each, dict.fromkeys(range(60), count), "rating_count")
                cluster.put(rating(number, count=count + 1) for number in range(60))
        assert (some.given, some.resets) == (9 * 4, 1)

    asyncio.run(talk())
