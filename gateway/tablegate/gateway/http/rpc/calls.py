"""Calls at work: from a message to its answer, with deadline, limits and cancellation, for every protocol.

A protocol makes a `ServedCall`, reads the request, and gives both to `Calls`. A unary handler that answers at once (a
Get of a table that is here) is served on the spot, without a task, a deadline's timer or a limit: nothing can happen
meanwhile. One that must wait returns an awaitable, and gets all three. Streams have a task from the beginning, which
one that only waits for changes gives up (`_Stream`).

Limits count what waits, by process and by principal: who the call's credential names, or the client's verified
certificate. Without one there is only the process's limit, as a proxy or a NAT gives many clients the same address. A
process that is full is shared: see `http.shares`, where an address does count.

What all protocols share lies here, too: compression and size of requests, and the HTTP status of each error.
"""

import asyncio
import logging
import math
import re
import secrets
import sys
import time
import traceback
import zlib
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Generic, TypeVar

from google.rpc import code_pb2
from typing_extensions import override

from tablegate.gateway.access.gate import ADMITTED, Admitted, Gate
from tablegate.gateway.access.policy import Forbidden, Right
from tablegate.gateway.access.principal import Unauthenticated
from tablegate.gateway.access.rates import FREE, RateExceeded
from tablegate.gateway.access.views import View
from tablegate.gateway.http.exchange import MESSAGE_BYTES_MAX, Exchange, ResponseHeaders
from tablegate.gateway.http.rpc.turns import StreamTurns
from tablegate.gateway.http.shares import Shares
from tablegate.gateway.query.call import (
    Answer,
    AtTurn,
    DuplexMethod,
    Fields,
    ForView,
    Method,
    Parked,
    ParkedStream,
    StreamMethod,
    UnaryHandler,
    UnaryMethod,
)
from tablegate.gateway.query.errors import (
    DeadlineExceeded,
    Internal,
    InvalidField,
    LimitExceeded,
    NotAllowed,
    NotAuthenticated,
    NotServed,
    Overloaded,
    QueryError,
    RequestTooLarge,
    ShuttingDown,
    ViewChanged,
    code_of,
)
from tablegate.gateway.telemetry.measures import Measures
from tablegate.gateway.telemetry.request_ids import AT_WORK, HEADER, TRACE_PARENT, TRACE_STATE
from tablegate.gateway.telemetry.spans import NO_SPAN, SPAN, Span

GZIP = b"gzip"
REQUEST_ID = HEADER.encode("ascii")
REQUEST_ID_MAX = 64  # characters: a UUID has 36, a trace id 32
_SANE_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,%d}" % REQUEST_ID_MAX)
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
STREAMS_MAX = 10_000  # as many as connections
CHECKS_US = 2_000  # of streams that are checked, in one turn of the event loop
GZIP_RATIO_MAX = 50  # of what is longer than a message: text packs to a twentieth, and only an attack much further

_logger = logging.getLogger("tablegate.gateway.http")

HTTP_STATUSES: Mapping[int, int] = {
    code_pb2.CANCELLED: 499,
    code_pb2.UNKNOWN: 500,
    code_pb2.INVALID_ARGUMENT: 400,
    code_pb2.DEADLINE_EXCEEDED: 504,
    code_pb2.NOT_FOUND: 404,
    code_pb2.ALREADY_EXISTS: 409,
    code_pb2.PERMISSION_DENIED: 403,
    code_pb2.UNAUTHENTICATED: 401,
    code_pb2.RESOURCE_EXHAUSTED: 429,
    code_pb2.FAILED_PRECONDITION: 400,
    code_pb2.ABORTED: 409,
    code_pb2.OUT_OF_RANGE: 400,
    code_pb2.UNIMPLEMENTED: 501,
    code_pb2.INTERNAL: 500,
    code_pb2.UNAVAILABLE: 503,
    code_pb2.DATA_LOSS: 500,
}
"""HTTP status of each google.rpc.Code but OK, as google/rpc/code.proto has it."""


_ANSWERED_BY = {b"tablegate-%b" % name.encode(): name for name in ("partition", "role", "gateway")}
_TRACE_PARENT, _TRACE_STATE = TRACE_PARENT.encode("ascii"), TRACE_STATE.encode("ascii")
# Of version 00; a later one may have more behind it, and begins alike.
_TRACE = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_TRACE_STATES = re.compile(rb"[!-~][ -~]{0,511}")


