"""A receiver of traces: an HTTP server that OpenTelemetry's exporter sends to, as to a collector."""

import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Status

TRACES_PATH = "/v1/traces"
SERVER, CLIENT, INTERNAL = SpanMessage.SPAN_KIND_SERVER, SpanMessage.SPAN_KIND_CLIENT, SpanMessage.SPAN_KIND_INTERNAL


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """A span as it came; ids in hexadecimal, `parent_id` "" of a root. `resource`: of the process that it is from."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    state: str
    attributes: Mapping[str, Any]
    is_error: bool
    begin_ns: int
    end_ns: int
    resource: Mapping[str, Any]
    message: str  # the whole, as text


class OtlpReceiver:
    """Answers each request with `status`, once `goes_on` is set: 200 and at once, until a test says otherwise."""

    def __init__(self) -> None:
        self.status = 200
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.requests = 0  # that came whole
        self._spans: list[ReceivedSpan] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.headers["content-type"] == "application/x-protobuf"
                receiver.requests += 1
                receiver.goes_on.wait()
                if receiver.status == 200 and self.path == TRACES_PATH:
                    receiver._spans += _spans_of(ExportTraceServiceRequest.FromString(body))
                self.send_response(receiver.status if self.path == TRACES_PATH else 404)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        """Be away."""
        self.goes_on.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def spans(self) -> list[ReceivedSpan]:
        """Return what came, in the order of its begin."""
        return sorted(self._spans, key=lambda span: span.begin_ns)

    def environment(self, **more: str) -> Mapping[str, str]:
        """Return the variables by which a process sends here, soon after a span has ended."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "50", **more}


@contextmanager
def receiving() -> Iterator[OtlpReceiver]:
    """Start a receiver; end it."""
    receiver = OtlpReceiver()
    try:
        yield receiver
    finally:
        receiver.stop()


@contextmanager
def log_as_it_was() -> Iterator[None]:
    """Let what sends spans in the block change OpenTelemetry's log.

    Its threads have ended afterwards: one that tries again draws numbers among those of the tests that follow.
    """
    log = logging.getLogger("opentelemetry")
    before = log.handlers[:], log.propagate
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("OtelBatch"):
            thread.join(60)
            assert not thread.is_alive(), "it sends no more"
    log.handlers[:], log.propagate = before


def set_environment(patch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> None:
    """Set variables of OpenTelemetry for this process, and no others."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        patch.delenv(name)
    for name, value in environment.items():
        patch.setenv(name, value)


def _spans_of(request: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for of in request.resource_spans:
        resource = _values(of.resource.attributes)
        for scope in of.scope_spans:
            for span in scope.spans:
                yield ReceivedSpan(
                    span.name,
                    span.kind,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.trace_state,
                    _values(span.attributes),
                    span.status.code == Status.STATUS_CODE_ERROR,
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    resource,
                    str(span),
                )


def _values(attributes: Any) -> Mapping[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
