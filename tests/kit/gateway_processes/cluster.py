"""Gateways of one cluster, as a user runs them: processes on this machine, at addresses that stay."""

import os
import secrets
import signal
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Self

from tablegate.examples.demo.kafka import HOST, free_port
from tablegate.gateway.contract.placement import Candidate, wanted_of_all
from tablegate.v1.cluster_pb2 import REPLICA_PHASE_LIVE
from tests.kit.gateway_processes.gateway import GatewayProcess, soon
from tests.kit.programs.processes import alive

WHOLE_S = 120.0

Placement = Mapping[str, frozenset[int]]
"""From a living gateway's name to the partitions that it has LIVE."""


class Member(GatewayProcess):
    """A gateway of a cluster; `listens_at` is where, whether it runs or not."""

    def __init__(
        self,
        data: Path,
        bootstrap: str,
        *,
        listen: str,
        contract: Path,
        tables_topic: str,
        zone: str = "",
        options: Sequence[str] = (),
        hang_limit_s: float | None = None,
    ) -> None:
        super().__init__(
            data,
            bootstrap,
            contract=contract,
            tables_topic=tables_topic,
            workers=1,
            listen=listen,
            options=["--zone", zone, *options],
            hang_limit_s=hang_limit_s,
        )
        self.listens_at = listen
        self.zone = zone

    @property
    def is_up(self) -> bool:
        """Return whether it was started, and not ended."""
        return self.process is not None

    def signal(self, number: int) -> None:
        """Send its supervisor a signal."""
        assert self.process is not None
        os.kill(self.process.pid, number)

    def freeze(self, pids: Sequence[int] | None = None) -> None:
        """Stop these of its processes, or all, in their steps."""
        for pid in self._all() if pids is None else pids:
            os.kill(pid, signal.SIGSTOP)

    def thaw(self, pids: Sequence[int] | None = None) -> None:
        """Let them go on."""
        for pid in self._all() if pids is None else pids:
            os.kill(pid, signal.SIGCONT)

    def _all(self) -> list[int]:
        assert self.process is not None
        return [pid for pid in (self.process.pid, *self.children()) if alive(pid)]

    def behind(self) -> Mapping[str, int]:
        """Return by how many records it says that it is behind, by table and partition, where it is."""
        return {
            f"{table.table} {each.partition}": each.end_offset - each.next_offset
            for table in self.status().tables
            for each in table.partitions
            if each.end_offset > each.next_offset
        }

    def placement(self, table: str) -> Placement:
        """Return who has which partitions of a table, as this gateway knows it."""
        return {
            each.record.gateway_id: frozenset(
                number
                for held in each.record.tables
                if held.table == table
                for number, phase in zip(held.serving.partitions, held.serving.phases, strict=True)
                if phase == REPLICA_PHASE_LIVE
            )
            for each in self.status().gateways
            if each.alive
        }


class Cluster:
    """Gateways by name, with zones; those of `spare` have addresses and are started when a test does it.

    Each partition is on `replicas` of them.
    """

    def __init__(
        self,
        directory: Path,
        bootstrap: str,
        *,
        contract: Path,
        table: str,
        partition_count: int,
        tables_topic: str,
        names: Sequence[str] = ("g1", "g2", "g3"),
        spare: Sequence[str] = (),
        replicas: int = 2,
        options: Sequence[str] = (),
    ) -> None:
        """`options`: of `tablegate serve`, for each of them."""
        self.table = table
        self.replicas = replicas
        self._directory = directory
        self._bootstrap = bootstrap
        self._contract = contract
        self.partition_count = partition_count
        self._tables_topic = tables_topic
        self._gateways_topic = f"gateways-{secrets.token_hex(6)}"
        self._keys = directory / "token.keys"
        self._keys.write_text(f"{secrets.token_hex(32)}\n")
        self._first = names
        self._options = options
        self.members: dict[str, Member] = {}
        for place, name in enumerate((*names, *spare)):
            self.add(name, zone="abc"[place % 3])

    def add(
        self,
        name: str,
        *,
        zone: str = "",
        advertise: str | None = None,
        bootstrap: str | None = None,
        hang_limit_s: float | None = None,
    ) -> Member:
        """Return a gateway that is not started yet. It says that it is reached at `advertise`, or where it listens.

        It takes the place of one of its name. `bootstrap`: where it reaches Kafka, unless where the others do.
        """
        listen = f"{HOST}:{free_port()}"
        options = ["--advertise", advertise or listen, "--gateway-id", name]
        options += ["--token-key", str(self._keys), "--gateways-topic", self._gateways_topic]
        options += ["--replicas", str(self.replicas), *self._options]
        member = self.members[name] = Member(
            self._directory / name,
            bootstrap or self._bootstrap,
            listen=listen,
            zone=zone,
            contract=self._contract,
            tables_topic=self._tables_topic,
            options=options,
            hang_limit_s=hang_limit_s,
        )
        return member

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    def __enter__(self) -> Self:
        try:
            for name in self._first:
                self[name].start()
            self.wait_whole()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members.values():
            if member.is_up:
                member.thaw()
                member.stop()

    @property
    def up(self) -> list[Member]:
        """Return the gateways that run."""
        return [member for member in self.members.values() if member.is_up]

    @property
    def names_up(self) -> list[str]:
        """Return their names."""
        return [name for name, member in self.members.items() if member.is_up]

    def target(self, first: int = 0, names: Collection[str] | None = None) -> str:
        """Return the target of a channel to any of the gateways (those of `names`), tried from number `first` on."""
        members = [member for name, member in self.members.items() if names is None or name in names]
        turned = [*members[first % len(members) :], *members[: first % len(members)]]
        return f"ipv4:{','.join(member.listens_at for member in turned)}"

    def wait_generation(self, number: int, seconds: float = WHOLE_S) -> None:
        """Wait until all gateways that run answer from a generation."""

        def served(member: Member) -> set[int]:
            """Return what this gateway knows the living ones, itself too, to answer from."""
            records = [each.record for each in member.status().gateways if each.alive]
            return {held.serving.generation for each in records for held in each.tables if held.table == self.table}

        soon(lambda: all(served(each) == {number} for each in self.up), f"generation {number} is served", seconds)

    def wait_whole(self, *, without: Collection[str] = (), seconds: float = WHOLE_S) -> None:
        """Wait until all gateways that run agree that they live, and that each partition is where it is to be.

        Those of `without` are to have none.
        """
        names = self.names_up
        candidates = [Candidate(name, self[name].zone) for name in names if name not in without]
        places = wanted_of_all(self.table, self.partition_count, candidates, self.replicas)
        wanted: dict[str, frozenset[int]] = dict.fromkeys(names, frozenset())
        for number, place in enumerate(places):
            for each in place:
                wanted[each.gateway_id] |= {number}
        soon(
            lambda: all(self[name].placement(self.table) == wanted for name in names),
            f"{names} agree that each has what it is to have",
            seconds,
        )
