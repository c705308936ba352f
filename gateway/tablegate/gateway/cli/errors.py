"""How a command ends that cannot do what it was asked: with one sentence on stderr.

Decision: docs/decisions/0049-commands-import-when-asked.md
"""

import sys
from collections.abc import Sequence
from typing import NoReturn

import typer
from rich.console import Console

# Packages that the gateway does without, and the distributions that bring them.
_DISTRIBUTIONS = {
    "mcp": "'tablegate-gateway[mcp]'",
    "obstore": "'tablegate-gateway[snapshots]'",
    "pyarrow": "'tablegate-client[arrow]'",
    "tablegate.client": "tablegate-client",
    "tablegate.examples": "tablegate",
    "tablegate.jobs": "tablegate-jobs",
}


def fail(sentence: object) -> NoReturn:
    """End with exit code 1 and one sentence for the user."""
    complain(sentence)
    raise typer.Exit(1)


def fail_with_problems(problems: Sequence[object]) -> NoReturn:
    """End with exit code 1 and all that is wrong with a contract, a line each."""
    for problem in problems:
        print(problem, file=sys.stderr)
    fail(f"{len(problems)} problem{'s' if len(problems) > 1 else ''} in the contract")


def complain(sentence: object) -> None:
    """Print one sentence to stderr."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"[red]error:[/red] {_plain(str(sentence))}")


def _plain(text: str) -> str:
    return text.replace("[", r"\[")


def missing_distribution(error: ModuleNotFoundError) -> str | None:
    """Return a sentence that says what to install; None if the module is not one of another distribution of ours."""
    package = ".".join((error.name or "").split(".")[:2])
    distribution = _DISTRIBUTIONS.get(package)
    return distribution and f"this command needs {package}, which is not installed: pip install {distribution}"
