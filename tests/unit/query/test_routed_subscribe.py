"""Subscriptions to a table whose partitions are spread over gateways."""

import asyncio
import random
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.errors import ShuttingDown
from tablegate.gateway.query.limits import QueryLimits
from tablegate.gateway.stores.base import Phase
from tablegate.v1.query_pb2 import SUBSCRIBE_PHASE_CURRENT, SUBSCRIBE_START_LIVE
from tests.kit.call.subscribing import Copy, token_of
from tests.kit.gateways_in_process.cluster_without_network import QUICK_LIMITS, SAFE, LocalCluster, Placement
from tests.kit.gateways_in_process.streams import Writer, apply_all, subscribed
from tests.kit.gateways_in_process.streams import filled as filled_with
from tests.kit.seeds import seeds

pytestmark = pytest.mark.tools

SPREAD: Placement = {0: [0, 3], 1: [1, 4], 2: [2, 5]}
SHORT_MESSAGES = replace(QUICK_LIMITS, message_rows_max=40)


def filled(placement: Placement, limits: QueryLimits = SHORT_MESSAGES, **more: Any) -> tuple[LocalCluster, Writer]:
    return filled_with(placement, limits=limits, **more)


@pytest.mark.parametrize("number", range(4))
def test_a_snapshot_and_changes_through_any_gateway(number: int) -> None:
    async def talk() -> None:
        cluster, writer = filled({**SPREAD, 3: []})
        one = Copy()
        async with subscribed(cluster, number) as stream:
            await stream.until(one, writer.counts)
            writer.put(1, 2, 3, 301)
            writer.delete(4, 5)
            await stream.until(one, writer.counts)
            given = one.given
            writer.put(7)
            await stream.until(one, writer.counts)
            assert one.given == given + 1
        assert one.resets == 1

    asyncio.run(talk())


def test_each_gateway_is_asked_once_and_by_one_hop() -> None:
    async def talk() -> None:
        cluster, writer = filled({0: [0], 1: [1, 2, 3], 2: [3, 4, 5]})
        one = Copy()
        async with subscribed(cluster, 0) as stream:
            await stream.until(one, writer.counts)
            assert [len(cluster[number].calls) for number in range(3)] == [1, 1, 1]
        for gateway in cluster.gateways.values():
            assert not gateway.is_busy

    asyncio.run(talk())


def test_all_that_is_here_is_given_here() -> None:
    async def talk() -> None:
        cluster, writer = filled({0: range(6), 1: range(6)})
        one = Copy()
        async with subscribed(cluster, 0) as stream:
            await stream.until(one, writer.counts)
            assert not cluster[1].calls

    asyncio.run(talk())


def test_one_key_is_asked_of_the_gateway_that_has_it() -> None:
    async def talk() -> None:
        cluster, writer = filled(SPREAD, rows=30)
        for movie_id in range(6):
            for number in range(3):
                one = Copy()
                async with subscribed(cluster, number, movie_id=movie_id) as stream:
                    await stream.until(one, {movie_id: writer.counts[movie_id]})
                    writer.put(movie_id, (movie_id + 1) % 30)
                    await stream.until(one, {movie_id: writer.counts[movie_id]})
                    assert one.given == 2

    asyncio.run(talk())


def test_current_says_what_is_read_of_each_partition() -> None:
    async def talk() -> None:
        cluster, writer = filled(SPREAD, rows=100)
        one = Copy()
        async with subscribed(cluster, 0) as stream:
            while one.phase != SUBSCRIBE_PHASE_CURRENT:
                message = await stream.next()
                one.take(message)
        info = message.progress.read_info
        token = token_of(info.consistency_token)
        assert dict(enumerate(token.next_offsets)) == cluster.whole.next_offsets
        assert info.as_of_time.seconds
        assert one.counts == writer.counts

    asyncio.run(talk())


def test_a_quiet_stream_does_not_speak_for_each_gateway() -> None:
    async def talk() -> None:
        cluster, writer = filled(SPREAD, rows=10)
        one = Copy()
        async with subscribed(cluster, 0) as stream:
            await stream.until(one, writer.counts)
            said = sum(cluster[number].said for number in (1, 2))
            for _ in range(10):
                one.take(await stream.next())
            assert sum(cluster[number].said for number in (1, 2)) - said > 10

    asyncio.run(talk())


@pytest.mark.parametrize("number", range(3))
def test_changes_alone(number: int) -> None:
    async def talk() -> None:
        cluster, writer = filled(SPREAD, rows=60)
        one = Copy()
        live = {"start": SUBSCRIBE_START_LIVE}
        async with subscribed(cluster, number, asked=live) as stream:
            one.take(await stream.next())
            assert (one.phase, one.given) == (SUBSCRIBE_PHASE_CURRENT, 0)
            writer.put(1, 2, 3, 4, 5, 6)
            wanted = {movie_id: writer.counts[movie_id] for movie_id in range(1, 7)}
            await stream.until(one, wanted)
        writer.put(7)
        async with subscribed(cluster, (number + 1) % 3, one.token, asked=live) as stream:
            await stream.until(one, {**wanted, 7: writer.counts[7]})
        assert (one.resets, one.given) == (0, 7)

    asyncio.run(talk())


