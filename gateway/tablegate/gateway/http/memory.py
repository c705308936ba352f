"""What connections hold for their clients, in bytes: one budget for all of a listener, and who gives way.

A connection counts what it has read and not served, requests at work, and answers that are not taken yet. Each of these
has a bound of its own, but those of 10,000 connections together are no bound. So there is a budget for all of them, and
an even part (`even_bytes`) that each connection may hold however little is left:

- Up to half of the budget, only a connection's own bounds count.
- Above that, who holds more than the even part may send no more of bodies: its windows stay shut.
- Above three quarters, its requests are refused.
- Above all of it, connections are closed (`on_full`).

Streams have room of their own beside it, as many as may be open: 100,000 would use most of the budget up, and would be
refused, and closed, though nobody else holds anything.

Not counted is what each connection costs by being there: `Limits.connections_max` bounds that.

Decision: docs/decisions/0126-one-budget-of-bytes.md
"""

from collections.abc import Callable
from dataclasses import dataclass

REQUEST_BYTES = 2 * 1024  # that a request at work holds beside its fields and its body: objects, a task


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimits:
    """What connections may hold for their clients."""

    bytes_max: int = 256 * 1024 * 1024  # all together; a worker without clients has about a third of that
    even_bytes: int = 256 * 1024  # each, however little is left: the longest message of gRPC
    streams_max: int = 0  # for which there is room beside `bytes_max`, each a request at work

    def bytes_of(self, eighths: int) -> int:
        """Return so many eighths of `bytes_max`, and all the room of streams."""
        return self.bytes_max // 8 * eighths + REQUEST_BYTES * self.streams_max


class MemoryBudget:
    """What all connections hold together. `on_full` is called when it is too much, and again after each `account.hold`.

    It may close accounts only after the call: whoever counts may be in the middle of its work.
    """

    def __init__(self, limits: MemoryLimits, on_full: Callable[[], object] = lambda: None) -> None:
        self.kept_bytes = 0
        self.is_scarce = False  # who keeps more than an even part is refused
        self.limits = limits
        self._growth_bytes, self._scarce_bytes, self._full_bytes = map(limits.bytes_of, (4, 6, 8))
        self._on_full = on_full

    @property
    def is_full(self) -> bool:
        """Whether connections hold more than they may."""
        return self.kept_bytes > self._full_bytes

    @property
    def may_grow(self) -> bool:
        """Whether who keeps more than an even part may keep more."""
        return self.kept_bytes <= self._growth_bytes

    def add(self, count: int) -> None:
        """Count so many bytes more."""
        self.kept_bytes += count
        self.is_scarce = self.kept_bytes > self._scarce_bytes
        if count > 0 and self.is_full:
            self._on_full()

    def account(self) -> "MemoryAccount":
        """Return the account of a new connection."""
        return MemoryAccount(self)


class MemoryAccount:
    """What one connection holds."""

    __slots__ = ("_is_closed", "budget", "kept_bytes")

    def __init__(self, budget: MemoryBudget) -> None:
        self.kept_bytes = 0
        self.budget = budget
        self._is_closed = False

    def hold(self, count: int) -> None:
        """Count that the connection holds so many bytes now."""
        if count != self.kept_bytes and not self._is_closed:
            before, self.kept_bytes = self.kept_bytes, count
            self.budget.add(count - before)

    def close(self) -> None:
        """Count nothing of it any more."""
        self.hold(0)
        self._is_closed = True

    @property
    def may_grow(self) -> bool:
        """Whether its client may send more of what is to be kept."""
        return self._is_even or self.budget.may_grow

    @property
    def is_refused(self) -> bool:
        """Whether its client is to be served no more, until it holds less."""
        return self.budget.is_scarce and not self._is_even

    @property
    def _is_even(self) -> bool:
        return self.kept_bytes <= self.budget.limits.even_bytes
