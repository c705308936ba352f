"""A table on a terminal that changes while one looks."""

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from google.protobuf.descriptor import Descriptor
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text
from tablegate.gateway.cli import show

from tablegate.client import CatchingUp, Current, Delete, Disconnected, Event, Key, Reset, Upsert
from tablegate.client.rows import Rows

REFRESHES_PER_S = 4
HIGHLIGHT_S = 1.5  # a row that has changed is marked for so long
RATE_S = 5.0  # changes are counted over so long
SHOWN_MAX = 200  # rows: more than a terminal has lines
OTHER_LINES = 4  # status, an empty line, the header, the cursor's
LINES_MIN = 1


class LiveView:
    """What a subscription says, as rich shows it. One thread gives events, another may render.

    Of more rows than there is room for, those are shown that changed last. `row` is the type of the rows; `clock` gives
    seconds, `now` the time in UTC.
    """

    def __init__(
        self,
        name: str,
        row: Descriptor,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._name = name
        self._row = row
        self._clock = clock
        self._now = now
        self._lock = threading.Lock()
        self._rows = Rows()
        self._changed: dict[Key, float | None] = {}  # when; the last is the latest
        self._rates: deque[tuple[float, int]] = deque()
        self._coming = 0  # rows of a snapshot that is not whole
        self._trouble = ""
        self._is_resetting = False

    def take(self, event: Event) -> None:
        """Show what follows from `event`."""
        with self._lock:
            was_empty = self._rows.as_of is None
            changes = self._rows.apply(event)
            match event:
                case Reset():
                    self._coming, self._is_resetting = 0, True
                case Upsert() | Delete():
                    self._coming += 1
                case Current():
                    self._is_resetting, self._trouble = False, ""
                case CatchingUp():
                    self._trouble = ""
                case Disconnected(code, reason, text):
                    self._trouble = f"{reason or code}: {text.rpartition('last error: ')[2]}"
            if was_empty and isinstance(event, Current) and changes:
                changes = ()  # the first snapshot is no change
            self._note(changes)

    def _note(self, changes: Sequence[tuple[Key, object]]) -> None:
        now_s = self._clock()
        for key, row in changes:
            self._changed.pop(key, None)
            if row is not None:
                self._changed[key] = now_s
        while len(self._changed) > SHOWN_MAX:
            del self._changed[next(iter(self._changed))]
        if changes:
            self._rates.append((now_s, len(changes)))
        while self._rates and self._rates[0][0] < now_s - RATE_S:
            self._rates.popleft()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = max(LINES_MIN, options.size.height - OTHER_LINES)
        with self._lock:
            shown = self._shown(lines)
            status = self._status(len(shown))
            table = self._table(shown)
        status.truncate(options.max_width, overflow="ellipsis")
        yield status
        yield Text()
        yield table

    def _shown(self, lines: int) -> list[Key]:
        """Return the keys of the rows that are shown, in order."""
        wanted = min(lines, len(self._rows), SHOWN_MAX)
        if len(self._changed) < wanted:
            others: Iterator[Key] = (key for key in self._rows if key not in self._changed)
            added = heapq.nsmallest(wanted - len(self._changed), others)
            self._changed = {**dict.fromkeys(reversed(added)), **self._changed}
        return sorted(list(self._changed)[-wanted:] if wanted else [])

    def _table(self, shown: Sequence[Key]) -> Table:
        table = show.empty_table(self._row)
        for column in table.columns:
            column.no_wrap, column.overflow = True, "ellipsis"
        fresh_s = self._clock() - HIGHLIGHT_S
        for key in shown:
            changed_s = self._changed[key]
            is_fresh = changed_s is not None and changed_s >= fresh_s
            table.add_row(*show.cells(self._rows[key]), style="bold green" if is_fresh else None)
        return table

    def _status(self, shown: int) -> Text:
        text = Text(self._name, "bold", no_wrap=True)
        text.append("  ")
        if self._trouble:
            text.append("connecting again", "yellow")
        elif self._rows.is_current:
            text.append("current", "green")
        elif self._is_resetting:
            text.append(f"catching up, {self._coming:,} rows so far", "yellow")
        else:
            text.append("catching up", "yellow")
        if self._rows.as_of is not None:
            text.append(f", {self._age_s():,.1f} s old  {self._rate():,.1f} changes/s")
            rows = f"{len(self._rows):,} row{'s' if len(self._rows) != 1 else ''}"
            text.append(f"  {rows}" if shown == len(self._rows) else f"  the last changed {shown} of {rows}")
        if self._trouble:
            text.append(f"  {self._trouble}", "yellow")
        return text

    def _age_s(self) -> float:
        assert self._rows.as_of is not None
        return max(0.0, (self._now() - self._rows.as_of).total_seconds())

    def _rate(self) -> float:
        since_s = self._clock() - RATE_S
        return sum(count for at_s, count in self._rates if at_s >= since_s) / RATE_S
