"""Copies of the cells, kept by the client package's subscriptions, which write what they got into a history."""

from collections import Counter
from typing import Any

import tablegate.client
from tablegate.client import CatchingUp, Current, Delete, Disconnected, Reset, Upsert
from tests.kit.gateway_processes.cells.changelog import CellKey, Cells, number_of
from tests.kit.gateway_processes.cells.readers import ALL, OWN_CONNECTION, request_of, stub_of
from tests.kit.histories.client import HistoryClient
from tests.kit.histories.history import History, position_of
from tests.kit.world.clients import stated_by


class CellsCopy(HistoryClient):
    """A copy of a shelf, or of all. `resets` counts snapshots, `ends` why streams broke.

    `rows` is whole while `is_current`.
    """

    def __init__(self, history: History, cells: Cells, target: str, *, shelf: int | None = None) -> None:
        super().__init__(history)
        self.ends: Counter[str] = Counter()
        self.resets = 0
        self.rows: dict[CellKey, int] = {}
        self.is_current = False
        self._changes: list[tuple[int, int | None]] = []  # of the message that is being read
        self._cells = cells
        self._shelf = shelf
        self._range = ALL if shelf is None else (number_of((shelf, 0)), number_of((shelf + 1, 0)))
        self._channel = tablegate.client.open_channel(target, options=OWN_CONNECTION)
        fields: dict[str, Any] = {} if shelf is None else {"shelf": shelf}
        request = request_of("SubscribeCells", subscribe_options={"progress_interval": {"seconds": 1}}, **fields)
        self._events = tablegate.client.subscribe(stub_of(self._channel, "SubscribeCells"), request)

    def interrupt(self) -> None:
        self._events.close()

    def close(self) -> None:
        self._channel.close()

    def is_the_table(self) -> bool:
        """Return whether the copy is what was written last; to be asked when nothing is written any more."""
        return self.is_current and self.rows == self._written()

    def differences(self) -> str:
        """Return how it is not."""
        rows = self._written()
        other = sorted(key for key in {*rows, *self.rows} if rows.get(key) != self.rows.get(key))
        partitions = sorted({self._cells.partition_of(key) for key in other})
        some = [f"{key}: {self.rows.get(key)}, not {rows.get(key)}" for key in other[:5]]
        state = self.death or f"{self.ends}, current: {self.is_current}"
        return f"{state}; {len(other)} cells differ, of partitions {partitions}: {some}"

    def _written(self) -> dict[CellKey, int]:
        return {key: revision for key, revision in self._cells.rows.items() if self._shelf in (None, key[0])}

    def work(self) -> None:
        self._history.invoke(self._process, "subscribe", range=self._range)
        for event in self._events:
            self._receive(event)

    def _receive(self, event: tablegate.client.Event) -> None:
        match event:
            case Reset():
                self.resets += 1
                self.rows, self.is_current = {}, False
                self._heard("reset")
            case Upsert():
                self._change(event.key, event.row.revision)
            case Delete():
                self._change(event.key, None)
            case CatchingUp():
                self.is_current = False
                self._heard("catching up")
            case Current():
                stated = stated_by(event.read_info)
                self.is_current = True
                self._heard("current", position=position_of(stated), as_of=stated.as_of_ms)
            case Disconnected(code, reason):
                self.ends[reason or code] += 1
                self.is_current = False
                self._history.fail(self._process, "subscribe", code=code, reason=reason)
                self._history.invoke(self._process, "subscribe", range=self._range, goes_on=True)

    def _change(self, key: Any, revision: int | None) -> None:
        self.is_current = False
        if revision is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = revision
        self._changes.append((number_of(key), revision))

    def _heard(self, phase: str, **more: Any) -> None:
        self._history.ok(self._process, "subscribe", phase=phase, changes=self._changes, **more)
        self._changes = []
