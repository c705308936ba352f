"""What an index costs: a look-up beside a Get, over one partition and twelve; writes with none, one and two.

It runs in this process, without a network: what is counted is the CPU of the handler and of the store, of which the
server's own work would only hide a part.
"""

import gc
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from struct import pack
from typing import Any

import fastavro

from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.indexes import RowIndexes
from tablegate.gateway.contract.rows import RowDecoder, row_schema
from tablegate.gateway.contract.types import Offset, Partition, StoreId, make_version
from tablegate.gateway.query.call import Method, UnaryMethod
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.server.replicator import YOUNG_OBJECTS_MAX
from tablegate.gateway.stores.base import Change, Phase, Position
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tablegate.gateway.stores.notifier import Notifier
from tests.bench.figures import Figures
from tests.bench.load import say
from tests.kit.table.accounts import ACCOUNTS, SERVICE, accounts_table
from tests.kit.table.filled import SIGNER, FilledTable, LocalCall, catalogue_of

ROWS = 20_000
CALLS = 2_000
BATCH = 2_000
BANKS = 50
INDEXES = ("by_number", "by_city")


def measure(work: Path, figures: Figures, *, repeat: int) -> None:
    """Record CPU of look-ups and of writes."""
    for partition_count in (1, 12):
        _index_reads(work / f"look-ups-{partition_count}", figures, partition_count, repeat)
    with _collecting_seldom():
        _writes(work, figures, repeat)


@contextmanager
def _collecting_seldom() -> Iterator[None]:
    """Let the garbage collector run as in the replicator; what else is measured in this process has it as before."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS_MAX, 10, 10)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _account(table: Table, number: int, version: int = 0) -> Any:
    row: Any = table.row_class(bank=f"bank-{number % BANKS}", account_id=number, number=f"DE{number + version:020d}")
    row.address.city = f"city-{number % 1_000}"
    row.balance = number * 7_919 % 1_000_003 + version
    return row


def _index_reads(path: Path, figures: Figures, partition_count: int, repeat: int) -> None:
    catalogue, store = catalogue_of(ACCOUNTS), LmdbStore(path)
    filled = FilledTable(store, catalogue.tables["accounts"], partition_count)
    filled.publish()
    say(f"writing {ROWS:,} accounts of {partition_count} partitions")
    for first in range(0, ROWS, BATCH):
        filled.put(_account(filled.table, number) for number in range(first, first + BATCH))
    methods = query_methods(catalogue, store, SIGNER, Notifier())
    asked = [random.Random(1).randrange(ROWS) for _ in range(CALLS)]
    of = f"{partition_count} partition{'s' if partition_count > 1 else ''}"
    for what, method, fields in (
        ("Get by key", "GetAccount", lambda number: {"bank": f"bank-{number % BANKS}", "account_id": number}),
        ("Get by index", "GetAccountByNumber", lambda number: {"number": f"DE{number:020d}"}),
        (
            "Get by index that fixes the partition",
            "GetAccountOfBank",
            lambda number: {"bank": f"bank-{number % BANKS}", "number": f"DE{number:020d}"},
        ),
        ("Range of 50 by index", "ListAccountsInCity", lambda number: {"city": f"city-{number % 1_000}"}),
    ):
        request_class = catalogue.queries[f"{SERVICE}/{method}"].request_class
        requests = [request_class(**fields(number)).SerializeToString() for number in asked]
        took = [_cpu_us(methods[f"{SERVICE}/{method}"], requests) for _ in range(repeat)]
        figures.record(f"{what}, {of}, handler's CPU", "tablegate", took, "µs")
    store.close()


def _cpu_us(method: Method, requests: Sequence[bytes]) -> float:
    assert isinstance(method, UnaryMethod)
    handler, call = method.handler, LocalCall()
    begin_s = time.process_time()
    for request in requests:
        assert isinstance(handler(request, call), bytes)
    return (time.process_time() - begin_s) / len(requests) * 1e6


def _writes(work: Path, figures: Figures, repeat: int) -> None:
    table = accounts_table()
    chosen = [next(index for index in table.indexes if index.name == name) for name in INDEXES]
    decoder = RowDecoder(table, {1: json.dumps(row_schema(table))})
    values = [[_value(table, number, version) for number in range(ROWS)] for version in (0, 1)]
    keys = [pack(">Q", number) for number in range(ROWS)]
    random.Random(2).shuffle(keys)
    for what, versions in (
        ("new rows", (0,)),
        ("rows replaced, indexed columns changed", (0, 1)),
        ("rows replaced, indexed columns as before", (0, 0)),
    ):
        for decodes in (True, False):
            for count in range(len(chosen) + 1):
                name = f"apply {what}{', decoded' if decodes else ''}, {count} indexes, CPU a row"
                say(name)
                indexes = RowIndexes(chosen[:count], table.row_class)
                took = []
                for turn in range(repeat):
                    store = LmdbStore(work / f"writes-{turn}-{count}-{len(took)}-{decodes}-{len(versions)}-{what}")
                    store.keep_indexes(StoreId(1), indexes)
                    took.append(_write(store, keys, [values[each] for each in versions], decoder.decode, decodes))
                    store.close()
                figures.record(name, "tablegate", took, "µs")


def _write(
    store: LmdbStore,
    keys: Sequence[bytes],
    rounds: Sequence[Sequence[bytes]],
    decode: Callable[[bytes], bytes],
    decodes: bool,
) -> float:
    """Write all rows, for each round once; return what a row of the last round took."""
    offset = 0
    for values in rounds:
        rows = values if decodes else [decode(value) for value in values]
        spent_s = 0.0
        for first in range(0, len(keys), BATCH):
            begin_s = time.process_time()
            changes = []
            for number in range(first, min(first + BATCH, len(keys))):
                row = decode(rows[number]) if decodes else rows[number]
                changes.append(Change(Offset(offset), keys[number], make_version(1, offset + 1), row, 0))
                offset += 1
            store.apply(StoreId(1), Partition(0), changes, Position(Offset(offset), 0, Phase.RESTORING, Offset(0)))
            spent_s += time.process_time() - begin_s
    return spent_s / len(keys) * 1e6


def _value(table: Table, number: int, version: int) -> bytes:
    row = _account(table, number, version)
    columns = {
        "bank": row.bank,
        "account_id": row.account_id,
        "number": row.number,
        "address": {"city": row.address.city, "street": None},
        "balance": row.balance,
        "tags": [],
        "state": None,
        "opened_time": None,
    }
    body = BytesIO()
    fastavro.schemaless_writer(body, _schema(table), columns)
    return pack(">bI", 0, 1) + body.getvalue()


_schemas: dict[str, Any] = {}


def _schema(table: Table) -> Any:
    if table.name not in _schemas:
        _schemas[table.name] = fastavro.parse_schema(row_schema(table))
    return _schemas[table.name]
