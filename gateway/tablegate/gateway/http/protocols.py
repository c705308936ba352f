"""The protocols beside gRPC, put together: gRPC-Web, Connect, REST, and the pages that describe them."""

from collections.abc import Callable, Sequence

from google.protobuf import descriptor_pool
from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.http.cors import Cors
from tablegate.gateway.http.exchange import Exchange
from tablegate.gateway.http.rest.json_codec import JsonCodec
from tablegate.gateway.http.rest.pages import Pages
from tablegate.gateway.http.rest.protocol import RestProtocol
from tablegate.gateway.http.rpc.calls import Calls
from tablegate.gateway.http.rpc.connect import ConnectProtocol
from tablegate.gateway.http.rpc.grpc_web import GrpcWebProtocol
from tablegate.gateway.http.server import WebProtocol
from tablegate.gateway.query.call import Methods


def web_protocols(
    catalogue: Catalogue, *, cors_origins: tuple[str, ...] = (), describe: bool = False
) -> Callable[[Methods, Calls], Sequence[WebProtocol]]:
    """Return the function that makes the protocols for a door; `describe`: with /openapi.json and /docs."""

    def make(methods: Methods, calls: Calls) -> Sequence[WebProtocol]:
        codec = JsonCodec([catalogue.pool, descriptor_pool.Default()])
        protocols: list[WebProtocol] = [
            GrpcWebProtocol(methods, calls),
            ConnectProtocol(methods, calls, codec),
            RestProtocol(catalogue.routes, methods, calls, codec),
        ]
        if describe:
            protocols.append(Pages(catalogue))
        return (CrossOrigin(Cors(cors_origins), protocols),) if cors_origins else protocols

    return make


class CrossOrigin:
    """Protocols that pages of other origins may use."""

    def __init__(self, cors: Cors, protocols: Sequence[WebProtocol]) -> None:
        self._cors = cors
        self._protocols = protocols

    def serve(self, exchange: Exchange) -> bool:
        """Answer a browser's question before its call, or give the exchange to its protocol."""
        if self._cors.preflight(exchange):
            return True
        exchange = self._cors.wrap(exchange)
        return any(protocol.serve(exchange) for protocol in self._protocols)
