"""Modules of tests share a Kafka where one process runs them, and which do depends on time: no table is in two."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

MODULES = Path(__file__).parents[1] / "integration"


def names_of_jobs(module: str) -> Iterator[str]:
    """Yield the names, written out, of tables that `write_job` declares in a module's text."""
    for call in ast.walk(ast.parse(module)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "write_job":
            named = [*call.args[1:2], *(keyword.value for keyword in call.keywords if keyword.arg == "name")]
            for name in named:
                if isinstance(name, ast.Constant):
                    yield str(name.value)


def test_tables_of_two_modules_have_two_names() -> None:
    modules: defaultdict[str, set[str]] = defaultdict(set)
    for path in sorted(MODULES.glob("test_*.py")):
        for name in names_of_jobs(path.read_text("utf-8")):
            modules[name].add(path.name)
    assert len(modules) >= 25
    assert {name: found for name, found in modules.items() if len(found) > 1} == {}
