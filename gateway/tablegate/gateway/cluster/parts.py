"""Parts of a transfer on their way from a thread that receives them to the replicator, which must not wait.

They wait for it in a short queue, and who sends waits for that.
"""

import queue
import threading
from contextlib import suppress

from typing_extensions import override

from tablegate.gateway.cluster.assignment import IncomingParts, TransferFailed
from tablegate.internal.v1.transfer_pb2 import TransferResponse

TRANSFER_PATH = "/tablegate.internal.v1.TransferService/Transfer"
WAITING_MAX = 8  # parts of a quarter of a megabyte

_PUT_S = 0.2  # how often a full queue is looked at for whether anybody wants more


class QueuedParts(IncomingParts):
    """The parts of one transfer, which a thread receives: `_receive`, begun by `_start`."""

    def __init__(self) -> None:
        self._parts: queue.Queue[TransferResponse | TransferFailed] = queue.Queue(WAITING_MAX)
        self._is_closed = False

    @override
    def next(self) -> TransferResponse | None:
        """Return the next part; None where none has come yet. Raise `TransferFailed`."""
        try:
            part = self._parts.get_nowait()
        except queue.Empty:
            return None
        if isinstance(part, TransferFailed):
            raise part
        return part

    @override
    def close(self) -> None:
        """Want no more."""
        self._is_closed = True

    def _start(self) -> None:
        threading.Thread(target=self._receive, name="transfer", daemon=True).start()

    def _receive(self) -> None:
        """Put all parts, and behind them why no more come."""
        raise NotImplementedError

    def _put(self, part: TransferResponse | TransferFailed) -> None:
        while not self._is_closed:
            with suppress(queue.Full):
                self._parts.put(part, timeout=_PUT_S)
                return
