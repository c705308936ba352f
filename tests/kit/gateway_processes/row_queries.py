"""The Get and the Scan that are generated for a row alone, asked of a gateway."""

from collections.abc import Iterable
from typing import Any

from tablegate.gateway.contract.catalogue import GetQuery, Query, ScanQuery
from tests.kit.gateway_processes.gateway import GatewayProcess


class RowQueries:
    """Asks a gateway for rows of one table, whose queries are given. Fields are those of the requests."""

    def __init__(self, gateway: GatewayProcess, queries: Iterable[Query]) -> None:
        found = list(queries)
        self._gateway = gateway
        self._get = next(query for query in found if isinstance(query, GetQuery))
        self._scan = next(query for query in found if isinstance(query, ScanQuery))

    def get(self, **fields: Any) -> Any:
        """Return a row; raise grpc's `RpcError`, also where there is none."""
        query, channel = self._get, self._gateway.channel
        assert channel is not None
        call: Any = channel.unary_unary(query.path, None, query.response_class.FromString)
        return call(query.request_class(**fields).SerializeToString(), timeout=5).row

    def rows(self, **fields: Any) -> list[Any]:
        """Return the rows that pass filters."""
        query, channel = self._scan, self._gateway.channel
        assert channel is not None
        call: Any = channel.unary_stream(query.path, None, query.response_class.FromString)
        request = query.request_class(**fields).SerializeToString()
        return [row for part in call(request, timeout=30) for row in part.rows]
