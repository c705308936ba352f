"""What Redis runs for the store, each in one atomic step: the scripts in Lua beside this file.

A script that ends with an error keeps what it wrote before, so each reads and checks everything first and then writes:
what it may call, too (`permitted`). All keys of one are in one slot. Lua compares strings by the server's locale, and
so versions are compared as numbers. A file has no way to include another: `permitted`, `many`, `now`, `own_position`,
`entries`, `before`, `newest`, `write` and `whole` are put before the scripts that need them.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from tablegate.gateway.contract.indexes import INDEX_ID_BYTES
from tablegate.gateway.stores.base import Phase
from tablegate.gateway.stores.lmdb.layout import IS_ROW, RECORD_ORDER
from tablegate.gateway.stores.redis.layout import INDEX_ANEW, INDEX_WHOLE, StaleKind

_FILES = files(__package__)
_CALLS = re.compile(r"call(?:_many)?\('([A-Z]+)'")


@dataclass(frozen=True, slots=True)
class Script:
    """A script, and the name by which a server that has it runs it."""

    text: str
    sha: str
    command: str

    @classmethod
    def load(cls, *names: str, writes: bool = True) -> "Script":
        """Return the script that files of these names are together; they may name constants of the layout."""
        every = ("permitted", *names) if writes else names
        text = "\n".join(_FILES.joinpath(f"{name}.lua").read_text(encoding="utf-8") for name in every)
        constants: dict[str, int | str] = {
            "RESTORING": Phase.RESTORING,
            "CATCHING_UP": Phase.CATCHING_UP,
            "IS_ROW": IS_ROW,
            "RECORD_ORDER": RECORD_ORDER,
            "INDEX_ID_BYTES": INDEX_ID_BYTES,
            "COMMANDS": ", ".join(f"'{name}'" for name in sorted({*_CALLS.findall(text)})),
            "INDEX_ANEW": INDEX_ANEW,
            "INDEX_WHOLE": INDEX_WHOLE,
            **{kind.name: kind for kind in StaleKind},
        }
        for name, value in constants.items():
            text = text.replace(f"${name}", value if isinstance(value, str) else str(int(value)))
        sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        return cls(text, sha, "EVALSHA" if writes else "EVALSHA_RO")

    def on(self, keys: Sequence[str], arguments: Iterable[Any]) -> tuple[Any, ...]:
        """Return the command that runs it."""
        return self.command, self.sha, len(keys), *keys, *arguments


APPLY = Script.load("many", "entries", "before", "newest", "write", "apply")
EXPIRE = Script.load("many", "entries", "before", "newest", "write", "expire")
BUILD = Script.load("many", "entries", "build")
RENEW = Script.load("before", "renew")
DROP_TOMBSTONES = Script.load("many", "drop_tombstones")
JOIN = Script.load("join")
DROP = Script.load("many", "drop")
COPY = Script.load("copy")
HERE = Script.load("now", "here")
THERE = Script.load("now", "there", writes=False)
BURY = Script.load("many", "now", "bury")
CHECK = Script.load("whole", "newest", "check", writes=False)
READ_VALUES = Script.load("many", "own_position", "whole", "read_values", writes=False)
READ_RANGE = Script.load("many", "own_position", "whole", "read_range", writes=False)
READ_INDEX = Script.load("many", "own_position", "whole", "read_index", writes=False)
READ_HISTORY = Script.load("own_position", "whole", "newest", "read_history", writes=False)

SCRIPTS = (
    APPLY,
    EXPIRE,
    BUILD,
    RENEW,
    DROP_TOMBSTONES,
    JOIN,
    DROP,
    COPY,
    HERE,
    THERE,
    BURY,
    CHECK,
    READ_VALUES,
    READ_RANGE,
    READ_INDEX,
    READ_HISTORY,
)
