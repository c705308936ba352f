"""Several Kafka brokers as processes, each of them a controller too, and links through which clients reach them."""

import subprocess
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tablegate.examples.demo.kafka import HOST, LOG_SETTINGS, SETTINGS, free_port
from tablegate.examples.demo.tether import tethered
from tablegate.jobs.jars.jars import class_path
from tablegate.jobs.jars.java import find_java
from tests.kit.gateway_processes.gateway import soon
from tests.kit.programs.network import Link

CLUSTER_ID = "dGFibGVnYXRlLXRlc3RzMA"
HEAP_MB = 320  # the log cleaner alone takes 128
START_TIMEOUT_S = 120.0  # 10 s on a quiet machine
ANSWER_TIMEOUT_S = 5.0


class Brokers:
    """Brokers 1, 2, …, which run while the block does. `settings` are Kafka's own, over those of the demo.

    A client of `linked` that is given `bootstrap_of` its name reaches each broker through a link of its own, `links`.
    """

    def __init__(
        self,
        directory: Path,
        count: int = 1,
        *,
        settings: Mapping[str, str] | None = None,
        linked: Collection[str] = (),
    ) -> None:
        self.nodes = range(1, count + 1)
        self.links: dict[tuple[str, int], Link] = {}
        self._directory = directory
        self._settings = dict(settings or {})
        self._linked = list(linked)
        self._ports = {node: free_port() for node in self.nodes}
        self._controller_ports = {node: free_port() for node in self.nodes}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._running = ExitStack()

    @property
    def bootstrap(self) -> str:
        """Return where clients reach them that have no links."""
        return ",".join(f"{HOST}:{port}" for port in self._ports.values())

    def bootstrap_of(self, name: str) -> str:
        """Return where a client reaches them through its links."""
        return ",".join(self.links[name, node].address for node in self.nodes)

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            starting.callback(self._kill_all)
            for node in self.nodes:
                for name in self._linked:
                    link = Link(f"{HOST}:{free_port()}")
                    self.links[name, node] = starting.enter_context(link)
                self._format(node)
            for node in self.nodes:
                self.start(node)
            soon(lambda: self.answers(self.nodes), "all brokers answer", START_TIMEOUT_S)
            self._running = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def start(self, node: int) -> None:
        """Start a broker, on the data that it has."""
        with (self._directory / f"broker-{node}.log").open("ab") as log:
            self._processes[node] = subprocess.Popen(
                tethered([*self._java(), "kafka.Kafka", str(self._directory / f"{node}.properties")]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self, node: int) -> None:
        """End a broker at once, as a crash would."""
        process = self._processes.pop(node)
        process.kill()
        process.wait()

    def answers(self, nodes: Collection[int]) -> bool:
        """Return whether these brokers, and no others, are known to each other."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": "0"})
        try:
            return set(admin.list_topics(timeout=ANSWER_TIMEOUT_S).brokers) == set(nodes)
        except KafkaException:
            return False

    def create_topic(self, name: str, assignment: Sequence[Sequence[int]], **config: str) -> None:
        """Create a topic whose partitions are with these brokers, the first of each its leader."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        settings = {key.replace("_", "."): value for key, value in config.items()}
        topic = NewTopic(
            name,
            num_partitions=len(assignment),
            replica_assignment=[list(nodes) for nodes in assignment],
            config=settings,
        )
        admin.create_topics([topic])[name].result(30)

    def leaders(self, topic: str) -> dict[int, tuple[int, set[int]]]:
        """Return each partition's leader (-1: none) and its replicas that are in sync; nothing without an answer."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": "0"})
        try:
            partitions = admin.list_topics(topic, timeout=ANSWER_TIMEOUT_S).topics[topic].partitions
        except KafkaException:
            return {}
        return {number: (partition.leader, set(partition.isrs)) for number, partition in partitions.items()}

    def _kill_all(self) -> None:
        for node in list(self._processes):
            self.kill(node)

    def _java(self) -> list[str]:
        java = [str(find_java()), f"-Xmx{HEAP_MB}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return [*java, f"-Dlog4j2.configurationFile={LOG_SETTINGS}", "-cp", class_path("broker")]

    def _format(self, node: int) -> None:
        listeners = {"PLAINTEXT": f"{HOST}:{self._ports[node]}", "CONTROLLER": f"{HOST}:{self._controller_ports[node]}"}
        advertised = {"PLAINTEXT": listeners["PLAINTEXT"]}
        for number, name in enumerate(self._linked):
            link = self.links[name, node]
            listeners[f"LINK{number}"], advertised[f"LINK{number}"] = link.target, link.address
        voters = ",".join(f"{each}@{HOST}:{port}" for each, port in self._controller_ports.items())
        properties = {
            **SETTINGS,
            **self._settings,
            "node.id": str(node),
            "listeners": _listed(listeners),
            "advertised.listeners": _listed(advertised),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listeners),
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.quorum.voters": voters,
            "log.dirs": str(self._directory / f"broker-{node}"),
        }
        file = self._directory / f"{node}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        storage = ["kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER_ID, "--config", str(file)]
        subprocess.run([*self._java(), *storage], check=True, capture_output=True)


def _listed(addresses: Mapping[str, str]) -> str:
    return ",".join(f"{name}://{address}" for name, address in addresses.items())
