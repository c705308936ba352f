"""The same for asyncio: channel, subscription, live table. All run in the event loop that they are used in."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

import grpc
from grpc import aio

from tablegate.client.channels import (
    DEADLINE_S,
    PEER_OPTIONS,
    WITHOUT_RETRIES,
    Credential,
    Options,
    StreamsApart,
    channel_options,
    with_credential,
    with_deadline,
)
from tablegate.client.failures import failure_of
from tablegate.client.streams_aio import LiveTable, OwnerWatch, Subscription, subscribe

__all__ = ["DirectChannel", "LiveTable", "Subscription", "open_channel", "open_direct_channel", "subscribe"]


def open_channel(
    target: str,
    *,
    credentials: grpc.ChannelCredentials | None = None,
    credential: Credential | None = None,
    deadline_s: float = DEADLINE_S,
    options: Options = (),
) -> aio.Channel:
    """Return a channel to the gateway at `target`, as `tablegate.client.open_channel` does."""
    return _open(target, credentials, options, [_Deadlines(deadline_s), *_showing(credential)])


def open_direct_channel(
    target: str,
    *,
    credentials: grpc.ChannelCredentials | None = None,
    credential: Credential | None = None,
    deadline_s: float = DEADLINE_S,
    options: Options = (),
) -> "DirectChannel":
    """Return a channel to a cluster of gateways, as `tablegate.client.open_direct_channel` does."""

    def open_one(endpoint: str, more: Options = (), interceptors: Sequence[Any] = ()) -> aio.Channel:
        # The credential comes last: what goes to an owner instead is shown it on its own channel.
        shown = [_Deadlines(deadline_s), *interceptors, *_showing(credential)]
        return _open(endpoint, credentials, (*options, *more), shown)

    direct = _Direct()
    direct.watch = OwnerWatch(
        open_one(target, interceptors=[direct]), lambda endpoint: open_one(endpoint, PEER_OPTIONS)
    )
    return DirectChannel(direct.watch)


def _open(
    target: str, credentials: grpc.ChannelCredentials | None, options: Options, interceptors: Sequence[Any]
) -> aio.Channel:
    def open_one(more: Options = ()) -> aio.Channel:
        with_more = channel_options((*options, *more))
        if credentials is None:
            return aio.insecure_channel(target, with_more, interceptors=interceptors)
        return aio.secure_channel(target, credentials, with_more, interceptors=interceptors)

    return _SplitChannel(open_one(), open_one(WITHOUT_RETRIES))


def _showing(credential: Credential | None) -> Sequence[Any]:
    return () if credential is None else (_ShownToUnary(credential), _ShownToStreams(credential))


class _ShownToUnary(aio.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    """Shows a credential with each unary call."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    async def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return await continuation(_with_credential(details, self._credential), request)


class _ShownToStreams(aio.UnaryStreamClientInterceptor):  # type: ignore[type-arg]
    """Shows a credential with each stream. One class for both gRPC would take for unary calls alone."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    async def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return await continuation(_with_credential(details, self._credential), request)


def _with_credential(details: Any, credential: Credential) -> Any:
    shown = with_credential(details, credential)
    return shown._replace(metadata=aio.Metadata(*shown.metadata))


class _Deadlines(aio.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    """Gives unary calls a deadline."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s

    async def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return await continuation(with_deadline(details, self._deadline_s), request)


class _SplitChannel(StreamsApart, aio.Channel):
    """Unary calls on one channel, and streams on another, where gRPC does not try again (`channels` says why)."""

    def __init__(self, target: aio.Channel, streams: aio.Channel) -> None:
        self._target = target
        self._streams = streams

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """End all calls, after so many seconds."""
        await asyncio.gather(self._target.close(grace), self._streams.close(grace))

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return the state of the connection to the target."""
        return self._target.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Return when it is another one."""
        await self._target.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Return when the target is connected."""
        target: Any = self._target
        await target.channel_ready()

    def unary_unary(self, method: str, *more: Any, **named: Any) -> Any:
        """Return a method's callable."""
        return self._target.unary_unary(method, *more, **named)


class DirectChannel(_SplitChannel):
    """Channels to several gateways behind one, in the event loop that they are used in."""

    def __init__(self, watch: OwnerWatch) -> None:
        super().__init__(watch.target, watch.target)
        self.owners = watch.owners
        self._watch = watch

    async def close(self, grace: float | None = None) -> None:
        """End all calls, after so many seconds."""
        await self._watch.close()
        await asyncio.gather(*(channel.close(grace) for channel in (self._target, *self._watch.peers)))


class _Direct(aio.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    """Sends unary calls to the owners of their keys first. A deadline is set before it sees a call."""

    watch: OwnerWatch

    async def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """Return the call that answered, or the last one."""
        owners, path = self.watch.owners, _text(details.method)
        route = owners.route(path, request)
        if route is None:
            return await continuation(details, request)
        self.watch.watch(route.table)
        end_s = time.monotonic() + details.timeout
        for endpoint in owners.endpoints(route, request):
            channel: Any = self.watch.peer(endpoint)
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
                if not owners.asks_next(endpoint, failure_of(error)):
                    return call
            else:
                return call
        return await continuation(details._replace(timeout=max(0.0, end_s - time.monotonic())), request)


def _text(method: str | bytes) -> str:
    return method.decode() if isinstance(method, bytes) else method
