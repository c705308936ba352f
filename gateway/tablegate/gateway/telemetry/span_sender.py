"""Sends the spans of a process by OTLP over HTTP: what gateways and jobs share of OpenTelemetry's SDK.

Where spans go to, and which traces have some, is told by OpenTelemetry's own variables in the environment, which the
SDK reads.

Nobody waits for a receiver. Spans that have ended go into a queue of the SDK, of bounded length, from which a thread
sends them. What it cannot send is lost, and counted.

Decision: docs/decisions/0180-a-batch-is-a-span-made-of-its-report.md
"""

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from typing_extensions import override

FLUSH_S = 1.0  # at the end, less than a process has beyond its drain before it is killed
SAME_LINE_EVERY_S = 60.0  # a line of the SDK's log: while a receiver is away each batch has some
LINE_CHARACTERS_MAX = 500  # of such a line: the SDK puts all into it that a receiver has answered
LINES_MAX = 100  # kinds of them that are known apart; the SDK has fewer

ENDED, EXPORTED, FAILED = "ended", "exported", "failed"  # what a span may have come to, as counted

_PROTOCOL, _EXPORTER = "http/protobuf", "otlp"
_HEADER = re.compile(r"|[!#-'*+.0-9A-Z^-z|~-]+[ \t]*=[ \t]*[ !#-+\--:<-\[\]-~]*")  # as the SDK takes them; or nothing
_FILES = "CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"


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
        SpanSender({}, lambda *_: None).close()
    except (ValueError, RuntimeError) as error:
        raise TracesError(f"OpenTelemetry cannot be set up by the variables OTEL_…: {error}") from None


class SpanSender:
    """The SDK of one process, set up by its environment: `tracer` makes spans, which are sent once they have ended.

    `own`: attributes of the process, over which the environment goes. `count` is called with what became of how many
    spans, by the SDK's thread. `warn` is given what the SDK logs, of each kind a line a minute; None is our log.
    """

    def __init__(
        self,
        own: Mapping[str, str],
        count: Callable[[str, int], None],
        *,
        warn: Callable[[logging.LogRecord], None] | None = None,
        flush_s: float = FLUSH_S,
    ) -> None:
        """Begin; raise `ValueError` where a variable has a number that cannot be."""
        log = logging.getLogger("opentelemetry")
        log.handlers[:], log.propagate = [_CalmHandler(warn or _log)], False
        # What it is given wins in the SDK over the environment. Here it is the other way round.
        resource = Resource.create({**own, **OTELResourceDetector().detect().attributes})
        # No exit waits for a receiver: `close` says how long.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_CountedExporter(OTLPSpanExporter(), count)))
        self._flush_s = flush_s
        self.tracer = self._provider.get_tracer("tablegate")

    def close(self) -> None:
        """Send what has ended; that takes a moment at most."""
        # The SDK alone would wait for half a minute for a receiver that hangs.
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(self._flush_s)


class _CountedExporter(SpanExporter):
    """An exporter that counts what came of spans. The SDK's thread."""

    def __init__(self, exporter: SpanExporter, count: Callable[[str, int], None]) -> None:
        self._exporter = exporter
        self._count = count

    @override
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            self._count(EXPORTED if result is SpanExportResult.SUCCESS else FAILED, len(spans))
        return result

    @override
    def shutdown(self) -> None:
        self._exporter.shutdown()


class _CalmHandler(logging.Handler):
    """Passes on what the SDK logs, of each kind a line a minute."""

    def __init__(self, pass_on: Callable[[logging.LogRecord], None]) -> None:
        super().__init__()
        self._pass_on = pass_on
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
        self._pass_on(record)


def _log(record: logging.LogRecord) -> None:
    root = logging.getLogger()
    if root.isEnabledFor(record.levelno):
        root.handle(record)
