"""Which changes of a batch are newer than what is stored, and what the others mean for the changelog.

Compaction keeps the last record of a key, and the table its newest. Where these are two, a store that is restored after
compaction would have an older row, or one that was deleted. So a key is pending for a repair as long as a record lies
behind its newest that is not the same: see `replication.repair`.

Decision: docs/decisions/0062-the-owner-appends-its-row-again.md
Decision: docs/decisions/0063-of-two-contents-the-first-stays.md
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tablegate.gateway.stores.base import Change, Conflict, PastChange, Repair, Repeat


@dataclass(slots=True)
class Settled:
    """What a batch comes to. `repairs`: by key; None where none is needed any more. `repeated`: by key, the last."""

    applied: list[PastChange] = field(default_factory=list)
    stale: list[Change] = field(default_factory=list)
    repairs: dict[bytes, Repair | None] = field(default_factory=dict)
    repeated: dict[bytes, Change] = field(default_factory=dict)


def settle(changes: Sequence[Change], stored: dict[bytes, Change]) -> Settled:
    """Compare each change with what its key has then. `stored`, by key, is what is stored before, and becomes newer.

    The time of what is stored is not looked at.
    """
    settled = Settled()
    for change in changes:
        known = stored.get(change.key)
        if known is None or change.version > known.version:
            settled.applied.append(PastChange(*change, None if known is None else known.row))
            stored[change.key] = change
            settled.repairs[change.key] = None
            settled.repeated.pop(change.key, None)
            continue
        is_behind = change.offset > known.offset  # else it is the record that is stored, or one before, once more
        if change.version < known.version:
            settled.stale.append(change)
        elif change.row != known.row:
            settled.stale.append(Conflict(*change))
        else:
            settled.stale.append(Repeat(*change))
            if is_behind:
                stored[change.key] = settled.repeated[change.key] = change
                settled.repairs[change.key] = None
            continue
        if is_behind:
            settled.repairs[change.key] = Repair(change.key, known.offset, known.version)
    return settled
