"""Which store a gateway has: the Redis that a URL names, which it may share with others, or LMDB in a directory.

`gateway` is its id in its cluster, "" where it stands alone. Each store is imported where it is used: a process without
the other does not pay for it.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from tablegate.gateway.stores.base import StoreReader

if TYPE_CHECKING:
    from tablegate.gateway.stores.lmdb.store import LmdbStore
    from tablegate.gateway.stores.redis.store import RedisStore


def open_for_reading(directory: Path, url: str | None, gateway: str) -> StoreReader:
    """Open a store that a writer has made; raise `StoreUnavailable` before it has."""
    if url is not None:
        from tablegate.gateway.stores.redis.store import RedisReader

        return RedisReader(url, gateway)
    from tablegate.gateway.stores.lmdb.store import LmdbReader

    return LmdbReader(directory)


def open_for_writing(directory: Path, url: str | None, gateway: str) -> "LmdbStore | RedisStore":
    """Open a store, or make one; raise `StoreCorrupt` where `wipe` must come first, or another `StoreUnavailable`."""
    if url is not None:
        from tablegate.gateway.stores.redis.store import RedisStore

        return RedisStore(url, gateway)
    from tablegate.gateway.stores.lmdb.store import LmdbStore

    return LmdbStore(directory)


def wipe(directory: Path, url: str | None) -> None:
    """Remove a store."""
    if url is not None:
        from tablegate.gateway.stores.redis import store as redis

        redis.wipe(url)
    else:
        from tablegate.gateway.stores.lmdb import environment

        environment.wipe(directory)
