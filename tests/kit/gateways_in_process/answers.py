"""What gateways of a cluster answer: rows, tokens and errors."""

from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from tablegate.internal.v1.tokens_pb2 import TOKEN_KIND_CONSISTENCY, Token
from tests.kit.gateways_in_process.cluster import GrpcCluster
from tests.kit.table.filled import SIGNER

ROWS = 300
MARK = "tablegate-forwarded"


def opened(info: Any) -> Token:
    """Return what is inside the token of what was read."""
    return SIGNER.open(info.consistency_token, kind=TOKEN_KIND_CONSISTENCY, table="ratings", generation=None)


def read(info: Any) -> dict[int, int]:
    token = opened(info)
    assert info.HasField("as_of_time")
    return dict(zip(token.partitions or range(len(token.next_offsets)), token.next_offsets, strict=True))


def failure(error: Any) -> tuple[Any, str, list[Any]]:
    """Return code, reason and details of a call's error."""
    status = status_pb2.Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return error.code(), info.reason, list(status.details)


def refused(cluster: GrpcCluster, gateway_id: str, method: str, **more: Any) -> tuple[Any, str, list[Any]]:
    with pytest.raises(grpc.RpcError) as raised:
        cluster.ask(gateway_id, method, **more)
    return failure(raised.value)


def same(answer: Any, other: Any) -> None:
    """Check that two answers are the same, but for the signature of what was read."""
    assert read(answer.read_info) == read(other.read_info)
    for each in (answer, other):
        each.ClearField("read_info")
    assert answer == other
