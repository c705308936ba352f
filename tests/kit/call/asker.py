"""Queries of a table in a memory store, asked as the server asks them, without a server."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.query.call import EndsUnknown, StreamMethod, TopicEnds, UnaryMethod
from tablegate.gateway.query.limits import DEFAULT_LIMITS, QueryLimits
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.query.subscribe.open_streams import OpenStreams
from tablegate.gateway.stores.base import StoreReader
from tablegate.gateway.stores.notifier import Notifier
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, FilledTable, LocalCall, catalogue_of, ratings_table

SHOP = Path(__file__).with_name("shop.proto")


class KnownEnds(TopicEnds):
    """Kafka, asked how far topics are: `offsets` by topic; where it is None, nobody answers."""

    def __init__(self) -> None:
        self.offsets: dict[str, dict[int, int]] | None = {}
        self.asked = 0

    async def ends(self, topic: str) -> Mapping[int, int]:
        self.asked += 1
        if self.offsets is None:
            raise EndsUnknown("Kafka does not answer")
        return self.offsets[topic]


class Asker:
    """Asks the methods of one service, with messages instead of bytes."""

    def __init__(
        self,
        catalogue: Catalogue,
        store: StoreReader,
        service: str,
        now_ms: Callable[[], int] | None,
        limits: QueryLimits = DEFAULT_LIMITS,
    ) -> None:
        more: Mapping[str, Any] = {} if now_ms is None else {"now_ms": now_ms}
        self.bell = Notifier()
        self.ends = KnownEnds()
        self.streams = OpenStreams()
        self.methods = query_methods(
            catalogue, store, SIGNER, self.bell, ends=self.ends, limits=limits, streams=self.streams, **more
        )
        self.catalogue = catalogue
        self.service = service
        self.call = LocalCall()

    def request(self, method: str, **fields: Any) -> Any:
        return self.catalogue.queries[f"{self.service}/{method}"].request_class(**fields)

    async def ask_async(self, method: str, request: Any = None, call: LocalCall | None = None, **fields: Any) -> Any:
        path = f"{self.service}/{method}"
        handler = self.methods[path]
        assert isinstance(handler, UnaryMethod)
        data = (request or self.request(method, **fields)).SerializeToString()
        self.call = call or LocalCall()
        answer = handler.handler(data, self.call)
        return self.catalogue.queries[path].response_class.FromString(
            answer if isinstance(answer, bytes) else await answer
        )

    def ask(self, method: str, request: Any = None, call: LocalCall | None = None, **fields: Any) -> Any:
        return asyncio.run(self.ask_async(method, request, call, **fields))

    def stream(
        self, method: str, request: Any = None, call: LocalCall | None = None, most: int = 10**9, **fields: Any
    ) -> list[Any]:
        """Return at most `most` messages."""
        path = f"{self.service}/{method}"
        handler = self.methods[path]
        assert isinstance(handler, StreamMethod)
        data = (request or self.request(method, **fields)).SerializeToString()
        response_class = self.catalogue.queries[path].response_class

        async def collect() -> list[Any]:
            messages: list[Any] = []
            async for message in handler.handler(data, call or LocalCall(None)):
                messages.append(response_class.FromString(message))
                if len(messages) == most:
                    break
            return messages

        return asyncio.run(collect())


@dataclass
class Ratings:
    """The ratings table in a memory store, and who asks it."""

    table: FilledTable
    ask: Callable[..., Any]
    asker: Asker


def make_ratings(
    partition_count: int = 3,
    now_ms: Callable[[], int] | None = None,
    store: MemoryStore | None = None,
    limits: QueryLimits = DEFAULT_LIMITS,
) -> Ratings:
    store = store or MemoryStore()
    table = ratings_table(store, partition_count)
    asker = Asker(catalogue_of(), store, "/examples.ratings.v1.RatingsService", now_ms, limits)
    return Ratings(table, asker.ask, asker)


@dataclass
class Shop:
    """The shop's tables in a memory store."""

    orders: FilledTable
    accounts: FilledTable
    tags: FilledTable
    asker: Asker
