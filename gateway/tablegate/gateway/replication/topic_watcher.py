"""Looks at a changelog: what the brokers say of its topic, asked again and again, and what that means."""

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import NamedTuple

from tablegate.gateway.contract.types import Offset
from tablegate.gateway.kafka.log import Clock, Log, LogUnavailable, TopicFacts
from tablegate.gateway.replication.manifests import same_topic_id
from tablegate.gateway.replication.partition import PartitionReplica
from tablegate.v1.changelog_pb2 import Manifest

LOOK_EVERY_S = 5.0  # how soon a deleted or truncated topic is noticed
LOOK_AGAIN_S = 1.0  # after one that failed, or that nothing could be made of


class TopicDescription(NamedTuple):
    """An answer: the topic (None: there is none), when it was asked for, and where replicas were then."""

    facts: TopicFacts | None
    asked_ms: int
    positions: Mapping[PartitionReplica, Offset]

    def was_beyond(self, replica: PartitionReplica, end_offset: Offset) -> bool:
        """Return whether the replica was beyond the end when that was asked for; meanwhile both have moved on."""
        return self.positions.get(replica, 0) > end_offset


class TopicWatcher:
    """Asks for one topic after the other. One thread."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._answer: Future[TopicFacts | None] | None = None
        self._at_s = 0.0
        self._asked_ms = 0
        self._positions: Mapping[PartitionReplica, Offset] = {}

    @property
    def is_pending(self) -> bool:
        """Return whether an answer of the brokers is awaited."""
        return self._answer is not None

    def ask_at_once(self) -> None:
        """Ask at the next `take`, whatever was asked before."""
        self._at_s = 0.0
        self._answer = None

    def rest(self) -> None:
        """Ask less often, as all was well with the answer that was taken."""
        self._at_s = self._clock.monotonic_s() + LOOK_EVERY_S

    def take(self, topic: str, replicas: Iterable[PartitionReplica]) -> TopicDescription | None:
        """Ask for the topic when it is time; return an answer once. Brokers that give none are asked again."""
        now_s = self._clock.monotonic_s()
        if self._answer is None and now_s >= self._at_s:
            self._answer = self._log.look(topic)
            self._asked_ms = self._clock.now_ms()
            self._positions = {replica: replica.position.next_offset for replica in replicas}
        if self._answer is None or not self._answer.done():
            return None
        answer, self._answer = self._answer, None
        self._at_s = now_s + LOOK_AGAIN_S
        try:
            return TopicDescription(answer.result(), self._asked_ms, self._positions)
        except LogUnavailable:
            return None


class TopicFault(NamedTuple):
    """What is wrong with a changelog's topic, and what to do."""

    what: str
    hint: str


def topic_fault(manifest: Manifest, facts: TopicFacts | None) -> TopicFault | None:
    """Return why the changelog is not the one that the manifest describes; None if it is."""
    topic = f'changelog topic "{manifest.changelog_topic}"'
    if facts is None:
        return TopicFault(f"{topic} does not exist", "start the table's job")
    if not same_topic_id(facts.topic_id, manifest.changelog_topic_id):
        ids = f"id {facts.topic_id}, not {manifest.changelog_topic_id}"
        return TopicFault(
            f"{topic} was made anew ({ids})", "build the table's next generation with tablegate job rebuild"
        )
    if facts.partition_count != manifest.partition_count:
        what = f"{topic} has {facts.partition_count} partitions, its manifest says {manifest.partition_count}"
        return TopicFault(what, "raise the table's generation and start its job")
    return None
