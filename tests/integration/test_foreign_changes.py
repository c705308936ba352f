"""Topics of others whose tables, contracts and topics change under gateways that run and clients that subscribe."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tablegate.client import LiveTable
from tablegate.examples.demo.kafka import Broker
from tablegate.gateway.contract.catalogue import Catalogue
from tests.kit.gateway_processes.foreign import ForeignTables
from tests.kit.gateway_processes.gateway import GatewayProcess, soon
from tests.kit.gateway_processes.row_queries import RowQueries
from tests.kit.programs.kafka import create_topic, new_topic
from tests.kit.table.contracts import bind_sources, edited
from tests.kit.table.foreign import FOREIGN, foreign_catalogue

pytestmark = pytest.mark.jvm

PARTITIONS = 3
SERVICE = "/shop.others.v1.OrdersService"
WAIT_S = 60.0


def put(tables: ForeignTables, topic: str, rows: Mapping[str, Any]) -> None:
    """Write rows as JSON; None deletes one."""
    tables.write(
        topic,
        [(key.encode(), key.encode(), None if row is None else json.dumps(row).encode()) for key, row in rows.items()],
    )


def add(tables: ForeignTables, topic: str) -> int:
    """Add the table; return its generation."""
    tables.add("orders", "--topic", topic, "--key", "utf8", "--value", "json")
    return tables.generation("orders")


def quantities(rows: Any) -> dict[str, int]:
    return {row.order_id: row.quantity for row in rows}


@contextmanager
def live_copy(gateway: GatewayProcess) -> Iterator[LiveTable[Any, Any]]:
    query = foreign_catalogue().queries[f"{SERVICE}/SubscribeOrders"]
    assert gateway.channel is not None
    method = gateway.channel.unary_stream(
        query.path, lambda message: message.SerializeToString(), query.response_class.FromString
    )
    with LiveTable(method, query.request_class()) as copy:
        yield copy


def test_a_table_comes_and_goes_under_its_subscribers(tmp_path: Path, broker: Broker) -> None:
    topic = new_topic(broker.bootstrap, PARTITIONS, "orders", cleanup_policy="compact")
    with ForeignTables(tmp_path, broker.bootstrap) as tables:
        put(tables, topic, {f"o-{number}": {"quantity": number} for number in range(50)})
        tables.wait_for("orders", add(tables, topic))
        with live_copy(tables.gateway) as copy:

            def is_copied(rows: Mapping[str, int]) -> None:
                soon(lambda: copy.is_current and quantities(copy.values()) == rows, f"a copy of {len(rows)}", WAIT_S)

            is_copied({f"o-{number}": number for number in range(50)})
            tables.command("remove", "orders")
            soon(lambda: not tables.is_served("orders"), "it is served no more")
            put(tables, topic, {"o-1": None, "o-2": {"quantity": 200}})
            tables.wait_for("orders", add(tables, topic))
            rows = {f"o-{number}": number for number in range(50) if number != 1} | {"o-2": 200}
            is_copied(rows)
            # The topic is deleted, and made again by somebody: its records are others.
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            admin.delete_topics([topic])[topic].result(30)
            soon(lambda: topic not in admin.list_topics(timeout=10).topics, "the topic is deleted", WAIT_S)
            create_topic(broker.bootstrap, topic, PARTITIONS, {"cleanup.policy": "compact"})
            put(tables, topic, {"o-2": {"quantity": 2}, "o-77": {"quantity": 77}})
            soon(lambda: not tables.is_served("orders"), "the new topic is not taken for the old one", WAIT_S)
            tables.wait_for("orders", add(tables, topic), WAIT_S)
            is_copied({"o-2": 2, "o-77": 77})
            put(tables, topic, {"o-77": None, "o-78": {"quantity": 78}})
            is_copied({"o-2": 2, "o-78": 78})


def test_gateways_of_two_contracts_serve_one_topic(tmp_path: Path, broker: Broker) -> None:
    """Each reads the topic by its own, and whoever restarts with the new one reads it anew."""
    text = FOREIGN.read_text()
    topic = new_topic(broker.bootstrap, PARTITIONS, "orders", cleanup_policy="compact")
    changes = {
        "added": (("  string customer = 2;", "  string customer = 2;\n  string note = 20;"),),
        "removed": (("  string customer = 2;\n", ""),),
        "renamed": (("string customer = 2;", "string buyer = 2;"),),
        "narrower": (("int64 quantity = 3;", "int32 quantity = 3;"),),
    }
    columns = {"customer": "ann", "buyer": "ben", "note": "soon"}
    wanted = {"added": ("ann", None, "soon"), "removed": (None,) * 3, "renamed": (None, "ben", None)}
    with ForeignTables(tmp_path, broker.bootstrap) as tables:
        put(tables, topic, {f"o-{number}": {"quantity": number, **columns} for number in range(20)})
        put(tables, topic, {"o-99": {"quantity": 2**40, **columns}})
        tables.wait_for("orders", add(tables, topic))
        for name, edits in changes.items():
            (tmp_path / name).mkdir()
            contract = tmp_path / name / "foreign.proto"
            contract.write_text(edited(text, *edits))
            catalogue = bind_sources(tmp_path / name, foreign=contract.read_text())
            gateway = GatewayProcess(
                tmp_path / name / "data",
                broker.bootstrap,
                contract=contract,
                tables_topic=tables.tables_topic,
                workers=1,
            )
            with gateway:
                soon(lambda: _orders(gateway, catalogue), f"the gateway of a column that is {name} serves", WAIT_S)  # noqa: B023
                put(tables, topic, {"o-1": {"quantity": 100, **columns}})
                soon(lambda: _orders(gateway, catalogue)["o-1"].quantity == 100, "it follows", WAIT_S)  # noqa: B023
                rows = _orders(gateway, catalogue)
                assert len(rows) == (20 if name == "narrower" else 21)
                if name in wanted:
                    row = rows["o-1"]
                    assert tuple(getattr(row, column, None) for column in columns) == wanted[name]
            assert {row.customer for row in tables.rows("orders")} == {"ann"}
            assert len(tables.rows("orders")) == 21
            put(tables, topic, {"o-1": {"quantity": 1, **columns}})


def _orders(gateway: GatewayProcess, catalogue: Catalogue) -> dict[str, Any]:
    queries = [query for query in catalogue.queries.values() if query.table.name == "orders"]
    return {row.order_id: row for row in RowQueries(gateway, queries).rows()}
