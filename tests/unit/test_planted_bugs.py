"""The planted bugs can be planted: their texts are in the product, their tests exist. `make planted` plants them."""

import ast
import re
from pathlib import Path

import pytest

from tests.kit.planted.__main__ import ROOT, outcome_of, planted
from tests.kit.planted.bug import Bug
from tests.kit.planted.bugs import BUGS

pytestmark = pytest.mark.tools


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_planted(bug: Bug) -> None:
    text = Path(ROOT, bug.file).read_text()
    with_bug = planted(bug, text)
    assert with_bug != text
    if bug.file.endswith(".py"):
        ast.parse(with_bug)
    for test in bug.tests.split():
        path, _, name = test.partition("::")
        assert re.search(rf"^(async )?def {name or 'test_'}", Path(ROOT, path).read_text(), re.MULTILINE)


def test_there_are_bugs_of_many_kinds() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 100
    assert len({bug.file for bug in BUGS}) >= 35


@pytest.mark.parametrize(
    ("replace", "is_noticed"),
    [("return 2", True), ("return 1 + 0", False), ("return (", False), ("raise SystemExit", False)],
    ids=["noticed", "not noticed", "no Python", "ends pytest"],
)
def test_a_bug_is_noticed_only_where_a_test_fails(tmp_path: Path, replace: str, is_noticed: bool) -> None:
    product = tmp_path / "product.py"
    product.write_text("def one():\n    return 1\n\n\nONE = one()\n")
    (tmp_path / "test_product.py").write_text("import product\n\ndef test_one():\n    assert product.one() == 1\n")
    (tmp_path / "test_other.py").write_text("def test_other():\n    pass\n")
    bug = Bug("some", "product.py", "return 1", replace, "test_product.py test_other.py")
    assert (outcome_of(bug, tmp_path) == "") is is_noticed
    assert product.read_text().count("return 1") == 1  # it is mended again
