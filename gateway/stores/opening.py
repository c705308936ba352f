"""Which store a gateway has: the Redis that a URL names, which it may share with others, or LMDB in a directory.

`gateway` is its id in its cluster, "" where it stands alone. Each store is imported where it is used: a process without
the other does not pay for it.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from gateway.stores.base import StoreReader

if TYPE_CHECKING:
    from gateway.stores.lmdb import LmdbStore
    from gateway.stores.redis import RedisStore


def open_for_reading(directory: Path, url: str | None, gateway: str) -> StoreReader:
    """Open a store that a writer has made; raise `StoreUnavailable` before it has."""
    if url is not None:
        from gateway.stores.redis import RedisReader

        return RedisReader(url, gateway)
    from gateway.stores.lmdb import LmdbReader

    return LmdbReader(directory)


def open_for_writing(directory: Path, url: str | None, gateway: str) -> "LmdbStore | RedisStore":
    """Open a store, or make one; raise `StoreCorrupt` where `wipe` must come first, or another `StoreUnavailable`."""
    if url is not None:
        from gateway.stores.redis import RedisStore

        return RedisStore(url, gateway)
    from gateway.stores.lmdb import LmdbStore

    return LmdbStore(directory)


def wipe(directory: Path, url: str | None) -> None:
    """Remove a store."""
    if url is not None:
        from gateway.stores import redis

        redis.wipe(url)
    else:
        from gateway.stores import environment

        environment.wipe(directory)
