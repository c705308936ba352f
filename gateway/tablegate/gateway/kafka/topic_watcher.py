"""Asks the brokers for a topic again and again, without waiting for the answer.

A topic may be deleted, created again under its name, or cut short while its records are applied; a consumer notices
that late or not at all. So whoever follows a topic has it described every few seconds. An answer is as old as its
question: it is compared with where the readers were when it was asked for, not with where they are now.
"""

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import NamedTuple, Protocol

from tablegate.gateway.contract.types import Offset
from tablegate.gateway.kafka.border import Poison, checked_facts
from tablegate.gateway.kafka.log import Clock, Log, LogUnavailable, NotAllowed, TopicFacts

DESCRIBE_EVERY_S = 5.0  # how soon a deleted or truncated topic is noticed
RETRY_S = 1.0  # after an answer that failed, or that was of no use

_logger = logging.getLogger("tablegate.gateway.replication")


class Reader(Protocol):
    """Whoever reads a partition of the topic."""

    @property
    def next_offset(self) -> Offset:
        """Return the first offset that is not read."""


class TopicDescription(NamedTuple):
    """An answer: the topic (None: there is none), when it was asked for, and where readers were then.

    `asked_s` is of the clock that only goes on: not later than the question was sent.
    """

    facts: TopicFacts | None
    asked_ms: int
    asked_s: float
    offsets: Mapping[object, Offset]

    def was_beyond(self, reader: Reader, end_offset: Offset) -> bool:
        """Return whether the reader was beyond the end when that was asked for; meanwhile both have moved on."""
        return self.offsets.get(reader, 0) > end_offset


class TopicWatcher:
    """Asks for one topic after the other. One thread.

    `answered`: whether the last question was answered; None before the first.
    """

    def __init__(self, log: Log, clock: Clock) -> None:
        self.answered: bool | None = None
        self._log = log
        self._clock = clock
        self._answer: Future[TopicFacts | None] | None = None
        self._ask_at_s = 0.0
        self._asked_ms = 0
        self._asked_s = 0.0
        self._offsets: Mapping[object, Offset] = {}
        self._fault = ""  # of the last answer

    @property
    def is_pending(self) -> bool:
        """Return whether an answer of the brokers is awaited."""
        return self._answer is not None

    def ask_at_once(self) -> None:
        """Ask at the next `poll`, whatever was asked before."""
        self._ask_at_s = 0.0
        self._answer = None

    def rest(self) -> None:
        """Ask again after `DESCRIBE_EVERY_S`, as all was well with the last answer; without this, after `RETRY_S`."""
        self._ask_at_s = self._clock.monotonic_s() + DESCRIBE_EVERY_S

    def poll(self, topic: str, readers: Iterable[Reader]) -> TopicDescription | None:
        """Ask for the topic when it is time; return each answer once. A failed question is asked again."""
        now_s = self._clock.monotonic_s()
        if self._answer is None and now_s >= self._ask_at_s:
            self._asked_ms, self._asked_s = self._clock.now_ms(), now_s
            self._answer = self._log.describe_topic(topic)
            self._offsets = {reader: reader.next_offset for reader in readers}
        if self._answer is None or not self._answer.done():
            return None
        answer, self._answer = self._answer, None
        self._ask_at_s = now_s + RETRY_S
        try:
            facts = answer.result()
            facts = None if facts is None else replace(checked_facts(facts), asked_ms=self._asked_ms)
        except LogUnavailable as error:
            if isinstance(error, NotAllowed) and str(error) != self._fault:
                self._fault = str(error)
                _logger.warning("%s", error)
            self.answered = False
            return None
        # What is not understood is no answer. It would be met again after a restart, so it must not end the process.
        except Exception as error:  # noqa: BLE001  of a client library, over what brokers of any kind say
            self._log_fault(topic, str(error) if isinstance(error, Poison) else repr(error))
            self.answered = False
            return None
        self.answered, self._fault = True, ""
        return TopicDescription(facts, self._asked_ms, self._asked_s, self._offsets)

    def _log_fault(self, topic: str, fault: str) -> None:
        if fault != self._fault:
            self._fault = fault
            _logger.error(
                'topic "%s": what the brokers say of it is not understood: %s; it is asked again', topic, fault
            )
