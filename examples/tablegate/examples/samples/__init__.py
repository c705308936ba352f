"""Sample events of the example tables, and how they get into Kafka: one module for each system that produces events.

Each has `TOPICS` (name → partitions), `known_events`, whose answers are known, and `events`, which leaves the keys of
the known ones alone. So known events are sent once, and others as often as one likes.
"""

from tablegate.examples.samples.events import Event, steady_clock
from tablegate.examples.samples.kafka import EventProducer, create_topic, record_count, send

__all__ = ["Event", "EventProducer", "create_topic", "record_count", "send", "steady_clock"]
