"""Fetches jars from Maven Central with the Ivy that PySpark ships, so that no Maven is needed."""

import importlib.util
import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import quoteattr

from tablegate.jobs.jars import LocalError
from tablegate.jobs.jars.java import find_java

CONNECT_TIMEOUT_MS = 20_000  # without these a network that swallows packets would hang Ivy for good
READ_TIMEOUT_MS = 60_000

Progress = Callable[[int, int], None]
"""Takes how many are done, and how many there are."""


class Artifact(NamedTuple):
    """A jar of Maven Central."""

    group: str
    name: str
    revision: str

    @classmethod
    def parse(cls, text: str) -> "Artifact":
        """Return the artifact of `group:name:revision`; raise `ValueError` for anything else."""
        group, name, revision = text.split(":")
        return cls(group, name, revision)

    @property
    def file(self) -> str:
        """Name of its file."""
        return f"{self.name}-{self.revision}.jar"

    def __str__(self) -> str:
        return f"{self.group}:{self.name}:{self.revision}"


def fetch(artifacts: Iterable[Artifact], work: Path, progress: Progress) -> dict[Artifact, Path]:
    """Fetch exactly `artifacts` into the directory `work`; return the file of each that arrived.

    Nothing is resolved and nothing is checked: the caller knows the checksums. That takes one request a jar, where
    following the POMs takes ten.
    """
    wanted = list(artifacts)
    return _run(wanted, work, progress=lambda jars: progress(min(jars, len(wanted)), len(wanted)), resolve=False)


def resolve(artifacts: Iterable[Artifact], work: Path) -> dict[Artifact, Path]:
    """Fetch `artifacts` and all that they depend on into the directory `work`; return the file of each."""
    return _run(artifacts, work, progress=lambda _jars: None, resolve=True)


def _run(
    artifacts: Iterable[Artifact], work: Path, *, progress: Callable[[int], None], resolve: bool
) -> dict[Artifact, Path]:
    settings, module, cache, out = work / "settings.xml", work / "ivy.xml", work / "cache", work / "out"
    settings.write_text(_settings(resolve=resolve))
    module.write_text(_module(artifacts, transitive=resolve))
    pattern = f"{out}/[organisation]/[module]/[revision]/[artifact]-[revision].[ext]"
    command: list[str | Path] = [find_java(), "-cp", f"{_pyspark()}/jars/*", "org.apache.ivy.Main"]
    command += ["-settings", settings, "-ivy", module, "-cache", cache, "-retrieve", pattern]
    _watch(command, cache, progress)
    return {Artifact(*jar.relative_to(out).parts[:3]): jar for jar in sorted(out.rglob("*.jar"))}


def _watch(command: list[str | Path], cache: Path, progress: Callable[[int], None]) -> None:
    """Run Ivy, telling at each line that it prints how many jars are there; raise `LocalError` if it fails."""
    lines: list[str] = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as ivy:
        assert ivy.stdout is not None
        try:
            for line in ivy.stdout:
                lines.append(line)
                progress(sum(1 for _ in cache.rglob("*.jar")))
        except BaseException:
            ivy.kill()
            raise
    if ivy.returncode != 0:
        raise LocalError(
            f"the jars could not be fetched from Maven Central ({_reason(''.join(lines))}); check the network, and "
            "behind a proxy set JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=… -Dhttps.proxyPort=…'"
        )


def _reason(log: str) -> str:
    """Return why Ivy failed: the first fault of the network, else the first jar that is missing, else its last line."""
    for pattern in (r"HttpClientHandler: (.+?) url=", r"(module not found: \S+)", r"(\S[^\n]*)\s*\Z"):
        match = re.search(pattern, log)
        if match:
            return match[1]
    return "Ivy gave no reason"


def _settings(*, resolve: bool) -> str:
    return f"""<ivysettings>
  <settings defaultResolver="central"/>
  <property name="ivy.checksums" value="{"sha1" if resolve else ""}"/>
  <timeout-constraints>
    <timeout-constraint name="patient" connectionTimeout="{CONNECT_TIMEOUT_MS}" readTimeout="{READ_TIMEOUT_MS}"/>
  </timeout-constraints>
  <resolvers>
    <ibiblio name="central" m2compatible="true" usepoms="{str(resolve).lower()}" timeoutConstraint="patient"/>
  </resolvers>
</ivysettings>
"""


def _module(artifacts: Iterable[Artifact], *, transitive: bool) -> str:
    dependencies = "\n".join(
        f"    <dependency org={quoteattr(artifact.group)} name={quoteattr(artifact.name)} "
        f'rev={quoteattr(artifact.revision)} conf="jars->default" transitive="{str(transitive).lower()}"/>'
        for artifact in artifacts
    )
    return f"""<ivy-module version="2.0">
  <info organisation="tablegate" module="jars"/>
  <configurations><conf name="jars"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""


def _pyspark() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise LocalError("PySpark is not installed, and the jars are fetched with it: install it with `make setup`")
    return Path(spec.submodule_search_locations[0])
