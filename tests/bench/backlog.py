"""A backlog: what jobs find in their source topics; written once, and each run has a broker with a copy of its own."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tablegate.examples.demo.kafka import Broker
from tablegate.examples.samples import (
    Event,
    balances,
    browsers,
    create_topic,
    customers,
    invoices,
    products,
    ratings,
    record_count,
    send,
    stocks,
)
from tablegate.jobs.table import Table
from tests.bench.load import say

MOVIES = 10_000
CUSTOMERS = 10_000
BROWSERS = 10_000
PRODUCTS = 10_000
CARDS = 10_000


def _systems(records: int) -> Iterator[tuple[Mapping[str, int], Iterator[Event]]]:
    """Yield the topics of each system that produces events, and that many events."""
    yield ratings.TOPICS, ratings.events(records, movies=MOVIES)
    yield balances.TOPICS, balances.events(records, customers=CUSTOMERS)
    yield customers.TOPICS, customers.events(records, customers=CUSTOMERS)
    yield browsers.TOPICS, browsers.events(records, browsers=BROWSERS)
    yield invoices.TOPICS, invoices.events(records, cards=CARDS)
    yield stocks.TOPICS, stocks.events(records)
    yield products.TOPICS, products.events(records, products=PRODUCTS)


def source_topics(table: Table) -> set[str]:
    """Return the topics that a table is made of."""
    return {table.source_of(side).topic for side in table.all_sides}


class Backlog:
    """Records of the sources of some tables, in the data of a broker that does not run."""

    def __init__(self, directory: Path, tables: list[Table], records: int) -> None:
        self._directory = directory
        self.records: dict[str, int] = {}
        """Number of records by topic."""
        wanted = {topic for table in tables for topic in source_topics(table)}
        with Broker(directory / "backlog", log_file=directory / "backlog.log", compiler=()) as broker:
            for topics, events in _systems(records):
                if wanted.isdisjoint(topics):
                    continue
                say(f"writing {records:,} records into {', '.join(topics)}")
                for topic, partitions in topics.items():
                    create_topic(broker.bootstrap, topic, partitions)
                send(broker.bootstrap, events)
                self.records |= {topic: record_count(broker.bootstrap, topic) for topic in topics}

    def of(self, table: Table) -> int:
        """Return how many records a table is made of."""
        return sum(self.records[topic] for topic in source_topics(table))

    @contextmanager
    def broker(self, name: str) -> Iterator[Broker]:
        """Run a broker that has the backlog and nothing else; its data is removed at the end."""
        data = self._directory / name
        shutil.copytree(self._directory / "backlog", data)
        try:
            with Broker(data, log_file=self._directory / f"{name}.log", compiler=()) as broker:
                yield broker
        finally:
            shutil.rmtree(data)
