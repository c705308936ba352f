"""Spans of calls, by OpenTelemetry, whose packages are the extra `otel`. `span_sender` sends them.

What stands in spans is ours: names of methods, tables, gateways and statuses. Of what a client sends there is nothing
but the ids of its trace.

Decision: docs/decisions/0164-spans-wrap-what-is-fast.md
"""

import time
from collections.abc import Mapping, Sequence
from contextvars import Token
from types import TracebackType
from typing import Self

from opentelemetry.trace import Span as SdkSpan
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from typing_extensions import override

from tablegate.gateway.telemetry.measures import Histogram, Measures
from tablegate.gateway.telemetry.span_sender import ENDED, FLUSH_S, SpanSender
from tablegate.gateway.telemetry.spans import GATEWAY, SPAN, Span, UnrecordedSpan

PARTS_MAX = 64  # of a call: a stream may read the store for days, and its parts would be one trace

SERVICE = "tablegate-gateway"

_ENDED = (ENDED,)
# By the semantic conventions of gRPC, the statuses that are a server's fault. The others are its client's.
_FAULTS = frozenset(("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"))

_propagator = TraceContextTextMapPropagator()


class Traces:
    """Makes spans, and sends them (`spans.Tracer`).

    `gateway`: its id in a cluster, "" where it stands alone; `process`: of the gateway. `measures`: where spans are
    counted.
    """

    def __init__(
        self, gateway: str, process: str, measures: Measures, *, parts_max: int = PARTS_MAX, flush_s: float = FLUSH_S
    ) -> None:
        """Begin; raise `ValueError` where a variable has a number that cannot be."""
        own = {"service.name": SERVICE, "tablegate.process": process, **({GATEWAY: gateway} if gateway else {})}
        counts = measures.spans

        def count(result: str, spans: int) -> None:
            counts[(result,)] += spans

        self._sender = SpanSender(own, count, flush_s=flush_s)
        self.tracer = self._sender.tracer
        self.parts_max = parts_max
        self.counts = measures.spans

    def serve(self, path: str, system: str, headers: Mapping[str, str], since_s: float) -> "RecordedSpan":
        """Begin the span of a call of a method, by an RPC system, that came so long ago with the headers of a trace."""
        name = path[1:]
        attributes = {"rpc.system.name": system, "rpc.method": name}
        begin_ns = time.time_ns() - int(since_s * 1e9)
        span = self.tracer.start_span(
            name, _propagator.extract(headers), SpanKind.SERVER, attributes, start_time=begin_ns
        )
        return RecordedSpan(self, span, SpanKind.SERVER, None)

    def close(self) -> None:
        """Send what has ended; that takes a moment at most."""
        self._sender.close()


class RecordedSpan(Span):
    """A span of the SDK. `root`: that of the call, of which it is a part; None: it is that."""

    __slots__ = ("_kind", "_parts", "_root", "_span", "_traces", "_was")

    def __init__(self, traces: Traces, span: SdkSpan, kind: SpanKind, root: "RecordedSpan | None") -> None:
        self._traces = traces
        self._span = span
        self._kind = kind
        self._root = self if root is None else root
        self._parts = 0  # of a root
        self._was: Token[Span] | None = None

    @property
    @override
    def is_recorded(self) -> bool:
        return self._span.is_recording()

    @property
    @override
    def trace_id(self) -> str:
        return format_trace_id(self._span.get_span_context().trace_id)

    @override
    def part(self, name: str, attributes: Mapping[str, str]) -> Span:
        return self._begin(name, SpanKind.INTERNAL, attributes)

    @override
    def hop(self, path: str, gateway: str, endpoint: str) -> Span:
        host, _, port = endpoint.rpartition(":")
        attributes: dict[str, str | int] = {
            "rpc.system.name": "grpc",
            "rpc.method": path[1:],
            "server.address": host.strip("[]"),
            "server.port": int(port),
            GATEWAY: gateway,
        }
        return self._begin(path[1:], SpanKind.CLIENT, attributes)

    def _begin(self, name: str, kind: SpanKind, attributes: Mapping[str, str | int]) -> Span:
        traces, root = self._traces, self._root
        # Tasks that go on for others, as the one that asks Kafka, were begun by a call that may have ended.
        if not self._span.is_recording() or root._parts >= traces.parts_max:
            return _PartOf(self)
        root._parts += 1
        span = traces.tracer.start_span(name, set_span_in_context(self._span), kind, attributes)
        return RecordedSpan(traces, span, kind, root)

    @override
    def headers(self) -> Sequence[tuple[str, str]]:
        headers: dict[str, str] = {}
        _propagator.inject(headers, set_span_in_context(self._span))
        return tuple(headers.items())

    @override
    def add(self, attributes: Mapping[str, str]) -> None:
        self._span.set_attributes(attributes)

    @override
    def answer(self, code: str) -> None:
        self._span.set_attribute("rpc.response.status_code", code)
        # A call to another gateway that is CANCELLED was ended by this one, as its client went or had enough.
        if code in _FAULTS or (self._kind is SpanKind.CLIENT and code not in ("OK", "CANCELLED")):
            self._span.set_attribute("error.type", code)
            self._span.set_status(StatusCode.ERROR)

    @override
    def show(self, histogram: Histogram, value: float) -> None:
        context = self._span.get_span_context()
        if context.trace_flags.sampled:
            histogram.show(value, format_trace_id(context.trace_id), format_span_id(context.span_id))

    @override
    def end(self) -> None:
        if self._span.is_recording():
            self._traces.counts[_ENDED] += 1
            self._span.end()

    @override
    def __enter__(self) -> Self:
        self._was = SPAN.set(self)
        return self

    @override
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._was is not None, "it was entered"
        SPAN.reset(self._was)
        if kind is not None and self._kind is SpanKind.INTERNAL:
            self._span.set_attribute("error.type", kind.__name__)
        self.end()


class _PartOf(UnrecordedSpan):
    """A part of a span that is not recorded: what is asked for it is asked in the name of that span."""

    __slots__ = ("_of",)

    def __init__(self, of: RecordedSpan) -> None:
        self._of = of

    @property
    @override
    def trace_id(self) -> str:
        return self._of.trace_id

    @override
    def headers(self) -> Sequence[tuple[str, str]]:
        return self._of.headers()
