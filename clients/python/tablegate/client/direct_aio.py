"""A channel that asks the owner of a key itself, for asyncio."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Self

import grpc
from grpc import aio

from tablegate.client.direct import LOOK_S, PEER_OPTIONS
from tablegate.client.failures import Failure, failure_of
from tablegate.client.owners import PROOF_PATH, PROOF_TIMEOUT_S, WATCH_PATH, Owners, watch_request
from tablegate.client.subscriber import ENDED

OpenOne = Callable[..., aio.Channel]
"""Opens a channel to an endpoint, with more options and interceptors: the deadline is set before these see a call."""


class DirectChannel(aio.Channel):
    """Channels to gateways, which look like one, in the event loop that they are used in."""

    def __init__(self, target: str, open_one: OpenOne) -> None:
        self.owners = Owners()
        self._anywhere = open_one(target, interceptors=[_Direct(self)])
        self._open_one = open_one
        self._peers: dict[str, aio.Channel] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._proving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """End all calls, after so many seconds."""
        tasks = [task for task in (self._proving, *self._watches.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(channel.close(grace) for channel in (self._anywhere, *self._peers.values())))

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return the state of the connection to the target."""
        return self._anywhere.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Return when it is another one."""
        await self._anywhere.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Return when the target is connected."""
        anywhere: Any = self._anywhere
        await anywhere.channel_ready()

    def unary_unary(self, method: str, *more: Any, **named: Any) -> Any:
        """Return a method's callable."""
        return self._anywhere.unary_unary(method, *more, **named)

    def unary_stream(self, method: str, *more: Any, **named: Any) -> Any:
        """Return a method's callable."""
        return self._anywhere.unary_stream(method, *more, **named)

    def stream_unary(self, method: str, *more: Any, **named: Any) -> Any:
        """Return a method's callable."""
        return self._anywhere.stream_unary(method, *more, **named)

    def stream_stream(self, method: str, *more: Any, **named: Any) -> Any:
        """Return a method's callable."""
        return self._anywhere.stream_stream(method, *more, **named)

    def peer(self, endpoint: str) -> aio.Channel:
        """Return the channel to a gateway."""
        if endpoint not in self._peers:
            self._peers[endpoint] = self._open_one(endpoint, PEER_OPTIONS)
        return self._peers[endpoint]

    # In the background.

    def watch(self, table: str) -> None:
        """See to it that a table is watched."""
        if table not in self._watches:
            self._watches[table] = asyncio.create_task(self._watch(table))
        if self._proving is None:
            self._proving = asyncio.create_task(self._prove())

    async def _watch(self, table: str) -> None:
        while True:
            endpoint = self.owners.watched_at(table)
            failure = await self._watch_at(self.peer(endpoint) if endpoint else self._anywhere, table)
            await asyncio.sleep(self.owners.lost(table, failure))

    async def _watch_at(self, channel: aio.Channel, table: str) -> Failure:
        """Take in where a table is until the stream ends; return why it did."""
        stream: Any = channel.unary_stream(WATCH_PATH, None, None)(watch_request(table))
        try:
            async for response in stream:
                self.owners.take(table, response)
        except aio.AioRpcError as error:
            return failure_of(error)
        finally:
            stream.cancel()
        return ENDED

    async def _prove(self) -> None:
        """Ask gateways for a sign of life; let go of those that are none of the cluster any more."""
        asked: set[asyncio.Task[None]] = set()
        while True:
            for endpoint in self.owners.unproven():
                task = asyncio.create_task(self._ask(endpoint))
                asked.add(task)
                task.add_done_callback(asked.discard)
            named = self.owners.named
            for endpoint in [each for each in self._peers if each not in named]:
                del self._peers[endpoint]  # it ends with the last call that uses it
            await asyncio.sleep(LOOK_S)

    async def _ask(self, endpoint: str) -> None:
        call: Any = self.peer(endpoint).unary_unary(PROOF_PATH, None, None)
        try:
            await call(b"", timeout=PROOF_TIMEOUT_S)
        except aio.AioRpcError:
            self.owners.proven(endpoint, answers=False)
        else:
            self.owners.proven(endpoint, answers=True)


class _Direct(aio.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    """Sends unary calls to the owners of their keys first."""

    def __init__(self, direct: DirectChannel) -> None:
        self._direct = direct

    async def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """Return the call that answered, or the last one."""
        owners, path = self._direct.owners, _text(details.method)
        route = owners.route(path, request)
        if route is None:
            return await continuation(details, request)
        self._direct.watch(route.table)
        end_s = time.monotonic() + details.timeout
        for endpoint in owners.endpoints(route, request):
            channel = self._direct.peer(endpoint)
            call = channel.unary_unary(path, type(request).SerializeToString, route.response_class.FromString)(
                request,
                timeout=max(0.0, end_s - time.monotonic()) / 2,
                metadata=details.metadata,
                credentials=details.credentials,
                wait_for_ready=details.wait_for_ready,
            )
            try:
                await call
            except aio.AioRpcError as error:
                if not owners.passes_over(endpoint, failure_of(error)):
                    return call
            else:
                return call
        return await continuation(details._replace(timeout=max(0.0, end_s - time.monotonic())), request)


def _text(method: str | bytes) -> str:
    return method.decode() if isinstance(method, bytes) else method
