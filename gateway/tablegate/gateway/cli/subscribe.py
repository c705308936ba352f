"""Follow a table: a live view on a terminal, or one JSON object per line for pipes."""

import heapq
import json
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import Descriptor
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tablegate.client import (
    CatchingUp,
    Current,
    Delete,
    Disconnected,
    Event,
    Key,
    Reset,
    ResumeTokenRefused,
    SubscribeError,
    Subscription,
    TokenFile,
    TokenMemory,
    Upsert,
)
from tablegate.client.rows import Rows
from tablegate.gateway.cli import show
from tablegate.gateway.cli.connecting import AskError
from tablegate.gateway.cli.gateway import Gateway

if TYPE_CHECKING:  # as in `ask`
    from tablegate.gateway.query.masks import Wanted

REFRESHES_PER_S = 4
HIGHLIGHT_S = 1.5  # how long a changed row is highlighted
RATE_S = 5.0  # window of the changes per second
SHOWN_MAX = 200  # rows; more than a terminal has lines
OTHER_LINES = 4  # status, an empty line, the header, the cursor's
LINES_MIN = 1


def follow(
    gateway: Gateway,
    table: str,
    arguments: list[str],
    *,
    as_json: bool,
    resume: Path | None,
    changes_only: bool,
    mask: Sequence[str] = (),
    wanted: "Wanted | None" = None,
) -> None:
    """Show the table's rows and then their changes until Ctrl-C; raise `AskError`.

    `mask`: the fields of rows that are asked for; `wanted`: what is shown of them, with the key. None: all.
    `resume` is a file. It is read at the start, and then holds the token of the last event that was shown.
    """
    tokens = TokenMemory() if resume is None else TokenFile(resume)
    with _ask_errors(resume), _UntilInterrupted():
        subscription = gateway.subscribe(table, arguments, tokens=tokens, changes_only=changes_only, mask=mask)
        with closing(subscription):
            if as_json:
                print_events(subscription, wanted)
            else:
                _show_events(LiveView(table, gateway.catalogue().tables[table].row, wanted), subscription)


@contextmanager
def _ask_errors(resume: Path | None) -> Iterator[None]:
    """Turn the errors of a subscription into `AskError`."""
    try:
        yield
    except ResumeTokenRefused:
        raise AskError(
            f'"{resume}" has no token for this gateway, table and fields: delete it to start over, or name another'
        ) from None
    except SubscribeError as error:
        raise AskError(str(error)) from None
    except BrokenPipeError:  # the reader of the pipe has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except UnicodeDecodeError:
        raise AskError(f'"{resume}" is not a token file: name another for --resume') from None
    except OSError as error:
        raise AskError(f'"{resume}" cannot be used for --resume: {error.strerror}; check the path') from None


class _UntilInterrupted:
    """Ends the block normally at Ctrl-C or SIGTERM.

    No generator: one that a Ctrl-C ends before its `yield` is an error of contextlib's.
    """

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGTERM, signal.default_int_handler)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        signal.signal(signal.SIGTERM, self._before)
        return kind is KeyboardInterrupt


def _show_events(view: "LiveView", events: Subscription) -> None:
    with Live(view, console=Console(highlight=False), refresh_per_second=REFRESHES_PER_S, vertical_overflow="crop"):
        for event in events:
            view.apply(event)


def print_events(events: Iterator[Event], wanted: "Wanted | None" = None) -> None:
    """Print one JSON object per event, and flush it. `wanted`: what of rows; None: all."""
    for event in events:
        print(json.dumps(_event_to_dict(event, wanted)), flush=True)


def _event_to_dict(event: Event, wanted: "Wanted | None") -> dict[str, Any]:
    match event:
        case Upsert(_, row):
            return {"event": "upsert", "row": show.to_dict(row, wanted)}
        case Delete(_, message):
            return {"event": "delete", "key": show.to_dict(message)}
        case Reset(token):
            return {"event": "reset", "resume_token": token}
        case CatchingUp(token):
            return {"event": "catching_up", "resume_token": token}
        case Current(_, read_info, token):
            as_of_time = show.to_dict(read_info)["as_of_time"]
            return {"event": "current", "as_of_time": as_of_time, "resume_token": token}
        case Disconnected(code, reason, text, retry_after_s):
            why = {"code": code, "reason": reason, "text": text}
            return {"event": "disconnected", **why, "retry_after_s": round(retry_after_s, 3)}


