"""Numbers and versions of the domain, with types of their own."""

import re
import struct
from typing import NewType

Partition = NewType("Partition", int)
"""A part of a table and of its changelog, from 0."""

Offset = NewType("Offset", int)
"""Place of a record in a partition of a topic."""

PARTITIONS_MAX = 65_536
"""Partitions that a table may have at most: their numbers are two bytes of a store's keys."""

COMPACTION_LAG_MS = 6 * 60 * 60 * 1000
"""Age that a record of a changelog has at least when compaction looks at it: so jobs set their topics."""

BATCH_CHANGES_MAX = 20_000
"""Changes of one atomic batch. A gateway holds that many in memory, and stores them at once: 0.2 s of a Redis."""

StoreId = NewType("StoreId", int)
"""Which rows of a store belong together: one incarnation of a table."""

VERSION_HEADER = "v"
"""Name of the record header whose value is a row's version."""

RUN_HEADER = "r"
"""Name of the record header whose value is the run of the job that wrote a row: 8 bytes, big endian."""

MARKER_KEY = b""
"""Key of the progress markers: no row's key is empty, and compaction keeps the newest."""

VERSION_BYTES = 12
RUN_BYTES = 8

Version = NewType("Version", bytes)
"""Generation (4 bytes) and sequence (8 bytes), big endian: byte order is the order of versions."""

_LAYOUT = struct.Struct(">IQ")
_TOPIC_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
RUN_KEY_PREFIX = b"run-"
"""What `run_key` begins with; the number of the run follows, in 16 hex digits."""

_RUN_KEY = re.compile(RUN_KEY_PREFIX + rb"[0-9a-f]{16}")


def past_name(table: str) -> str:
    """Return the key under which the manifests keep the newest generation of a table that was removed.

    No table can have this name.
    """
    return f"{table}/past"


def make_version(generation: int, sequence: int) -> Version:
    """Return the version of a row's `sequence` in `generation`, as the header carries it."""
    return Version(_LAYOUT.pack(generation, sequence))


def read_version(version: Version) -> tuple[int, int]:
    """Return generation and sequence; raise `ValueError` unless there are 12 bytes."""
    if len(version) != VERSION_BYTES:
        raise ValueError(f"version has {len(version)} bytes, not {VERSION_BYTES}")
    generation, sequence = _LAYOUT.unpack(version)
    return generation, sequence


def run_key(run: int) -> bytes:
    """Return the key of the marker that begins a run.

    It has no other key, so compaction keeps it before the rows that it fences. No row's key has these bytes: columns
    take 8 each, or end with a byte below 02.
    """
    return RUN_KEY_PREFIX + b"%016x" % run


def is_marker_key(key: bytes | None) -> bool:
    """Return whether a record of a changelog with this key is a progress marker."""
    return key == MARKER_KEY or (key is not None and _RUN_KEY.fullmatch(key) is not None)


def is_topic_name(name: str) -> bool:
    """Return whether a topic may be called so in Kafka."""
    return _TOPIC_NAME.fullmatch(name) is not None
