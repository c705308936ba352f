"""The Subscribe streams of a process, and how far behind its store each is. No records are counted until somebody asks.

For how long streams are behind is known without the store, as a stream that follows has in its queue what it lacks, and
one that does not was noticed when it fell back: so it is in the metrics.

A stream is behind in a partition where the history has a change that it was not sent: markers of progress alone are no
lag. What was handed to its connection counts as sent. Of partitions that other gateways send, those gateways know.

Decision: docs/decisions/0184-how-long-streams-are-behind-is-a-metric.md
"""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.query.subscribe.cursor import ChangePosition
from tablegate.gateway.stores.base import Phase, Snapshot

BEHIND_S = 1.0  # what is sooner sent is on its way


class Sent(NamedTuple):
    """Up to where a stream was sent the partitions of a store that it has begun. `is_filling`: rows are to come."""

    store_id: StoreId
    change_positions: Mapping[Partition, ChangePosition]
    is_filling: bool


class OpenStream(Protocol):
    """A stream that is open. `is_part`: another gateway asked for it, to serve its own client."""

    path: str
    is_part: bool
    opened_s: float  # of the monotonic clock

    def sent(self) -> Sent:
        """Return up to where it was sent."""

    def behind_since_s(self) -> float | None:
        """Return since when (of the monotonic clock) it was not sent all changes that are here for it; None: it was.

        One whose rows are still to come is not behind.
        """


class StreamLag(NamedTuple):
    """How far behind a stream is: in records, and since when (milliseconds since 1970; 0: it is not)."""

    path: str
    is_part: bool
    is_filling: bool
    open_s: float
    records: int
    since_ms: int


class OpenStreams:
    """The streams that are open. One event loop."""

    def __init__(self) -> None:
        self._streams: set[OpenStream] = set()

    def add(self, stream: OpenStream) -> None:
        """Count a stream; again, if it is counted."""
        self._streams.add(stream)

    def discard(self, stream: OpenStream) -> None:
        """Count it no more."""
        self._streams.discard(stream)

    def behind(self, now_s: float) -> tuple[int, float]:
        """Return how many have been behind for a second or longer, and how long the longest has been: 0 where none is.

        Some tenths of a microsecond for each stream, whatever is sent.
        """
        since_s = [since_s for each in self._streams if (since_s := each.behind_since_s()) is not None]
        late = [now_s - each for each in since_s if now_s - each >= BEHIND_S]
        return len(late), max(late, default=0.0)

    def lags(self, snapshot: Snapshot) -> list[StreamLag]:
        """Return how far behind each stream is, in any order."""
        lag_of = _partition_lags(snapshot)
        now_s = time.monotonic()
        found = []
        for stream in self._streams:
            sent = stream.sent()
            lags = [lag_of(sent.store_id, partition, at) for partition, at in sent.change_positions.items()]
            since_ms = min((since for _, since in lags if since), default=0)
            records = sum(records for records, _ in lags)
            found.append(
                StreamLag(stream.path, stream.is_part, sent.is_filling, now_s - stream.opened_s, records, since_ms)
            )
        return found


def _partition_lags(snapshot: Snapshot) -> Callable[[StoreId, Partition, ChangePosition], tuple[int, int]]:
    """Return the function to the lag of who was sent a partition up to some place, in records and since when."""
    # Most streams stand at the same places: each is looked at once.
    known: dict[tuple[StoreId, Partition, ChangePosition], tuple[int, int]] = {}

    def lag_of(store_id: StoreId, partition: Partition, at: ChangePosition) -> tuple[int, int]:
        place = store_id, partition, at
        lag = known.get(place)
        if lag is None:
            lag = known[place] = _lag(snapshot, store_id, partition, at)
        return lag

    return lag_of


def _lag(snapshot: Snapshot, store_id: StoreId, partition: Partition, at: ChangePosition) -> tuple[int, int]:
    position = snapshot.position(store_id, partition)
    if position is None or position.phase is not Phase.LIVE or at.incarnation_id != position.incarnation_id:
        return 0, 0
    unsent = snapshot.history(store_id, partition, start=at.offset, limit=1, skip=at.skip)
    if not unsent:
        return 0, 0
    # One that expired has no record: it is a change all the same.
    return max(position.next_offset - at.offset, 1), unsent[0].time_ms
