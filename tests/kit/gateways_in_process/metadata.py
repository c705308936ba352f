"""The gateway's own service, asked by gRPC."""

import json
from collections.abc import Callable
from typing import Any, Self

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from tablegate.gateway.contract.placement import Candidate, ranked
from tablegate.gateway.contract.types import Partition
from tablegate.v1 import status_pb2 as own
from tablegate.v1.status_pb2 import ExplainRequest, ExplainResponse, TableMetadata
from tests.kit.gateways_in_process.cluster import ALONE, GrpcCluster

SERVICE = "/tablegate.v1.GatewayService"
RATINGS_SERVICE = "examples.ratings.v1.RatingsService"
TIMEOUT_S = 20


class Asked:
    """The service of one gateway."""

    def __init__(self, port: int) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def table(self, name: str = "ratings") -> TableMetadata:
        call: Any = self._channel.unary_unary(
            f"{SERVICE}/GetTable", own.GetTableRequest.SerializeToString, own.GetTableResponse.FromString
        )
        table: TableMetadata = call(own.GetTableRequest(table=name), timeout=TIMEOUT_S).table
        return table

    def watch(self, name: str = "ratings") -> Any:
        call: Any = self._channel.unary_stream(
            f"{SERVICE}/WatchTable", own.WatchTableRequest.SerializeToString, own.WatchTableResponse.FromString
        )
        return call(own.WatchTableRequest(table=name), timeout=TIMEOUT_S)

    def explain(self, method: str, request: Any = None) -> ExplainResponse:
        """Explain a request: a dictionary, bytes, or none."""
        asked = ExplainRequest(method=f"{RATINGS_SERVICE}/{method}")
        if isinstance(request, bytes):
            asked.message = request
        elif request is not None:
            asked.json = json.dumps(request)
        return self.explain_raw(asked)

    def explain_raw(self, asked: ExplainRequest) -> ExplainResponse:
        call: Any = self._channel.unary_unary(
            f"{SERVICE}/Explain", ExplainRequest.SerializeToString, ExplainResponse.FromString
        )
        answer: ExplainResponse = call(asked, timeout=TIMEOUT_S)
        return answer


def at(cluster: GrpcCluster, gateway_id: str) -> Asked:
    """Return the service of a gateway of the cluster, or of the one that stands alone."""
    return Asked((cluster.whole if gateway_id == ALONE else cluster[gateway_id]).port)


def _failure(error: Any) -> tuple[str, str, str]:
    status = status_pb2.Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return error.code().name, info.reason, error.details()


def refused(ask: Callable[[], object]) -> tuple[str, str, str]:
    """Return code, reason and text of the error that a question gets."""
    with pytest.raises(grpc.RpcError) as raised:
        ask()
    return _failure(raised.value)


def ranked_ids(partition: int, names: str) -> list[str]:
    """Return the gateways of one-letter names as a partition of the table has them, the owner first."""
    order = ranked("ratings", Partition(partition), [Candidate(name, "") for name in names])
    return [each.gateway_id for each in order]


ROWS = 60
