"""Builds a table's next generation beside the one that is served, by `tablegate job rebuild` and `seek`."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from tablegate.jobs.errors import JobError
from tablegate.jobs.frame_table import Declared
from tablegate.jobs.kafka.job_group import await_gone, rebuild_group
from tablegate.jobs.kafka.manifests import read_manifest
from tablegate.jobs.kafka.markers import SourceOffsets
from tablegate.jobs.kafka.topics import KafkaAdmin, source_admin
from tablegate.jobs.log import log
from tablegate.jobs.planning.declarations import job_argument
from tablegate.jobs.planning.options import Options, Start
from tablegate.jobs.planning.plan import Plan, make_plan
from tablegate.jobs.running.application import close_tables, java_errors, spark_application, stop_on_signals
from tablegate.jobs.running.checkpoint import Checkpoint
from tablegate.jobs.running.handover import HandoverPhase
from tablegate.jobs.running.new_topics import with_new_topics
from tablegate.jobs.running.resuming import is_written
from tablegate.jobs.running.running_table import RunningTable, identity_of
from tablegate.jobs.running.seeding import begins_from_state
from tablegate.jobs.table import Mode

POLL_S = 0.1  # how late the progress that people see may be


@dataclass(frozen=True, slots=True)
class RebuildProgress:
    """How far a rebuild is: records read of those that there were when it began."""

    generation: int
    phase: HandoverPhase
    records: int
    records_total: int


def rebuild_job(
    table: Declared,
    options: Options,
    start: Start | None = None,
    *,
    on_progress: Callable[[RebuildProgress], None] = lambda _: None,
) -> HandoverPhase:
    """Build the table's next generation; return how far it came: in place, unless a signal ended it; raise `JobError`.

    A job that keeps the table goes on with the new generation by itself. SIGTERM and SIGINT end it before that; begun
    again without a `start`, it goes on from where it was. The older changelogs stay, for who finds the new rows wrong.
    """
    # Nobody waits for single rows, and micro-batches work off a backlog faster and show their progress. The job that
    # continues with the table does so in the table's own mode.
    options = replace(options, mode=options.mode or Mode.MICROBATCH)
    with stop_on_signals() as stop:
        plan = make_plan(table, options, generation=_next_generation(table, options, start), start=start)
        await_gone(options.bootstrap, table.name, rebuild_group(table.name))
        count = _RecordCount(plan)
        with spark_application([plan], options, stop) as spark, java_errors(plan, stop):
            if not can_resume(spark, plan, start, from_state=options.from_state):
                plan = make_plan(table, options, generation=plan.generation + 1, start=start)
            running = RunningTable(spark, plan, options, is_rebuild=True, start=start)
            try:
                while running.phase is not HandoverPhase.IN_PLACE and not stop.wait(POLL_S):
                    running.poll()
                    on_progress(count.progress(running.phase, running.next_offsets))
            finally:
                close_tables(spark, [running])
        if running.phase is HandoverPhase.IN_PLACE:
            log("in_place", table=table.name, generation=plan.generation)
        return running.phase


class _RecordCount:
    """Counts the records that a rebuild has read, of those that there are when this is made."""

    def __init__(self, plan: Plan) -> None:
        admin = source_admin(plan.bootstrap)
        self._generation = plan.generation
        self._records = 0
        self._ranges: dict[tuple[str, int], tuple[int, int]] = {}
        for side in plan.streamed.values():
            first = admin.first_offsets(side.topic)
            if side.starting_offsets != "earliest":
                first |= {int(text): at for text, at in json.loads(side.starting_offsets)[side.topic.name].items()}
            for partition, end in admin.end_offsets(side.topic).items():
                self._ranges[side.topic.name, partition] = first[partition], end

    def progress(self, phase: HandoverPhase, next_offsets: SourceOffsets) -> RebuildProgress:
        """Return the progress; it never goes down, though queries that start anew have read nothing for a while."""
        read = sum(
            max(min(next_offsets.get(topic, {}).get(partition, first), end) - first, 0)
            for (topic, partition), (first, end) in self._ranges.items()
        )
        self._records = max(self._records, read)
        total = sum(end - first for first, end in self._ranges.values())
        return RebuildProgress(self._generation, phase, self._records, total)


def can_resume(spark: SparkSession, plan: Plan, start: Start | None, *, from_state: bool = False) -> bool:
    """Return whether a generation that was begun, if it was, can be built to its end by this declaration."""
    admin = KafkaAdmin(plan.bootstrap)
    owner = Checkpoint(spark, plan.checkpoint).owner()
    if owner is None:
        return not is_written(plan, admin)
    now = identity_of(plan, start)
    if begins_from_state(owner.begins) != from_state:
        return False
    try:
        owner = with_new_topics(plan, owner, now)
    except JobError:
        return False
    return (owner.logic, owner.source_topic_ids, owner.changelog_topic_id) == (
        now.logic,
        now.source_topic_ids,
        now.changelog_topic_id,
    )


def _next_generation(table: Declared, options: Options, start: Start | None) -> int:
    """Return the generation to build: one that was begun, else the next one; with a `start`, always a new one."""
    old = read_manifest(options.bootstrap, table.name)
    if old is None:
        raise JobError(
            f'table "{table.name}" was never built at {options.bootstrap}; start it: tablegate job run '
            f"{job_argument(table)}"
        )
    # A rebuild that was broken off goes on with its checkpoint. A seek begins elsewhere, so what was begun is of no use
    # to it.
    begun = max(KafkaAdmin(options.bootstrap).changelogs(table.name), default=0)
    if start is not None:
        begun += 1
    return max(old.generation + 1, table.generation, begun)
