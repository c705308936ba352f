"""The door: every protocol on one port. It takes exchanges from the listener and gives each to its protocol."""

from collections.abc import Callable, Sequence
from typing import Protocol

from tablegate.gateway.http.exchange import TEXT, Exchange, Head
from tablegate.gateway.http.listener import Listener
from tablegate.gateway.http.rest.json_codec import JSON_BYTES_MAX
from tablegate.gateway.http.rpc.calls import Calls, as_query_error
from tablegate.gateway.http.rpc.grpc import CONTENT_TYPE, CONTENT_TYPES, GrpcProtocol
from tablegate.gateway.http.tls import TlsFiles
from tablegate.gateway.query.call import DuplexMethod, Methods

CLOSE_S = 1.0  # for clients to take their last answers

_NOT_FOUND = Head(404, (TEXT,))
_BROKEN = Head(500, (TEXT,))
_NEEDS_HTTP2 = Head(505, (TEXT,))


class WebProtocol(Protocol):
    """A protocol other than gRPC."""

    def serve(self, exchange: Exchange) -> bool:
        """Serve an exchange that is of this protocol; return whether it was."""


class HttpServer:
    """Serves methods on one address. One event loop.

    `shared_port`: other processes may listen on the same port, and share its connections. `web` makes the protocols
    beside gRPC; the first that knows an exchange serves it.
    """

    body_bytes_max = JSON_BYTES_MAX  # the longest of what protocols take

    def __init__(
        self,
        methods: Methods,
        address: str,
        *,
        web: Callable[[Methods, Calls], Sequence[WebProtocol]] = lambda _methods, _calls: (),
        tls: TlsFiles | None = None,
        shared_port: bool = False,
    ) -> None:
        self._calls = Calls()
        self._grpc = GrpcProtocol(methods, self._calls)
        self._duplex = frozenset(
            path.encode("ascii") for path, method in methods.items() if isinstance(method, DuplexMethod)
        )
        self._web = tuple(web(methods, self._calls))
        self._listener = Listener(self, address, tls=tls, shared_port=shared_port)

    @property
    def port(self) -> int:
        """Return the port, once started."""
        return self._listener.port

    async def start(self) -> None:
        """Listen; raise `OSError` where the address cannot be had, `TlsError` where the TLS files are wrong."""
        await self._listener.start()

    def drain(self) -> None:
        """Tell streams to end; calls on open connections are still served."""
        self._calls.drain()

    async def stop(self, grace_s: float) -> None:
        """Stop listening, wait for the calls at work, at most `grace_s`, then end them."""
        self.drain()
        self._listener.drain()
        await self._calls.finish(grace_s)
        await self._listener.stop(min(grace_s, CLOSE_S))

    def streams_body(self, exchange: Exchange) -> bool:
        """Return whether the exchange is a stream each way."""
        return exchange.target in self._duplex and exchange.http2 and _is_grpc(exchange)

    def serve(self, exchange: Exchange) -> None:
        """Give an exchange to its protocol."""
        try:
            if exchange.headers.get(b"content-type") == CONTENT_TYPE or _is_grpc(exchange):
                if exchange.http2:
                    self._grpc.serve(exchange)
                else:
                    exchange.respond(_NEEDS_HTTP2, b"gRPC needs HTTP/2; use it, or send application/grpc-web\n")
                return
            for protocol in self._web:
                if protocol.serve(exchange):
                    return
            exchange.respond(_NOT_FOUND, b"nothing is served under this path\n")
        except Exception as error:  # noqa: BLE001  the connection must go on for its other calls
            as_query_error(error, "of a protocol")
            exchange.respond(_BROKEN, b"the gateway made a mistake; its log has the rest\n")


def _is_grpc(exchange: Exchange) -> bool:
    """Return whether the content type is gRPC's, parameters aside."""
    return exchange.headers.get(b"content-type", b"").partition(b";")[0].rstrip() in CONTENT_TYPES
