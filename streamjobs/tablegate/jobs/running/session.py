"""The Spark session of a job.

Decision: docs/decisions/0007-checkpoint-file-manager.md
Decision: docs/decisions/0019-no-slot-check-on-a-local-master.md
Decision: docs/decisions/0037-cluster-jobs-wait-for-slots.md
Decision: docs/decisions/0104-from-spark-4-1-on.md
Decision: docs/decisions/0107-few-messages-to-java.md
Decision: docs/decisions/0118-an-archive-of-javas-classes.md
Decision: docs/decisions/0192-generated-code-is-kept.md
"""

import logging
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, MappingProxyType, SimpleNamespace
from typing import Self

import pyspark.core.context
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from tablegate.gateway.contract.kafka_settings import needs_msk
from tablegate.jobs.dataflow.java_classes import java_class
from tablegate.jobs.dataflow.java_errors import first_line
from tablegate.jobs.declared import SourceLine
from tablegate.jobs.errors import JobError
from tablegate.jobs.jars import SetupError
from tablegate.jobs.jars.class_archive import ClassArchive
from tablegate.jobs.jars.jars import jars
from tablegate.jobs.jars.java import find_java
from tablegate.jobs.log import log

LOG_SETTINGS = Path(__file__).parent / "log4j2.properties"

REALTIME_SPARK_MIN = (4, 3)
"""The first version whose Real-time Mode takes aggregates, which every table has."""

# What a user may set otherwise.
DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A row waits in the shuffle's send buffer until this many milliseconds have passed: 1 instead of the default takes
    # an event through the job in 15 ms instead of 40.
    "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "1",
    # PySpark notes which line of Python makes an expression, by ten messages to Java and a stack trace for each. Errors
    # of jobs name the line of the declaration instead.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
    # Spark keeps 100 classes of generated code. Those of eight tables are more, and each batch compiled its own again.
    "spark.sql.codegen.cache.maxEntries": "2000",
    "spark.sql.streaming.stopTimeout": "10s",  # who waits for a stop would kill the process soon after
}

# What jobs count on.
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",  # an overflow is an error, not another number
    "spark.sql.adaptive.enabled": "false",  # streams do without; Spark would warn of it each time
    # A second copy of a task would write stale records to the changelog.
    "spark.speculation": "false",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A batch uploads what it changed, not the whole state.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # State files with names of their own for each attempt: what Real-time Mode needs. Micro-batches have them too, so
    # that a table can change its mode and keep its checkpoint.
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    # A tick while no data comes: a progress marker then proves that the table is current.
    "spark.sql.streaming.noDataProgressEventInterval": "1000",
    # A table may have a watermark for each partition of its sources. Where several stateful operators are allowed, of
    # which a table has one, Spark allows no second watermark.
    "spark.sql.streaming.statefulOperator.allowMultiple": "false",
    # Spark ends a Real-time Mode query for which there are not enough free slots at the moment its batch begins: each
    # time that micro-batches beside it have just taken some, or that a worker is away. They come back soon, and
    # `check_slots` or `await_slots` has counted that all fit.
    "spark.scheduler.pipelinedGroup.slotCheck.enabled": "false",
}

# Spark's default way to a local checkpoint starts chmod and readlink processes for each file, and it writes one for
# each state partition between two batches. This way the gap between batches is 0.2 s instead of 0.3 to 0.45; a
# Real-time Mode job's slowest rows are those that arrive in it. Files still appear by rename: whole, or not at all.
LOCAL_CHECKPOINT_SETTINGS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}

# Settings that the job makes itself, and what to do instead.
_OWN_WAYS = {
    "spark.master": "say it with --master",
    "spark.sql.shuffle.partitions": "a table has as many as its changelog has partitions, see --partitions",
    **dict.fromkeys(SETTINGS, "the job counts on its own value, leave it out"),
}
# Java would look through all of its memory for classes that nobody uses, two or three times at each start.
_METASPACE = "-XX:MetaspaceSize=256m"
_JARS, _CLASS_PATH, _JAVA_OPTIONS = "spark.jars", "spark.driver.extraClassPath", "spark.driver.extraJavaOptions"
_UI = "spark.ui."

