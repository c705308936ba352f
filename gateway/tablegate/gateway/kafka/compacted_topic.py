"""A compacted topic of one partition, read from its start and then on: manifests, gateways.

A record that is poison is set aside and counted, and the next one is read: whoever may write to the topic stops nobody.
"""

import logging
from collections import Counter

from tablegate.gateway.contract.lineage import Place
from tablegate.gateway.contract.types import Offset, Partition
from tablegate.gateway.kafka.border import Poison
from tablegate.gateway.kafka.log import Clock, Fetched, Log, Record, TopicFacts, TopicPartition
from tablegate.gateway.kafka.topic_watcher import TopicWatcher

_logger = logging.getLogger("tablegate.gateway.replication")


class CompactedTopic:
    """Follows a topic, and reads it anew where it was created anew or lost records.

    `is_read`: everything that was there when it opened was received. `exists`: whether there is the topic; None: not
    known yet. `next_offset`: the first that was not received. `poison`: how many records were set aside, by reason.
    """

    def __init__(self, topic: str, *, log: Log, clock: Clock) -> None:
        self.topic_partition = TopicPartition(topic, Partition(0))
        self.is_read = False
        self.exists: bool | None = None
        self.next_offset = Offset(0)
        self.poison: Counter[str] = Counter()
        self._log = log
        self._watcher = TopicWatcher(log, clock)
        self._topic_id = ""
        self._barrier = Offset(0)

    @property
    def is_pending(self) -> bool:
        """Return whether an answer of the brokers is awaited."""
        return self._watcher.is_pending

    @property
    def answered(self) -> bool | None:
        """Return whether the brokers answered the last question; None before the first."""
        return self._watcher.answered

    def describe_at_once(self) -> None:
        """Ask for the topic at the next tick."""
        self._watcher.ask_at_once()

    def tick(self) -> None:
        """Ask for the topic when it is time; start over where it is another one than before."""
        described = self._watcher.poll(self.topic_partition.topic, (self,))
        if described is None:
            return
        facts = described.facts
        self.exists = facts is not None
        if facts is None:
            return
        self._watcher.rest()
        if facts.topic_id != self._topic_id or described.was_beyond(self, facts.end_offsets[0]):
            self._read_from_start(facts)

    def _read_from_start(self, facts: TopicFacts) -> None:
        self._start_over()
        self._topic_id = facts.topic_id
        self.next_offset = facts.start_offsets[0]
        self._barrier = facts.end_offsets[0]
        self.is_read = self.next_offset >= self._barrier
        self._log.follow(self.topic_partition, Place(self.next_offset))

    def apply(self, fetched: Fetched) -> None:
        """Receive the records that were fetched."""
        if fetched.lost:
            self._topic_id = ""
            self._watcher.ask_at_once()
            return
        for record in fetched.records:
            try:
                self._receive(record)
            except Poison as error:
                self._set_aside(record, str(error))
        self.next_offset = max(self.next_offset, fetched.next_offset)
        self.is_read = self.is_read or self.next_offset >= self._barrier

    def _set_aside(self, record: Record, reason: str) -> None:
        """Count a record that cannot be received; each reason is logged once."""
        self.poison[reason] += 1
        if self.poison[reason] == 1:
            topic, partition = self.topic_partition
            _logger.warning(
                "skipped a record: %s (more of this kind are counted, not logged)",
                reason,
                extra={"topic": topic, "partition": partition, "offset": record.offset},
            )

    def _start_over(self) -> None:
        """Prepare for the first record of the topic."""

    def _receive(self, record: Record) -> None:
        """Receive the next record; raise `Poison` where it is none of the topic."""
        raise NotImplementedError
