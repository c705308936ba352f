"""Stores of each kind, as the conformance suite opens them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from typing_extensions import override

from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.stores.base import Applied, Change, Position, StoreWriter
from tablegate.gateway.stores.redis.store import RedisStore
from tests.kit.programs.redis import RedisNodeServers, RedisServer

HISTORY_CHANGES_MAX = 5

OpenStore = Callable[..., StoreWriter]


class FillingRedis(RedisStore):
    """The store over a Redis whose memory is full while `is_full` says so and something is written."""

    def __init__(self, server: RedisServer | RedisNodeServers, is_full: Callable[[], bool]) -> None:
        super().__init__(server.new_url(), history_changes_max=HISTORY_CHANGES_MAX)
        self._server = server
        self._is_full = is_full

    @override
    def apply(self, store_id: StoreId, partition: Partition, changes: Sequence[Change], position: Position) -> Applied:
        with self._filled():
            return super().apply(store_id, partition, changes, position)

    @override
    def build_indexes(self, store_id: StoreId, partition: Partition, *, limit: int) -> bool:
        with self._filled():
            return super().build_indexes(store_id, partition, limit=limit)

    @contextmanager
    def _filled(self) -> Iterator[None]:
        if not self._is_full():
            yield
            return
        self._server.run("CONFIG", "SET", "maxmemory", "1")
        try:
            yield
        finally:
            self._server.run("CONFIG", "SET", "maxmemory", "0")
