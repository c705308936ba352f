"""A table with two key columns, to subscribe to parts of."""

import random
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

from tablegate.gateway.query.limits import DEFAULT_LIMITS, QueryLimits
from tests.kit.call.asker import Asker
from tests.kit.call.subscribing import Copy
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import FilledTable, catalogue_of

PARCELS = Path(__file__).with_name("parcels.proto")
DEPOTS = ("ash", "ash\x00", "birch", "")
NUMBERS = range(-3, 4)

Row = tuple[str, int]
"""Depot and number."""


class Parcels:
    """The parcels in a memory store; what they should be, and what was done."""

    def __init__(self, seed: int, limits: QueryLimits = DEFAULT_LIMITS) -> None:
        catalogue = catalogue_of(PARCELS)
        self.filled = FilledTable(MemoryStore(), catalogue.tables["parcels"], 3)
        self.filled.publish()
        self.asker = Asker(catalogue, self.filled.store, "/parcels.v1.ParcelsService", None, limits)
        self.choice = random.Random(seed)
        self.rows: dict[Row, tuple[int, int]] = {}  # weight and moves
        self.moves = 0

    def put(self, depot: str, number: int, weight: int) -> None:
        self.moves += 1
        row: Any = self.filled.table.row_class(depot=depot, number=number, weight=weight, moves=self.moves)
        self.filled.put([row])
        self.rows[depot, number] = (weight, self.moves)

    def delete(self, depot: str, number: int) -> None:
        self.filled.delete([self.filled.table.row_class(depot=depot, number=number)])
        self.rows.pop((depot, number), None)

    def anything(self) -> Row:
        depot, number = self.choice.choice(DEPOTS), self.choice.choice(NUMBERS)
        if self.choice.random() < 0.25:
            self.delete(depot, number)
        else:
            self.put(depot, number, self.choice.randrange(10))
        return depot, number

    def part(self, holds: Callable[[str, int, int], bool]) -> dict[Row, int]:
        """Return key → moves of what a part has."""
        return {key: moves for key, (weight, moves) in self.rows.items() if holds(*key, weight)}


def copy() -> Copy:
    return Copy(attrgetter("depot", "number"), attrgetter("moves"))
