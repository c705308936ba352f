"""Decisions are where a reader asks why: modules name them at the end of their docstrings, and the index lists them."""

import ast
import re
from pathlib import Path

import pytest

from tests.kit.docs.pages import DOCS, ROOT

SOURCES = ("gateway", "streamjobs", "clients/python", "examples")
DECISIONS = {path.name: path for path in sorted((DOCS / "decisions").glob("0*.md"))}

# What concerns how wheels or tests are made, and no module of the product.
OF_NO_MODULE = {
    "0048-one-namespace-five-wheels.md",
    "0058-scenarios-are-text-files.md",
    "0071-worlds-from-seeds.md",
    "0075-histories-of-real-runs.md",
    "0076-faults-of-real-machines.md",
    "0156-one-scenario-file-for-all-clients.md",
    "0172-further-cases-are-tested-at-night.md",
    "0190-the-last-release-runs-beside-this-version.md",
}

_NAMED = re.compile(r"\bdocs/decisions/([\w.-]+)")
_LINE = re.compile(r"Decision: docs/decisions/[\w-]+\.md")


def _named() -> dict[str, list[str]]:
    """Return the modules that name each decision, wherever in their text they do."""
    found: dict[str, list[str]] = {}
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for name in _NAMED.findall(path.read_text()):
                found.setdefault(name, []).append(str(path.relative_to(ROOT)))
    return found


def _named_in_other_languages() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    clients = ROOT / "clients"
    for path in sorted(
        [
            *clients.glob("typescript/src/*.ts"),
            *clients.glob("go/*.go"),
            *clients.glob("java/client/src/main/**/*.java"),
        ]
    ):
        for name in _NAMED.findall(path.read_text()):
            found.setdefault(name, []).append(path.name)
    return found


def test_modules_name_decisions_that_are_there() -> None:
    everywhere = [*_named().items(), *_named_in_other_languages().items()]
    wrong = [f"{module}: {name}" for name, modules in everywhere for module in modules if name not in DECISIONS]
    assert not wrong, "no such decision: " + "; ".join(wrong)


def test_each_decision_is_named_by_a_module() -> None:
    named = {**_named(), **_named_in_other_languages()}
    assert set(DECISIONS) - set(named) == OF_NO_MODULE
    assert all(len(set(modules)) <= 3 for modules in named.values()), "one to three modules, where a reader asks why"


def test_decisions_are_named_at_the_end_of_a_docstring() -> None:
    count = 0
    for modules in _named().values():
        for module in modules:
            text = (ROOT / module).read_text()
            docstring = ast.get_docstring(ast.parse(text)) or ""
            paragraph = docstring.rpartition("\n\n")[2].splitlines()
            assert len(_NAMED.findall(text)) == len(paragraph), f"{module} names a decision elsewhere"
            assert all(_LINE.fullmatch(line) for line in paragraph), f"{module}: {paragraph}"
            count += 1
    assert count > 75


def test_the_index_lists_each_decision_with_its_title_and_date() -> None:
    index = (DOCS / "decisions" / "index.md").read_text()
    for name, path in DECISIONS.items():
        title, _, date = path.read_text().splitlines()[:3]
        number, _, words = title.removeprefix("# ").partition(". ")
        assert number == name[:4]
        assert f"| {number} | [{words}]({name}) | {date.strip('*')} |" in index


@pytest.mark.parametrize("path", DECISIONS.values(), ids=lambda path: path.stem)
def test_a_decision_has_its_parts(path: Path) -> None:
    text = path.read_text()
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert [heading for heading in headings if heading in ("Context", "Decision", "Consequences")] == [
        "Context",
        "Decision",
        "Consequences",
    ]
