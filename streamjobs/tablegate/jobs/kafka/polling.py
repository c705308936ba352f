"""Questions that a running job asks Kafka again and again, beside its other work."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

Subject = TypeVar("Subject")


class Polling(Generic[Subject]):
    """Asks the same every `every_s` seconds, never twice at once, and never waits. One thread uses it.

    `ask` returns a future for each subject of the question.
    """

    def __init__(self, ask: Callable[[], Mapping[Subject, Future[Any]]], *, every_s: float) -> None:
        self._ask = ask
        self._every_s = every_s
        self._asked: Mapping[Subject, Future[Any]] = {}
        self._next_s = 0.0

    def answers(self) -> Mapping[Subject, Future[Any]]:
        """Return the answers once all have come, each a result or an error; until then nothing. Ask when it is time."""
        if self._asked and all(answer.done() for answer in self._asked.values()):
            answers, self._asked = self._asked, {}
            return answers
        if not self._asked and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + self._every_s
            self._asked = self._ask()
        return {}
