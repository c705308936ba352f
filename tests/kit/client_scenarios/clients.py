"""Clients of the scenarios: the Python one in this process, for threads and for asyncio, and programs and pages.

Each is asked by the commands of `play.py`.
"""

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Self

import grpc
from google.protobuf.json_format import ParseDict

from tablegate.client import (
    CatchingUp,
    Current,
    Delete,
    Reset,
    SourceRecord,
    SubscribeError,
    TokenMemory,
    Upsert,
    at_least_source,
    open_channel,
    subscribe,
)
from tablegate.client.failures import failure_of
from tests.kit.gateways_in_process import client_copies
from tests.kit.gateways_in_process.client_copies import Copy, stub_method
from tests.kit.programs.chromium import Chromium

END_TIMEOUT_S = 20

Copying = Callable[..., AbstractContextManager[Copy]]


class PythonClient(AbstractContextManager["PythonClient"]):
    """The client of this repository; `copying` gives its live table."""

    def __init__(self, copying: Copying) -> None:
        self._copying = copying
        self._opened = ExitStack()
        self._copy: Copy | None = None
        self._is_closed = False
        self._heard: dict[str, int] = {}
        self._sizes: set[int] = set()

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def ask(self, command: Mapping[str, Any]) -> Any:
        """Do something."""
        return getattr(self, f"_{command['do']}")(**{name: value for name, value in command.items() if name != "do"})

    def _open(self, address: str, request: Mapping[str, Any], credential: str | None) -> None:
        self._close()
        self._heard, self._sizes, self._is_closed = {}, set(), False
        asked = ParseDict(request, client_copies.request())
        self._copy = self._opened.enter_context(
            self._copying(address, asked, self._hear, **({"credential": credential} if credential else {}))
        )

    def _hear(self, key: int, row: Any) -> None:
        if row is None:
            self._heard.pop(str(key), None)
        else:
            self._heard[str(key)] = row.rating_count
        if self._copy is not None:
            self._sizes.add(len(self._copy.table))

    def _close(self) -> None:
        self._opened.close()
        self._is_closed = True

    def _show(self) -> Mapping[str, Any]:
        assert self._copy is not None
        state, trouble, error = self._state(self._copy)
        return {
            "state": state,
            "trouble": trouble,
            "code": getattr(error, "code", ""),
            "reason": getattr(error, "reason", ""),
            "rows": {str(movie): count for movie, count in self._copy.counts().items()},
            "heard": self._heard.copy(),
            "sizes": sorted(self._sizes),
        }

    def _state(self, copy: Copy) -> tuple[str, str, SubscribeError | None]:
        if self._is_closed:
            return "closed", "", None
        try:
            copy.wait(0)
        except TimeoutError as error:
            return "loading" if copy.table.as_of is None else "stale", str(error), None
        except SubscribeError as error:
            return "refused", str(error), error
        return "live", "", None

    def _row(self, movie: str) -> int | None:
        assert self._copy is not None
        row = self._copy.table.get(int(movie))
        return None if row is None else row.rating_count

    def _follow(self, address: str, until: str, token: str, restart: bool) -> Mapping[str, Any]:
        tokens, given, reset, done = TokenMemory(), set[str](), False, False
        tokens.save(token)
        asked = client_copies.request(subscribe_options={"progress_interval": {"nanos": 100_000_000}})
        with (
            open_channel(address) as channel,
            subscribe(stub_method(channel), asked, token_store=tokens, restart=restart) as events,
        ):
            try:
                for event in events:
                    if done:  # by asking for this event all before it was seen to
                        break
                    match event:
                        case Reset():
                            reset = True
                        case Upsert(key, _) | Delete(key, _):
                            given.add(str(key))
                        case Current() | CatchingUp():
                            done = until in given
            except SubscribeError as error:
                return {"code": error.code, "reason": error.reason}
        return {"reset": reset, "movies": sorted(given), "token": tokens.load()}

    def _get(self, address: str, movie: str, record: Mapping[str, Any] | None) -> Mapping[str, Any]:
        asked = client_copies.request("GetRating", movie_id=int(movie))
        if record is not None:
            asked = at_least_source(asked, SourceRecord(**record))
        with open_channel(address) as channel:
            try:
                return {"count": stub_method(channel, "GetRating")(asked).rating.rating_count}
            except grpc.RpcError as error:
                failure = failure_of(error)
                return {"code": failure.code, "reason": failure.reason}


class ProgramClient(AbstractContextManager["ProgramClient"]):
    """A program that reads commands and writes answers, each a line of JSON."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        self._command = [str(word) for word in command]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()

    def ask(self, command: Mapping[str, Any]) -> Any:
        """Do something."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"{self._command[0]} has ended"
        return json.loads(line)


class PageClient:
    """A page with a function `ask`."""

    def __init__(self, browser: Chromium) -> None:
        self._browser = browser

    def ask(self, command: Mapping[str, Any]) -> Any:
        """Do something."""
        return json.loads(self._browser.run(f"ask({json.dumps(command)}).then(JSON.stringify)"))
