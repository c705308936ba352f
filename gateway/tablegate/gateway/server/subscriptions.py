"""What the status says of Subscribe streams: how many there are of each method, and how far behind the store they are.

Each worker knows its own streams alone, and the one that is asked answers for all. Who asks leaves word in the
directory of the process files; each worker then puts its streams into its file, as often as it writes that, until
nobody has asked for a while. So it costs nothing while nobody looks, and the first answer waits for one round of files.

Decision: docs/decisions/0174-lags-are-counted-while-somebody-asks.md
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tablegate.gateway.query.subscribe.open_streams import OpenStreams, StreamLag
from tablegate.gateway.server.child import Numbers, ProcessFile
from tablegate.gateway.stores.base import StoreReader, StoreUnavailable
from tablegate.v1.status_pb2 import GetStatusResponse, StreamStatus, SubscriptionStatus

STREAMS_MAX = 20  # of a method that are named: those that are furthest behind
WAIT_S = 2.5  # for the files of the other workers, which are written each second
POLL_S = 0.1
WANTED_S = 10.0  # for so long after a question files have the streams

_KEY = "subscriptions"


class _Method(NamedTuple):
    """The streams of a method, in one worker: how many of each kind, and those that are furthest behind."""

    path: str
    streams: int
    parts: int
    filling: int
    behind: int
    furthest: Sequence[StreamLag]


class Subscriptions:
    """Answers for the streams of all workers. `wait_s`: how long it waits for the others."""

    def __init__(
        self,
        streams: OpenStreams,
        store: StoreReader,
        file: ProcessFile,
        *,
        now_ms: Callable[[], float] = lambda: time.time() * 1_000,
        wait_s: float = WAIT_S,
    ) -> None:
        self._streams = streams
        self._store = store
        self._file = file
        self._now_ms = now_ms
        self._wait_s = wait_s

    def numbers(self) -> Numbers:
        """Return what is to stand in this worker's file: how long streams are behind; the rest while somebody asks."""
        asked = {_KEY: self._own()} if self._file.is_wanted(_KEY, within_s=WANTED_S) else {}
        return {"streams_behind": self._streams.behind(time.monotonic()), **asked}

    async def status(self) -> GetStatusResponse:
        """Return what the status says of the streams of all workers."""
        self._file.want(_KEY)
        end_s = time.monotonic() + self._wait_s
        while not all(_KEY in each for each in self._others()) and time.monotonic() < end_s:
            await asyncio.sleep(POLL_S)
        found = [_Method(*method) for each in self._others() for method in each.get(_KEY, ())]
        return GetStatusResponse(subscriptions=self._merged([*found, *self._own()]))

    def _others(self) -> list[Numbers]:
        return [numbers for numbers in self._file.others() if "streams" in numbers]  # workers alone have any

    def _own(self) -> list[_Method]:
        try:
            with self._store.snapshot() as snapshot:
                lags = self._streams.lags(snapshot)
        except StoreUnavailable:
            return []
        by_path: defaultdict[str, list[StreamLag]] = defaultdict(list)
        for lag in lags:
            by_path[lag.path].append(lag)
        return [
            _Method(
                path,
                len(found),
                sum(lag.is_part for lag in found),
                sum(lag.is_filling for lag in found),
                sum(lag.since_ms > 0 for lag in found),
                _furthest(found),
            )
            for path, found in by_path.items()
        ]

    def _merged(self, methods: Iterable[_Method]) -> list[SubscriptionStatus]:
        merged: dict[str, SubscriptionStatus] = {}
        furthest: defaultdict[str, list[StreamLag]] = defaultdict(list)
        for each in methods:
            status = merged.setdefault(each.path, SubscriptionStatus(method=each.path.removeprefix("/")))
            status.streams += each.streams
            status.gateway_streams += each.parts
            status.filling += each.filling
            status.behind += each.behind
            furthest[each.path] += [StreamLag(*lag) for lag in each.furthest]
        for path, status in merged.items():
            status.furthest.extend(map(self._stream, _furthest(furthest[path])))
        return [merged[path] for path in sorted(merged)]

    def _stream(self, lag: StreamLag) -> StreamStatus:
        seconds = max(0.0, self._now_ms() - lag.since_ms) / 1_000 if lag.since_ms else 0.0
        return StreamStatus(
            lag_records=lag.records,
            lag_seconds=seconds,
            open_seconds=lag.open_s,
            filling=lag.is_filling,
            for_gateway=lag.is_part,
        )


def _furthest(lags: Iterable[StreamLag]) -> list[StreamLag]:
    """Return the streams that are behind or filled, those first that have waited the longest for a change."""
    some = [lag for lag in lags if lag.since_ms or lag.is_filling]
    return sorted(some, key=lambda lag: (lag.since_ms or float("inf"), -lag.records))[:STREAMS_MAX]
