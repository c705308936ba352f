"""Watches the running queries of a table: markers after batches, a log line now and then, the reason when one fails."""

import json
import time
from collections import Counter
from typing import Any

from pyspark.sql.streaming import StreamingQuery
from tablegate.jobs.dataflow.dead_letters import counts
from tablegate.jobs.errors import JobError, PythonWorkerLate, UnknownSchema
from tablegate.jobs.kafka.markers import Markers
from tablegate.jobs.planning.plan import Plan
from tablegate.jobs.running.java_errors import thrown_reason
from tablegate.jobs.running.log import log
from tablegate.jobs.running.queries import Started

LOG_EVERY_S = 5.0
LOG_IDLE_EVERY_S = 60.0

_KAFKA_ERRORS = ("TimeoutException", "DisconnectException", "NetworkException", "BrokerNotAvailableException")


class _Progress:
    """Reports of one query, each once. Spark keeps one for each batch, and one a second while there is no data."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query: Any = query._jsq
        self._seen: tuple[int, str] | None = None

    def unseen(self) -> list[dict[str, Any]]:
        """Return the reports since those that were returned before, as far as Spark has kept them, the newest last."""
        newest = self._query.lastProgress()
        if newest is None or _name(newest) == self._seen:
            return []
        seen, self._seen = self._seen, None
        unseen: list[dict[str, Any]] = []
        for report in reversed(self._query.recentProgress()):
            name = _name(report)
            if name == seen:
                break
            self._seen = self._seen or name
            unseen.append(json.loads(report.json()))
        return unseen[::-1]

    def check(self, plan: Plan) -> None:
        """Raise `JobError`, `UnknownSchema` or `PythonWorkerLate` where the query has ended by itself."""
        if self._query.isActive():
            return
        failure = self._query.exception()
        reason = thrown_reason(failure.get()) if failure.isDefined() else "it was stopped from outside"
        unknown = UnknownSchema.found_in(reason)
        if unknown is not None:
            raise unknown
        late = PythonWorkerLate.found_in(reason)
        if late is not None:
            raise late
        if reason.startswith(_KAFKA_ERRORS):
            raise JobError(
                f"Kafka at {plan.bootstrap} has stopped answering ({reason}); start the job again when it does: "
                "it goes on from its checkpoint"
            )
        raise JobError(f'table "{plan.table.name}" has stopped: {reason}')


def _name(report: Any) -> tuple[int, str]:
    return report.batchId(), report.timestamp()


class QueryMonitor:
    """Follows the queries of a table. One thread uses it."""

    def __init__(self, plan: Plan, started: Started, markers: Markers) -> None:
        self._plan = plan
        self._all = [_Progress(query) for query in started.all]
        self._table = _Progress(started.table)
        self._dead_letters = _Progress(started.dead_letters)
        self._markers = markers
        self._logged_at = time.monotonic()
        self._records = self._changes = self._late = 0
        self.batch_id = -1
        """Number of the newest batch since the queries started; -1 before."""
        self.next_offsets: dict[str, dict[int, int]] = {}
        """How far the sources were read when the newest batch was done, by topic and partition."""

    def poll(self) -> None:
        """Look once at the queries; raise as `_Progress.check` does."""
        for query in self._all:
            query.check(self._plan)
        reports = self._table.unseen()
        if reports:
            self.next_offsets = self._markers.publish(reports[-1])
            self.batch_id = reports[-1]["batchId"]
        for report in reports:
            self._records += report["numInputRows"]
            self._changes += max(report["sink"].get("numOutputRows", 0), 0)
            self._late += sum(operator.get("numRowsDroppedByWatermark", 0) for operator in report["stateOperators"])
        self._log_batches()
        for report in self._dead_letters.unseen():
            self._log_counts(report)

    def _log_counts(self, report: dict[str, Any]) -> None:
        malformed, ignored = counts(report)
        name = self._plan.table.name
        if malformed:
            topic = self._plan.dead_letters.name
            log("dead_letters", table=name, topic=topic, records=Counter(malformed).total(), reasons=malformed)
        if ignored:
            log("ignored", table=name, records=Counter(ignored).total(), types=ignored)

    def _log_batches(self) -> None:
        elapsed_s = time.monotonic() - self._logged_at
        if elapsed_s < (LOG_EVERY_S if self._records else LOG_IDLE_EVERY_S):
            return
        late = {"late": self._late} if self._late else {}
        log(
            "batch",
            table=self._plan.table.name,
            batch=self.batch_id,
            records=self._records,
            records_per_s=round(self._records / elapsed_s, 1),
            changes=self._changes,
            **late,
        )
        self._logged_at = time.monotonic()
        self._records = self._changes = self._late = 0
