"""A channel that asks the owner of a key itself, for threads."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import grpc

from tablegate.client.channels import DEADLINE_S, Options, open_channel
from tablegate.client.failures import Failure, failure_of
from tablegate.client.owners import PROOF_PATH, PROOF_TIMEOUT_S, WATCH_PATH, Owners, watch_request
from tablegate.client.subscriber import ENDED

LOOK_S = 0.25  # how often it is looked whom to ask for a sign of life
PEER_OPTIONS: Options = (("grpc.enable_retries", 0),)  # another gateway is asked at once instead


def open_direct_channel(
    target: str,
    *,
    credentials: grpc.ChannelCredentials | None = None,
    deadline_s: float = DEADLINE_S,
    options: Options = (),
) -> "DirectChannel":
    """Return a channel to a cluster of gateways; the arguments are those of `open_channel`.

    `target` is any of its gateways, or a name for several. A unary call whose request says the key of a row, or the
    columns that choose the partition, goes to the gateway that owns it, once that is known: so it is spared the detour.
    Where that one does not answer, in half of the time left, a standby is asked, then whoever `target` is. All other
    calls, and those made by `future`, go to `target`. The gateways must be reachable where they say that they are; else
    all goes to `target`, too.
    """

    def open_one(endpoint: str, more: Options = ()) -> grpc.Channel:
        return open_channel(endpoint, credentials=credentials, deadline_s=deadline_s, options=(*options, *more))

    return DirectChannel(target, open_one, deadline_s)


class DirectChannel(grpc.Channel):
    """Channels to gateways, which look like one. Close it, or leave its `with`."""

    def __init__(self, target: str, open_one: Callable[..., grpc.Channel], deadline_s: float) -> None:
        self.owners = Owners()
        self.deadline_s = deadline_s
        self.anywhere = open_one(target)
        self._open_one = open_one
        self._peers: dict[str, grpc.Channel] = {}
        self._watched: dict[str, Any] = {}  # tables, and the stream of each
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all calls."""
        with self._lock:
            self._closed.set()
            for stream in self._watched.values():
                if stream is not None:
                    stream.cancel()
            for peer in self._peers.values():
                peer.close()
        self.anywhere.close()

    def subscribe(self, callback: Any, try_to_connect: bool = False) -> None:
        """Call `callback` with the states of the connection to `target`."""
        self.anywhere.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Any) -> None:
        """Call it no more."""
        self.anywhere.unsubscribe(callback)

    def unary_unary(
        self,
        method: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        _registered_method: bool | None = False,
    ) -> Any:
        """Return a method's callable. It is never a registered one: gRPC crashes where such a channel is closed."""
        return _DirectUnary(
            self, method, lambda channel: channel.unary_unary(method, request_serializer, response_deserializer)
        )

    def unary_stream(self, method: str, *more: Any, **named: Any) -> Any:
        """Return a method's callable."""
        return self.anywhere.unary_stream(method, *more, **named)

    def stream_unary(self, method: str, *more: Any, **named: Any) -> Any:
        """Return a method's callable."""
        return self.anywhere.stream_unary(method, *more, **named)

    def stream_stream(self, method: str, *more: Any, **named: Any) -> Any:
        """Return a method's callable."""
        return self.anywhere.stream_stream(method, *more, **named)

    def peer(self, endpoint: str) -> grpc.Channel:
        """Return the channel to a gateway."""
        channel = self._peers.get(endpoint)
        if channel is None:
            with self._lock:
                channel = self._peers.get(endpoint)
                if self._closed.is_set():
                    raise ValueError("the channel is closed")
                if channel is None:
                    channel = self._peers[endpoint] = self._open_one(endpoint, PEER_OPTIONS)
        return channel

    # In the background.

    def watch(self, table: str) -> None:
        """See to it that a table is watched."""
        if table in self._watched:
            return
        with self._lock:
            if table in self._watched or self._closed.is_set():
                return
            is_first = not self._watched
            self._watched[table] = None
        threading.Thread(target=self._watch, args=(table,), name=f"tablegate-watch-{table}", daemon=True).start()
        if is_first:
            threading.Thread(target=self._prove, name="tablegate-prove", daemon=True).start()

    def _watch(self, table: str) -> None:
        while not self._closed.is_set():
            endpoint = self.owners.watched_at(table)
            failure = self._watch_at(self.peer(endpoint) if endpoint else self.anywhere, table)
            self._closed.wait(self.owners.lost(table, failure))

    def _watch_at(self, channel: grpc.Channel, table: str) -> Failure:
        """Take in where a table is until the stream ends; return why it did."""
        try:
            with self._lock:
                if self._closed.is_set():
                    return Failure("CANCELLED", "the channel is closed")
                stream: Any = channel.unary_stream(WATCH_PATH, None, None)(watch_request(table))
                self._watched[table] = stream
            for response in stream:
                self.owners.take(table, response)
        except grpc.RpcError as error:
            return failure_of(error)
        except ValueError as error:  # a channel that was closed
            return Failure("CANCELLED", str(error))
        return ENDED

    def _prove(self) -> None:
        """Ask gateways for a sign of life; let go of those that are none of the cluster any more."""
        while not self._closed.wait(LOOK_S):
            for endpoint in self.owners.unproven():
                self._ask(endpoint)
            named = self.owners.named
            with self._lock:  # its channel ends with the last call that uses it
                for endpoint in [each for each in self._peers if each not in named]:
                    del self._peers[endpoint]

    def _ask(self, endpoint: str) -> None:
        def answered(future: Any) -> None:
            self.owners.proven(endpoint, answers=future.code() is grpc.StatusCode.OK)

        try:
            call: Any = self.peer(endpoint).unary_unary(PROOF_PATH, None, None)
            call.future(b"", timeout=PROOF_TIMEOUT_S).add_done_callback(answered)
        except ValueError:  # a channel that was closed
            return


