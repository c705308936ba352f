"""Bytes of the LMDB store: keys and values of its databases. Whoever changes them raises `FORMAT_VERSION`.

  rows         prefix, key              → version 12, kind 1, offset 8, row
  history      prefix, offset 8, order 4 → version 12, kind 1, time ms 8, key length 2, length of row before 4 (all
                                          ones: there was none), key, row before, row
  tombstones   prefix, offset 8         → time ms 8, key       of the deleted rows, oldest first
  repairs      prefix, key              → offset 8, version 12
  index        prefix, index key        → keys of rows, several values of one key
  indexes      prefix, index id 4       → 0 and the first row key without entries: it is built; 1: whole; 2: gone
  positions    prefix                   → next offset, as of, phase, final, history start and length, incarnation,
                                          lineage, source offsets
  tables       name                     → TableState
  meta         name                     → format, boot id, clean mark, next store id, status

The prefix is that of a partition: store id (4 bytes) and partition (2 bytes). All numbers are big endian, so that byte
order is their order: a cursor walks a partition's rows by key, and its history by offset.
The order of changes of one offset: 0, 1, ... for what expired before its record came, and the highest for the record.
"""

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType

from tablegate.gateway.contract.lineage import EpochRun
from tablegate.gateway.contract.types import VERSION_BYTES, Offset, Partition, StoreId, Version
from tablegate.gateway.stores.base import Change, PastChange, Phase, Position, Repair, StoreCorrupt, StoredRow

FORMAT_VERSION = b"6"

PREFIX_BYTES = 6
KIND_AT = VERSION_BYTES
ROW_AT = VERSION_BYTES + 9  # after the kind and the offset; in the history: the time
IS_ROW, IS_TOMBSTONE = 1, 2  # not 0: a page of zeros is no row
RECORD_ORDER = 2**32 - 1

_DAMAGED = "a stored row is damaged; the store is wiped and restored when the gateway starts again"
_PREFIX = struct.Struct(">IH")
_STORE = struct.Struct(">I")
_OFFSET = struct.Struct(">Q")
_OFFSET_ORDER = struct.Struct(">QI")
_KIND_OFFSET = struct.Struct(">BQ")
_KIND_TIME = struct.Struct(">Bq")
_TIME = struct.Struct(">q")
_KEY_LENGTH = struct.Struct(">H")
_LENGTHS = struct.Struct(">HI")
_NONE_BEFORE = 2**32 - 1
_POSITION = struct.Struct(">QqB?QQQ")
_RUN_COUNT = struct.Struct(">B")
_RUN = struct.Struct(">IQQ")  # leader epoch, start, end
_SOURCE = struct.Struct(">Iq")


partition_prefix: Callable[[StoreId, Partition], bytes] = _PREFIX.pack
"""Return what the keys of a partition begin with. Not a function of our own, as each read of a key asks twice."""


def store_prefix(store_id: StoreId) -> bytes:
    """Return what the keys of a store id begin with."""
    return _STORE.pack(store_id)


def store_id_of(key: bytes) -> StoreId:
    """Return the store id of a key that begins with a prefix."""
    return StoreId(_STORE.unpack_from(key)[0])


def offset_key(prefix: bytes, offset: Offset) -> bytes:
    """Return the key of a tombstone, and what the keys of an offset's history begin with."""
    return prefix + _OFFSET.pack(offset)


def history_key(prefix: bytes, offset: Offset, order: int = RECORD_ORDER) -> bytes:
    """Return the key of a change in the history."""
    return prefix + _OFFSET_ORDER.pack(offset, order)


def order_of(key: bytes) -> int:
    """Return the order of such a key."""
    order: int = _OFFSET_ORDER.unpack_from(key, PREFIX_BYTES)[1]
    return order


def offset_of(key: bytes) -> Offset:
    """Return the offset of a key of history or tombstones."""
    return Offset(_OFFSET.unpack_from(key, PREFIX_BYTES)[0])


def pack_row(change: Change, pack: Callable[..., bytes] = _KIND_OFFSET.pack) -> bytes:
    """Return the value of a row, or of its tombstone."""
    offset, _, version, row, _ = change
    return version + pack(IS_TOMBSTONE, offset) if row is None else version + pack(IS_ROW, offset) + row


def unpack_row(value: bytes) -> StoredRow:
    """Return what `pack_row` was given; raise `StoreCorrupt`."""
    return StoredRow(Version(value[:VERSION_BYTES]), live_row(value))


def live_row(value: bytes) -> bytes | None:
    """Return the row's bytes, None for a tombstone; raise `StoreCorrupt`."""
    kind = value[KIND_AT] if len(value) >= ROW_AT else 0
    if kind == IS_ROW:
        return value[ROW_AT:]
    if kind == IS_TOMBSTONE:
        return None
    raise StoreCorrupt(_DAMAGED)