MICROBATCH_SLOTS = 2  # dead letters, outputs and tables in micro-batches share them: threads, not cores
SLOTS_POLL_S = 0.5

_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:\s*,\s*\d+)?])?")
_SESSIONS = "org.apache.spark.sql.classic.SparkSession"
_KAFKA_SOURCE = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_LOGGERS_OF_CALLS = logging.getLogger(), logging.getLogger("py4j.clientserver")
"""Of py4j: the first says that Ctrl-C broke off a call, the second that Java has closed the call's connection already.

py4j asks Java to close it over each idle connection, and then over that connection itself.
"""
_SUBMIT_JARS = '--jars "$(python -c \'from tablegate.jobs.jars.jars import jars; print(*jars("spark"), sep=",")\')"'


def local_slots(master: str) -> int | None:
    """Return how many tasks a local master runs at once; None for a cluster, which alone knows its slots."""
    matched = _LOCAL.fullmatch(master)
    if matched is None:
        return None
    threads = matched.group(1) or "1"
    return os.cpu_count() or 1 if threads == "*" else int(threads)


def check_realtime(version: str, declared_at: SourceLine, name: str) -> None:
    """Raise `JobError` where this version of Spark has no Real-time Mode for a table: all of ours keep a state."""
    major, minor = (int(number) for number in version.split(".")[:2])
    if (major, minor) < REALTIME_SPARK_MIN:
        needed = ".".join(map(str, REALTIME_SPARK_MIN))
        raise JobError(
            f'{declared_at}: table "{name}": Real-time Mode needs Spark {needed} or newer, and this is {version}; '
            "use mode=Mode.MICROBATCH, or --mode microbatch"
        )


def check_slots(master: str, needed: int) -> None:
    """Raise `JobError` where Spark would refuse Real-time Mode: its tasks run all at once, for a whole batch."""
    slots = local_slots(master)
    if slots is not None and slots < needed:
        raise JobError(
            f"Real-time Mode needs {needed} slots (one for each partition of sources and of tables, and "
            f'{MICROBATCH_SLOTS} for micro-batches beside them), master "{master}" has {slots}; use local[{needed}]'
        )


def await_slots(spark: SparkSession, needed: int, stop: threading.Event) -> None:
    """Wait until Spark has as many slots as Real-time Mode needs, or `stop` is set; raise `JobError`.

    Executors come seconds after the session, and later where workers have yet to start.
    """
    context = spark.sparkContext
    check_slots(context.master, needed)
    if needed == 0 or context.defaultParallelism >= needed:  # the cores of all executors
        return
    log("waiting_for_slots", needed=needed, master=context.master)
    while context.defaultParallelism < needed and not stop.wait(SLOTS_POLL_S):
        pass


def is_submitted() -> bool:
    """Return whether spark-submit has started this process, and so has set master and jars."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def table_session(spark: SparkSession, *, shuffle_partitions: int) -> SparkSession:
    """Return a session of the same application, for the queries of one table."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", shuffle_partitions)
    # PySpark makes a session the active one for the first thread alone, and tables start in others. What the state of a
    # query is read into has no other to run in.
    java_class(spark.sparkContext, _SESSIONS).setActiveSession(session._jsparkSession)
    return session


# PySpark writes each error of an expression to stderr, with two stack traces; it is raised all the same.
PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True


