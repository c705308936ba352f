"""Ends streams that say nothing: a blocking read has no time limit of its own."""

import threading
import time
from collections.abc import Callable

LOOKS = 4  # of the watch in the time of a silence


class Watch:
    """Looks after one stream at a time, in a thread that ends with `stop()`."""

    def __init__(self, silence_s: float) -> None:
        self.silence_s = silence_s
        self._cancel: Callable[[], object] | None = None
        self._waiting_since_s: float | None = None
        self._bit = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tablegate-watch", daemon=True)
        self._thread.start()

    def begin(self, cancel: Callable[[], object]) -> None:
        """Look after another stream, which `cancel` ends."""
        self._waiting_since_s, self._cancel, self._bit = None, cancel, False

    def waits(self) -> None:
        """A read begins."""
        self._waiting_since_s = time.monotonic()

    def heard(self) -> None:
        """The read has ended: however long what was read is looked at, that is no silence."""
        self._waiting_since_s = None

    @property
    def bit(self) -> bool:
        """Whether the stream was cancelled for its silence."""
        return self._bit

    def stop(self) -> None:
        """Look after nothing more."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self.silence_s / LOOKS):
            since_s, cancel = self._waiting_since_s, self._cancel
            if since_s is None or cancel is None or time.monotonic() - since_s < self.silence_s:
                continue
            self._bit, self._cancel = True, None
            cancel()