class LiveView:
    """A table on a terminal that follows a subscription. One thread applies events; another may render.

    If not all rows fit, those that changed last are shown. `row` is the type of the rows, and `wanted` what is shown of
    them, None for all; `clock` returns seconds, `now` the time in UTC.
    """

    def __init__(
        self,
        name: str,
        row: Descriptor,
        wanted: "Wanted | None" = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._name = name
        self._row = row
        self._wanted = wanted
        self._clock = clock
        self._now = now
        self._lock = threading.Lock()
        self._rows = Rows()
        self._changed: dict[Key, float | None] = {}  # clock time of the last change, oldest first; None: long ago
        self._rates: deque[tuple[float, int]] = deque()
        self._pending = 0  # rows of an incomplete snapshot
        self._problem = ""
        self._is_resetting = False

    def apply(self, event: Event) -> None:
        """Apply an event to the rows and to the status line."""
        with self._lock:
            was_empty = self._rows.as_of is None
            changes = self._rows.apply(event)
            match event:
                case Reset():
                    self._pending, self._is_resetting = 0, True
                case Upsert() | Delete():
                    self._pending += 1
                case Current():
                    self._is_resetting, self._problem = False, ""
                case CatchingUp():
                    self._problem = ""
                case Disconnected(code, reason, text):
                    self._problem = f"{reason or code}: {text.rpartition('last error: ')[2]}"
            if was_empty and isinstance(event, Current) and changes:
                changes = ()  # rows of the first snapshot are not highlighted
            self._record_changes(changes)

    def _record_changes(self, changes: Sequence[tuple[Key, object]]) -> None:
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
        """Return the keys of the visible rows, in order."""
        wanted = min(lines, len(self._rows), SHOWN_MAX)
        if len(self._changed) < wanted:
            others: Iterator[Key] = (key for key in self._rows if key not in self._changed)
            added = heapq.nsmallest(wanted - len(self._changed), others)
            self._changed = {**dict.fromkeys(reversed(added)), **self._changed}
        return sorted(list(self._changed)[-wanted:] if wanted else [])

    def _table(self, shown: Sequence[Key]) -> Table:
        table = show.empty_table(self._row, self._wanted)
        for column in table.columns:
            column.no_wrap, column.overflow = True, "ellipsis"
        fresh_s = self._clock() - HIGHLIGHT_S
        for key in shown:
            changed_s = self._changed[key]
            is_fresh = changed_s is not None and changed_s >= fresh_s
            cells = map(show.plain, show.cells(self._rows[key], self._wanted))
            table.add_row(*cells, style="bold green" if is_fresh else None)
        return table

    def _status(self, shown: int) -> Text:
        text = Text(self._name, "bold", no_wrap=True)
        text.append("  ")
        if self._problem:
            text.append("reconnecting", "yellow")
        elif self._rows.is_current:
            text.append("current", "green")
        elif self._is_resetting:
            text.append(f"catching up, {self._pending:,} rows so far", "yellow")
        else:
            text.append("catching up", "yellow")
        if self._rows.as_of is not None:
            text.append(f", {self._age_s():,.1f} s old  {self._rate():,.1f} changes/s")
            rows = f"{len(self._rows):,} row{'s' if len(self._rows) != 1 else ''}"
            text.append(f"  {rows}" if shown == len(self._rows) else f"  latest {shown} of {rows}")
        if self._problem:
            text.append(f"  {self._problem}", "yellow")
        return text

    def _age_s(self) -> float:
        assert self._rows.as_of is not None
        return max(0.0, (self._now() - self._rows.as_of).total_seconds())

    def _rate(self) -> float:
        since_s = self._clock() - RATE_S
        return sum(count for at_s, count in self._rates if at_s >= since_s) / RATE_S
