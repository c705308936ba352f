"""Functions of tables that keep a state of their own: Spark's `transformWithState`, through a kill and a restart.

Spark's public method asks for pandas, also where a processor takes rows.
"""

import json
import uuid
from pathlib import Path

import pytest

from tablegate.examples.demo.kafka import Broker
from tablegate.jobs.planning.declarations import load_table
from tablegate.jobs.testing import Event, run_table
from tests.kit.job.counting_job import CONTRACT, rows
from tests.kit.job.process import JobProcess, wait_until
from tests.kit.programs.kafka import NewRecord, new_topic, produce

pytestmark = pytest.mark.jvm

PROCESSORS = {
    "transformWithState": """
        amount, count = self.total.get() if self.total.exists() else (0.0, 0)
        for row in rows:
            amount, count = amount + row.amount, count + 1
        self.total.update((amount, count))
        yield Row(customer=key[0], order_count=count, amount=amount)""",
    "transformWithStateInPandas": """
        amount, count = self.total.get() if self.total.exists() else (0.0, 0)
        for frame in rows:
            amount, count = amount + float(frame["amount"].sum()), count + len(frame)
        self.total.update((amount, count))
        yield pandas.DataFrame({"customer": [key[0]], "order_count": [count], "amount": [amount]})""",
}
DECLARATION = """
import pandas
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from tablegate.jobs import FrameTable, Json, Source


class Totals(StatefulProcessor):
    def init(self, handle):
        self.total = handle.getValueState("total", "amount DOUBLE, orders BIGINT")

    def handleInputRows(self, key, rows, timer_values):{body}

    def close(self):
        pass


def totals(orders):
    row = "customer STRING, order_count BIGINT, amount DOUBLE"
    return orders.where("amount IS NOT NULL").groupBy("customer").{method}(Totals(), row, "Update", "None")


TABLE = FrameTable(
    name="{name}",
    contract="orders.proto",
    rows=totals,
    sources={{"orders": Source("{topic}", Json("customer STRING, amount DOUBLE"))}},
)
"""


def declared(directory: Path, method: str, topic: str) -> tuple[str, str]:
    """Write the declaration; return its path, and the table's name."""
    name = f"kept_{uuid.uuid4().hex[:8]}"
    (directory / "orders.proto").write_text(CONTRACT.read_text().replace('"order_totals"', f'"{name}"'))
    path = directory / "kept.py"
    path.write_text(DECLARATION.format(body=PROCESSORS[method], method=method, name=name, topic=topic))
    return str(path), name


@pytest.mark.parametrize("method", PROCESSORS)
def test_a_state_of_a_users_own_goes_on_after_a_kill(broker: Broker, tmp_path: Path, method: str) -> None:
    topic = new_topic(broker.bootstrap, 2)
    job, _ = declared(tmp_path, method, topic)
    arguments = ("--table", job, "--bootstrap", broker.bootstrap, "--checkpoints", str(tmp_path / "checkpoints"))

    def order(customer: str, amount: object, partition: int) -> None:
        value = json.dumps({"customer": customer, "amount": amount}).encode()
        produce(broker.bootstrap, topic, [NewRecord(None, value, partition=partition)])

    def await_rows(running: JobProcess, expected: dict[str, tuple[int, float]]) -> None:
        wait_until(f"rows {expected}", lambda: rows(broker.bootstrap, job) == expected, running)

    for amount, partition in ((1.0, 0), (2.0, 1), (None, 0)):
        order("ann", amount, partition)
    with JobProcess(tmp_path / "job", *arguments) as running:
        await_rows(running, {"ann": (2, 3.0)})
        order("bob", 8.0, 1)
        await_rows(running, {"ann": (2, 3.0), "bob": (1, 8.0)})
    order("ann", 4.0, 1)
    with JobProcess(tmp_path / "job", *arguments) as running:
        await_rows(running, {"ann": (3, 7.0), "bob": (1, 8.0)})
        order("bob", 16.0, 0)
        await_rows(running, {"ann": (3, 7.0), "bob": (2, 24.0)})


@pytest.mark.parametrize("method", PROCESSORS)
def test_the_kit_runs_a_state_of_a_users_own(tmp_path: Path, method: str) -> None:
    job, _ = declared(tmp_path, method, "orders")
    first, second, third = (Event("orders", value={"customer": "ann", "amount": one}) for one in (1.0, 2.0, 4.0))
    result = run_table(load_table(job), [first, second], [third])
    assert result.rows == {("ann",): {"order_count": 3, "amount": 7.0}}
    assert [change.row for change in result.changes] == [
        {"order_count": 2, "amount": 3.0},
        {"order_count": 3, "amount": 7.0},
    ]
