"""A real single-node Kafka (KRaft) as a child process."""

import base64
import fcntl
import itertools
import os
import random
import re
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tablegate.examples.demo.tether import tethered
from tablegate.jobs.jars import SetupError
from tablegate.jobs.jars.class_archive import ClassArchive
from tablegate.jobs.jars.jars import class_path
from tablegate.jobs.jars.java import find_java

HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)  # below those that the kernel gives to outgoing connections, which come and go
_NEXT_PORTS = itertools.count(random.randrange(len(PORTS)))  # where another process would not begin
HEAP_MB = 512
START_TIMEOUT_S = 90.0  # 2 s on a quiet machine
STOP_GRACE_S = 15.0  # 0.3 s with few partitions
LOCK_WAIT_S = 5.0  # a broker whose parent was just killed takes a moment to end
ANSWER_TIMEOUT_S = 5.0
POLL_S = 0.05
LOG_LINES_SHOWN = 3

LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
# A serial collector starts fastest, and suffices for a broker that one machine feeds.
JAVA_OPTIONS = (f"-Xmx{HEAP_MB}m", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={LOG_SETTINGS}")
QUICK_COMPILER = ("-XX:TieredStopAtLevel=1",)  # the other one costs a broker of few events half of its processor time

SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",  # a misspelt topic is an error
    # Sample events have no end of life; a topic may set another.
    "log.retention.ms": "-1",
    # There is one broker to hold copies, and few clients to spread over partitions.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",  # nobody else will join
    # After a crash the controller lets the broker in again when its old session has ended; by default after 9 s.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "log.cleaner.dedupe.buffer.size": str(32 * 2**20),  # of the small heap; 1.2 million keys a pass
}


