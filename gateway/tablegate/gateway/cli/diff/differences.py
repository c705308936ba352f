"""What the differences of two contracts are, and what they mean."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum


class Effect(Enum):
    """What a difference means, from the least to the most for a table's rows; then what it means for clients."""

    SAFE = "SAFE"
    RESTORE = "RESTORE"
    REBUILD = "REBUILD"
    BREAKS_CLIENTS = "BREAKS CLIENTS"


EFFECTS = tuple(Effect)


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference. `subject`: the column, query or option. `rows`: SAFE, RESTORE or REBUILD."""

    subject: str
    text: str
    rows: Effect = Effect.SAFE
    breaks_clients: bool = False

    @property
    def effects(self) -> tuple[Effect, ...]:
        """What it means: SAFE alone, or all else that it is."""
        found = () if self.rows is Effect.SAFE else (self.rows,)
        return (*found, *((Effect.BREAKS_CLIENTS,) if self.breaks_clients else ())) or (Effect.SAFE,)


@dataclass(frozen=True, slots=True)
class TableDifferences:
    """All differences of one table and of its queries, at least one."""

    table: str
    differences: Sequence[Difference]


def effects_of(tables: Iterable[TableDifferences]) -> tuple[Effect, ...]:
    """Return what all differences together mean, in the order of `Effect`: SAFE only where there is nothing else."""
    found = {effect for table in tables for each in table.differences for effect in each.effects} - {Effect.SAFE}
    return tuple(effect for effect in EFFECTS if effect in found) or (Effect.SAFE,)
