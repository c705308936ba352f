"""What a job says when it cannot go on."""

import re
from typing import Self


class JobError(Exception):
    """A job that cannot start or go on; the message is one sentence: what, where, what to do."""


class PythonWorkerLate(Exception):
    """A query that has ended as a Python worker took longer to start than Spark waits. It is started again."""

    @classmethod
    def found_in(cls, reason: str) -> Self | None:
        """Return the error that a query's failure means; None where it means something else."""
        return cls(reason) if re.search(r"Python worker\b.*connect back", reason) else None


class UnknownSchema(Exception):
    """A query that has met a schema id it does not know. It is started again with the registry's newest schemas."""

    def __init__(self, topic: str, schema_id: int) -> None:
        super().__init__(f'topic "{topic}" has a record of the unknown schema {schema_id}')
        self.topic = topic
        self.schema_id = schema_id

    @staticmethod
    def mark(topic: str) -> str:
        """Return what the message of the query's own error begins with; the schema id follows."""
        return f"tablegate-unknown-schema {topic} "

    @classmethod
    def found_in(cls, reason: str) -> Self | None:
        """Return the error that a query's failure means; None where it means something else."""
        matched = re.search(cls.mark("(\\S+)") + r"(\d+)", reason)
        return cls(matched.group(1), int(matched.group(2))) if matched is not None else None
