"""Reads of one row, a steady number a second, by a client that knows all gateways: what came of them."""

import json
import queue
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc
from tablegate.gateway.contract.catalogue import GetQuery

READS_PER_S = 20
READ_TIMEOUT_S = 2.0
UNNAMED = "?"  # a gateway that has just started may not know yet that it is one of several

# What any gRPC client can be told: take the addresses in turn, and ask again where one is not there.
_RETRY = {
    "maxAttempts": 4,
    "initialBackoff": "0.02s",
    "maxBackoff": "0.2s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}
_SERVICE = {"loadBalancingConfig": [{"round_robin": {}}], "methodConfig": [{"name": [{}], "retryPolicy": _RETRY}]}
_OPTIONS = (("grpc.service_config", json.dumps(_SERVICE)), ("grpc.max_reconnect_backoff_ms", 1_000))


class Answer(NamedTuple):
    """What a read came to: the gateway that answered, or "" and the `error`; its time, and when that was."""

    gateway: str
    role: str
    error: str
    began_s: float
    ended_s: float
    rating_count: int


@dataclass(frozen=True, slots=True)
class _Seen:
    """The answer of the newest read that was answered: no later read may be older."""

    number: int = -1
    rating_count: int = 0
    token: str = ""


class Reads:
    """Reads the row of a movie over and over. `step` begins those that are due and takes in what has come.

    Each asks for at least what was seen when it began. Nothing waits for an answer: a slow one delays no other read.
    One thread; times are of `time.monotonic`.
    """

    def __init__(self, addresses: Sequence[str], query: GetQuery, movie_id: int) -> None:
        self.answers: list[Answer] = []
        self.went_back: list[str] = []
        self._channel = grpc.insecure_channel(f"ipv4:{','.join(addresses)}", _OPTIONS)
        self._call: Any = self._channel.unary_unary(
            query.path,
            request_serializer=query.request_class.SerializeToString,
            response_deserializer=query.response_class.FromString,
        )
        self._query = query
        self._movie_id = movie_id
        self._seen = _Seen()
        self._begun = 0
        self._next_s = time.monotonic()
        self._came: queue.SimpleQueue[tuple[int, float, int, float, Any]] = queue.SimpleQueue()

    def __enter__(self) -> "Reads":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    @property
    def rating_count(self) -> int:
        """How many ratings the movie has, by the newest answer."""
        return self._seen.rating_count

    def step(self) -> None:
        """Begin what is due, and take in what has come."""
        while not self._came.empty():
            self._take(*self._came.get())
        if time.monotonic() >= self._next_s:
            self._next_s += 1 / READS_PER_S
            self._begin()

    def finish(self) -> None:
        """Wait for what is still to come."""
        while len(self.answers) < self._begun:
            self._take(*self._came.get())

    def _begin(self) -> None:
        request: Any = self._query.request_class(movie_id=self._movie_id)
        if self._seen.token:
            request.read_options.at_least = self._seen.token
        number, seen, began_s = self._begun, self._seen.rating_count, time.monotonic()
        self._begun += 1
        future = self._call.future(request, timeout=READ_TIMEOUT_S)
        future.add_done_callback(lambda done: self._came.put((number, began_s, seen, time.monotonic(), done)))

    def _take(self, number: int, began_s: float, seen: int, ended_s: float, done: Any) -> None:
        trailer = dict(done.trailing_metadata() or ())
        error = done.exception()
        if error is not None:
            name = f"{done.code().name}: {done.details()}"
            self.answers.append(Answer("", "", name, began_s, ended_s, 0))
            return
        answer = done.result()
        count = answer.rating.rating_count
        if count < seen:
            self.went_back.append(f"{trailer.get('tablegate-gateway')} answered with {count} ratings after {seen}")
        if number > self._seen.number:
            self._seen = _Seen(number, max(count, seen), answer.read_info.consistency_token)
        gateway, role = str(trailer.get("tablegate-gateway", UNNAMED)), str(trailer.get("tablegate-role", ""))
        self.answers.append(Answer(gateway, role, "", began_s, ended_s, count))

    # What came of them.

    @property
    def failed(self) -> list[Answer]:
        """Those without an answer."""
        return [answer for answer in self.answers if answer.error]

    @property
    def not_found(self) -> int:
        """How many were told that there is no such row, which there is."""
        return sum(answer.error.startswith("NOT_FOUND") for answer in self.answers)

    @property
    def by_gateway(self) -> Counter[str]:
        """How many each gateway answered."""
        return Counter(answer.gateway for answer in self.answers if not answer.error)

    def problems(self) -> list[str]:
        """Return what went wrong, in sentences: nothing, where each read was answered, and rightly."""
        problems = []
        if self.failed:
            reasons = "; ".join(sorted({answer.error for answer in self.failed}))
            problems.append(f"{len(self.failed)} of {len(self.answers)} reads failed: {reasons}")
        if self.not_found:
            problems.append(f"{self.not_found} reads were told NOT_FOUND of a row that exists")
        if self.went_back:
            problems.append(f"{len(self.went_back)} answers were older than one before: {self.went_back[0]}")
        return problems

    def first_after(self, moment_s: float) -> Answer | None:
        """Return the first answer to a read that began after a moment."""
        later = [answer for answer in self.answers if not answer.error and answer.began_s >= moment_s]
        return min(later, key=lambda answer: answer.ended_s, default=None)

    def slowest_s(self) -> float:
        """Return how long the slowest answer took."""
        return max((answer.ended_s - answer.began_s for answer in self.answers if not answer.error), default=0.0)

    def median_s(self) -> float:
        """Return how long half of the answers took at most."""
        times = [answer.ended_s - answer.began_s for answer in self.answers if not answer.error]
        return statistics.median(times) if times else 0.0
