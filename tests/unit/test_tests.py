"""Rules of the tests themselves: where they take what they share from, and how they are called."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.kit.patches import patched_constants

TESTS = Path(__file__).parents[1]
NAME_CHARACTERS_MAX = 70


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


def test_limits_come_through_constructors() -> None:
    found = [
        f"{path}:{line}: {name}" for path, module in _modules().items() for line, name in patched_constants(module)
    ]
    assert not found, "give it to a constructor (docs/decisions/0057): " + "; ".join(found)


@pytest.mark.parametrize(
    "code",
    [
        'monkeypatch.setattr(store, "ROWS_MAX", 3)',
        'monkeypatch.setattr("tablegate.gateway.query.range.ROWS_MAX", 3)',
        "monkeypatch.setattr(store, name, 3)",
        'with pytest.MonkeyPatch.context() as patched:\n    patched.setattr(store, "_WAIT_S", 0.0)',
        'with mock.patch.object(store, "WAIT_S", 0.0):\n    pass',
        'with mock.patch("tablegate.gateway.query.range.WAIT_S", 0.0):\n    pass',
        'setattr(store, "WAIT_S", 0.0)',
        "store.WAIT_S = 0.0",
        "store.WAIT_S, known = 0.0, True",
        "store.WAIT_S *= 2",
    ],
)
def test_a_patched_constant_is_found(code: str) -> None:
    assert list(patched_constants(ast.parse(code)))


def test_what_is_no_constant_may_be_set() -> None:
    code = 'monkeypatch.setattr(MemorySnapshot, "history", failing)\nsetattr(request, name, 1)\nwait_s = store.WAIT_S'
    assert not list(patched_constants(ast.parse(code)))
