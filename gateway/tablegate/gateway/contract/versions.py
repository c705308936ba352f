"""Versions of rows, and the record header that carries them."""

import struct
from typing import NewType

VERSION_HEADER = "v"
"""Name of the record header whose value is a row's version."""

VERSION_BYTES = 12

Version = NewType("Version", bytes)
"""Generation (4 bytes) and sequence (8 bytes), big endian: byte order is the order of versions."""

_LAYOUT = struct.Struct(">IQ")


def make_version(generation: int, sequence: int) -> Version:
    """Return the version of a row's `sequence` in `generation`, as the header carries it."""
    return Version(_LAYOUT.pack(generation, sequence))


def read_version(version: Version) -> tuple[int, int]:
    """Return generation and sequence; raise `ValueError` unless there are 12 bytes."""
    if len(version) != VERSION_BYTES:
        raise ValueError(f"version has {len(version)} bytes, not {VERSION_BYTES}")
    generation, sequence = _LAYOUT.unpack(version)
    return generation, sequence
