"""Where a job has read its sources to, and in which leader epochs: so a source that lost its tail is known.

A partition that loses its last records, as by an unclean election of a leader or on a disk that did not flush, grows
again: the offsets that were read are those of other records then, and Spark reads on behind them without a word. But
each record has the epoch of the leader that took it, and in one log epochs never go down.

    next offset of the newest batch ──► Kafka is asked for ends and epochs ──► place: the offset, the leader's epoch

So no record before a place has a higher epoch. The newest places are in the checkpoint. Where the leader has changed,
at a start or while the job runs, the last records before a place are read again: a higher epoch proves the loss. What
is not proved is not held against a source: compaction may have removed the record, or it may be the end of a
transaction, which no consumer is given.

Decision: docs/decisions/0089-a-source-is-known-by-its-epochs.md
"""

import json
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from tablegate.gateway.contract.kafka_settings import source_cluster
from tablegate.gateway.contract.lineage import UNKNOWN_EPOCH, Place
from tablegate.gateway.contract.types import Offset
from tablegate.jobs.errors import JobError
from tablegate.jobs.kafka.markers import SourceOffsets
from tablegate.jobs.kafka.polling import Polling
from tablegate.jobs.kafka.topics import KafkaAdmin, highest_epochs
from tablegate.jobs.planning.declarations import rebuild_hint
from tablegate.jobs.planning.plan import Plan
from tablegate.jobs.running.checkpoint import Checkpoint
from tablegate.jobs.running.resuming import lost_tail

PLACES_FILE = "source-places.json"
CHECK_EVERY_S = 1.0  # each check may write a file; of records read since the last one, a loss by a crash is not seen
RECORDS_AGAIN = 100  # that are read before a place: among them is one that consumers are given

Answers = Mapping[TopicPartition, Future[Any]]
Places = dict[tuple[str, int], Place]
"""By topic and partition. `leader_epoch`: none of the records before the place has a higher one."""


class SourcePlaces:
    """Notes the places of one table's sources. One thread uses it; raises `JobError` where a source lost its tail.

    `committed`: how far the checkpoint has read, which `check_resumes` has found to be there.
    """

    def __init__(self, plan: Plan, checkpoint: Checkpoint, admin: KafkaAdmin, committed: SourceOffsets) -> None:
        self._plan = plan
        self._checkpoint = checkpoint
        self._admin = admin
        self._places = _parsed(checkpoint.noted(PLACES_FILE))
        self._newest = self._next_offsets = committed  # of the newest batch, now and when Kafka was asked
        self._polling = Polling(self._ask, every_s=CHECK_EVERY_S)
        try:
            self._compare(self._ask())
        except KafkaException as error:
            raise JobError(
                f'the sources of table "{plan.table.name}" cannot be read at {source_cluster(plan.bootstrap)}: '
                f"{error.args[0].str()}; start the job again when they can"
            ) from None

    def poll(self, next_offsets: SourceOffsets) -> None:
        """Check once a second, without waiting for Kafka unless a leader has changed."""
        self._newest = next_offsets or self._newest
        # Brokers may be away; if for long, the queries notice.
        if answers := self._polling.answers():
            with suppress(KafkaException):
                self._compare(answers)

    def _ask(self) -> Answers:
        self._next_offsets = self._newest
        return self._admin.ask_ends([side.topic for side in self._plan.streamed.values()])

    def _compare(self, answers: Answers) -> None:
        """Check the places that are noted, and note those of now."""
        ends = {(asked.topic, asked.partition): _end(answer) for asked, answer in answers.items()}
        now: Places = {}
        elected: dict[tuple[str, int], int] = {}
        for at, end in ends.items():
            known = self._places.get(at, Place(Offset(0)))
            next_offset = max(self._next_offsets.get(at[0], {}).get(at[1], 0), known.next_offset)
            # A leader of before has not heard of the newer one yet.
            if end.leader_epoch < known.leader_epoch or end.leader_epoch == UNKNOWN_EPOCH or next_offset == 0:
                continue
            if end.next_offset < next_offset:
                if end.leader_epoch > known.leader_epoch:
                    raise lost_tail(self._plan, *at, end=end.next_offset, next_offset=next_offset)
                continue
            now[at] = Place(Offset(next_offset), end.leader_epoch)
            if UNKNOWN_EPOCH < known.leader_epoch < end.leader_epoch:
                elected[at] = known.next_offset
        found = highest_epochs(source_cluster(self._plan.bootstrap), elected, RECORDS_AGAIN) if elected else {}
        for at, epoch in found.items():
            if epoch > self._places[at].leader_epoch:
                raise JobError(
                    f'source topic "{at[0]}" partition {at[1]} has lost its last records before offset '
                    f'{elected[at]}, up to which table "{self._plan.table.name}" has read it, as by an unclean leader '
                    f"election: there are others now, and it ends at {ends[at].next_offset}; "
                    f"{rebuild_hint(self._plan.table)}"
                )
        before, self._places = self._places, {**self._places, **now}
        if self._places != before:
            self._checkpoint.note(PLACES_FILE, _text(self._places))


def _end(answer: "Future[Any]") -> Place:
    found = answer.result()
    return Place(Offset(found.offset), UNKNOWN_EPOCH if found.leader_epoch is None else found.leader_epoch)


def _text(places: Places) -> str:
    noted: dict[str, dict[str, list[int]]] = {}
    for (topic, partition), place in places.items():
        noted.setdefault(topic, {})[str(partition)] = [place.next_offset, place.leader_epoch]
    return json.dumps(noted)


def _parsed(text: str) -> Places:
    """Return what was noted; nothing where a crash has cut the file off."""
    try:
        noted: Mapping[str, Mapping[str, list[int]]] = json.loads(text or "{}")
    except ValueError:
        return {}
    return {
        (topic, int(partition)): Place(Offset(next_offset), leader_epoch)
        for topic, places in noted.items()
        for partition, (next_offset, leader_epoch) in places.items()
    }
