"""What runs over streams, for asyncio: subscriptions, live tables, and the watch over the owners of keys.

`streams.py` has the same for threads, and is generated from this file by `clients/python/generate.py`: `async` and
`await` go, `concurrency_aio` becomes `concurrency`. All that decides something does no I/O and exists once:
`subscriber.py`, `rows.py`, `owners.py`.

Decision: docs/decisions/0056-the-client-for-threads-is-generated.md
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

import grpc
from google.protobuf.message import Message

from tablegate.client.concurrency_aio import (
    STARTS_AT_ONCE,
    Channel,
    Condition,
    Lock,
    MessageReader,
    StopSignal,
    Task,
    begin_call,
    finish,
)
from tablegate.client.events import Disconnected, Event, Key
from tablegate.client.failures import Failure, failure_of
from tablegate.client.owners import HEALTH_PATH, HEALTH_TIMEOUT_S, WATCH_PATH, Owners, watch_request
from tablegate.client.rows import Rows
from tablegate.client.subscriber import ENDED, Subscriber, silent
from tablegate.client.tokens import TokenMemory, TokenStore

if TYPE_CHECKING:
    import pyarrow

CHECK_EVERY_S = 0.25  # how often the watch looks for gateways whose health is to be checked

Method = Callable[..., Any]
"""A streaming method of a generated stub, as `stub.SubscribeRatings`."""

OnChange = Callable[[Key, Any], None]
"""Gets each change: the key, and its row; None where it has none any more."""


class Subscription(AsyncIterator[Event]):
    """The events of one subscription, for one task.

    Leaving its `async with` ends it, and so does `close`. Raises `SubscribeError` where the gateway refuses it, and
    what the token store raises.
    """

    def __init__(self, method: Method, subscriber: Subscriber, tokens: TokenStore) -> None:
        self._method = method
        self._subscriber = subscriber
        self._tokens = tokens
        self._closed = StopSignal()
        self._call: Any = None
        self._events = self._run()

    async def __anext__(self) -> Event:
        return await anext(self._events)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End it: then there are no more events."""
        self._cancel()
        await finish(self._events)

    def _cancel(self) -> None:
        """Cancel its call, and open no other one."""
        self._closed.set()
        if self._call is not None:
            self._call.cancel()

    async def _run(self) -> AsyncGenerator[Event, None]:
        reader = MessageReader(self._subscriber.silence_s)
        try:
            while not self._closed.is_set():
                self._call = call = self._method(self._subscriber.request())
                # `close` may have come between: it has not seen this call, or cancels it as well.
                if self._closed.is_set():
                    call.cancel()
                reader.begin(call)
                try:
                    while not isinstance(received := await self._receive(reader), Failure):
                        for event in self._subscriber.receive(received):
                            yield event
                        # Here the consumer has asked for the next event, and so is done with all before.
                        self._tokens.save(self._subscriber.token)
                finally:
                    call.cancel()
                if self._closed.is_set():
                    return
                disconnected = self._subscriber.disconnected(received)
                yield disconnected
                await self._closed.wait(disconnected.retry_after_s)
        finally:
            reader.stop()

    async def _receive(self, reader: MessageReader) -> Message | Failure:
        """Return the next message, or why there is none."""
        try:
            message: Message | None = await reader.read()
        except TimeoutError:
            return silent(self._subscriber.silence_s)
        except grpc.RpcError as error:
            return failure_of(error)
        return ENDED if message is None else message


def subscribe(
    method: Method, request: Message, *, token_store: TokenStore | None = None, restart: bool = False
) -> Subscription:
    """Return the events of a Subscribe, over as many streams as it takes.

    A stream that breaks (UNAVAILABLE, CANCELLED, a lost connection, three heartbeats that did not come) is opened again
    where it was, after a pause that grows, or the one that the gateway asks for.

    `token_store` has the token to continue from. It saves each newer token once the consumer has all events before it,
    which it shows by asking for the next one. Without it the request's own token counts, if it has one. `restart`:
    a token that the gateway refuses begins with a Reset and a new snapshot; otherwise `ResumeTokenRefused` is raised.
    Raise `ContractMismatch` where `request` is not a Subscribe's.
    """
    tokens = token_store or TokenMemory()
    return Subscription(method, Subscriber(request, token=tokens.load(), restarts=restart), tokens)


