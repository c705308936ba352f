"""Prints the part of requirements.lock that a service needs: `python deploy/runtime_lock.py tablegate-jobs`.

Runs in an environment where the whole lock is installed: which package needs which is told by their metadata.
"""

import argparse
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OWN = ("proto", "gateway", "streamjobs", "clients/python", ".")


def own_projects() -> dict[str, dict[str, Any]]:
    """Return the `project` tables of this repository's distributions, by name."""
    tables = [tomllib.loads(Path(directory, "pyproject.toml").read_text())["project"] for directory in OWN]
    return {table["name"]: table for table in tables}


def inputs(own: Mapping[str, dict[str, Any]]) -> list[str]:
    """Return what all distributions and the tools of development require of others."""
    groups = tomllib.loads(Path("pyproject.toml").read_text())["dependency-groups"]
    texts = list(groups["dev"])
    for project in own.values():
        texts += project["dependencies"]
        texts += [text for extra in project.get("optional-dependencies", {}).values() for text in extra]
    return sorted({text for text in texts if canonicalize_name(Requirement(text).name) not in own})


def needed(name: str, own: Mapping[str, dict[str, Any]]) -> frozenset[str]:
    """Return the packages of others that a requirement comes to on this platform, by canonical name."""
    found: set[tuple[str, str]] = set()  # name and extra: a package may be asked for again with another
    todo = [Requirement(name)]
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras}:
            if (name, extra) in found:
                continue
            found.add((name, extra))
            if name in own:
                todo += map(Requirement, own[name]["dependencies"])
                todo += map(Requirement, own[name].get("optional-dependencies", {}).get(extra, ()))
                continue
            others = map(Requirement, requires(name) or ())
            todo += [other for other in others if other.marker is None or other.marker.evaluate({"extra": extra})]
    return frozenset(name for name, _ in found if name not in own)


def sliced(lock: str, names: Collection[str]) -> Iterator[str]:
    """Yield the lines of the lock for these packages: name and version, then its hashes, indented."""
    wanted = False
    for line in lock.splitlines():
        if not line.startswith((" ", "#")):
            wanted = canonicalize_name(line.partition("==")[0]) in names
        if wanted:
            yield line


def main() -> None:
    """Print the slice; fail where the lock lacks a package."""
    parser = argparse.ArgumentParser(description="Print the part of requirements.lock that a service needs to run.")
    parser.add_argument("requirement", nargs="?", help="a distribution of this repository, with its extras")
    parser.add_argument("--inputs", action="store_true", help="print what the lock is to be resolved from instead")
    arguments = parser.parse_args()
    own = own_projects()
    if arguments.inputs:
        print("\n".join(inputs(own)))
        return
    if arguments.requirement is None:
        parser.error("name a distribution, such as tablegate-jobs")
    names = needed(arguments.requirement, own)
    lines = list(sliced(Path("requirements.lock").read_text(), names))
    missing = names - {canonicalize_name(line.partition("==")[0]) for line in lines if not line.startswith(" ")}
    if missing:
        sys.exit(f"requirements.lock lacks {', '.join(sorted(missing))}: write it anew")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
