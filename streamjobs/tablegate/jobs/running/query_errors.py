"""Why a query of Spark's has ended, as the error that says what to do."""

import re
from contextlib import suppress

from tablegate.gateway.contract.kafka_settings import source_cluster
from tablegate.jobs.dataflow.java_errors import KAFKA_AWAY, NO_SPACE
from tablegate.jobs.errors import (
    CheckpointConflict,
    JobError,
    PythonWorkerLate,
    ShuffleBroken,
    SourceLoss,
    UnknownSchema,
)
from tablegate.jobs.kafka.topics import KafkaAdmin
from tablegate.jobs.planning.declarations import rebuild_hint
from tablegate.jobs.planning.plan import Plan

_DATA_LOSS = re.compile(r"KAFKA_DATA_LOSS|OffsetOutOfRange|LogTruncation|KafkaIllegalStateException: Some data")
_MISSING = "UnknownTopicOrPartitionException"


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
    if NO_SPACE in reason:
        return JobError(
            f'table "{plan.table.name}" has stopped, as a disk is full ({reason}): make room under '
            f'"{plan.checkpoint}", and where Spark has its scratch files (spark.local.dir), then start the job again: '
            "it goes on from its checkpoint"
        )
    # A producer only waits in vain for a topic that is not there.
    if reason.startswith((_MISSING, *KAFKA_AWAY)) and (deleted := _deleted_topic(plan)) is not None:
        return JobError(
            f'table "{plan.table.name}" has stopped, as topic "{deleted}" was deleted while the job ran; start the job '
            "again: it says how to go on"
        )
    # Brokers that are away end a query of Spark's, and the operator should not have to read a stack trace to see
    # that.
    if reason.startswith(KAFKA_AWAY):
        return JobError(
            f"Kafka at {plan.bootstrap} has stopped answering ({reason}); start the job again when it does: "
            "it goes on from its checkpoint"
        )
    return JobError(f'table "{plan.table.name}" has stopped: {reason}')


def _deleted_topic(plan: Plan) -> str | None:
    """Return a topic of the table that is not there any more; None where all are, or Kafka does not answer."""
    own = [plan.changelog.name, *(output.topic for output in plan.table.outputs)]
    with suppress(JobError):
        for bootstrap, names in (
            (source_cluster(plan.bootstrap), [side.topic.name for side in plan.sides.values()]),
            (plan.bootstrap, own),
        ):
            admin = KafkaAdmin(bootstrap)
            for name in names:
                if admin.find(name) is None:
                    return name
    return None
