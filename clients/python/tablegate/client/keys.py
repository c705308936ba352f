"""Key bytes, and the partition that they are in: as jobs write them and gateways find them.

Types and partitioners have the numbers of `tablegate.v1.KeyType` and `tablegate.v1.Partitioner`.
"""

import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any

INT64, BOOL, STRING, BYTES, TIMESTAMP = 1, 2, 3, 4, 5
MURMUR2, CRC32 = 1, 2

_SIGN = 2**63
_SEED, _M, _MASK = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF


class NoKey(ValueError):
    """A value that no key of the table has, or of a type that is not known here: the gateway says what is wrong."""


def encode(key_type: int, value: Any) -> bytes:
    """Return the bytes of a key column; a time is a Timestamp, or microseconds since 1970. Raise `NoKey`."""
    encoder = _ENCODERS.get(key_type)
    if encoder is None:
        raise NoKey(f"a key column of type {key_type} is not known here")
    try:
        return encoder(value)
    except (AttributeError, TypeError, UnicodeError, struct.error) as error:
        raise NoKey(f"a {type(value).__name__} is no value of a key column of type {key_type}") from error


def _integer(value: int) -> bytes:
    return struct.pack(">Q", value + _SIGN)


def _bool(value: bool) -> bytes:
    return b"\x01" if value else b"\x00"


def _bytes(value: bytes) -> bytes:
    return value.replace(b"\x00", b"\x00\xff") + b"\x00\x00"


def _string(value: str) -> bytes:
    return _bytes(value.encode())


def _time(value: Any) -> bytes:
    if isinstance(value, int):
        return _integer(value)
    if value.nanos % 1_000:
        raise NoKey("a time that is finer than a microsecond is in no key")
    return _integer(value.seconds * 1_000_000 + value.nanos // 1_000)


_ENCODERS: Mapping[int, Callable[[Any], bytes]] = {
    INT64: _integer,
    BOOL: _bool,
    STRING: _string,
    BYTES: _bytes,
    TIMESTAMP: _time,
}


def partition_of(key: bytes, partitioner: int, partition_count: int) -> int:
    """Return the partition of the bytes of those columns that choose it; raise `NoKey` for an unknown partitioner."""
    if partitioner == MURMUR2:
        return (murmur2(key) & 0x7FFFFFFF) % partition_count
    if partitioner == CRC32:
        return zlib.crc32(key) % partition_count
    raise NoKey(f"partitioner {partitioner} is not known here")


def murmur2(data: bytes) -> int:
    """Return Kafka's 32-bit murmur2 of `data`, unsigned."""
    length = len(data)
    h = _SEED ^ length
    for (word,) in struct.iter_unpack("<I", data[: length & ~3]):
        k = word * _M & _MASK
        h = (h * _M ^ (k ^ k >> 24) * _M) & _MASK
    if length & 3:
        h = (h ^ int.from_bytes(data[length & ~3 :], "little")) * _M & _MASK
    h ^= h >> 13
    h = h * _M & _MASK
    return h ^ h >> 15
