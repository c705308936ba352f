"""Sample events in a real Kafka: where they lie, what comes back, and what is said where they cannot be had."""

import os
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest

from tablegate.examples.demo.console import progress_bars
from tablegate.examples.demo.kafka import HOST, Broker
from tablegate.examples.demo.launch import KafkaWithSamples, Steps
from tablegate.examples.demo.processes import ProcessEnded
from tablegate.examples.samples import (
    Event,
    EventProducer,
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
from tablegate.examples.samples.systems import RATINGS
from tablegate.gateway.contract.keys import murmur2_partition
from tablegate.jobs.jars import SetupError
from tests.kit.job import folds
from tests.kit.job.folds import Fold
from tests.kit.job.hard_events import extreme_bookings, hard, odd_ticks, odd_views
from tests.kit.job.laid_records import Record, lay, records_of
from tests.kit.job.process import wait_until
from tests.kit.programs.kafka import consume, new_topic


def _known_ratings(topic: str) -> list[Event]:
    return list(ratings.known_events(topic=topic))


def _sent(broker: Broker, events: Iterable[Event], partition_counts: dict[str, int]) -> list[Record]:
    """Send the events to topics of this test's own, and return what lies there."""
    names = {topic: new_topic(broker.bootstrap, count, topic) for topic, count in partition_counts.items()}
    sent = send(broker.bootstrap, (event._replace(topic=names[event.topic]) for event in events))
    records = [record for topic, name in names.items() for record in records_of(topic, consume(broker.bootstrap, name))]
    assert len(records) == sent
    return records


@pytest.mark.jvm
class TestSend:
    @pytest.mark.parametrize(
        ("system", "fold"),
        [
            (ratings, folds.fold_ratings),
            (balances, folds.fold_balances),
            (customers, folds.fold_customers),
            (browsers, folds.fold_suspicious_browsers),
            (browsers, folds.fold_action_counts),
            (invoices, folds.fold_reward_points),
            (stocks, folds.fold_stock_ticks),
            (products, folds.fold_product_views),
        ],
    )
    def test_what_lies_in_kafka_folds_to_what_was_made(
        self, broker: Broker, system: ModuleType, fold: Callable[[Iterable[Record]], Fold]
    ) -> None:
        events = list(hard([*system.known_events(), *system.events(2_000)]))
        events += list(extreme_bookings()) if system is balances else []
        events += list(odd_views()) if system is products else []
        events += list(odd_ticks()) if system is stocks else []
        records = _sent(broker, events, system.TOPICS)
        found, expected = fold(records), fold(lay(events, system.TOPICS))
        assert _untimed(found) == _untimed(expected)
        assert len(found.malformed) == len(expected.malformed) > 10
        assert (found.ignored, found.late) == (expected.ignored, expected.late)

    def test_keys_lie_where_a_java_producer_puts_them_in_their_order(self, broker: Broker) -> None:
        events = list(ratings.events(500))
        records = _sent(broker, events, {"ratings": 3})
        in_order: defaultdict[int, list[bytes | None]] = defaultdict(list)
        for event in events:
            assert event.key is not None
            in_order[murmur2_partition(event.key, 3)].append(event.value)
        for partition in range(3):
            assert [record.value for record in records if record.partition == partition] == in_order[partition]

    def test_partition_and_timestamp_are_kept(self, broker: Broker) -> None:
        topic = new_topic(broker.bootstrap, 3)
        event = Event(topic, b"key", None, partition=2, timestamp_ms=1_700_000_000_123)
        send(broker.bootstrap, [event, event._replace(key=None, value=b"", partition=1)])
        first, second = consume(broker.bootstrap, topic)
        assert (first.partition, first.key, first.value) == (1, None, b"")
        assert (second.partition, second.key, second.value) == (2, b"key", None)
        assert (first.timestamp_ms, second.timestamp_ms) == (1_700_000_000_123, 1_700_000_000_123)

    def test_progress_is_told(self, broker: Broker) -> None:
        topic = new_topic(broker.bootstrap)
        seen: list[int] = []
        assert send(broker.bootstrap, _known_ratings(topic), progress=seen.append) == 2
        assert seen == [1, 2]
        assert record_count(broker.bootstrap, topic) == 2

    def test_what_did_not_arrive_is_counted_by_flush(self, broker: Broker) -> None:
        topic = new_topic(broker.bootstrap)
        sender = EventProducer(broker.bootstrap, delivery_timeout_s=3.0)
        for event in [*_known_ratings(topic), *_known_ratings("misspelt"), *_known_ratings("wrong")]:
            sender.send(event)
        with pytest.raises(SetupError, match=r'^4 events did not get into topic "misspelt", "wrong" at .* \(.+\): '):
            sender.flush()
        sender.send(_known_ratings(topic)[0])
        sender.flush()
        assert record_count(broker.bootstrap, topic) == 3

    def test_partition_that_is_missing(self, broker: Broker) -> None:
        topic = new_topic(broker.bootstrap)
        events = [event._replace(partition=7) for event in _known_ratings(topic)]
        for _ in range(2):  # the second time, the client knows the topic
            with pytest.raises(SetupError, match=rf'^2 events did not get into topic "{topic}"'):
                send(broker.bootstrap, events)


def _untimed(fold: Fold) -> Counter[str]:
    return Counter(
        str((key, sorted((name, value) for name, value in row.items() if name != "update_time")))
        for key, row in fold.rows.items()
    )


@pytest.mark.jvm
def test_a_demo_says_that_its_kafka_has_ended(tmp_path: Path) -> None:
    """And does not wait for what it cannot send any more, nor blame it."""
    with ExitStack() as stack:
        steps = Steps(stack.enter_context(progress_bars(transient=True)))
        kafka = KafkaWithSamples(stack, tmp_path, [RATINGS], steps)
        kafka.check()
        os.kill(kafka._broker.pid, signal.SIGKILL)
        wait_until("end of Kafka", lambda: not kafka._broker.running)
        with pytest.raises(ProcessEnded, match=r"^Kafka ended by itself \(log: .*/logs/kafka\.log\)$"):
            kafka.check()
        kafka.producer.send(_known_ratings("ratings")[0])


@pytest.mark.jvm
class TestTopics:
    def test_topic_is_created_once(self, broker: Broker) -> None:
        config = {"cleanup.policy": "compact"}
        assert create_topic(broker.bootstrap, "once", 2, config) is True
        assert create_topic(broker.bootstrap, "once", 2, config) is False
        with pytest.raises(SetupError, match=r'^topic "once" has 2 partitions, not 3: '):
            create_topic(broker.bootstrap, "once", 3)

    @pytest.mark.parametrize(("name", "config"), [("no good", {}), ("odd", {"cleanup.policy": "hope"})])
    def test_topic_that_kafka_refuses(self, broker: Broker, name: str, config: dict[str, str]) -> None:
        with pytest.raises(SetupError, match=f'^topic "{name}" cannot be created at {broker.bootstrap} '):
            create_topic(broker.bootstrap, name, 1, config)


def test_kafka_that_is_away(capfd: pytest.CaptureFixture[str]) -> None:
    away = f"{HOST}:1"
    with pytest.raises(SetupError, match=away):
        create_topic(away, "ratings", 1, timeout_s=1.0)
    with pytest.raises(SetupError, match=away):
        record_count(away, "ratings", timeout_s=1.0)
    with pytest.raises(SetupError, match=rf'^2 events did not get into topic "ratings" at {away} '):
        send(away, ratings.known_events(), delivery_timeout_s=1.0)
    assert capfd.readouterr() == ("", "")
