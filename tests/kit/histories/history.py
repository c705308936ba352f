"""What the clients of a run saw, as lines of JSON in a file, to be checked when the run is over.

Each line has a `type`, as histories of Jepsen have: `invoke` where a client asks, then `ok` (it was answered), `fail`
(it was refused) or `info` (nobody knows; or it is about the run). A `process` does one thing (`op`) at a time. A `time`
is in milliseconds since 1970, by the clock of the clients. A key is a number, and so is a value: that of the event
which wrote the row. A position is `[generation, {partition: next offset}]`, and so is a token, as the client got it.

- get, batch, page: asked with `keys`, and `token`, `session`, `latest`, `staleness_ms` or `own` (an event that must be
  in the answer). Answered with `value` [[key, value], …], `position`, `as_of`, `by` and whether that is the `owner`.
- page, scan: asked with `walk`, the range of keys of all pages together, and whether it is the `first`. Answered with
  the `range` of keys of a page, and whether it is the `last`.
- subscribe: asked with its `range`, `goes_on` where an earlier stream was, `goes_back` where it has lost all since it
  last `saved`, and `each` where it must get each change of its one key. Answered with `phase`, `changes`
  [[key, value or null], …], `position` and `as_of` of a copy that is current, and `saved` if that was kept.
- write: only what was acknowledged: `id` [generation, partition], `offset`, `key`, `version`, `deletes`, `broker_ms`,
  `final`.

Lines of the run are of process -1: `log` (what is in the changelog in the end), `floor` (what every gateway has),
`fault` and `evidence` (what befell whom, and what was seen of it), `settled` (all gateways know of a loss),
`restored` (of a changelog that some had missed deletes of: streams may begin anew), `died` (a client did).

Decision: docs/decisions/0075-histories-of-real-runs.md
"""

import itertools
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kit.table.filled import ROOT
from tests.kit.world.checker import Stated

DIRECTORY = ROOT / ".cache" / "histories"


def now_ms() -> int:
    """Return the milliseconds since 1970, by the clock of the clients."""
    return time.time_ns() // 1_000_000


def position_of(stated: Stated) -> list[Any]:
    """Return what an answer states, as a line has it."""
    return [stated.generation, dict(stated.positions)]


class History:
    """A run. Any thread writes."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or _new_path()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("w")
        self._lock = threading.Lock()
        self._processes = itertools.count()

    def process(self) -> int:
        """Return the number of a new client."""
        return next(self._processes)

    def invoke(self, process: int, op: str, **fields: Any) -> None:
        """Write that a client asks."""
        self._write("invoke", process, op, fields)

    def ok(self, process: int, op: str, **fields: Any) -> None:
        """Write that it was answered."""
        self._write("ok", process, op, fields)

    def fail(self, process: int, op: str, **fields: Any) -> None:
        """Write that it was refused."""
        self._write("fail", process, op, fields)

    def info(self, process: int, op: str, **fields: Any) -> None:
        """Write that nobody knows how it ended; or, of process -1, something about the run."""
        self._write("info", process, op, fields)

    def about(self, op: str, **fields: Any) -> None:
        """Write something about the run."""
        self.info(-1, op, **fields)

    @contextmanager
    def fault(self, what: str) -> Iterator[Callable[[str], None]]:
        """Let something befall the run while the block runs; give what notes that it was seen, and how.

        Calls that were refused and owners that changed meanwhile are seen without.
        """
        self.about("fault", what=what, phase="begin")
        try:
            yield lambda seen: self.about("evidence", what=what, seen=seen)
        finally:
            self.about("fault", what=what, phase="end")

    def _write(self, kind: str, process: int, op: str, fields: Mapping[str, Any]) -> None:
        head = {"type": kind, "process": process, "op": op, "time": now_ms()}
        line = json.dumps({**head, **fields}, separators=(",", ":"))
        with self._lock:
            self._file.write(f"{line}\n")

    def close(self) -> None:
        """Write no more."""
        with self._lock:
            self._file.close()


def _new_path() -> Path:
    """Return a file that is named after the test that runs."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "history").rpartition("::")[2].split(" ")[0]
    return DIRECTORY / f"{re.sub(r'[^A-Za-z0-9]+', '-', test).strip('-')}-{time.time_ns()}.jsonl"
