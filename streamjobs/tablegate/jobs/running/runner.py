"""Runs the jobs of tables in one Spark application, from their checks to their clean end."""

import json
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession
from tablegate.jobs.errors import JobError
from tablegate.jobs.kafka.job_group import await_gone, job_group, rebuild_group
from tablegate.jobs.kafka.manifests import read_manifest
from tablegate.jobs.kafka.markers import SourceOffsets
from tablegate.jobs.kafka.topics import KafkaAdmin
from tablegate.jobs.planning.declarations import job_argument, load_all
from tablegate.jobs.planning.plan import Plan, make_plan
from tablegate.jobs.running.handover import HandoverPhase
from tablegate.jobs.running.java_errors import error_reason
from tablegate.jobs.running.log import log
from tablegate.jobs.running.options import Options, Start
from tablegate.jobs.running.running_table import RunningTable
from tablegate.jobs.running.session import MICROBATCH_SLOTS, await_slots, check_slots, is_submitted, spark_session
from tablegate.jobs.table import Mode, Table

POLL_S = 0.1  # how late a marker may be; asking takes Spark a millisecond


def run_declared(jobs: Sequence[str], options: Options) -> None:
    """Keep the tables that jobs name, as `run_jobs` does: examples by their names, others by their files."""
    run_jobs(load_all(jobs), options, declared=partial(load_all, jobs))


def run_jobs(
    tables: Sequence[Table], options: Options, *, declared: Callable[[], Sequence[Table]] | None = None
) -> None:
    """Keep the tables until SIGTERM or SIGINT, then return; raise `JobError` where one of them cannot be kept.

    Runs in the main thread, which signals come to. A table goes on from its checkpoint where there is one. `declared`
    gives the declarations as they are later, when a table goes on with a generation that was built from a newer one.
    """
    with _stop_on_signals() as stop:
        plans = [make_plan(table, options) for table in tables]
        for table in tables:  # before Spark takes its seconds; a table is joined when it starts
            await_gone(options.bootstrap, table.name, job_group(table.name))
        with _application(plans, options, stop) as spark:
            _keep(spark, plans, options, stop, declared or (lambda: tables))
    for table in tables:
        log("stopped", table=table.name)


@dataclass(frozen=True, slots=True)
class RebuildProgress:
    """How far a rebuild is: records read of those that there were when it began."""

    generation: int
    phase: HandoverPhase
    records: int
    records_total: int


def rebuild_job(
    table: Table,
    options: Options,
    start: Start | None = None,
    *,
    on_progress: Callable[[RebuildProgress], None] = lambda _: None,
) -> HandoverPhase:
    """Build the table's next generation; return how far it came: in place, unless a signal ended it; raise `JobError`.

    A job that keeps the table goes on with the new generation by itself. SIGTERM and SIGINT end it before that; begun
    again without a `start`, it goes on from where it was. It returns when the older changelogs have gone.
    """
    # Nobody waits for single rows, and in micro-batches a backlog is worked off faster, and seen to be. The job that
    # goes on with the table does so in the table's own mode.
    options = replace(options, mode=options.mode or Mode.MICROBATCH)
    with _stop_on_signals() as stop:
        plan = make_plan(table, options, generation=_next_generation(table, options, start), start=start)
        await_gone(options.bootstrap, table.name, rebuild_group(table.name))
        count = _RecordCount(plan)
        with _application([plan], options, stop) as spark, _java_errors(plan, stop):
            running = RunningTable(spark, plan, options, is_rebuild=True, start=start)
            try:
                while running.phase is not HandoverPhase.IN_PLACE and not stop.wait(POLL_S):
                    running.poll()
                    on_progress(count.progress(running.phase, running.next_offsets))
            finally:
                _close(spark, [running])
        if running.phase is HandoverPhase.IN_PLACE:
            kept_s = options.old_changelog_kept_s
            log("in_place", table=table.name, generation=plan.generation, old_dropped_in_s=kept_s)
            if not stop.wait(kept_s):
                running.drop_old()
        return running.phase


class _RecordCount:
    """Counts the records that a rebuild has read, of those that there are when this is made."""

    def __init__(self, plan: Plan) -> None:
        cluster = KafkaAdmin(plan.bootstrap)
        self._generation = plan.generation
        self._records = 0
        self._ranges: dict[tuple[str, int], tuple[int, int]] = {}
        for side in plan.streamed.values():
            first = cluster.first_offsets(side.topic)
            if side.starting_offsets != "earliest":
                first |= {int(text): at for text, at in json.loads(side.starting_offsets)[side.topic.name].items()}
            for partition, end in cluster.end_offsets(side.topic).items():
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


