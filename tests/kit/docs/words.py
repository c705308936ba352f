"""Retired words in identifiers and names of files: which there are, and the list of those that are not mended yet.

`python -m tests.kit.docs.words` prints where they are, `… --lower` lowers the list to what is left. It never goes up.
"""

import functools
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.kit.docs.pages import DOCS, ROOT
from tests.kit.docs.sources import sources

GLOSSARY = DOCS / "glossary.md"
NOT_MENDED = ROOT / "tests/docs/retired_words.json"

_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


class Found(NamedTuple):
    """A definition, or a file, whose name has a retired word."""

    word: str
    file: str
    line: int
    name: str


def retired() -> tuple[frozenset[str], frozenset[str]]:
    """Return the retired words and names of the glossary, and the identifiers that are allowed all the same."""
    _, _, section = GLOSSARY.read_text().partition("\n## Retired words\n")
    section = section.partition("\n## ")[0]
    refused, _, allowed = section.partition("Allowed all the same")
    return _first_cells(refused), _first_cells(allowed)


def _first_cells(text: str) -> frozenset[str]:
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return frozenset(word for row in rows for word in re.findall(r"`([^`]+)`", row))


def split(identifier: str) -> list[str]:
    """Return the words of an identifier, in lower case: `ForwardMark` and `forward_mark` have the same."""
    return [word.lower() for word in _PART.findall(identifier)]


@functools.cache
def offenders() -> list[Found]:
    """Return each file and definition whose name has a retired word, in the order of files and lines."""
    words, allowed = retired()
    return [
        Found(word, file, line, name)
        for file, source in sources().items()
        for line, name in [(1, Path(file).stem), *source.definitions]
        if name.strip("_") not in allowed
        for word in sorted({*split(name), name.strip("_")} & words)
    ]


def counts() -> dict[str, int]:
    """Return in how many places each retired word is left; a name counts once for each file."""
    return dict(sorted(Counter(word for word, _, _ in {(f.word, f.file, f.name) for f in offenders()}).items()))


def main() -> None:
    """Print what is left, or lower the list."""
    if "--lower" in sys.argv[1:]:
        listed: dict[str, int] = json.loads(NOT_MENDED.read_text()) if NOT_MENDED.exists() else counts()
        lowered = {word: min(number, listed.get(word, 0)) for word, number in counts().items() if listed.get(word)}
        NOT_MENDED.write_text(json.dumps(lowered, indent=2) + "\n")
        return
    for found in offenders():
        print(f"{found.file}:{found.line}: {found.name} ({found.word})")


if __name__ == "__main__":
    main()
