"""Gateways of one Redis, in any order, while everything goes wrong; all from one seed.

Before and after each round trip of a gateway another one may act, Redis may lose what it had, and the gateway may die;
an answer may be lost. Whoever is LIVE must have all rows, and the history all changes; an index that is whole has the
entries of the rows, and no others.
"""

import random
from collections.abc import Mapping, Sequence
from enum import Enum

from tablegate.gateway.contract.types import Offset, Partition, StoreId
from tablegate.gateway.stores.base import PastChange, Phase, Position, Snapshot, StoreUnavailable
from tablegate.gateway.stores.redis.connection import parse_address
from tablegate.gateway.stores.redis.layout import Keys
from tablegate.gateway.stores.redis.store import GONE_MS
from tablegate.internal.v1.store_pb2 import TableState
from tests.kit.programs.redis import RedisServer
from tests.kit.store.redis_gateways import ALL, EXPIRING, INDEXES, KEYS, P0, RECORDS_MAX, TABLES, Gateway, Killed, Log
from tests.kit.table.accounts import entries_of

NAMES = ("a", "b-2", "c.{x}:é")


class Losses(Enum):
    """What Redis may lose: what was written last, of all its slots, or of each as it comes; or all of it."""

    NONE = "none"
    WHOLE = "whole"
    SLOTS = "slots"


