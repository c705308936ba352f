"""Rows for other programs: JSON and CSV by lines, Arrow's stream of record batches, Parquet.

A file gets its name when all rows are in it: half of a table never looks like one.
"""

import csv
import json
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from io import TextIOWrapper
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from google.protobuf.message import Message
from rich.console import Console

from tablegate.gateway.cli import show
from tablegate.gateway.cli.connecting import AskError

if TYPE_CHECKING:  # as in `ask`
    from tablegate.gateway.query.masks import Wanted


class Format(Enum):
    """What rows are written as."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"


COUNTED_ROWS = 1_000  # at a time: to show a number takes longer than to write a row

COLUMNS = (Format.ARROW, Format.PARQUET)
"""Formats that have columns, by `write_columns`; the others have lines."""

_SUFFIXES = {".arrow": Format.ARROW, ".csv": Format.CSV, ".json": Format.JSON, ".jsonl": Format.JSON}
_SUFFIXES |= {".arrows": Format.ARROW, ".parquet": Format.PARQUET}


def format_of(form: Format | None, output: Path | None, *, as_json: bool) -> Format:
    """Return the format that was asked for, by itself or by a file's suffix; raise `AskError`."""
    if form is None and output is not None:
        form = _SUFFIXES.get(output.suffix.lower())
        if form is None:
            raise AskError(f'the suffix of "{output}" names no format: add --format json, csv, arrow or parquet')
    if form is Format.TABLE and output is not None:
        raise AskError("a table is for the terminal: write a file with --format json, csv, arrow or parquet")
    if form in COLUMNS and output is None and sys.stdout.isatty():
        raise AskError(f"{form.value} is not for a terminal: give --output FILE, or a pipe")
    return form or (Format.JSON if as_json else Format.TABLE)


def write_rows(
    rows: Iterable[Message], row: type[Message], form: Format, output: Path | None, wanted: "Wanted | None" = None
) -> None:
    """Write rows of a class as lines, to a file or, without one, to stdout. Raise `AskError`, and what `rows` raises.

    `wanted`: what of rows; None: all.
    """
    write = _write_json if form is Format.JSON else _write_csv
    with _opened(output) as out, _counting(shown=output is not None) as count:
        write(_counted(rows, count), row, out, wanted)


def write_columns(
    rows: Iterable[Sequence[bytes]],
    row: type[Message],
    form: Format,
    output: Path | None,
    wanted: "Wanted | None" = None,
) -> None:
    """Write the bytes of rows of a class, several at a time, as columns: as `write_rows` does.

    Of each column there is all that is in it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tablegate.client.arrow import arrow_schema
    from tablegate.client.arrow_rows import row_batches

    names = _columns(row, wanted)
    schema = arrow_schema(row, columns=names)
    with _opened(output) as out, _counting(shown=output is not None) as count:
        opened = pa.ipc.new_stream(out, schema) if form is Format.ARROW else pq.ParquetWriter(out, schema)
        with opened as written:
            for batch in row_batches(rows, row, columns=names):
                written.write_batch(batch)
                count(batch.num_rows)


def _opened(output: Path | None) -> AbstractContextManager[IO[bytes]]:
    return _stdout() if output is None else _file(output)


@contextmanager
def _stdout() -> Iterator[IO[bytes]]:
    yield sys.stdout.buffer
    sys.stdout.buffer.flush()


@contextmanager
def _file(path: Path) -> Iterator[IO[bytes]]:
    part = path.with_name(f"{path.name}.part")
    if path.exists() and not path.is_file():
        raise AskError(f'"{path}" is no file: give another --output, or write to a pipe with --format')
    try:
        out = part.open("wb")
    except OSError as error:
        raise AskError(f'"{path}" cannot be written ({error.strerror}): give another --output') from None
    try:
        with out, _ended_by_signals():
            yield out
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let the signals that would end the process at once leave the block first, as Ctrl-C does."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL]
    try:
        for each in numbers:
            signal.signal(each, end)
        yield
    finally:
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)


@contextmanager
def _counting(*, shown: bool) -> Iterator[Callable[[int], None]]:
    """Show on a terminal how many rows came, while the block runs: it gives what is told of each few."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.completed:,} rows"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not (shown and console.is_terminal)) as progress:
        task = progress.add_task("", total=None)
        yield lambda rows: progress.advance(task, rows)


def _counted(rows: Iterable[Message], count: Callable[[int], None]) -> Iterator[Message]:
    number = 0
    for number, row in enumerate(rows, 1):
        yield row
        if not number % COUNTED_ROWS:
            count(COUNTED_ROWS)
    count(number % COUNTED_ROWS)


def _columns(row: type[Message], wanted: "Wanted | None") -> list[str]:
    descriptor: Any = row.DESCRIPTOR
    return [field.name for field in descriptor.fields if wanted is None or field.name in wanted]


def _write_json(rows: Iterable[Message], _: type[Message], out: IO[bytes], wanted: "Wanted | None") -> None:
    for row in rows:
        out.write(f"{json.dumps(show.to_dict(row, wanted))}\n".encode())


def _write_csv(rows: Iterable[Message], row: type[Message], out: IO[bytes], wanted: "Wanted | None") -> None:
    """Write a line of names, and a line each row: what is not set is empty, lists and messages are JSON."""
    names = _columns(row, wanted)
    text = TextIOWrapper(out, "utf-8", newline="", write_through=True)
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(names)
    for each in rows:
        values = show.to_dict(each, wanted)
        lines.writerow([_csv_cell(values.get(name)) for name in names])
    text.detach()


def _csv_cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, bool | dict | list) else value
