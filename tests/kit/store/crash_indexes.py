"""A process that applies numbered batches of accounts, and adds and removes their indexes, until it is killed.

`python -m tests.kit.store.crash_indexes WHERE` writes to a directory or to Redis. With POINTS it is killed at each
point of the code that writes to LMDB, by a fork of it for each, and what is there then is checked.
"""

import os
import random
import signal
import sys
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

from tablegate.gateway.contract.indexes import RowIndexes
from tablegate.gateway.contract.keys import encode_key
from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.stores.base import Change, Position, StoreReader
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tablegate.gateway.stores.redis.store import RedisStore
from tests.kit.store.changes import change, position
from tests.kit.table.accounts import account, accounts_table, entries_of

CHANGES_PER_BATCH = 30
BATCHES_PER_CONTRACT = 20  # as many as it takes to remove and to build what the contract changes
KILLS_PER_POINT = 2
POINTS = (
    "call apply",
    "call _put_rows",
    "return _put_newest",
    "call put_entries",
    "return _remove",
    "c_call putmulti",
    "return put_entries",
    "call _put_position",
    "return _put_position",
    "return apply",
    "call keep",
    "return keep",
    "return keep_indexes",
    "call work_on",
    "return _removed",
    "return work_on",
    "return build_indexes",
)
"""What happens in the modules of the LMDB store, as `sys.setprofile` names it."""


def batch_of(number: int) -> tuple[list[Change], Position]:
    """Return the changes of a batch, and the position after it."""
    choice, table = random.Random(number), accounts_table()
    changes = []
    for offset in range(number * CHANGES_PER_BATCH, (number + 1) * CHANGES_PER_BATCH):
        row = account(choice, account_id=choice.randrange(200))
        key = encode_key(table.key, [row.bank, row.account_id])
        value = None if choice.random() < 0.2 else row.SerializeToString()
        changes.append(change(offset, key, offset + 1, value, time_ms=offset))
    return changes, position(changes[-1].offset + 1, source_offsets={("batch", 0): number + 1})


def indexes_of(number: int) -> RowIndexes:
    """Return the indexes that the contract has when a batch comes: each half of them in turn, and one always."""
    table = accounts_table()
    turn = number // BATCHES_PER_CONTRACT
    some = [index for at, index in enumerate(table.indexes) if at == 0 or (turn + at) % 2]
    return RowIndexes(some, table.row_class)


def check_indexes(store: StoreReader) -> int:
    """Check the indexes of accounts that are whole: they have the entries of the rows. Return how many."""
    place = StoreId(1), Partition(0)
    with store.snapshot() as snapshot:
        rows = dict(snapshot.range(*place, start=b"", end=None, limit=10_000))
        found = [
            (index, snapshot.index_range(*place, index, start=b"", end=None, limit=100_000))
            for index in accounts_table().indexes
        ]
        is_begun = snapshot.position(*place) is not None
    whole = [(index, entries) for index, entries in found if entries is not None]
    for index, entries in whole:
        assert entries == entries_of(index, rows), index.name
    assert whole or not is_begun
    return len(whole)


def write(where: str) -> None:
    """Write without end."""
    store = RedisStore(where) if "://" in where else LmdbStore(Path(where), history_changes_max=10**9)
    with store.snapshot() as snapshot:
        found = snapshot.position(StoreId(1), Partition(0))
    first = 0 if found is None else found.source_offsets["batch", 0]
    store.keep_indexes(StoreId(1), indexes_of(first))
    print("writing", flush=True)
    for number in count(first):
        if number % BATCHES_PER_CONTRACT == 0:
            store.keep_indexes(StoreId(1), indexes_of(number))
        changes, moved_to = batch_of(number)
        store.apply(StoreId(1), Partition(0), changes, moved_to)
        store.build_indexes(StoreId(1), Partition(0), limit=100)


def kill_at_points(where: str) -> None:
    """Be killed at each point, and check what is there then."""
    for number in range(KILLS_PER_POINT):
        for point in POINTS:
            _killed_child(where, point, random.Random(f"{point} {number}").randrange(1, 5))
            store = LmdbStore(Path(where), history_changes_max=10**9)
            check_indexes(store)
            store.abandon()


def _killed_child(where: str, point: str, nth: int) -> None:
    child = os.fork()
    if not child:
        sys.setprofile(_killer(point, nth))
        write(where)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"{point}: it ended by itself"
    assert os.WTERMSIG(status) == signal.SIGKILL
    print(f"killed at {point}, {nth}", flush=True)


def _killer(point: str, nth: int) -> Any:
    left = nth

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left
        if "stores/lmdb/" in frame.f_code.co_filename:
            name = argument.__name__ if event.startswith("c_") else frame.f_code.co_name
            left -= f"{event} {name}" == point
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    return profile


if __name__ == "__main__":
    (kill_at_points if sys.argv[2:] == ["POINTS"] else write)(sys.argv[1])
