"""What is said of a table in the log: what happened, and how a restore goes."""

import logging

from tablegate.gateway.kafka.log import Clock
from tablegate.gateway.replication.partitions import GenerationReplica

REPORT_EVERY_S = 5.0  # progress of a restore

_logger = logging.getLogger("tablegate.gateway.replication")


class TableLog:
    """The lines of one table."""

    def __init__(self, table: str, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._told = ""
        self._report_at_s = 0.0

    def say(self, level: int, message: str, **more: object) -> None:
        """Log a line that names the table."""
        named = message if message.startswith("table ") else f'table "{self._table}": {message}'
        _logger.log(level, named, extra={"table": self._table, **more})

    def say_once(self, level: int, message: str) -> None:
        """Log what is found again at every look, but not again."""
        if message != self._told:
            self._told = message
            self.say(level, message)

    def started(self, following: GenerationReplica) -> None:
        """Log that a generation is followed from now on."""
        is_new = following.is_new and following.replicas and not following.joined
        self._report_at_s = self._clock.monotonic_s() + REPORT_EVERY_S
        self.say(
            logging.INFO,
            "restoring from its changelog" if is_new else "following its changelog",
            topic=following.manifest.changelog_topic,
            generation=following.manifest.generation,
            offsets_to_go=following.offsets_left,
        )

    def report(self, following: GenerationReplica) -> None:
        """Log how far a restore is, now and then, and its end."""
        if following.restored_s is not None:
            return
        now_s = self._clock.monotonic_s()
        if following.is_live:
            following.restored_s = now_s
            self.say(
                logging.INFO,
                "restored" if following.rows_applied else "up to date",
                rows=following.rows_applied,
                seconds=round(now_s - following.started_s, 1),
                rows_per_second=round(following.rows_per_second(now_s)),
                generation=following.manifest.generation,
            )
        elif now_s >= self._report_at_s:
            self._report_at_s = now_s + REPORT_EVERY_S
            self.say(
                logging.INFO,
                "restoring",
                rows=following.rows_applied,
                offsets_to_go=following.offsets_left,
                rows_per_second=round(following.rows_per_second(now_s)),
                seconds_left=round(following.seconds_left(now_s)),
            )
