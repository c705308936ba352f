"""A live copy of a table, for threads."""

import threading
from collections.abc import Callable
from typing import Any, Self

from google.protobuf.message import Message

from tablegate.client.events import Disconnected, Event, Key
from tablegate.client.rows import Rows
from tablegate.client.subscription import Method, subscribe

OnChange = Callable[[Key, Any], None]
"""Told of each change: the key, and its row; None where it has none any more."""


class LiveTable(Rows):
    """A mapping from key to row that follows a Subscribe, in a thread of its own, until it is closed.

    `on_change` is called in that thread, after the mapping has the change; what it raises ends the copy, as does a
    `SubscribeError`: `wait_current` raises it then, `is_current` is false, and the rows stay as they were.
    Raise `ContractMismatch` where `request` is not a Subscribe's.
    """

    def __init__(self, method: Method, request: Message, *, on_change: OnChange | None = None) -> None:
        super().__init__()
        self._on_change = on_change
        self._subscription = subscribe(method, request)
        self._moved = threading.Condition()
        self._is_over = False
        self._error: BaseException | None = None
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name="tablegate-live-table", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it; the rows stay as they were. Not for `on_change` to wait for: there it returns at once."""
        self._subscription.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def is_current(self) -> bool:
        """Whether the stream is up, and the copy was whole as of `as_of`."""
        return super().is_current and not self._is_over

    def wait_current(self, timeout_s: float | None = None) -> None:
        """Return when the copy is current.

        Raise `TimeoutError` after `timeout_s`, what ended the copy where something did, and `RuntimeError` once it is
        closed.
        """
        with self._moved:
            if not self._moved.wait_for(lambda: self.is_current or self._is_over, timeout_s):
                raise TimeoutError(f"the copy is not current after {timeout_s:g} s{self._trouble}")
        if self._error is not None:
            raise self._error
        if self._is_over:
            raise RuntimeError("the live table is closed")

    def _run(self) -> None:
        try:
            for event in self._subscription:
                self._move(event)
        except Exception as error:  # noqa: BLE001  whoever waits is told
            self._error = error
        finally:
            with self._moved:
                self._is_over = True
                self._moved.notify_all()

    def _move(self, event: Event) -> None:
        with self._moved:
            changes = self.take(event)
            if isinstance(event, Disconnected):
                self._trouble = f": {event.code}: {event.text}"
            elif self.is_current:
                self._trouble = ""
                self._moved.notify_all()
        if self._on_change is not None:
            for key, row in changes:
                self._on_change(key, row)
