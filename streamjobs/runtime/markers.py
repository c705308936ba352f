"""Progress markers: after each batch, a record in every partition of the changelog.

A reader that has come to a marker has everything that the batch changed, knows how far the sources were read, and
knows that a silent partition is current.
"""

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaException, Producer

from gateway.v1 import changelog_pb2
from streamjobs.runtime.log import log
from streamjobs.runtime.topics import QUIET_CLIENT, Topic

MARKER_KEY = b""  # no row's key is empty
FLUSH_TIMEOUT_S = 5.0  # of the last markers, when the job ends
DELIVERY_TIMEOUT_MS = 10_000  # an older marker is worth nothing beside a newer one


class Markers:
    """Writes the markers of one changelog. One thread calls it; `publish` does not wait for Kafka."""

    def __init__(self, bootstrap: str, changelog: Topic, generation: int) -> None:
        self._changelog = changelog
        self._generation = generation
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "linger.ms": 0,
                "max.in.flight.requests.per.connection": 1,  # a marker that is sent again never comes after a newer one
                "message.timeout.ms": DELIVERY_TIMEOUT_MS,
                **QUIET_CLIENT,
            }
        )

    def publish(self, progress: Mapping[str, Any]) -> None:
        """Write the marker of a committed batch, by Spark's progress report of it."""
        marker = marker_of(progress, self._generation)
        marker.commit_time.GetCurrentTime()
        value = marker.SerializeToString()
        self._producer.poll(0)
        try:
            for partition in range(self._changelog.partition_count):
                self._producer.produce(self._changelog.name, key=MARKER_KEY, value=value, partition=partition)
        except (BufferError, KafkaException) as error:
            log("marker_lost", batch=marker.batch_id, error=str(error))

    def close(self) -> None:
        """Wait a little for the last markers."""
        self._producer.flush(FLUSH_TIMEOUT_S)


def marker_of(progress: Mapping[str, Any], generation: int) -> changelog_pb2.ProgressMarker:
    """Return the marker of a batch, without its time."""
    marker = changelog_pb2.ProgressMarker(generation=generation, batch_id=progress["batchId"])
    for source in progress["sources"]:
        for topic, next_offsets in (source["endOffset"] or {}).items():
            offsets = marker.sources.add(topic=topic)
            for partition, next_offset in next_offsets.items():
                offsets.next_offsets[int(partition)] = next_offset
    return marker
