"""Environments as users have them: the wheels of this checkout, beside what they say that they need, and nothing else.

No registry is asked. What others wrote is linked, file by file, from the environment that runs the tests, as far as the
wheels' own requirements lead; `pip check` then finds what a wheel needs and does not say.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Collection, Iterable, Sequence
from email import message_from_bytes
from importlib.metadata import Distribution, distribution
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PROJECTS = {
    "tablegate": ".",
    "tablegate-client": "clients/python",
    "tablegate-gateway": "gateway",
    "tablegate-jobs": "streamjobs",
    "tablegate-proto": "proto",
}
_SITE = Path("lib", f"python{sysconfig.get_python_version()}", "site-packages")


def build_wheels(directory: Path) -> None:
    """Build the wheel of each distribution, as a release does."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    for project in PROJECTS.values():
        subprocess.run([*command, "--wheel-dir", str(directory), str(ROOT / project)], check=True, cwd=ROOT)


def wheel_of(name: str, wheels: Path) -> Path:
    """Return the one wheel of a distribution."""
    [found] = wheels.glob(f"{name.replace('-', '_')}-[0-9]*.whl")
    return found


def files_of(wheel: Path) -> frozenset[str]:
    """Return what a wheel installs, without what describes it."""
    return frozenset(name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name)


class Environment:
    """A virtual environment with some of our wheels."""

    def __init__(self, directory: Path, wheels: Path, *requirements: str, also: Iterable[str] = ()) -> None:
        """`requirements`: distributions of ours, with extras: `tablegate-gateway[compile]`. `also`: of others."""
        self.directory = directory
        self.site_packages = directory / _SITE
        venv.create(directory, symlinks=True)
        ours, theirs = _closure([*requirements, *also], wheels)
        for name in sorted(theirs):
            _link(distribution(name), self.site_packages)
        self.pip(
            "install", "--quiet", "--no-index", "--no-deps", *(str(wheel_of(name, wheels)) for name in sorted(ours))
        )

    @property
    def python(self) -> str:
        """The interpreter."""
        return str(self.directory / "bin/python")

    def pip(self, *words: str) -> str:
        """Run the pip of the tests on this environment, and return what it prints."""
        command = [sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def run(self, *words: str, cwd: Path, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
        """Run a program of this environment."""
        program, *arguments = words
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "TABLEGATE_"))}
        environment |= {"COLUMNS": "200", "PATH": f"{self.directory / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        command = [str(self.directory / "bin" / program), *arguments]
        return subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=cwd, timeout=timeout_s, env=environment
        )

    def installed_bytes(self) -> int:
        """Return the size of what is installed, with bytecode, which pip makes of all."""
        subprocess.run([self.python, "-m", "compileall", "-q", "-j", "2", str(self.site_packages)], check=False)
        return sum(file.stat().st_size for file in self.site_packages.rglob("*") if file.is_file())


def _closure(requirements: Sequence[str], wheels: Path) -> tuple[Collection[str], Collection[str]]:
    """Return the distributions that requirements lead to: ours, and those of others."""
    found: set[tuple[str, str]] = set()  # name and extra
    todo = [Requirement(text) for text in requirements]
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras}:
            if (name, extra) in found:
                continue
            found.add((name, extra))
            needed = map(Requirement, _requires(name, wheels))
            todo += [one for one in needed if one.marker is None or one.marker.evaluate({"extra": extra})]
    names = {name for name, _ in found}
    return names & PROJECTS.keys(), names - PROJECTS.keys()


def _requires(name: str, wheels: Path) -> Sequence[str]:
    if name not in PROJECTS:
        return distribution(name).requires or ()
    with ZipFile(wheel_of(name, wheels)) as wheel:
        [metadata] = [entry for entry in wheel.namelist() if entry.endswith(".dist-info/METADATA")]
        return message_from_bytes(wheel.read(metadata)).get_all("Requires-Dist", [])


def _link(found: Distribution, site_packages: Path) -> None:
    for file in found.files or ():
        if ".." in file.parts or "__pycache__" in file.parts:
            continue
        source, target = Path(str(found.locate_file(file))), site_packages / file
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:  # another file system
            shutil.copyfile(source, target)
