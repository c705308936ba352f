"""How a command ends that cannot do what it was asked."""

from typing import NoReturn

import typer
from rich.console import Console


def fail(sentence: object) -> NoReturn:
    """End with exit code 1 and one sentence for the user."""
    complain(sentence)
    raise typer.Exit(1)


def complain(sentence: object) -> None:
    """Print one sentence to stderr."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"[red]error:[/red] {_plain(str(sentence))}")


def _plain(text: str) -> str:
    return text.replace("[", r"\[")