def _next_generation(table: Table, options: Options, start: Start | None) -> int:
    """Return the generation to build: the next one, or one that was begun; with a `start`, one that nobody began."""
    old = read_manifest(options.bootstrap, table.name)
    if old is None:
        raise JobError(
            f'table "{table.name}" was never built at {options.bootstrap}; start it: tablegate job run '
            f"{job_argument(table)}"
        )
    begun = max(KafkaAdmin(options.bootstrap).changelogs(table.name), default=0)
    if start is not None:
        begun += 1
    return max(old.generation + 1, table.generation, begun)


@contextmanager
def _application(plans: Sequence[Plan], options: Options, stop: threading.Event) -> Iterator[SparkSession]:
    master = _master(plans, options)
    for plan in plans:
        log(
            "starting",
            table=plan.table.name,
            generation=plan.generation,
            mode=plan.mode.value,
            sources=[side.topic.name for side in plan.sides.values()],
            changelog=plan.changelog.name,
            partitions=plan.changelog.partition_count,
            master=master or "as submitted",
        )
    names = " ".join(plan.table.name for plan in plans)
    with spark_session(
        f"tablegate {names}", master=master, checkpoints=options.checkpoints, spark_log=options.spark_log
    ) as spark:
        _take_signals(stop)  # Spark has set a handler of its own, which would end in a stack trace
        await_slots(spark, _slots(plans), stop)
        yield spark


def _master(plans: Sequence[Plan], options: Options) -> str | None:
    """Return the master to ask for, None for that of spark-submit; raise `JobError` where it has too few slots."""
    if options.master is None and is_submitted():
        return None
    slots = _slots(plans)
    master = options.master or (f"local[{slots}]" if slots else "local[*]")
    check_slots(master, slots)
    return master


def _slots(plans: Sequence[Plan]) -> int:
    """Return how many slots Real-time Mode needs, with those for micro-batches beside it; 0 where no table is in it."""
    slots = sum(plan.realtime_slots for plan in plans)
    return slots + MICROBATCH_SLOTS if slots else 0


def _keep(
    spark: SparkSession,
    plans: Sequence[Plan],
    options: Options,
    stop: threading.Event,
    declared: Callable[[], Sequence[Table]],
) -> None:
    tables: list[RunningTable] = []
    try:
        for plan in plans:
            if stop.is_set():
                return
            now_declared = partial(_declared_now, plan.table, declared)
            with _java_errors(plan, stop):
                tables.append(RunningTable(spark, plan, options, is_rebuild=False, declared=now_declared))
            _poll(plans, tables, stop)  # Spark takes seconds for each: what the first do is told meanwhile
        while not stop.wait(POLL_S):
            _poll(plans, tables, stop)
    finally:
        _close(spark, tables)


def _poll(plans: Sequence[Plan], tables: Sequence[RunningTable], stop: threading.Event) -> None:
    for plan, table in zip(plans, tables, strict=False):  # some may not have started
        with _java_errors(plan, stop):
            table.poll()


def _declared_now(table: Table, declared: Callable[[], Sequence[Table]]) -> Table:
    for found in declared():
        if found.name == table.name:
            return found
    raise JobError(
        f'{table.declared_at.file}: table "{table.name}" is not declared any more; stop the job, or declare it again'
    )


def _close(spark: SparkSession, tables: Sequence[RunningTable]) -> None:
    with suppress(Py4JError, ConnectionError):  # Java is gone already: there is nothing left to stop
        spark.sparkContext.setLogLevel("OFF")  # what is cut off on purpose would log its stack traces
    for table in tables:
        with suppress(Py4JError, ConnectionError):
            table.close()


@contextmanager
def _java_errors(plan: Plan, stop: threading.Event) -> Iterator[None]:
    """Say in a sentence what Java said; nothing, where it was cut off on purpose."""
    try:
        yield
    except (Py4JError, ConnectionError) as error:
        if stop.is_set():
            return  # a signal to the whole process group ends Java as well, before we have asked it to stop
        if isinstance(error, Py4JJavaError):
            raise JobError(f'table "{plan.table.name}" has stopped: {error_reason(error)}') from None
        raise JobError("Spark's Java process has ended; its log says why") from None


@contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """Give an event that SIGTERM and SIGINT set; put the handlers back at the end."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    _take_signals(stop)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _take_signals(stop: threading.Event) -> None:
    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as the signal module calls it
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
