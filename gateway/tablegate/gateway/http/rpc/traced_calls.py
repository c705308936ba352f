"""Calls with traces: a call of some methods is a span, in the trace of its client where that has one.

A class of its own, so that calls without traces pass nothing of it.

Decision: docs/decisions/0164-spans-wrap-what-is-fast.md
"""

import time
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import contextmanager

from typing_extensions import override

from tablegate.gateway.access.gate import Gate
from tablegate.gateway.http.rpc.calls import CallLimits, Calls, ServedCall, trace_of
from tablegate.gateway.query.call import DuplexMethod, StreamMethod, UnaryMethod
from tablegate.gateway.telemetry.measures import Measures
from tablegate.gateway.telemetry.spans import NO_SPAN, SPAN, Tracer


class TracedCalls(Calls):
    """Calls, of which those of `paths` are traced."""

    def __init__(
        self,
        limits: CallLimits | None,
        gate: Gate | None,
        measures: Measures | None,
        *,
        tracer: Tracer,
        paths: Collection[str],
    ) -> None:
        super().__init__(limits, gate, measures)
        self._tracer = tracer
        self._paths = frozenset(paths)

    @override
    def unary(self, call: ServedCall, path: str, method: UnaryMethod, message: bytes) -> None:
        with self._in_span(call, path):
            super().unary(call, path, method, message)

    @override
    def stream(self, call: ServedCall, path: str, method: StreamMethod, message: bytes) -> None:
        with self._in_span(call, path):
            super().stream(call, path, method, message)

    @override
    def duplex(self, call: ServedCall, path: str, method: DuplexMethod, messages: AsyncIterator[bytes]) -> None:
        with self._in_span(call, path):
            super().duplex(call, path, method, messages)

    @contextmanager
    def _in_span(self, call: ServedCall, path: str) -> Iterator[None]:
        """Begin the span of a call. A task that is made inside stays in it; `_count` ends it."""
        self._begin_span(call, path)
        was = SPAN.set(call.span)
        try:
            yield
        finally:
            SPAN.reset(was)

    def _begin_span(self, call: ServedCall, path: str) -> None:
        if path in self._paths:
            trace = dict(trace_of(call.exchange.headers)[1])
            call.span = self._tracer.serve(path, call.rpc_system, trace, time.monotonic() - call.started_s)

    @override
    def _count(self, call: ServedCall, path: str, code: str) -> float:
        if call.span is NO_SPAN:  # of who was not let in, none has begun
            self._begin_span(call, path)
        took_s, span = super()._count(call, path, code), call.span
        if span.is_recorded:
            span.show(self._durations[path, code], took_s)
            span.add({f"tablegate.{name}": value for name, value in call.answered_by.items()})
            span.answer(code)
            span.end()
        return took_s
