"""A table of several tenants, in gateways that know who calls; and what each should see, by a filter of its own."""

import contextlib
import json
import random
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import json_format

from tablegate.gateway.access.gate import Gate
from tablegate.gateway.query.limits import DEFAULT_LIMITS, QueryLimits
from tests.kit.gateways_in_process.cluster import EACH_ON_ONE, GrpcCluster
from tests.kit.table.filled import ROOT, catalogue_of

TENANTS = ROOT / "tests/kit/table/tenants.proto"
NAMES = ("ann", "ann\x00", "bob", "", "cy", "büro")
OWNERS = (0, 1, 2, 3)
STATES = ("open", "done")

CLAIMS: Mapping[str, Mapping[str, Any]] = {
    "all": {"tenant": "nobody", "roles": ["operator"]},
    "ann": {"tenant": "ann", "owner": 1},
    "bob": {"tenant": "bob", "owner": 2},
    "both": {"tenant": ["ann\x00", "bob"], "owner": [0, 3]},
    "none": {"tenant": [], "owner": []},
}
"""What the entry of each API key says; the key is its own name."""
POLICY = """
[api_keys]
file = "keys.toml"

[[rule]]
roles = ["operator"]
tables = ["*"]
rights = ["status", "metadata", "explain", "history", "metrics", "reflection"]

[[rule]]
tables = ["invoices"]
rows = { tenant = "tenant" }
hide = ["margin"]

[[rule]]
tables = ["tickets"]
rows = { owner = "owner" }
hide = ["note"]
"""
SEEN: dict[str, tuple[frozenset[str], frozenset[int]]] = {
    "all": (frozenset(NAMES), frozenset({*OWNERS, -1})),
    "ann": (frozenset({"ann"}), frozenset({1})),
    "bob": (frozenset({"bob"}), frozenset({2})),
    "both": (frozenset({"ann\x00", "bob"}), frozenset({0, 3})),
    "none": (frozenset(), frozenset()),
}
"""Whose tenants and owners each key sees; -1: of tickets that nobody owns."""

Row = dict[str, Any]


def write_access(directory: Path, policy: str = POLICY, claims: Mapping[str, Mapping[str, Any]] = CLAIMS) -> Path:
    """Write an access file and its keys; return the file."""
    keys = [
        f'[[key]]\nname = "{name}"\nsha256 = "{sha256(name.encode()).hexdigest()}"\nclaims = {_inline(each)}\n'
        for name, each in claims.items()
    ]
    (directory / "keys.toml").write_text("".join(keys))
    file = directory / "access.toml"
    file.write_text(policy)
    return file


def _inline(claims: Mapping[str, Any]) -> str:
    return "{ " + ", ".join(f"{name} = {json.dumps(value)}" for name, value in claims.items()) + " }"


class NotFound(Exception):
    """There is no such row, as far as somebody sees."""


