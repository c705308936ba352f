"""Malformed records: the table's query counts them, and where it has met some, they are read once more and set aside.

Most batches have none, and then nothing is read or decoded a second time.

    report of a batch ──► its records lie behind those of the last one, and none is malformed ──► checked up to its end
                     └──► else: checked up to its end once a job of one task has written the malformed ones

How far all is checked is noted in the checkpoint, at most every `CHECK_EVERY_S`. What lies between that and the first
report after a start is read once more. So a malformed record may be set aside twice, and is lost only where its topic
drops it meanwhile.

Decision: docs/decisions/0004-malformed-records-by-a-second-query.md
Decision: docs/decisions/0090-malformed-records-are-counted-first.md
"""

import json
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from confluent_kafka import KafkaException
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tablegate.gateway.contract.kafka_settings import source_cluster
from tablegate.jobs import metrics
from tablegate.jobs.dataflow.frames import malformed_records, topics_with_headers
from tablegate.jobs.dataflow.java_errors import error_reason
from tablegate.jobs.dataflow.sink_records import KIND_COLUMN, malformed_of, save_records
from tablegate.jobs.dataflow.sources import Offsets, RangeReader
from tablegate.jobs.kafka.markers import source_offsets
from tablegate.jobs.kafka.polling import Polling
from tablegate.jobs.kafka.topics import KafkaAdmin
from tablegate.jobs.log import log
from tablegate.jobs.planning.plan import Plan
from tablegate.jobs.running.checkpoint import Checkpoint
from tablegate.jobs.running.query_errors import query_error

LETTERS_FILE = "dead-letters.json"
CHECK_EVERY_S = 5.0  # nobody waits for a malformed record; often would cost the table's query its cores
_EARLIEST = -2  # as Spark's Kafka source has it

_Ends = dict[str, dict[int, int]]


class DeadLetters:
    """Sets the malformed records of one table aside. One thread uses it, but for the jobs that read them.

    `committed`: how far the checkpoint of the table's query has read, before it starts.
    """

    def __init__(
        self, spark: SparkSession, plan: Plan, checkpoint: Checkpoint, admin: KafkaAdmin, committed: Offsets
    ) -> None:
        self._spark = spark
        self._plan = plan
        self._checkpoint = checkpoint
        self._checked: _Ends = _parsed(checkpoint.noted(LETTERS_FILE))
        self._noted = self._checked
        # A global side is streamed by no query: whatever has come to it is read once more.
        self._globals = [side.topic for name, side in plan.sides.items() if name not in plan.streamed]
        ends = {topic.name: admin.end_offsets(topic) for topic in self._globals}
        self._met = _merged(self._checked, _merged(committed, ends))
        self._is_clean = self._met == self._checked  # nothing malformed is between the two
        self._next_s = time.monotonic() + CHECK_EVERY_S
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="tablegate-dead-letters")
        self._setting_aside: Future[None] | None = None
        self._asking = Polling(lambda: admin.ask_ends(self._globals), every_s=CHECK_EVERY_S)

    def add(self, report: Mapping[str, Any]) -> None:
        """Take a report of the table's query, each in its turn."""
        begin, end = source_offsets(report, "startOffset"), source_offsets(report)
        # A report may be missing: of a batch before the last start, or of one that Spark has forgotten.
        follows = all(
            self._met.get(topic, {}).get(partition) == offset
            for topic, offsets in begin.items()
            for partition, offset in offsets.items()
        )
        self._is_clean = self._is_clean and follows and malformed_of(report, self._plan.streamed_sides) == 0
        self._met = _merged(self._met, end)

    def poll(self, *, is_last: bool = False) -> bool:
        """Set aside what there is, at most every `CHECK_EVERY_S`; return whether all that was met is checked.

        `is_last`: at once. Raise as `query_error` has it.
        """
        if self._setting_aside is not None:
            if not self._setting_aside.done():
                return False
            done, self._setting_aside = self._setting_aside, None
            try:
                done.result()
            except (PySparkException, Py4JError) as error:
                raise query_error(error_reason(error), self._plan) from None
        self._ask_globals()
        if is_last or time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + CHECK_EVERY_S
            self._check()
        return self._checked == self._met

    def _ask_globals(self) -> None:
        if not self._globals:
            return
        for asked, answer in self._asking.answers().items():
            try:
                end = answer.result().offset
            except KafkaException:  # brokers may be away; if for long, the queries notice
                continue
            if self._met.get(asked.topic, {}).get(asked.partition, 0) < end:
                self._is_clean = False
                self._met = _merged(self._met, {asked.topic: {asked.partition: end}})

    def _check(self) -> None:
        """Go on to what was met: at once where it is clean, else by a job."""
        if self._is_clean:
            self._checked = self._met
            self._note()
            return
        self._setting_aside = self._worker.submit(self._set_aside, self._met)
        self._is_clean = True  # what comes from now on is another question

    def _set_aside(self, ends: _Ends) -> None:
        plan = self._plan
        starts: _Ends = {}
        for side in plan.sides.values():
            topic = side.topic.name
            first, checked = _firsts(side.starting_offsets, topic), self._checked.get(topic, {})
            starts[topic] = {
                partition: checked.get(partition, first.get(partition, _EARLIEST)) for partition in ends.get(topic, {})
            }
        reader = RangeReader(
            self._spark, source_cluster(plan.bootstrap), starts, ends, with_headers=topics_with_headers(plan)
        )
        letters = malformed_records(plan, reader).persist()
        try:
            kinds: dict[str, int] = dict(letters.groupBy(KIND_COLUMN).count().collect())
            if kinds:
                save_records(letters.drop(KIND_COLUMN), plan.bootstrap)
        finally:
            letters.unpersist()
        if kinds:
            records = sum(kinds.values())
            for kind, count in kinds.items():
                metrics.DEAD_LETTERS.labels(plan.table.name, kind).inc(count)
            log("dead_letters", table=plan.table.name, topic=plan.dead_letters.name, records=records, reasons=kinds)
        self._checked = ends
        self._note()

    def _note(self) -> None:
        if self._noted != self._checked:
            self._checkpoint.note(LETTERS_FILE, json.dumps(self._checked))
            self._noted = self._checked

    def close(self) -> None:
        """End; what is not checked is so after the next start."""
        self._worker.shutdown(wait=False, cancel_futures=True)


def _merged(one: Offsets, other: Offsets) -> _Ends:
    return {topic: {**one.get(topic, {}), **other.get(topic, {})} for topic in {**one, **other}}


def _firsts(starting_offsets: str, topic: str) -> Mapping[int, int]:
    """Return where a side begins to read partitions, where Spark is told that."""
    given = json.loads(starting_offsets) if starting_offsets.startswith("{") else {}
    return {int(partition): offset for partition, offset in given.get(topic, {}).items()}


def _parsed(text: str) -> _Ends:
    """Return what was noted; nothing where a crash has cut the file off: then all is read once more."""
    try:
        noted: Mapping[str, Mapping[str, int]] = json.loads(text or "{}")
    except ValueError:
        return {}
    return {topic: {int(partition): end for partition, end in ends.items()} for topic, ends in noted.items()}
