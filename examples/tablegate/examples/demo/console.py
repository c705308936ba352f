"""What the demos print: lines, progress bars, commands to copy."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from tablegate.gateway.cli import show


def progress_bars(*, transient: bool) -> Progress:
    """Return bars that show a step a line, with its time."""
    columns = (SpinnerColumn(finished_text="[green]✓[/green]"), TextColumn("{task.description:<42}"))
    return Progress(*columns, BarColumn(bar_width=24), TimeElapsedColumn(), console=show.OUT, transient=transient)


def print_line(text: str = "", *, markup: bool = True) -> None:
    """Print a line above the bars; a long one is not broken, so that commands can be copied."""
    show.OUT.print(text, markup=markup, soft_wrap=True)


def command_line(words: Sequence[str], address: str) -> str:
    """Return a `tablegate` command as one may copy it."""
    program = str(Path(sys.argv[0])) if Path(sys.argv[0]).name == "tablegate" else "tablegate"
    return shlex.join([program, *words, *(["--address", address] if address != "127.0.0.1:50051" else [])])
