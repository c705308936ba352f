"""Spans: what those who do the work for a call know of traces. What OpenTelemetry makes of them is in `otel`.

`SPAN` is the span that a task, or a call that is answered at once, is at work in. Where no traces are made it is always
`NO_SPAN`, which does nothing: nobody asks whether there are any. What a Get passes does not even come here. It is
wrapped where traces are made (`TracedCalls`, `TracedReader`, `TracedForwarder`), and else is as it would be without.

Decision: docs/decisions/0164-spans-wrap-what-is-fast.md
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Protocol, Self

from typing_extensions import override

from tablegate.gateway.telemetry.measures import Histogram

STORE_READ, FRESHNESS_WAIT = "store.read", "freshness.wait"  # names of parts
TABLE, GATEWAY = "tablegate.table", "tablegate.gateway"  # and of attributes


class Span(ABC):
    """A part of the work for a call. Entered, it is `SPAN` until it is left, and ends then. One thread."""

    __slots__ = ()

    @property
    @abstractmethod
    def is_recorded(self) -> bool:
        """Return whether somebody may get to see it, and it has not ended."""

    @property
    @abstractmethod
    def trace_id(self) -> str:
        """Return the id of its trace, as `traceparent` has it; "" of none."""

    @abstractmethod
    def part(self, name: str, attributes: Mapping[str, str]) -> "Span":
        """Begin a part of it."""

    @abstractmethod
    def hop(self, path: str, gateway: str, endpoint: str) -> "Span":
        """Begin, as a part of it, the call of a method of another gateway, which listens at `endpoint`."""

    @abstractmethod
    def headers(self) -> Sequence[tuple[str, str]]:
        """Return the headers by which what is asked with them becomes a part of it; of none there are none."""

    @abstractmethod
    def add(self, attributes: Mapping[str, str]) -> None:
        """Add attributes."""

    @abstractmethod
    def answer(self, code: str) -> None:
        """Record the status of the call that it is."""

    @abstractmethod
    def show(self, histogram: Histogram, value: float) -> None:
        """Keep it as the example of a value that was counted, where it is one of those that are exported."""

    @abstractmethod
    def end(self) -> None:
        """End it. Repeats do nothing."""

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class UnrecordedSpan(Span):
    """A span that nobody sees, nor any part of it. Entered or not, `SPAN` stays what it is."""

    __slots__ = ()

    @property
    @override
    def is_recorded(self) -> bool:
        return False

    @property
    @override
    def trace_id(self) -> str:
        return ""

    @override
    def part(self, name: str, attributes: Mapping[str, str]) -> Span:
        return self

    @override
    def hop(self, path: str, gateway: str, endpoint: str) -> Span:
        return self

    @override
    def headers(self) -> Sequence[tuple[str, str]]:
        return ()

    @override
    def add(self, attributes: Mapping[str, str]) -> None:
        return

    @override
    def answer(self, code: str) -> None:
        return

    @override
    def show(self, histogram: Histogram, value: float) -> None:
        return

    @override
    def end(self) -> None:
        return

    @override
    def __enter__(self) -> Self:
        return self

    @override
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return


NO_SPAN = UnrecordedSpan()
SPAN: ContextVar[Span] = ContextVar("SPAN", default=NO_SPAN)


class Tracer(Protocol):
    """Makes the spans of a process's calls. One thread."""

    def serve(self, path: str, system: str, headers: Mapping[str, str], since_s: float) -> Span:
        """Begin the span of a call of a method, by an RPC system, that came so long ago with the headers of a trace."""

    def close(self) -> None:
        """Send what has ended; that takes a moment at most."""
