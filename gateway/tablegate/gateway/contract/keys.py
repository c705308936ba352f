"""Key codec: columns to bytes whose order is the columns' order.

An integer, enum or timestamp (microseconds) is 8 bytes, big endian, sign bit flipped; a bool one byte; a string
(UTF-8) or bytes has each 00 written as 00 FF and ends with 00 00. So a shorter string sorts before a longer one that
it begins, a prefix of columns is a prefix of bytes, and Range needs no decoding. The job writes the same bytes
with Spark SQL (`streamjobs/tablegate/jobs/dataflow/keys.py`); golden files and a property test hold the two equal.

The end of the file has the partitioners: functions from key bytes to a partition. Kafka's producers, Spark's sink and
every reader must agree on them, so they are Kafka's own.
"""

import struct
import zlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

from tablegate.gateway.contract.types import Partition
from tablegate.v1 import changelog_pb2

KEY_BYTES_MAX = 500  # an LMDB key has at most 511 bytes, 6 of them ours
INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1


class KeyType(IntEnum):
    """Type of a key column's bytes; numbers as in the manifest."""

    INT64 = changelog_pb2.KEY_TYPE_INT64
    BOOL = changelog_pb2.KEY_TYPE_BOOL
    STRING = changelog_pb2.KEY_TYPE_STRING
    BYTES = changelog_pb2.KEY_TYPE_BYTES
    TIMESTAMP = changelog_pb2.KEY_TYPE_TIMESTAMP


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of a key."""

    name: str
    type: KeyType


KeyValue = int | bool | str | bytes
"""A key column's value; a timestamp is its microseconds since 1970."""


class InvalidKey(ValueError):
    """A value that no key can hold; the message says which column and why."""


_INT64 = struct.Struct(">Q")


def _encode_int64(value: int) -> bytes:
    if not INT64_MIN <= value <= INT64_MAX:
        raise InvalidKey("the value is outside the range of a 64-bit signed integer")  # no keys in errors
    return _INT64.pack(value + 2**63)


def encode_bool(value: bool) -> bytes:
    """Return the byte of a bool."""
    return b"\x01" if value else b"\x00"


def encode_bytes(value: bytes) -> bytes:
    """Return bytes that sort as `value` does, and end where no other value goes on."""
    return value.replace(b"\x00", b"\x00\xff") + b"\x00\x00"


def encode_string(value: str) -> bytes:
    """Return bytes that sort as the text's UTF-8 does."""
    return value.encode().replace(b"\x00", b"\x00\xff") + b"\x00\x00"  # as `encode_bytes`: a call less for each key


ENCODERS = {
    KeyType.INT64: _encode_int64,
    KeyType.TIMESTAMP: _encode_int64,
    KeyType.BOOL: encode_bool,
    KeyType.STRING: encode_string,
    KeyType.BYTES: encode_bytes,
}
"""Encoder of each type: value to bytes."""

_FIXED_BYTES = {KeyType.INT64: 8, KeyType.TIMESTAMP: 8, KeyType.BOOL: 1}


def encode_key(columns: Sequence[KeyColumn], values: Sequence[KeyValue]) -> bytes:
    """Return the bytes of `values`, which belong to the first `len(values)` columns; raise `InvalidKey`."""
    parts = []
    for column, value in zip(columns, values, strict=False):
        try:
            parts.append(ENCODERS[column.type](value))  # type: ignore[operator]
        except InvalidKey as error:
            raise InvalidKey(f'key column "{column.name}": {error}') from None
    return b"".join(parts)


def decode_key(columns: Sequence[KeyColumn], key: bytes) -> list[KeyValue]:
    """Return the value of each column; raise `InvalidKey` where `key` is no key of these columns."""
    values: list[KeyValue] = []
    at = 0
    for column in columns:
        value, at = _decode_column(column, key, at)
        values.append(value)
    if at != len(key):
        raise InvalidKey(f"{len(key) - at} bytes follow the last key column")
    return values


def is_only_numbers(columns: Sequence[KeyColumn]) -> bool:
    """Return whether each column is eight bytes of a key, whatever those are."""
    return all(column.type in (KeyType.INT64, KeyType.TIMESTAMP) for column in columns)


def key_prefix(columns: Sequence[KeyColumn], key: bytes) -> bytes:
    """Return the leading bytes of `key` that hold `columns`; raise `InvalidKey` where they are not there."""
    at = 0
    for column in columns:
        _, at = _decode_column(column, key, at)
    return key[:at]


def column_place(columns: Sequence[KeyColumn], index: int) -> Callable[[bytes], int]:
    """Return the function from a key's bytes to where column `index` begins; it may raise `InvalidKey`.

    It looks at the bytes only where columns of no fixed length are on both sides; so the place may be outside of what
    is no key of these columns.
    """
    before, after = ([_FIXED_BYTES.get(column.type) for column in part] for part in (columns[:index], columns[index:]))
    if None not in before:
        place = sum(length or 0 for length in before)
        return lambda _: place
    if None not in after:
        rest = sum(length or 0 for length in after)
        return lambda key: len(key) - rest
    leading = columns[:index]
    return lambda key: len(key_prefix(leading, key))


