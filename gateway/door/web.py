"""The protocols beside gRPC, put together: gRPC-Web, Connect, REST, and the pages that describe them."""

from collections.abc import Callable, Sequence

from google.protobuf import descriptor_pool

from gateway.contract.catalogue import Catalogue
from gateway.door.calls import Calls
from gateway.door.connect import ConnectProtocol
from gateway.door.cors import Cors
from gateway.door.door import WebProtocol
from gateway.door.exchange import Exchange
from gateway.door.grpc_web import GrpcWebProtocol
from gateway.door.json_codec import JsonCodec
from gateway.door.pages import Pages
from gateway.door.rest import RestProtocol
from gateway.query.call import Methods


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
