"""Windows: what the rows of a windowed table are, and when they are gone.

A run is the windows that are alike in the key columns before the start column. In key order it is one stretch, oldest
window first; so what of it is gone is its beginning.

Decision: docs/decisions/0014-retention-in-the-gateway.md
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from tablegate.gateway.contract.keys import ENCODERS, INT64_MAX, INT64_MIN, InvalidKey, KeyColumn, KeyType, key_prefix

_START = struct.Struct(">Q")  # as the key codec has it, with the sign bit flipped
_encode_start: Callable[[int], bytes] = ENCODERS[KeyType.TIMESTAMP]  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Window:
    """What a windowed table's windows are.

    `leading` are the key columns before the start column; `start_place` returns where that begins in a key's bytes,
    and may raise `InvalidKey`.
    """

    size_us: int
    hop_us: int
    leading: tuple[KeyColumn, ...]
    end_column: str | None  # of the row: start + size
    start_place: Callable[[bytes], int] = field(repr=False, compare=False)

    @property
    def start_index(self) -> int:
        """The start column's place in the key."""
        return len(self.leading)

    def start_us(self, key: bytes) -> int:
        """Return the first moment of the key's window, in µs since 1970; raise `InvalidKey`. Decodes nothing else."""
        place = self.start_place(key)
        if not 0 <= place <= len(key) - _START.size:
            raise InvalidKey("the start of the window is missing")
        start: int = _START.unpack_from(key, place)[0] - 2**63
        return start

    def run(self, key: bytes) -> bytes:
        """Return what all keys of the key's run begin with, and no other key of the table; raise `InvalidKey`."""
        return key_prefix(self.leading, key)


@dataclass(frozen=True, slots=True)
class Expiry:
    """When the rows of a table are gone: `retention_us` after the end of their windows."""

    window: Window
    retention_us: int

    def at_us(self, key: bytes) -> int:
        """Return from when on the row of `key` is gone, in µs since 1970; raise `InvalidKey`."""
        return self.window.start_us(key) + self.window.size_us + self.retention_us

    def is_gone(self, key: bytes, now_us: int) -> bool:
        """Return whether `key` has no row any more. What is no key of the table has none."""
        try:
            return self.at_us(key) <= now_us
        except InvalidKey:
            return True

    def kept_from(self, run: bytes, now_us: int) -> bytes:
        """Return the bytes below which the rows of `run` are gone, and from which on they are not."""
        start_us = now_us - self.window.size_us - self.retention_us + 1
        return run + _encode_start(min(max(start_us, INT64_MIN), INT64_MAX))
