"""The pinned jars of Spark's Kafka connector and of the embedded broker.

`jars.lock` beside this file names every jar and its SHA-256. `jars()` gives the files, and fetches them when they are
not there yet, into `~/.cache/tablegate/jars` (or `$TABLEGATE_CACHE/jars`). Nothing that the lock does not name is ever
returned; it may lie there all the same, for a checkout with another lock that shares the cache.

`python -m tablegate.jobs.jars.jars --lock` writes the lock anew after an edit of `ROOTS`.

Decision: docs/decisions/0016-pinned-jars.md
"""

import argparse
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple, get_args
from xml.sax.saxutils import quoteattr

from tablegate.jobs.jars import SetupError
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
    classifier: str = ""

    @classmethod
    def parse(cls, text: str) -> "Artifact":
        """Return the artifact of `group:name:revision`, `:classifier` behind it; raise `ValueError` for another."""
        group, name, revision, *more = text.split(":")
        (classifier,) = more or ("",)
        return cls(group, name, revision, classifier)

    @property
    def file(self) -> str:
        """Name of its file."""
        return f"{'-'.join(filter(None, (self.name, self.revision, self.classifier)))}.jar"

    def __str__(self) -> str:
        return ":".join(filter(None, self))


Kind = Literal["spark", "msk", "broker"]

LOCK_FILE = Path(__file__).with_name("jars.lock")

ROOTS: Mapping[Kind, tuple[str, ...]] = {
    # The newest builds of Spark's connectors that Maven Central has; they run on PySpark 4.3.0. All else that they
    # depend on is in PySpark already, and a second copy would be on the class path twice: these are taken alone.
    "spark": (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
        "org.apache.spark:spark-avro_2.13:4.1.1",
        "org.apache.kafka:kafka-clients:3.9.2",
        "org.apache.commons:commons-pool2:2.13.1",
    ),
    # With all that it depends on, most of it under names of its own.
    "msk": ("software.amazon.msk:aws-msk-iam-auth:2.3.9:all",),
    # Kafka's own jar asks for no logging back end, and without one the broker would fail in silence.
    "broker": ("org.apache.kafka:kafka_2.13:4.1.0", "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3"),
}


def jars(kind: Kind, progress: Progress | None = None, *, lock_file: Path = LOCK_FILE) -> list[Path]:
    """Return the jars of `kind`, fetching those that are missing; raise `SetupError` if that cannot be done.

    `progress` gets how many jars are there and how many there will be. Any number of processes may call at once:
    one fetches, the others wait for it.
    """
    report = progress or (lambda _done, _total: None)
    lock_text = _lock_text(lock_file)
    locked = read_lock(lock_text, lock_file)[kind]
    directory = cache_directory() / kind
    files = [directory / artifact.file for artifact in locked]
    verified = directory / f".verified-{hashlib.sha256(lock_text.encode()).hexdigest()[:16]}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not _is_verified(verified, files):
            with _alone(directory):
                if not _is_verified(verified, files):
                    _complete(directory, locked, report)
                    _replace_text(verified, _stamp(files))
    except OSError as error:
        raise SetupError(
            f'jars cannot be kept in "{directory}" ({error.strerror}): '
            "set TABLEGATE_CACHE to a directory that you may write to, with room"
        ) from None
    report(len(files), len(files))
    return files


def class_path(kind: Kind, progress: Progress | None = None) -> str:
    """Return the jars of `kind` as a Java class path."""
    return os.pathsep.join(str(jar) for jar in jars(kind, progress))


def cache_directory() -> Path:
    """Return where the jars are kept."""
    return Path(os.environ.get("TABLEGATE_CACHE") or Path.home() / ".cache" / "tablegate").absolute() / "jars"


def read_lock(text: str, lock_file: Path = LOCK_FILE) -> dict[Kind, dict[Artifact, str]]:
    """Return the SHA-256 of each jar of each kind, of the text of a lock; raise `SetupError` for a damaged one."""
    locked: dict[Kind, dict[Artifact, str]] = {kind: {} for kind in get_args(Kind)}
    for number, line in enumerate(text.splitlines(), start=1):
        if line and not line.startswith("#"):
            try:
                checksum, kind, coordinates = line.split()
                locked[kind][Artifact.parse(coordinates)] = checksum  # type: ignore[index]  # a KeyError says so
            except (ValueError, KeyError):
                raise SetupError(
                    f'"{lock_file}" line {number} is not "SHA-256 kind group:name:revision": restore the file'
                ) from None
    return locked


def _lock_text(lock_file: Path) -> str:
    try:
        return lock_file.read_text()
    except OSError as error:
        raise SetupError(f'"{lock_file}" cannot be read ({error.strerror}): restore the file') from None


