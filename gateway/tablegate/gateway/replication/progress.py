"""How far a restore is, and the log lines of a table."""

import logging
from collections.abc import Sequence
from typing import Protocol

from tablegate.gateway.contract.types import Offset
from tablegate.gateway.kafka.log import Clock

REPORT_EVERY_S = 5.0  # progress of a restore

_logger = logging.getLogger("tablegate.gateway.replication")


class Restored(Protocol):
    """A partition that is restored: changes applied, the next offset, and the one at which it is restored."""

    rows_applied: int
    barrier: Offset

    @property
    def next_offset(self) -> Offset:
        """Return the first offset that is not applied."""


class RestoreProgress:
    """Counts what was restored since it was made. `ended_s`: when all was; None before."""

    def __init__(self, replicas: Sequence[Restored], *, now_s: float) -> None:
        self.started_s = now_s
        self.ended_s: float | None = None
        self._replicas = replicas
        self._rows_at_start = {replica: replica.rows_applied for replica in replicas}
        self._offsets_at_start = {replica: replica.next_offset for replica in replicas}

    @property
    def rows_applied(self) -> int:
        """Return how many changes were applied since the start."""
        return sum(replica.rows_applied - self._rows_at_start.get(replica, 0) for replica in self._replicas)

    @property
    def offsets_left(self) -> int:
        """Return how many offsets are left to the barriers."""
        return sum(max(0, replica.barrier - replica.next_offset) for replica in self._replicas)

    def rows_per_second(self, now_s: float) -> float:
        """Return the mean rate of applied rows since the start."""
        return self.rows_applied / max(now_s - self.started_s, 1e-3)

    def seconds_left(self, now_s: float) -> float:
        """Return how long the restore takes at the mean rate of offsets; 0 when nothing is known."""
        done = sum(each.next_offset - self._offsets_at_start.get(each, 0) for each in self._replicas)
        rate = done / max(now_s - self.started_s, 1e-3)
        return self.offsets_left / rate if rate > 0 else 0.0


class TableLog:
    """The log lines of one table."""

    def __init__(self, table: str, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._last_message = ""
        self._report_at_s = 0.0

    def log(self, level: int, message: str, **more: object) -> None:
        """Log a line that names the table."""
        named = message if message.startswith("table ") else f'table "{self._table}": {message}'
        _logger.log(level, named, extra={"table": self._table, **more})

    def log_once(self, level: int, message: str) -> None:
        """Log what is found again and again, but only when it is something else than before."""
        if message != self._last_message:
            self._last_message = message
            self.log(level, message)

    def started(self, progress: RestoreProgress, *, from_start: bool, topic: str, generation: int) -> None:
        """Log that a generation is followed from now on."""
        self._report_at_s = self._clock.monotonic_s() + REPORT_EVERY_S
        self.log(
            logging.INFO,
            "restoring from its changelog" if from_start else "following its changelog",
            topic=topic,
            generation=generation,
            offsets_to_go=progress.offsets_left,
        )

    def report(self, progress: RestoreProgress, *, is_live: bool, generation: int) -> None:
        """Log how far a restore is, now and then, and its end."""
        now_s = self._clock.monotonic_s()
        if is_live:
            progress.ended_s = now_s
            self.log(
                logging.INFO,
                "restored" if progress.rows_applied else "up to date",
                rows=progress.rows_applied,
                seconds=round(now_s - progress.started_s, 1),
                rows_per_second=round(progress.rows_per_second(now_s)),
                generation=generation,
            )
        elif now_s >= self._report_at_s:
            self._report_at_s = now_s + REPORT_EVERY_S
            self.log(
                logging.INFO,
                "restoring",
                rows=progress.rows_applied,
                offsets_to_go=progress.offsets_left,
                rows_per_second=round(progress.rows_per_second(now_s)),
                seconds_left=round(progress.seconds_left(now_s)),
            )
