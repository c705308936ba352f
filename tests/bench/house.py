"""Measures the house: modules, importers, comments, sizes of texts, tests. `python -m tests.bench.house [--list]`.

What is counted: the product's own Python (generated code and the starter project left out), and what a reader meets
first. The paths of a Get are `tests.bench.paths`.
"""

import ast
import io
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.kit.patches import patched_constants

ROOT = Path(__file__).parents[2]
SOURCES = ("gateway", "streamjobs", "clients/python", "examples")
TEST_NAME_MAX = 70


def modules() -> Mapping[str, Path]:
    """Return the files of the product's modules, by import name."""
    found = {}
    for source in SOURCES:
        for path in sorted((ROOT / source).rglob("*.py")):
            parts = path.relative_to(ROOT / source).with_suffix("").parts
            if "starter-project" in parts or parts[0] != "tablegate" or path.name.endswith("_pb2.py"):
                continue
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def importers(files: Mapping[str, Path]) -> Mapping[str, set[str]]:
    """Return which of these modules import each."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, path in files.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    found[inner if inner in files else node.module].add(name)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    found[alias.name].add(name)
    return found


def comment_share(paths: list[Path]) -> float:
    """Return which part of the lines that are not blank have a comment, docstrings left out."""
    comments = lines = 0
    for path in paths:
        text = path.read_text()
        lines += sum(bool(line.strip()) for line in text.splitlines())
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        comments += len(
            {token.start[0] for token in tokens if token.type == tokenize.COMMENT and _is_prose(token.string)}
        )
    return comments / lines


def _is_prose(comment: str) -> bool:
    return not comment.startswith(("# noqa", "# type:", "# pragma"))


def rooms(files: Mapping[str, Path]) -> Mapping[str, int]:
    """Return how many modules each folder holds, `__init__` left out."""
    found: dict[str, int] = defaultdict(int)
    for path in files.values():
        if path.name != "__init__.py":
            found[str(path.parent.relative_to(ROOT))] += 1
    return found


def test_functions() -> Iterator[tuple[Path, str]]:
    """Yield each test function with its file."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield path, node.name


def assertions() -> int:
    """Return how many `assert` and `pytest.raises` the tests and what they are written with have."""
    count = 0
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_raises = isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "raises"
            count += isinstance(node, ast.Assert) or is_raises
    return count


def patches() -> int:
    """Return how many constants of the product the tests set."""
    modules = (ast.parse(path.read_text("utf-8")) for path in (ROOT / "tests").rglob("*.py"))
    return sum(1 for module in modules for _ in patched_constants(ast.walk(module)))


def main() -> None:
    """Print the table; with --list also the modules with one importer."""
    files = modules()
    used_by = importers(files)
    single = {name: next(iter(used_by[name])) for name in files if len(used_by[name]) == 1}
    product = [name for name in files if not name.startswith("tablegate.examples")]
    names = list(test_functions())
    counts = rooms(files)
    rows: list[tuple[str, object]] = [
        ("modules of gateway, jobs and client", len(product)),
        ("  those with one importer", sum(not name.startswith("tablegate.examples") for name in single)),
        ("modules of examples", len(files) - len(product)),
        ("  those with one importer", sum(name.startswith("tablegate.examples") for name in single)),
        ("largest room (files)", max((count, room) for room, count in counts.items())),
        *(
            (f"comment lines in {source}", f"{comment_share(list((ROOT / source).rglob('[!_]*.py'))):.1%}")
            for source in ("gateway", "streamjobs", "clients/python")
        ),
        ("README (bytes)", (ROOT / "README.md").stat().st_size),
        ("ARCHITECTURE (bytes)", (ROOT / "ARCHITECTURE.md").stat().st_size),
        ("decisions (files)", len(list((ROOT / "docs/decisions").glob("[0-9]*.md")))),
        ("tests", len(names)),
        (f"  names over {TEST_NAME_MAX} characters", sum(len(name) > TEST_NAME_MAX for _, name in names)),
        ("assertions", assertions()),
        ("patched constants", patches()),
    ]
    for label, value in rows:
        print(f"{label:<40} {value}")
    if "--list" in sys.argv[1:]:
        for name, importer in sorted(single.items()):
            print(f"{name} <- {importer}")


if __name__ == "__main__":
    main()
