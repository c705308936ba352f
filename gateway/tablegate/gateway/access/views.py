"""What a principal may see of a table: which rows, and all columns but some."""

import hashlib
from typing import NamedTuple

Value = str | int | bool

VALUES_MAX = 100  # that a claim may list: gateways give them to each other in a header
VALUES_CHARS_MAX = 4_096  # of all of them together


class View(NamedTuple):
    """Which rows of a table, and what of them. Principals with equal views see the same.

    `rows`: a row is in it whose columns each have one of their values. `hidden`: columns that are left out.
    """

    rows: tuple[tuple[str, tuple[Value, ...]], ...] = ()
    hidden: tuple[str, ...] = ()

    def digest(self) -> bytes:
        """Return what tokens of the view are bound to, so that no other view takes them."""
        return hashlib.sha256(repr(self).encode()).digest()
