"""Why a job ends, or a query of it: errors for people, and errors after which the job starts its queries again."""

import re
import uuid
from typing import Self

# The second is what is behind the first where Spark found no file, and there was one when it renamed its own.
_CONFLICT = re.compile(
    r"CONCURRENT_STREAM_LOG_UPDATE|FAILED_RENAME_PATH.* to \S+/(offsets|commits)/\d+ as destination already exists"
)


class JobError(Exception):
    """A job cannot start or continue. The message is one sentence: where, what, and what to do."""


class BrokersAway(JobError):
    """No Kafka broker has answered in time: what was asked is not known."""


class NotJoined(JobError):
    """A job is not in its group yet, or not again: brokers are away, or the group is still changing."""


class SourceLoss(JobError):
    """A source has lost records, as a query has found. Its offsets may tell which."""


class PythonWorkerLate(Exception):
    """A query has ended because a Python worker started too slowly for Spark. The job starts the query again."""

    @classmethod
    def found_in(cls, reason: str) -> Self | None:
        """Return the error that a query's failure means; None where it means something else."""
        return cls(reason) if re.search(r"Python worker\b.*connect back", reason) else None


class ShuffleBroken(Exception):
    """A task of Real-time Mode has ended, and Spark names the one that read from it. The job starts the query again.

    Why the first one ended, such as an unknown schema, is what the next start may find; so is what passes.
    """

    @classmethod
    def found_in(cls, reason: str) -> Self | None:
        """Return the error that a query's failure means; None where it means something else."""
        return cls(reason) if re.search(r"\bshuffle writer \d+", reason) else None


class QueryStalled(Exception):
    """A batch in Real-time Mode does not end. The job starts the query again.

    Its tasks wait for each other: for a slot that nobody gives back, for one that has ended.
    """


class CheckpointConflict(Exception):
    """Another job has written to a query's checkpoint: one that was frozen, and wakes. The job starts the query again.

    Of two jobs that share a checkpoint for good, the one that is no member of the table's group ends itself.
    """

    @classmethod
    def found_in(cls, reason: str) -> Self | None:
        """Return the error that a query's failure means; None where it means something else."""
        return cls(reason) if _CONFLICT.search(reason) else None


class UnknownSchema(Exception):
    """A query has met an unknown schema, by its id or its GUID. The job starts it again with the registry's newest."""

    def __init__(self, topic: str, schema_id: int | uuid.UUID) -> None:
        super().__init__(f'topic "{topic}" has a record of the unknown schema {schema_id}')
        self.topic = topic
        self.schema_id = schema_id

    @staticmethod
    def message_prefix(topic: str) -> str:
        """Return how the message of the query's own error begins; the id follows, or the GUID in 32 hex digits."""
        return f"tablegate-unknown-schema {topic} "

    @classmethod
    def message_sql(cls, topic: str, schema_id: str) -> str:
        """Return the SQL of the message, with the SQL of the topic and of the id."""
        before, after = cls.message_prefix("|").split("|")
        return f"concat('{before}', {topic}, '{after}', {schema_id})"

    @classmethod
    def found_in(cls, reason: str) -> Self | None:
        """Return the error that a query's failure means; None where it means something else."""
        matched = re.search(cls.message_prefix("(\\S+)") + r"(?:([0-9A-F]{32})|(\d+))", reason)
        if matched is None:
            return None
        topic, guid, number = matched.groups()
        return cls(topic, uuid.UUID(guid) if guid else int(number))
