"""Rows from other gateways over gRPC: each transfer is a call, received in a thread of its own."""

from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from typing_extensions import override

from tablegate.gateway.cluster.assignment import Holder, TransferFailed
from tablegate.gateway.cluster.forward_token import FORWARDED, ForwardToken
from tablegate.gateway.cluster.parts import TRANSFER_PATH, QueuedParts
from tablegate.gateway.cluster.peers import CHANNEL_OPTIONS, Credentials
from tablegate.internal.v1.transfer_pb2 import TransferRequest, TransferResponse

PART_BYTES_MAX = 256 << 20  # one that is a single long row, or has all repairs, is longer than gRPC lets in otherwise


class GrpcTransfers:
    """Asks gateways for rows; without `credentials` in plaintext. `sign` makes the text of a forward token."""

    def __init__(self, sign: Callable[[ForwardToken], str], credentials: Credentials | None = None) -> None:
        self._sign = sign
        self._credentials = credentials

    def ask(self, holder: Holder, request: TransferRequest) -> "GrpcParts":
        """Begin a transfer."""
        token = ForwardToken(request.table, request.generation, (request.partition,), "")
        credentials = None if self._credentials is None else self._credentials.current()
        return GrpcParts(holder, request, self._sign(token), credentials)


class GrpcParts(QueuedParts):
    """The parts of one transfer, as another gateway sends them."""

    def __init__(
        self, holder: Holder, request: TransferRequest, token: str, credentials: grpc.ChannelCredentials | None
    ) -> None:
        super().__init__()
        options = (*CHANNEL_OPTIONS, ("grpc.max_receive_message_length", PART_BYTES_MAX))
        if credentials is None:
            self._channel = grpc.insecure_channel(holder.endpoint, options=options)
        else:
            self._channel = grpc.secure_channel(holder.endpoint, credentials, options=options)
        method: Any = self._channel.unary_stream(TRANSFER_PATH, None, None)
        self._call: Any = method(request.SerializeToString(), metadata=((FORWARDED, token),))
        self._start()

    @override
    def close(self) -> None:
        super().close()
        self._call.cancel()
        self._channel.close()

    @override
    def _receive(self) -> None:
        try:
            for data in self._call:
                self._put(TransferResponse.FromString(data))
            self._put(TransferFailed("it ended early"))  # nobody reads it behind the last part
        except grpc.RpcError as error:
            text = error.details() if isinstance(error, grpc.Call) else str(error)
            self._put(TransferFailed(text or "the call failed"))
        except DecodeError:
            self._put(TransferFailed("its parts cannot be read"))
