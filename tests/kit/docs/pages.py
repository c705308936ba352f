"""The Markdown pages of this repository: which there are, their headings, links and code blocks."""

import functools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
MADE = ("node_modules", "target", "gen", "dist", "build", "site", "bench-results")  # folders that tools make

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+|~~~+)(?P<info>.*)$")
_HEADING = re.compile(r"^(#{1,6}) +(.*?) *#*$")
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(<?([^()\s<>]*(?:\([^()]*\))?[^()\s<>]*)>?(?: \"[^\"]*\")?\)")
_INLINE_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")


@dataclass(frozen=True)
class Block:
    """A fenced code block: its language, its text, its line, and the HTML comment right before it, without marks."""

    language: str
    text: str
    line: int
    comment: str


def pages() -> list[Path]:
    """Return every Markdown page that belongs to the project, the starter project's too."""
    found: list[Path] = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in MADE]
        found += [Path(folder) / name for name in files if name.endswith(".md")]
    return sorted(found)


def blocks(page: Path) -> list[Block]:
    """Return the fenced code blocks of a page."""
    found: list[Block] = []
    comment, opened, info, start, body = "", "", "", 0, []
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        fence = _FENCE.match(line)
        if opened:
            if fence and fence["fence"] == opened and not fence["info"].strip():
                found.append(Block(info, "".join(f"{text}\n" for text in body), start, comment))
                opened, comment = "", ""
            else:
                body.append(line)
        elif fence:
            opened, info, start, body = fence["fence"], fence["info"].strip(), number, []
        elif line.startswith("<!--"):
            comment = line.removeprefix("<!--").removesuffix("-->").strip()
        elif line.strip():
            comment = ""
    assert not opened, f"{page}: the code block of line {start} has no end"
    return found


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line outside of code blocks, inline code blanked out."""
    opened = ""
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        fence = _FENCE.match(line)
        if fence and not opened:
            opened = fence["fence"]
        elif fence and fence["fence"] == opened and not fence["info"].strip():
            opened = ""
        elif not opened:
            yield number, line


def links(page: Path) -> Iterator[tuple[int, str]]:
    """Yield line and target of each link and picture."""
    for number, line in prose(page):
        for match in _LINK.finditer(_INLINE_CODE.sub(lambda code: "x" * len(code[0]), line)):
            yield number, match[1]


@functools.cache
def anchors(page: Path) -> set[str]:
    """Return what links to places within a page may name, as GitHub and mkdocs make it of headings."""
    found: set[str] = set()
    for _, line in prose(page):
        heading = _HEADING.match(line)
        if heading:
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[2])
            slug = re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")
            number = 0
            while (name := f"{slug}-{number}" if number else slug) in found:
                number += 1
            found.add(name)
        found.update(re.findall(r'<a (?:id|name)="([^"]+)"', line))
    return found
