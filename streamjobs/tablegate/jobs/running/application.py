"""The Spark application around the tables of a job: from signals and slots to a clean end.

Decision: docs/decisions/0037-cluster-jobs-wait-for-slots.md
"""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from tablegate.jobs.dataflow.java_errors import error_reason
from tablegate.jobs.errors import JobError
from tablegate.jobs.log import log
from tablegate.jobs.planning.options import Options
from tablegate.jobs.planning.plan import Plan
from tablegate.jobs.running.running_table import RunningTable
from tablegate.jobs.running.session import (
    MICROBATCH_SLOTS,
    await_slots,
    check_realtime,
    check_slots,
    is_submitted,
    spark_session,
)
from tablegate.jobs.table import Mode


@contextmanager
def spark_application(plans: Sequence[Plan], options: Options, stop: threading.Event) -> Iterator[SparkSession]:
    """Start Spark for these plans and wait for their slots; stop it at the end; raise `JobError`."""
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
        f"tablegate {names}",
        master=master,
        checkpoints=options.checkpoints,
        spark_log=options.spark_log,
        conf=options.conf,
        records_classes=True,
    ) as spark:
        for plan in plans:
            if plan.mode is Mode.REALTIME:
                check_realtime(spark.version, plan.table.declared_at, plan.table.name)
        _handle_signals(stop)  # a Spark that was there before has a handler of its own, which ends in a stack trace
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
    # Tasks in Real-time Mode keep their slots for a whole batch: without some to spare no micro-batch beside them would
    # ever run.
    return slots + MICROBATCH_SLOTS if slots else 0


@contextmanager
def java_errors(plan: Plan, stop: threading.Event) -> Iterator[None]:
    """Raise Java's errors as `JobError`, in one sentence; swallow them once `stop` is set."""
    try:
        yield
    except (Py4JError, ConnectionError) as error:
        if stop.is_set():
            return  # a signal to the whole process group ends Java as well, before we have asked it to stop
        if isinstance(error, Py4JJavaError):
            raise JobError(f'table "{plan.table.name}" has stopped: {error_reason(error)}') from None
        raise JobError("Spark's Java process has ended; its log says why") from None


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Give an event that SIGTERM and SIGINT set; put the handlers back at the end."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    _handle_signals(stop)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _handle_signals(stop: threading.Event) -> None:
    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as the signal module calls it
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


def close_tables(spark: SparkSession, tables: Sequence[RunningTable]) -> None:
    """Stop the queries of all tables, also where Java has ended already."""
    with suppress(Py4JError, ConnectionError):  # Java is gone already: there is nothing left to stop
        spark.sparkContext.setLogLevel("OFF")  # queries that are stopped on purpose would log stack traces
    for table in tables:
        with suppress(Py4JError, ConnectionError):
            table.close()