def row_offset(value: bytes) -> Offset:
    """Return the offset of the record that a row's value, or its tombstone, is of."""
    return Offset(_KIND_OFFSET.unpack_from(value, KIND_AT)[1])


def unpack_stored(key: bytes, value: bytes, time_ms: int = 0) -> Change:
    """Return what is stored at a key as the change that it was; its time is not stored."""
    version, row = unpack_row(value)
    return Change(row_offset(value), key, version, row, time_ms)


def is_tombstone_of(value: bytes, offset: Offset) -> bool:
    """Return whether a row's value is the tombstone of the record at that offset."""
    return _KIND_OFFSET.unpack_from(value, KIND_AT) == (IS_TOMBSTONE, offset)


def pack_repair(repair: Repair) -> bytes:
    """Return the value of a pending repair; its key is in the key."""
    return _OFFSET.pack(repair.offset) + repair.version


def unpack_repair(key: bytes, value: bytes) -> Repair:
    """Return what `pack_repair` was given."""
    return Repair(key, Offset(_OFFSET.unpack_from(value)[0]), Version(value[_OFFSET.size :]))


def pack_tombstone(change: Change) -> bytes:
    """Return the value that lists a deleted row."""
    return _TIME.pack(change.time_ms) + change.key


def unpack_tombstone(value: bytes) -> tuple[int, bytes]:
    """Return time and key of a listed tombstone."""
    return _TIME.unpack_from(value)[0], value[_TIME.size :]


def pack_change(change: PastChange) -> bytes:
    """Return the value of a change in the history; its offset is in the key."""
    _, key, version, row, time_ms, before = change
    head = version + _KIND_TIME.pack(IS_TOMBSTONE if row is None else IS_ROW, time_ms)
    before_length = _NONE_BEFORE if before is None else len(before)
    return b"".join((head, _LENGTHS.pack(len(key), before_length), key, before or b"", row or b""))


def unpack_change(offset: Offset, value: bytes) -> PastChange:
    """Return what `pack_change` was given; raise `StoreCorrupt`."""
    kind, time_ms = _KIND_TIME.unpack_from(value, KIND_AT)
    key_length, before_length = _LENGTHS.unpack_from(value, ROW_AT)
    key_at = ROW_AT + _LENGTHS.size
    row_at = before_at = key_at + key_length
    before = None
    if before_length != _NONE_BEFORE:
        row_at += before_length
        before = value[before_at:row_at]
    row = None
    if kind == IS_ROW:
        row = value[row_at:]
    elif kind != IS_TOMBSTONE:
        raise StoreCorrupt(_DAMAGED)
    return PastChange(offset, value[key_at:before_at], Version(value[:VERSION_BYTES]), row, time_ms, before)


def pack_position(position: Position, history_count: int) -> bytes:
    """Return the value of a position, and of how many changes the history holds."""
    head = _POSITION.pack(
        position.next_offset,
        position.as_of_ms,
        position.phase,
        position.is_final,
        position.history_start,
        history_count,
        position.incarnation_id,
    )
    runs = [_RUN.pack(*run) for run in position.lineage]
    sources = [
        _KEY_LENGTH.pack(len(name)) + name + _SOURCE.pack(partition, next_offset)
        for (topic, partition), next_offset in position.source_offsets.items()
        for name in [topic.encode()]
    ]
    return b"".join((head, _RUN_COUNT.pack(len(runs)), *runs, *sources))


@lru_cache(maxsize=4096)  # every read asks for its partition's, and between two changes they stay
def unpack_position(value: bytes) -> tuple[Position, int]:
    """Return what `pack_position` was given."""
    next_offset, as_of_ms, phase, is_final, history_start, history_count, incarnation_id = _POSITION.unpack_from(value)
    runs_at = _POSITION.size + _RUN_COUNT.size
    sources_at = runs_at + value[_POSITION.size] * _RUN.size
    lineage = tuple(map(EpochRun._make, _RUN.iter_unpack(value[runs_at:sources_at])))
    sources = _unpack_sources(value[sources_at:])
    return Position(
        next_offset, as_of_ms, Phase(phase), history_start, sources, is_final, incarnation_id, lineage
    ), history_count


@lru_cache(maxsize=4096)  # they change with a marker only
def _unpack_sources(value: bytes) -> Mapping[tuple[str, int], int]:
    sources: dict[tuple[str, int], int] = {}
    at = 0
    while at < len(value):
        name_at = at + _KEY_LENGTH.size
        name_end = name_at + _KEY_LENGTH.unpack_from(value, at)[0]
        partition, next_offset = _SOURCE.unpack_from(value, name_end)
        sources[value[name_at:name_end].decode(), partition] = next_offset
        at = name_end + _SOURCE.size
    return MappingProxyType(sources)
