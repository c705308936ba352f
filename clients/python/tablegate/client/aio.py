"""The same for asyncio: channel, subscription, live table. All run in the event loop that they are used in."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any, Self

import grpc
from google.protobuf.message import Message
from grpc import aio

from tablegate.client.channels import DEADLINE_S, Options, channel_options, with_deadline
from tablegate.client.direct_aio import DirectChannel
from tablegate.client.events import Disconnected, Event
from tablegate.client.failures import Failure, failure_of
from tablegate.client.live_table import OnChange
from tablegate.client.rows import Rows
from tablegate.client.subscriber import ENDED, Subscriber, silent
from tablegate.client.subscription import Method
from tablegate.client.tokens import TokenMemory, TokenStore


def open_channel(
    target: str,
    *,
    credentials: grpc.ChannelCredentials | None = None,
    deadline_s: float = DEADLINE_S,
    options: Options = (),
) -> aio.Channel:
    """Return a channel to the gateway at `target`, as `tablegate.client.open_channel` does."""
    return _open(target, credentials, options, [_Deadlines(deadline_s)])


def open_direct_channel(
    target: str,
    *,
    credentials: grpc.ChannelCredentials | None = None,
    deadline_s: float = DEADLINE_S,
    options: Options = (),
) -> DirectChannel:
    """Return a channel to a cluster of gateways, as `tablegate.client.open_direct_channel` does."""

    def open_one(endpoint: str, more: Options = (), interceptors: Sequence[Any] = ()) -> aio.Channel:
        return _open(endpoint, credentials, (*options, *more), [_Deadlines(deadline_s), *interceptors])

    return DirectChannel(target, open_one)


def _open(
    target: str, credentials: grpc.ChannelCredentials | None, options: Options, interceptors: Sequence[Any]
) -> aio.Channel:
    if credentials is None:
        return aio.insecure_channel(target, channel_options(options), interceptors=interceptors)
    return aio.secure_channel(target, credentials, channel_options(options), interceptors=interceptors)


class _Deadlines(aio.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    """Gives unary calls a deadline."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s

    async def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return await continuation(with_deadline(details, self._deadline_s), request)


class Subscription(AsyncIterator[Event]):
    """The events of one subscription, for one task. Cancelling the task ends it, and so does leaving `async with`.

    Raises `SubscribeError` where the gateway refuses it, and what the token store raises.
    """

    def __init__(self, method: Method, subscriber: Subscriber, tokens: TokenStore) -> None:
        self._method = method
        self._subscriber = subscriber
        self._tokens = tokens
        self._events = self._run()

    async def __anext__(self) -> Event:
        return await anext(self._events)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End it. For the task that takes the events, or after it."""
        await self._events.aclose()

    async def _run(self) -> AsyncGenerator[Event, None]:
        while True:
            call = self._method(self._subscriber.request())
            try:
                while not isinstance(heard := await self._next(call), Failure):
                    for event in self._subscriber.take(heard):
                        yield event
                    self._tokens.save(self._subscriber.token)
            finally:
                call.cancel()
            lost = self._subscriber.lost(heard)
            yield lost
            await asyncio.sleep(lost.retry_after_s)

    async def _next(self, call: Any) -> Message | Failure:
        """Return the next message, or why there is none."""
        try:
            async with asyncio.timeout(self._subscriber.silence_s):
                response: Any = await call.read()
        except TimeoutError:
            return silent(self._subscriber.silence_s)
        except aio.AioRpcError as error:
            return failure_of(error)
        return response if isinstance(response, Message) else ENDED


def subscribe(
    method: Method, request: Message, *, token_store: TokenStore | None = None, restart: bool = False
) -> Subscription:
    """Return the events of a Subscribe, as `tablegate.client.subscribe` does."""
    tokens = token_store or TokenMemory()
    return Subscription(method, Subscriber(request, token=tokens.load(), restarts=restart), tokens)


class LiveTable(Rows):
    """A mapping from key to row that follows a Subscribe, in a task of its own, inside of its `async with`.

    `on_change` is called in that task, after the mapping has the change; what it raises ends the copy, as does a
    `SubscribeError`: `wait_current` raises it then, `is_current` is false, and the rows stay as they were.
    Raise `ContractMismatch` where `request` is not a Subscribe's.
    """

    def __init__(self, method: Method, request: Message, *, on_change: OnChange | None = None) -> None:
        super().__init__()
        self._on_change = on_change
        self._subscription = subscribe(method, request)
        self._task: asyncio.Task[None] | None = None
        self._moved = asyncio.Condition()
        self._trouble = ""

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()  # told by wait_current, to whoever asked

    @property
    def is_current(self) -> bool:
        """Whether the stream is up, and the copy was whole as of `as_of`."""
        return super().is_current and self._task is not None and not self._task.done()

    async def wait_current(self, timeout_s: float | None = None) -> None:
        """Return when the copy is current; raise as the one for threads does."""
        assert self._task is not None, "wait inside of `async with`"
        waiting = asyncio.ensure_future(self._until_current())
        try:
            await asyncio.wait([waiting, self._task], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting
        if not waiting.cancelled():
            return
        if self._task.done():
            if self._task.cancelled():
                raise RuntimeError("the live table is closed")
            self._task.result()
        raise TimeoutError(f"the copy is not current after {timeout_s:g} s{self._trouble}")

    async def _until_current(self) -> None:
        async with self._moved:
            await self._moved.wait_for(lambda: self.is_current)

    async def _run(self) -> None:
        async with self._subscription:
            async for event in self._subscription:
                changes = self.take(event)
                if isinstance(event, Disconnected):
                    self._trouble = f": {event.code}: {event.text}"
                elif self.is_current:
                    self._trouble = ""
                    async with self._moved:
                        self._moved.notify_all()
                if self._on_change is not None:
                    for key, row in changes:
                        self._on_change(key, row)
