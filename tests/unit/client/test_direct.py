"""The direct channel against gateways that share a table: who is called, and what happens when one is gone."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import pytest
from grpc import aio as grpc_aio

from tablegate.client import aio, open_direct_channel
from tablegate.client.channels import DirectChannel
from tests.kit.gateway_processes.gateway import soon
from tests.kit.gateways_in_process.cluster import EACH_ON_TWO, GrpcCluster, movie_of
from tests.kit.gateways_in_process.ratings import GET, RatingsServer
from tests.kit.table.filled import catalogue_of, rating

ROWS = 60
Ask = Callable[[int], Any]


@pytest.fixture
def cluster() -> Iterator[GrpcCluster]:
    with GrpcCluster(EACH_ON_TWO) as cluster:
        cluster.put(rating(number, count=number) for number in range(ROWS))
        yield cluster


def _getter(cluster: GrpcCluster, channel: Any) -> Any:
    """Return GetRating of a generated stub."""
    query = cluster.catalogue.queries[cluster.path("GetRating")]
    return channel.unary_unary(
        query.path,
        request_serializer=query.request_class.SerializeToString,
        response_deserializer=query.response_class.FromString,
        _registered_method=True,
    )


def _owner(cluster: GrpcCluster, partition: int) -> str:
    [replica, *_] = cluster["a"].router.directory.replicas("ratings", partition)  # type: ignore[arg-type]
    return str(replica.gateway_id)


def _asked(cluster: GrpcCluster) -> list[str]:
    """Return which gateways got a GetRating, those of other gateways marked; and forget it."""
    names = [
        f"{name}*" if call.is_forwarded else name
        for name, gateway in cluster.gateways.items()
        for call in gateway.calls
        if call.method == "GetRating"
    ]
    for gateway in cluster.gateways.values():
        gateway.calls.clear()
    return names


def _knows(channel: Any, cluster: GrpcCluster) -> bool:
    """Return whether the channel has found all gateways that live."""
    return len(channel.owners.usable) == len([gateway for gateway in cluster.gateways.values() if gateway.is_up])


def test_each_key_is_asked_of_its_owner(cluster: GrpcCluster) -> None:
    with open_direct_channel(f"127.0.0.1:{cluster['a'].port}") as channel:
        get = _getter(cluster, channel)
        request = cluster.request
        assert get(request("GetRating", movie_id=7)).rating.rating_count == 7  # asked of "a": nothing is known yet
        soon(lambda: _knows(channel, cluster), "all gateways are known")
        _asked(cluster)
        for partition in range(6):
            number = movie_of(cluster, partition)
            response, call = get.with_call(request("GetRating", movie_id=number))
            assert response.rating.rating_count == number
            assert dict(call.trailing_metadata())["tablegate-role"] == "owner"
            assert _asked(cluster) == [_owner(cluster, partition)]
        number = movie_of(cluster, 5)
        assert get.future(request("GetRating", movie_id=number)).result().rating.rating_count == number


def test_a_standby_answers_where_the_owner_is_gone(cluster: GrpcCluster) -> None:
    owner = _owner(cluster, 4)
    with open_direct_channel(f"127.0.0.1:{cluster['a'].port}") as channel:
        get = _getter(cluster, channel)
        _known(channel, cluster, get)
        cluster[owner].stop()
        [other] = {"b", "c"} - {owner}
        for _ in range(3):
            assert get(cluster.request("GetRating", movie_id=movie_of(cluster, 4))).rating.rating_count == movie_of(
                cluster, 4
            )
        assert _asked(cluster) == [other] * 3
        cluster[owner].start()
        soon(lambda: _knows(channel, cluster), "it is back")
        get(cluster.request("GetRating", movie_id=movie_of(cluster, 4)))
        assert _asked(cluster) == [owner]


def _known(channel: DirectChannel, cluster: GrpcCluster, get: Any) -> None:
    get(cluster.request("GetRating", movie_id=0))
    soon(lambda: _knows(channel, cluster), "all gateways are known")
    _asked(cluster)


def test_the_target_may_go_once_the_others_are_known(cluster: GrpcCluster) -> None:
    """The watch goes on at another gateway, and tells where the partitions went."""
    with open_direct_channel(f"127.0.0.1:{cluster['a'].port}") as channel:
        get = _getter(cluster, channel)
        _known(channel, cluster, get)
        cluster["a"].stop()
        number = movie_of(cluster, 4)
        assert get(cluster.request("GetRating", movie_id=number)).rating.rating_count == number
        cluster.place({"b": [0, 1, 2], "c": [3, 4, 5], "a": []})
        cluster.put(rating(number, count=1_000) for number in range(ROWS))
        cluster.announce(dead={"a"})

        def is_there() -> bool:
            _asked(cluster)
            get(cluster.request("GetRating", movie_id=movie_of(cluster, 3)))
            return _asked(cluster) == ["c"]

        soon(is_there, "partition 3 is asked of where it went")


def test_an_owner_that_is_silent_costs_half_of_the_time(cluster: GrpcCluster) -> None:
    owner = _owner(cluster, 4)
    with open_direct_channel(f"127.0.0.1:{cluster['a'].port}") as channel:
        get = _getter(cluster, channel)
        _known(channel, cluster, get)
        cluster[owner].hangs = True
        request = cluster.request("GetRating", movie_id=movie_of(cluster, 4))
        assert get(request, timeout=4).rating.rating_count == movie_of(cluster, 4)


def test_what_the_owner_refuses_is_the_answer(cluster: GrpcCluster) -> None:
    with open_direct_channel(f"127.0.0.1:{cluster['a'].port}") as channel:
        get = _getter(cluster, channel)
        _known(channel, cluster, get)
        with pytest.raises(grpc.RpcError) as raised:
            get(cluster.request("GetRating", movie_id=ROWS + 1))
        error: Any = raised.value
        assert error.code() is grpc.StatusCode.NOT_FOUND
        assert len(_asked(cluster)) == 1


def test_a_gateway_that_stands_alone_answers_as_ever(cluster: GrpcCluster) -> None:
    with open_direct_channel(f"127.0.0.1:{cluster.whole.port}") as channel:
        get = _getter(cluster, channel)
        for number in range(ROWS):
            assert get(cluster.request("GetRating", movie_id=number)).rating.rating_count == number
        assert channel.owners.usable == []


def test_a_gateway_that_does_not_tell_where_tables_are_answers_as_ever() -> None:
    with RatingsServer() as server, open_direct_channel(server.address) as channel:
        server.put([7])
        query = catalogue_of().queries[GET]
        get = channel.unary_unary(GET, query.request_class.SerializeToString, query.response_class.FromString)
        for _ in range(3):
            assert get(query.request_class(movie_id=7)).rating.rating_count == 1  # type: ignore[call-arg]


def test_calls_without_a_key_are_those_of_any_channel(cluster: GrpcCluster) -> None:
    with open_direct_channel(f"127.0.0.1:{cluster['b'].port}") as channel:
        query = cluster.catalogue.queries[cluster.path("ScanRatings")]
        scan = channel.unary_stream(query.path, None, query.response_class.FromString)
        assert sum(len(response.ratings) for response in scan(b"")) == ROWS
        batch = cluster.catalogue.queries[cluster.path("BatchGetRatings")]
        ask = channel.unary_unary(batch.path, batch.request_class.SerializeToString, batch.response_class.FromString)
        assert len(ask(cluster.request("BatchGetRatings", keys=[{"movie_id": 3}])).results) == 1
        raw = channel.unary_unary(cluster.path("GetRating"), None, None)
        assert raw(cluster.request("GetRating", movie_id=3).SerializeToString())


def test_closing_ends_its_threads(cluster: GrpcCluster) -> None:
    before = set(threading.enumerate())
    channel = open_direct_channel(f"127.0.0.1:{cluster['a'].port}")
    get = _getter(cluster, channel)
    _known(channel, cluster, get)
    ours = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("tablegate-")]
    assert len(ours) == 2
    channel.close()
    for thread in ours:
        thread.join()
    with pytest.raises(ValueError):
        get(cluster.request("GetRating", movie_id=0))


def test_many_threads_share_a_channel(cluster: GrpcCluster) -> None:
    wrong: list[object] = []
    with open_direct_channel(f"127.0.0.1:{cluster['c'].port}") as channel:
        get = _getter(cluster, channel)

        def ask() -> None:
            try:
                for number in range(ROWS):
                    count = get(cluster.request("GetRating", movie_id=number), timeout=20).rating.rating_count
                    if count != number:
                        wrong.append(count)
            except grpc.RpcError as error:
                wrong.append(error)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        cluster["a"].stop()
        for thread in threads:
            thread.join()
    assert wrong == []


# The same with asyncio.


def _run(cluster: GrpcCluster, use: Callable[[Any, Any], Awaitable[None]], gateway_id: str = "a") -> None:
    async def run() -> None:
        async with aio.open_direct_channel(f"127.0.0.1:{cluster[gateway_id].port}") as channel:
            await use(channel, _getter(cluster, channel))

    asyncio.run(run())


async def _all_known(channel: Any, cluster: GrpcCluster, get: Any) -> None:
    await get(cluster.request("GetRating", movie_id=0))
    await asyncio.to_thread(soon, lambda: _knows(channel, cluster), "all gateways are known")
    _asked(cluster)


def test_asyncio_each_key_is_asked_of_its_owner(cluster: GrpcCluster) -> None:
    async def use(channel: Any, get: Any) -> None:
        await _all_known(channel, cluster, get)
        for partition in range(6):
            number = movie_of(cluster, partition)
            call = get(cluster.request("GetRating", movie_id=number))
            response = await call
            assert response.rating.rating_count == number
            assert await call.code() is grpc.StatusCode.OK
            assert dict(await call.trailing_metadata())["tablegate-role"] == "owner"
            assert _asked(cluster) == [_owner(cluster, partition)]
        with pytest.raises(grpc_aio.AioRpcError) as raised:
            await get(cluster.request("GetRating", movie_id=ROWS + 1))
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND
        assert len(_asked(cluster)) == 1
        query = cluster.catalogue.queries[cluster.path("ScanRatings")]
        scan = channel.unary_stream(query.path, None, query.response_class.FromString)
        assert sum([len(response.ratings) async for response in scan(b"")]) == ROWS

    _run(cluster, use)


def test_asyncio_others_answer_where_the_owner_is_silent_or_gone(cluster: GrpcCluster) -> None:
    async def use(channel: Any, get: Any) -> None:
        await _all_known(channel, cluster, get)
        owner = _owner(cluster, 4)
        number = movie_of(cluster, 4)
        cluster[owner].hangs = True
        assert (await get(cluster.request("GetRating", movie_id=number), timeout=4)).rating.rating_count == number
        cluster[owner].stop()
        answers = await asyncio.gather(*(get(cluster.request("GetRating", movie_id=number)) for _ in range(20)))
        assert [answer.rating.rating_count for answer in answers] == [number] * 20

    _run(cluster, use)
