"""Subscribers of the ratings of a real gateway, which come back whatever happens, and write what they saw."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Self

import grpc

from tablegate.client.failures import failure_of
from tablegate.v1.query_pb2 import SUBSCRIBE_PHASE_CATCHING_UP, SUBSCRIBE_PHASE_CURRENT, SUBSCRIBE_PHASE_RESET
from tests.kit.gateway_processes.changelog import RatingsChangelog
from tests.kit.gateway_processes.gateway import SERVICE
from tests.kit.histories.client import HistoryClient
from tests.kit.histories.history import History, position_of
from tests.kit.table.filled import catalogue_of
from tests.kit.world.clients import stated_by

QUERY = catalogue_of().queries[f"{SERVICE}/SubscribeRatings"]
HOT = range(5)  # these are changed most
AGAIN_S = 0.05
SAVE_EVERY = 20  # messages
ALL = (0, 2**31)
PHASES = {
    SUBSCRIBE_PHASE_RESET: "reset",
    SUBSCRIBE_PHASE_CATCHING_UP: "catching up",
    SUBSCRIBE_PHASE_CURRENT: "current",
}
OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]  # a connection of its own
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_535)]  # else 4 MB are read ahead


class ChangesWriter:
    """Changes ratings over and over. A row's count is the sequence of its version, so it says which version it is."""

    def __init__(self, changelog: RatingsChangelog, movies: int, seed: int = 0) -> None:
        self.written = 0
        self._changelog = changelog
        self._movies = range(movies)
        self._choice = random.Random(seed)

    @property
    def counts(self) -> dict[int, int]:
        """Return what the table must be."""
        return {movie: count for movie, (_, count) in self._changelog.rows.items()}

    def write(self, count: int) -> None:
        """Write so many changes."""
        end = self.written + count
        while self.written < end:
            most = min(500, end - self.written)
            movies = {self._movie() for _ in range(most)}
            gone = [movie for movie in movies if self._choice.random() < 0.15 and movie in self._changelog.rows]
            self._changelog.delete(gone)
            rest = sorted(movies.difference(gone))
            self._changelog.put({movie: (1.0, self._changelog.sequence(movie) + 1) for movie in rest})
            self.written += len(movies)
            self._changelog.mark(source_next_offset=self.written)

    def _movie(self) -> int:
        return self._choice.choice(HOT if self._choice.random() < 0.02 else self._movies)