class Subscriber:
    """Whoever follows a table by offsets, now at this gateway, now at that."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self._incarnation = (0, 0)
        self._offset, self._skip = Offset(0), 0

    def take(self, snapshot: Snapshot, state: TableState, found: Position, gone: set[bytes]) -> bool:
        """Take what comes; return whether the copy is at `found` then."""
        place, end = (StoreId(state.store_id), P0), found.next_offset
        incarnation = (state.store_id, state.incarnation_id)
        if incarnation != self._incarnation or self._offset < found.history_start:
            self._incarnation = incarnation
            self.rows = dict(snapshot.range(*place, start=b"", end=None, limit=ALL))
            self._offset, self._skip = end, len(snapshot.history(*place, start=end, limit=ALL))
            return True
        if self._offset > end:
            return False
        changes = snapshot.history(*place, start=self._offset, limit=ALL, skip=self._skip)
        for each in changes:
            assert each.key in gone or each.before == self.rows.get(each.key), each
            self.rows.pop(each.key, None)
            if each.row is not None:
                self.rows[each.key] = each.row
        self._skip = sum(each.offset == end for each in changes) + (self._skip if self._offset == end else 0)
        self._offset = end
        return True


class Gateways:
    """Gateways, changelogs and subscribers. `trouble`: how much happens beside round trips, 0 to 0.1 or so."""

    def __init__(self, server: RedisServer, seed: int, *, losses: Losses, trouble: float) -> None:
        self.chance = random.Random(seed)
        self.url = server.new_url()
        self.went_back = self.checked = self.checked_indexes = 0
        self.logs: Mapping[str, Log] = {name: Log(name, self.chance) for name in TABLES}
        self.gateways = [Gateway(self, name) for name in NAMES]
        self._server = server
        self._prefix = parse_address(self.url).prefix
        self._keys = Keys(self._prefix, "")
        self._losses = losses
        self._trouble = trouble
        self._is_between = False
        self._subscribers = {name: [Subscriber(), Subscriber()] for name in TABLES}
        self._dumps: list[dict[bytes, dict[bytes, bytes]]] = [{}]

    def between(self) -> None:
        """Let things happen beside a round trip."""
        if self._is_between or self.chance.random() >= self._trouble:
            return
        self._is_between = True
        try:
            match self.chance.randrange(5):
                case 0:
                    raise Killed
                case 1:
                    raise StoreUnavailable("it does not answer")
                case 2 if self.chance.random() < 0.3:
                    self._lose()
                case _:
                    self.chance.choice(self.gateways).step()
        finally:
            self._is_between = False

    def loses_answer(self) -> bool:
        return self.chance.random() < self._trouble / 3

    def step(self) -> None:
        """Let something happen, and hold all gateways to what they answer."""
        log = self.logs[self.chance.choice(TABLES)]
        log.end = min(log.end + self.chance.randrange(8), RECORDS_MAX)
        match self.chance.randrange(60):
            case 0:
                self._compact(log)
            case 1:
                self._dumps.append({slot: self._dump(keys) for slot, keys in self.slots().items()})
            case 2 if self.chance.random() < 0.3:
                self._lose()
            case 3:
                log.expired = min(log.expired + 1, len(EXPIRING))
            case 4:
                self._age()
            case _:
                self.chance.choice(self.gateways).step()
        for gateway in self.gateways:
            for log in self.logs.values():
                self._check(gateway, log)

    def slots(self) -> dict[bytes, list[bytes]]:
        """Return the keys that Redis has, by their hash tag."""
        slots: dict[bytes, list[bytes]] = {}
        for key in self._server.run("KEYS", f"{self._prefix}:*"):
            slots.setdefault(key.partition(b"{")[2].partition(b"}")[0], []).append(key)
        return slots

    def _dump(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        return {key: self._server.run("DUMP", key) for key in keys}

    def _lose(self) -> None:
        """Let Redis go back, or lose everything."""
        if self._losses is Losses.NONE:
            return
        dump, now = self.chance.choice(self._dumps), self.slots()
        slots = sorted({*dump, *now})
        if self._losses is Losses.SLOTS:
            slots = [slot for slot in slots if self.chance.random() < 0.6]
        for slot in slots:
            for key in now.get(slot, ()):
                self._server.run("DEL", key)
            for key, value in dump.get(slot, {}).items():
                self._server.run("RESTORE", key, 0, value)

    def _compact(self, log: Log) -> None:
        """Clean more of a changelog, but nothing that whoever answers has not read."""
        limits = [log.end]
        for key in self._server.run("KEYS", f"{self._prefix}:*:position"):
            fields: dict[bytes, bytes] = self._server.run("HGETALL", key)
            if any(name != b"at" and value[0] != Phase.RESTORING for name, value in fields.items()):
                limits.append(int.from_bytes(fields[b"at"][12:20], "big"))
        for gateway in self.gateways:
            followed = gateway.followed.get(log.name)
            if followed is not None:
                limits.append(followed.barrier if followed.phase is Phase.RESTORING else followed.reached)
        log.clean = max(log.clean, min(limits))
        del self._dumps[1:]

    def _age(self) -> None:
        """Let a day pass for those that do not run."""
        for gateway in self.gateways:
            name = f"gateway:{gateway.name}"
            seen_ms = self._server.run("HGET", self._keys.gateways, name)
            if gateway.store is None and seen_ms is not None:
                self._server.run("HSET", self._keys.gateways, name, int(seen_ms) - GONE_MS)

    def _check(self, gateway: Gateway, log: Log) -> None:
        """What a gateway would answer is right, and whoever reads on misses nothing; others may act in between."""
        if gateway.reader is None:
            return
        with gateway.reader.snapshot() as snapshot:
            state = snapshot.table(log.name)
            found = None if state is None else snapshot.position(StoreId(state.store_id), P0)
            if state is None or found is None or found.phase is not Phase.LIVE:
                return
            is_beside = not self._is_between and self.chance.random() < 0.1
            for _ in range(self.chance.randrange(4) if is_beside else 0):
                self.chance.choice(self.gateways).step()
            try:
                self._check_at(snapshot, state, found, log)
            except StoreUnavailable:
                assert is_beside  # it cannot be told any more
        self.checked += 1

    def _check_at(self, snapshot: Snapshot, state: TableState, found: Position, log: Log) -> None:
        place, gone = (StoreId(state.store_id), P0), log.gone()
        expected = without(gone, log.states[found.next_offset])
        rows = dict(snapshot.range(*place, start=b"", end=None, limit=ALL))
        assert without(gone, rows) == expected
        assert snapshot.get_many(*place, KEYS) == [rows.get(key) for key in KEYS]
        self._check_indexes(snapshot, place, rows)
        check_history(snapshot.history(*place, start=found.history_start, limit=ALL), found, log, rows)
        for subscriber in self._subscribers[log.name]:
            if self.chance.random() < 0.3 and subscriber.take(snapshot, state, found, gone):
                assert without(gone, subscriber.rows) == expected

    def _check_indexes(self, snapshot: Snapshot, place: tuple[StoreId, Partition], rows: dict[bytes, bytes]) -> None:
        """An index that is whole has what the rows say, read at once and in pages, up and down."""
        for index in INDEXES:
            wanted = entries_of(index, rows)
            found = snapshot.index_range(*place, index, start=b"", end=None, limit=ALL)
            if found is None:
                continue
            assert found == wanted, index.name
            self.checked_indexes += 1
            for descending in (False, True):
                entries = wanted[::-1] if descending else wanted
                after = entries[len(entries) // 2][0] if entries else None
                rest = snapshot.index_range(
                    *place, index, start=b"", end=None, limit=2, after=after, descending=descending
                )
                assert rest is None or rest == entries[len(entries) // 2 + 1 :][:2], index.name

    def leave(self) -> None:
        """Let nothing more go wrong, and everybody give everything away."""
        self._trouble, self._losses = 0.0, Losses.NONE
        for gateway in self.gateways:
            gateway.leave()

    def close(self) -> None:
        for gateway in self.gateways:
            gateway.stop()
            if gateway.reader is not None:
                gateway.reader.close()


def check_history(history: Sequence[PastChange], found: Position, log: Log, rows: dict[bytes, bytes]) -> None:
    """Each record since `history_start` is there once, or was compacted away; and the rows are what comes of them."""
    gone = log.gone()
    offsets = [each.offset for each in history if each.row is not None or each.key not in gone]
    assert offsets == sorted(set(offsets))
    wanted = log.read(found.history_start, found.next_offset)
    assert {record.offset for record in wanted if record.key not in gone} <= set(offsets)
    newest: dict[bytes, bytes | None] = {}
    for each in history:
        assert each.row is None or each[:5] == tuple(log.records[each.offset])
        assert each.before == newest.get(each.key, each.before)
        newest[each.key] = each.row
    assert newest.items() <= {**dict.fromkeys(KEYS), **rows}.items()


def without(gone: set[bytes], rows: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the rows whose keys do not expire, or not yet."""
    return {key: row for key, row in rows.items() if key not in gone}