@contextmanager
def spark_session(
    name: str,
    *,
    master: str | None,
    checkpoints: str,
    spark_log: Path | None,
    conf: Mapping[str, str] = MappingProxyType({}),
    java_options: Sequence[str] = (),
    records_classes: bool = False,
) -> Iterator[SparkSession]:
    """Start Spark, and stop it at the end; raise `JobError`. `master` None is what spark-submit was given.

    `conf`: settings of the user's; those go before `DEFAULTS`, and jars beside those of jobs. `records_classes`:
    whether Spark runs what most jobs run, so that its classes are worth an archive.
    """
    _check_conf(conf)
    _check_other(master)
    builder = SparkSession.builder.appName(name)
    local_settings = LOCAL_CHECKPOINT_SETTINGS if _is_local(checkpoints) else {}
    for setting, value in {**_defaults(), **conf, **SETTINGS, **local_settings}.items():
        builder = builder.config(setting, value)
    if master is not None:
        builder = builder.master(master)
        if local_slots(master) is not None:
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # no port that another machine can reach
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # or workers are the first python3 on the PATH
            # Or the working directory shadows modules of workers. Not of this process, whose children are its own.
            builder = builder.config("spark.executorEnv.PYTHONSAFEPATH", "1")
            builder = builder.config("spark.driver.host", "127.0.0.1")
    archive = None
    if not is_submitted():
        options = [f"-Dlog4j2.configurationFile={LOG_SETTINGS}", _METASPACE, *java_options]
        java, own_jars = _local_parts()
        if master is None or local_slots(master) is None:  # executors fetch jars from the driver
            builder = builder.config(_JARS, ",".join([*map(str, own_jars), *_given(conf, _JARS)]))
        else:
            # There is no executor but the driver, and Java archives only classes of the class path that it starts with.
            builder = builder.config(_CLASS_PATH, os.pathsep.join([*map(str, own_jars), *_given(conf, _CLASS_PATH)]))
            path = class_path(own_jars, *_given(conf, _CLASS_PATH))
            archive = ClassArchive("spark", java, path, given=conf.get(_JAVA_OPTIONS, ""))
            options += archive.options(records=records_classes)
        builder = builder.config(_JAVA_OPTIONS, " ".join([*map(shlex.quote, options), *_given(conf, _JAVA_OPTIONS)]))
    with Interrupts() as interrupts:
        with _stderr_to(spark_log):  # the Java process keeps the stderr it is started with
            spark = _started(builder, conf)
        try:
            interrupts.let_in()
            if is_submitted():
                # Our own log settings came with the session that we start; spark-submit has brought its own.
                spark.sparkContext.setLogLevel("WARN")
            if not has_connectors(spark):
                raise JobError(f"Spark has no Kafka connector; give spark-submit {_SUBMIT_JARS}")
            yield spark
        finally:
            if archive is not None:
                _write_archive(archive, spark)
            _stop(spark)


def _check_other(master: str | None) -> None:
    """Raise `JobError` where the process has a Spark of fewer slots: it would be used, and its tasks wait for ever."""
    other = SparkContext._active_spark_context
    if other is None or master is None:
        return
    found, wanted = local_slots(other.master), local_slots(master)
    if found is not None and wanted is not None and found < wanted:
        raise JobError(
            f'this process has started Spark already, with master "{other.master}", and "{master}" is needed; start no '
            "Spark in a declaration, or give that one as many slots"
        )


def _check_conf(conf: Mapping[str, str]) -> None:
    if conf and is_submitted():
        raise JobError("--conf stands behind the script, and is of spark-submit; give it before the script")
    for setting in conf:
        if setting in _OWN_WAYS:
            raise JobError(f"--conf {setting} is not the user's to set: {_OWN_WAYS[setting]}")


def _defaults() -> dict[str, str]:
    """Return our defaults, but for what spark-submit was told, and for its pages, which stay as they are there."""
    if not is_submitted():
        return DEFAULTS
    SparkContext._ensure_initialized()
    given = SparkConf()
    return {name: value for name, value in DEFAULTS.items() if not given.contains(name) and not name.startswith(_UI)}


def _is_local(checkpoints: str) -> bool:
    scheme, separator, _ = checkpoints.partition(":")
    return not separator or scheme == "file"


def class_path(own_jars: Sequence[Path], *more: str) -> list[str]:
    """Return what is on the class path of a local Spark, but for the order of what Spark brings."""
    return [*map(str, own_jars), *more, *sorted(map(str, Path(_find_spark_home(), "jars").iterdir()))]


