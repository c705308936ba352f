"""Tables of Kafka Streams, served from its own changelogs: they are what its interactive queries answer."""

import random
import time
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tablegate.examples.demo.kafka import Broker
from tests.kit.gateway_processes.foreign import ForeignTables
from tests.kit.gateway_processes.gateway import soon
from tests.kit.programs.kafka import new_topic
from tests.kit.programs.kafka_streams import StreamsTables

pytestmark = pytest.mark.jvm

PARTITIONS = 3
GETS = 200  # of each table
WAIT_S = 300.0  # on a busy machine, with 600,000 inputs


def _write(bootstrap: str, topic: str, seed: int, count: int, keys: int, *, since_ms: int) -> None:
    """Write inputs of ten minutes, in the order of their times: a versioned store would go by these."""
    rng = random.Random(seed)
    settings = {"queue.buffering.max.messages": count + 1}
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", **settings})
    for number in range(count):
        value = "delete" if rng.random() < 0.1 else rng.choice(["ann", "ben", "zoë"])
        producer.produce(
            topic, key=f"k{rng.randrange(keys)}", value=value, timestamp=since_ms + number * 600_000 // count
        )
    assert producer.flush(60) == 0


@pytest.mark.parametrize(
    ("keys", "inputs", "rows_min"),
    [(20, 600, 10), pytest.param(130_000, 300_000, 100_000, marks=[pytest.mark.long, pytest.mark.timeout(1_800)])],
)
def test_changelogs_are_served_as_interactive_queries_answer(
    tmp_path: Path, broker: Broker, kafka_streams: Path, keys: int, inputs: int, rows_min: int
) -> None:
    now_ms = round(time.time() * 1_000)
    application = f"app-{uuid.uuid4().hex[:8]}"
    topic = new_topic(broker.bootstrap, PARTITIONS, "inputs")
    windows = new_topic(broker.bootstrap, PARTITIONS, "windows", cleanup_policy="compact")
    _write(broker.bootstrap, topic, 7, inputs, keys, since_ms=now_ms - 1_200_000)
    with (
        StreamsTables(kafka_streams, tmp_path, broker.bootstrap, application, topic, windows) as streams,
        ForeignTables(tmp_path, broker.bootstrap) as tables,
    ):
        streams.rows(inputs)
        of_text = ("--key", "utf8", "--value", "json")
        kept = ("--retention", "1d")
        tables.add("orders", "--topic", streams.changelog("totals"), *of_text)
        views = ("page_views", "--topic", streams.changelog("views"), *of_text, "--windowed", "time-store")
        tables.add(*views, *kept)
        sessions = ("sessions", "--topic", streams.changelog("sessions"), *of_text, "--windowed", "session")
        tables.add(*sessions, *kept)
        for name in ("orders", "page_views", "sessions"):
            tables.wait_for(name, 1, WAIT_S)
        _write(broker.bootstrap, topic, 8, inputs, keys, since_ms=now_ms - 600_000)
        asked = streams.rows(2 * inputs)
        stored = {
            table: {row.key: row.value for row in asked if row.table == table}
            for table in ("totals", "stamped", "versions", "views", "sessions")
        }
        soon(lambda: _totals(tables) == stored["totals"], "the totals are those of Kafka Streams", WAIT_S)
        soon(lambda: _views(tables) == stored["views"], "the windows are those of Kafka Streams", WAIT_S)
        soon(lambda: _sessions(tables) == stored["sessions"], "the sessions are those of Kafka Streams", WAIT_S)
        assert all(len(rows) >= rows_min for rows in stored.values()), {
            name: len(rows) for name, rows in stored.items()
        }
        assert all(tables.poison(name) == {} for name in ("orders", "page_views", "sessions"))
        for name in ("orders", "page_views", "sessions"):
            rows = tables.rows(name)
            for row in random.Random(9).sample(rows, min(GETS, len(rows))):
                assert tables.get(name, row) == row
        for generation, store in enumerate(("stamped", "versions"), start=2):
            tables.add("orders", "--topic", streams.changelog(store), *of_text)
            tables.wait_for("orders", generation, WAIT_S)
            found = {(row.order_id,): {"quantity": row.quantity} for row in tables.rows("orders")}
            assert found == stored[store], f"the rows of {store} are those of Kafka Streams"
            assert tables.poison("orders") == {}
        tables.add("page_views", "--topic", windows, *of_text, "--windowed", "time")
        tables.wait_for("page_views", 2, WAIT_S)
        assert _views(tables) == stored["views"]


def _totals(tables: ForeignTables) -> object:
    return {(row.order_id,): {"quantity": row.quantity, "customer": row.customer} for row in tables.rows("orders")}


def _views(tables: ForeignTables) -> object:
    return {
        (row.page, str(row.start_time.ToMilliseconds())): {"view_count": row.view_count}
        for row in tables.rows("page_views")
    }


def _sessions(tables: ForeignTables) -> object:
    return {
        (row.user_name, str(row.start_ms), str(row.end_ms)): {"event_count": row.event_count}
        for row in tables.rows("sessions")
    }
