"""The words of `clients/scenarios.txt`, and a gateway to which they happen.

A scenario is lines; each is one of `STEPS`. What a client shows is waited for, as it has to come at some time; what it
must never show is asked in between.

Decision: docs/decisions/0156-one-scenario-file-for-all-clients.md
"""

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from tablegate.gateway.access.gate import Gate
from tablegate.gateway.contract.tokens import TokenSigner
from tablegate.gateway.query.errors import (
    LimitExceeded,
    Overloaded,
    PartitionUnavailable,
    QueryError,
    ShuttingDown,
    SlowSubscription,
    StreamExpired,
)
from tests.kit.gateway_processes.gateway import soon
from tests.kit.gateways_in_process.live_ratings import LiveRatings
from tests.kit.gateways_in_process.ratings import Fault
from tests.kit.gateways_in_process.tenants import write_access
from tests.kit.scenarios.script import numbers_of
from tests.kit.table.filled import ROOT

FILE = ROOT / "clients/scenarios.txt"
WAIT_S = 60.0
CLAIMS = {"reader": {"roles": ["reader"]}, "guest": {"roles": ["guest"]}}
ALLOWED = '[api_keys]\nfile = "keys.toml"\n\n[[rule]]\nroles = ["reader"]\ntables = ["ratings"]\n'
FORBIDDEN = ALLOWED.replace('"reader"', '"nobody"')
ERRORS: Mapping[str, Callable[[], QueryError | None]] = {
    "SHUTTING_DOWN": ShuttingDown,
    "STREAM_EXPIRED": StreamExpired,
    "SLOW_SUBSCRIBER": lambda: SlowSubscription("ratings"),
    "OVERLOADED": lambda: Overloaded("too many streams", "streams"),
    "LIMIT_EXCEEDED": lambda: LimitExceeded("too many streams", "streams", 20),
    "PARTITION_UNAVAILABLE": lambda: PartitionUnavailable("ratings", 1, "it is restored"),
    "silence": lambda: None,
}


class Client(Protocol):
    """A client of some language. A command and its answer are JSON; README.md of the kit has both."""

    def ask(self, command: Mapping[str, Any]) -> Any:
        """Do something, and return what it shows."""


class Scenario(NamedTuple):
    """A scenario of the file; `line` is where its steps begin."""

    name: str
    line: int
    steps: Sequence[str]


def scenarios() -> list[Scenario]:
    """Return the scenarios of the file."""
    found: list[Scenario] = []
    for number, line in enumerate(FILE.read_text("utf-8").splitlines(), 1):
        if line.startswith("== "):
            found.append(Scenario(line[3:], number + 1, []))
        elif line and not line.startswith("#"):
            found[-1].steps.append(line)  # type: ignore[attr-defined]
    return found


