"""A client of a run: a thread that writes what it asks for and what it sees into the history."""

import threading
from collections.abc import Iterable
from typing import Any, Self

from tests.kit.histories.history import History, position_of
from tests.kit.world.clients import stated_by


class HistoryClient:
    """Does its `work` in a thread while the block runs. `death`: why it ended before."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._process = history.process()
        self.death = ""
        self._tokens: dict[str, Any] = {}  # the ReadInfo of the last answer, by session
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.interrupt()
        self._thread.join()
        self.close()

    def _run(self) -> None:
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 (a client that died would find nothing)
            self.death = f"{type(self).__name__}: {error!r}"
            self._history.about("died", why=self.death)

    def work(self) -> None:
        """Ask until `_stopping` is set."""
        raise NotImplementedError

    def interrupt(self) -> None:
        """End what the thread waits for."""

    def close(self) -> None:
        """Close its connection."""

    def _ok(self, op: str, rows: Iterable[tuple[int, int]], info: Any, **more: Any) -> None:
        """Write an answer: keys and values, and what it says of itself."""
        stated = stated_by(info)
        position, as_of = position_of(stated), stated.as_of_ms
        self._history.ok(self._process, op, value=list(rows), position=position, as_of=as_of, **more)

    def _in_session(self, session: str, request: Any) -> dict[str, Any]:
        """Ask for an answer as fresh as the last one of a session; return what the history says of it."""
        info = self._tokens.get(session)
        if info is None:
            return {"session": session}
        request.read_options.at_least = info.consistency_token
        return {"session": session, "token": position_of(stated_by(info))}

    def _keep(self, session: str, info: Any) -> None:
        self._tokens[session] = info
