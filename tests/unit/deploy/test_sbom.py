import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.table.filled import ROOT

LOCK = "streamjobs/tablegate/jobs/jars/jars.lock"


def component(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "library", "bom-ref": f"{name}==1", "name": name, "version": "1", **more}


def write(tmp_path: Path, names: list[str]) -> subprocess.CompletedProcess[str]:
    packages = [component(name, licenses=[{"license": {"name": "License :: OSI Approved :: MIT"}}]) for name in names]
    environment = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "metadata": {},
        "components": packages,
        "dependencies": [{"ref": f"{name}==1", "dependsOn": ["pytest==1", "lmdb==1"]} for name in names],
    }
    file = tmp_path / "environment.json"
    file.write_text(json.dumps(environment))
    command = [sys.executable, "deploy/sbom.py", str(file), str(tmp_path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def needed() -> list[str]:
    listed = subprocess.run(
        [sys.executable, "deploy/runtime_lock.py", "tablegate"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [line.partition("==")[0] for line in listed.stdout.splitlines() if not line.startswith(" ")]


@pytest.mark.tools
def test_a_release_is_its_packages_and_jars(tmp_path: Path) -> None:
    made = write(tmp_path, [*needed(), "pytest"])
    assert made.returncode == 0, made.stderr
    bill = json.loads((tmp_path / "tablegate.cdx.json").read_text())
    parts = {each["bom-ref"]: each for each in bill["components"]}
    assert "lmdb==1" in parts
    assert "pytest==1" not in parts
    kafka = parts["pkg:maven/org.apache.kafka/kafka-clients@3.9.2"]
    assert kafka["hashes"][0]["content"] in Path(ROOT, LOCK).read_text()
    assert all(set(each["dependsOn"]) <= parts.keys() for each in bill["dependencies"])
    assert "lmdb 1: MIT\n" in (tmp_path / "LICENSES.txt").read_text()


@pytest.mark.tools
def test_a_package_that_is_missing_is_named(tmp_path: Path) -> None:
    made = write(tmp_path, [name for name in needed() if name != "lmdb"])
    assert made.returncode != 0
    assert "not installed here: lmdb" in made.stderr
