"""The README of the kit: what it shows works, and it has a word on every module."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

KIT = Path(__file__).parents[1] / "kit"
README = (KIT / "README.md").read_text("utf-8")
SHOWN = {  # the examples that need nothing but this process, with the modules whose names they use
    "A store": ("store.memory", "store.changes"),
    "A table and its contract": ("table.filled", "store.memory"),
    "A call": ("call.asker", "table.filled"),
    "Replicators": ("replication.replicator", "replication.memory_log"),
    "HTTP": ("http.h2",),
    "Gateways in this process": ("gateways_in_process.cluster", "table.filled"),
}


@pytest.mark.parametrize("heading", SHOWN)
def test_example_of_the_readme_works(heading: str) -> None:
    found = re.search(rf"^## {heading}\n.*?^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {}
    for module in SHOWN[heading]:
        names |= vars(importlib.import_module(f"tests.kit.{module}"))
    before = set(names)
    exec(compile(found[1], f"README.md, {heading}", "exec"), names)
    for name in set(names) - before:
        if name.startswith("test_"):
            names[name]()


def test_each_module_is_in_the_readme() -> None:
    for path in KIT.rglob("*.py"):
        words = (f"`{path.name}`", f"/{path.name}`", f"`{path.parent.name}/`")
        assert path.name == "__init__.py" or any(word in README for word in words), f"{path} is not in the README"


def test_all_that_the_readme_names_is_there() -> None:
    names = {path.name for path in KIT.rglob("*.py")}
    named = set(re.findall(r"`(?:[a-z_]+/)?([a-z0-9_]+\.py)`", README))
    assert named <= names | {"conftest.py"}, named - names
    assert len(named) > 30
