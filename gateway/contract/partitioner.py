"""Key to partition: the same function at the writer and at every reader."""

import struct
import zlib

from gateway.contract.types import Partition

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return Kafka's 32-bit murmur2 of `data`, unsigned (org.apache.kafka.common.utils.Utils)."""
    length = len(data)
    h = _SEED ^ length
    words = length >> 2
    for word in struct.unpack_from(f"<{words}I", data):
        k = (word * _M) & _MASK
        h = ((h * _M) & _MASK) ^ (((k ^ (k >> 24)) * _M) & _MASK)
    tail = data[words * 4 :]
    if tail:
        h ^= int.from_bytes(tail, "little")
        h = (h * _M) & _MASK
    h ^= h >> 13
    h = (h * _M) & _MASK
    return h ^ (h >> 15)


def murmur2_partition(key: bytes, partition_count: int) -> Partition:
    """Return the partition that Kafka's Java producer chooses for `key`."""
    return Partition((murmur2(key) & 0x7FFFFFFF) % partition_count)


def crc32_partition(prefix: bytes, partition_count: int) -> Partition:
    """Return the partition of a key whose `partition_by` columns are `prefix` (librdkafka's `consistent`)."""
    return Partition(zlib.crc32(prefix) % partition_count)