def _complete(directory: Path, locked: Mapping[Artifact, str], report: Progress) -> None:
    """Check the jars that are there, fetch those that are not, and check these before they get their names."""
    for artifact, checksum in locked.items():
        if (directory / artifact.file).exists():
            _check(directory / artifact.file, checksum)
    missing = [artifact for artifact in locked if not (directory / artifact.file).exists()]
    if not missing:
        return
    there = len(locked) - len(missing)
    report(there, len(locked))
    for abandoned in directory.glob(".fetch-*"):  # by a process that was killed; nobody else is here now
        shutil.rmtree(abandoned, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".fetch-") as work:
        fetched = fetch(missing, Path(work), lambda done, _total: report(there + done, len(locked)))
        for artifact in missing:
            if artifact not in fetched:
                raise SetupError(f'jar "{artifact}" did not arrive from Maven Central: try again')
            _check(fetched[artifact], locked[artifact])
        for artifact in missing:
            fetched[artifact].rename(directory / artifact.file)


def _check(jar: Path, expected: str) -> None:
    found = _sha256(jar)
    if found != expected:
        jar.unlink()
        raise SetupError(
            f'jar "{jar.name}" has SHA-256 {found}, but jars.lock says {expected}; it was removed from '
            f'"{cache_directory()}": try again, and if that repeats, do not trust where it came from'
        )


def _is_verified(verified: Path, files: list[Path]) -> bool:
    """Return whether the files were checked against the lock that `verified` is named after, and not touched since."""
    try:
        return verified.read_text() == _stamp(files)
    except FileNotFoundError:
        return False


def _stamp(files: list[Path]) -> str:
    """Return what changes when a file does; raise `FileNotFoundError` if one is missing."""
    status = {file.name: file.stat() for file in files}
    return "".join(f"{name} {stat.st_size} {stat.st_mtime_ns}\n" for name, stat in status.items())


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold the directory against other processes; they wait."""
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _replace_text(file: Path, text: str) -> None:
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(file)


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_lock() -> None:
    """Resolve `ROOTS` anew and write what they come to; raise `SetupError` if that cannot be done."""
    lines = ["# SHA-256, kind and coordinates of each jar; written by `python -m tablegate.jobs.jars.jars --lock`."]
    for kind, roots in ROOTS.items():
        artifacts = [Artifact.parse(root) for root in roots]
        with tempfile.TemporaryDirectory() as work:
            if kind != "broker":
                found = fetch(artifacts, Path(work), lambda _done, _total: None)
            else:
                found = resolve(artifacts, Path(work))
            lines += [f"{_sha256(jar)} {kind} {artifact}" for artifact, jar in sorted(found.items())]
    _replace_text(LOCK_FILE, "\n".join(lines) + "\n")


# Maven Central, by the Ivy that PySpark ships: no Maven is needed.


def fetch(artifacts: Iterable[Artifact], work: Path, progress: Progress) -> dict[Artifact, Path]:
    """Fetch exactly `artifacts` into the directory `work`; return the file of each that arrived.

    Nothing is resolved and nothing is checked, as the caller knows the checksums. That is one request a jar; following
    the POMs would be ten.
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
    pattern = f"{out}/[organisation]/[module]/[revision]/[artifact]-[revision](-[classifier]).[ext]"
    command: list[str | Path] = [find_java(), "-cp", f"{_pyspark()}/jars/*", "org.apache.ivy.Main"]
    command += ["-settings", settings, "-ivy", module, "-cache", cache, "-retrieve", pattern]
    _run_ivy(command, cache, progress)
    found = {}
    for jar in sorted(out.rglob("*.jar")):
        plain = Artifact(*jar.relative_to(out).parts[:3])
        classifier = jar.stem.removeprefix(plain.file.removesuffix(".jar")).removeprefix("-")
        found[plain._replace(classifier=classifier)] = jar
    return found


def _run_ivy(command: list[str | Path], cache: Path, progress: Callable[[int], None]) -> None:
    """Run Ivy, and report how many jars there are at each line that it prints; raise `SetupError` if it fails."""
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
        raise SetupError(
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
        f'rev={quoteattr(artifact.revision)} conf="jars->default" transitive="{str(transitive).lower()}">'
        f"{_classified(artifact)}</dependency>"
        for artifact in artifacts
    )
    return f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="tablegate" module="jars"/>
  <configurations><conf name="jars"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""


def _classified(artifact: Artifact) -> str:
    if not artifact.classifier:
        return ""
    return f'<artifact name={quoteattr(artifact.name)} type="jar" m:classifier={quoteattr(artifact.classifier)}/>'


def _pyspark() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise SetupError("PySpark is not installed, and the jars are fetched with it: install it with `make setup`")
    return Path(spec.submodule_search_locations[0])


def main() -> int:
    """Fetch all jars, or write the lock."""
    parser = argparse.ArgumentParser(prog="python -m tablegate.jobs.jars.jars", description="Fetch the pinned jars.")
    parser.add_argument("--lock", action="store_true", help="resolve the jars anew and write jars.lock")
    try:
        if parser.parse_args().lock:
            write_lock()
        for kind in get_args(Kind):
            print(f"{len(jars(kind))} jars of {kind} in {cache_directory() / kind}")
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
