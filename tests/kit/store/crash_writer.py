"""A process that applies numbered batches to a store until somebody kills it."""

import random
import sys
from itertools import count
from pathlib import Path

from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.stores.base import Change, Position
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tests.kit.store.changes import change, position

KEYS = 500
CHANGES_PER_BATCH = 40


def batch_of(number: int) -> tuple[list[Change], Position]:
    """Return the changes of a batch, and the position after it."""
    random_ = random.Random(number)
    changes = []
    for offset in range(number * CHANGES_PER_BATCH, (number + 1) * CHANGES_PER_BATCH):
        row = None if random_.random() < 0.1 else random_.randbytes(random_.randrange(400))
        changes.append(change(offset, random_.randrange(KEYS).to_bytes(2, "big"), offset + 1, row, time_ms=offset))
    next_offset = changes[-1].offset + 1
    return changes, position(next_offset, as_of_ms=next_offset, source_offsets={("batch", 0): number + 1})


def main(path: Path) -> None:
    store = LmdbStore(path, history_changes_max=10**9)
    with store.snapshot() as snapshot:
        found = snapshot.position(StoreId(1), Partition(0))
    print("writing", flush=True)
    for number in count(0 if found is None else found.source_offsets["batch", 0]):
        changes, moved_to = batch_of(number)
        store.apply(StoreId(1), Partition(0), changes, moved_to)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
