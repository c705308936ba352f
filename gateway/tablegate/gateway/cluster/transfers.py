"""Rows from other gateways over gRPC: each transfer is a call, received in a thread of its own.

The replicator is one thread that must not wait. So parts wait for it in a short queue, and who sends waits for that.
"""

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from tablegate.gateway.cluster.assignment import Holder, TransferFailed
from tablegate.gateway.cluster.forward_token import FORWARDED, ForwardToken
from tablegate.gateway.cluster.peers import CHANNEL_OPTIONS, Credentials
from tablegate.internal.v1.transfer_pb2 import TransferRequest, TransferResponse

TRANSFER_PATH = "/tablegate.internal.v1.TransferService/Transfer"
WAITING_MAX = 8  # parts of a quarter of a megabyte
PART_BYTES_MAX = 256 << 20  # one that is a single long row, or has all repairs, is longer than gRPC lets in otherwise

_PUT_S = 0.2  # how often a full queue is looked at for whether anybody wants more


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


class GrpcParts:
    """The parts of one transfer, as they come."""

    def __init__(
        self, holder: Holder, request: TransferRequest, token: str, credentials: grpc.ChannelCredentials | None
    ) -> None:
        self._parts: queue.Queue[TransferResponse | TransferFailed] = queue.Queue(WAITING_MAX)
        self._is_closed = False
        options = (*CHANNEL_OPTIONS, ("grpc.max_receive_message_length", PART_BYTES_MAX))
        if credentials is None:
            self._channel = grpc.insecure_channel(holder.endpoint, options=options)
        else:
            self._channel = grpc.secure_channel(holder.endpoint, credentials, options=options)
        method: Any = self._channel.unary_stream(TRANSFER_PATH, None, None)
        self._call: Any = method(request.SerializeToString(), metadata=((FORWARDED, token),))
        threading.Thread(target=self._receive, name="transfer", daemon=True).start()

    def next(self) -> TransferResponse | None:
        """Return the next part; None where none has come yet. Raise `TransferFailed`."""
        try:
            part = self._parts.get_nowait()
        except queue.Empty:
            return None
        if isinstance(part, TransferFailed):
            raise part
        return part

    def close(self) -> None:
        """Want no more."""
        self._is_closed = True
        self._call.cancel()
        self._channel.close()

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

    def _put(self, part: TransferResponse | TransferFailed) -> None:
        while not self._is_closed:
            with suppress(queue.Full):
                self._parts.put(part, timeout=_PUT_S)
                return
