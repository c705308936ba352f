"""Rules of the tests themselves: where they take what they share from, and how they are called."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
NAME_CHARACTERS_MAX = 70

# Constants of the product that tests still change behind its back, by room. A limit that a test needs comes through a
# constructor: these numbers only go down.
PATCHES_MAX = {"integration": 6, "unit/http": 8, "unit/replication": 3, "unit/server": 1}


@cache
def _modules() -> dict[str, ast.Module]:
    return {str(path.relative_to(TESTS)): ast.parse(path.read_text("utf-8")) for path in sorted(TESTS.rglob("*.py"))}


def _imports(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and full name of all that is imported, inside functions too."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def _tests(module: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node


def test_what_tests_share_is_in_the_kit() -> None:
    found = []
    for path, module in _modules().items():
        allowed = ("tests.kit.",) if path.startswith("kit/") else ("tests.kit.", "tests.bench.")  # a test may measure
        ours = [(line, name) for line, name in _imports(module) if name.split(".")[0] == "tests"]
        found += [f"{path}:{line}: {name}" for line, name in ours if not name.startswith(allowed)]
    assert not found, "import it from tests.kit: " + "; ".join(found)


def test_the_kit_is_found() -> None:
    assert sum(name.startswith("tests.kit.") for module in _modules().values() for _, name in _imports(module)) > 500


def test_conftest_files_have_fixtures_and_hooks_alone() -> None:
    for path, module in _modules().items():
        if not path.endswith("conftest.py"):
            continue
        for node in module.body:
            assert not isinstance(node, ast.ClassDef), f"{path}:{node.lineno}: a class belongs into tests/kit"
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("pytest_"):
                decorators = [ast.unparse(each) for each in node.decorator_list]
                assert any(each.startswith("pytest.fixture") for each in decorators), (
                    f"{path}:{node.lineno}: no fixture"
                )


def test_names_of_tests_are_short() -> None:
    found = [
        f"{path}:{test.lineno}: {test.name}"
        for path, module in _modules().items()
        for test in _tests(module)
        if len(test.name) > NAME_CHARACTERS_MAX
    ]
    assert not found, f"at most {NAME_CHARACTERS_MAX} characters: " + "; ".join(found)
    assert sum(1 for module in _modules().values() for _ in _tests(module)) > 1_000


def _patched(module: ast.Module) -> Iterator[str]:
    """Yield the constants, and other names in capitals, that a module patches."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            for argument in node.args[:2]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    name = argument.value.rpartition(".")[2]
                    if name.isupper() or name == "changes_max":
                        yield name
                elif isinstance(argument, ast.Name) and argument.id == "name":
                    yield argument.id


def test_limits_come_through_constructors() -> None:
    found: dict[str, list[str]] = {}
    for path, module in _modules().items():
        room = "/".join(path.split("/")[: 2 if path.startswith("unit/") else 1])
        found.setdefault(room, []).extend(f"{path}: {name}" for name in _patched(module))
    for room, patches in found.items():
        assert len(patches) <= PATCHES_MAX.get(room, 0), f"{len(patches)} patched constants: " + "; ".join(patches)
