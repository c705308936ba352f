"""Scenarios: each file here is a test. `pytest --rewrite-scenarios` writes down what they print now.

Commands of those called reads_… are told in tests/kit/scenarios/gateways.py, of all others in replicators.py beside it.
"""

from pathlib import Path

import pytest

from tests.kit.scenarios.gateways import GatewayScenario
from tests.kit.scenarios.replicators import ReplicatorScenario
from tests.kit.scenarios.script import blocks_of, rewritten

FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text("utf-8")
    with GatewayScenario() if path.stem.startswith("reads_") else ReplicatorScenario() as world:
        now = rewritten(text, world.run)
    if request.config.getoption("--rewrite-scenarios"):
        path.write_text(now, "utf-8")
        return
    assert now.splitlines() == text.splitlines()
    assert any(block.expected for block in blocks_of(text))


def test_there_are_scenarios() -> None:
    assert len(FILES) >= 20
