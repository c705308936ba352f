"""A process that applies numbered batches of accounts, and adds and removes their indexes, until it is killed."""

import random
import sys
from itertools import count
from pathlib import Path

from tablegate.gateway.contract.indexes import RowIndexes
from tablegate.gateway.contract.keys import encode_key
from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.stores.base import Change, Position
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tests.kit.store.changes import change, position
from tests.kit.table.accounts import account, accounts_table

CHANGES_PER_BATCH = 30
BATCHES_PER_CONTRACT = 20  # as many as it takes to remove and to build what the contract changes


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


def main(path: Path) -> None:
    store = LmdbStore(path, history_changes_max=10**9)
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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
