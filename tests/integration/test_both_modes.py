"""One random history of source records has the same answers, whichever mode keeps the table.

Beside tests/simulation/test_metamorphic.py, which has one history in stores and numbers of gateways of all kinds.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from tablegate.client import LiveTable
from tablegate.examples.demo.kafka import Broker
from tablegate.gateway.contract.binder.binder import bind, merge
from tablegate.gateway.contract.descriptors import load_descriptors
from tablegate.v1.query_pb2 import ORDER_ASCENDING, ORDER_DESCENDING
from tests.kit.gateway_processes.gateway import GatewayProcess, soon
from tests.kit.job.process import JobProcess
from tests.kit.programs.kafka import NewRecord, new_topic, produce

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

SEED = 1
MODES = ("microbatch", "realtime")
REGIONS = ("", "amer", "apac", "emea")
CUSTOMERS = range(-6, 9)
KEYS = [(region, customer) for region in REGIONS for customer in CUSTOMERS]  # the last customer of each has no record
RECORDS = 900  # of a part
ORDER_PARTITIONS = 3
NAME_PARTITIONS = 2
TABLE_PARTITIONS = 3
PAGE_SIZE = 7
CALL_S = 10.0
CATCH_UP_S = 60.0

ROW = """syntax = "proto3";

package tests.modes;

import "tablegate/v1/options.proto";

message Account {{
  option (tablegate.v1.table) = {{name: "{name}", key: "region", key: "customer"}};
  string region = 1;
  int64 customer = 2;
  string name = 3;
  int64 order_count = 4;
  int64 total = 5;
}}
"""
# A row goes when the name does, and while the total is below zero.
JOB = """from tablegate.jobs import Json, Latest, Mode, Source, Table

