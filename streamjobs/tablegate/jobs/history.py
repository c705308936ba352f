"""What comes before a topic: records that a warehouse has, and Kafka has no more, or never had.

    def past_orders(spark):
        return spark.read.parquet("/data/orders").select("customer", "amount")

    HISTORY = History(past_orders, topic_from="2026-01-01T00:00:00Z")
    Source("orders", Json("customer STRING, amount DOUBLE"), history=HISTORY)

Decision: docs/decisions/0105-history-then-live.md
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any

from tablegate.jobs.declared import DeclarationError, SourceLine, declaring_line
from tablegate.jobs.function_code import function_code


@dataclass(frozen=True, slots=True)
class History:
    """Records that come before those of a topic: a batch DataFrame, which is read once, when a generation begins.

    `rows`: a function that gets the Spark session and returns the DataFrame. It has a column for each field of the
    source, of its type. It may have a column `kafka`, a struct of what expressions use of that: `struct(paid_at AS
    timestamp) AS kafka`. `topic_from`: where the topic goes on, as a time with its zone, "2026-01-01T00:00:00Z", or as
    an offset for each partition, `{0: 1200, 1: 900}`; by default at its first record.
    """

    rows: Callable[..., Any]
    _: KW_ONLY
    topic_from: str | Mapping[int, int] | None = None
    code: str = field(init=False, default="", compare=False, repr=False)
    declared_at: SourceLine = field(default_factory=declaring_line, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.rows):
            raise DeclarationError(
                f"{self.declared_at}: history is {self.rows!r}; give a function that gets the Spark session and "
                "returns a DataFrame"
            )
        if isinstance(self.topic_from, str):
            self._check_time(self.topic_from)
        elif self.topic_from is not None:
            if not self.topic_from or any(offset < 0 for offset in self.topic_from.values()):
                raise DeclarationError(
                    f"{self.declared_at}: topic_from of the history is {dict(self.topic_from)}; give an offset from 0 "
                    "on for each partition"
                )
            object.__setattr__(self, "topic_from", MappingProxyType(dict(self.topic_from)))
        object.__setattr__(self, "code", function_code(self.rows))

    def _check_time(self, text: str) -> None:
        try:
            has_zone = datetime.fromisoformat(text).tzinfo is not None
        except ValueError:
            has_zone = False
        if not has_zone:
            raise DeclarationError(
                f'{self.declared_at}: topic_from "{text}" of the history is no time with a zone; write it like '
                '"2026-01-01T00:00:00Z"'
            )

    @property
    def time_ms(self) -> int | None:
        """Time that the topic goes on from, in ms since 1970; None where offsets say it, or nothing."""
        if not isinstance(self.topic_from, str):
            return None
        return int(datetime.fromisoformat(self.topic_from).timestamp() * 1000)

    @property
    def offsets(self) -> Mapping[int, int] | None:
        """Offsets that the topic goes on from, by partition; None where a time says it, or nothing."""
        return None if isinstance(self.topic_from, str) else self.topic_from

    @property
    def text(self) -> str:
        """What it is made by, and where it ends."""
        ends = self.topic_from if isinstance(self.topic_from, str) else dict(self.topic_from or {})
        return f"{self.code}, then the topic from {ends or 'its first record'}"

    def frame(self, spark: object) -> object:
        """Return what the function returns."""
        return self.rows(spark) if inspect.signature(self.rows).parameters else self.rows()
