"""A part of a subscription: the messages of one gateway, taken one ahead."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing

from tablegate.gateway.cluster.directory import Peer
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.call import Call, Fields
from tablegate.v1.query_pb2 import SUBSCRIBE_PHASE_CURRENT, SubscribeProgress
from typing_extensions import override


class PartCall(Call):
    """The call of a part that this gateway gives itself: what it says goes into another stream."""

    def __init__(self, call: Call) -> None:
        self._call = call

    @override
    def time_left_s(self) -> float | None:
        return self._call.time_left_s()

    @property
    @override
    def draining(self) -> bool:
        return self._call.draining

    @property
    @override
    def forwarded(self) -> str | None:
        return None

    @override
    def offer(self, message: bytes) -> bool:
        return False

    @override
    def set_trailer(self, trailer: Fields) -> None:
        return


class PartitionStream:
    """The stream of some partitions, from a gateway (`peer`; None: this one). It wakes who waits at each news.

    One message at most is held here: until it is taken, the gateway has to wait. `error` is why it ended, if it did;
    `has_spoken`: something came before. `is_filling`: rows of the snapshot are still to come. `is_current` and
    `as_of_ms` are of the last message taken.
    """

    def __init__(
        self,
        peer: Peer | None,
        partitions: Collection[Partition],
        messages: AsyncGenerator[bytes, None],
        wake: Callable[[], None],
        *,
        is_filling: bool,
    ) -> None:
        self.peer = peer
        self.partitions = frozenset(partitions)
        self.is_filling = is_filling
        self.is_current = False
        self.as_of_ms = 0
        self.has_ended = False
        self.has_spoken = False
        self.error: Exception | None = None
        self._messages = messages
        self._wake = wake
        self._heard_s = time.monotonic()
        self._message: bytes | None = None
        self._taken = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())

    @property
    def has_message(self) -> bool:
        """Return whether there is something to take."""
        return self._message is not None

    @property
    def silent_s(self) -> float:
        """Return the seconds since the gateway last said something, 0 while that is not taken."""
        return 0.0 if self.has_message else time.monotonic() - self._heard_s

    def take(self) -> bytes:
        """Return the message that there is."""
        message = self._message
        assert message is not None
        self._message, self._heard_s = None, time.monotonic()
        self._taken.set()
        return message

    def note(self, progress: SubscribeProgress) -> None:
        """Take in what a message says."""
        self.is_current = progress.phase == SUBSCRIBE_PHASE_CURRENT
        if self.is_current:
            self.as_of_ms = progress.read_info.as_of_time.ToMilliseconds()

    def cancel(self) -> "asyncio.Future[None]":
        """End it; what it has not given is forgotten. Return what is done once it has ended."""
        self._task.cancel()
        return self._task

    async def _run(self) -> None:
        try:
            async with aclosing(self._messages) as messages:
                async for message in messages:
                    self._message, self.has_spoken = message, True
                    self._taken.clear()
                    self._wake()
                    await self._taken.wait()
        except Exception as error:  # noqa: BLE001  whoever waits for it is told
            self.error = error
        finally:
            self.has_ended = True
            self._wake()
