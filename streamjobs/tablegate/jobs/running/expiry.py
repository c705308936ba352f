"""Rows that expire: a tombstone for each row whose newest input is too old, and no state of it any more.

Spark removes state without a word, and only of aggregates with a time in their key. So a job sweeps:

    state of a committed batch ──┬── rows that stay ──► state of batch 0 of a query, with the batch's offsets
                                 └── rows that expired ──► tombstones in the changelog

1. Kafka's time is noted, then where the sources end. Once a committed batch has read up to there, its state has all
   inputs from before that time: a row that is too old is so for good, however long the job was behind.
2. Beside the running query, that state is asked for such rows. Where there are none, nothing happens.
3. The query stops. Both kinds of rows are written to directories, and the first become the state of another query.
4. `SWEEP_FILE` says so. From here on the sweep counts: whoever starts the job finishes it.
5. The new query takes the place of the old one; the tombstones are written, of the run that begins with it.

A row's version counts its inputs, which are forgotten with it. So each sweep raises what is counted from: a tombstone
is newer than all before it, and older than all that comes after it.

Decision: docs/decisions/0114-rows-expire-by-sweeps.md
"""

import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from tablegate.jobs.dataflow.frames import CHANGED_PLACE, expired_records
from tablegate.jobs.dataflow.java_errors import error_reason
from tablegate.jobs.dataflow.sink_records import save_records, with_run
from tablegate.jobs.errors import JobError
from tablegate.jobs.frame_table import Declared
from tablegate.jobs.kafka.markers import Markers, SourceOffsets
from tablegate.jobs.log import log
from tablegate.jobs.planning.plan import Plan
from tablegate.jobs.running.checkpoint import COMMITS, OFFSET_LOG_HEAD, Checkpoint
from tablegate.jobs.running.handover import has_read, source_ends
from tablegate.jobs.running.queries import TABLE_QUERY
from tablegate.jobs.running.seeding import write_state
from tablegate.jobs.running.state_records import read_state, records_of_state
from tablegate.jobs.table import Table

SWEEP_FILE = "sweep.json"
SWEEPS_IN_LIFETIME = 10  # so that a row is there a tenth longer than declared, at most
SWEEP_EVERY_S_MAX = 3_600.0  # of a row that expires after a month nobody waits three days for the end
CHECK_EVERY_S = 1.0  # each check reads a file of the checkpoint
INPUTS_BITS = 36  # of a sequence: 68 billion inputs of a row, and 134 million sweeps

_STAYING, _EXPIRED, _NEXT = "sweep-staying", "sweep-expired", "sweep-query"


@dataclass(frozen=True, slots=True)
class Sweep:
    """The newest sweep of a generation. `is_done`: whether its tombstones are written."""

    number: int = 0
    is_done: bool = True

    @property
    def sequence_base(self) -> int:
        """What sequences are counted from since; that of its tombstones."""
        return self.number << INPUTS_BITS


def newest_sweep(checkpoint: Checkpoint) -> Sweep:
    """Return the newest sweep that counts; raise `JobError`."""
    text = checkpoint.decided(SWEEP_FILE)
    return Sweep(**json.loads(text)) if text else Sweep()


def expires(table: Declared) -> bool:
    """Return whether the table's rows expire."""
    return isinstance(table, Table) and table.expires_after_s is not None


def adopt_sweep(checkpoint: Checkpoint) -> Sweep:
    """Let the newest sweep's query take the place of the old one, where it has not yet; return the sweep."""
    sweep = newest_sweep(checkpoint)
    if not sweep.is_done:
        checkpoint.move(_NEXT, TABLE_QUERY)
    return sweep


def sweep(session: SparkSession, plan: Plan, checkpoint: Checkpoint, *, before_us: int) -> Sweep:
    """Decide which rows have expired, and the state without them. The table's query has stopped; raise `JobError`.

    `before_us`: rows without a later input have.
    """
    batch = checkpoint.newest_batch(TABLE_QUERY, COMMITS)
    assert batch is not None, "there is no row of a query without a batch"
    lines = checkpoint.offset_log(TABLE_QUERY, batch).splitlines()[OFFSET_LOG_HEAD:]
    for name in (_STAYING, _EXPIRED, _NEXT):  # of a sweep that was cut off before it counted
        checkpoint.discard(name)
    staying, expired = checkpoint.query_location(_STAYING), checkpoint.query_location(_EXPIRED)
    try:
        state = read_state(session, checkpoint.query_location(TABLE_QUERY), batch)
        has_expired = sql.coalesce(_has_expired(state, plan, before_us), sql.lit(False))
        state.where(has_expired).write.parquet(expired)
        state.where(~has_expired).write.parquet(staying)
        rows = session.read.schema(state.schema).parquet(staying)
        write_state(session, rows, staying, checkpoint.query_location(_NEXT))
    except (PySparkException, Py4JError) as error:
        raise _cannot(plan, error) from None
    checkpoint.adopt_offsets(_NEXT, lines)
    decided = Sweep(newest_sweep(checkpoint).number + 1, is_done=False)
    checkpoint.decide(SWEEP_FILE, json.dumps(asdict(decided)))
    return decided


