"""Figures of a run: each the median of its repetitions, with the smallest and the largest beside it."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.table import Table

CONTESTANTS = ("tablegate", "peer", "floor")


@dataclass(frozen=True)
class Spread:
    """What the repetitions of one measurement gave."""

    median: float
    min: float
    max: float

    def __str__(self) -> str:
        if self.min == self.max:
            return _number(self.median)
        return f"{_number(self.median)} ({_number(self.min)}..{_number(self.max)})"


def _number(value: float) -> str:
    digits = 0 if value >= 1000 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"


@dataclass
class Figure:
    """One line of the report. `load`: what made the load, "" where nothing did."""

    unit: str
    load: str
    of: dict[str, Spread] = field(default_factory=dict)


class Figures(dict[str, Figure]):
    """All figures by name, in the order in which they were measured."""

    def record(self, name: str, who: str, values: Sequence[float], unit: str, *, load: str = "") -> None:
        """Keep what the repetitions gave for one contestant."""
        spread = Spread(statistics.median(values), min(values), max(values))
        self.setdefault(name, Figure(unit, load)).of[who] = spread

    def table(self) -> Table:
        """Return the figures for a screen: a row each, the contestants side by side."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("figure", *CONTESTANTS, "unit", "load"):
            table.add_column(name, justify="right" if name in CONTESTANTS else "left", no_wrap=True)
        for name, figure in self.items():
            table.add_row(name, *(str(figure.of.get(who, "")) for who in CONTESTANTS), figure.unit, figure.load)
        return table
