"""Links between the pages of this repository, and to its files."""

from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.kit.docs.pages import ROOT, anchors, links, pages

README_BYTES_MAX = 6 * 1024
ARCHITECTURE_BYTES_MAX = 12 * 1024


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = [f"line {line}: {target}: {fault}" for line, target in links(page) if (fault := _fault(page, target))]
    assert not broken, "\n".join(broken)


def _fault(page: Path, target: str) -> str | None:
    if target.startswith(("http://", "https://", "mailto:")):
        return None  # the internet's pages are not ours to hold
    name, _, anchor = unquote(target).partition("#")
    file = (page.parent / name).resolve() if name else page
    if not file.is_relative_to(ROOT):
        return "it leaves the repository"
    if not file.exists():
        return "nothing is there"
    if anchor and file.suffix == ".md" and anchor not in anchors(file):
        return f"no heading of that page is #{anchor}"
    return None


def test_every_page_of_the_docs_can_be_reached() -> None:
    reached, todo = set(), [ROOT / "README.md", ROOT / "docs" / "index.md"]
    while todo:
        page = todo.pop()
        if page in reached or page.suffix != ".md" or not page.is_file():
            continue
        reached.add(page)
        todo += [(page.parent / unquote(target).partition("#")[0]).resolve() for _, target in links(page)]
    assert {page for page in pages() if page.is_relative_to(ROOT / "docs")} <= reached


def test_first_pages_are_short() -> None:
    assert (ROOT / "README.md").stat().st_size <= README_BYTES_MAX
    assert (ROOT / "ARCHITECTURE.md").stat().st_size <= ARCHITECTURE_BYTES_MAX
    assert (ROOT / "docs" / "explanation" / "architecture.md").stat().st_size <= ARCHITECTURE_BYTES_MAX
