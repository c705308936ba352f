"""An archive of the classes that a Java program loads: the next one maps them, and starts in half the time (AppCDS).

    a program starts ──► there is no archive ──► Java notes its classes ──► at its end `write` starts who archives them
                    └──► there is one        ──► Java maps it

Java takes an archive only for the class path that it was written with, so its name is made from that. Java writes the
head of a file last: one without was cut off, and is written again. With an archive that does not fit after all, Java
goes on without, and says nothing.

Decision: docs/decisions/0118-an-archive-of-javas-classes.md
"""

import fcntl
import hashlib
import os
import subprocess
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tablegate.jobs.jars.jars import cache_directory

ARCHIVES_MAX = 8  # of 60 to 200 MB; of a kind, each virtual environment and each Java needs its own

_HEAD_BYTES = 4  # zero in a file that was cut off
_USERS_OWN = ("SharedArchiveFile", "ArchiveClassesAtExit", "-Xshare")
_VARIABLES = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "SPARK_SUBMIT_OPTS")
_MADE_BY_JAVA = (b"BoundMethodHandle$Species_", b"@lambda-form-invoker")
_SILENT = "-Xlog:cds=off"


class ClassArchive:
    """The archive of one kind of program, for one Java and one class path.

    `given`: the user's options of Java. Where these have an archive, or keep Java from using one, nothing is done.
    """

    def __init__(self, kind: str, java: Path, class_path: Iterable[str], *, given: str = "") -> None:
        self._java = java
        self._directory = cache_directory().parent / "classes"
        self._kind = kind
        self._archive = self._directory / f"{kind}-{_digest(java, class_path)}.jsa"
        self._noted: Path | None = None
        texts = [given, *(os.environ.get(name, "") for name in _VARIABLES)]
        self._is_users = any(own in text for own in _USERS_OWN for text in texts)

    def options(self, *, records: bool) -> list[str]:
        """Return the options of Java that map the archive, or note the classes for it where it has yet to be written.

        `records`: whether this program has the classes that others will want.
        """
        if self._is_users:
            return []
        if _is_whole(self._archive):
            with suppress(OSError):
                os.utime(self._archive)  # by which the oldest is found
            return [f"-XX:SharedArchiveFile={self._archive}", _SILENT]
        if not records:
            return []
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError:
            return []
        self._noted = self._archive.with_suffix(f".{uuid.uuid4().hex}.classes")
        return [f"-XX:DumpLoadedClassList={self._noted}"]

    def write(self, class_path: str) -> subprocess.Popen[bytes] | None:
        """Have the archive written, where the program that has run by `options` has noted its classes.

        The process that does it takes half a minute of processor time, gives way to all others, and outlives this one.
        `class_path`: as Java has it.
        """
        noted, self._noted = self._noted, None
        if noted is None or _is_whole(self._archive):
            return None
        try:
            with self._archive.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # Java inherits it, and has it while it writes
                self._remove_oldest()
                classes = self._archive.with_suffix(".classes")
                classes.write_bytes(_archivable(noted.read_bytes()))
                for other in self._directory.glob(f"{self._archive.stem}.*.classes"):  # of who was killed, too
                    other.unlink(missing_ok=True)
                command = ["nice", "-n", "19", str(self._java), "-Xshare:dump", "-Xlog:disable", "-cp", class_path]
                command += [f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={self._archive}"]
                null = subprocess.DEVNULL
                return subprocess.Popen(
                    command,
                    stdin=null,
                    stdout=null,
                    stderr=null,
                    start_new_session=True,
                    pass_fds=(lock.fileno(),),
                )
        except OSError:  # another process writes it; or the disk is full, or there is no `nice`
            return None

    def _remove_oldest(self) -> None:
        """Make room for one more. Whoever has mapped a file that goes keeps it."""
        there = sorted(self._directory.glob(f"{self._kind}-*.jsa"), key=lambda file: file.stat().st_mtime_ns)
        for file in there[: max(len(there) - ARCHIVES_MAX + 1, 0)]:
            file.unlink(missing_ok=True)


def _archivable(noted: bytes) -> bytes:
    """Return the noted classes without those that Java makes itself, for method handles.

    Java 17 crashes when it maps one of these while a profiler or an agent looks at each class that is loaded.
    """
    whole, _, _ = noted.rpartition(b"\n")  # the program may still run, and be in the middle of a line
    lines = [*whole.splitlines(keepends=True), b"\n"]
    return b"".join(line for line in lines if not any(made in line for made in _MADE_BY_JAVA))


def _digest(java: Path, class_path: Iterable[str]) -> str:
    """Return what is another one where Java, or a jar, is another one: Java would not take the archive then."""
    made_of = [(file, _time(file)) for file in (str(java.resolve()), *class_path)]
    return hashlib.sha256(repr(made_of).encode()).hexdigest()[:16]


def _time(file: str) -> int:
    with suppress(OSError):  # a class path may name what is not there
        return os.stat(file).st_mtime_ns
    return 0


def _is_whole(archive: Path) -> bool:
    try:
        with archive.open("rb") as file:
            return any(file.read(_HEAD_BYTES))
    except OSError:
        return False