def _decode_column(column: KeyColumn, key: bytes, at: int) -> tuple[KeyValue, int]:
    match column.type:
        case KeyType.INT64 | KeyType.TIMESTAMP:
            if len(key) - at < 8:
                raise InvalidKey(f'key column "{column.name}": {len(key) - at} bytes left of 8')
            return _INT64.unpack_from(key, at)[0] - 2**63, at + 8
        case KeyType.BOOL:
            if key[at : at + 1] not in (b"\x00", b"\x01"):
                raise InvalidKey(f'key column "{column.name}": not a bool')
            return key[at] == 1, at + 1
        case KeyType.STRING | KeyType.BYTES:
            raw, after = _unescape(column, key, at)
            if column.type is KeyType.BYTES:
                return raw, after
            try:
                return raw.decode("utf-8"), after
            except UnicodeDecodeError:
                raise InvalidKey(f'key column "{column.name}": not UTF-8') from None


def _unescape(column: KeyColumn, key: bytes, at: int) -> tuple[bytes, int]:
    end = at
    while True:
        end = key.find(b"\x00", end)
        following = key[end + 1 : end + 2] if end >= 0 else b""
        if following == b"\x00":
            return key[at:end].replace(b"\x00\xff", b"\x00"), end + 2
        if following != b"\xff":
            raise InvalidKey(f'key column "{column.name}": its end is missing')
        end += 2


def after_prefix(prefix: bytes) -> bytes | None:
    """Return the first bytes above everything that starts with `prefix`; None when there are none."""
    stripped = prefix.rstrip(b"\xff")
    if not stripped:
        return None
    return stripped[:-1] + bytes([stripped[-1] + 1])


_MURMUR_SEED = 0x9747B28C
_MURMUR_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


@cache  # keys have at most 500 bytes
def _little_endian_words(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}I")


def murmur2(data: bytes) -> int:
    """Return Kafka's 32-bit murmur2 of `data`, unsigned (org.apache.kafka.common.utils.Utils)."""
    length = len(data)
    h = _MURMUR_SEED ^ length
    for word in _little_endian_words(length >> 2).unpack_from(data):
        k = word * _MURMUR_M & _MASK
        h = (h * _MURMUR_M ^ (k ^ k >> 24) * _MURMUR_M) & _MASK
    if length & 3:
        h = (h ^ int.from_bytes(data[length & ~3 :], "little")) * _MURMUR_M & _MASK
    h ^= h >> 13
    h = (h * _MURMUR_M) & _MASK
    return h ^ (h >> 15)


_LANES_MIN = 8  # fewer keys of a length are quicker one by one


def murmur2_many(keys: Sequence[bytes]) -> Sequence[int]:
    """Return `murmur2` of each key, in their order. Of hundreds of keys each costs a fifth of what it does alone."""
    lengths = set(map(len, keys))
    if len(lengths) == 1:
        return _murmur2_lanes(keys, lengths.pop()) if len(keys) >= _LANES_MIN else [murmur2(key) for key in keys]
    hashes = [0] * len(keys)
    places: defaultdict[int, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        places[len(key)].append(place)
    for same in places.values():
        for place, found in zip(same, murmur2_many([keys[place] for place in same]), strict=True):
            hashes[place] = found
    return hashes


def _murmur2_lanes(keys: Sequence[bytes], length: int) -> Sequence[int]:
    """Return murmur2 of keys of one length, all at once.

    One long integer has a number of 32 bits of each key, with 32 bits of room above it for its products: so what
    murmur2 does with one number, long integers do with all of them, in C.
    """
    count, words, rest = len(keys), length + 3 >> 2, length & 3
    padding = bytes(-length & 3)
    read = memoryview(padding.join(keys) + padding).cast("I") if length else memoryview(b"").cast("I")
    ones = int.from_bytes(b"\1\0\0\0\0\0\0\0" * count, "little")
    mask = ones * _MASK
    h = ones * (_MURMUR_SEED ^ length)
    for word in range(words):
        lanes = array("I", bytes(8 * count))
        memoryview(lanes)[::2] = read[word::words]
        k = int.from_bytes(lanes.tobytes(), "little")
        if rest and word == words - 1:  # what is left of four bytes is not mixed first
            h = (h ^ k) * _MURMUR_M & mask
            break
        k = k * _MURMUR_M & mask
        h = (h * _MURMUR_M ^ (k ^ k >> 24 & mask) * _MURMUR_M) & mask
    h ^= h >> 13 & mask
    h = h * _MURMUR_M & mask
    h ^= h >> 15 & mask
    return memoryview(h.to_bytes(8 * count, "little")).cast("Q")


def murmur2_partitions(keys: Sequence[bytes], partition_count: int) -> list[int]:
    """Return what `murmur2_partition` returns for each key, quicker."""
    return [(found & 0x7FFFFFFF) % partition_count for found in murmur2_many(keys)]


def murmur2_partition(key: bytes, partition_count: int) -> Partition:
    """Return the partition that Kafka's Java producer chooses for `key`."""
    return Partition((murmur2(key) & 0x7FFFFFFF) % partition_count)


def crc32_partition(prefix: bytes, partition_count: int) -> Partition:
    """Return the partition of a key whose `partition_by` columns are `prefix` (librdkafka's `consistent`)."""
    return Partition(zlib.crc32(prefix) % partition_count)