class Watcher(HistoryClient):
    """A subscriber in a thread: of one movie, which must see each change once, or of all. It writes what it saw.

    `ends`: why streams ended; `as_of_ms` and `heard` say what the last message told and how many there were.
    `wholes` counts those that called the copy whole.
    """

    def __init__(
        self, history: History, address: Callable[[], str | None], movie: int | None = None, **options: Any
    ) -> None:
        super().__init__(history)
        self.counts: dict[int, int] = {}
        self.ends: Counter[str] = Counter()
        self.streams = self.resets = self.heard = self.given = self.wholes = 0
        self.heard_of_stream = 0
        self.phase = 0
        self.as_of_ms = 0
        self.movie = movie
        self._address = address
        self._asked: dict[str, Any] = {"range": ALL} if movie is None else {"range": (movie, movie + 1), "each": True}
        self._options = options
        self._token = ""
        self._saved: tuple[dict[int, int], str] = ({}, "")
        self._goes_back = False
        self._call: Any = None

    def interrupt(self) -> None:
        self.cancel()

    def __repr__(self) -> str:
        told = f"{self.heard} messages, {len(self.counts)} rows, phase {self.phase}, ended by {dict(self.ends)}"
        return f"<{self.movie}: {self.streams} streams, {told}>"

    def cancel(self, *, goes_back: bool = False) -> None:
        """End the stream from this side; to go back is to lose all since it was last saved, as in a crash."""
        self._goes_back = goes_back
        if self._call is not None:
            self._call.cancel()

    def work(self) -> None:
        while not self._stopping.is_set():
            address = self._address()
            if address is not None:
                with grpc.insecure_channel(address, options=OPTIONS) as channel:
                    self._stream(channel)
            self._stopping.wait(AGAIN_S)

    def _stream(self, channel: grpc.Channel) -> None:
        fields: dict[str, Any] = {} if self.movie is None else {"movie_id": self.movie}
        request = QUERY.request_class(subscribe_options={"resume_token": self._token, **self._options}, **fields)
        ask = channel.unary_stream(QUERY.path, None, QUERY.response_class.FromString)
        self.heard_of_stream = 0
        self.streams += 1
        self._history.invoke(self._process, "subscribe", **self._asked)
        self._call = ask(request.SerializeToString())
        if self._stopping.is_set():
            self._call.cancel()  # `interrupt` may have met the call before
        try:
            for message in self._call:
                self._take(message)
        except grpc.RpcError as error:
            failure = failure_of(error)
            self.ends[failure.reason or failure.code] += 1
            self._history.fail(self._process, "subscribe", code=failure.code, reason=failure.reason)
        goes_back, self._goes_back = self._goes_back, False
        if goes_back:
            rows, self._token = self._saved
            self.counts = dict(rows)
        self._asked = {**self._asked, "goes_on": bool(self._token), "goes_back": goes_back and bool(self._token)}

    def _take(self, message: Any) -> None:
        progress = message.progress
        if progress.phase == SUBSCRIBE_PHASE_RESET:
            self.counts = {}
            self.resets += 1
        counts = dict(self.counts) if self.movie is not None else self.counts
        changes = []
        for change in message.changes:
            if change.HasField("upsert"):
                movie, count = change.upsert.movie_id, change.upsert.rating_count
                counts[movie] = count
            else:
                movie, count = change.delete.movie_id, None
                counts.pop(movie, None)
            changes.append((movie, count))
        self.counts, self._token, self.phase = counts, progress.resume_token, progress.phase
        self.given += len(changes)
        saves = self.heard % SAVE_EVERY == 0
        self._note(progress, changes, saves=saves)
        self.heard += 1
        self.heard_of_stream += 1
        if saves:
            self._saved = (dict(counts), self._token)

    def _note(self, progress: Any, changes: Sequence[tuple[int, int | None]], *, saves: bool) -> None:
        phase = PHASES[progress.phase]
        more: dict[str, Any] = {}
        if phase == "current":
            stated = stated_by(progress.read_info)
            more = {"position": position_of(stated), "as_of": stated.as_of_ms}
            self.as_of_ms = stated.as_of_ms or 0
            self.wholes += 1
        self._history.ok(self._process, "subscribe", phase=phase, changes=changes, saved=saves, **more)


def wait_for(watchers: list[Watcher], holds: Callable[[Watcher], bool], what: str, seconds: float = 90.0) -> None:
    """Wait until something holds of all watchers."""
    deadline = time.monotonic() + seconds
    while not all(holds(watcher) for watcher in watchers):
        assert time.monotonic() < deadline, f"not in {seconds} s: {what}; {watchers}"
        time.sleep(0.02)


class CountingStream:
    """A stream of all ratings, on a connection of its own. Without `reads` nothing is taken from it until `read`."""

    def __init__(self, address: str, *, reads: bool) -> None:
        self.copy: dict[int, tuple[float, int]] = {}
        self.given = 0
        self.went_back = False
        self.ended: str | None = None
        self._channel = grpc.insecure_channel(address, options=[*OPTIONS, *SMALL_WINDOW])
        ask = self._channel.unary_stream(QUERY.path, None, QUERY.response_class.FromString)
        self._call: Any = ask(b"")
        self._thread: threading.Thread | None = None
        if reads:
            self.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._call.cancel()
        if self._thread is not None:
            self._thread.join()
        self._channel.close()

    def read(self) -> None:
        """Begin to take what comes."""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            for message in self._call:
                for change in message.changes:
                    row = change.upsert
                    known = self.copy.get(row.movie_id)
                    self.went_back |= known is not None and known[1] >= row.rating_count
                    self.copy[row.movie_id] = (row.average_rating, row.rating_count)
                self.given += len(message.changes)
        except grpc.RpcError as error:
            failure = failure_of(error)
            self.ended = failure.reason or failure.code
