"""The id of a request: in whose header it comes and goes, and for which call a task is at work.

Who forwards knows nothing of the call that it forwards for: it finds it by the context of its task.
"""

from contextvars import ContextVar
from typing import Protocol

HEADER = "x-request-id"


class Identified(Protocol):
    """What has a request id."""

    @property
    def request_id(self) -> str:
        """Return it."""


AT_WORK: ContextVar[Identified | None] = ContextVar("AT_WORK", default=None)
"""The call that this task is at work for; None where it is at work for none."""