def trace_of(headers: Mapping[bytes, bytes]) -> tuple[str, Sequence[tuple[str, str]]]:
    """Return the id of the trace that a request is in, and the headers of it; "" and none where it is in none."""
    parent, state = headers.get(_TRACE_PARENT), headers.get(_TRACE_STATE)
    found = None if parent is None else _TRACE.fullmatch(parent)
    if found is None:
        return "", ()
    trace = ((TRACE_PARENT, found[0].decode("ascii")),)
    if state is None or _TRACE_STATES.fullmatch(state) is None:
        return found[1].decode("ascii"), trace
    return found[1].decode("ascii"), (*trace, (TRACE_STATE, state.decode("ascii")))


def request_id_of(headers: Mapping[bytes, bytes]) -> str:
    """Return the id that a client gives its request, or a new one where it gives none that may stand in a log."""
    value = headers.get(REQUEST_ID)
    if value is not None and _SANE_ID.fullmatch(value) is not None:
        return value.decode("ascii")
    return secrets.token_hex(16)


class ServedCall(ABC):
    """A call, as its handler sees it (`query.call.Call`), and the ways to answer it, each protocol's own.

    `timeout_s`: what the client asked for, None where it did not; set by the protocol. `usage`: what the call uses of
    its principal's limits. `span`: it in a trace.
    """

    rpc_system: ClassVar[str] = "grpc"  # as OpenTelemetry names it

    __slots__ = (
        "_calls",
        "_request_id",
        "admitted",
        "ended_for",
        "exchange",
        "request",
        "span",
        "started_s",
        "timeout_s",
        "trailer",
        "usage",
    )

    def __init__(self, calls: "Calls", exchange: Exchange) -> None:
        self.exchange = exchange
        self.admitted = ADMITTED
        self.usage = FREE
        self.ended_for: QueryError | None = None  # why a stream is ended, which its client did not ask for
        self.timeout_s: float | None = None
        self.trailer: Fields = ()
        self.request: bytes | None = None  # of a unary call
        self.span: Span = NO_SPAN
        self._request_id = ""
        self._calls = calls
        self.started_s = time.monotonic()

    @property
    def request_id(self) -> str:
        """Return the id of the request. Made when it is asked for: a Get that is answered at once has none."""
        if not self._request_id:
            self._request_id = request_id_of(self.exchange.headers)
        return self._request_id

    @property
    def trace_id(self) -> str:
        """Return the id of the trace that the request is in; "" where it is in none."""
        return self.span.trace_id or trace_of(self.exchange.headers)[0]

    @property
    def answered_by(self) -> Mapping[str, str]:
        """Return which partition, role and gateway the answer came from, as far as its trailer names them."""
        return {_ANSWERED_BY[name]: value.decode("latin-1") for name, value in self.trailer if name in _ANSWERED_BY}

    def identity(self) -> Sequence[tuple[str, str]]:
        """Return the headers by which a forward of the request is known: its id, and those of its trace."""
        return (HEADER, self.request_id), *trace_of(self.exchange.headers)[1]

    def time_left_s(self) -> float | None:
        """Return the seconds left to the call's deadline, 0 when it is over; None without a deadline."""
        if self.timeout_s is None:
            return None
        return max(0.0, self.timeout_s - (time.monotonic() - self.started_s))

    @property
    def draining(self) -> bool:
        """Return whether the gateway is going away."""
        return self._calls.draining

    @property
    def forwarded(self) -> str | None:
        """Return the token of the gateway that forwarded the call; gateways call each other over gRPC alone."""
        return None

    @property
    def account(self) -> str | None:
        """Return who the call counts for: the name of the principal; without access control, of the certificate."""
        principal = self.admitted.principal
        return self.exchange.principal if principal is None else principal.name

    @property
    def parks(self) -> bool:
        """Return whether its stream may give up its task. A deadline and a rate are kept by one."""
        return self.timeout_s is None and not self.usage.is_charged

    @property
    def view(self) -> View | None:
        """Return what the client may see of the table; None: all of it."""
        return self.admitted.view

    def view_of(self, path: str) -> View | None:
        """Return what the client sees of the table of another query; raise `NotAllowed`."""
        return self._calls.view_of(self.admitted, path)

    async def turn(self) -> None:
        """Return when it is the turn of this call, among those and the streams that are long at work."""
        await self._calls.turns.wait()

    @property
    def at_turn(self) -> AtTurn:
        """Return what calls something when it is its turn."""
        return self._calls.turns.call

    @property
    def at_turn_for_many(self) -> AtTurn:
        """Return what calls something that sends to many streams."""
        return self._calls.turns.call_for_many

    def set_trailer(self, trailer: Fields) -> None:
        """Send these fields after the answer."""
        self.trailer = trailer

    @abstractmethod
    def fail(self, error: QueryError) -> None:
        """Answer with an error; of a stream, this may come after messages."""

    def answer(self, message: bytes) -> None:
        """Answer a unary call."""
        raise NotImplementedError

    async def send(self, message: bytes) -> None:
        """Send a message of a stream."""
        raise NotImplementedError

    def offer(self, message: bytes) -> bool:
        """Send a message of a stream, if that can be at once; else return False and send nothing."""
        raise NotImplementedError

    def end(self) -> None:
        """End a stream."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """What all clients, and each, may have at work in one process."""

    streams_max: int = STREAMS_MAX  # a Subscribe takes 5 KB, one at work 13; what is queued for it has its own bounds
    streams_of_principal_max: int = STREAMS_MAX // 4  # one client that opens too many leaves as many to three others
    calls_max: int = 5_000  # unary calls that wait at once: those that ask for freshness
    calls_of_principal_max: int = 1_250  # of them, as with streams
    message_bytes_max: int = MESSAGE_BYTES_MAX  # of a request, but of one in JSON; less than its JSON_BYTES_MAX

    @classmethod
    def for_streams(cls, most: int) -> "CallLimits":
        """Return the usual limits with another number of streams, of which a principal may have a quarter."""
        return cls(streams_max=most, streams_of_principal_max=max(1, most // 4))


OnEnded = Callable[[ServedCall, str, str, float], None]


class Place(ABC):
    """A call at work."""

    __slots__ = ("account", "call", "is_limited")

    def __init__(self, call: ServedCall, principal: str | None) -> None:
        """`principal` is whose limit it counts in; None: nobody's, then it counts for its address where all is full."""
        self.call = call
        self.is_limited = principal is not None
        account = f"principal {principal}" if self.is_limited else f"address {call.exchange.address}"
        self.account = sys.intern(account)  # thousands of streams are of one

    def give_up(self, error: QueryError) -> None:
        """End it with an error, at most once, to let another one begin."""
        self.call.ended_for = error
        self.cancel()

    @abstractmethod
    def cancel(self) -> None:
        """End it."""


