"""Subscribers of the ratings of a real gateway, which come back whatever happens, and note each broken promise."""

import copy
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import grpc
from google.rpc import error_details_pb2, status_pb2

from tablegate.gateway.contract.keys import decode_key
from tablegate.v1.query_pb2 import SUBSCRIBE_PHASE_CURRENT, SUBSCRIBE_PHASE_RESET
from tests.kit.call.subscribing import token_of
from tests.kit.gateway_processes.changelog import RatingsChangelog
from tests.kit.gateway_processes.gateway import SERVICE
from tests.kit.programs.kafka import consume
from tests.kit.table.filled import catalogue_of

QUERY = catalogue_of().queries[f"{SERVICE}/SubscribeRatings"]
HOT = range(5)  # these are changed most
AGAIN_S = 0.05
BOOKMARKS_MAX = 40
OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]  # a connection of its own
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_535)]  # else 4 MB are read ahead


class ChangesWriter:
    """Changes ratings over and over. `history` is what became of each movie, in order; None where it was deleted.

    Each row has a count that no other ever had.
    """

    def __init__(self, changelog: RatingsChangelog, movies: int, seed: int = 0) -> None:
        self.history: dict[int, list[int | None]] = {movie: [] for movie in range(movies)}
        self.index: dict[int, int] = {}  # of a count in its movie's history
        self.written = 0
        self._changelog = changelog
        self._choice = random.Random(seed)

    @property
    def counts(self) -> dict[int, int]:
        """Return what the table must be."""
        return {movie: past[-1] for movie, past in self.history.items() if past and past[-1] is not None}

    def write(self, count: int) -> None:
        """Write so many changes."""
        end = self.written + count
        while self.written < end:
            most = min(500, end - self.written)
            movies = {self._movie() for _ in range(most)}
            gone = [movie for movie in movies if self._choice.random() < 0.15 and movie in self._changelog.rows]
            for movie in gone:
                self._note(movie, None)
            self._changelog.delete(gone)
            rows = {}
            for movie in sorted(movies.difference(gone)):
                rows[movie] = (1.0, self.written + 1)
                self._note(movie, self.written + 1)
            self._changelog.put(rows)
            self._changelog.mark(source_next_offset=self.written)

    def _movie(self) -> int:
        return self._choice.choice(HOT if self._choice.random() < 0.02 else range(len(self.history)))

    def _note(self, movie: int, count: int | None) -> None:
        if count is not None:
            self.index[count] = len(self.history[movie])
        self.history[movie].append(count)
        self.written += 1


class Bookmark(NamedTuple):
    """What a copy was when it was told that it is whole at these next offsets."""

    next_offsets: Mapping[int, int]
    counts: Mapping[int, int]


