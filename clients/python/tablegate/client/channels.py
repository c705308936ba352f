"""Channels for threads, with the settings that go with a gateway; `aio.py` has those for asyncio.

A direct channel is a `grpc.Channel` that sends a unary call to the owner of its key. Retries of gRPC's own are off
there (`PEER_OPTIONS`): where the owner does not answer, a standby is asked at once instead of the owner again.

Decision: docs/decisions/0086-streams-are-not-tried-again-by-grpc.md
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import grpc

from tablegate.client.failures import failure_of
from tablegate.client.streams import OwnerWatch

Options = Sequence[tuple[str, Any]]
Credential = str | Callable[[], str]
"""A JWT or an API key; or what returns the one that is good now, asked for each call: it must be quick."""

DEADLINE_S = 5.0  # of a unary call that is given none: the gateway waits for freshness up to half of it
RESPONSE_BYTES_MAX = 64 * 1024 * 1024  # a page has up to 1,000 rows; gRPC's own limit is 4 MiB
KEEPALIVE_MS = 30_000  # a gateway allows one ping every 20 s
KEEPALIVE_TIMEOUT_MS = 10_000
RECONNECT_MIN_MS, RECONNECT_MAX_MS = 200, 2_000  # gRPC's own are a second and two minutes
CONNECT_TIMEOUT_MS = 5_000

WITHOUT_RETRIES: Options = (("grpc.enable_retries", 0),)
PEER_OPTIONS = WITHOUT_RETRIES  # another gateway is asked at once instead

RETRY = {
    # Of its statuses a gateway means UNAVAILABLE alone to be tried again. gRPC itself heeds grpc-retry-pushback-ms.
    "maxAttempts": 4,
    "initialBackoff": "0.1s",
    "maxBackoff": "2s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}


def channel_options(more: Options = ()) -> list[tuple[str, Any]]:
    """Return the options of a channel to a gateway; those of `more` win."""
    options: dict[str, Any] = {
        "grpc.service_config": json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": RETRY}]}),
        "grpc.max_receive_message_length": RESPONSE_BYTES_MAX,
        "grpc.keepalive_time_ms": KEEPALIVE_MS,
        "grpc.keepalive_timeout_ms": KEEPALIVE_TIMEOUT_MS,
        "grpc.initial_reconnect_backoff_ms": RECONNECT_MIN_MS,
        "grpc.min_reconnect_backoff_ms": CONNECT_TIMEOUT_MS,  # that is what it means
        "grpc.max_reconnect_backoff_ms": RECONNECT_MAX_MS,
    }
    return list({**options, **dict(more)}.items())


def open_channel(
    target: str,
    *,
    credentials: grpc.ChannelCredentials | None = None,
    credential: Credential | None = None,
    deadline_s: float = DEADLINE_S,
    options: Options = (),
) -> grpc.Channel:
    """Return a channel to the gateway at `target` (host:port, or what gRPC's resolvers know).

    Of several addresses (`ipv4:10.0.0.1:50051,10.0.0.2:50051`) it uses one, and the next where that is not there.
    Without `credentials` it speaks plaintext; `grpc.ssl_channel_credentials()` makes it TLS. `credential`, a JWT or an
    API key, or a function that returns the newest, shows the gateway who calls: over TLS, or others read it.
    A unary call that UNAVAILABLE ends is tried again, up to four times in all, when the gateway says so; one that is
    given no timeout has `deadline_s`. Streams have no deadline, and are not tried again.
    """

    def open_one(more: Options = ()) -> grpc.Channel:
        if credentials is None:
            return grpc.insecure_channel(target, channel_options((*options, *more)))
        return grpc.secure_channel(target, credentials, channel_options((*options, *more)))

    interceptors: list[Any] = [_Deadlines(deadline_s)]
    if credential is not None:
        interceptors.append(_ShownCredential(credential))
    return grpc.intercept_channel(_SplitChannel(open_one(), open_one(WITHOUT_RETRIES)), *interceptors)


class StreamsApart:
    """What makes streams, on a channel of their own: for the channels here, and for those of asyncio."""

    _streams: Any

    def unary_stream(self, method: str, *more: Any, **named: Any) -> Any:
        """Return a method's callable."""
        return self._streams.unary_stream(method, *more, **named)

    def stream_unary(self, method: str, *more: Any, **named: Any) -> Any:
        """Return a method's callable."""
        return self._streams.stream_unary(method, *more, **named)

    def stream_stream(self, method: str, *more: Any, **named: Any) -> Any:
        """Return a method's callable."""
        return self._streams.stream_stream(method, *more, **named)


class _SplitChannel(StreamsApart, grpc.Channel):
    """Unary calls on one channel, and streams on another, where gRPC does not try again.

    What it tries again may never end: where the last attempt finds no address, the status is there, and the read of the
    next message waits for ever, beyond any `cancel` (grpcio 1.85). Unary calls, whose parts are one batch, all end.
    """

    def __init__(self, target: grpc.Channel, streams: grpc.Channel) -> None:
        self._target = target
        self._streams = streams

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all calls."""
        self._target.close()
        self._streams.close()

    def subscribe(self, callback: Any, try_to_connect: bool = False) -> None:
        """Call `callback` with the states of the connection to `target`."""
        self._target.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Any) -> None:
        """Call it no more."""
        self._target.unsubscribe(callback)

    def unary_unary(self, method: str, *more: Any, **named: Any) -> Any:
        """Return a method's callable."""
        return self._target.unary_unary(method, *more, **named)


class _ShownCredential(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[type-arg]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[type-arg]
):
    """Shows a credential with each call. gRPC's own way to do so asks for TLS, which loopback has not."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(with_credential(client_call_details, self._credential), request)

    intercept_unary_stream = intercept_unary_unary


class _Deadlines(grpc.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    """Gives unary calls a deadline. A service config cannot: it knows no unary methods from streams."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(with_deadline(client_call_details, self._deadline_s), request)


def with_credential(details: Any, credential: Credential) -> Any:
    """Return the details of a call that shows a credential, unless it shows one itself."""
    metadata = list(details.metadata or ())
    if any(name == "authorization" for name, _ in metadata):
        return details
    text = credential if isinstance(credential, str) else credential()
    return details._replace(metadata=[*metadata, ("authorization", f"Bearer {text}")])


def with_deadline(details: Any, deadline_s: float) -> Any:
    """Return the details of a call with this deadline, unless it has one."""
    return details if details.timeout is not None else details._replace(timeout=deadline_s)


def open_direct_channel(
    target: str,
    *,
    credentials: grpc.ChannelCredentials | None = None,
    credential: Credential | None = None,
    deadline_s: float = DEADLINE_S,
    options: Options = (),
) -> "DirectChannel":
    """Return a channel to a cluster of gateways; the arguments are those of `open_channel`.

    `target` is any of its gateways, or a name for several. A unary call whose request says the key of a row, or the
    columns that choose the partition, goes to the gateway that owns it, once that is known, and is spared the detour.
    Where that one does not answer, in half of the time left, a standby is asked, then whoever `target` is. All other
    calls, and those made by `future`, go to `target`. The gateways must be reachable at the addresses that they
    advertise; else everything goes to `target`.
    """

    def open_one(endpoint: str, more: Options = ()) -> grpc.Channel:
        return open_channel(
            endpoint, credentials=credentials, credential=credential, deadline_s=deadline_s, options=(*options, *more)
        )

    return DirectChannel(OwnerWatch(open_one(target), lambda endpoint: open_one(endpoint, PEER_OPTIONS)), deadline_s)


class DirectChannel(_SplitChannel):
    """Channels to several gateways behind one. Close it, or leave its `with`."""

    def __init__(self, watch: OwnerWatch, deadline_s: float) -> None:
        super().__init__(watch.target, watch.target)
        self.owners = watch.owners
        self.deadline_s = deadline_s
        self._watch = watch

    def close(self) -> None:
        """End all calls."""
        self._watch.close()
        for channel in (*self._watch.peers, self._target):
            channel.close()

    def unary_unary(
        self,
        method: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        _registered_method: bool | None = False,
    ) -> Any:
        """Return a method's callable. It is never a registered one: gRPC crashes where such a channel is closed."""
        return _DirectUnary(
            self._watch,
            method,
            lambda channel: channel.unary_unary(method, request_serializer, response_deserializer),
            self.deadline_s,
        )


class _DirectUnary(grpc.UnaryUnaryMultiCallable):  # type: ignore[type-arg]
    """A unary method; `make` makes its callable on a channel."""

    def __init__(self, watch: OwnerWatch, path: str, make: Callable[[grpc.Channel], Any], deadline_s: float) -> None:
        self._watch = watch
        self._path = path
        self._make = make
        self._deadline_s = deadline_s
        self._at_target = make(watch.target)

    def __call__(self, request: Any, timeout: float | None = None, *more: Any, **named: Any) -> Any:
        """Return the response; raise `grpc.RpcError`."""
        return self.with_call(request, timeout, *more, **named)[0]

    def future(self, request: Any, timeout: float | None = None, *more: Any, **named: Any) -> Any:
        """Begin the call at whoever the target is."""
        return self._at_target.future(request, timeout, *more, **named)

    def with_call(self, request: Any, timeout: float | None = None, *more: Any, **named: Any) -> tuple[Any, Any]:
        """Return the response, and the call; raise `grpc.RpcError`."""
        end_s = time.monotonic() + (self._deadline_s if timeout is None else timeout)
        for endpoint in self._endpoints(request):
            left_s = max(0.0, end_s - time.monotonic())
            try:
                answer: tuple[Any, Any] = self._make(self._watch.peer(endpoint)).with_call(
                    request, left_s / 2, *more, **named
                )
                return answer
            except grpc.RpcError as error:
                if not self._watch.owners.asks_next(endpoint, failure_of(error)):
                    raise
        left_s = max(0.0, end_s - time.monotonic())
        at_target: tuple[Any, Any] = self._at_target.with_call(request, left_s, *more, **named)
        return at_target

    def _endpoints(self, request: Any) -> Iterator[str]:
        owners = self._watch.owners
        route = owners.route(self._path, request)
        if route is not None:
            self._watch.watch(route.table)
            yield from owners.endpoints(route, request)
