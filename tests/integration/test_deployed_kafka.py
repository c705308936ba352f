"""The brokers of docker-compose.yml as processes: their settings, with the hosts and ports of this machine."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tablegate.examples.demo.kafka import free_port
from tablegate.examples.demo.tether import tethered
from tablegate.examples.samples import create_topic
from tablegate.jobs.jars.jars import class_path
from tablegate.jobs.jars.java import find_java
from tests.kit.gateway_processes.gateway import soon
from tests.kit.programs.deployment import compose
from tests.kit.programs.kafka import NewRecord, consume, produce

pytestmark = pytest.mark.jvm

PREFIX = "KAFKA_"
HEAP_MB = 320  # the log cleaner alone takes 128
START_TIMEOUT_S = 120.0  # 10 s on a quiet machine
PARTITIONS = 2


class Brokers(NamedTuple):
    """Running brokers, by the names of their services."""

    processes: Mapping[str, subprocess.Popen[bytes]]
    bootstrap: str


def _properties(settings: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Return a broker's settings as the image makes them of its environment, moved to this machine."""
    names = {name.removeprefix(PREFIX).lower().replace("_", "."): name for name in settings if name.startswith(PREFIX)}
    text = "".join(f"{name}={settings[variable]}\n" for name, variable in names.items())
    for there, moved in here.items():
        text = text.replace(there, moved)
    return text


@contextmanager
def _running(profile: str, directory: Path) -> Iterator[Brokers]:
    services = {name: it for name, it in compose()["services"].items() if profile in it.get("profiles", ())}
    ports: dict[str, int] = {}
    for address in (f"{name}:{port}" for name in services for port in (9092, 9093)):
        while (port := free_port()) in ports.values():
            pass
        ports[address] = port
    here = {address: f"127.0.0.1:{port}" for address, port in ports.items()}
    java = [str(find_java()), f"-Xmx{HEAP_MB}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    java += ["-cp", class_path("broker")]
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, service in services.items():
            settings = service["environment"]
            own = {f"://:{port}": f"://{here[f'{name}:{port}']}" for port in (9092, 9093)}
            own |= {settings["KAFKA_LOG_DIRS"]: str(directory / name)}
            file = directory / f"{name}.properties"
            file.write_text(_properties(settings, {**here, **own}))
            format_ = [
                "kafka.tools.StorageTool",
                "format",
                "--cluster-id",
                settings["CLUSTER_ID"],
                "--config",
                str(file),
            ]
            subprocess.run([*java, *format_], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            with (directory / f"{name}.log").open("wb") as log:
                processes[name] = subprocess.Popen(
                    tethered([*java, "kafka.Kafka", str(file)]),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        yield Brokers(processes, ",".join(here[f"{name}:9092"] for name in services))
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def _all_answer(brokers: Brokers) -> bool:
    dead = [name for name, process in brokers.processes.items() if process.poll() is not None]
    assert not dead, f"{dead} ended while they started: see their logs"
    try:
        found = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": "0"}).list_topics(timeout=5)
    except KafkaException:
        return False
    return len(found.brokers) == len(brokers.processes)


def test_one_broker(tmp_path: Path) -> None:
    with _running("one", tmp_path) as brokers:
        soon(lambda: _all_answer(brokers), "the broker answers", START_TIMEOUT_S)
        create_topic(brokers.bootstrap, "ratings", PARTITIONS)
        produce(brokers.bootstrap, "ratings", [NewRecord(b"a", b"1")])
        assert [record.value for record in consume(brokers.bootstrap, "ratings")] == [b"1"]


def test_three_brokers_lose_one_and_no_record(tmp_path: Path) -> None:
    with _running("three", tmp_path) as brokers:
        soon(lambda: _all_answer(brokers), "all brokers answer", START_TIMEOUT_S)
        create_topic(brokers.bootstrap, "ratings", PARTITIONS)
        found = AdminClient({"bootstrap.servers": brokers.bootstrap}).list_topics("ratings", timeout=30)
        partitions = found.topics["ratings"].partitions.values()
        assert [len(partition.replicas) for partition in partitions] == [3] * PARTITIONS
        produce(brokers.bootstrap, "ratings", [NewRecord(b"before", b"1")])
        brokers.processes["kafka-2"].kill()
        produce(brokers.bootstrap, "ratings", [NewRecord(b"after", b"2")])
        values = {record.value for record in consume(brokers.bootstrap, "ratings")}
        assert values == {b"1", b"2"}
