"""Tests that documents name as proof are there."""

import ast
import re

from tests.kit.docs.pages import ROOT, pages, prose

_CITED = re.compile(r"`(test_\w+)`")


def _defined() -> set[str]:
    return {
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


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
