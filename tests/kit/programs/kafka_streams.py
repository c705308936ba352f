"""Kafka Streams for tests: five tables of a topic (`StreamsTables.java`), asked by its interactive queries."""

import fcntl
import hashlib
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from tablegate.examples.demo.tether import tethered
from tablegate.jobs.jars.jars import cache_directory, class_path
from tablegate.jobs.jars.java import find_java

VERSION = "4.1.0"  # of the embedded broker's client
JAR = f"https://repo1.maven.org/maven2/org/apache/kafka/kafka-streams/{VERSION}/kafka-streams-{VERSION}.jar"
JAR_SHA256 = "3e275e8a224035b7dab6344eef518fc125f6f17f3ac191b16d5ef5b55dada0a6"
DOWNLOAD_TIMEOUT_S = 60.0
PROGRAM = Path(__file__).with_name("StreamsTables.java")


class Away(Exception):
    """The jar is not in the cache and cannot be fetched."""


def installed() -> Path:
    """Return the jar of Kafka Streams, fetched into the cache where it is not there yet; raise `Away`."""
    jar = cache_directory().parent / f"kafka-streams-{VERSION}.jar"
    jar.parent.mkdir(parents=True, exist_ok=True)
    with (jar.parent / ".kafka-streams.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jar.exists():
            try:
                with urllib.request.urlopen(JAR, timeout=DOWNLOAD_TIMEOUT_S) as answer:
                    data = answer.read()
            except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
                raise Away(f"Kafka Streams cannot be fetched from Maven Central ({error})") from None
            found = hashlib.sha256(data).hexdigest()
            assert found == JAR_SHA256, f"{JAR} has SHA-256 {found}, not {JAR_SHA256}"
            part = jar.with_suffix(".part")
            part.write_bytes(data)
            part.rename(jar)
    return jar


class StoredRow(NamedTuple):
    """A row of a store: the table, the columns of its key as texts, and its value."""

    table: str
    key: tuple[str, ...]
    value: Any


class StreamsTables:
    """The program, which runs while the block does. Its changelogs are `changelog("totals")`, and so on."""

    def __init__(self, jar: Path, directory: Path, bootstrap: str, application: str, topic: str, windows: str) -> None:
        self.application = application
        pyspark = find_spec("pyspark")
        assert pyspark is not None
        assert pyspark.origin is not None
        spark_jars = Path(pyspark.origin).parent / "jars"
        [rocksdb] = spark_jars.glob("rocksdbjni-*.jar")
        paths = [class_path("broker"), str(jar), str(rocksdb)]
        self._log_file = directory / f"{application}.log"
        options = ["-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Djava.io.tmpdir={directory}"]
        self._command = [str(find_java()), *options, "-cp", ":".join(paths), str(PROGRAM)]
        self._command += [bootstrap, application, topic, windows]

    def __enter__(self) -> Self:
        with self._log_file.open("wb") as log:
            self._process = subprocess.Popen(
                tethered(self._command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # its state is of a test
        self._process.communicate()

    def changelog(self, store: str) -> str:
        """Return the topic that has the changes of a store."""
        return f"{self.application}-{store}-changelog"

    def rows(self, inputs: int) -> list[StoredRow]:
        """Return the rows of all stores once so many inputs were folded."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{inputs}\n")
        self._process.stdin.flush()
        rows = []
        for line in self._process.stdout:
            if line == "end\n":
                return rows
            table, *key, value = line.rstrip("\n").split("\t")
            rows.append(StoredRow(table, tuple(key), json.loads(value)))
        raise AssertionError(f"Kafka Streams ended: {self._log_file.read_text()[-3_000:]}")


@pytest.fixture(scope="session")
def kafka_streams() -> Iterator[Path]:
    """The jar of Kafka Streams."""
    if not find_java().with_name("javac").exists():
        pytest.skip(f'"{find_java()}" has no compiler')
    try:
        yield installed()
    except Away as away:
        pytest.skip(str(away))
