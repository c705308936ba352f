"""An event as a producer hands it to Kafka, and what the generators of events share."""

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple


class Event(NamedTuple):
    """A record to be written; a tombstone has value None.

    Without a partition it goes to the one that a Java producer would choose for the key; without a timestamp it gets
    the time at which it is sent.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int | None = None
    timestamp_ms: int | None = None


Clock = Callable[[], int]
"""Tells the milliseconds since 1970."""

START_MS = int(datetime(2026, 11, 21, 10, tzinfo=UTC).timestamp() * 1000)


def steady_clock(start_ms: int = START_MS, *, step_ms: int = 1) -> Clock:
    """Return a clock that starts at `start_ms` and is `step_ms` later each time it is asked."""
    return itertools.count(start_ms, step_ms).__next__


def numbers(count: int | None) -> Iterable[int]:
    """Return 0 … `count` - 1; without a count, all numbers from 0 on."""
    return itertools.count() if count is None else range(count)


def json_bytes(fields: Mapping[str, object]) -> bytes:
    """Return the JSON object in UTF-8, without spaces."""
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
