"""Keys and values of the Redis store. Whoever changes them raises `FORMAT_VERSION`.

A partition's keys have one hash tag, and so one slot of a cluster; `PREFIX` is what the store's URL names, "tablegate"
where it names nothing. `ID` is the store id, `P` the partition. Gateways of one prefix share their partitions:

  PREFIX:{ID/P}:rows        hash, key → offset 8, version 12, kind 1, time ms 8, row
  PREFIX:{ID/P}:order       sorted set of the keys of live rows, all of one score, so that it is in byte order
  PREFIX:{ID/P}:tombstones  sorted set of the keys of deleted rows, by offset
  PREFIX:{ID/P}:history     stream of the latest changes, see below
  PREFIX:{ID/P}:repairs     hash, key whose newest record is not its last → offset 8 and version 12 of the newest
  PREFIX:{ID/P}:index_keys     hash, key → index keys of its row, each behind its length in two bytes
  PREFIX:{ID/P}:index_entries  sorted set of entries, all of one score: index key, row key, and in two bytes how long
                            the columns of the index key are
  PREFIX:{ID/P}:indexes     hash, id of an index → "whole", or "from:" and the lowest row key that may lack entries, or
                            "anew:" and the next offset since when any may, so that no two beginnings are the same
  PREFIX:{ID/P}:position    hash; at: id of the newest change in the history (offset 8, order 4), then
                            `layout.pack_position`, with the phase and incarnation of whoever was first; gateway → its
                            own phase: who keeps the partition

What is of no partition is in one slot of its own; `:GATEWAY` is not there for a gateway that stands alone:

  PREFIX:{tables}:store           hash: format, and incarnation (field `life`): random, another one once the store was
                                  lost and made anew
  PREFIX:{tables}:copies          hash, changelog → "ID/incarnation" of the copy that gateways share
  PREFIX:{tables}:next-id         the newest store id that is no copy's: those are drawn, so that none comes twice
  PREFIX:{tables}:gateways        hash, gateway → when it was here last, in ms since 1970 by the clock of Redis
  PREFIX:{tables}:states:GATEWAY  hash, table name → TableState
  PREFIX:{tables}:status:GATEWAY  what `set_status` kept
  PREFIX:{tables}:places:GATEWAY  set of "ID/P": partitions of which this gateway has, or may have, something
  PREFIX:{tables}:TABLE-stream    hash, partition → name of the history that is served of it: for other programs

Other programs follow a table by its stream: `HGET tablegate:{tables}:ratings-stream 0` gives the name of a stream, and
XRANGE or XREAD its changes. A new generation of the table is another stream under the same `ratings-stream`. An entry's
id is `OFFSET-ORDER`: orders 1, 2, ... for rows that expired before the record of that offset came, and 4294967295 for
the record. Its fields: `key` and `version` (both as in the changelog), `time_ms`, `row` (the row message's bytes; none
for a delete) and `before` (the row that it took the place of; none where there was none).
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

from tablegate.gateway.contract.types import VERSION_BYTES, Offset, Partition, StoreId, Version
from tablegate.gateway.stores.base import (
    Change,
    Conflict,
    PastChange,
    Phase,
    Position,
    Repair,
    Repeat,
    StoredPartition,
)
from tablegate.gateway.stores.lmdb import layout
from tablegate.gateway.stores.lmdb.layout import IS_ROW, IS_TOMBSTONE

FORMAT_VERSION = b"5"
DEFAULT_PREFIX = "tablegate"

GATEWAY = "gateway:"  # what the names of gateways begin with

INDEX_WHOLE, INDEX_BUILDING, INDEX_ANEW = "whole", "from:", "anew:"

INCARNATION_BYTES = 8
KNOWN_BYTES = 55  # of the value of a stored position: the phase, and `at` up to the incarnation

_OFFSET = struct.Struct(">Q")
_LAST = struct.Struct(">QI")
_KIND_TIME = struct.Struct(">Bq")
_INDEX_KEY = struct.Struct(">H")


class StaleKind(IntEnum):
    """What the script of `apply` returns of a stale change."""

    OLDER = 0
    REPEAT = 1
    CONFLICT = 2

    def of(self, change: Change) -> Change:
        """Return the change as one of this kind."""
        match self:
            case StaleKind.OLDER:
                return change
            case StaleKind.REPEAT:
                return Repeat(*change)
            case StaleKind.CONFLICT:
                return Conflict(*change)


class PartitionKeys(NamedTuple):
    """The keys of a partition."""

    position: str
    rows: str
    order: str
    tombstones: str
    history: str
    repairs: str
    index_keys: str
    index_entries: str
    indexes: str


class Keys:
    """The keys of the store of one prefix, as one gateway has it; "" is one that stands alone."""

    def __init__(self, prefix: str, gateway: str) -> None:
        self.gateway = f"{GATEWAY}{gateway}"
        self._prefix = prefix
        self._partitions: dict[StoredPartition, PartitionKeys] = {}
        shared, own = f"{prefix}:{{tables}}:", f":{gateway}" if gateway else ""
        self.store, self.copies, self.next_id = shared + "store", shared + "copies", shared + "next-id"
        self.gateways = shared + "gateways"
        self.states, self.status, self.partitions = (
            shared + "states" + own,
            shared + "status" + own,
            shared + "places" + own,
        )
        self._shared = shared

    def of_gateway(self, name: str) -> "Keys":
        """Return the keys as the gateway has them that is called so in `gateways`."""
        return Keys(self._prefix, name.removeprefix(GATEWAY))

    def of(self, part: StoredPartition) -> PartitionKeys:
        """Return the keys of a partition."""
        keys = self._partitions.get(part)
        if keys is None:
            keys = self._partitions[part] = self._of(part, "")
        return keys

    def copy(self, part: StoredPartition, name: str) -> PartitionKeys:
        """Return the keys of a copy of a partition, in the same slot."""
        return self._of(part, f":copy:{name}")

    def _of(self, part: StoredPartition, ending: str) -> PartitionKeys:
        beginning = f"{self._prefix}:{{{partition_name(part)}}}:"
        return PartitionKeys(*(beginning + name + ending for name in PartitionKeys._fields))

    def ask_position(self, keys: PartitionKeys) -> tuple[str, ...]:
        """Return the command whose answer `own_value` takes."""
        return "HMGET", keys.position, self.gateway, "at"

    def stream(self, table: str) -> str:
        """Return the key under which others find the histories of a table."""
        return f"{self._shared}{table}-stream"


def partition_name(part: StoredPartition) -> str:
    """Return how the set of partitions names one."""
    return f"{part.store_id}/{part.partition}"


def parse_partition_name(name: bytes) -> StoredPartition:
    """Return the partition of such a name."""
    store_id, _, partition = name.decode().partition("/")
    return StoredPartition(StoreId(int(store_id)), Partition(int(partition)))


class StoredPosition(NamedTuple):
    """A position as it is stored, and the id of the newest change that its history had then.

    `value`: the phase of the gateway, then `at`.
    """

    value: bytes
    position: Position
    last: tuple[int, int]

    @property
    def last_id(self) -> str:
        """Return that id as Redis has it."""
        return f"{self.last[0]}-{self.last[1]}"

    def is_before(self, known: "StoredPosition") -> bool:
        """Return whether it is what was stored before `known`, or is of another copy of the partition."""
        phases = self.position.phase, known.position.phase
        # One of the two is of a copy that was removed and restored since: whichever offset is higher says nothing.
        if self.position.incarnation_id != known.position.incarnation_id or phases.count(Phase.RESTORING) == 1:
            return True
        at, known_at = (self.position.next_offset, self.last), (known.position.next_offset, known.last)
        if at != known_at:
            return at < known_at
        # The same offset in an earlier phase is what was stored before the gateway went live.
        return known.position.phase is Phase.LIVE and self.position.phase is not Phase.LIVE


def own_value(fields: Sequence[bytes | None]) -> bytes | None:
    """Return a position as its gateway has it, from its fields of the gateway and `at`; None where it has it not."""
    phase, at = fields
    return None if phase is None or at is None else phase + at


@lru_cache(maxsize=4096)  # every read asks for its partition's, and between two changes they stay
def unpack_stored_position(value: bytes) -> StoredPosition:
    """Return what the value of a position says: the phase of its gateway, then `at`."""
    position = layout.unpack_position(value[1 + _LAST.size :])[0]
    return StoredPosition(value, position.in_phase(Phase(value[0])), _LAST.unpack_from(value, 1))


def pack_position(position: Position) -> bytes:
    """Return a position as the script of `apply` takes it."""
    return layout.pack_position(position, 0)  # a stream knows its length


def pack_row(change: Change, pack: Any = _KIND_TIME.pack) -> bytes:
    """Return the value of a row, or of its tombstone."""
    offset, _, version, row, time_ms = change
    kind, live = (IS_TOMBSTONE, b"") if row is None else (IS_ROW, row)
    value: bytes = _OFFSET.pack(offset) + version + pack(kind, time_ms) + live
    return value


def pack_index_keys(index_keys: Sequence[bytes]) -> bytes:
    """Return the index keys of a row, as they are beside it."""
    return b"".join([part for each in index_keys for part in (_INDEX_KEY.pack(len(each)), each)])


def record_of(value: bytes) -> bytes:
    """Return what tells which record wrote a row: its offset and version."""
    return value[: _OFFSET.size + VERSION_BYTES]


def offset_of(value: bytes) -> Offset:
    """Return the offset of the record that wrote a row, from its value."""
    return Offset(_OFFSET.unpack_from(value)[0])


def stored_part(value: bytes) -> bytes:
    """Return what `layout` reads of a row's value."""
    return value[_OFFSET.size :]


def parse_repair(key: bytes, value: bytes) -> Repair:
    """Return a pending repair."""
    return Repair(key, offset_of(value), Version(value[_OFFSET.size :]))


def first_id(start: Offset, skip: int) -> str:
    """Return the lowest id of the history at or after `start`, but for the first `skip` of that offset."""
    return f"{start}-{skip + 1}"  # 0-0 is no id


def past_change(entry: Sequence[Any]) -> PastChange:
    """Return the change of an entry of the history."""
    entry_id, parts = entry
    fields = dict(zip(parts[::2], parts[1::2], strict=True))
    offset = Offset(int(entry_id.partition(b"-")[0]))
    version, time_ms = Version(fields[b"version"]), int(fields[b"time_ms"])
    return PastChange(offset, fields[b"key"], version, fields.get(b"row"), time_ms, fields.get(b"before"))
