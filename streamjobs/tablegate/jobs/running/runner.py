"""Runs the jobs of tables in one Spark application, from their checks to their clean end.

Decision: docs/decisions/0119-tables-start-side-by-side.md
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial

from py4j.protocol import Py4JError
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from tablegate.gateway.contract.kafka_file import ChangedFiles
from tablegate.gateway.contract.kafka_settings import settings_of
from tablegate.jobs import metrics
from tablegate.jobs.errors import JobError
from tablegate.jobs.frame_table import Declared
from tablegate.jobs.kafka.job_group import await_gone, job_group
from tablegate.jobs.log import log
from tablegate.jobs.planning.declarations import load_all
from tablegate.jobs.planning.options import Options
from tablegate.jobs.planning.plan import Plan, make_plan, tables_read
from tablegate.jobs.running.application import close_tables, java_errors, spark_application, stop_on_signals
from tablegate.jobs.running.running_table import RunningTable
from tablegate.jobs.traces import BatchTraces, sent

LOOK_S = 5.0  # how late a log tells that a file of Kafka's settings has changed
STARTS_AT_ONCE_MAX = 8  # of tables: a start waits for Kafka and for the store of checkpoints most of its time
POLL_S = 0.1  # how late a marker may be; asking Spark costs a millisecond


def run_declared(jobs: Sequence[str], options: Options) -> None:
    """Keep the tables that jobs name, as `run_jobs` does: examples by their names, others by their files."""
    run_jobs(load_all(jobs), options, declared=partial(load_all, jobs))


def run_jobs(
    tables: Sequence[Declared], options: Options, *, declared: Callable[[], Sequence[Declared]] | None = None
) -> None:
    """Keep the tables until SIGTERM or SIGINT, then return; raise `JobError` where one of them cannot be started.

    With `once` it also returns when all that the sources had is worked off. A table that cannot be kept any more is
    stopped, and logged as `failed`; the others go on. When none is left, or at the signal, the first one's error is
    raised. Runs in the main thread, which signals come to. A table goes on from its checkpoint where there is one.
    `declared` returns the declarations as they are later: a table continues by them with a generation that another job
    has built.
    """
    with metrics.served(options.metrics), sent(wanted=options.traces) as traces, stop_on_signals() as stop:
        plans = _plans(tables, options)
        for table in tables:  # before the seconds that Spark needs; the group is joined when the table starts
            await_gone(options.bootstrap, table.name, job_group(table.name))
        with spark_application(plans, options, stop) as spark:
            _keep(spark, plans, options, stop, declared or (lambda: tables), traces)
    for table in tables:
        log("stopped", table=table.name)


def _plans(tables: Sequence[Declared], options: Options) -> list[Plan]:
    """Return the plans of tables; those that others read are planned before these, as they may have no manifest yet."""
    planned: dict[str, Plan] = {}
    while len(planned) < len(tables):
        waiting = [table for table in tables if table.name not in planned]
        names = {table.name for table in waiting}
        ready = [table for table in waiting if not names & tables_read(table)]
        for table in ready or waiting:  # in a circle, none of them is; then the manifests that are there have to do
            manifests = {name: plan.manifest for name, plan in planned.items()}
            planned[table.name] = make_plan(table, options, planned=manifests)
    return [planned[table.name] for table in tables]


def _keep(
    spark: SparkSession,
    plans: Sequence[Plan],
    options: Options,
    stop: threading.Event,
    declared: Callable[[], Sequence[Declared]],
    traces: BatchTraces | None,
) -> None:
    tables: list[RunningTable] = []
    failures: list[JobError] = []
    changed = ChangedFiles(settings_of(options.bootstrap).files())  # since before the first table has read them

    def start(plan: Plan) -> None:
        if not stop.is_set():
            now_declared = partial(_declared_now, plan.table, declared)
            with java_errors(plan, stop):
                tables.append(
                    RunningTable(spark, plan, options, is_rebuild=False, declared=now_declared, traces=traces)
                )

    # PySpark would start one for each thread that is the first to need it.
    ensure_callback_server_started(spark.sparkContext._gateway)
    try:
        # The first alone: it is there soonest so, and what each start needs is loaded then.
        for together in (plans[:1], plans[1:]):
            failures += _start(together, start, tables, stop)
        next_look_s = 0.0
        while tables and not stop.wait(POLL_S):
            failures += _poll(tables, stop)
            if time.monotonic() >= next_look_s:
                next_look_s = time.monotonic() + LOOK_S
                for file in changed.found():
                    log("kafka_file_changed", file=str(file), hint="start the job again: Spark has read it already")
    finally:
        close_tables(spark, tables)
    if failures:
        raise failures[0]


def _start(
    plans: Sequence[Plan], start: Callable[[Plan], None], tables: list[RunningTable], stop: threading.Event
) -> list[JobError]:
    """Start tables side by side, and poll meanwhile those that run; return why some of these cannot be kept.

    Raise `JobError` where one cannot be started, once the starts that have begun have ended.
    """
    failures: list[JobError] = []
    with ThreadPoolExecutor(STARTS_AT_ONCE_MAX, thread_name_prefix="tablegate-start") as starting:
        pending = {starting.submit(start, plan) for plan in plans}
        try:
            while pending:
                done, pending = wait(pending, POLL_S, FIRST_COMPLETED)
                for one in done:
                    one.result()
                failures += _poll(tables, stop)
        finally:
            starting.shutdown(wait=False, cancel_futures=True)
    return failures


def _poll(tables: list[RunningTable], stop: threading.Event) -> list[JobError]:
    """Poll the tables; take those from the list that are done or cannot be kept, and return why the latter."""
    failures = []
    for table in [*tables]:
        try:
            with java_errors(table.plan, stop):
                table.poll()
                if table.is_done:
                    table.close()
            if table.is_done:
                log("worked_off", table=table.plan.table.name, generation=table.plan.generation)
                tables.remove(table)
        except JobError as error:
            log("failed", table=table.plan.table.name, reason=str(error))
            failures.append(error)
            tables.remove(table)
            with suppress(Py4JError, ConnectionError):
                table.close()
    return failures


def _declared_now(table: Declared, declared: Callable[[], Sequence[Declared]]) -> Declared:
    for found in declared():
        if found.name == table.name:
            return found
    raise JobError(
        f'{table.declared_at.file}: table "{table.name}" is not declared any more; stop the job, or declare it again'
    )
