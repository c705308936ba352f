"""Subscribers over a memory store: what a client's copy is, which fails where a stream breaks a promise."""

import asyncio
import random
from base64 import urlsafe_b64decode
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from contextlib import aclosing, asynccontextmanager
from operator import attrgetter
from typing import Any

from tablegate.gateway.contract.lineage import places_of
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.call import StreamMethod
from tablegate.internal.v1.tokens_pb2 import Token
from tablegate.v1.query_pb2 import (
    SUBSCRIBE_PHASE_CATCHING_UP,
    SUBSCRIBE_PHASE_CURRENT,
    SUBSCRIBE_PHASE_RESET,
)
from tests.kit.call.asker import Asker, Ratings
from tests.kit.table.filled import FilledTable, LocalCall, rating

OFTEN = {"progress_interval": {"nanos": 100_000_000}}
METHOD = "SubscribeRatings"
TIMEOUT_S = 60.0


class Copy:
    """What a client makes of a stream; it fails where that breaks a promise.

    `key` takes a row or a key message apart, `order` of a row goes up with its versions. `given` counts changes. With
    `gone_unseen` a key may be told gone that was never shown: of a row that expired before it was removed.
    """

    def __init__(
        self,
        key: Callable[[Any], Hashable] = attrgetter("movie_id"),
        order: Callable[[Any], int] = attrgetter("rating_count"),
        *,
        gone_unseen: bool = False,
    ) -> None:
        self.rows: dict[Any, Any] = {}
        self.phase = SUBSCRIBE_PHASE_CATCHING_UP
        self.token = ""
        self.resets = 0
        self.given = 0
        self._key = key
        self._order = order
        self._gone_unseen = gone_unseen

    def take(self, response: Any) -> None:
        assert response.HasField("progress")
        progress = response.progress
        if progress.phase == SUBSCRIBE_PHASE_RESET:
            assert not response.changes
            self.rows.clear()
            self.resets += 1
        for change in response.changes:
            self.given += 1
            if change.HasField("upsert"):
                before = self.rows.get(self._key(change.upsert))
                assert before is None or self._order(before) < self._order(change.upsert), "a row that is no newer"
                self.rows[self._key(change.upsert)] = change.upsert
            elif self._gone_unseen:
                self.rows.pop(self._key(change.delete), None)
            else:
                self.rows.pop(self._key(change.delete))
        assert progress.HasField("read_info") == (progress.phase == SUBSCRIBE_PHASE_CURRENT)
        assert progress.resume_token
        self.phase, self.token = progress.phase, progress.resume_token

    @property
    def counts(self) -> dict[Any, int]:
        return {key: self._order(row) for key, row in self.rows.items()}


class Stream:
    """A stream that is open."""

    def __init__(self, messages: AsyncIterator[Any], call: LocalCall) -> None:
        self._messages = messages
        self.call = call

    async def next(self) -> Any:
        # `asyncio.wait_for` may lose a cancellation: https://github.com/python/cpython/issues/86296
        async with asyncio.timeout(TIMEOUT_S):
            return await anext(self._messages)

    async def until(self, copy: Copy, wanted: dict[Any, int]) -> None:
        """Take messages until the copy is current and as wanted."""
        while copy.phase != SUBSCRIBE_PHASE_CURRENT or copy.counts != wanted:
            copy.take(await self.next())

    async def until_at(self, copy: Copy, next_offsets: Mapping[Partition, int]) -> None:
        """Take messages until the copy is current and has all before these offsets, of the partitions it is for."""
        while True:
            copy.take(await self.next())
            token = token_of(copy.token)
            places = places_of(token).items()
            is_there = all(place.next_offset == next_offsets[partition] for partition, place in places)
            if is_there and copy.phase == SUBSCRIBE_PHASE_CURRENT:
                return


@asynccontextmanager
async def opened(asker: Asker, method: str, **fields: Any) -> AsyncIterator[Stream]:
    """Open a stream of any Subscribe."""
    path = f"{asker.service}/{method}"
    handler = asker.methods[path]
    assert isinstance(handler, StreamMethod)
    call = LocalCall(None)
    response_class = asker.catalogue.queries[path].response_class
    messages: Any = handler.handler(asker.request(method, **fields).SerializeToString(), call)
    responses = (response_class.FromString(message) async for message in messages)
    async with aclosing(messages), aclosing(responses):
        yield Stream(responses, call)


def subscribed(ratings: Ratings, **fields: Any) -> Any:
    """Open a stream of ratings."""
    return opened(ratings.asker, METHOD, **fields)


def token_of(text: str) -> Token:
    """Return what is inside a token, whoever signed it."""
    encoded = text.removeprefix("1.").encode()
    return Token.FromString(urlsafe_b64decode(encoded + b"=" * (-len(encoded) % 4))[:-16])


def options(token: str = "", **more: Any) -> dict[str, Any]:
    return {"resume_token": token, **more}


class TableWriter:
    """Changes the ratings of a table, and knows what they should be. `announce` tells of each change."""

    def __init__(self, table: FilledTable, announce: Callable[[], object], seed: int = 0) -> None:
        self._table = table
        self._announce = announce
        self.counts: dict[int, int] = {}
        self.version = 0
        self.choice = random.Random(seed)

    def put(self, *movie_ids: int) -> None:
        for movie_id in movie_ids:
            self.version += 1
            self.counts[movie_id] = self.version
            self._table.put([rating(movie_id, count=self.version)])
        self._announce()

    def delete(self, *movie_ids: int) -> None:
        self._table.delete([rating(movie_id) for movie_id in movie_ids])
        for movie_id in movie_ids:
            self.counts.pop(movie_id, None)
        self._announce()

    def anything(self, keys: int = 40) -> None:
        movie_id = self.choice.randrange(keys)
        (self.delete if self.choice.random() < 0.2 else self.put)(movie_id)


class Writer(TableWriter):
    """Changes the ratings that one gateway has."""

    def __init__(self, ratings: Ratings, seed: int = 0) -> None:
        super().__init__(ratings.table, ratings.asker.bell.notify, seed)