@pytest.mark.parametrize("after", range(1, 12, 2))
def test_a_token_of_each_message_is_good_on_any_gateway(after: int) -> None:
    async def talk() -> None:
        cluster, writer = filled(SPREAD)
        one = Copy()
        async with subscribed(cluster, 0) as stream:
            for _ in range(after):
                one.take(await stream.next())
                writer.put(after)
        writer.put(*range(290, 310))
        writer.delete(*range(50))
        async with subscribed(cluster, after % 3, one.token) as stream:
            await stream.until(one, writer.counts)
        assert one.resets == 1

    asyncio.run(talk())


@pytest.mark.parametrize("seed", seeds(12, in_check=3))
def test_gateways_that_die_drain_and_come_back_under_a_stream(seed: int) -> None:
    choice = random.Random(seed)

    async def talk() -> None:
        cluster, writer = filled(SAFE, rows=choice.choice([30, 400]))
        writer.choice = choice
        asked = choice.randrange(3)
        one = Copy()
        async with subscribed(cluster, asked) as stream:
            for _ in range(60):
                if choice.random() < 0.3:
                    cluster.disturb(choice, asked, calm=1)
                    cluster.announce()
                for _ in range(choice.randrange(6)):
                    writer.anything(60)
                if choice.random() < 0.7:
                    one.take(await stream.next())
            cluster.disturb(random.Random(1), asked, calm=1)
            cluster.announce()
            await stream.until(one, writer.counts)
        assert one.resets == 1

    asyncio.run(talk())


@pytest.mark.parametrize("seed", seeds(12, in_check=3))
def test_clients_that_go_from_gateway_to_gateway(seed: int) -> None:
    choice = random.Random(seed)

    async def talk() -> None:
        cluster, writer = filled(SAFE, rows=choice.choice([30, 400]))
        writer.choice = choice
        one = Copy()
        for _ in range(15):
            asked = choice.randrange(3)
            cluster.disturb(choice, asked, calm=1)
            cluster.announce()
            with suppress(ShuttingDown):  # the one that is asked is down
                async with subscribed(cluster, asked, one.token) as stream:
                    for _ in range(choice.randrange(8)):
                        writer.anything(60)
                        one.take(await stream.next())
        cluster.disturb(random.Random(1), 0, calm=1)
        cluster.announce()
        async with subscribed(cluster, 0, one.token) as stream:
            await stream.until(one, writer.counts)
        assert one.resets == 1

    asyncio.run(talk())


def test_a_partition_that_moves_away_takes_its_stream_with_it() -> None:
    """A stream that was all here goes on over two gateways."""

    async def talk() -> None:
        cluster, writer = filled({0: range(6), 1: [4, 5]}, rows=100)
        one = Copy()
        async with subscribed(cluster, 0) as stream:
            await stream.until(one, writer.counts)
            given = one.given
            assert not cluster[1].calls
            cluster[0].drop(Partition(4))
            cluster.announce()
            writer.put(*range(100))
            await stream.until(one, writer.counts)
            assert (one.resets, one.given) == (1, given + 100)
            assert len(cluster[1].calls) == 1

    asyncio.run(talk())


def test_a_partition_that_nobody_has_is_caught_up_with_once_somebody_has() -> None:
    async def talk() -> None:
        cluster, writer = filled({0: [0, 1, 2], 1: [3, 4]}, rows=100)
        one = Copy()
        async with subscribed(cluster, 0) as stream:
            for _ in range(12):
                one.take(await stream.next())
                assert one.phase != SUBSCRIBE_PHASE_CURRENT
            cluster[1].follow(Partition(5))
            cluster.announce()
            await stream.until(one, writer.counts)

    asyncio.run(talk())


def test_gateway_that_announces_what_it_lacks_is_avoided() -> None:
    async def talk() -> None:
        cluster, writer = filled({0: [0, 1, 2], 1: [3, 4]}, replace(SHORT_MESSAGES, avoid_s=3_600.0), rows=100)
        cluster[1].phases[Partition(5)] = Phase.LIVE
        cluster.announce()
        one = Copy()
        async with subscribed(cluster, 0) as stream:
            for _ in range(30):
                one.take(await stream.next())
            assert len(cluster[1].calls) == 1
            cluster[0].follow(Partition(5))
            cluster[0].follow(Partition(4))
            cluster[0].follow(Partition(3))
            await stream.until(one, writer.counts)

    asyncio.run(talk())


def test_a_gateway_that_is_silent_is_left() -> None:
    async def talk() -> None:
        placement: Placement = {0: [0, 1, 2], 1: [3, 4, 5], 2: []}
        cluster, writer = filled(placement, replace(SHORT_MESSAGES, silent_s=0.2), rows=100)
        one = Copy()
        async with subscribed(cluster, 0) as stream:
            await stream.until(one, writer.counts)
            cluster[1].hangs = True
            for number in (3, 4, 5):
                cluster[2].follow(Partition(number))
            cluster.announce()
            writer.put(*range(100))
            await stream.until(one, writer.counts)
        assert (one.resets, one.given) == (1, 200)

    asyncio.run(talk())


