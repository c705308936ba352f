"""A generation that begins with the histories of its sources, and reads their topics from where these end.

    history ──► a Parquet directory of the checkpoint ──► batch 0 of the table's query ──► changelog, state
                                                          its offsets replaced by those where the topics go on

1. The histories are written to the checkpoint once. So a batch that a crash cuts off runs again over the same rows, and
   gives the same versions. What no row can be made of is counted then, and refused: it is in no topic, so nobody could
   set it aside.
2. The checkpoint is claimed. Whoever starts the job after a crash finds that batch 0 has read no topic, and goes on
   with the next step.
3. The table's query runs over the directory, then its batches are noted as if they had read the topics up to where
   they go on. So the query itself begins behind, in either mode, and its plan knows nothing of a history.

Decision: docs/decisions/0105-history-then-live.md
"""

import json
from collections.abc import Callable

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tablegate.gateway.contract.kafka_settings import source_cluster
from tablegate.jobs.dataflow.frames import build, malformed_records
from tablegate.jobs.dataflow.history import HistoryReader, histories, history_frame, topics_of_streams
from tablegate.jobs.dataflow.java_errors import error_reason
from tablegate.jobs.dataflow.sink_records import KIND_COLUMN
from tablegate.jobs.dataflow.sources import HEADERS_SCHEMA
from tablegate.jobs.errors import JobError
from tablegate.jobs.log import log
from tablegate.jobs.planning.plan import Plan
from tablegate.jobs.running.checkpoint import Checkpoint, Identity
from tablegate.jobs.running.queries import TABLE_QUERY, start_history

_DIRECTORY = "history"
_NOTHING = "nothing"
AWAIT_S = 1


def keep_histories(session: SparkSession, plan: Plan, checkpoint: Checkpoint, topics: list[str | None]) -> None:
    """Write the histories to the checkpoint; raise `JobError` where they do not fit, or a row cannot be used.

    `topics`: those of the streams of the table's query.
    """
    names = {side.topic.name for side in plan.streamed.values()}
    if any(topic not in names for topic in topics):
        raise JobError(
            f'{plan.table.declared_at}: table "{plan.table.name}" has a history, and a stream beside its sources, of '
            "which nobody knows where it goes on; make it a source"
        )
    try:
        for number, side in enumerate(histories(plan)):
            frame = history_frame(session, plan, side)
            frame.write.mode("overwrite").parquet(f"{_directory(checkpoint)}/{number}")
        nothing = session.createDataFrame([], HEADERS_SCHEMA)
        nothing.write.mode("overwrite").parquet(f"{_directory(checkpoint)}/{_NOTHING}")
        wrong = malformed_records(plan, _reader(session, plan, checkpoint, is_stream=False))
        counts = {row[0]: row[1] for row in wrong.groupBy(KIND_COLUMN).count().collect()}
    except PySparkException as error:
        raise _does_not_run(plan, error) from None
    if counts:
        listed = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
        raise JobError(
            f'{plan.table.declared_at}: table "{plan.table.name}" has a history with {sum(counts.values())} records '
            f"that no row can be made of: {listed}; correct them in its function, or leave them out"
        )


def is_unread(plan: Plan, checkpoint: Checkpoint) -> bool:
    """Return whether the generation has yet to begin with its histories."""
    return bool(histories(plan)) and not checkpoint.committed_offsets(TABLE_QUERY)


def read_histories(
    session: SparkSession,
    plan: Plan,
    checkpoint: Checkpoint,
    identity: Identity,
    frame: DataFrame,
    *,
    row_outputs: bool,
    poll: Callable[[], object],
) -> None:
    """Run the table's query over its histories, and let it go on with the topics; raise `JobError`.

    `frame`: of the table's query over its topics. `poll` is called each second.
    """
    log("reading_history", table=plan.table.name, generation=plan.generation)
    reader = _reader(session, plan, checkpoint, is_stream=True)
    frames = build(session, plan, row_outputs=row_outputs, reader=reader)
    query = start_history(frames, plan)
    try:
        while not query.awaitTermination(AWAIT_S):
            poll()
    except PySparkException as error:
        raise _does_not_run(plan, error) from None
    finally:
        query.stop()
    lines = [json.dumps({topic: identity.first_offsets[topic]}) for topic in topics_of_streams(frame) if topic]
    checkpoint.adopt_offsets(TABLE_QUERY, lines)
    checkpoint.discard(_DIRECTORY)


def _reader(session: SparkSession, plan: Plan, checkpoint: Checkpoint, *, is_stream: bool) -> HistoryReader:
    directory = _directory(checkpoint)
    directories = {side.topic.name: f"{directory}/{number}" for number, side in enumerate(histories(plan))}
    return HistoryReader(
        session, source_cluster(plan.bootstrap), directories, f"{directory}/{_NOTHING}", is_stream=is_stream
    )


def _directory(checkpoint: Checkpoint) -> str:
    return checkpoint.query_location(_DIRECTORY)


def _does_not_run(plan: Plan, error: PySparkException) -> JobError:
    return JobError(
        f'{plan.table.declared_at}: table "{plan.table.name}" cannot begin with its history: {error_reason(error)}'
    )
