"""What retention keeps out of a store, and whether it kept out too much.

Time is the gateway's own clock: what was left out or removed while that was ahead is missing once it is right again.
"""

from collections.abc import Sequence

from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.keys import InvalidKey
from tablegate.gateway.contract.types import Offset
from tablegate.gateway.contract.windows import Expiry
from tablegate.gateway.stores.base import Change

CLOCK_BACK_MAX_MS = 10_000  # a clock that is kept right is slowed, and goes back by less


def split_expired(changes: Sequence[Change], expiry: Expiry, *, now_us: int) -> tuple[list[Change], list[Offset]]:
    """Return the changes whose rows are not expired, and the offsets of those whose keys are none of the table."""
    kept: list[Change] = []
    foreign: list[Offset] = []
    for change in changes:
        try:
            if expiry.at_us(change.key) > now_us:
                kept.append(change)
        except InvalidKey:
            foreign.append(change.offset)
    return kept, foreign


def early_removal(table: Table, *, now_ms: int, caught_up_ms: int, stored_retention_us: int) -> str | None:
    """Return why a store may lack rows that are not expired; None where it does not.

    `caught_up_ms` is a time at which it removed what was expired then, `stored_retention_us` the retention by which it
    did (0: none).
    """
    retention_us = table.retention_us
    if stored_retention_us and (retention_us is None or retention_us > stored_retention_us):
        return "its retention is longer than it was, and rows were removed by the shorter one"
    if retention_us is not None and caught_up_ms - now_ms > CLOCK_BACK_MAX_MS:
        return "the clock went back, and rows may have been removed before their time"
    return None
