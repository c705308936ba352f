"""The planted bugs can be planted: their texts are in the product, their tests exist. `make planted` plants them."""

from pathlib import Path

import pytest

from tests.kit.planted.__main__ import ROOT, planted
from tests.kit.planted.bugs import BUGS, Bug


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_planted(bug: Bug) -> None:
    text = Path(ROOT, bug.file).read_text()
    assert planted(bug, text) != text
    for tests in bug.tests.split():
        assert Path(ROOT, tests.partition("::")[0]).exists()


def test_there_are_bugs_of_many_kinds() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 40
    assert len({bug.file for bug in BUGS}) >= 20
