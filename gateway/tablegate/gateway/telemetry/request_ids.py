"""By what a request is known: its id, its place in a trace (W3C Trace Context); and for which call a task is at work.

Who forwards knows nothing of the call that it forwards for: it finds it by the context of its task.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Protocol

HEADER = "x-request-id"
TRACE_HEADERS = TRACE_PARENT, TRACE_STATE = "traceparent", "tracestate"


class Identified(Protocol):
    """What is known by an id, and perhaps by a trace."""

    def identity(self) -> Sequence[tuple[str, str]]:
        """Return the headers by which it is known to whoever is asked for it."""


AT_WORK: ContextVar[Identified | None] = ContextVar("AT_WORK", default=None)
"""The call that this task is at work for; None where it is at work for none."""