class Play(AbstractContextManager["Play"]):
    """One scenario with one client."""

    def __init__(self, client: Client, directory: Path) -> None:
        self._client = client
        self._directory = directory
        self._gateway: LiveRatings | None = None
        self._exits = ExitStack()
        self._is_up = False
        self._movie: int | None = None
        self._rows: Mapping[str, int] = {}  # of the table when it was live
        self._follower: dict[str, Any] = {"token": "", "restart": False}
        self._given: Mapping[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.ask({"do": "close"})
        self._exits.close()

    def run(self, scenario: Scenario) -> None:
        """Play it; a step that does not come true is an AssertionError that names it."""
        for number, line in enumerate(scenario.steps):
            try:
                self._step(line)
            except AssertionError as error:
                raise AssertionError(f"{FILE.name}, step {number + 1} of {scenario.name!r}: {line}\n{error}") from error

    def _step(self, line: str) -> None:
        for pattern, step in STEPS.items():
            if match := re.fullmatch(pattern, line):
                step(self, *match.groups())
                return
        raise ValueError(f"{FILE.name}: there is no such step: {line}")

    @property
    def gateway(self) -> LiveRatings:
        assert self._gateway is not None, "a scenario begins with a gateway"
        return self._gateway

    def start(self, history: str | None, access: str | None) -> None:
        if self._gateway is not None:
            self.gateway.start()
            return
        gate: Any = None
        if access:
            self._access = write_access(self._directory, ALLOWED, CLAIMS)
            gate = partial(Gate, self._access)
        self._gateway = LiveRatings(int(history or 100_000), origins=("*",), gate=gate)
        self._exits.enter_context(self._gateway)

    def stop(self) -> None:
        self.gateway.stop()

    def end_rights(self) -> None:
        self._access.write_text(FORBIDDEN)
        for _ in range(2):  # as a worker does on its timer, when nobody writes the file any more
            self.gateway.check_rights()

    def change_keys(self) -> None:
        self.gateway.signer = TokenSigner([secrets.token_bytes(32)])

    def put(self, movies: str, times: str | None) -> None:
        for _ in range(int(times or 1)):
            self.gateway.put(numbers_of(movies))

    def plant(self, error: str, after: str | None, times: str | None) -> None:
        for _ in range(int(times or 1)):
            self.gateway.faults.append(Fault(int(after or 0), ERRORS[error]()))

    def open(self, movie: str | None, heartbeats: str | None, key: str | None) -> None:
        self._movie = int(movie) if movie else None
        request: dict[str, Any] = {"movieId": movie} if movie else {}
        if heartbeats:
            request["subscribeOptions"] = {"progressInterval": f"{heartbeats}s"}
        self._client.ask({"do": "open", "address": self.gateway.address, "request": request, "credential": key})

    def wanted(self) -> Mapping[str, int]:
        """Return movie → count of what the table has to have."""
        counts = self.gateway.counts
        return {str(movie): count for movie, count in counts.items() if self._movie in (None, movie)}

    def is_live(self) -> None:
        wanted = self.wanted()
        self._show(lambda shown: shown["state"] == "live" and shown["rows"] == wanted and shown["heard"] == wanted)
        self._rows = wanted

    def is_stale(self, trouble: str | None) -> None:
        shown = self._show(lambda shown: shown["state"] == "stale" and (trouble or "") in shown["trouble"])
        assert shown["rows"] == self._rows, "rows stay"

    def is_loading(self, trouble: str) -> None:
        shown = self._show(lambda shown: shown["state"] == "loading" and trouble in shown["trouble"])
        assert not shown["rows"]

    def is_refused(self, code: str, reason: str) -> None:
        shown = self._show(lambda shown: shown["state"] == "refused")
        assert (shown["code"], shown["reason"]) == (code, reason), shown["trouble"]
        assert shown["rows"] == self._rows, "rows stay"

    def is_closed(self) -> None:
        shown = self._show(lambda shown: shown["state"] == "closed")
        assert shown["rows"] == self._rows, "rows stay"

    def _show(self, is_right: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
        shown: Mapping[str, Any] = {}

        def is_shown() -> bool:
            nonlocal shown
            shown = self._client.ask({"do": "show"})
            return is_right(shown)

        try:
            soon(is_shown, "the table shows it", WAIT_S)
        except AssertionError as error:
            brief = {name: len(value) if isinstance(value, dict) else value for name, value in shown.items()}
            raise AssertionError(f"{error}; it shows {brief}, and {len(self.wanted())} rows are wanted") from error
        return shown

    def has_row(self, movie: str, is_not: str | None) -> None:
        count = self._client.ask({"do": "row", "movie": movie})
        assert count == (None if is_not else self.gateway.counts[int(movie)])

    def heard_of_sizes(self, sizes: str) -> None:
        shown = self._client.ask({"do": "show"})
        assert set(shown["sizes"]) <= set(numbers_of(sizes)), shown["sizes"]

    def count_snapshots(self, wanted: str) -> None:
        assert self.gateway.resets == int(wanted), self.gateway.resets

    def count_streams(self, least: str) -> None:
        assert self.gateway.streams >= int(least), self.gateway.streams

    def follow(self, until: str) -> None:
        self._given = self._client.ask(self._followed(until))
        assert "code" not in self._given, self._given
        self._follower["token"] = self._given["token"]

    def follow_refused(self, code: str, reason: str) -> None:
        given = self._client.ask(self._followed("none"))
        assert (given["code"], given["reason"]) == (code, reason)

    def _followed(self, until: str) -> Mapping[str, Any]:
        return {"do": "follow", "address": self.gateway.address, "until": until, **self._follower}

    def was_given(self, reset: str | None, movies: str) -> None:
        assert self._given["reset"] == bool(reset)
        assert sorted(map(int, self._given["movies"])) == numbers_of(movies)

    def get(self, movie: str, offset: str | None, topic: str | None, code: str | None, reason: str | None) -> None:
        record = {"topic": topic, "partition": 0, "offset": int(offset)} if offset else None
        command = {"do": "get", "address": self.gateway.address, "movie": movie, "record": record}
        answer = self._client.ask(command)
        if code is None:
            assert answer == {"count": self.gateway.counts[int(movie)]}, answer
        else:
            assert (answer.get("code"), answer.get("reason")) == (code, reason), answer


_NUMBERS = r"([\d.,]+)"
STEPS: Mapping[str, Callable[..., None]] = {
    r"gateway(?: with history (\d+))?(?: with (access))? starts": Play.start,
    "gateway stops": Play.stop,
    "gateway dies": lambda play: play.gateway.die(),
    "rights end": Play.end_rights,
    "tokens get other keys": Play.change_keys,
    "connections break": lambda play: play.gateway.cut(),
    "streams are reset": lambda play: play.gateway.reset_streams(),
    "connections stall": lambda play: play.gateway.stall(),
    "connections go on": lambda play: play.gateway.go_on(),
    rf"put {_NUMBERS}(?: for (\d+) times)?": Play.put,
    rf"delete {_NUMBERS}": lambda play, movies: play.gateway.delete(numbers_of(movies)),
    rf"rebuild {_NUMBERS}": lambda play, movies: play.gateway.rebuild(numbers_of(movies)),
    r"source (\w+) is read up to (\d+)": lambda play, topic, offset: play.gateway.read_source(topic, int(offset)),
    r"next stream ends: (\w+) after (\d+)(?: for (\d+) times)?": Play.plant,
    r"next get fails: (\w+)()(?: for (\d+) times)?": Play.plant,
    r"table opens(?:, movie (\d+))?(?:, heartbeats (\S+))?(?:, as (\w+))?": Play.open,
    "table closes": lambda play: play._client.ask({"do": "close"}),
    "table is live": Play.is_live,
    "table is stale(?:: (.+))?": Play.is_stale,
    "table is loading: (.+)": Play.is_loading,
    r"table is refused: (\w+) (\w+)": Play.is_refused,
    "table is closed": Play.is_closed,
    r"row (\d+) is( not)? there": Play.has_row,
    rf"table spoke of sizes: {_NUMBERS}": Play.heard_of_sizes,
    r"snapshots: (\d+)": Play.count_snapshots,
    r"streams: (\d+) or more": Play.count_streams,
    r"follower reads until movie (\d+)": Play.follow,
    rf"follower was given: (reset,)?{_NUMBERS}": Play.was_given,
    "follower forgets its token": lambda play: play._follower.update(token=""),
    r"follower has the token (\w+)": lambda play, token: play._follower.update(token=token),
    "follower begins anew where it must": lambda play: play._follower.update(restart=True),
    r"follower is refused: (\w+) (\w+)": Play.follow_refused,
    r"get (\d+)(?: with record (\d+) of source (\w+))?(?: is answered| fails: (\w+) (\w+))": Play.get,
}
