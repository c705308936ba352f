"""The log of calls: each one where that is asked for, and unary calls that took long, with how they were answered.

Both are off unless the log settings say so, and may be switched while the gateway runs. Where both are off, calls pay
for a look at an attribute.

No line carries a key or a value of a request, nor what a client sends beside it, but for the ids of its request and its
trace.

Decision: docs/decisions/0151-calls-are-logged-on-demand.md
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from tablegate.gateway.access.views import View
from tablegate.gateway.http.rpc.calls import ServedCall
from tablegate.gateway.query.errors import QueryError
from tablegate.gateway.stores.base import StoreUnavailable
from tablegate.v1.status_pb2 import ExplainResponse, PartitionRoute

SLOW_LINES_MAX = 10  # a second: where all is slow, explaining each call would make it slower

Explain = Callable[[str, bytes, View | None], ExplainResponse]
"""From a method, a request and a view to how it is answered; raises a `QueryError` or `StoreUnavailable`."""

_logger = logging.getLogger("tablegate.gateway.calls")
_ROUTE_AT = len("PARTITION_ROUTE_")


class CallLog:
    """Logs calls that have ended. `logs_all`: each; `slow_s`: unary ones that took so long, None: none. One thread."""

    def __init__(self, explain: Explain, *, slow_lines_max: int = SLOW_LINES_MAX) -> None:
        self.logs_all = False
        self.slow_s: float | None = None
        self._explain = explain
        self._slow_lines_max = slow_lines_max
        self._second = 0
        self._lines = self._left_out = 0  # in that second; since the last line

    @property
    def is_on(self) -> bool:
        """Return whether calls are to be shown to it."""
        return self.logs_all or self.slow_s is not None

    def note(self, call: ServedCall, path: str, code: str, took_s: float) -> None:
        """Log a call that has ended, if it is one to be logged."""
        if self.logs_all:
            _logger.info("call", extra=_about(call, path, code, took_s))
        if self.slow_s is not None and took_s >= self.slow_s and call.request is not None and self._may_log():
            left_out = {"left_out": self._left_out} if self._left_out else {}
            self._left_out = 0
            how = self._explained(call, path, call.request)
            _logger.warning("slow call", extra={**_about(call, path, code, took_s), **how, **left_out})

    def _may_log(self) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._lines = second, 0
        self._lines += 1
        if self._lines <= self._slow_lines_max:
            return True
        self._left_out += 1
        return False

    def _explained(self, call: ServedCall, path: str, request: bytes) -> Mapping[str, Any]:
        """Return how the call would be answered now; nothing of what is no query, or cannot be explained."""
        try:
            plan = self._explain(path, request, call.view)
        except (QueryError, StoreUnavailable):
            return {}
        partitions = [
            {
                "partition": each.partition,
                "route": PartitionRoute.Name(each.route)[_ROUTE_AT:].lower(),
                "gateway": each.gateway_id,
                "why": each.why,
            }
            for each in plan.partitions
        ]
        return {"query": plan.query, "table": plan.table, "reads": plan.reads, "partitions": partitions}


def _about(call: ServedCall, path: str, code: str, took_s: float) -> Mapping[str, Any]:
    return {
        "method": path,
        "code": code,
        "ms": round(took_s * 1_000, 3),
        "request_id": call.request_id,
        "forwarded": call.forwarded is not None,
        "principal": call.account or "",
        "address": call.exchange.address,
        **({"trace_id": call.trace_id} if call.trace_id else {}),
        **call.answered_by,
    }
