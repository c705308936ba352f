"""Exemplars, as a real Prometheus reads and keeps them."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tablegate.examples.demo.kafka import HOST
from tablegate.gateway.http.rpc.calls import Calls
from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.query.call import Methods
from tablegate.gateway.server.child import ProcessFile
from tablegate.gateway.server.metrics import Metrics
from tablegate.gateway.telemetry.measures import Measures
from tests.kit.gateway_processes.gateway import soon
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.programs.prometheus import IS_INSTALLED, Prometheus
from tests.kit.store.memory import MemoryStore

pytestmark = [pytest.mark.tools, pytest.mark.skipif(not IS_INSTALLED, reason="prometheus is not installed")]


def test_prometheus_keeps_the_traces_of_slow_calls(tmp_path: Path) -> None:
    measures, ids = Measures(), {"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7"}
    calls = measures.calls["/shop.v1.Orders/GetOrder", "OK"]
    for took_s in (0.0004, 0.4):
        calls.add(took_s)
    calls.show(0.4, **ids)

    def web(_methods: Methods, calls: Calls) -> Sequence[Metrics]:
        file = ProcessFile(tmp_path / "processes", name="worker-0", parent=1)
        return [Metrics(calls, MemoryStore(), file, lambda: {"connections": 0, "kept_bytes": 0, "kept_bytes_max": 1})]

    with (
        ServerThread(lambda: HttpServer({}, f"{HOST}:0", web=web, measures=measures)) as server,
        Prometheus(tmp_path / "prometheus", {"gateways": [f"{HOST}:{server.port}"]}) as prometheus,
    ):
        metric = "tablegate_call_duration_seconds_bucket"
        soon(lambda: prometheus.exemplars(metric) == [ids], "the exemplar is there", 60)
        assert prometheus.value(f'sum({metric}{{le="+Inf"}})') == 2