def test_a_gateway_that_lives_no_more_is_left_without_a_word_of_it() -> None:
    async def talk() -> None:
        cluster, writer = filled({0: [0, 1, 2], 1: [3, 4, 5], 2: [3, 4, 5]}, rows=100)
        one = Copy()
        async with subscribed(cluster, 0) as stream:
            await stream.until(one, writer.counts)
            [asked] = [cluster[number] for number in (1, 2) if cluster[number].calls]
            asked.hangs = True
            cluster.announce(dead=[asked.gateway_id])
            writer.put(*range(100))
            await stream.until(one, writer.counts)
        assert (one.resets, one.given) == (1, 200)

    asyncio.run(talk())


def test_a_gateway_that_lost_its_history_begins_the_stream_anew() -> None:
    async def talk() -> None:
        cluster, writer = filled({0: [0, 1, 2], 1: [3, 4, 5]}, rows=300, history_changes_max=10)
        one = Copy()
        async with subscribed(cluster, 0) as stream:
            await stream.until(one, writer.counts)
            cluster[1].kill()
            cluster.announce()
            writer.put(*range(300))
            cluster[1].start()
            cluster.announce()
            cluster.follow()
            await stream.until(one, writer.counts)
        assert one.resets == 2

    asyncio.run(talk())


def test_a_gateway_made_anew_goes_on_where_the_copy_is() -> None:
    """The offsets are those of the changelog, whichever store has it."""

    async def talk() -> None:
        cluster, writer = filled({0: [0, 1, 2], 1: [3, 4, 5]}, rows=300)
        one = Copy()
        async with subscribed(cluster, 0) as stream:
            await stream.until(one, writer.counts)
            cluster[1].kill()
            cluster[1].make(incarnation_id=77)
            for number in (3, 4, 5):
                cluster[1].follow(Partition(number))
            cluster[1].start()
            cluster.announce()
            writer.put(*range(300))
            await stream.until(one, writer.counts)
        assert (one.resets, one.given) == (1, 600)

    asyncio.run(talk())


def test_a_drain_of_the_gateway_that_is_asked_says_where_it_was() -> None:
    async def talk() -> None:
        cluster, writer = filled({0: [], 1: [0, 1, 2], 2: [3, 4, 5]}, rows=300)
        one = Copy()
        async with subscribed(cluster, 0) as stream:
            await stream.until(one, writer.counts)
            stream.call.draining = True
            cluster[0].bell.shutdown()
            with pytest.raises(ShuttingDown):
                await apply_all(stream, one)
        writer.put(1)
        async with subscribed(cluster, 1, one.token) as stream:
            await stream.until(one, writer.counts)
        assert (one.resets, one.given) == (1, 301)

    asyncio.run(talk())


def test_who_does_not_read_makes_the_gateways_wait() -> None:
    """No more than a message of each is taken; who reads again misses nothing but what was overtaken."""

    async def talk() -> None:
        cluster, writer = filled(SPREAD, replace(SHORT_MESSAGES, subscriber_bytes_max=4_096, burst_wait_s=0.0))
        one = Copy()
        async with subscribed(cluster, 0) as stream:
            await stream.until(one, writer.counts)
            given, said = one.given, cluster[1].said
            for _ in range(20):
                writer.put(*range(300))
                await asyncio.sleep(0.01)
            assert cluster[1].said - said <= 2
            await stream.until(one, writer.counts)
            assert one.given - given < 20 * 300
        assert one.resets == 1

    asyncio.run(talk())


def test_a_new_generation_of_a_table_that_is_all_here_stays_here() -> None:
    async def talk() -> None:
        cluster, writer = filled({0: range(6), 1: range(6)}, rows=100)
        one = Copy()
        async with subscribed(cluster, 0) as stream:
            await stream.until(one, writer.counts)
            writer.rebuild(range(50, 80))
            cluster[0].switch(range(6))
            cluster.announce()
            await stream.until(one, writer.counts)
        assert one.resets == 2
        assert not cluster[1].calls

    asyncio.run(talk())


def test_a_new_generation_begins_the_stream_anew_once() -> None:
    """Gateways switch at different times: nothing of both is mixed."""

    async def talk() -> None:
        cluster, writer = filled(SPREAD, rows=100)
        one = Copy()
        async with subscribed(cluster, 0) as stream:
            await stream.until(one, writer.counts)
            writer.rebuild(range(50, 80))
            for number in (2, 1, 0):
                one.take(await stream.next())
                assert one.resets == 1
                cluster[number].switch(SPREAD[number])
                cluster.announce()
                one.take(await stream.next())
            await stream.until(one, writer.counts)
        assert one.resets == 2

    asyncio.run(talk())
