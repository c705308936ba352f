"""The gRPC door: grpcio's asyncio server over a table of methods, raw bytes both ways."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NoReturn

import grpc
from grpc import aio

from gateway.query.call import Methods, StreamMethod, UnaryMethod
from gateway.query.errors import Overloaded, QueryError, ShuttingDown, code_of, status_of
from gateway.server.door import (
    CALLS_MAX,
    CONNECTION_STREAMS_MAX,
    REQUEST_BYTES_MAX,
    STREAMS_MAX,
    as_query_error,
    unknown_method,
)

STATUS_DETAILS = "grpc-status-details-bin"
RETRY_PUSHBACK = "grpc-retry-pushback-ms"
TIME_LEFT_MAX_S = 1e9  # core says 9.2e18 for a call without a deadline

SERVER_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
    ("grpc.max_concurrent_streams", CONNECTION_STREAMS_MAX),
    ("grpc.keepalive_time_ms", 30_000),  # finds clients that went away without a word
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 20_000),  # clients may ping each 30 s
    ("grpc.keepalive_permit_without_calls", 1),
)

_CODES = {code.value[0]: code for code in grpc.StatusCode}

Context = aio.ServicerContext[bytes, bytes]
Trailer = tuple[tuple[str, str], ...]


class GrpcCall:
    """A gRPC call as its handler sees it."""

    __slots__ = ("_context", "_door", "_max_timeout_s", "_started", "_timeout_s", "trailer")

    def __init__(
        self, context: Context, door: "GrpcDoor", timeout_s: float | None, max_timeout_s: float | None
    ) -> None:
        self._context = context
        self._door = door
        self._timeout_s = timeout_s
        self._max_timeout_s = max_timeout_s
        self._started = time.monotonic()
        self.trailer: Trailer = ()

    def time_left_s(self) -> float | None:
        """Return the seconds left, of the client's deadline or of ours."""
        left_s: float | None = self._context.time_remaining()
        if left_s is None or left_s > TIME_LEFT_MAX_S:
            left_s, limit_s = None, self._timeout_s
        else:
            limit_s = self._max_timeout_s
        if limit_s is not None:
            ours_s = limit_s - (time.monotonic() - self._started)
            left_s = ours_s if left_s is None else min(left_s, ours_s)
        return None if left_s is None else max(0.0, left_s)

    @property
    def draining(self) -> bool:
        """Return whether the gateway is going away."""
        return self._door.draining

    def set_trailer(self, trailer: Trailer) -> None:
        """Send these names and values after the answer."""
        self.trailer = trailer


class GrpcDoor(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Serves methods on one address. One event loop.

    `shared_port`: other processes may listen on the same port, and share its connections.
    `others` serve what is no method: reflection.
    """

    def __init__(
        self,
        methods: Methods,
        address: str,
        *,
        shared_port: bool = False,
        others: Sequence["grpc.GenericRpcHandler[Any, Any]"] = (),
    ) -> None:
        self._methods = methods
        self._handlers = {path: self._rpc_handler(path, method) for path, method in methods.items()}
        self._address = address
        self._shared_port = shared_port
        self._others = others
        self._server: aio.Server | None = None
        self._calls = 0
        self._streams = 0
        self.draining = False
        self.port = 0

    async def start(self) -> None:
        """Listen; raise `OSError` where the address cannot be had."""
        options = [*SERVER_OPTIONS, ("grpc.so_reuseport", int(self._shared_port))]
        self._server = aio.server(options=options)
        self._server.add_generic_rpc_handlers((*self._others, self))
        try:
            self.port = self._server.add_insecure_port(self._address)
        except RuntimeError:
            self.port = 0
        if self.port == 0:
            raise OSError(f'cannot listen on "{self._address}"; is another program there?')
        await self._server.start()

    def drain(self) -> None:
        """Tell streams to end."""
        self.draining = True

    async def stop(self, grace_s: float) -> None:
        """Stop listening, wait for the calls at work, at most `grace_s`, then end them."""
        self.draining = True
        if self._server is not None:
            await self._server.stop(grace_s)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any]":
        """Return the handler of a path, never none: unknown ones get an answer with details, too."""
        path = handler_call_details.method
        return self._handlers.get(path) or self._unknown(path)

    def _rpc_handler(self, path: str, method: UnaryMethod | StreamMethod) -> "grpc.RpcMethodHandler[Any, Any]":
        if isinstance(method, UnaryMethod):
            return grpc.unary_unary_rpc_method_handler(self._unary(path, method))
        return grpc.unary_stream_rpc_method_handler(self._stream(path, method))

    def _unary(self, path: str, method: UnaryMethod) -> Callable[[bytes, Context], Awaitable[bytes]]:
        handler, default_s, max_s = method.handler, method.default_timeout_s, method.max_timeout_s

        async def serve(data: bytes, context: Context) -> bytes:
            call = GrpcCall(context, self, default_s, max_s)
            self._calls += 1
            try:
                if self._calls > CALLS_MAX:
                    raise Overloaded(f"more than {CALLS_MAX} calls are at work; back off")
                answer = await handler(data, call)
            except Exception as error:  # noqa: BLE001  whatever it is, the client gets a status with details
                await _abort(context, as_query_error(error, path), call.trailer)
            finally:
                self._calls -= 1
            context.set_trailing_metadata(call.trailer)
            return answer

        return serve

    def _stream(self, path: str, method: StreamMethod) -> Callable[[bytes, Context], AsyncIterator[bytes]]:
        handler = method.handler

        async def serve(data: bytes, context: Context) -> AsyncIterator[bytes]:
            call = GrpcCall(context, self, None, None)
            self._streams += 1
            try:
                if self._streams > STREAMS_MAX:
                    raise Overloaded(f"more than {STREAMS_MAX} streams are open; back off")
                if self.draining:
                    raise ShuttingDown
                async for message in handler(data, call):
                    yield message
            except Exception as error:  # noqa: BLE001  as above
                await _abort(context, as_query_error(error, path), call.trailer)
            finally:
                self._streams -= 1

        return serve

    def _unknown(self, path: str) -> "grpc.RpcMethodHandler[Any, Any]":
        async def refuse(_requests: AsyncIterator[bytes], context: Context) -> None:
            await _abort(context, unknown_method(path, self._methods), ())

        return grpc.stream_stream_rpc_method_handler(refuse)


async def _abort(context: Context, error: QueryError, trailer: Trailer) -> NoReturn:
    """End the call with the error's status and details."""
    metadata: list[tuple[str, str | bytes]] = [*trailer, (STATUS_DETAILS, status_of(error).SerializeToString())]
    code = _CODES[code_of(error)]
    if code is grpc.StatusCode.UNAVAILABLE and error.retry_after_ms is not None:
        metadata.append((RETRY_PUSHBACK, str(error.retry_after_ms)))
    await context.abort(code, error.text, tuple(metadata))
    raise AssertionError("abort returned")
