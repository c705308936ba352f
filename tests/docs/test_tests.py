"""Rules of the tests themselves: where they take what they share from, and how they are called."""

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.kit.docs.sources import Source, sources
from tests.kit.patches import patched_constants

TESTS = Path(__file__).parents[1]
NAME_CHARACTERS_MAX = 70


def _sources() -> Mapping[str, Source]:
    return {path.removeprefix("tests/"): source for path, source in sources().items() if path.startswith("tests/")}


def test_what_tests_share_is_in_the_kit() -> None:
    found = []
    for path, source in _sources().items():
        allowed = ("tests.kit.",) if path.startswith("kit/") else ("tests.kit.", "tests.bench.")  # a test may measure
        ours = [(line, name) for line, name in source.imports if name.split(".")[0] in ("tests", "")]
        found += [f"{path}:{line}: {name}" for line, name in ours if not name.startswith(allowed)]
    assert not found, "import it from tests.kit: " + "; ".join(found)


def test_the_kit_is_found() -> None:
    assert sum(name.startswith("tests.kit.") for source in _sources().values() for _, name in source.imports) > 500


def test_conftest_files_have_fixtures_and_hooks_alone() -> None:
    for path in TESTS.rglob("conftest.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            assert not isinstance(node, ast.ClassDef), f"{path}:{node.lineno}: a class belongs into tests/kit"
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("pytest_"):
                decorators = [ast.unparse(each) for each in node.decorator_list]
                assert any(each.startswith("pytest.fixture") for each in decorators), (
                    f"{path}:{node.lineno}: no fixture"
                )


def test_names_of_tests_are_short() -> None:
    found = [
        f"{path}:{line}: {name}"
        for path, source in _sources().items()
        for line, name in source.tests
        if len(name) > NAME_CHARACTERS_MAX
    ]
    assert not found, f"at most {NAME_CHARACTERS_MAX} characters: " + "; ".join(found)
    assert sum(len(source.tests) for source in _sources().values()) > 1_000


def test_tests_that_start_java_are_where_they_are_looked_for() -> None:
    """`make test` collects these directories alone for its part with Java."""
    java = "pytest.mark." + "jvm"
    found = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("*.py") if java in path.read_text("utf-8")}
    assert found == {"integration", "docs"}


def test_limits_come_through_constructors() -> None:
    found = [f"{path}:{line}: {name}" for path, source in _sources().items() for line, name in source.patched]
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
    assert list(patched_constants(ast.walk(ast.parse(code))))


def test_what_is_no_constant_may_be_set() -> None:
    code = 'monkeypatch.setattr(MemorySnapshot, "history", failing)\nsetattr(request, name, 1)\nwait_s = store.WAIT_S'
    assert not list(patched_constants(ast.walk(ast.parse(code))))
