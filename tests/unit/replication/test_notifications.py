"""Whoever reads again only what the replicator names has all that there is, whatever happens to the gateways."""

import random

import pytest
from typing_extensions import override

from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.stores.base import Position, StoredPartition
from tablegate.gateway.stores.changes import NotifyingStore, StoreChanges
from tablegate.internal.v1.store_pb2 import TableState
from tests.kit.replication.replicators import Member, World
from tests.kit.seeds import seeds


class Reader:
    """A worker's view of a store: of positions and the table's state, read again where these may have changed."""

    def __init__(self, store: NotifyingStore) -> None:
        self.store = store
        self.positions: dict[StoredPartition, Position | None] = {}
        self.state: TableState | None = None
        self.status = b""
        self.read = 0

    def note(self, changes: StoreChanges) -> None:
        changes = StoreChanges.decode(changes.encode())
        with self.store.snapshot() as snapshot:
            if changes.everything:
                self.state = snapshot.table("ratings")
                self.positions = {name: snapshot.position(*name) for name in self.names()}
            for name in changes:
                self.positions[name] = snapshot.position(*name)
            self.read += len(list(changes))
            if changes.everything or changes.status:
                self.status = snapshot.status()

    def names(self) -> list[StoredPartition]:
        """Return the partitions of the generation that it knows."""
        state = self.state or TableState()
        store_id, count = StoreId(state.store_id), state.manifest.partition_count
        return [StoredPartition(store_id, Partition(number)) for number in range(count)]

    def check(self) -> None:
        with self.store.snapshot() as snapshot:
            assert self.state == snapshot.table("ratings")
            assert self.status == snapshot.status()
            for name in self.names():
                assert self.positions.get(name) == snapshot.position(*name), name


class NotifyingWorld(World):
    """Gateways whose stores name what is written; each with a worker, which hears of it after each step."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.readers: dict[str, Reader] = {}
        self.everything = 0

    @override
    def start(self, member: Member) -> None:
        behind = member.store._store if isinstance(member.store, NotifyingStore) else member.store
        member.store = store = NotifyingStore(behind, lambda changes: self._hear(member.name, changes))
        known = self.readers.get(member.name)
        self.readers[member.name] = reader = Reader(store)
        if known is not None and self.chance.random() < 0.5:  # the worker goes on, and only the replicator is new
            reader.positions, reader.state, reader.status = known.positions, known.state, known.status
        super().start(member)

    def _hear(self, name: str, changes: StoreChanges) -> None:
        self.everything += changes.everything
        self.readers[name].note(changes)

    @override
    def step(self, member: Member) -> None:
        super().step(member)
        assert isinstance(member.store, NotifyingStore)
        member.store.publish()
        self.readers[member.name].check()


@pytest.mark.tools
@pytest.mark.parametrize("seed", seeds(15, in_check=2))
def test_what_changes_is_named(seed: int) -> None:
    world, choice = NotifyingWorld(seed), random.Random(seed)
    for _ in range(3):
        world.join()
    world.run(5)
    for _ in range(8):
        match choice.choice(["restart", "wipe", "rebuild", "drain", "join", "nothing"]):
            case "restart" | "wipe" as how if world.deaths < 1 and len(world.running) > 2:
                member = choice.choice(world.running)
                world.kill(member, wipe=how == "wipe")
                world.run(choice.choice([0.1, 2.0]))
                world.start(member)
            case "rebuild" if world.ended is None:
                world.rebuild()
            case "drain" if sum(not each.is_draining for each in world.running) > 2:
                world.drain(choice.choice(world.running))
            case "join" if len(world.running) < 5:
                world.join()
        world.run(choice.uniform(0.5, 8.0))
        world.end_old()
    read = sum(reader.read for reader in world.readers.values())
    assert read > 100
    assert world.everything < read / 3, "it is the changes that are named"