class Watcher:
    """A subscriber in a thread: of one movie, which must see each change once, or of all.

    `ends`: why streams ended; `as_of_ms` and `heard` say what the last message told and how many there were.
    """

    def __init__(
        self, address: Callable[[], str | None], writer: ChangesWriter, movie: int | None = None, **options: Any
    ) -> None:
        self.counts: dict[int, int] = {}
        self.violations: list[str] = []
        self.ends: Counter[str] = Counter()
        self.bookmarks: list[Bookmark] = []
        self.streams = self.resets = self.heard = self.given = 0
        self.heard_of_stream = 0
        self.phase = 0
        self.as_of_ms = 0
        self.movie = movie
        self._address = address
        self._writer = writer
        self._options = options
        self._token = ""
        self._at: int | None = None  # index in the movie's history of what was seen last
        self._saved: tuple[dict[int, int], str, int | None] = ({}, "", None)
        self._goes_back = False
        self._call: Any = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.cancel()
        self._thread.join()

    def __repr__(self) -> str:
        told = f"{self.heard} messages, {len(self.counts)} rows, phase {self.phase}, ended by {dict(self.ends)}"
        return f"<{self.movie}: {self.streams} streams, {told}>"

    def cancel(self, *, goes_back: bool = False) -> None:
        """End the stream from this side; to go back is to lose all since it was last saved, as in a crash."""
        self._goes_back = goes_back
        if self._call is not None:
            self._call.cancel()

    def _run(self) -> None:
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
        self._call = ask(request.SerializeToString())
        try:
            for message in self._call:
                self._take(message)
        except grpc.RpcError as error:
            self.ends[_reason(error)] += 1
        if self._goes_back:
            rows, self._token, self._at = self._saved
            self.counts, self._goes_back = dict(rows), False

    def _take(self, message: Any) -> None:
        progress = message.progress
        if self.heard_of_stream == 0 and (progress.phase == SUBSCRIBE_PHASE_RESET) != (not self._token):
            self._say("a reset with a token, or none without")
        if progress.phase == SUBSCRIBE_PHASE_RESET:
            self.counts, self._at = {}, None
            self.resets += 1
        counts = dict(self.counts) if self.movie is not None else self.counts
        for change in message.changes:
            self._change(change, counts)
        self.counts, self._token, self.phase = counts, progress.resume_token, progress.phase
        self.given += len(message.changes)
        if progress.phase == SUBSCRIBE_PHASE_CURRENT:
            self.as_of_ms = progress.read_info.as_of_time.ToMilliseconds()
            self._mark(progress)
        self.heard += 1
        self.heard_of_stream += 1
        if self.heard % 20 == 1:
            self._saved = (dict(counts), self._token, self._at)

    def _change(self, change: Any, counts: dict[int, int]) -> None:
        if change.HasField("upsert"):
            movie, count = change.upsert.movie_id, change.upsert.rating_count
            if counts.get(movie, 0) >= count:
                self._say(f"movie {movie}: {counts[movie]}, then {count}")
            counts[movie] = count
        else:
            movie, count = change.delete.movie_id, None
            if counts.pop(movie, None) is None:
                self._say(f"movie {movie}: gone, and was not there")
        if self.movie is not None:
            self._follow(movie, count)

    def _follow(self, movie: int, count: int | None) -> None:
        """Note a change that was passed over, given twice, or of another movie."""
        history = self._writer.history[movie]
        at = self._writer.index[count] if count is not None else (self._at or 0) + 1
        if movie != self.movie or history[at] != count or (self._at is not None and at != self._at + 1):
            self._say(f"movie {movie}: change {at} ({count}) after {self._at}")
        self._at = at

    def _mark(self, progress: Any) -> None:
        if self.heard % 7 == 0 and len(self.bookmarks) < BOOKMARKS_MAX:
            token = token_of(progress.read_info.consistency_token)
            partitions = token.partitions or range(len(token.next_offsets))
            next_offsets = dict(zip(partitions, token.next_offsets, strict=True))
            self.bookmarks.append(Bookmark(next_offsets, copy.copy(self.counts)))

    def _say(self, what: str) -> None:
        self.violations.append(f"stream {self.streams}, message {self.heard}: {what}")


def _reason(error: grpc.RpcError) -> str:
    trailer: Any = error.trailing_metadata() or ()
    details: Any = dict(trailer).get("grpc-status-details-bin")
    info = error_details_pb2.ErrorInfo()
    if details is not None:
        for detail in status_pb2.Status.FromString(details).details:
            if detail.Unpack(info):
                return str(info.reason)
    return str(error.code().name)


def check_bookmarks(changelog: RatingsChangelog, writer: ChangesWriter, watcher: Watcher) -> None:
    """Fail unless each copy that was called whole was the changelog, folded up to the offsets that were told."""
    rows: dict[int, dict[int, list[tuple[int, int | None]]]] = {}
    sequences: Counter[int] = Counter()
    for record in consume(changelog.bootstrap, changelog.topic):
        if record.key:
            [movie] = decode_key(changelog.table.key, record.key)
            assert isinstance(movie, int)
            count = writer.history[movie][sequences[movie]]
            sequences[movie] += 1
            rows.setdefault(record.partition, {}).setdefault(movie, []).append((record.offset, count))
    for bookmark in watcher.bookmarks:
        folded: dict[int, int] = {}
        for partition, next_offset in bookmark.next_offsets.items():
            for movie, changes in rows.get(partition, {}).items():
                before = [count for offset, count in changes if offset < next_offset]
                if before and before[-1] is not None and watcher.movie in (None, movie):
                    folded[movie] = before[-1]
        assert bookmark.counts == folded, "a copy is not what it was called"


def wait_for(watchers: list[Watcher], holds: Callable[[Watcher], bool], what: str, seconds: float = 90.0) -> None:
    """Wait until something holds of all watchers."""
    deadline = time.monotonic() + seconds
    while not all(holds(watcher) for watcher in watchers):
        assert not any(watcher.violations for watcher in watchers), [watcher.violations[:3] for watcher in watchers]
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
            self.ended = _reason(error)
