"""Finds the Java that Spark and Kafka run on."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from tablegate.jobs.jars import SetupError

JAVA_VERSION_MIN = 17  # what Spark 4 and Kafka 4 are compiled for
ANSWER_TIMEOUT_S = 30.0  # `java -version` takes 0.1 s; more than this is a machine in trouble
# For a Java of some minutes, as of the demo or of tests: the quick compiler alone, as the other does not pay for itself
# in that time. Alone it would have room for 48 MB of code, which Spark fills with eight tables; Java ends threads then.
SHORT_LIVED_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m", "-XX:+UseSerialGC")

_HINT = f"install Java {JAVA_VERSION_MIN} or newer, and set JAVA_HOME where it is not the first on the PATH"


def find_java() -> Path:
    """Return the `java` to run; raise `SetupError` where there is none, or one that is too old.

    JAVA_HOME comes first and is never passed over, because Spark's own scripts would not pass it over either.
    """
    java, origin = _locate()
    version = _version(java, origin)
    if version < JAVA_VERSION_MIN:
        raise SetupError(f'Java {version} at "{java}" ({origin}) is too old: {_HINT}')
    return java


def _locate() -> tuple[Path, str]:
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin", "java")
        if not os.access(java, os.X_OK):
            raise SetupError(f'JAVA_HOME is "{home}", but there is no "{java}": correct or unset it, or {_HINT}')
        return java, "from JAVA_HOME"
    found = shutil.which("java")
    if found is None:
        raise SetupError(f"Java was not found, neither by JAVA_HOME nor on the PATH: {_HINT}")
    return Path(found), "from the PATH"


def _version(java: Path, origin: str) -> int:
    """Return the feature number of `java`: 8 for 1.8.0_402, 17 for 17.0.15, 25 for 25-ea."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, errors="replace", timeout=ANSWER_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f'"{java}" ({origin}) does not run ({error}): {_HINT}') from None
    # The version is in one of several lines of stderr; JAVA_TOOL_OPTIONS puts another in front.
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if answer.returncode != 0 or match is None:
        raise SetupError(f'"{java}" ({origin}) did not print its version: {_HINT}')
    return int(match[1])
