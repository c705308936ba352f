"""Accounts in a partition of a store with indexes, and what these should have."""

import random
from collections.abc import Sequence

from tablegate.gateway.contract.indexes import Index, RowIndexes
from tablegate.gateway.contract.keys import encode_key
from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.stores.base import Change, Phase, StoreWriter
from tests.kit.store.changes import change, position
from tests.kit.table.accounts import account, accounts_table, entries_of

ID = StoreId(1)
P0 = Partition(0)
TABLE = accounts_table()


class Written:
    """A partition of accounts, and the rows that it should have, by key."""

    def __init__(self, store: StoreWriter, seed: int, indexes: RowIndexes | None = TABLE.row_indexes) -> None:
        self.store = store
        self.choice = random.Random(seed)
        self.rows: dict[bytes, bytes] = {}
        self.next_offset = 0
        if indexes is not None:
            store.keep_indexes(ID, indexes)
        self.write([])

    def write(self, changes: Sequence[Change], phase: Phase = Phase.LIVE) -> None:
        self.store.apply(ID, P0, changes, position(self.next_offset, phase=phase))

    def write_some(self, count: int = 20, phase: Phase = Phase.LIVE) -> None:
        """Write accounts and delete some, a part of the changes stale."""
        changes = []
        for _ in range(count):
            row = account(self.choice)
            key = encode_key(TABLE.key, [row.bank, row.account_id])
            value = None if self.choice.random() < 0.3 else row.SerializeToString()
            sequence = self.next_offset + 1
            if self.choice.random() < 0.2:
                sequence = 0  # older than any
            changes.append(change(self.next_offset, key, sequence, value))
            self.next_offset += 1
            if sequence:
                self.rows.pop(key, None)
                if value is not None:
                    self.rows[key] = value
            elif key not in self.rows:
                changes.pop()  # it might be the first of its key, and then it is none
        self.write(changes, phase)

    def check(self, indexes: Sequence[Index] = TABLE.indexes) -> None:
        for each in indexes:
            assert self.read(each) == entries_of(each, self.rows), each.name

    def read(self, index: Index) -> list[tuple[bytes, bytes]] | None:
        with self.store.snapshot() as snapshot:
            return snapshot.index_range(ID, P0, index, start=b"", end=None, limit=10_000)

    def build(self, limit: int = 3) -> int:
        """Build all indexes; return in how many steps."""
        steps = 1
        while not self.store.build_indexes(ID, P0, limit=limit):
            steps += 1
        return steps