def _write_archive(archive: ClassArchive, spark: SparkSession) -> None:
    with suppress(Py4JError, ConnectionError, AttributeError):  # Java is gone already: it is for another time
        archive.write(java_class(spark.sparkContext, "java.lang.System").getProperty("java.class.path"))


def _stop(spark: SparkSession) -> None:
    if spark.sparkContext._jsc is None:
        return  # another part of the process has stopped the Spark that both have used
    try:
        spark.sparkContext.setLogLevel("OFF")  # queries that are stopped on purpose would log stack traces
        spark.stop()
    except (Py4JError, ConnectionError):
        pass  # Java is gone already: a signal to the process group ends it too


def _given(conf: Mapping[str, str], setting: str) -> list[str]:
    return [conf[setting]] if setting in conf else []


def _local_parts() -> tuple[Path, list[Path]]:
    """Return Java, and the jars that jobs need."""
    try:
        return find_java(), [*jars("spark"), *(jars("msk") if needs_msk() else ())]
    except SetupError as error:
        raise JobError(str(error)) from None


class Interrupts:
    """Ctrl-C while Spark runs, where nobody handles it: `KeyboardInterrupt`, and nothing else is seen of it.

    While Java starts, a `KeyboardInterrupt` would leave it behind for ever: PySpark removes the directory in which Java
    is to write its port, and so the thread of Java ends that would notice that we are gone. So the first one waits
    until Spark is there (`let_in`), a second one does not. Later, calls to Java that it breaks off fail in other ways,
    and py4j logs a stack trace.

    A context of PySpark's would set a handler of its own, also over that of a job. What it calls for that is taken from
    its module, as there is no setting.
    """

    def __init__(self) -> None:
        self.have_come = False
        self._are_let_in = False

    def __enter__(self) -> Self:
        module = vars(pyspark.core.context)
        self._handler, self._signal = signal.getsignal(signal.SIGINT), module["signal"]
        self._is_ours = (
            self._handler is signal.default_int_handler and threading.current_thread() is threading.main_thread()
        )
        module["signal"] = SimpleNamespace(SIGINT=signal.SIGINT, signal=lambda *_: None)
        for logger in _LOGGERS_OF_CALLS:
            logger.addFilter(_is_of_no_interrupt)
        if self._is_ours:
            signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._is_ours:
            signal.signal(signal.SIGINT, self._handler)
        for logger in _LOGGERS_OF_CALLS:
            logger.removeFilter(_is_of_no_interrupt)
        vars(pyspark.core.context)["signal"] = self._signal
        if self.have_come and kind is not None:
            raise KeyboardInterrupt from None

    def let_in(self) -> None:
        """Raise `KeyboardInterrupt` where one has come, and from now on at once."""
        self._are_let_in = True
        if self.have_come:
            raise KeyboardInterrupt

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        is_second, self.have_come = self.have_come, True
        if is_second or self._are_let_in:
            raise KeyboardInterrupt


def _is_of_no_interrupt(record: logging.LogRecord) -> bool:
    return record.msg not in {
        "KeyboardInterrupt while sending command.",
        "Exception occurred while shutting down connection",
    }


def _started(builder: SparkSession.Builder, conf: Mapping[str, str]) -> SparkSession:
    try:
        return builder.getOrCreate()
    except Exception as error:  # noqa: BLE001 - py4j's errors have no common class of their own
        given = f", and look at what --conf gives: {', '.join(conf)}" if conf else ""
        raise JobError(f"Spark does not start: {first_line(error)}; read its log{given}") from None


def has_connectors(spark: SparkSession) -> bool:
    """Return whether Spark has the jars that jobs need."""
    context = spark.sparkContext
    try:
        loader = java_class(context, "java.lang.Thread").currentThread().getContextClassLoader()
        java_class(context, "java.lang.Class").forName(_KAFKA_SOURCE, False, loader)
    except Exception:  # noqa: BLE001 - as above
        return False
    return True


@contextmanager
def _stderr_to(path: Path | None) -> Iterator[None]:
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
