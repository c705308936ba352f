"""Rows for other programs: JSON and CSV by lines, Arrow's stream of record batches, Parquet.

A file gets its name when all rows are in it: half of a table never looks like one.
"""

import csv
import json
import sys
from collections.abc import Iterable, Iterator
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


_BYTES = (Format.ARROW, Format.PARQUET)
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
    if form in _BYTES and output is None and sys.stdout.isatty():
        raise AskError(f"{form.value} is not for a terminal: give --output FILE, or a pipe")
    return form or (Format.JSON if as_json else Format.TABLE)


def write_rows(
    rows: Iterable[Message], row: type[Message], form: Format, output: Path | None, wanted: "Wanted | None" = None
) -> None:
    """Write rows of a class to a file or, without one, to stdout. Raise `AskError`, and what `rows` raises.

    `wanted`: what of rows; None: all. Arrow and Parquet have columns, and of each all that is in it.
    """
    write = {Format.JSON: _write_json, Format.CSV: _write_csv, Format.ARROW: _write_arrow}.get(form, _write_parquet)
    with _opened(output) as out, _counted(rows, shown=output is not None) as counted:
        write(counted, row, out, wanted)


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
        with out:
            yield out
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _counted(rows: Iterable[Message], *, shown: bool) -> Iterator[Iterator[Message]]:
    """Show on a terminal how many rows came, while the block runs."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.completed:,} rows"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not (shown and console.is_terminal)) as progress:
        yield iter(progress.track(rows))


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


def _write_arrow(rows: Iterable[Message], row: type[Message], out: IO[bytes], wanted: "Wanted | None") -> None:
    import pyarrow as pa

    from tablegate.client.arrow import arrow_schema, record_batches

    names = _columns(row, wanted)
    with pa.ipc.new_stream(out, arrow_schema(row, columns=names)) as stream:
        for batch in record_batches(rows, row, columns=names):
            stream.write_batch(batch)


def _write_parquet(rows: Iterable[Message], row: type[Message], out: IO[bytes], wanted: "Wanted | None") -> None:
    import pyarrow.parquet as pq

    from tablegate.client.arrow import arrow_schema, record_batches

    names = _columns(row, wanted)
    with pq.ParquetWriter(out, arrow_schema(row, columns=names)) as file:
        for batch in record_batches(rows, row, columns=names):
            file.write_batch(batch)
