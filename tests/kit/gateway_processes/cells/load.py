"""All that clients do with the cells at once, while somebody writes them: what they saw is a history."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self

from tests.kit.gateway_processes.cells.changelog import Cells, CellsWriter
from tests.kit.gateway_processes.cells.copies import CellsCopy
from tests.kit.gateway_processes.cells.readers import (
    EACH_IN_TURN,
    BatchGets,
    Failure,
    FreshGets,
    Gets,
    Reader,
    Scans,
    ShelfWalks,
    TableWalks,
)
from tests.kit.gateway_processes.cluster import Cluster
from tests.kit.gateway_processes.gateway import soon
from tests.kit.histories.checking import recorded

READERS: Sequence[tuple[Callable[..., Reader], float]] = (  # with the seconds between two reads: about 500 reads/s
    (Gets, 0.008),
    (Gets, 0.008),
    (partial(Gets, options=EACH_IN_TURN), 0.008),
    (FreshGets, 0.02),
    (BatchGets, 0.02),
    (ShelfWalks, 0.02),
    (TableWalks, 0.2),
    (Scans, 0.3),
)
CHANGES_PER_S = 200
COPIED_SHELF = 1
ALL_S = 60.0


class Load:
    """A writer, readers of all kinds, and two subscribers, while the block runs. They prefer different gateways.

    With `names` they know those gateways alone. What they saw is checked when the block ends. Readers pause for at
    least `pause_min_s`.
    """

    def __init__(
        self,
        cells: Cells,
        cluster: Cluster,
        *,
        names: Sequence[str] | None = None,
        seed: int = 0,
        pause_min_s: float = 0.0,
    ) -> None:
        self.cells = cells
        self.readers: list[Reader] = []
        self.copies: list[CellsCopy] = []
        self.writing = CellsWriter(cells, changes_per_s=CHANGES_PER_S, seed=seed)
        self._pause_min_s = pause_min_s
        self._cluster = cluster
        self._names = names
        self._seed = seed
        self._writers = ExitStack()
        self._running = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            cells, target = self.cells, partial(self._cluster.target, names=self._names)
            history = self.history = starting.enter_context(recorded(cells.write_log))
            for place, (kind, pause_s) in enumerate(READERS):
                seed = self._seed + place
                reader = kind(history, cells, target(place), pause_s=max(pause_s, self._pause_min_s), seed=seed)
                self.readers.append(starting.enter_context(reader))
            for place, shelf in enumerate((None, COPIED_SHELF)):
                copy = CellsCopy(history, cells, target(place), shelf=shelf)
                self.copies.append(starting.enter_context(copy))
            starting.push(self._writers)
            self._writers.enter_context(self.writing)
            soon(lambda: all(reader.reads for reader in self.readers), "each reader has read", ALL_S)
            soon(lambda: all(copy.is_current for copy in self.copies), "each copy is current", ALL_S)
            self._running = starting.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.__exit__(kind, error, trace)

    @property
    def failures(self) -> list[Failure]:
        """Return the calls that failed, but for those that would have been older than they were to be."""
        return [failure for reader in self.readers for failure in reader.failures]

    @property
    def breaks(self) -> list[Failure]:
        """Return the scans whose stream broke off."""
        return [failure for reader in self.readers for failure in reader.breaks]

    @property
    def reads(self) -> int:
        """Return how many answers there were."""
        return sum(reader.reads for reader in self.readers)

    @property
    def owned(self) -> Counter[str]:
        """Return how many answers came from each gateway as the owner of what was read."""
        return sum((reader.owned for reader in self.readers), Counter())

    def wait_for_owner(self, name: str) -> None:
        """Wait until something is read of what a gateway owns, so that a fault of it bites."""
        owned = self.owned[name]
        soon(lambda: self.owned[name] > owned, f"something is read of what {name} owns", ALL_S)

    def wait_for_any(self, reads: int) -> None:
        """Wait until there were so many more reads, of any kind."""
        before = self.reads
        soon(lambda: self.reads >= before + reads, "reads go on", ALL_S)

    def wait_for_reads(self, *, each: int = 3, seconds: float = ALL_S) -> None:
        """Wait until each reader has read so many times more."""
        wanted = {id(reader): reader.reads + each for reader in self.readers}
        soon(lambda: all(reader.reads >= wanted[id(reader)] for reader in self.readers), "reads go on", seconds)

    def finish(self) -> None:
        """Write no more, and see each copy become the table, and each gateway have it to the last record."""
        self._writers.close()
        for copy in self.copies:
            why_not = partial(self._why_not_whole, copy)
            soon(copy.is_the_table, "a copy is the table", ALL_S, why_not=why_not)
        self.wait_for_reads(each=1)
        for name in self._cluster.names_up:
            target = self._cluster.target(names=[name])
            scans = Scans(self.history, self.cells, target, pause_s=0.0)
            soon(partial(scans.scan, latest=True), f"{name} gives the table as it is", ALL_S)
            scans.close()

    def _why_not_whole(self, copy: CellsCopy) -> str:
        behind = {name: self._cluster[name].behind() for name in self._cluster.names_up}
        return f"({copy.differences()}; behind are {behind})"

    def figures(self) -> dict[str, Any]:
        """Return what is worth telling of it."""
        return {
            "reads": self.reads,
            "failures": len(self.failures),
            "refused as not fresh enough": sum(reader.refused for reader in self.readers),
            "tokens of generations before": sum(reader.rebuilt for reader in self.readers),
            "scans broken off": len(self.breaks),
            "streams broken off": sum((copy.ends for copy in self.copies), Counter()),
            "resets": [copy.resets for copy in self.copies],
        }
