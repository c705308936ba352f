"""Copies of the cells, kept by the client package's subscriptions: what is shown in them never goes back."""

import threading
from collections import Counter
from typing import Any, Self

import tablegate.client
from tablegate.client import Current, Delete, Disconnected, Reset, SubscribeError, Upsert
from tests.kit.gateway_processes.cells.changelog import CellKey, Cells
from tests.kit.gateway_processes.cells.readers import OWN_CONNECTION, request_of, stub_of

LOOK_AT_EVERY = 20  # pictures; one is held against the whole table


class CellsCopy:
    """A copy of a shelf, or of all. `resets` counts snapshots, `ends` why streams broke.

    `rows` is whole, and has all before `as_of_ms`, while `is_current`.
    """

    def __init__(self, cells: Cells, target: str, *, shelf: int | None = None) -> None:
        self.violations: list[str] = []
        self.ends: Counter[str] = Counter()
        self.resets = self.given = self.pictures = 0
        self.rows: dict[CellKey, int] = {}
        self.is_current = False
        self.as_of_ms = 0
        self._cells = cells
        self._shelf = shelf
        self._seen: dict[CellKey, int] = {}
        self._channel = tablegate.client.open_channel(target, options=OWN_CONNECTION)
        fields: dict[str, Any] = {} if shelf is None else {"shelf": shelf}
        request = request_of("SubscribeCells", subscribe_options={"progress_interval": {"seconds": 1}}, **fields)
        self._events = tablegate.client.subscribe(stub_of(self._channel, "SubscribeCells"), request)
        self._thread = threading.Thread(target=self._run, name="CellsCopy")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._events.close()
        self._thread.join()
        self._channel.close()

    def is_the_table(self) -> bool:
        """Return whether the copy is what was written last; to be asked when nothing is written any more."""
        rows = {key: revision for key, revision in self._cells.rows.items() if self._shelf in (None, key[0])}
        return self.is_current and self.rows == rows

    def _run(self) -> None:
        try:
            for event in self._events:
                self._take(event)
        except SubscribeError as error:
            self.violations.append(f"the subscription was refused: {error}")
        except Exception as error:  # noqa: BLE001 (a copy that died would find nothing)
            self.violations.append(repr(error))

    def _take(self, event: tablegate.client.Event) -> None:
        match event:
            case Reset():
                self.resets += 1
                self.rows, self.is_current = {}, False
            case Upsert():
                self._put(event.key, event.row.revision)
            case Delete():
                self._drop(event.key)
            case Current(as_of):
                self.as_of_ms, self.is_current = int(as_of.timestamp() * 1_000), True
                self.pictures += 1
                if self.pictures % LOOK_AT_EVERY == 1:
                    self._look()
            case Disconnected(code, reason):
                self.ends[reason or code] += 1
                self.is_current = False
            case _:
                self.is_current = False

    def _put(self, key: Any, revision: int) -> None:
        self.given += 1
        if revision < self._seen.get(key, 0):
            self.violations.append(f"{key} at revision {revision}, after {self._seen[key]}")
        if revision <= self.rows.get(key, 0):
            self.violations.append(f"{key} at revision {revision} was there already")
        if self._shelf not in (None, key[0]):
            self.violations.append(f"{key} is of another shelf")
        self.rows[key] = self._seen[key] = revision

    def _drop(self, key: Any) -> None:
        self.given += 1
        if self.rows.pop(key, None) is None:
            self.violations.append(f"{key} is gone, and was not there")

    def _look(self) -> None:
        """Hold a whole picture against what Kafka had when it says that it was taken."""
        for key in self._cells.lasting:
            if self._shelf in (None, key[0]):
                found, floor = self.rows.get(key, 0), self._cells.floor(key, self.as_of_ms)
                if found < floor:
                    self.violations.append(f"{key} at revision {found}; {floor} was there as of {self.as_of_ms}")
