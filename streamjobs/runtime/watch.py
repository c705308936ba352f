"""Watches running queries: markers after batches, a log line now and then, the reason when one fails."""

import json
import threading
import time
from typing import Any

from pyspark.sql.streaming import StreamingQuery

from streamjobs.runtime.dead_letters import count_by_kind
from streamjobs.runtime.errors import JobError
from streamjobs.runtime.java import thrown_reason
from streamjobs.runtime.log import log
from streamjobs.runtime.markers import Markers
from streamjobs.runtime.plan import Plan

POLL_S = 0.1  # how late a marker may be; asking takes Spark a millisecond
LOG_EVERY_S = 5.0
LOG_IDLE_EVERY_S = 60.0

_KAFKA_ERRORS = ("TimeoutException", "DisconnectException", "NetworkException", "BrokerNotAvailableException")


class _Progress:
    """Reports of one query, each once. Spark keeps one for each batch, and one a second while there is no data."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query: Any = query._jsq
        self._seen: tuple[int, str] | None = None

    def newest(self) -> dict[str, Any] | None:
        """Return the newest report; None where it is the one that was returned before."""
        found = self._query.lastProgress()
        if found is None:
            return None
        batch = (found.batchId(), found.timestamp())
        if batch == self._seen:
            return None
        self._seen = batch
        report: dict[str, Any] = json.loads(found.json())
        return report

    def check(self, plan: Plan) -> None:
        """Raise `JobError` where the query has ended by itself."""
        if self._query.isActive():
            return
        failure = self._query.exception()
        reason = thrown_reason(failure.get()) if failure.isDefined() else "it was stopped from outside"
        if reason.startswith(_KAFKA_ERRORS):
            raise JobError(
                f"Kafka at {plan.bootstrap} has stopped answering ({reason}); start the job again when it does: "
                "it goes on from its checkpoint"
            )
        raise JobError(f'table "{plan.table.name}" has stopped: {reason}')


class Watch:
    """Follows the two queries of a job until told to stop. One thread uses it."""

    def __init__(self, plan: Plan, table: StreamingQuery, dead_letters: StreamingQuery, markers: Markers) -> None:
        self._plan = plan
        self._table = _Progress(table)
        self._dead_letters = _Progress(dead_letters)
        self._markers = markers
        self._logged_at = time.monotonic()
        self._records = self._changes = 0
        self._batch_id = -1

    def run(self, stop: threading.Event) -> None:
        """Return when `stop` is set; raise `JobError` when a query fails."""
        while not stop.wait(POLL_S):
            self.poll()

    def poll(self) -> None:
        """Look once at both queries."""
        self._table.check(self._plan)
        self._dead_letters.check(self._plan)
        report = self._table.newest()
        if report is not None:
            self._markers.publish(report)
            self._batch_id = report["batchId"]
            self._records += report["numInputRows"]
            self._changes += max(report["sink"].get("numOutputRows", 0), 0)
        self._log_batches()
        report = self._dead_letters.newest()
        counts = count_by_kind(report) if report is not None else {}
        if counts:
            log("dead_letters", topic=self._plan.dead_letters.name, records=sum(counts.values()), reasons=counts)

    def _log_batches(self) -> None:
        elapsed_s = time.monotonic() - self._logged_at
        if elapsed_s < (LOG_EVERY_S if self._records else LOG_IDLE_EVERY_S):
            return
        log(
            "batch",
            batch=self._batch_id,
            records=self._records,
            records_per_s=round(self._records / elapsed_s, 1),
            changes=self._changes,
        )
        self._logged_at = time.monotonic()
        self._records = self._changes = 0
