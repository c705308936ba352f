"""The subscriber: what it asks, what a response means, and what a broken stream leads to. No I/O, no clock, no threads.

A shell opens a stream with `request()`, gives each response to `receive()`, keeps `token` once the consumer has all the
events of it, and gives the stream's end to `disconnected()`, which says how long to wait before the next stream.

Decision: docs/decisions/0020-client-rules-without-io.md
"""

import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tablegate.client.events import CatchingUp, Current, Delete, Disconnected, Event, Reset, Upsert
from tablegate.client.failures import Failure, ResumeTokenRefused, SubscribeError
from tablegate.client.fields import SUBSCRIBE_OPTIONS, ResponseFields, field_of_type, response_fields

PROGRESS_S = 5.0  # how often a gateway sends progress, unless the request sets it
PROGRESS_MIN_S, PROGRESS_MAX_S = 0.1, 60.0  # the bounds that a gateway has for it
MISSED_MAX = 3  # heartbeats
SILENCE_MIN_S = 2.0  # a busy machine may pause that long
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.1, 5.0  # a gateway with too many streams asks for more

RESET, CATCHING_UP, CURRENT = 1, 2, 3  # SubscribePhase

Request = TypeVar("Request", bound=Message)


class Subscriber:
    """One subscription, over all its streams.

    `token`: where the consumer's copy is, "" for nowhere. `restarts`: a refused token begins anew instead of raising.
    `random_s` gives a number from 0 to the one it is given.
    """

    def __init__(
        self,
        request: Message,
        *,
        token: str = "",
        restarts: bool = False,
        random_s: Callable[[float], float] = lambda most_s: random.uniform(0, most_s),
    ) -> None:
        self._request = _copy(request)
        self._options: Any = getattr(self._request, field_of_type(request.DESCRIPTOR, SUBSCRIBE_OPTIONS))
        self.token: str = token or self._options.resume_token
        self._restarts = restarts
        self._random_s = random_s
        self._fields: ResponseFields | None = None
        self._failures = 0
        self._is_admitted = False  # whether the stream has brought anything

    @property
    def silence_s(self) -> float:
        """Seconds without a message after which a stream is dead."""
        interval_s = PROGRESS_S
        if self._options.HasField("progress_interval"):
            interval_s = self._options.progress_interval.ToTimedelta().total_seconds()
        return max(SILENCE_MIN_S, MISSED_MAX * min(max(interval_s, PROGRESS_MIN_S), PROGRESS_MAX_S))

    @property
    def row_class(self) -> type[Message] | None:
        """The class of rows; None before the first response."""
        return None if self._fields is None else GetMessageClass(self._fields.row)

    def request(self) -> Message:
        """Return the request of the next stream."""
        self._options.resume_token = self.token
        self._is_admitted = False
        return _copy(self._request)

    def receive(self, response: Message) -> list[Event]:
        """Return the events of a response; `token` is then that of a consumer which has all of them."""
        if self._fields is None:
            self._fields = response_fields(response.DESCRIPTOR)
        self._is_admitted = True
        fields = self._fields
        progress: Any = getattr(response, fields.progress)
        self.token = token = progress.resume_token or self.token
        events: list[Event] = [Reset(token)] if progress.phase == RESET else []
        for change in getattr(response, fields.changes):
            if change.HasField(fields.upsert):
                row = getattr(change, fields.upsert)
                events.append(Upsert(fields.key_of(row), row))
            elif change.HasField(fields.delete):
                key = getattr(change, fields.delete)
                events.append(Delete(fields.key_of(key), key))
        if progress.phase == CATCHING_UP:
            events.append(CatchingUp(token))
        elif progress.phase == CURRENT:
            as_of: datetime = progress.read_info.as_of_time.ToDatetime(tzinfo=UTC)
            events.append(Current(as_of, progress.read_info, token))
        if progress.phase != RESET:
            self._failures = 0  # the stream brought the copy forward
        return events

    def disconnected(self, failure: Failure) -> Disconnected:
        """Return the event of a stream that ended, with the wait before the next; raise `SubscribeError`."""
        if failure.reason == "INVALID_RESUME_TOKEN":
            if not self._restarts or not self.token:
                raise ResumeTokenRefused(failure)
            self.token = ""
            self._options.ClearField("start")  # what was missed comes with a snapshot only
        elif not (failure.passes_once_admitted if self._is_admitted else failure.passes):
            raise SubscribeError(failure)
        most_s = min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2.0 ** min(self._failures, 16))
        self._failures += 1
        wait_s = failure.retry_after_s + self._random_s(most_s)
        return Disconnected(failure.code, failure.reason, failure.text, wait_s)


def silent(silence_s: float) -> Failure:
    """Return the failure of a stream without messages."""
    return Failure("UNAVAILABLE", f"no message for {silence_s:g} s")


ENDED = Failure("UNAVAILABLE", "the stream ended")


def _copy(message: Request) -> Request:
    made = type(message)()
    made.CopyFrom(message)
    return made
