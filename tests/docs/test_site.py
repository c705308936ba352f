"""The documentation as a site: mkdocs builds it without a warning, and the workflow that runs in forks is one."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kit.docs.pages import DOCS, ROOT

pytest.importorskip("mkdocs", reason="the documentation's tools are not installed")


@pytest.mark.tools
def test_the_site_builds_and_links_lead_to_the_repository(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        env={"PATH": "", "TABLEGATE_REPOSITORY_URL": "https://code.example/tablegate", "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for page in DOCS.rglob("*.md"):
        assert (tmp_path / page.relative_to(DOCS)).with_suffix(".html").is_file(), page
    assert not list(tmp_path.rglob("*.py"))
    guarantees = (tmp_path / "explanation" / "guarantees.html").read_text()
    assert 'href="https://code.example/tablegate/blob/main/SECURITY.md"' in guarantees
    assert "fonts.googleapis" not in guarantees


@pytest.mark.parametrize(("name", "targets"), [("ci", ("check", "test", "docs")), ("nightly", ("test-long",))])
def test_workflows_run_what_people_type(name: str, targets: Sequence[str]) -> None:
    import yaml

    text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text()
    workflow = yaml.safe_load(text)
    runs = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    for target in targets:
        assert f"make {target} PYTHON=python" in runs
    assert workflow["permissions"] == {"contents": "read"}
    assert "secrets." not in text
