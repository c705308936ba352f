"""grpc-java's client of gRPC's interoperability tests, of Maven Central: all cases in one process of Java."""

import hashlib
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tablegate.jobs.jars.java import find_java
from tests.kit.programs.go_tools import TOOLS

VERSION = "1.76.0"
INSTALL_TIMEOUT_S = 150  # a test has 300 for both
RUN_TIMEOUT_S = 120  # 12 s on a quiet machine
PROGRAM = Path(__file__).with_name("InteropCases.java")
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tablegate</groupId><artifactId>interop</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>io.grpc</groupId><artifactId>grpc-interop-testing</artifactId><version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""


@cache
def interop_jars() -> Path | None:
    """Return the directory of the client's jars; None where it cannot be had."""
    digest = hashlib.sha256(_POM.encode()).hexdigest()[:8]
    directory = TOOLS / f"grpc-java-interop-{VERSION}-{digest}"
    if not (directory / "lib").exists() and shutil.which("mvn") is not None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "pom.xml").write_text(_POM)
        words = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=fetched"]
        try:
            done = subprocess.run(words, cwd=directory, check=False, timeout=INSTALL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return None
        if done.returncode == 0:
            (directory / "fetched").rename(directory / "lib")
    return directory / "lib" if (directory / "lib").exists() else None


def interop_cases(jars: Path, port: str, cases: Sequence[str]) -> Mapping[str, str]:
    """Run cases against a port of this machine; return what was wrong with each, "" where it passed."""
    options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{jars}/*"]
    command = [str(find_java()), *options, str(PROGRAM), port, *cases]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RUN_TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-2_000:]
    return dict(line.split("\t", 1) for line in done.stdout.splitlines())
