"""A topic that others write, followed by a gateway: rows come and go, and reads are as fresh as they ask for."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from tablegate.examples.demo.kafka import Broker
from tablegate.gateway.contract.keys import murmur2_partition
from tests.kit.command_line import COMMAND
from tests.kit.gateway_processes.foreign import ForeignTables
from tests.kit.gateway_processes.gateway import soon
from tests.kit.programs.kafka import NewRecord, acknowledged, new_topic
from tests.kit.table.foreign import message

pytestmark = pytest.mark.jvm

PARTITIONS = 3


class Orders:
    """A topic of orders in JSON, which is the table `orders`."""

    def __init__(self, tables: ForeignTables) -> None:
        self.tables = tables
        self.topic = new_topic(tables.bootstrap, PARTITIONS, "orders", cleanup_policy="compact")
        self.producer = Producer({"bootstrap.servers": tables.bootstrap, "partitioner": "murmur2_random"})

    def put(self, order_id: str, value: bytes | None) -> tuple[int, int]:
        """Write a record; return its partition and offset."""
        found = acknowledged(self.producer, self.topic, NewRecord(order_id.encode(), value))
        partition, offset = found.partition(), found.offset()
        assert partition == murmur2_partition(order_id.encode(), PARTITIONS)
        assert offset is not None
        return partition, offset

    def get(self, order_id: str, **options: Any) -> Any:
        return self.tables.get("orders", message("Order", {"order_id": order_id}), **options)

    def refused(self, order_id: str, **options: Any) -> Any:
        with pytest.raises(grpc.RpcError) as refused:
            self.get(order_id, **options)
        return refused.value.code()


@pytest.fixture
def orders(tmp_path: Path, broker: Broker) -> Iterator[Orders]:
    with ForeignTables(tmp_path, broker.bootstrap) as tables:
        orders = Orders(tables)
        for number in range(50):
            orders.put(f"o-{number}", json.dumps({"customer": "ann", "quantity": number}).encode())
        tables.add("orders", "--topic", orders.topic, "--key", "utf8", "--value", "json")
        tables.wait_for("orders", 1)
        yield orders


def test_rows_are_as_fresh_as_reads_ask_for(orders: Orders) -> None:
    assert len(orders.tables.rows("orders")) == 50
    for number in range(100):
        partition, offset = orders.put("o-3", json.dumps({"quantity": number}).encode())
        if number % 2:
            found = orders.get("o-3", latest=True)
        else:
            source = {"topics": [{"topic": orders.topic, "offsets": {partition: offset}}]}
            found = orders.get("o-3", at_least_source=source)
        assert found.quantity == number
    orders.put("o-3", None)
    assert orders.refused("o-3", latest=True) is grpc.StatusCode.NOT_FOUND
    # Nobody writes, and the end is known all the same.
    assert orders.get("o-4", max_staleness={"nanos": 200_000_000}).quantity == 4
    future = {"topics": [{"topic": orders.topic, "offsets": {murmur2_partition(b"o-4", PARTITIONS): 10_000}}]}
    assert orders.refused("o-4", at_least_source=future) is grpc.StatusCode.OUT_OF_RANGE
    other = {"topics": [{"topic": "another", "offsets": {0: 1}}]}
    assert orders.refused("o-4", at_least_source=other) is grpc.StatusCode.INVALID_ARGUMENT


def test_it_takes_python_processes_alone(orders: Orders) -> None:
    gateway = orders.tables.gateway
    assert gateway.process is not None
    pids = [gateway.process.pid, *gateway.children()]
    programs = {Path(f"/proc/{pid}/exe").resolve().name for pid in pids}
    assert len(pids) == 3
    assert all(name.startswith("python") for name in programs), "no Spark, no Java"
    assert not any(gateway.children(pid) for pid in pids[1:])


def test_bad_records_are_counted_and_nothing_else(orders: Orders) -> None:
    orders.put("o-4", b"{")
    orders.put("o-5", b'{"quantity": "some"}')
    assert orders.get("o-4", latest=True).quantity == 4
    reasons = {"value is not JSON": 1, 'value has a "quantity" that its column cannot hold': 1}
    soon(lambda: orders.tables.poison("orders") == reasons, "bad records are counted")


def test_commands_show_the_table(orders: Orders) -> None:
    address = orders.tables.gateway.address()
    assert address is not None

    def printed(*arguments: str) -> str:
        return CliRunner().invoke(COMMAND, [*arguments, "--address", address], env={"COLUMNS": "200"}).output

    assert "orders" in printed("status")
    explained = printed("explain", "shop.others.v1.OrdersService/GetOrder", '{"orderId": "o-1"}')
    assert "1 of 3 partitions: that of its order_id" in explained
    assert "not promised: rows that were written in one transaction" in explained


def test_a_restarted_gateway_goes_on(orders: Orders) -> None:
    orders.tables.gateway.stop()
    orders.put("o-1", None)
    orders.put("o-99", b"{}")
    orders.tables.gateway.start()
    orders.tables.wait_for("orders", 1)
    assert {row.order_id for row in orders.tables.rows("orders")} == {f"o-{n}" for n in (*range(50), 99) if n != 1}


def test_a_second_table_of_the_topic(orders: Orders) -> None:
    tables = orders.tables
    tables.add("devices", "--topic", orders.topic, "--key", "bytes", "--value", "json")
    tables.wait_for("devices", 1)
    assert len(tables.rows("devices")) == len(tables.rows("orders")) == 50
    orders.put("o-1", None)
    orders.put("o-2", b'{"name": "both", "quantity": 7}')
    assert orders.get("o-2", latest=True).quantity == 7
    device: Any = tables.get("devices", message("Device", {"address": b"o-2"}), latest=True)
    assert device.name == "both"
    tables.gateway.stop()
    orders.put("o-3", None)
    tables.gateway.start()
    for name in ("orders", "devices"):
        tables.wait_for(name, 1)
        assert len(tables.rows(name)) == 48
    tables.command("remove", "orders")
    soon(lambda: not tables.is_served("orders"), "the first table is served no more")
    orders.put("o-4", None)
    with pytest.raises(grpc.RpcError):
        tables.get("devices", message("Device", {"address": b"o-4"}), latest=True)


def test_a_removed_table_is_served_no_more(orders: Orders) -> None:
    described = json.loads(orders.tables.command("list", "--json"))
    assert (described["table"], described["key"], described["value"]) == ("orders", "utf8", "json")
    orders.tables.command("remove", "orders")
    soon(lambda: not orders.tables.is_served("orders"), "the table is served no more")
    assert orders.refused("o-4") is grpc.StatusCode.UNAVAILABLE
