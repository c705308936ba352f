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

INPUTS = 600
PARTITIONS = 3


def _write(bootstrap: str, topic: str, rng: random.Random, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    begin_ms = round(time.time() * 1_000) - 600_000
    for number in range(count):
        value = "delete" if rng.random() < 0.1 else rng.choice(["ann", "ben", "zoë"])
        producer.produce(topic, key=f"k{rng.randrange(20)}", value=value, timestamp=begin_ms + number * 500)
    assert producer.flush(30) == 0


def test_changelogs_are_served_as_interactive_queries_answer(
    tmp_path: Path, broker: Broker, kafka_streams: Path
) -> None:
    application = f"app-{uuid.uuid4().hex[:8]}"
    topic = new_topic(broker.bootstrap, PARTITIONS, "inputs")
    windows = new_topic(broker.bootstrap, PARTITIONS, "windows", cleanup_policy="compact")
    _write(broker.bootstrap, topic, random.Random(7), INPUTS)
    with (
        StreamsTables(kafka_streams, tmp_path, broker.bootstrap, application, topic, windows) as streams,
        ForeignTables(tmp_path, broker.bootstrap) as tables,
    ):
        streams.rows(INPUTS)
        of_text = ("--key", "utf8", "--value", "json")
        kept = ("--retention", "1d")
        tables.add("orders", "--topic", streams.changelog("totals"), *of_text)
        views = ("page_views", "--topic", streams.changelog("views"), *of_text, "--windowed", "time-store")
        tables.add(*views, *kept)
        sessions = ("sessions", "--topic", streams.changelog("sessions"), *of_text, "--windowed", "session")
        tables.add(*sessions, *kept)
        for name in ("orders", "page_views", "sessions"):
            tables.wait_for(name, 1)
        _write(broker.bootstrap, topic, random.Random(8), INPUTS)
        asked = streams.rows(2 * INPUTS)
        stored = {
            table: {row.key: row.value for row in asked if row.table == table}
            for table in ("totals", "views", "sessions")
        }
        soon(lambda: _totals(tables) == stored["totals"], "the totals are those of Kafka Streams")
        soon(lambda: _views(tables) == stored["views"], "the windows are those of Kafka Streams")
        soon(lambda: _sessions(tables) == stored["sessions"], "the sessions are those of Kafka Streams")
        assert all(stored.values())
        assert all(tables.poison(name) == {} for name in ("orders", "page_views", "sessions"))
        for name in ("orders", "page_views", "sessions"):
            for row in tables.rows(name):
                assert tables.get(name, row) == row
        tables.add("page_views", "--topic", windows, *of_text, "--windowed", "time")
        tables.wait_for("page_views", 2)
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
