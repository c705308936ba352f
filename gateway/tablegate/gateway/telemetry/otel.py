"""Traces by OpenTelemetry, sent by OTLP over HTTP. This module alone imports its packages: they are the extra `otel`.

Where spans go to, and which calls have some, is told by OpenTelemetry's own variables in the environment, which its SDK
reads. What stands in them is ours: names of methods, tables, gateways and statuses. Of what a client sends there is
nothing but the ids of its trace.

No call waits for a receiver. Spans that have ended go into a queue of the SDK, of bounded length, from which a thread
sends them. What it cannot send is lost, and counted.

Decision: docs/decisions/0164-spans-wrap-what-is-fast.md
"""

import logging
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextvars import Token
from types import TracebackType
from typing import Self

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span as SdkSpan
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from typing_extensions import override

from tablegate.gateway.telemetry.measures import Histogram, Measures
from tablegate.gateway.telemetry.spans import GATEWAY, SPAN, Span, UnrecordedSpan

PARTS_MAX = 64  # of a call: a stream may read the store for days, and its parts would be one trace
FLUSH_S = 1.0  # at the end, less than a process has beyond its drain before it is killed
SAME_LINE_EVERY_S = 60.0  # a line of the SDK's log: while a receiver is away each batch has some
LINE_CHARACTERS_MAX = 500  # of such a line: the SDK puts all into it that a receiver has answered
LINES_MAX = 100  # kinds of them that are known apart; the SDK has fewer

SERVICE = "tablegate-gateway"

_ENDED, _EXPORTED, _FAILED = ("ended",), ("exported",), ("failed",)  # what a span may have come to, as counted
# By the semantic conventions of gRPC, the statuses that are a server's fault. The others are its client's.
_FAULTS = frozenset(("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"))
_PROTOCOL, _EXPORTER = "http/protobuf", "otlp"
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_HEADER = re.compile(r"|[!#-'*+.0-9A-Z^-z|~-]+[ \t]*=[ \t]*[ !#-+\--:<-\[\]-~]*")  # as the SDK takes them; or nothing
_FILES = "CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"

_propagator = TraceContextTextMapPropagator()


class TracesError(Exception):
    """The environment asks for what is not done here, or cannot be; the message is a sentence for who has set it."""


def check_environment(environment: Mapping[str, str]) -> None:
    """Raise `TracesError` where the variables of OpenTelemetry are wrong."""
    exporter = environment.get("OTEL_TRACES_EXPORTER") or _EXPORTER
    if exporter != _EXPORTER:
        raise TracesError(f'OTEL_TRACES_EXPORTER is "{exporter}", but spans go out by otlp alone; leave it away')
    for prefix in ("OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_TRACES_"):
        protocol = environment.get(f"{prefix}PROTOCOL") or _PROTOCOL
        if protocol != _PROTOCOL:
            raise TracesError(f'{prefix}PROTOCOL is "{protocol}", but spans go out by {_PROTOCOL} alone; leave it away')
        endpoint = environment.get(f"{prefix}ENDPOINT") or "http://"
        if not endpoint.startswith(("http://", "https://")):
            raise TracesError(f"{prefix}ENDPOINT is no URL; give one, such as http://collector:4318")
        # The SDK would log the header that it cannot read, and in most cases that is a secret.
        if not all(_HEADER.fullmatch(each.strip()) for each in environment.get(f"{prefix}HEADERS", "").split(",")):
            raise TracesError(
                f"{prefix}HEADERS cannot be read; give name=value, with commas between, other bytes as %20"
            )
        for name in (f"{prefix}{file}" for file in _FILES):
            path = environment.get(name)
            if path and not os.access(path, os.R_OK):
                raise TracesError(f'{name} names "{path}", which cannot be read; give the path of a file in PEM')
    try:
        Traces("", "", Measures()).close()
    except (ValueError, RuntimeError) as error:
        raise TracesError(f"OpenTelemetry cannot be set up by the variables OTEL_…: {error}") from None


class Traces:
    """Makes spans, and sends them (`spans.Tracer`).

    `gateway`: its id in a cluster, "" where it stands alone; `process`: of the gateway. `measures`: where spans are
    counted.
    """

    def __init__(
        self, gateway: str, process: str, measures: Measures, *, parts_max: int = PARTS_MAX, flush_s: float = FLUSH_S
    ) -> None:
        """Begin; raise `ValueError` where a variable has a number that cannot be."""
        log = logging.getLogger("opentelemetry")
        log.handlers[:], log.propagate = [_CalmHandler()], False
        own = {"service.name": SERVICE, "tablegate.process": process, **({GATEWAY: gateway} if gateway else {})}
        # What it is given wins in the SDK over the environment. Here it is the other way round.
        resource = Resource.create({**own, **OTELResourceDetector().detect().attributes})
        # No exit waits for a receiver: `close` says how long.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_CountedExporter(OTLPSpanExporter(), measures)))
        self._flush_s = flush_s
        self.tracer = self._provider.get_tracer("tablegate.gateway")
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
        # The SDK alone would wait for half a minute for a receiver that hangs.
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(self._flush_s)


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


class _CountedExporter(SpanExporter):
    """An exporter that counts what came of spans. The SDK's thread."""

    def __init__(self, exporter: SpanExporter, measures: Measures) -> None:
        self._exporter = exporter
        self._counts = measures.spans

    @override
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            self._counts[_EXPORTED if result is SpanExportResult.SUCCESS else _FAILED] += len(spans)
        return result

    @override
    def shutdown(self) -> None:
        self._exporter.shutdown()


class _CalmHandler(logging.Handler):
    """Passes on to our log what the SDK logs, of each kind a line a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._next_s: dict[str, float] = {}

    @override
    def emit(self, record: logging.LogRecord) -> None:
        kind, now_s = str(record.msg), time.monotonic()
        if now_s < self._next_s.get(kind, 0.0):
            return
        if len(self._next_s) >= LINES_MAX:
            self._next_s.clear()
        self._next_s[kind] = now_s + SAME_LINE_EVERY_S
        text = record.getMessage()
        if record.exc_info:  # no stack, as what stands in a variable is a user's
            text += f" ({record.exc_info[1]!r})"
            record.exc_info = record.exc_text = None
        record.msg, record.args = text[:LINE_CHARACTERS_MAX], ()
        if record.levelno > logging.WARNING:  # at most spans are lost: what we call an ERROR is worse
            record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
        root = logging.getLogger()
        if root.isEnabledFor(record.levelno):
            root.handle(record)