class World:
    """A table of several tenants in a cluster and in a gateway alone; `rows` are what it should hold, by key."""

    def __init__(self, table: str, access: Path, choice: random.Random, limits: QueryLimits = DEFAULT_LIMITS) -> None:
        self.table = table
        self.one = "Invoice" if table == "invoices" else "Ticket"
        self.many = f"{self.one}s"
        self.hidden = "margin" if table == "invoices" else "note"
        self.choice = choice
        self.rows: dict[tuple[Any, ...], Any] = {}
        self.on_put: list[Callable[[], None]] = []
        self.cluster = GrpcCluster(
            EACH_ON_ONE,
            contract=TENANTS,
            table=table,
            service=f"/tenants.v1.{self.many}Service",
            gate=lambda catalogue: Gate(access, catalogue),
            limits=limits,
        )
        self.row_class: Any = catalogue_of(TENANTS).tables[table].row_class

    def key_of(self, row: Any) -> tuple[Any, ...]:
        return (row.tenant, row.number) if self.table == "invoices" else (row.ticket_id,)

    def some_key(self) -> dict[str, Any]:
        number = self.choice.randrange(40)
        return (
            {"tenant": self.choice.choice(NAMES), "number": number}
            if self.table == "invoices"
            else {"ticket_id": number}
        )

    def put(self) -> None:
        """Write or delete one row."""
        row = self.row_class(**self.some_key(), state=self.choice.choice(STATES))
        gateways = (self.cluster.whole, *self.cluster.gateways.values())
        if self.choice.random() < 0.2:
            self.rows.pop(self.key_of(row), None)
            for gateway in gateways:
                if gateway.table.partition_of(row) in gateway.held:
                    gateway.do(partial(gateway.table.delete, [row]))
            return
        if self.table == "invoices":
            row.margin = self.choice.randrange(5)
        else:
            row.note = self.choice.choice(("", "secret"))
            owner = self.choice.choice((*OWNERS, None))
            if owner is not None:
                row.owner = owner
        self.rows[self.key_of(row)] = row
        for noted in self.on_put:
            noted()
        self.cluster.put([row])

    def seen(self, key: str, holds: Callable[[Any], bool] = lambda _: True) -> dict[tuple[Any, ...], Row]:
        """Return the rows that a key sees, by a filter of its own."""
        tenants, owners = SEEN[key]
        found = {}
        for row_key, row in self.rows.items():
            if self.table == "invoices":
                sees = row.tenant in tenants
            else:
                sees = (row.owner if row.HasField("owner") else -1) in owners
            if sees and holds(row):
                found[row_key] = self.shown(row, key)
        return found

    @property
    def columns(self) -> list[str]:
        """The columns of a row, hidden ones among them."""
        return list(self.row_class.DESCRIPTOR.fields_by_name)

    def masked(self, row: Row, mask: Sequence[str] | None) -> Row:
        """Return what a field mask leaves of a row that is shown."""
        kept = {"tenant", "number"} if self.table == "invoices" else {"ticket_id"}
        return row if mask is None else {name: value for name, value in row.items() if name in kept.union(mask)}

    def shown(self, row: Any, key: str) -> Row:
        value: Row = json_format.MessageToDict(row, preserving_proto_field_name=True)
        if key != "all":
            value.pop(self.hidden, None)
        return value

    def ask(self, key: str, gateway_id: str, method: str, *, as_json: bool = False, **fields: Any) -> Any:
        """Return the answer of a unary method; raise `NotFound`."""
        try:
            return self._asked(key, gateway_id, method, as_json, fields)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise NotFound from None
            raise
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                raise NotFound from None
            raise

    def _asked(self, key: str, gateway_id: str, method: str, as_json: bool, fields: dict[str, Any]) -> Any:
        if not as_json:
            return self.cluster.ask(gateway_id, method, metadata=credential(key), **fields)
        gateway = self.cluster.whole if gateway_id == "" else self.cluster[gateway_id]
        request = self.cluster.request(method, **fields)
        asked = urllib.request.Request(
            f"http://127.0.0.1:{gateway.port}{self.cluster.path(method)}",
            json_format.MessageToJson(request).encode(),
            {"content-type": "application/json", "authorization": f"Bearer {key}"},
        )
        with urllib.request.urlopen(asked) as answer:
            response = self.cluster.catalogue.queries[self.cluster.path(method)].response_class()
            return json_format.Parse(answer.read(), response)


def credential(key: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {key}")]


class Copied:
    """A subscriber's copy, kept in a thread. `known_ids`: of whatever row it has heard."""

    def __init__(self, world: World, key: str, gateway_id: str) -> None:
        self.world = world
        self.key = key
        self.rows: dict[tuple[Any, ...], Row] = {}
        self.known_ids: set[tuple[Any, ...]] = set()
        self.ever_seen = set(world.seen(key))
        world.on_put.append(lambda: self.ever_seen.update(world.seen(key)))
        self._stream = world.cluster.stream(gateway_id, "SubscribeTickets", metadata=credential(key))
        self._thread = threading.Thread(target=self._run)
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self.world.cluster.cancel_streams()
        self._thread.join()

    def wait(self) -> None:
        """Return when the copy is what is seen."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.rows == self.world.seen(self.key), 20), self.key

    def _run(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            for message in self._stream:
                with self._changed:
                    for change in message.changes:
                        if change.HasField("upsert"):
                            key = self.world.key_of(change.upsert)
                            self.rows[key] = self.world.shown(change.upsert, "all")
                        else:
                            key = (change.delete.ticket_id,)
                            self.rows.pop(key, None)
                        self.known_ids.add(key)
                    self._changed.notify()