class _WaitingCall(Place):
    """A unary call that waits, in the task that makes its place."""

    __slots__ = ("_task",)

    def __init__(self, call: ServedCall, principal: str | None) -> None:
        super().__init__(call, principal)
        self._task = asyncio.current_task()

    @override
    def cancel(self) -> None:
        assert self._task is not None, "a call that waits has a task"
        self._task.cancel()


class _Stream(Place):
    """A stream at work. It has a task, or is parked, and has none until it is woken."""

    __slots__ = ("_calls", "_parked", "_runs", "_task", "is_counted", "path")

    def __init__(self, calls: "Calls", call: ServedCall, path: str, principal: str | None) -> None:
        super().__init__(call, principal)
        self._calls = calls
        self.is_counted = False  # its first task has run
        self._parked: ParkedStream | None = None  # until a task goes on with it
        self._runs = False  # its task has begun
        self._task: asyncio.Future[None] | None = None
        self.path = path

    def run(self, messages: Callable[[], AsyncIterator[bytes]]) -> asyncio.Future[None]:
        """Begin, or go on, in a task."""
        self._task = self._calls.start_stream(self, messages)
        self.call.exchange.on_gone = self.cancel
        return self._task

    def note_run(self) -> None:
        """Note that its task has begun."""
        self._runs = True

    def note_resumed(self) -> None:
        """Note that its messages are asked for: what comes of them is for the task."""
        self._parked = None

    def park(self, parked: ParkedStream) -> None:
        """Let it go on without this task."""
        self._parked, self._task, self._runs = parked, None, False
        self.call.exchange.body = b""  # the request; its handler keeps what it needs
        parked.wait(self.wake)

    def wake(self) -> None:
        """Let it have a task, if it has none."""
        if self._parked is not None and self._task is None:
            self.run(self._parked.messages)

    def leave(self) -> None:
        """End what is parked."""
        parked, self._parked = self._parked, None
        if parked is not None:
            parked.leave()

    @override
    def cancel(self) -> None:
        self.end_idle()
        if self._task is not None:
            self._task.cancel()

    def end_idle(self) -> None:
        """End it where no task does: one that is cancelled before it has begun does not run at all."""
        if not self._runs:
            self._runs = True  # nor is it ended twice
            self._calls.end_idle(self)