def finish_sweep(session: SparkSession, plan: Plan, checkpoint: Checkpoint, *, run: int, row_outputs: bool) -> None:
    """Write the tombstones of a sweep, those of a repetition the same; raise `JobError`.

    `run`: of the job that writes them. `row_outputs`: whether the topics that get the table's changes get them, too.
    """
    try:
        frame = expired_records(session, plan, row_outputs=row_outputs)
        records = with_run(tombstones(frame, plan, checkpoint), plan.changelog.name, run)
        save_records(records, plan.bootstrap)
        rows = _expired(session, checkpoint).count()
    except (PySparkException, Py4JError) as error:
        raise _cannot(plan, error) from None
    end_sweep(checkpoint)
    log("expired", table=plan.table.name, generation=plan.generation, rows=rows)


def tombstones(frame: DataFrame, plan: Plan, checkpoint: Checkpoint) -> DataFrame:
    """Return the records of a sweep's rows that have expired, by `expired_records`."""
    return records_of_state(frame, _expired(frame.sparkSession, checkpoint), plan)


def _expired(session: SparkSession, checkpoint: Checkpoint) -> DataFrame:
    return session.read.parquet(checkpoint.query_location(_EXPIRED))


def end_sweep(checkpoint: Checkpoint) -> None:
    """Note that the tombstones of the newest sweep are written; raise `JobError`."""
    done = Sweep(newest_sweep(checkpoint).number)
    checkpoint.decide(SWEEP_FILE, json.dumps(asdict(done)))
    for name in (_STAYING, _EXPIRED):
        checkpoint.discard(name)


def have_expired(session: SparkSession, plan: Plan, checkpoint: Checkpoint, *, before_us: int) -> bool:
    """Return whether the newest committed batch has rows without an input since `before_us`."""
    batch = checkpoint.newest_batch(TABLE_QUERY, COMMITS)
    if batch is None:
        return False
    state = read_state(session, checkpoint.query_location(TABLE_QUERY), batch)
    return not state.where(_has_expired(state, plan, before_us)).isEmpty()


def _has_expired(state: DataFrame, plan: Plan, before_us: int) -> sql.Column:
    name = f"value_{CHANGED_PLACE}"
    if dict(state.dtypes).get(name) != "timestamp":
        raise JobError(
            f'table "{plan.table.name}" has a state that does not say when rows expire; use the version of Spark that '
            "its job began on"
        )
    return sql.unix_micros(name) < before_us


def _cannot(plan: Plan, error: Exception) -> JobError:
    return JobError(f'table "{plan.table.name}" cannot remove its expired rows: {error_reason(error)}')


class RowExpiry:
    """Finds out when rows of a running table have expired. One thread uses it, and it has one for Spark."""

    def __init__(self, session: SparkSession, plan: Plan, checkpoint: Checkpoint, markers: Markers) -> None:
        assert isinstance(plan.table, Table)
        assert plan.table.expires_after_s is not None
        self._session = session
        self._plan = plan
        self._checkpoint = checkpoint
        self._markers = markers
        self._expires_after_s = plan.table.expires_after_s
        self._every_s = min(self._expires_after_s / SWEEPS_IN_LIFETIME, SWEEP_EVERY_S_MAX)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="tablegate-expiry")
        self._counting: Future[bool] | None = None
        self._next_check_s = 0.0
        self._ends: SourceOffsets = {}
        self._before_us: int | None = None
        self._ask()

    def poll(self) -> int | None:
        """Return the time before which rows have expired, where some have; None else. It waits for no state."""
        now_s = time.monotonic()
        if self._counting is not None:
            if not self._counting.done():
                return None
            counting, self._counting = self._counting, None
            before_us, self._before_us = self._before_us, None
            try:
                return before_us if counting.result() else None
            except (PySparkException, Py4JError) as error:  # the query may have removed what was to be read
                log("expiry_delayed", table=self._plan.table.name, reason=error_reason(error))
        elif self._before_us is not None and now_s >= self._next_check_s:
            self._next_check_s = now_s + CHECK_EVERY_S
            if self._is_read():
                self._counting = self._worker.submit(self._have_expired, self._before_us)
        elif self._before_us is None and now_s >= self._next_ask_s:
            self._ask()
        return None

    def _ask(self) -> None:
        self._next_ask_s = time.monotonic() + self._every_s
        # The time first: whatever Kafka has had since then lies before the ends, or is not too old.
        time_ms = self._markers.kafka_time_ms
        if time_ms is not None:
            self._ends = source_ends(self._plan)
            self._before_us = time_ms * 1_000 - round(self._expires_after_s * 1_000_000)

    def poll_last(self) -> int | None:
        """Return as `poll` does, at the end of a job that has worked off what there was when this began."""
        if self._before_us is None or not self._is_read():
            return None
        try:
            return self._before_us if self._have_expired(self._before_us) else None
        except (PySparkException, Py4JError) as error:
            raise _cannot(self._plan, error) from None

    def _is_read(self) -> bool:
        return has_read(self._checkpoint.committed_offsets(TABLE_QUERY) or {}, self._ends, self._plan)

    def _have_expired(self, before_us: int) -> bool:
        return have_expired(self._session, self._plan, self._checkpoint, before_us=before_us)

    def close(self) -> None:
        """End; what expires is found after the next start."""
        self._worker.shutdown(wait=False, cancel_futures=True)
