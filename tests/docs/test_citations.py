"""Tests that documents name as proof are there."""

import re

from tests.kit.docs.pages import ROOT, pages, prose

_CITED = re.compile(r"`(test_\w+)`")
_DEFINED = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)


def _defined() -> set[str]:
    return {name for path in (ROOT / "tests").rglob("test_*.py") for name in _DEFINED.findall(path.read_text())}


def test_cited_tests_are_there() -> None:
    defined = _defined()
    missing = [
        f"{page.relative_to(ROOT)}:{line}: {name}"
        for page in pages()
        for line, text in prose(page)
        for name in _CITED.findall(text)
        if name not in defined
    ]
    assert not missing, "\n".join(missing)
    assert len(defined) > 1_000
