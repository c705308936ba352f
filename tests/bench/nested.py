"""A flat row beside one with five items and two maps, in one gateway: what more is in it, and what that costs."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.catalogue import BatchGetQuery, Catalogue, GetQuery, Query, ScanQuery
from tablegate.gateway.contract.descriptors import load_descriptors
from tests.bench.changelog import Changelog
from tests.bench.contestants import Bench
from tests.bench.load import Target, say
from tests.bench.reads import REQUESTS, WARM_S

CONTRACT = Path(__file__).with_name("orders.proto")
ITEMS, ENTRIES = 5, 4
BATCH_KEYS = 100


def order(number: int, time_us: int) -> dict[str, Any]:
    """Return an order, about eight times as long as a rating."""
    price = (number % 10_000 * 10**7).to_bytes(12, "big", signed=True)
    return {
        "order_id": number,
        "items": [{"sku": f"sku-{number + item}", "pieces": item + 1, "price": price} for item in range(ITEMS)],
        "labels": {f"label-{entry}": f"value-{number}" for entry in range(ENTRIES)},
        "counts": {f"count-{entry}": number + entry for entry in range(ENTRIES)},
        "update_time": time_us,
    }


def measure(bench: Bench) -> None:
    """Record Gets, BatchGets and Scans of both tables, and the restore of the orders."""
    orders = bind(load_descriptors(CONTRACT))
    say(f"writing a changelog of {bench.rows:,} orders")
    Changelog(orders.tables["orders"], "orders-g1-changelog", order).seed(bench.stack.bootstrap, bench.rows)
    say("restoring it")
    with bench.stack.gateway(contracts=[CONTRACT], name="orders") as gateway:
        rate = gateway.restored_rows_per_second()
        bench.figures.record("restore, rows of 5 items and 2 maps", "tablegate", [rate], "rows/s")
    ratings = bind(load_descriptors(bench.stack.protoset))
    with bench.stack.gateway(contracts=[bench.stack.protoset, CONTRACT], name="both") as gateway:
        target = Target("tablegate", gateway.address, gateway.pid)
        for what, kind, requests, of, times in (
            ("Get", GetQuery, _gets, "request", 1),
            (f"BatchGet of {BATCH_KEYS}", BatchGetQuery, _batches, "key", BATCH_KEYS),
        ):
            for row, catalogue in (("flat rows", ratings), ("5 items and 2 maps", orders)):
                say(f"{what}, {row}")
                query = _query(catalogue, kind)
                sent = bench.generators.requests(query.path, requests(query, bench.rows))
                bench.generators.calls(target, sent, WARM_S)
                load = _calls(bench, sent)
                bench.record(f"{what}, {row}", bench.in_turns([target], load), of=of, times=times)
        for row, catalogue in (("flat rows", ratings), ("5 items and 2 maps", orders)):
            say(f"Scan, {row}")
            _scan(bench, target, _query(catalogue, ScanQuery), row)


def _calls(bench: Bench, sent: Any) -> Callable[[Target], Any]:
    return lambda target: bench.generators.calls(target, sent, bench.seconds)


def _scan(bench: Bench, target: Target, query: Query, row: str) -> None:
    if not bench.generators.go:
        return
    sent = bench.generators.requests(query.path, [b""])
    bench.generators.scan(target, sent, bench.rows)
    loads = bench.in_turns([target], lambda _: bench.generators.scan(target, sent, bench.rows))
    bench.record(f"Scan, {row}", loads, of="row")
    bench.figures.record(f"row in a Scan, {row}", "tablegate", [_bytes_of_row(target, query, bench.rows)], "bytes")


def _bytes_of_row(target: Target, query: Query, rows: int) -> float:
    """Return how long a row is, by what a Scan answers."""
    with grpc.insecure_channel(target.address, options=[("grpc.max_receive_message_length", -1)]) as channel:
        messages = channel.unary_stream(query.path)(b"")
        return sum(map(len, messages)) / rows


def _query(catalogue: Catalogue, kind: type[Query]) -> Query:
    return next(query for query in catalogue.queries.values() if isinstance(query, kind))


def _gets(query: Query, rows: int) -> list[bytes]:
    name = query.table.key[0].name
    choice = random.Random(1)
    return [
        query.request_class(**{name: choice.randint(1, rows)}).SerializeToString()  # type: ignore[misc]
        for _ in range(REQUESTS)
    ]


def _batches(query: Query, rows: int) -> list[bytes]:
    assert isinstance(query, BatchGetQuery)
    choice = random.Random(1)
    name, found = query.table.key[0].name, []
    for _ in range(REQUESTS):
        numbers = choice.choices(range(1, rows + 1), k=BATCH_KEYS)
        keys = [{name: number} for number in numbers] if query.key_fields else numbers
        found.append(query.request_class(**{query.keys.name: keys}).SerializeToString())
    return found