class _DirectUnary(grpc.UnaryUnaryMultiCallable):  # type: ignore[type-arg]
    """A unary method; `make` makes its callable on a channel."""

    def __init__(self, direct: DirectChannel, path: str, make: Callable[[grpc.Channel], Any]) -> None:
        self._direct = direct
        self._path = path
        self._make = make
        self._anywhere = make(direct.anywhere)

    def __call__(self, request: Any, timeout: float | None = None, *more: Any, **named: Any) -> Any:
        """Return the response; raise `grpc.RpcError`."""
        return self.with_call(request, timeout, *more, **named)[0]

    def future(self, request: Any, timeout: float | None = None, *more: Any, **named: Any) -> Any:
        """Begin the call at whoever the target is."""
        return self._anywhere.future(request, timeout, *more, **named)

    def with_call(self, request: Any, timeout: float | None = None, *more: Any, **named: Any) -> tuple[Any, Any]:
        """Return the response, and the call; raise `grpc.RpcError`."""
        end_s = time.monotonic() + (self._direct.deadline_s if timeout is None else timeout)
        for endpoint in self._endpoints(request):
            left_s = max(0.0, end_s - time.monotonic())
            try:
                answer: tuple[Any, Any] = self._make(self._direct.peer(endpoint)).with_call(
                    request, left_s / 2, *more, **named
                )
                return answer
            except grpc.RpcError as error:
                if not self._direct.owners.passes_over(endpoint, failure_of(error)):
                    raise
        left_s = max(0.0, end_s - time.monotonic())
        whole: tuple[Any, Any] = self._anywhere.with_call(request, left_s, *more, **named)
        return whole

    def _endpoints(self, request: Any) -> Iterator[str]:
        owners = self._direct.owners
        route = owners.route(self._path, request)
        if route is not None:
            self._direct.watch(route.table)
            yield from owners.endpoints(route, request)
