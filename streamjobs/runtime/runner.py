"""Runs the job of one table, from its checks to its clean end."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from streamjobs.runtime.checkpoint import Checkpoint, Identity
from streamjobs.runtime.errors import JobError
from streamjobs.runtime.java import error_reason
from streamjobs.runtime.log import log
from streamjobs.runtime.manifests import publish_manifest
from streamjobs.runtime.markers import Markers
from streamjobs.runtime.options import Options
from streamjobs.runtime.plan import Plan, check_rebuild, make_plan
from streamjobs.runtime.queries import Queries
from streamjobs.runtime.session import check_slots, is_submitted, realtime_slots, spark_session
from streamjobs.runtime.watch import Watch
from streamjobs.table import Mode, Table


def run_job(table: Table, options: Options) -> None:
    """Keep the table until SIGTERM or SIGINT, then return; raise `JobError` where that is not possible.

    Runs in the main thread, which signals come to. The table goes on from its checkpoint where there is one.
    """
    with _stop_on_signals() as stop:
        plan = make_plan(table, options)
        master = _master(plan, options)
        log(
            "starting",
            table=table.name,
            generation=table.generation,
            mode=plan.mode.value,
            source=plan.source.name,
            changelog=plan.changelog.name,
            partitions=plan.changelog.partition_count,
            master=master or "as submitted",
        )
        with spark_session(
            f"tablegate {table.name}",
            master=master,
            shuffle_partitions=plan.changelog.partition_count,
            checkpoint=options.checkpoint,
            spark_log=options.spark_log,
        ) as spark:
            _take_signals(stop)  # Spark has set a handler of its own, which would end in a stack trace
            _keep(spark, plan, options, stop)
    log("stopped", table=table.name)


def _master(plan: Plan, options: Options) -> str | None:
    """Return the master to ask for, None for that of spark-submit; raise `JobError` where it has too few slots."""
    if options.master is None and is_submitted():
        return None
    if plan.mode is Mode.MICROBATCH:
        return options.master or "local[*]"
    source_partitions, shuffle_partitions = plan.source.partition_count, plan.changelog.partition_count
    master = options.master or f"local[{realtime_slots(source_partitions, shuffle_partitions)}]"
    check_slots(master, source_partitions=source_partitions, shuffle_partitions=shuffle_partitions)
    return master


def _keep(spark: SparkSession, plan: Plan, options: Options, stop: threading.Event) -> None:
    try:
        checkpoint = Checkpoint(spark, options.checkpoint)
        if checkpoint.owner() is None:
            check_rebuild(plan)
        queries = Queries(spark, plan, checkpoint)
        checkpoint.claim(_identity(plan))
        publish_manifest(plan.bootstrap, plan.manifest)
        if stop.is_set():
            return
        started = queries.start()
        log("running", table=plan.table.name)
        markers = Markers(plan.bootstrap, plan.changelog, plan.table.generation)
        Watch(plan, *started, markers).run(stop)
        spark.sparkContext.setLogLevel("OFF")  # what is cut off on purpose would log its stack traces
        for query in started:
            query.stop()
        markers.close()
    except (Py4JError, ConnectionError) as error:
        if stop.is_set():
            return  # a signal to the whole process group ends Java as well, before we have asked it to stop
        if isinstance(error, Py4JJavaError):
            raise JobError(f'table "{plan.table.name}" has stopped: {error_reason(error)}') from None
        raise JobError("Spark's Java process has ended; its log says why") from None


def _identity(plan: Plan) -> Identity:
    return Identity(
        table=plan.table.name,
        generation=plan.table.generation,
        changelog_topic_id=plan.changelog.topic_id,
        source_topic=plan.source.name,
        source_topic_id=plan.source.topic_id,
    )


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
