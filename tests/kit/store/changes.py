"""Changes and positions for tests of stores."""

from collections.abc import Mapping

from tablegate.gateway.contract.lineage import Lineage
from tablegate.gateway.contract.types import Offset, make_version
from tablegate.gateway.stores.base import Change, PastChange, Phase, Position


def change(
    offset: int, key: bytes, sequence: int, row: bytes | None, *, time_ms: int = 0, generation: int = 1
) -> Change:
    return Change(Offset(offset), key, make_version(generation, sequence), row, time_ms)


def past(changed: Change, before: bytes | None = None) -> PastChange:
    return PastChange(*changed, before)


def position(
    next_offset: int,
    *,
    phase: Phase = Phase.LIVE,
    as_of_ms: int = 0,
    history_start: int = 0,
    source_offsets: Mapping[tuple[str, int], int] | None = None,
    lineage: Lineage = (),
) -> Position:
    return Position(Offset(next_offset), as_of_ms, phase, Offset(history_start), source_offsets or {}, lineage=lineage)
