"""Rows from gateways of this process: the product's handler reads their stores, and a test may come between."""

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import Any

from typing_extensions import override

from tablegate.gateway.cluster.assignment import Holder, IncomingParts, TransferFailed
from tablegate.gateway.cluster.forward_token import ForwardToken, ForwardTokenSigner
from tablegate.gateway.cluster.parts import TRANSFER_PATH
from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.query.call import StreamMethod
from tablegate.gateway.query.errors import QueryError
from tablegate.gateway.replication.transfers import TransferClient
from tablegate.gateway.server.transfers import transfer_methods
from tablegate.gateway.stores.base import StoreReader
from tablegate.gateway.stores.notifier import Notifier
from tablegate.internal.v1.transfer_pb2 import TransferRequest, TransferResponse
from tests.kit.table.filled import SIGNER, LocalCall

PART_BYTES = 100  # a row or two

Tamper = Callable[[int, TransferResponse], TransferResponse | None]
"""Gets the number of a part, and the part; returns what comes in its place, None: nothing."""


class StoreTransfers(TransferClient):
    """Asks `stores` by the names of their gateways. `asked` are those that were, in order; `parts`: how many came.

    `tamper` is what a test does to parts.
    """

    def __init__(self, stores: Mapping[str, StoreReader], catalogue: Catalogue, now_ms: Callable[[], int]) -> None:
        self.asked: list[str] = []
        self.parts = 0
        self.closed = 0
        self.hangs_after = 10**9  # parts of a transfer
        self.tamper: Tamper = lambda _, part: part
        self._stores = stores
        self._catalogue = catalogue
        self._now_ms = now_ms

    @override
    def ask(self, holder: Holder, request: TransferRequest) -> "StoreParts":
        self.asked.append(holder.gateway_id)
        token = ForwardToken(request.table, request.generation, (request.partition,), "")
        call = LocalCall(None, forwarded=ForwardTokenSigner(SIGNER, self._now_ms).sign(token))
        store = self._stores[holder.gateway_id]
        return StoreParts(self, parts_of(store, self._catalogue, request, call, now_ms=self._now_ms))


def parts_of(
    store: StoreReader, catalogue: Catalogue, request: TransferRequest, call: LocalCall, *, now_ms: Callable[[], int]
) -> Iterator[TransferResponse]:
    """Yield what a gateway with that store answers to a request, one read after the other; raise a `QueryError`."""
    methods = transfer_methods(catalogue, store, SIGNER, Notifier(), now_ms=now_ms, part_bytes=PART_BYTES)
    method = methods[TRANSFER_PATH]
    assert isinstance(method, StreamMethod)
    messages: Any = method.handler(request.SerializeToString(), call)
    while (message := _next(messages)) is not None:
        yield TransferResponse.FromString(message)


def _next(messages: AsyncGenerator[bytes, None]) -> bytes | None:
    """Return the next message, without an event loop: its handler waits for nothing but its turn."""
    waiting = anext(messages)
    try:
        while True:
            waiting.send(None)
    except StopIteration as message:
        return bytes(message.value)
    except StopAsyncIteration:
        return None


class StoreParts(IncomingParts):
    """The parts of one transfer, each read when it is asked for."""

    def __init__(self, client: StoreTransfers, parts: Iterator[TransferResponse]) -> None:
        self._client = client
        self._parts = parts
        self._number = 0

    @override
    def next(self) -> TransferResponse | None:
        if self._number == self._client.hangs_after:
            return None
        try:
            part = next(self._parts, None)
        except QueryError as error:
            raise TransferFailed(error.text) from None
        if part is None:
            raise TransferFailed("it ended early")
        self._number += 1
        self._client.parts += 1
        return self._client.tamper(self._number, part)

    @override
    def close(self) -> None:
        self._client.closed += 1