class Broker:
    """A Kafka broker on this machine, and its data.

    It belongs to the thread that starts it: the broker is stopped when that thread's process dies, however it dies,
    and on Linux when that thread ends. Ctrl-C in a terminal does not reach it. `settings` are Kafka's own, over ours.
    `compiler`: options of Java, () for a broker of many events.
    """

    def __init__(
        self,
        data_dir: Path,
        port: int | None = None,
        *,
        log_file: Path | None = None,
        settings: Mapping[str, str] | None = None,
        listeners: Mapping[str, int] | None = None,
        compiler: Sequence[str] = QUICK_COMPILER,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self.log_file = log_file or self.data_dir / "broker.log"
        self._wanted_port = port
        self._settings = dict(settings or {})
        self._listeners = dict(listeners or {})  # further ones: the port of each, by its name in the settings
        self._compiler = compiler
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: IO[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """`host:port`, as clients want it; known once it was started."""
        assert self._port, "the broker was never started"
        return f"{HOST}:{self._port}"

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there. One that died by itself is not, and its log says why."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start, on the data that is there or anew, and wait until it answers; raise `SetupError` if it does not."""
        assert not self.running, "the broker is running"
        self._release()
        java, jars = find_java(), class_path("broker")
        self._archive = ClassArchive("broker", java, jars.split(os.pathsep))
        try:
            self._prepare()
            cluster_id = self._format(java, jars)
            self._port, controller_port = self._choose_ports()
            properties = self.data_dir / "server.properties"
            properties.write_text(self._properties(self._port, controller_port, self.data_dir / "log"))
            options = [*JAVA_OPTIONS, *self._compiler, *self._archive.options(records=True)]
            self._launch([str(java), *options, "-cp", jars, "kafka.Kafka", str(properties)])
            self._wait(cluster_id)
        except OSError as error:
            self.kill()
            raise SetupError(
                f'Kafka cannot use its directory "{self.data_dir}" ({error.strerror}): choose another'
            ) from None
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End the broker in good order, or by force after a grace; nothing happens when it does not run."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            except KeyboardInterrupt:  # the second of somebody who does not want to wait
                self.kill()
                raise
            self._archive.write(class_path("broker"))
        self._release()

    def kill(self) -> None:
        """End the broker at once (SIGKILL), as a crash would; `start` finds what it had written."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._release()

    def _release(self) -> None:
        self._process = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _prepare(self) -> None:
        """Make the directories and take the lock on the data.

        The broker inherits the lock, so it is held for as long as this process or the broker lives.
        """
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        self._lock = (self.data_dir / "lock").open("w")
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise SetupError(
                        f'the Kafka data in "{self.data_dir}" is in use by another broker: stop that one, '
                        "or choose another directory"
                    ) from None
                time.sleep(POLL_S)

    def _format(self, java: Path, jars: str) -> str:
        """Make the storage where there is none; return the cluster's id.

        It is made under another name and then renamed, so that a start that is cut short leaves nothing half made.
        """
        log, draft = self.data_dir / "log", self.data_dir / "log.draft"
        if not log.exists():
            shutil.rmtree(draft, ignore_errors=True)
            properties = self.data_dir / "format.properties"
            properties.write_text(self._properties(PORTS[0], PORTS[1], draft))
            command: list[str | Path] = [
                java,
                *JAVA_OPTIONS,
                *self._archive.options(records=False),
                *QUICK_COMPILER,
                "-cp",
                jars,
                "kafka.tools.StorageTool",
            ]
            command += ["format", "--standalone", "--cluster-id", _new_cluster_id(), "--config", properties]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
            if done.returncode != 0:
                raise SetupError(
                    f'Kafka cannot make its storage in "{self.data_dir}": {_tail(done.stdout + done.stderr)}'
                )
            properties.unlink()
            draft.rename(log)
        match = None
        if (log / "meta.properties").exists():
            match = re.search(r"^cluster\.id=(.+)$", (log / "meta.properties").read_text(), re.MULTILINE)
        if match is None:
            raise SetupError(f'"{log}" holds no Kafka data, or damaged data: remove it, or choose another directory')
        return match[1].strip()

    def _choose_ports(self) -> tuple[int, int]:
        if self._wanted_port is None:
            first = free_port()
        elif _is_free(self._wanted_port):
            first = self._wanted_port
        else:
            raise SetupError(
                f"port {self._wanted_port} on {HOST} is taken, so Kafka cannot listen on it: "
                "end the program that has it, or choose another port"
            )
        return first, free_port()

    def _properties(self, port: int, controller_port: int, log: Path) -> str:
        """Return the broker's configuration. Its ports are in it anew at each start; the data does not care."""
        brokers = ",".join(f"{name}://{HOST}:{at}" for name, at in {"PLAINTEXT": port, **self._listeners}.items())
        listeners = {
            "listeners": f"{brokers},CONTROLLER://{HOST}:{controller_port}",
            "advertised.listeners": brokers,
            "controller.quorum.bootstrap.servers": f"{HOST}:{controller_port}",
            "log.dirs": str(log).replace("\\", "\\\\"),
        }
        return "".join(f"{name}={value}\n" for name, value in {**SETTINGS, **self._settings, **listeners}.items())

    def _launch(self, command: list[str]) -> None:
        """Start the process in a session of its own: signals of the terminal go to the parent alone."""
        assert self._lock is not None
        with self.log_file.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                tethered(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.data_dir,
                start_new_session=True,
                pass_fds=(self._lock.fileno(),),
            )

    def _wait(self, cluster_id: str) -> None:
        """Wait until our own broker answers; raise `SetupError` when it ends, or does not in time."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if not self.running:
                raise SetupError(f"Kafka ended while it started: {self._log_tail()}")
            if not _is_free(self._port) and self._answers(cluster_id):
                return
            time.sleep(POLL_S)
        raise SetupError(f"Kafka did not answer within {START_TIMEOUT_S:.0f} s: {self._log_tail()}")

    def _answers(self, cluster_id: str) -> bool:
        # Another broker may have got the port in the meantime: only the cluster's id shows that it is ours.
        try:
            with socket.create_connection((HOST, self._port), ANSWER_TIMEOUT_S):
                pass  # asked first, because the client would log a refusal on stderr
            client = AdminClient({"bootstrap.servers": self.bootstrap})
            return bool(client.list_topics(timeout=ANSWER_TIMEOUT_S).cluster_id == cluster_id)
        except (OSError, KafkaException):
            return False

    def _log_tail(self) -> str:
        with self.log_file.open("rb") as log:
            log.seek(self._log_start)
            text = log.read().decode(errors="replace")
        return f'{_tail(text)} (more in "{self.log_file}")'


def _tail(text: str) -> str:
    """Return the last lines of a log as one, without stack frames and times."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not re.match(r"\s+(at |\.\.\. )", line)]
    lines = [re.sub(r"^\d{4}-\S+ ", "", line) for line in lines]
    return " | ".join(lines[-LOG_LINES_SHOWN:]) or "the log is empty"


def _new_cluster_id() -> str:
    """Return a random id as Kafka writes them; none that begins with a hyphen, which a command line would misread."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Kafka does; else closed connections count
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return a port that nobody has, and that no program gets who asks for any; raise `SetupError`.

    A process gets each of them once, also where nobody listens on it yet.
    """
    for place in itertools.islice(_NEXT_PORTS, len(PORTS)):
        port = PORTS[place % len(PORTS)]
        if _is_free(port):
            return port
    raise SetupError(f"no free port was found on {HOST}: end some programs and try again")
