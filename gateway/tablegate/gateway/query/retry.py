"""Patience where nobody answers: gateways do not all switch to a new generation of a table in the same moment."""

import asyncio
import time
from collections.abc import Awaitable, Generator
from typing import Any

from tablegate.gateway.query.call import Call, UnaryHandler, close_unawaited
from tablegate.gateway.query.errors import PartitionUnavailable
from tablegate.gateway.query.serving import TableAccess

AGAIN_S = 0.1
HEARD_S = 0.3  # in which this gateway hears that others have switched
PATIENCE_S = 2.0
TIME_PART = 0.5  # of what the call has left: its client may want to try it elsewhere


def patient(
    answer: Awaitable[bytes], handler: UnaryHandler, access: TableAccess, data: bytes, call: Call
) -> Awaitable[bytes]:
    """Return the answer that `handler` gave to a call, or, where no gateway has what is asked for, one that it gives.

    It is asked again for a moment, and while gateways switch generations; no longer, as calls that wait would pile up.
    """
    if access.router is None or call.forwarded is not None:
        return answer
    return _Patient(answer, handler, access, data, call)


class _Patient(Awaitable[bytes]):
    """Closed before anybody waited, it closes the answer."""

    def __init__(
        self, answer: Awaitable[bytes], handler: UnaryHandler, access: TableAccess, data: bytes, call: Call
    ) -> None:
        self._answer = answer
        self._handler = handler
        self._access = access
        self._data = data
        self._call = call

    def __await__(self) -> Generator[Any, Any, bytes]:
        try:
            return (yield from self._answer.__await__())
        except PartitionUnavailable:
            left_s = self._call.time_left_s()
            longest_s = PATIENCE_S if left_s is None else min(PATIENCE_S, left_s * TIME_PART)
            if longest_s < AGAIN_S:
                raise
        return (yield from self._again(longest_s).__await__())

    async def _again(self, longest_s: float) -> bytes:
        begin_s = time.monotonic()
        while True:
            await asyncio.sleep(AGAIN_S)
            try:
                answer = self._handler(self._data, self._call)
                return answer if isinstance(answer, bytes) else await answer
            except PartitionUnavailable:
                router = self._access.router
                is_switching = router is not None and router.directory.is_switching(self._access.table.name)
                patience_s = longest_s if is_switching else min(longest_s, HEARD_S)
                if time.monotonic() + AGAIN_S > begin_s + patience_s:
                    raise

    def close(self) -> None:
        close_unawaited(self._answer)
