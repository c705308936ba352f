"""Writes what a release is made of: `python deploy/sbom.py ENVIRONMENT.json DIRECTORY`.

ENVIRONMENT.json is CycloneDX's list of the packages that are installed here, those of development among them
(`cyclonedx-py environment`). Of these stay the ones that `tablegate` needs, and the pinned jars are added. DIRECTORY
gets `tablegate.cdx.json` (CycloneDX 1.6) and `LICENSES.txt`, a line for each part. The jars inside of PySpark are parts
of PySpark: it ships their licences.
"""

import argparse
import json
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from runtime_lock import needed, own_projects

JARS = Path("streamjobs/tablegate/jobs/jars/jars.lock")
PROJECT = "tablegate"


def jar_components(lock: str) -> list[dict[str, Any]]:
    """Return the jars of the lock as components, each once."""
    found: dict[str, dict[str, Any]] = {}
    for line in lock.splitlines():
        if line.startswith("#"):
            continue
        digest, _, coordinates = line.split()
        group, name, version, *classifier = coordinates.split(":")
        purl = f"pkg:maven/{group}/{name}@{version}" + (f"?classifier={classifier[0]}" if classifier else "")
        found[purl] = {
            "type": "library",
            "bom-ref": purl,
            "group": group,
            "name": name,
            "version": version,
            "purl": purl,
            "hashes": [{"alg": "SHA-256", "content": digest}],
        }
    return list(found.values())


def bill(environment: Mapping[str, Any], names: Collection[str], jars: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the list of a release: the packages of these names, and the jars; end where one is missing."""
    packages = [each for each in environment["components"] if canonicalize_name(each["name"]) in names]
    missing = set(names) - {canonicalize_name(each["name"]) for each in packages}
    if missing:
        sys.exit(f"not installed here: {', '.join(sorted(missing))}; run make setup")
    refs = {each["bom-ref"] for each in packages}
    dependencies = [
        {"ref": each["ref"], "dependsOn": sorted(refs.intersection(each.get("dependsOn", ())))}
        for each in environment["dependencies"]
        if each["ref"] in refs
    ]
    version = own_projects()[PROJECT]["version"]
    own = {"type": "application", "bom-ref": PROJECT, "name": PROJECT, "version": version}
    everything = [*packages, *jars]
    dependencies.append({"ref": PROJECT, "dependsOn": sorted(each["bom-ref"] for each in everything)})
    metadata = {**environment["metadata"], "component": own}
    return {**environment, "metadata": metadata, "components": everything, "dependencies": dependencies}


def licence_lines(components: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each component: name, version and licences, as far as it declares them."""
    lines = []
    for each in sorted(components, key=lambda component: component["name"].lower()):
        found = [_name_of(licence) for licence in each.get("licenses", ())]
        shown = ", ".join(dict.fromkeys(text for text in found if text and "\n" not in text)) or "see its own files"
        lines.append(f"{each['name']} {each['version']}: {shown}")
    return lines


def _name_of(licence: Mapping[str, Any]) -> str:
    inner = licence.get("license", {})
    name: str = licence.get("expression") or inner.get("id") or inner.get("name", "")
    return name.rpartition(" :: ")[2]


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description="Write what a release is made of.")
    parser.add_argument("environment", type=Path, help="what cyclonedx-py environment has written")
    parser.add_argument("directory", type=Path, help="where the files go")
    arguments = parser.parse_args()
    environment = json.loads(arguments.environment.read_text())
    made = bill(environment, needed(PROJECT, own_projects()), jar_components(JARS.read_text()))
    arguments.directory.mkdir(parents=True, exist_ok=True)
    (arguments.directory / "tablegate.cdx.json").write_text(json.dumps(made, indent=2) + "\n")
    (arguments.directory / "LICENSES.txt").write_text("\n".join(licence_lines(made["components"])) + "\n")
    print(f"{len(made['components'])} parts: {arguments.directory}/tablegate.cdx.json, LICENSES.txt")


if __name__ == "__main__":
    main()
