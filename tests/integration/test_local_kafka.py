"""What the embedded parts do on a machine: Java is looked for, jars are checked, Kafka lives, dies and comes back."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tablegate.examples.demo.kafka import HOST, Broker, free_port
from tablegate.jobs.jars import SetupError, jars
from tablegate.jobs.jars.java import find_java
from tests.kit.programs.kafka import NewRecord, consume, new_topic, produce
from tests.kit.programs.processes import alive, process_tree

RECORDS = [NewRecord(f"key-{number}".encode(), b"\x00value" if number % 3 else None) for number in range(200)]


def _fake_java(directory: Path, answer: str, status: int = 0) -> Path:
    directory.mkdir(parents=True)
    java = directory / "java"
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{answer}\nEND\nexit {status}\n")
    java.chmod(0o755)
    return java


@pytest.fixture
def _only_fakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Leave a PATH that has `cat`, but no Java of this machine."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "cat").symlink_to("/bin/cat")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{tools}")


@pytest.mark.usefixtures("_only_fakes")
class TestJava:
    def test_none(self) -> None:
        with pytest.raises(
            SetupError, match=r"^Java was not found, neither by JAVA_HOME nor on the PATH: install Java 17"
        ):
            find_java()

    @pytest.mark.parametrize(
        ("answer", "version"),
        [
            ('openjdk version "11.0.22" 2024-01-16', 11),
            ('java version "1.8.0_402"', 8),
            ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "16" 2021-03-16', 16),
        ],
    )
    def test_too_old(self, tmp_path: Path, answer: str, version: int) -> None:
        java = _fake_java(tmp_path / "bin", answer)
        with pytest.raises(SetupError) as refused:
            find_java()
        assert str(refused.value).startswith(f'Java {version} at "{java}" (from the PATH) is too old: install Java 17')

    @pytest.mark.parametrize("answer", ['openjdk version "17.0.15" 2025-04-15', 'openjdk version "25-ea" 2025-09-16'])
    def test_new_enough(self, tmp_path: Path, answer: str) -> None:
        java = _fake_java(tmp_path / "bin", answer)
        assert find_java() == java

    def test_java_home_comes_first(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        _fake_java(tmp_path / "bin", 'openjdk version "21.0.1"')
        _fake_java(tmp_path / "home" / "bin", 'openjdk version "11.0.1"')
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
        with pytest.raises(SetupError, match="from JAVA_HOME"):
            find_java()

    def test_java_home_without_java(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        _fake_java(tmp_path / "bin", 'openjdk version "21.0.1"')
        monkeypatch.setenv("JAVA_HOME", "/no/such/place")
        with pytest.raises(
            SetupError, match=r'^JAVA_HOME is "/no/such/place", but there is no "/no/such/place/bin/java"'
        ):
            find_java()

    def test_stub_that_only_asks_to_install_one(self, tmp_path: Path) -> None:
        _fake_java(tmp_path / "bin", "The operation couldn't be completed. Unable to locate a Java Runtime.", status=1)
        with pytest.raises(SetupError, match="did not print its version"):
            find_java()


class TestJars:
    """On a lock and a cache of two small files; nothing here asks the network for a jar that it gets."""

    @pytest.fixture(autouse=True)
    def _cache(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.files = [tmp_path / "jars" / "spark" / name for name in ("one-1.0.jar", "two-2.1.jar")]
        self.files[0].parent.mkdir(parents=True)
        lines = []
        for file in self.files:
            file.write_bytes(file.name.encode())
            name, revision = file.stem.split("-")
            lines.append(f"{hashlib.sha256(file.name.encode()).hexdigest()} spark org.example:{name}:{revision}")
        self.lock = tmp_path / "jars.lock"
        self.lock.write_text("# a comment\n" + "\n".join(lines) + "\n")
        monkeypatch.setenv("TABLEGATE_CACHE", str(tmp_path))

    def test_right_jars_are_given_and_nothing_else(self) -> None:
        (self.files[0].parent / "stranger-1.0.jar").write_bytes(b"of another checkout")
        seen: list[tuple[int, int]] = []
        assert jars.jars("spark", lambda done, total: seen.append((done, total)), lock_file=self.lock) == self.files
        assert seen == [(2, 2)]
        assert jars.jars("spark", lock_file=self.lock) == self.files

    @pytest.mark.parametrize("verified_before", [False, True])
    def test_wrong_checksum_is_refused_and_the_jar_removed(self, verified_before: bool) -> None:
        if verified_before:
            jars.jars("spark", lock_file=self.lock)
        self.files[1].write_bytes(b"two-6.6.jar")  # as long as the right one
        with pytest.raises(SetupError, match=r'^jar "two-2\.1\.jar" has SHA-256 [0-9a-f]{64}, but jars\.lock says'):
            jars.jars("spark", lock_file=self.lock)
        assert self.files[0].exists()
        assert not self.files[1].exists()

    def test_damaged_lock(self) -> None:
        self.lock.write_text("abc spark\n")
        with pytest.raises(SetupError, match='line 1 is not "SHA-256 kind group:name:revision"'):
            jars.jars("spark", lock_file=self.lock)

    def test_cache_that_is_no_directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("TABLEGATE_CACHE", str(tmp_path / "file"))
        with pytest.raises(SetupError, match="set TABLEGATE_CACHE to a directory that you may write to"):
            jars.jars("spark", lock_file=self.lock)

    @pytest.mark.jvm
    def test_no_network(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files[1].unlink()
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1")
        with pytest.raises(
            SetupError, match=r"could not be fetched from Maven Central \(.*Connection refused\); check"
        ):
            jars.jars("spark", lock_file=self.lock)
        assert self.files[0].exists()
        assert not list(self.files[0].parent.glob(".fetch-*"))


@pytest.mark.jvm
class TestBroker:
    def test_data_survives_stop_kill_and_other_ports(self, tmp_path: Path) -> None:
        broker = Broker(tmp_path / "kafka")
        try:
            broker.start()
            topic = new_topic(broker.bootstrap, partitions=2)
            produce(broker.bootstrap, topic, RECORDS)
            written = consume(broker.bootstrap, topic)
            assert Counter(record.key for record in written) == Counter(record.key for record in RECORDS)
            addresses = {broker.bootstrap}
            for end in (broker.stop, broker.kill):
                pid = broker.pid
                end()
                assert not broker.running
                assert not Path(f"/proc/{pid}").exists()
                broker.start()
                addresses.add(broker.bootstrap)
                assert consume(broker.bootstrap, topic) == written
            assert len(addresses) > 1
        finally:
            broker.stop()
        broker.stop()

    def test_data_in_use_by_another(self, broker: Broker) -> None:
        with pytest.raises(SetupError, match=f'^the Kafka data in "{broker.data_dir}" is in use by another broker'):
            Broker(broker.data_dir).start()
        assert broker.running

    def test_port_in_use(self, tmp_path: Path) -> None:
        with socket.socket() as taken:
            taken.bind((HOST, 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(SetupError, match=rf"^port {port} on 127\.0\.0\.1 is taken"):
                Broker(tmp_path / "kafka", port).start()

    def test_start_that_fails_says_what_the_log_says(self, tmp_path: Path) -> None:
        broker = Broker(tmp_path / "kafka", log_file=tmp_path / "logs" / "kafka.log")
        broker.start()
        broker.stop()
        failing = Broker(broker.data_dir, log_file=broker.log_file, settings={"num.io.threads": "many"})
        with pytest.raises(
            SetupError, match=r"^Kafka ended while it started: .*num\.io\.threads: Not a number"
        ) as failed:
            failing.start()
        assert "\n" not in str(failed.value)
        assert str(broker.log_file) in str(failed.value)
        assert not failing.running

    def test_storage_that_cannot_be_made(self, tmp_path: Path) -> None:
        with pytest.raises(SetupError, match=r"^Kafka cannot make its storage in "):
            Broker(tmp_path / "kafka", settings={"num.io.threads": "many"}).start()
        with Broker(tmp_path / "kafka") as broker:
            assert broker.running

    def test_directory_of_something_else(self, tmp_path: Path) -> None:
        (tmp_path / "kafka" / "log").mkdir(parents=True)
        with pytest.raises(SetupError, match="holds no Kafka data, or damaged data: remove it"):
            Broker(tmp_path / "kafka").start()

    def test_ends_with_its_parent_and_not_by_ctrl_c(self, tmp_path: Path) -> None:
        program = (
            "import sys, time; from pathlib import Path; from tablegate.examples.demo.kafka import Broker\n"
            "with Broker(Path(sys.argv[1])) as broker: print(broker.pid, flush=True); time.sleep(600)"
        )
        command = [sys.executable, "-c", program, str(tmp_path / "kafka")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout is not None
            try:
                pid = int(parent.stdout.readline())
                assert os.getsid(pid) == pid  # so the terminal's signals do not reach it
            finally:
                parent.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 30
        while alive(pid):
            assert time.monotonic() < deadline, "the broker outlived its parent"
            time.sleep(0.1)
        with Broker(tmp_path / "kafka") as again:
            assert again.running


@pytest.mark.jvm
class TestBrokerCommand:
    """`tablegate broker`, on a port and in a directory of its own."""

    @pytest.fixture
    def command(self, tmp_path: Path) -> list[str]:
        words = ["broker", "--port", str(free_port()), "--data", str(tmp_path / "kafka")]
        return [sys.executable, "-m", "tablegate.gateway.cli", *words]

    def test_topics_are_made_and_stay(self, command: list[str]) -> None:
        address = f"{HOST}:{command[command.index('--port') + 1]}"
        for made in ("is made", "was there"):
            with subprocess.Popen(
                [*command, "--topic", "orders:2", "--topic", "names"], stdout=subprocess.PIPE, text=True
            ) as running:
                printed = self._until_listening(running)
                assert printed[:2] == [f"topic orders:2 {made}", f"topic names:1 {made}"]
                assert printed[2].startswith(f"Kafka listens on {address}; its data is in ")
                produce(address, "orders", RECORDS)
                running.send_signal(signal.SIGINT)
                assert running.communicate()[0].startswith("stopped; ")
            assert running.returncode == 0
        twice = [*command, "--topic", "orders:2", "--topic", "orders:3"]
        refused = subprocess.run(twice, capture_output=True, text=True, check=False)
        assert refused.returncode == 1
        assert refused.stderr.startswith('error: topic "orders" ')
        with Broker(Path(command[-1])) as broker:
            assert len(consume(broker.bootstrap, "orders")) == 2 * len(RECORDS)

    def test_kafka_that_ends_by_itself_is_told(self, command: list[str]) -> None:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            self._until_listening(running)
            [kafka] = process_tree(running.pid) - {running.pid}
            os.kill(kafka, signal.SIGKILL)
            assert running.stderr is not None
            assert running.stderr.read().startswith("error: Kafka has ended by itself: ")
        assert running.returncode == 1

    def _until_listening(self, running: subprocess.Popen[str]) -> list[str]:
        assert running.stdout is not None
        printed: list[str] = []
        for line in running.stdout:
            printed += [line.strip()] if line.strip() else []  # bars leave an empty line
            if line.startswith("Kafka listens"):
                break
        return printed
