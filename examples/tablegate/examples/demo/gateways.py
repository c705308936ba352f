"""The gateways of the cluster demo: as processes, and as a table of who has which partition."""

import os
import secrets
import shutil
import string
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from rich.console import RenderableType
from rich.table import Table

from tablegate.examples import CONTRACTS
from tablegate.examples.demo.launch import free_ports
from tablegate.examples.demo.processes import ChildProcess
from tablegate.gateway.cli.connecting import AskError
from tablegate.gateway.cli.gateway import Gateway
from tablegate.gateway.cli.served import directory_of, partition_count, whole_tables
from tablegate.gateway.contract.placement import Candidate, wanted_of_all
from tablegate.gateway.contract.types import Partition
from tablegate.jobs.table import Table as Declaration

COLORS = ("cyan", "magenta", "yellow", "blue", "green")
REDIS_START_S = 10.0  # 0.1 s on a quiet machine
REDIS_POLL_S = 0.05
REPLICAS = 2  # of each partition; as a gateway has it by default


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMember:
    """A gateway of the cluster: its name, where it stands and listens, what it keeps rows in, and its process."""

    name: str
    zone: str
    address: str
    store: str
    child: ChildProcess
    gateway: Gateway
    color: str

    @property
    def label(self) -> str:
        """Its name in its color."""
        return f"[{self.color}]{self.name}[/{self.color}]"


class PlacementView(NamedTuple):
    """Who has which partition, as one gateway knows it.

    `alive`: names of the gateways that it believes to be alive. `replicas`: of each partition the names of those that
    answer from it, the owner first. `is_complete`: each is on as many of the living gateways as it should be.
    """

    alive: frozenset[str]
    replicas: Sequence[Sequence[str]]
    is_complete: bool


class Gateways:
    """`count` gateways that serve the table of a declaration, as parts of `stack`; started by `start`."""

    def __init__(self, stack: ExitStack, data: Path, bootstrap: str, table: Declaration, ports: Sequence[int]) -> None:
        self._table = table.name
        self._stack = stack
        store_url = start_redis(stack, data)
        keys = _token_key(data)
        members = []
        for number, port in enumerate(ports):
            name, zone, address = f"g{number + 1}", string.ascii_lowercase[number], f"127.0.0.1:{port}"
            serve = ["serve", "--contract", str(CONTRACTS / table.contract), "--bootstrap", bootstrap]
            serve += ["--data", str(data / name), "--listen", address, "--workers", "1", "--reflection"]
            serve += ["--token-key", str(keys), "--advertise", address, "--gateway-id", name, "--zone", zone]
            is_in_redis = store_url is not None and number > 0
            serve += ["--store", str(store_url)] if is_in_redis else []
            members.append(
                ClusterMember(
                    name=name,
                    zone=zone,
                    address=address,
                    store="Redis" if is_in_redis else "LMDB",
                    child=ChildProcess(f"gateway {name}", data / "logs" / f"{name}.log", *serve),
                    gateway=stack.enter_context(Gateway(address)),
                    color=COLORS[number % len(COLORS)],
                )
            )
        self.members: Sequence[ClusterMember] = members

    def start(self) -> None:
        """Start all. They end together."""
        for member in self.members:
            self._stack.enter_context(member.child)
        for member in self.members:
            self._stack.callback(member.child.terminate)

    def __getitem__(self, name: str) -> ClusterMember:
        return next(member for member in self.members if member.name == name)

    def color(self, name: str) -> str:
        """Return the color of a gateway, "" for a name that is none of ours."""
        return next((member.color for member in self.members if member.name == name), "")

    def label(self, name: str) -> str:
        """Return a name in the color of its gateway, as it is where it is none of ours."""
        return next((member.label for member in self.members if member.name == name), name)

    def others(self, name: str) -> list[ClusterMember]:
        """Return all but one."""
        return [member for member in self.members if member.name != name]

    def check(self, but: str = "") -> None:
        """Raise `ProcessEnded` unless all run, but perhaps the one of that name."""
        for member in self.members:
            if member.name != but:
                member.child.check()

    def are_settled(self, placement: PlacementView) -> bool:
        """Return whether all gateways live, and each partition is where it is to be."""
        candidates = [Candidate(member.name, member.zone) for member in self.members]
        wanted = wanted_of_all(self._table, len(placement.replicas), candidates, REPLICAS)
        names = [[candidate.gateway_id for candidate in best] for best in wanted]
        return len(placement.alive) == len(self.members) and bool(names) and placement.replicas == names

    def placement(self, member: ClusterMember) -> PlacementView | None:
        """Return who has which partition, as a gateway knows it; None while it does not answer."""
        try:
            status = member.gateway.status()
        except AskError:
            return None
        directory = directory_of(status)
        [table] = [table for table in status.tables if table.table == self._table]
        replicas = [
            [peer.gateway_id for peer in directory.replicas(self._table, Partition(number))]
            for number in range(partition_count(table))
        ]
        alive = frozenset(peer.gateway_id for peer in directory.peers)
        return PlacementView(alive, replicas, is_complete=self._table in whole_tables(status, directory))

    def placement_table(self, placement: PlacementView, *, with_processes: bool = False) -> Table:
        """Return a line for each gateway: ● where it is the owner of a partition, ○ where a standby."""
        shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for title in ("gateway", *(("zone", "store", "address", "process") if with_processes else ()), "partition"):
            shown.add_column(title, justify="right" if title == "process" else "left")
        for number in range(len(placement.replicas)):
            shown.add_column(str(number), justify="center")
        shown.add_column("")
        for member in self.members:
            cells: list[RenderableType] = [member.label]
            if with_processes:
                process = str(member.child.pid) if member.child.is_running else "[red]ended[/red]"
                cells += [member.zone, member.store, member.address, process]
            cells += ["", *(_symbol(member.name, names) for names in placement.replicas)]
            shown.add_row(*cells, "" if member.name in placement.alive else "[red]away[/red]")
        return shown


def _symbol(name: str, replicas: Sequence[str]) -> str:
    if name not in replicas:
        return "[dim]·[/dim]"
    return "●" if replicas[0] == name else "○"


def names_of(members: Sequence[ClusterMember]) -> str:
    """Return names in one phrase: g1, g2 and g3."""
    *first, last = [member.label for member in members]
    return f"{', '.join(first)} and {last}" if first else last


def _token_key(data: Path) -> Path:
    """Return the file with the key that signs the tokens of all gateways, made where it is not there."""
    path = data / "token.key"
    if not path.exists():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{secrets.token_hex(32)}\n")
    return path


def start_redis(stack: ExitStack, data: Path) -> str | None:
    """Start a Redis of our own as a part of `stack`, and return its URL; None where it is not there or does not start.

    It is a store, and so may lose everything: it writes nothing to disk.
    """
    program = shutil.which("redis-server")
    if program is None:
        return None
    [port] = free_ports(0, ["Redis"])
    options = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(data)]
    options += ["--maxmemory-policy", "noeviction"]  # a row that is gone would be a wrong answer
    with ExitStack() as starting:
        child = starting.enter_context(ChildProcess("Redis", data / "logs" / "redis.log", *options, program=(program,)))
        client = starting.enter_context(redis.Redis(port=port, retry=Retry(NoBackoff(), 0)))
        end_s = time.monotonic() + REDIS_START_S
        while child.is_running and time.monotonic() < end_s:
            try:
                client.ping()
            except redis.RedisError:
                time.sleep(REDIS_POLL_S)
                continue
            stack.push(starting.pop_all())
            return f"redis://127.0.0.1:{port}/0"
    return None
