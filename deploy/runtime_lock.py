"""Prints the part of requirements.lock that a service needs to run: `python deploy/runtime_lock.py [--without NAME]…`.

Runs in an environment where the whole lock is installed: which package needs which is told by their metadata.
"""

import argparse
import sys
import tomllib
from collections.abc import Collection, Iterable, Iterator
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def needed(names: Iterable[str], without: Collection[str]) -> frozenset[str]:
    """Return the packages that these requirements come to on this platform, by canonical name."""
    found: set[tuple[str, str]] = set()  # name and extra: a package may be asked for again with another
    todo = [Requirement(name) for name in names]
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras}:
            if name in without or (name, extra) in found:
                continue
            found.add((name, extra))
            for text in requires(name) or ():
                other = Requirement(text)
                if other.marker is None or other.marker.evaluate({"extra": extra}):
                    todo.append(other)
    return frozenset(name for name, _ in found)


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
    parser.add_argument("--without", action="append", default=[], metavar="NAME", help="a package to leave out")
    without = {canonicalize_name(name) for name in parser.parse_args().without}
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    names = needed(project["dependencies"], without)
    lines = list(sliced(Path("requirements.lock").read_text(), names))
    missing = names - {canonicalize_name(line.partition("==")[0]) for line in lines if not line.startswith(" ")}
    if missing:
        sys.exit(f"requirements.lock lacks {', '.join(sorted(missing))}: write it anew")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