KEY = Json("region STRING, customer BIGINT")
TABLES = tuple(
    Table(
        name="accounts_" + mode.value,
        contract="accounts_" + mode.value + ".proto",
        sides={{
            "orders": Source("{orders}", Json("amount BIGINT"), key=KEY),
            "names": Latest(Source("{names}", Json("name STRING"), key=KEY)),
        }},
        key={{"region": "region", "customer": "customer"}},
        columns={{"name": "names.name", "order_count": "count(orders)", "total": "sum(orders.amount)"}},
        having="order_count > 0 AND total >= 0",
        mode=mode,
    )
    for mode in Mode
)
"""

Key = tuple[str, int]


class Row(NamedTuple):
    """A row without the message class, which each contract has of its own."""

    region: str
    customer: int
    name: str
    order_count: int
    total: int

    @property
    def key(self) -> Key:
        return self.region, self.customer


class History:
    """What is written to the two topics, and the rows that it makes, folded here."""

    def __init__(self, seed: int) -> None:
        self._choice = random.Random(seed)
        self._orders: dict[Key, list[int]] = {}
        self._names: dict[Key, str] = {}
        self.ever: set[Key] = set()  # keys that had a row after some record

    def part(self) -> tuple[list[NewRecord], list[NewRecord]]:
        """Return some more orders and names: new, changed and deleted ones, and some that are malformed."""
        orders, names = [], []
        choice = self._choice
        for number in range(RECORDS):
            key = choice.choice(REGIONS), choice.choice(CUSTOMERS[:-1])
            record_key = json.dumps({"region": key[0], "customer": key[1]}).encode()
            kind = choice.random()
            if kind < 0.7:
                amount = choice.randint(-60, 60)
                self._orders.setdefault(key, []).append(amount)
                value = json.dumps({"amount": amount}).encode()
                orders.append(NewRecord(record_key, value, partition=choice.randrange(ORDER_PARTITIONS)))
            elif kind < 0.72:
                orders.append(NewRecord(record_key, b"{", partition=choice.randrange(ORDER_PARTITIONS)))
            elif kind < 0.88:
                self._names[key] = f"name {number} of {choice.random()}"
                names.append(NewRecord(record_key, json.dumps({"name": self._names[key]}).encode()))
            else:
                self._names.pop(key, None)
                names.append(NewRecord(record_key, None))
            self.ever |= {key} & self.rows().keys()
        return orders, names

    def rows(self) -> dict[Key, Row]:
        """Return the rows that all records so far make."""
        return {
            key: Row(*key, self._names[key], len(amounts), sum(amounts))
            for key, amounts in self._orders.items()
            if key in self._names and sum(amounts) >= 0
        }


class Served:
    """A table in one of the modes, and what a gateway answers for it. A subscriber follows it from the start."""

    def __init__(self, gateway: GatewayProcess, contract: Path) -> None:
        self.name = contract.stem.removesuffix("_queries")
        self._gateway = gateway
        self._queries = bind(merge([load_descriptors(contract)])).queries

    def subscribed(self) -> LiveTable:
        query = self._query("Subscribe")
        assert self._gateway.channel is not None
        method = self._gateway.channel.unary_stream(
            query.path, query.request_class.SerializeToString, query.response_class.FromString
        )
        return LiveTable(method, query.request_class())

    def scan(self) -> dict[Key, Row]:
        query = self._query("Scan")
        assert self._gateway.channel is not None
        call = self._gateway.channel.unary_stream(
            query.path, query.request_class.SerializeToString, query.response_class.FromString
        )
        rows = [row_of(row) for message in call(query.request_class(), timeout=CALL_S) for row in message.rows]
        found = {row.key: row for row in rows}
        assert len(found) == len(rows), "a row came twice"
        return found

    def answers(self) -> dict[str, Any]:
        """Return what is answered to every question: each key, all at once, pages in both orders, a scan."""
        batch = self._ask("BatchGet", keys=[{"region": region, "customer": customer} for region, customer in KEYS])
        found: dict[str, Any] = {
            "Scan": self.scan(),
            "BatchGet": [row_of(one.found) if one.HasField("found") else None for one in batch.results],
        }
        found |= {f"Get {key}": self._get(key) for key in KEYS}
        for order in (ORDER_ASCENDING, ORDER_DESCENDING):
            found[f"List {order}"] = list(self._pages(order=order))
            found[f"List {order} from amer before emea"] = list(
                self._pages(order=order, region_from="amer", region_before="emea")
            )
        return found

    def _get(self, key: Key) -> Row | None:
        try:
            return row_of(self._ask("Get", region=key[0], customer=key[1]).row)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise
        return None

    def _pages(self, **fields: Any) -> Iterator[list[Row]]:
        token = ""
        while True:
            answer = self._ask("List", page_size=PAGE_SIZE, page_token=token, **fields)
            yield [row_of(row) for row in answer.rows]
            token = answer.next_page_token
            if not token:
                return

    def _query(self, kind: str) -> Any:
        return next(query for path, query in self._queries.items() if f"/{kind}" in path)

    def _ask(self, kind: str, **fields: Any) -> Any:
        query = self._query(kind)
        assert self._gateway.channel is not None
        call = self._gateway.channel.unary_unary(
            query.path, query.request_class.SerializeToString, query.response_class.FromString
        )
        return call(query.request_class(**fields), timeout=CALL_S)


def row_of(message: Any) -> Row:
    return Row(message.region, message.customer, message.name, message.order_count, message.total)


def answers_of(rows: Mapping[Key, Row]) -> dict[str, Any]:
    """Return what must be answered for these rows, as `Served.answers`."""
    ascending = [rows[key] for key in sorted(rows)]
    expected: dict[str, Any] = {"Scan": dict(rows), "BatchGet": [rows.get(key) for key in KEYS]}
    expected |= {f"Get {key}": rows.get(key) for key in KEYS}
    for order, ordered in ((ORDER_ASCENDING, ascending), (ORDER_DESCENDING, ascending[::-1])):
        expected[f"List {order}"] = pages_of(ordered)
        expected[f"List {order} from amer before emea"] = pages_of(
            [row for row in ordered if "amer" <= row.region < "emea"]
        )
    return expected


def pages_of(rows: Sequence[Row]) -> list[list[Row]]:
    return [list(rows[first : first + PAGE_SIZE]) for first in range(0, len(rows), PAGE_SIZE)]


def check_all(served: Sequence[Served], copies: Sequence[LiveTable], rows: Mapping[Key, Row]) -> None:
    """Fail unless both modes answer everything as the fold says, and so alike; wait for what is on its way."""
    for one, copy in zip(served, copies, strict=True):
        wait_for_rows(one, rows)
        answers = one.answers()
        for question, expected in answers_of(rows).items():
            assert answers[question] == expected, f"{one.name}: {question}"
        soon(lambda: copy_of(copy) == rows, f"the subscriber of {one.name} has the rows")  # noqa: B023


def wait_for_rows(one: Served, rows: Mapping[Key, Row]) -> None:
    """Return when a scan has these rows; fail with the difference where it does not come to it."""
    try:
        soon(lambda: one.scan() == rows, "the rows", CATCH_UP_S)
    except AssertionError:
        assert one.scan() == rows, f"{one.name} is not the fold of its sources"


def copy_of(table: LiveTable) -> dict[Key, Row]:
    return {row.key: row for row in map(row_of, list(table.values()))}


@pytest.mark.long
def test_both_modes_answer_the_same(broker: Broker, tmp_path: Path) -> None:
    history = History(SEED)
    topics = [new_topic(broker.bootstrap, ORDER_PARTITIONS), new_topic(broker.bootstrap, NAME_PARTITIONS)]

    def write(records: Sequence[Sequence[NewRecord]]) -> None:
        for topic, some in zip(topics, records, strict=True):
            produce(broker.bootstrap, topic, some)

    job = tmp_path / "job.py"
    job.write_text(JOB.format(orders=topics[0], names=topics[1]))
    arguments = ["--bootstrap", broker.bootstrap, "--checkpoints", str(tmp_path / "checkpoints")]
    arguments += ["--partitions", str(TABLE_PARTITIONS)]
    contracts = []
    for mode in MODES:
        name = f"accounts_{mode}"
        arguments += ["--table", f"{job}:{name}"]
        contracts.append(tmp_path / f"{name}.proto")
        contracts[-1].write_text(ROW.format(name=name))

    with ExitStack() as stack:
        write(history.part())
        with JobProcess(tmp_path / "logs", *arguments) as running:
            gateways = [
                stack.enter_context(GatewayProcess(tmp_path / mode, broker.bootstrap, contract=contract, workers=1))
                for mode, contract in zip(MODES, contracts, strict=True)
            ]
            running.wait_for("running")
            for gateway in gateways:
                gateway.wait_until_serving()
            served = [Served(gateway, contract) for gateway, contract in zip(gateways, contracts, strict=True)]
            copies = [stack.enter_context(one.subscribed()) for one in served]
            first = history.rows()
            check_all(served, copies, first)
            write(history.part())
            soon(lambda: all(one.scan() != first for one in served), "changes of the second part", CATCH_UP_S)
            write(history.part())
            running.kill()  # somewhere in the work on the second and third part
        rows = history.rows()
        assert any(one.scan() != rows for one in served), "the kill came too late to show anything"
        write(history.part())
        rows = history.rows()
        with JobProcess(tmp_path / "logs", *arguments) as running:
            running.wait_for("running")
            check_all(served, copies, rows)
            write(history.part())
            rows = history.rows()
            check_all(served, copies, rows)
            assert running.stop() == 0
        check_all(served, copies, rows)  # nothing has come since
    counts = Counter(key in rows for key in history.ever)
    assert min(counts[True], counts[False]) > len(REGIONS), "rows that stay and rows that went"