class LiveTable(Rows):
    """A mapping from key to row that follows a Subscribe, in a task of its own.

    For threads it starts when it is made; for asyncio it runs inside of its `async with`. `on_change` is called in that
    task, after the mapping has the change. What it raises ends the copy, and so does a `SubscribeError`: then
    `wait_current` raises it, `is_current` is false, and the rows stay as they were. Raise `ContractMismatch` where
    `request` is not a Subscribe's.
    """

    def __init__(self, method: Method, request: Message, *, on_change: OnChange | None = None) -> None:
        super().__init__()
        self._on_change = on_change
        # Its rows are here alone: a token that is refused costs a snapshot, and nothing that nobody could tell.
        self._subscription = subscribe(method, request, restart=True)
        self._changed = Condition()  # whether it is current, or has ended
        self._has_ended = False
        self._error: BaseException | None = None
        self._trouble = ""
        self._task: Task | None = None
        if STARTS_AT_ONCE:
            self._start()

    def _start(self) -> None:
        self._task = Task(self._run, name="tablegate-live-table")

    async def __aenter__(self) -> Self:
        if self._task is None:
            self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End it; the rows stay as they were. `on_change` may call it, and does not wait for the end then."""
        self._subscription._cancel()
        if self._task is not None:
            self._task.cancel()
            await self._task.join()

    @property
    def is_current(self) -> bool:
        """Whether the stream is up, and the copy was complete as of `as_of`."""
        return super().is_current and not self._has_ended

    async def wait_current(self, timeout_s: float | None = None) -> None:
        """Return when the copy is current.

        Raise `TimeoutError` after `timeout_s`, what ended the copy where something did, and `RuntimeError` once it is
        closed.
        """
        assert self._task is not None, "it has not started: wait inside of `async with`"
        async with self._changed:
            if not await self._changed.wait_until(lambda: self.is_current or self._has_ended, timeout_s):
                raise TimeoutError(f"the copy is not current after {timeout_s:g} s{self._trouble}")
        if self._error is not None:
            raise self._error
        if self._has_ended:
            raise RuntimeError("the live table is closed")

    def to_arrow(self) -> "pyarrow.Table":
        """Return the rows of one moment, not before `as_of`, as a table of Arrow: `arrow_schema` says its columns.

        It needs `tablegate-client[arrow]`, and takes some microseconds a row, in the caller's thread. Raise
        `ImportError` without that, and `RuntimeError` before the first complete snapshot.
        """
        try:
            from tablegate.client.arrow import arrow_table
        except ImportError as error:
            raise ImportError(f"to_arrow needs an extra ({error}): pip install 'tablegate-client[arrow]'") from None
        row = self._subscription._subscriber.row_class
        if row is None or self.as_of is None:
            raise RuntimeError("the live table has no complete snapshot yet: call wait_current before to_arrow")
        return arrow_table(self.values(), row)

    async def _run(self) -> None:
        try:
            async with self._subscription:
                async for event in self._subscription:
                    await self._follow(event)
        except Exception as error:  # noqa: BLE001 - `wait_current` raises it
            self._error = error
        finally:
            async with self._changed:
                self._has_ended = True
                self._changed.notify_all()

    async def _follow(self, event: Event) -> None:
        changes = self.apply(event)
        if isinstance(event, Disconnected):
            self._trouble = f": {event.code}: {event.text}"
        elif self.is_current:
            self._trouble = ""
            async with self._changed:
                self._changed.notify_all()
        if self._on_change is not None:
            for key, row in changes:
                self._on_change(key, row)


class OwnerWatch:
    """Keeps `Owners` up to date for a direct channel, in the background, and keeps a channel to each gateway.

    It watches the tables that calls have asked for, at any gateway that answers, and checks the health of gateways that
    have not answered yet. `target` is the channel that calls for unknown keys take, too.
    """

    def __init__(self, target: Channel, open_peer: Callable[[str], Channel]) -> None:
        self.owners = Owners()
        self.target = target
        self._open_peer = open_peer
        self._peers: dict[str, Channel] = {}
        self._watched: dict[str, Any] = {}  # tables, and the stream of each; None before it has one
        self._tasks: list[Task] = []
        self._lock = Lock()
        self._closed = StopSignal()

    async def close(self) -> None:
        """End the watch; the channels stay open."""
        with self._lock:
            self._closed.set()
            for stream in self._watched.values():
                if stream is not None:
                    stream.cancel()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            await task.join()

    @property
    def peers(self) -> Iterable[Channel]:
        """The channels to gateways."""
        return list(self._peers.values())

    def peer(self, endpoint: str) -> Channel:
        """Return the channel to a gateway; raise `ValueError` once this is closed."""
        channel = self._peers.get(endpoint)
        if channel is None:
            with self._lock:
                channel = self._peers.get(endpoint)
                if self._closed.is_set():
                    raise ValueError("the channel is closed")
                if channel is None:
                    channel = self._peers[endpoint] = self._open_peer(endpoint)
        return channel

    def watch(self, table: str) -> None:
        """Watch a table from now on."""
        if table in self._watched:
            return
        with self._lock:
            if table in self._watched or self._closed.is_set():
                return
            is_first = not self._watched
            self._watched[table] = None
            self._tasks.append(Task(self._watch, table, name=f"tablegate-watch-{table}"))
            if is_first:
                self._tasks.append(Task(self._check_health, name="tablegate-health"))

    async def _watch(self, table: str) -> None:
        while not self._closed.is_set():
            failure = await self._watch_once(table)
            await self._closed.wait(self.owners.watch_ended(table, failure))

    async def _watch_once(self, table: str) -> Failure:
        """Apply what a gateway sends about a table until the stream ends; return why it did."""
        stream: Any = None
        try:
            endpoint = self.owners.watch_endpoint(table)
            channel = self.peer(endpoint) if endpoint else self.target
            # Under the lock, or `close` might not see the stream, and would wait for its end for ever.
            with self._lock:
                if self._closed.is_set():
                    return ENDED
                stream = channel.unary_stream(WATCH_PATH, None, None)(watch_request(table))
                self._watched[table] = stream
            async for response in stream:
                self.owners.apply(table, response)
        except grpc.RpcError as error:
            return failure_of(error)
        except ValueError as error:  # a channel that was closed
            return Failure("CANCELLED", str(error))
        finally:
            if stream is not None:
                stream.cancel()
        return ENDED

    async def _check_health(self) -> None:
        """Check the health of gateways that are to be asked; drop the channels to those that have left the cluster."""
        while not await self._closed.wait(CHECK_EVERY_S):
            for endpoint in self.owners.due_health_checks():
                self._check(endpoint)
            known = self.owners.known
            with self._lock:  # a dropped channel closes with the last call that uses it
                for endpoint in [each for each in self._peers if each not in known]:
                    del self._peers[endpoint]

    def _check(self, endpoint: str) -> None:
        def on_done(answers: bool) -> None:
            self.owners.health_checked(endpoint, answers=answers)

        try:
            begin_call(self.peer(endpoint), HEALTH_PATH, HEALTH_TIMEOUT_S, on_done)
        except ValueError:  # a channel that was closed
            return
