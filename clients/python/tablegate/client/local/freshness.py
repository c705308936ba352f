"""How old a local table is, what a read is refused with, and its limits. No I/O."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from tablegate.client.failures import status_details


@dataclass(frozen=True, slots=True)
class LocalLimits:
    """Limits of a local table.

    `map_bytes` bounds its file; it is address space, not disk, that this takes. Of a snapshot `fill_changes` rows, or
    what comes in `fill_s`, are written at once, and so much a process that is killed meanwhile has to be sent again.
    `full_pause_s`: how long to wait before a disk that is full is tried again.
    """

    map_bytes: int = 2**40
    fill_changes: int = 50_000  # nobody reads them yet, and the more at once, the less a row costs
    fill_s: float = 1.0
    full_pause_s: float = 5.0


DEFAULT_LIMITS = LocalLimits()


class LocalReadError(grpc.RpcError):
    """A read that the local table does not answer, in the form in which gateways refuse.

    `reason` is NOT_CAUGHT_UP: the copy is not as fresh as was asked. PARTITION_UNAVAILABLE: it has not all rows yet.
    NOT_ALLOWED, NOT_AUTHENTICATED: the gateway no longer shows these rows to whoever this is.
    """

    def __init__(self, code: grpc.StatusCode, reason: str, text: str, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{code.name} ({reason}): {text}")
        self.reason = reason
        self._code = code
        self._text = text
        self._retry_after_s = retry_after_s

    def code(self) -> grpc.StatusCode:
        """Return the status code."""
        return self._code

    def details(self) -> str:
        """Return the text."""
        return self._text

    def trailing_metadata(self) -> Any:
        """Return the details in the form of a gateway's error."""
        return status_details(self._code.value[0], self._text, self.reason, self._retry_after_s)


class Freshness:
    """How old a copy is, by the clock of this machine and by that of the gateway. No I/O.

    The gateway's own clock is known from what it says: when it sent `as_of`, it was no earlier than that. So where this
    machine's clock is behind, or was set back, the copy still grows as old as time passes, and no stream that goes on
    saying the same moment makes it look fresh.
    """

    def __init__(self, now_s: Callable[[], float] = time.time, elapsed_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._elapsed_s = elapsed_s
        self._ahead_s: float | None = None  # the gateway's clock less `elapsed_s`, at least
        self._newest: tuple[float, float] | None = None  # as_of, and `_ahead_s` then: what readers see

    def heard(self, as_of_s: float) -> None:
        """Note that a gateway has said now that the copy misses nothing of before `as_of_s`."""
        ahead_s = as_of_s - self._elapsed_s()
        self._ahead_s = ahead_s if self._ahead_s is None else max(ahead_s, self._ahead_s)
        self._newest = as_of_s, self._ahead_s

    def disconnected(self) -> None:
        """Note that the next to be heard may be another gateway, with another clock."""
        self._ahead_s = None

    @property
    def age_s(self) -> float | None:
        """How old the copy is; None where no gateway has said so to this process."""
        if self._newest is None:
            return None
        as_of_s, ahead_s = self._newest
        return max(0.0, self._now_s() - as_of_s, self._elapsed_s() + ahead_s - as_of_s)

    def passed_s(self, as_of_s: float) -> float:
        """Return a moment that is over by this machine's clock and by the gateway's, of rows as of `as_of_s`.

        One clock that is ahead would take rows away that are still there.
        """
        newest = self._newest
        gateway_s = as_of_s if newest is None else max(as_of_s, self._elapsed_s() + newest[1])
        return min(self._now_s(), gateway_s)