_PlaceT = TypeVar("_PlaceT", bound=Place)


class ConcurrencyLimit(Generic[_PlaceT]):
    """Bounds how many calls of one kind, `kind` in the plural, are at work: in this process, and of one principal.

    Where there are `most`, who has fewer gets the place of somebody who has more. `given_up`: how often.
    """

    def __init__(self, kind: str, *, most: int, most_of_principal: int) -> None:
        self.given_up = 0
        self._kind = kind
        self._most = most
        self._most_of_principal = most_of_principal
        self._places: Shares[_PlaceT] = Shares()

    @property
    def at_work(self) -> int:
        """Return how many there are."""
        return len(self._places)

    def __iter__(self) -> Iterator[_PlaceT]:
        return iter(self._places)

    @contextmanager
    def hold(self, place: _PlaceT) -> Iterator[None]:
        """Count a call for as long as the context; raise as `begin`."""
        self.begin(place)
        try:
            yield
        finally:
            self.end(place)

    def begin(self, place: _PlaceT) -> None:
        """Count a call until its `end`; raise `Overloaded` where all, or this one, have too many at work."""
        places, account = self._places, place.account
        if place.is_limited and places.of(account) >= self._most_of_principal:
            raise Overloaded(
                f"you have {self._most_of_principal} {self._kind} at work here, which is as many as one client may "
                "have; end some, or back off",
                limit=f"{self._kind} of a principal",
            )
        if len(places) >= self._most:
            rival = next(places.rivals(account), None)
            if rival is None:
                raise Overloaded(
                    f"all clients together have {self._most} {self._kind} at work here; back off", limit=self._kind
                )
            places.remove(rival.account, rival)
            self.given_up += 1
            rival.give_up(
                Overloaded(
                    f"all clients together have {self._most} {self._kind} at work here, and you the most of them: "
                    "this one made room for another client; open fewer",
                    limit=self._kind,
                )
            )
        places.add(account, place)

    def end(self, place: _PlaceT) -> None:
        """Count it no more, if it is still counted."""
        self._places.remove(place.account, place)


