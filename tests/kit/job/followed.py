"""Topics of a job, followed from their start by one consumer; and tables as their changelogs have them."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.rows import RowDecoder, row_schema
from tablegate.gateway.contract.types import VERSION_HEADER, is_marker_key
from tablegate.v1.changelog_pb2 import ProgressMarker
from tests.kit.job.folds import Rows, columns_of
from tests.kit.programs.kafka import RawRecord

_SCHEMA_ID = 1  # the first of a table without a registry


class Followed:
    """All records of some topics, each partition's in their order, as far as they have been read."""

    def __init__(self, bootstrap: str) -> None:
        self.records: defaultdict[str, list[RawRecord]] = defaultdict(list)
        self._bootstrap = bootstrap
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "followed", "fetch.wait.max.ms": 20})

    def follow(self, topics: Iterable[str]) -> None:
        """Begin to read these topics."""
        found = AdminClient({"bootstrap.servers": self._bootstrap}).list_topics(timeout=10).topics
        places = [(topic, partition) for topic in topics for partition in found[topic].partitions]
        self._consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for topic, partition in places])

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def read_to_end(self) -> None:
        """Take in all that was written before the call."""
        places = self._consumer.assignment()
        ends = {
            (place.topic, place.partition): self._consumer.get_watermark_offsets(place, timeout=10)[1]
            for place in places
        }
        # A partition that nothing was read from has a negative position.
        while any(max(at.offset, 0) < ends[at.topic, at.partition] for at in self._consumer.position(places)):
            self.read()

    def read(self) -> None:
        """Take in what has come by now."""
        while records := self._consumer.consume(10_000, timeout=0.1):
            for record in records:
                assert record.error() is None, record.error()
                headers: Any = record.headers() or ()
                _, timestamp_ms = record.timestamp()
                self.records[record.topic() or ""].append(
                    RawRecord(
                        record.partition() or 0,
                        record.offset() or 0,
                        record.key(),
                        record.value(),
                        headers,
                        timestamp_ms,
                    )
                )


class TableChangelog:
    """The records of a table's changelog: its rows, and what its versions say."""

    def __init__(self, table: Table, records: Sequence[RawRecord], partition_count: int) -> None:
        self._table = table
        self._records = records
        self._partition_count = partition_count
        self._decoder = RowDecoder(table, {_SCHEMA_ID: json.dumps(row_schema(table))})
        self._newest: dict[bytes, tuple[bytes, bytes | None]] = {}
        self._read = 0
        self.markers: dict[int, ProgressMarker] = {}

    @property
    def changes(self) -> list[RawRecord]:
        """The records but the markers."""
        return [record for record in self._records if not is_marker_key(record.key)]

    def rows(self) -> Rows:
        """Return the rows, each key's of the highest version, as the folds have them."""
        self._fold()
        rows: Rows = {}
        for _, value in self._newest.values():
            if value is not None:
                columns = columns_of(self._table.row_class.FromString(self._decoder.decode(value)))
                rows[tuple(columns.pop(column.name) for column in self._table.key)] = columns
        return rows

    def source_offsets(self, topic: str) -> Mapping[int, int] | None:
        """Return the offsets of a source that all partitions have a marker of; None where they differ."""
        self._fold()
        marked = [
            {source.topic: dict(source.next_offsets) for source in marker.sources}.get(topic)
            for marker in self.markers.values()
        ]
        is_whole = len(marked) == self._partition_count and all(offsets == marked[0] for offsets in marked)
        return marked[0] if is_whole else None

    def _fold(self) -> None:
        for record in self._records[self._read :]:
            self._read += 1
            if is_marker_key(record.key):
                self.markers[record.partition] = ProgressMarker.FromString(record.value or b"")
                continue
            assert record.partition == self._table.partition_of(record.key, self._partition_count)
            version = version_of(record)
            if record.key not in self._newest or version > self._newest[record.key][0]:
                self._newest[record.key] = version, record.value


def version_of(record: RawRecord) -> bytes:
    """Return the version of a changelog record."""
    return dict(record.headers)[VERSION_HEADER]


def newest_values(records: Iterable[RawRecord]) -> dict[bytes | None, bytes | None]:
    """Return each key's last value, None where it is deleted; a key lies in one partition."""
    return {record.key: record.value for record in records}
