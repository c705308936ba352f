"""A compacted topic of one partition, read from its start and then on."""

from concurrent.futures import Future

from tablegate.gateway.contract.types import Offset, Partition
from tablegate.gateway.kafka.log import Clock, Fetched, Log, LogUnavailable, Record, TopicFacts, TopicPartition

LOOK_EVERY_S = 5.0  # how soon a topic that was made anew is noticed
LOOK_AGAIN_S = 1.0  # while there is none, or no answer


class CompactedTopic:
    """Follows a topic. `is_read`: everything that was there when it opened was taken.

    `exists`: whether there is the topic; `answered`: whether the last look at it was answered. None: not known yet.
    """

    def __init__(self, topic: str, *, log: Log, clock: Clock) -> None:
        self.source = TopicPartition(topic, Partition(0))
        self.is_read = False
        self.exists: bool | None = None
        self.answered: bool | None = None
        self._log = log
        self._clock = clock
        self._topic_id = ""
        self._barrier = Offset(0)
        self._next_offset = Offset(0)
        self._look: Future[TopicFacts | None] | None = None
        self._look_at_s = 0.0
        self._next_offset_at_look = Offset(0)

    @property
    def is_looking(self) -> bool:
        """Return whether an answer of the brokers is awaited."""
        return self._look is not None

    def look_at_once(self) -> None:
        """Ask for the topic at the next tick."""
        self._look_at_s = 0.0

    def tick(self) -> None:
        """Ask for the topic when it is time, and take the answer."""
        now_s = self._clock.monotonic_s()
        if self._look is None and now_s >= self._look_at_s:
            self._look = self._log.look(self.source.topic)
            self._next_offset_at_look = self._next_offset
        if self._look is not None and self._look.done():
            answer, self._look = self._look, None
            self._take(answer, now_s)

    def _take(self, answer: "Future[TopicFacts | None]", now_s: float) -> None:
        self._look_at_s = now_s + LOOK_AGAIN_S
        try:
            facts = answer.result()
        except LogUnavailable:
            self.answered = False
            return
        self.answered = True
        self.exists = facts is not None
        if facts is None:
            return
        self._look_at_s = now_s + LOOK_EVERY_S
        if facts.topic_id != self._topic_id or self._next_offset_at_look > facts.end_offsets[0]:
            self._read_from_start(facts)

    def _read_from_start(self, facts: TopicFacts) -> None:
        self._start_over()
        self._topic_id = facts.topic_id
        self._next_offset = facts.start_offsets[0]
        self._barrier = facts.end_offsets[0]
        self.is_read = self._next_offset >= self._barrier
        self._log.follow(self.source, self._next_offset)

    def apply(self, fetched: Fetched) -> None:
        """Take the records that were fetched."""
        if fetched.lost:
            self._topic_id = ""
            self._look_at_s = 0.0
            return
        for record in fetched.records:
            self._take_record(record)
        self._next_offset = max(self._next_offset, fetched.next_offset)
        self.is_read = self.is_read or self._next_offset >= self._barrier

    def _start_over(self) -> None:
        """Prepare for the first record of the topic."""

    def _take_record(self, record: Record) -> None:
        """Take the next record."""
        raise NotImplementedError