class Calls:
    """What is at work in this process, and measured in `measures`. One event loop.

    `on_ended` gets each call that has ended, with its path, the name of its status and the seconds that it took; None
    where nobody wants to know.
    """

    def __init__(
        self, limits: CallLimits | None = None, gate: Gate | None = None, measures: Measures | None = None
    ) -> None:
        limits = limits or CallLimits()
        self.measures = Measures() if measures is None else measures
        self.message_bytes_max = limits.message_bytes_max
        self.draining = False
        self._gate = gate
        self._gate_version = 0 if gate is None else gate.version
        # What waits or is a stream, with its path and the error where its view has changed.
        self._admitted: dict[asyncio.Future[None] | _Stream, tuple[ServedCall, str, QueryError]] = {}
        self._unchecked: list[asyncio.Future[None] | _Stream] = []  # of these, in turns
        self._is_policy_new = self._is_check_due = False
        self._ends_s = math.inf  # when the first of their credentials ends, in seconds since 1970
        self._durations = self.measures.calls
        self.on_ended: OnEnded | None = None
        self._waiting = ConcurrencyLimit[_WaitingCall](
            "waiting calls", most=limits.calls_max, most_of_principal=limits.calls_of_principal_max
        )
        self._streams = ConcurrencyLimit[_Stream](
            "streams", most=limits.streams_max, most_of_principal=limits.streams_of_principal_max
        )
        self.turns = StreamTurns()
        self._tasks: set[asyncio.Future[None]] = set()
        self._duplex: set[asyncio.Future[None]] = set()

    def admit(self, call: ServedCall, path: str, method: Method) -> None:
        """Let a call in, before its request is read; raise `NotAuthenticated`, `NotAllowed` or `LimitExceeded`.

        What says that another gateway forwards it is checked by its handler.
        """
        gate = self._gate
        if gate is None or (call.forwarded is not None and _is_forwarded(call, method)):
            return
        exchange = call.exchange
        try:  # not by `_as_query_errors`, which would cost each call a microsecond
            call.admitted = gate.admit(path, exchange.headers, exchange, is_get=exchange.method == b"GET")
            if gate.has_rates and isinstance(method, UnaryMethod):
                call.usage = gate.begin(call.admitted.principal, path, exchange)
        except (Unauthenticated, Forbidden, RateExceeded) as refusal:
            error = _query_error(refusal)
            self._count_failed(call, path, error)
            raise error from None

    def admit_to(self, right: Right, exchange: Exchange) -> None:
        """Let a request in that is no call; raise `NotAuthenticated` or `NotAllowed`."""
        if self._gate is not None:
            with _as_query_errors():
                path = exchange.target.partition(b"?")[0].decode("latin-1")  # what follows may hold anything
                self._gate.admit_to(right, path, exchange.headers, exchange)

    def view_of(self, admitted: Admitted, path: str) -> View | None:
        """Return what who was admitted sees of the table of a query; raise `NotAllowed`."""
        if self._gate is None:
            return None
        with _as_query_errors():
            return self._gate.view_of(admitted, path)

    def check_streams(self) -> None:
        """End streams, and calls that wait, whose credential has ended or that the policy does not allow any more.

        Some are checked at once, the rest in turns: thousands of streams may end together.
        """
        gate = self._gate
        if gate is None:
            return
        is_new, self._gate_version = gate.version != self._gate_version, gate.version
        if is_new or (not self._unchecked and self._ends_s <= time.time()):
            self._unchecked, self._is_policy_new, self._ends_s = list(self._admitted), is_new, math.inf
        self._check_some(gate)

    def _check_some(self, gate: Gate) -> None:
        """Check as many as one turn may, and have another turn for the rest."""
        now_s, left_us = time.time(), CHECKS_US
        while self._unchecked and left_us > 0:
            left_us -= self._check(gate, self._unchecked.pop(), now_s)
        if self._unchecked and not self._is_check_due:
            self._is_check_due = True
            self.turns.call(lambda: self._go_on_checking(gate))

    def _go_on_checking(self, gate: Gate) -> None:
        self._is_check_due = False
        self._check_some(gate)

    def _check(self, gate: Gate, work: "asyncio.Future[None] | _Stream", now_s: float) -> int:
        """End a stream or call that may not go on; return how many microseconds that took, about."""
        admitted = self._admitted.get(work)
        if admitted is None:  # it has ended meanwhile
            return 1
        call, path, of_another_view = admitted
        principal = call.admitted.principal
        if principal is not None and principal.expires_at_s <= now_s:
            call.ended_for = NotAuthenticated("your credential has ended; show a new one")
        elif self._is_policy_new:
            try:
                again = self._admitted_again(gate, call, path)
                if again.view != call.admitted.view:
                    call.ended_for = of_another_view
                call.admitted = again  # the credential may end earlier now, or later
            except QueryError as error:
                call.ended_for = error
        if call.ended_for is None:
            self._note_end(call)
            return 10 if self._is_policy_new else 1
        if isinstance(work, _Stream):
            work.cancel()
        else:  # behind its first step: a task that is cancelled before does not run, and would answer nothing
            work.get_loop().call_soon(work.cancel)
        return 100

    def _note_end(self, call: ServedCall) -> None:
        """Note when the credential of a call ends: until the first of all does, none is checked."""
        principal = call.admitted.principal
        if principal is not None:
            self._ends_s = min(self._ends_s, principal.expires_at_s)

    def _admitted_again(self, gate: Gate, call: ServedCall, path: str) -> Admitted:
        exchange = call.exchange
        with _as_query_errors():
            return gate.admit(path, exchange.headers, exchange, is_get=exchange.method == b"GET")

    @property
    def streams(self) -> int:
        """Return how many streams are open."""
        return self._streams.at_work

    def unary(self, call: ServedCall, path: str, method: UnaryMethod, message: bytes) -> None:
        """Serve a unary call: now, or in a task where its handler waits."""
        call.request = message
        timeout_s = call.timeout_s
        call.timeout_s = method.default_timeout_s if timeout_s is None else min(timeout_s, method.max_timeout_s)
        try:
            answer = _answer(call, method, message)
        except Exception as error:  # noqa: BLE001  whatever it is, the client gets a status with details
            self._fail_by(call, path, error)
            return
        if isinstance(answer, bytes):
            if call.usage.is_charged:
                call.usage.charge(len(answer))
            call.answer(answer)
            self._count(call, path, "OK")
        else:
            work = self._wait(call, path, answer, _on_account_of(call, method))
            task = self._start(call, work)
            task.add_done_callback(lambda _: answer.close())
            if call.admitted is not ADMITTED:
                changed = NotAllowed("what you may see has changed meanwhile; ask again")
                self._admitted[task] = (call, path, changed)
                self._note_end(call)
                task.add_done_callback(self._admitted.pop)

    def stream(self, call: ServedCall, path: str, method: StreamMethod, message: bytes) -> None:
        """Serve a server stream, in a task while it has something to do."""
        self._run(_Stream(self, call, path, _on_account_of(call, method)), partial(method.handler, message, call))

    def duplex(self, call: ServedCall, path: str, method: DuplexMethod, messages: AsyncIterator[bytes]) -> None:
        """Serve a stream each way, in a task."""
        task = self._run(_Stream(self, call, path, call.account), partial(method.handler, messages, call))
        self._duplex.add(task)
        task.add_done_callback(self._duplex.discard)

    def _run(self, stream: _Stream, messages: Callable[[], AsyncIterator[bytes]]) -> asyncio.Future[None]:
        call = stream.call
        if call.admitted is not ADMITTED:
            self._admitted[stream] = (call, stream.path, ViewChanged())
            self._note_end(call)
        return stream.run(messages)

    def drain(self) -> None:
        """Let streams end by themselves; end those that may wait for their client for ever."""
        self.draining = True
        for task in self._duplex:
            task.cancel()

    async def finish(self, grace_s: float) -> None:
        """Wait for what is at work, at most `grace_s`; then end it, with an error for its clients."""
        self.drain()
        until = time.monotonic() + grace_s
        for stream in list(self._streams):
            stream.wake()  # which ends it
        while self._tasks and (left_s := until - time.monotonic()) > 0:
            await asyncio.wait(self._tasks, timeout=left_s)
        for stream in list(self._streams):
            stream.end_idle()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, call: ServedCall, work: Awaitable[None]) -> asyncio.Future[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        call.exchange.on_gone = task.cancel
        return task

    async def _wait(self, call: ServedCall, path: str, answer: Awaitable[bytes], principal: str | None) -> None:
        AT_WORK.set(call)  # of this task, which ends with the call
        with self._failing(call, path), self._waiting.hold(_WaitingCall(call, principal)):
            async with asyncio.timeout(call.time_left_s()):
                message = await answer
            if call.usage.is_charged:
                call.usage.charge(len(message))
            call.answer(message)
            self._count(call, path, "OK")

    def start_stream(self, stream: _Stream, messages: Callable[[], AsyncIterator[bytes]]) -> asyncio.Future[None]:
        """Send messages in a task, until they end or the stream is parked."""
        return self._start(stream.call, self._stream(stream, messages))

    async def _stream(self, stream: _Stream, make_messages: Callable[[], AsyncIterator[bytes]]) -> None:
        call, path = stream.call, stream.path
        AT_WORK.set(call)
        SPAN.set(call.span)  # whoever woke it may be at work for another
        is_parked = False
        stream.note_run()
        with self._failing(call, path):
            try:
                if not stream.is_counted:
                    self._begin_stream(stream)
                async with asyncio.timeout(call.time_left_s()):
                    await self.turns.wait()
                    stream.note_resumed()
                    async with aclosing(make_messages()) as messages:  # type: ignore[type-var]
                        async for message in messages:
                            await call.send(message)
                            await self.turns.wait()
                            if call.usage.is_charged and (wait_s := call.usage.charge(len(message))) > 0:
                                await asyncio.sleep(wait_s)
                call.end()
                self._count(call, path, "OK")
            except Parked as parked:
                is_parked = True
                stream.park(parked.stream)
            finally:
                if not is_parked:
                    self.end_stream(stream)

    def _begin_stream(self, stream: _Stream) -> None:
        """Count a stream; raise `Overloaded`, of an admitted client `LimitExceeded`, or `ShuttingDown`."""
        call = stream.call
        stream.is_counted = True
        self._streams.begin(stream)
        if self._gate is not None and call.admitted is not ADMITTED:
            with _as_query_errors():
                call.usage = self._gate.begin(call.admitted.principal, stream.path, call.exchange)
        if self.draining:
            raise ShuttingDown

    def end_stream(self, stream: _Stream) -> None:
        """Count it no more, and let nothing of it wait."""
        call = stream.call
        stream.leave()
        call.usage.end()
        self._streams.end(stream)
        self._admitted.pop(stream, None)
        if call.exchange.on_gone == stream.cancel:
            call.exchange.on_gone = None  # it would keep them all, in a circle

    def end_idle(self, stream: _Stream) -> None:
        """End a stream that no task ends."""
        # A client that went before its stream began is not counted. One whose policy changed meanwhile waits.
        if stream.is_counted or stream.call.ended_for is not None:
            self._answer_cancelled(stream.call, stream.path)
        self.end_stream(stream)

    @contextmanager
    def _failing(self, call: ServedCall, path: str) -> Iterator[None]:
        """Answer with an error where something goes wrong inside."""
        try:
            yield
        except TimeoutError:
            self._fail(call, path, DeadlineExceeded())
        except asyncio.CancelledError:
            self._answer_cancelled(call, path)
            raise
        except Exception as error:  # noqa: BLE001  as above
            self._fail_by(call, path, error)

    def _answer_cancelled(self, call: ServedCall, path: str) -> None:
        if call.ended_for is not None:
            self._fail(call, path, call.ended_for)
        elif self.draining:
            self._fail(call, path, ShuttingDown())
        else:  # its client is gone
            self._count(call, path, "CANCELLED")

    def _fail_by(self, call: ServedCall, path: str, error: Exception) -> None:
        """Answer with the error of an exception; of our own mistakes, with the id under which the log has it."""
        if isinstance(error, QueryError):
            self._fail(call, path, error)
            return
        request_id = call.request_id
        call.set_trailer((*call.trailer, (REQUEST_ID, request_id.encode("ascii"))))
        self._fail(call, path, as_query_error(error, path, request_id))

    def _fail(self, call: ServedCall, path: str, error: QueryError) -> None:
        call.fail(error)
        self._count_failed(call, path, error)

    def _count(self, call: ServedCall, path: str, code: str) -> float:
        """Count a call that has ended; return how long it took."""
        took_s, durations = time.monotonic() - call.started_s, self._durations[path, code]
        # `durations.add`, written out: each call comes here.
        durations.counts[bisect_left(durations.bounds, took_s)] += 1
        durations.sum += took_s
        if self.on_ended is not None:
            self.on_ended(call, path, code, took_s)
        return took_s

    def _count_failed(self, call: ServedCall, path: str, error: QueryError) -> None:
        self._count(call, path, code_pb2.Code.Name(code_of(error)))
        if isinstance(error, (Overloaded, LimitExceeded)):
            self.count_refused(error.limit)

    def count_refused(self, limit: str) -> None:
        """Count a call that a limit refuses."""
        self.measures.refused_calls[(limit,)] += 1


class LastMade:
    """What is made of a message. The last is kept: many streams may be given the very same, one by one."""

    def __init__(self, make: Callable[[bytes], bytes]) -> None:
        self._make = make
        self._message: bytes | None = None
        self._made = b""

    def __call__(self, message: bytes) -> bytes:
        """Return what is made of `message`; raise what making it does."""
        if message is not self._message:
            self._made = self._make(message)
            self._message = message
        return self._made


class FramedCall(ServedCall):
    """A call whose answer ends with a frame of its own, in the body."""

    __slots__ = ("_begun", "_headers")

    def __init__(self, calls: Calls, exchange: Exchange, headers: ResponseHeaders) -> None:
        super().__init__(calls, exchange)
        self._headers = headers
        self._begun = False

    @abstractmethod
    def framed(self, message: bytes) -> bytes:
        """Return the frame of a message."""

    @override
    async def send(self, message: bytes) -> None:
        self._begin()
        await self.exchange.send(self.framed(message))

    @override
    def offer(self, message: bytes) -> bool:
        return self._begun and not self.usage.is_charged and self.exchange.offer(self.framed(message))

    def end_with(self, frames: bytes) -> None:
        """Send the last frames, and end the answer."""
        if not self._begun:
            self.exchange.respond(self._headers, frames)
            return
        # A client that does not read makes the last frame wait, too; whoever ended the call does not.
        self.exchange.on_gone = asyncio.ensure_future(self._finish(frames)).cancel

    async def _finish(self, frames: bytes) -> None:
        await self.exchange.send(frames)
        self.exchange.end()

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self.exchange.begin(self._headers)


def _answer(call: ServedCall, method: UnaryMethod, message: bytes) -> Answer:
    """Return the answer of a handler: of the one for the view that the call is for, where it is for one."""
    admitted = call.admitted
    if admitted.answer is not None:
        handler: UnaryHandler = admitted.answer
        return handler(message, call)
    if admitted.view is None or method.handler_for is None:
        try:
            return method.handler(message, call)
        except ForView:
            if method.handler_for is None:
                raise
            return method.handler_for(call)(message, call)
    admitted.answer = handler = method.handler_for(call)
    return handler(message, call)


def _on_account_of(call: ServedCall, method: UnaryMethod | StreamMethod) -> str | None:
    """Return the principal of a call; None where there is none, or where it comes from a gateway.

    A gateway forwards for all of its clients, and each of them has its limit there. A call that only claims to be
    forwarded is refused by the handler at once; where the handler does not check, the claim changes nothing.
    """
    return None if _is_forwarded(call, method) else call.account


def _is_forwarded(call: ServedCall, method: Method) -> bool:
    return not isinstance(method, DuplexMethod) and method.checks_forward_token and call.forwarded is not None


@contextmanager
def _as_query_errors() -> Iterator[None]:
    try:
        yield
    except (Unauthenticated, Forbidden, RateExceeded) as error:
        raise _query_error(error) from None


def _query_error(error: Unauthenticated | Forbidden | RateExceeded) -> QueryError:
    if isinstance(error, RateExceeded):
        return LimitExceeded(str(error), error.limit, error.retry_after_ms)
    return NotAuthenticated(str(error)) if isinstance(error, Unauthenticated) else NotAllowed(str(error))


def as_query_error(error: Exception, path: str, request_id: str = "") -> QueryError:
    """Return the error that the client gets. Our own mistakes are logged: where they were, not with which values."""
    if isinstance(error, QueryError):
        return error
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    extra = {"method": path, "error": type(error).__name__, "stack": where}
    _logger.error("a handler failed", extra={**extra, "request_id": request_id} if request_id else extra)
    return Internal()


def retry_after(error: QueryError) -> Fields:
    """Return the field that says when to try again, in whole seconds, or with what; nothing where that is no use."""
    if isinstance(error, NotAuthenticated):
        return ((b"www-authenticate", b"Bearer"),)
    if error.retry_after_ms is None:
        return ()
    return ((b"retry-after", b"%d" % max(1, -(-error.retry_after_ms // 1000))),)


def checked_encoding(encoding: bytes | None) -> bytes | None:
    """Return the compression that a request names, None for none; raise `NotServed` at one that is not known here."""
    if encoding in (None, b"", b"identity"):
        return None
    if encoding == GZIP:
        return encoding
    raise NotServed("the request's compression is not known here; use gzip or none")


def unzipped(data: bytes, bytes_max: int) -> bytes:
    """Return what gzip packed; raise `RequestTooLarge` where it is longer, without unpacking the rest.

    Up to a message's length anything may be packed: unpacking that takes less time than receiving it.
    """
    bytes_max = min(bytes_max, max(MESSAGE_BYTES_MAX, GZIP_RATIO_MAX * len(data)))
    inflater = zlib.decompressobj(_GZIP_WINDOW)
    try:
        plain = inflater.decompress(data, bytes_max + 1)
    except zlib.error:
        raise InvalidField("", "the request says gzip and is not; check the client") from None
    if len(plain) > bytes_max:
        raise RequestTooLarge(bytes_max)
    if not inflater.eof:
        raise InvalidField("", "the request's gzip ends early; check the client")
    return plain
