"""What a change costs where many subscribe to parts of a table: `python -m tests.bench.filters`.

Each tenant subscribes, and sees its own rows: a column outside the key says whose they are, or the beginning of the
key. Each change goes to the next tenant; a commit has one, or many. What is timed is the CPU time of the broadcaster's
publishing, with messages that are the rows themselves, as encoding costs the same however many subscribe. The memory of
a tenant is that of its selection and of its place in the broadcaster, without its connection.
"""

import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from tablegate.gateway.access.views import View
from tablegate.gateway.contract.catalogue import SubscribeQuery
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.limits import DEFAULT_LIMITS
from tablegate.gateway.query.subscribe.broadcaster import ChangeBroadcaster, ChangePositions, Positions, Subscriber
from tablegate.gateway.query.subscribe.cursor import Given, start_live
from tablegate.gateway.query.subscribe.selections import selection_reader
from tablegate.gateway.query.visible_rows import VisibleRows, row_parser
from tablegate.gateway.stores.base import Snapshot
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tests.kit.call.subscribe_world import at_once
from tests.kit.table.filled import ROOT, FilledTable, catalogue_of

TENANTS = ROOT / "tests/kit/table/tenants.proto"
COUNTS = (20, 1_000, 10_000)
TOGETHER = 100
PARTITION = Partition(0)


class Kind(NamedTuple):
    """A table of tenants: the column that says whose a row is, and what the row that changes has besides."""

    table: str
    column: str
    name: str
    fields: Mapping[str, int]


KINDS = (
    Kind("tickets", "owner", "a column", {"ticket_id": 1}),
    Kind("invoices", "tenant", "the key", {"number": 1}),
)


class Cost(NamedTuple):
    """Microseconds that a change takes, alone in its commit and among `TOGETHER`; and kilobytes of a tenant."""

    alone_us: float
    together_us: float
    kilobytes: float


def measure(directory: Path, kind: Kind, tenants: Sequence[Any], changes: int) -> Cost:
    """Return what a change and a tenant cost."""
    catalogue, store = catalogue_of(TENANTS), LmdbStore(directory)
    filled = FilledTable(store, catalogue.tables[kind.table], 1)
    filled.publish()
    queries = [each for each in catalogue.queries.values() if each.table.name == kind.table]
    [query] = [each for each in queries if isinstance(each, SubscribeQuery)]
    broadcaster = ChangeBroadcaster(filled.store_id, DEFAULT_LIMITS, row_parser(query.table), at_once)
    tracemalloc.start()
    with store.snapshot() as snapshot:
        subscribers = [
            _join(broadcaster, snapshot, query, View(rows=((kind.column, (tenant,)),))) for tenant in tenants
        ]
    kilobytes = tracemalloc.get_traced_memory()[0] / 1_024 / len(tenants)
    tracemalloc.stop()
    # The same row: a commit of many has many versions of it, each for the next tenant.
    rows = [query.table.row_class(**kind.fields, **{kind.column: tenant}) for tenant in tenants]

    def took_us(number: int, count: int) -> float:
        numbers = [each % len(tenants) for each in range(number * count, (number + 1) * count)]
        filled.put([rows[each] for each in numbers])
        broadcaster.add_changed()
        with store.snapshot() as snapshot:
            begin_s = time.thread_time()
            while not broadcaster.publish(snapshot):
                continue
            end_s = time.thread_time()
        for each in set(numbers):
            if subscribers[each].pop() is None:
                raise RuntimeError("a tenant was not told of its change")
            while subscribers[each].has_messages:  # of the change that took its row away, by a column
                subscribers[each].pop()
        return (end_s - begin_s) * 1e6 / count

    alone_us = statistics.median(took_us(number, 1) for number in range(changes))
    together_us = statistics.median(took_us(number, TOGETHER) for number in range(max(1, changes // TOGETHER * 10)))
    store.close()
    return Cost(alone_us, together_us, kilobytes)


def _join(broadcaster: ChangeBroadcaster, snapshot: Snapshot, query: SubscribeQuery, view: View) -> Subscriber:
    read = selection_reader(query, VisibleRows(view, query.table))
    selection = read(query.request_class())(1, lambda *_: [PARTITION])
    position = snapshot.position(broadcaster.store_id, PARTITION)
    assert position is not None
    positions = {PARTITION: position}
    cursor = start_live(snapshot, broadcaster.store_id, positions, selection)
    subscriber = broadcaster.join(view, selection, _rows, cursor.change_positions, positions)
    assert subscriber is not None
    return subscriber


def _rows(given: Sequence[Given], _: ChangePositions, __: Positions, ___: bool) -> bytes:
    return b"".join(each.row or b"" for each in given)


def main(changes: Annotated[int, typer.Option(min=1, help="Changes of each size.")] = 300) -> None:
    """Print what a change costs for each number of tenants."""
    for count in COUNTS:
        for kind in KINDS:
            tenants = list(range(count)) if kind.table == "tickets" else [f"tenant-{each}" for each in range(count)]
            with tempfile.TemporaryDirectory(prefix="tablegate-bench-") as directory:
                cost = measure(Path(directory), kind, tenants, changes)
            took = f"{cost.alone_us:6.1f} µs a change alone, {cost.together_us:5.1f} of {TOGETHER} in a commit"
            print(f"{count:>6,} tenants, by {kind.name:8}: {took}; {cost.kilobytes:.1f} KB a tenant")


if __name__ == "__main__":
    typer.run(main)
