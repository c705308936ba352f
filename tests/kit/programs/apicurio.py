"""A real schema registry for tests: Apicurio Registry, in memory, asked by the Confluent API that it has too."""

import fcntl
import hashlib
import re
import subprocess
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest
from tablegate.examples.demo.tether import tethered
from tablegate.jobs.jars.jars import cache_directory
from tablegate.jobs.jars.java import find_java

VERSION = "2.6.13.Final"  # the newest that runs on Java 17; 3.x wants 21
ARCHIVE = (
    "https://repo1.maven.org/maven2/io/apicurio/apicurio-registry-app/"
    f"{VERSION}/apicurio-registry-app-{VERSION}-all.tar.gz"
)
ARCHIVE_SHA256 = "3cda1b34aa020fb4ac4dd6a66018d757e81e437f97e20a1f92d366b70091c6ba"
ARCHIVE_MB = 142
HEAP_MB = 256
DOWNLOAD_TIMEOUT_S = 60.0  # without a byte
START_TIMEOUT_S = 90.0  # 6 s on a quiet machine
POLL_S = 0.1
_LISTENING = re.compile(r"Listening on: (http://127\.0\.0\.1:\d+)")


class Away(Exception):
    """The registry is not in the cache and cannot be fetched."""


def installed(announce: Callable[[str], None]) -> Path:
    """Return the registry's directory, fetched into the cache where it is not there yet; raise `Away`.

    Any number of processes may call at once: one fetches, the others wait for it.
    """
    directory = cache_directory().parent / f"apicurio-registry-{VERSION}"
    directory.parent.mkdir(parents=True, exist_ok=True)
    with (directory.parent / ".apicurio.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            announce(f"fetching Apicurio Registry ({ARCHIVE_MB} MB, once) into {directory}")
            with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".apicurio-") as work:
                archive = Path(work, "archive")
                _download(archive)
                with tarfile.open(archive) as packed:
                    packed.extractall(Path(work, "registry"), filter="data")
                Path(work, "registry").rename(directory)
    return directory


def _download(archive: Path) -> None:
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(ARCHIVE, timeout=DOWNLOAD_TIMEOUT_S) as answer, archive.open("wb") as file:
            while piece := answer.read(1 << 20):
                digest.update(piece)
                file.write(piece)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise Away(f"Apicurio Registry cannot be fetched from Maven Central ({error})") from None
    assert digest.hexdigest() == ARCHIVE_SHA256, f"{ARCHIVE} has SHA-256 {digest.hexdigest()}, not {ARCHIVE_SHA256}"


class Registry:
    """A registry that runs while the block does, and no longer than this process. `url`: its Confluent API."""

    def __init__(self, directory: Path, log_file: Path) -> None:
        self._directory = directory
        self._log_file = log_file
        self.url = ""

    def __enter__(self) -> Self:
        java = [str(find_java()), f"-Xmx{HEAP_MB}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        # Port 0: the kernel chooses one, and the log says which.
        settings = ["-Dquarkus.http.host=127.0.0.1", "-Dquarkus.http.port=0"]
        jar = self._directory / f"apicurio-registry-app-{VERSION}-runner.jar"
        with self._log_file.open("wb") as log:
            self._process = subprocess.Popen(
                tethered([*java, *settings, "-jar", str(jar)]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self.url = f"{self._address()}/apis/ccompat/v7"
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # it has nothing to lose
        self._process.wait()

    @property
    def pid(self) -> int:
        """Process id of the registry."""
        return self._process.pid

    def _address(self) -> str:
        end_s = time.monotonic() + START_TIMEOUT_S
        while True:
            said = self._log_file.read_text(errors="replace")
            if matched := _LISTENING.search(said):
                return matched[1]
            assert self._process.poll() is None, f"the registry ended while it started: {said[-2_000:]}"
            assert time.monotonic() < end_s, f"the registry did not start within {START_TIMEOUT_S:g} s: {said[-2_000:]}"
            time.sleep(POLL_S)


@pytest.fixture(scope="session")
def schema_registry(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of one registry for all tests of a session: use topics and record names of your own."""
    capture = request.config.pluginmanager.get_plugin("capturemanager")

    def announce(line: str) -> None:
        assert capture is not None, "pytest always has it"
        with capture.global_and_fixture_disabled():
            print(f"\n{line}", flush=True)

    try:
        directory = installed(announce)
    except Away as away:
        pytest.skip(str(away))
    with Registry(directory, tmp_path_factory.mktemp("registry") / "registry.log") as running:
        yield running.url
