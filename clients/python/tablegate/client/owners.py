"""The owners of keys: which gateway to ask for a request. No I/O, no threads; any thread may call.

A shell watches each table of `table_of` and gives what it hears to `take` and `lost`; asks each endpoint of `unproven`
for a sign of life and tells `proven`; calls the endpoints of `endpoints`, in their order, and then any gateway; and
tells `passes_over`. Any gateway answers for any key, so whatever is not known here costs a detour and nothing else.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError, Message

from tablegate.client.failures import Failure
from tablegate.client.keys import NoKey, partition_of
from tablegate.client.messages import NUMBER, TEXT, Field, message_classes
from tablegate.client.routes import Route, route_of

WATCH_PATH = "/tablegate.v1.GatewayService/WatchTable"
PROOF_PATH = "/grpc.health.v1.Health/Check"  # an empty request asks for all of the gateway
PROOF_TIMEOUT_S = 2.0
PROOF_PAUSE_S = 1.0  # before an endpoint that did not answer is tried again
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.2, 5.0  # before a table is watched again
REFUSED_S = 60.0  # the same where it was refused: by a gateway of another contract, or of an older version
PASSED_OVER = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})
AWAY = frozenset({"", "SHUTTING_DOWN", "DEADLINE_EXCEEDED"})  # reasons; others are of one that answers
ENDPOINTS_MAX = 2  # of a call, before any gateway is asked


@dataclass(frozen=True, slots=True)
class _TableMap:
    """Where a table is: `columns` (name and type) choose the partition; endpoints of each, the owner's first."""

    columns: Sequence[tuple[str, int]]
    partitioner: int
    partition_count: int
    endpoints: Sequence[Sequence[str]]


class Owners:
    """What is known of the owners. `random_s` gives a number from 0 to the one it is given."""

    def __init__(
        self,
        *,
        now_s: Callable[[], float] = time.monotonic,
        random_s: Callable[[float], float] = lambda most_s: random.uniform(0, most_s),
    ) -> None:
        self._now_s = now_s
        self._random_s = random_s
        self._routes: dict[str, Route | None] = {}
        self._tables: dict[str, _TableMap] = {}
        self._failures: dict[str, int] = {}
        self._usable: set[str] = set()  # endpoints that answered, and have not failed since
        self._proving: set[str] = set()
        self._prove_at_s: dict[str, float] = {}

    # Calls.

    def route(self, path: str, request: Any) -> Route | None:
        """Return how a method is routed; None: by no key, or the request is no message."""
        if not isinstance(request, Message):
            return None
        try:
            return self._routes[path]
        except KeyError:
            route = self._routes[path] = route_of(path, request.DESCRIPTOR)
            return route

    def endpoints(self, route: Route, request: Message) -> Sequence[str]:
        """Return whom to ask before any gateway is, the owner first; nobody where it is not known, or needs no care."""
        table = self._tables.get(route.table)
        if table is None:
            return ()
        try:
            key = route.key_bytes(table.columns, request)
            partition = partition_of(key, table.partitioner, table.partition_count)
        except NoKey:
            return ()
        usable = self._usable
        return [endpoint for endpoint in table.endpoints[partition] if endpoint in usable][:ENDPOINTS_MAX]

    def passes_over(self, endpoint: str, failure: Failure) -> bool:
        """Take in how a call of an endpoint failed; return whether another gateway is to be asked instead.

        One that is not there is not asked again before it has proven that it answers.
        """
        if failure.code not in PASSED_OVER:
            return False
        if failure.reason in AWAY:
            self._usable.discard(endpoint)
            self._prove_at_s[endpoint] = self._now_s() + PROOF_PAUSE_S
        return True

    # Watching.

    @property
    def named(self) -> frozenset[str]:
        """Return the endpoints that the tables name."""
        tables = list(self._tables.values())
        return frozenset(each for table in tables for endpoints in table.endpoints for each in endpoints)

    @property
    def usable(self) -> Sequence[str]:
        """Return the endpoints that answer."""
        return sorted(self._usable)

    def take(self, name: str, data: bytes) -> None:
        """Take in a response of WatchTable."""
        self._failures[name] = 0
        try:
            table = _RESPONSE.FromString(data).table
        except DecodeError:
            return
        if table.partition_count < 1:
            return
        replicas = {partition.partition: partition.replicas for partition in table.partitions}
        self._tables[name] = _TableMap(
            columns=[(column.name, column.type) for column in table.key[: table.partition_by_count]],
            partitioner=table.partitioner,
            partition_count=table.partition_count,
            endpoints=[
                [each.endpoint for each in replicas.get(number, ()) if each.role and each.endpoint]
                for number in range(table.partition_count)
            ],
        )
        named = self.named
        self._usable &= named
        for endpoint in set(self._prove_at_s) - named:
            self._prove_at_s.pop(endpoint, None)

    def lost(self, name: str, failure: Failure) -> float:
        """Take in that the watch of a table ended; return after how many seconds to begin another one.

        What was known stays: it is mostly right, and where not it costs a detour.
        """
        if not failure.passes:
            return REFUSED_S
        failures = self._failures[name] = self._failures.get(name, 0) + 1
        most_s = min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2.0 ** min(failures, 16))
        return failure.retry_after_s + self._random_s(most_s)

    def watched_at(self, name: str) -> str:
        """Return the endpoint at which to watch a table, "" for any gateway: another one after each failure."""
        choices = ["", *self.usable]
        return choices[self._failures.get(name, 0) % len(choices)]

    def unproven(self) -> Sequence[str]:
        """Return endpoints that are to be asked for a sign of life now; each once, until `proven` is told."""
        now_s = self._now_s()
        waiting = self.named - self._usable - self._proving
        due = [endpoint for endpoint in waiting if now_s >= self._prove_at_s.get(endpoint, now_s)]
        self._proving.update(due)
        return due

    def proven(self, endpoint: str, *, answers: bool) -> None:
        """Take in whether an endpoint answered."""
        self._proving.discard(endpoint)
        if answers and endpoint in self.named:
            self._usable.add(endpoint)
        else:
            self._prove_at_s[endpoint] = self._now_s() + PROOF_PAUSE_S


def watch_request(table: str) -> bytes:
    """Return the request of WatchTable."""
    return bytes(_REQUEST(table=table).SerializeToString())


_PACKAGE = "tablegate.v1"
_CLASSES = message_classes(
    _PACKAGE,
    {
        "WatchTableRequest": [Field("table", 1, TEXT)],
        "WatchTableResponse": [Field("table", 1, f"{_PACKAGE}.TableMetadata")],
        "TableMetadata": [
            Field("partitioner", 3, NUMBER),
            Field("partition_count", 4, NUMBER),
            Field("key", 5, f"{_PACKAGE}.KeyColumn", repeated=True),
            Field("partition_by_count", 6, NUMBER),
            Field("partitions", 7, f"{_PACKAGE}.PartitionReplicas", repeated=True),
        ],
        "KeyColumn": [Field("name", 1, TEXT), Field("type", 2, NUMBER)],
        "PartitionReplicas": [
            Field("partition", 1, NUMBER),
            Field("replicas", 2, f"{_PACKAGE}.Replica", repeated=True),
        ],
        "Replica": [Field("endpoint", 2, TEXT), Field("role", 4, NUMBER)],
    },
)
_REQUEST, _RESPONSE = _CLASSES["WatchTableRequest"], _CLASSES["WatchTableResponse"]
