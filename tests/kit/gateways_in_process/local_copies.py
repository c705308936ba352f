"""Local tables of the ratings, and a process that has one, to be killed: `python -m … ADDRESS DIRECTORY`."""

import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tablegate.client import open_channel
from tablegate.client.local import LocalLimits, LocalTable
from tablegate.gateway.contract.keys import encode_key
from tests.kit.gateways_in_process.client_copies import request, stub_method
from tests.kit.table.filled import ROOT, catalogue_of

ROW = catalogue_of().tables["ratings"].row_class
NOWHERE = "127.0.0.1:1"
OFTEN = {"progress_interval": {"nanos": 100_000_000}}
SMALL = LocalLimits(fill_changes=500, fill_s=0.01, full_pause_s=0.05)
RESET = 1

Log = Sequence[tuple[int, int | None]]
"""What was written, in order: movie, and its count; None where it was deleted."""


class Stream:
    """A Subscribe's method, whose messages are recorded. It breaks each call after so many, where that is given."""

    def __init__(self, method: Any, break_after: int | None = None) -> None:
        self.messages: list[Any] = []
        self._method = method
        self._break_after = break_after

    def __call__(self, asked: Any) -> Any:
        return _Call(self, self._method(asked), self._break_after)

    @property
    def resets(self) -> int:
        """How many snapshots were begun."""
        return sum(message.progress.phase == RESET for message in self.messages)

    @property
    def changes(self) -> int:
        """How many rows and deletes were sent."""
        return sum(len(message.changes) for message in self.messages)


class _Call:
    def __init__(self, stream: Stream, call: Any, left: int | None) -> None:
        self._stream, self._call, self._left = stream, call, left
        self.cancel = call.cancel

    def __next__(self) -> Any:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                self._call.cancel()
        message = next(self._call)
        self._stream.messages.append(message)
        return message


@contextmanager
def local_ratings(
    address: str,
    directory: Path,
    *,
    break_after: int | None = None,
    fields: Mapping[str, Any] | None = None,
    **more: Any,
) -> Iterator[tuple[LocalTable[Any], Stream]]:
    """Give a local table, and what it has been sent."""
    asked = request(**(fields or {"subscribe_options": OFTEN}))
    with open_channel(address) as channel:
        stream = Stream(stub_method(channel), break_after)
        with LocalTable(stream, asked, directory, row=ROW, **{"limits": SMALL, **more}) as table:
            yield table, stream


def counts_of(table: LocalTable[Any]) -> dict[int, int]:
    """Return movie → count."""
    found = [(row.movie_id, row.rating_count) for row in table.scan()]
    assert found == sorted(set(found)), "a row came twice, or out of order"
    return dict(found)


def prefixes(log: Log, copy: Mapping[int, int], partition: int, partitions: int) -> tuple[int, int] | None:
    """Return the first and the last number of changes of a partition whose fold is what a copy has of it, else None."""
    table = catalogue_of().tables["ratings"]

    def is_here(movie: int) -> bool:
        return table.partition_of(encode_key(table.key, [movie]), partitions) == partition

    ours = [change for change in log if is_here(change[0])]
    wanted = {movie: count for movie, count in copy.items() if is_here(movie)}
    fold: dict[int, int] = {}
    different = len(wanted)
    found = [0] if not different else []
    for number, (movie, count) in enumerate(ours, 1):
        different -= fold.get(movie) != wanted.get(movie)
        if count is None:
            fold.pop(movie, None)
        else:
            fold[movie] = count
        different += fold.get(movie) != wanted.get(movie)
        if not different:
            found.append(number)
    return (found[0], found[-1]) if found else None


class Copier:
    """A process with a local table. `start` returns when it has opened its directory."""

    def __init__(self, address: str, directory: Path) -> None:
        self._command = [sys.executable, "-m", __spec__.name, address, str(directory)]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "open\n"

    def kill(self) -> None:
        """End it with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.communicate()


def main(address: str, directory: str) -> None:
    """Keep a local table until somebody kills this."""
    with local_ratings(address, Path(directory)):
        print("open", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
