"""Streams of a cluster's gateways: scans and subscriptions, and who changes the rows meanwhile."""

from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Any

from tests.kit.call.subscribing import METHOD, Copy, Stream, TableWriter, options
from tests.kit.gateways_in_process.cluster_without_network import LocalCluster, Placement
from tests.kit.table.filled import LocalCall

QUICK = {"progress_interval": {"nanos": 20_000_000}}


def ids(messages: list[Any]) -> list[int]:
    return [row.movie_id for message in messages for row in message.ratings]


async def scanned(cluster: LocalCluster, number: int, **fields: Any) -> list[Any]:
    return [message async for message in cluster.stream(number, "ScanRatings", **fields)]


async def append_all(stream: Any, messages: list[Any]) -> None:
    async for message in stream:
        messages.append(message)


class Writer(TableWriter):
    """Changes the ratings of a cluster."""

    def __init__(self, cluster: LocalCluster, seed: int = 0) -> None:
        super().__init__(cluster.whole, cluster.follow, seed)

    def rebuild(self, movie_ids: Iterable[int]) -> None:
        """Begin another generation, of these movies, to which no gateway has gone yet."""
        self.counts.clear()
        self._table.generation += 1
        self._table.publish()
        self.put(*movie_ids)


@asynccontextmanager
async def subscribed(cluster: LocalCluster, number: int, token: str = "", **fields: Any) -> AsyncIterator[Stream]:
    call = LocalCall(None)
    asked = options(token, **{**QUICK, **fields.pop("asked", {})})
    async with aclosing(cluster.stream(number, METHOD, call=call, subscribe_options=asked, **fields)) as messages:
        yield Stream(messages, call)


async def apply_all(stream: Stream, one: Copy) -> None:
    while True:
        one.take(await stream.next())


def filled(held: Placement, rows: int = 300, **more: Any) -> tuple[LocalCluster, Writer]:
    cluster = LocalCluster(held, **more)
    writer = Writer(cluster)
    writer.put(*range(rows))
    return cluster, writer
