"""Key to partition: the same function at the writer and at every reader."""

import struct
import zlib
from functools import cache

from tablegate.gateway.contract.types import Partition

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


@cache  # keys have at most 500 bytes
def _words(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}I")


def murmur2(data: bytes) -> int:
    """Return Kafka's 32-bit murmur2 of `data`, unsigned (org.apache.kafka.common.utils.Utils)."""
    length = len(data)
    h = _SEED ^ length
    for word in _words(length >> 2).unpack_from(data):
        k = word * _M & _MASK
        h = (h * _M ^ (k ^ k >> 24) * _M) & _MASK
    if length & 3:
        h = (h ^ int.from_bytes(data[length & ~3 :], "little")) * _M & _MASK
    h ^= h >> 13
    h = (h * _M) & _MASK
    return h ^ (h >> 15)


def murmur2_partition(key: bytes, partition_count: int) -> Partition:
    """Return the partition that Kafka's Java producer chooses for `key`."""
    return Partition((murmur2(key) & 0x7FFFFFFF) % partition_count)


def crc32_partition(prefix: bytes, partition_count: int) -> Partition:
    """Return the partition of a key whose `partition_by` columns are `prefix` (librdkafka's `consistent`)."""
    return Partition(zlib.crc32(prefix) % partition_count)
