"""Why a query of Spark's has ended, as the error that says what to do."""

import re

from tablegate.jobs.errors import (
    CheckpointConflict,
    JobError,
    PythonWorkerLate,
    ShuffleBroken,
    SourceLoss,
    UnknownSchema,
)
from tablegate.jobs.planning.declarations import rebuild_hint
from tablegate.jobs.planning.plan import Plan

_DATA_LOSS = re.compile(r"KAFKA_DATA_LOSS|OffsetOutOfRange|LogTruncation|KafkaIllegalStateException: Some data")
_KAFKA_ERRORS = ("TimeoutException", "DisconnectException", "NetworkException", "BrokerNotAvailableException")


def query_error(reason: str, plan: Plan) -> Exception:
    """Return the error of a query that has failed: a `JobError`, or why the job is to start its queries again."""
    for mendable in (UnknownSchema, PythonWorkerLate, CheckpointConflict, ShuffleBroken):
        if (found := mendable.found_in(reason)) is not None:
            return found
    if _DATA_LOSS.search(reason):
        return SourceLoss(
            f'table "{plan.table.name}" has stopped, as a source has lost records ({reason}); '
            f"{rebuild_hint(plan.table)}"
        )
    # Brokers that are away end a query of Spark's, and the operator should not have to read a stack trace to see
    # that.
    if reason.startswith(_KAFKA_ERRORS):
        return JobError(
            f"Kafka at {plan.bootstrap} has stopped answering ({reason}); start the job again when it does: "
            "it goes on from its checkpoint"
        )
    return JobError(f'table "{plan.table.name}" has stopped: {reason}')
