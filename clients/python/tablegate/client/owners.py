"""The owners of keys: which gateway to ask for a request. No I/O, no threads; any thread may call.

A direct channel sends a call to the gateway that owns its key. It knows the owners from WatchTable (`apply`), and the
key from the contract's annotations on the request (`route_of`, below). Only gateways that have answered a health check
are asked (`due_health_checks`, `health_checked`), and no more after a call of theirs has failed (`asks_next`). Any
gateway answers for any key, so what is not known here costs a detour and nothing else.

Key bytes and partitions are as jobs write them and gateways find them; types and partitioners have the numbers of
`tablegate.v1.KeyType` and `tablegate.v1.Partitioner`.
"""

import random
import struct
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import message_factory
from google.protobuf.message import DecodeError, Message

from tablegate.client.failures import Failure
from tablegate.client.fields import ANNOTATION, numbered
from tablegate.client.messages import NUMBER, TEXT, Field, message_classes

INT64, BOOL, STRING, BYTES, TIMESTAMP = 1, 2, 3, 4, 5
MURMUR2, CRC32 = 1, 2

_SIGN = 2**63
_SEED, _M, _MASK = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF


class NoKey(ValueError):
    """A value that no key of the table has, or of a type that is not known here: the gateway says what is wrong."""


def encode(key_type: int, value: Any) -> bytes:
    """Return the bytes of a key column; a time is a Timestamp, or microseconds since 1970. Raise `NoKey`."""
    encoder = _ENCODERS.get(key_type)
    if encoder is None:
        raise NoKey(f"a key column of type {key_type} is not known here")
    try:
        return encoder(value)
    except (AttributeError, TypeError, UnicodeError, struct.error) as error:
        raise NoKey(f"a {type(value).__name__} is no value of a key column of type {key_type}") from error


def _integer(value: int) -> bytes:
    return struct.pack(">Q", value + _SIGN)


def _bool(value: bool) -> bytes:
    return b"\x01" if value else b"\x00"


def _bytes(value: bytes) -> bytes:
    return value.replace(b"\x00", b"\x00\xff") + b"\x00\x00"


def _string(value: str) -> bytes:
    return _bytes(value.encode())


def _time(value: Any) -> bytes:
    if isinstance(value, int):
        return _integer(value)
    if value.nanos % 1_000:
        raise NoKey("a time that is finer than a microsecond is in no key")
    return _integer(value.seconds * 1_000_000 + value.nanos // 1_000)


_ENCODERS: Mapping[int, Callable[[Any], bytes]] = {
    INT64: _integer,
    BOOL: _bool,
    STRING: _string,
    BYTES: _bytes,
    TIMESTAMP: _time,
}


def partition_of(key: bytes, partitioner: int, partition_count: int) -> int:
    """Return the partition of the bytes of those columns that choose it; raise `NoKey` for an unknown partitioner."""
    if partitioner == MURMUR2:
        return (murmur2(key) & 0x7FFFFFFF) % partition_count
    if partitioner == CRC32:
        return zlib.crc32(key) % partition_count
    raise NoKey(f"partitioner {partitioner} is not known here")


def murmur2(data: bytes) -> int:
    """Return Kafka's 32-bit murmur2 of `data`, unsigned."""
    length = len(data)
    h = _SEED ^ length
    for (word,) in struct.iter_unpack("<I", data[: length & ~3]):
        k = word * _M & _MASK
        h = (h * _M ^ (k ^ k >> 24) * _M) & _MASK
    if length & 3:
        h = (h ^ int.from_bytes(data[length & ~3 :], "little")) * _M & _MASK
    h ^= h >> 13
    h = h * _M & _MASK
    return h ^ h >> 15


WATCH_PATH = "/tablegate.v1.GatewayService/WatchTable"
HEALTH_PATH = "/grpc.health.v1.Health/Check"  # an empty request asks for all of the gateway
HEALTH_TIMEOUT_S = 2.0
HEALTH_PAUSE_S = 1.0  # before an endpoint that did not answer is tried again
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.2, 5.0  # before a table is watched again
REFUSED_S = 60.0  # the same where it was refused: by a gateway of another contract, or of an older version
ASKS_NEXT_CODES = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})
AWAY_REASONS = frozenset({"", "SHUTTING_DOWN", "DEADLINE_EXCEEDED"})  # reasons; others are of one that answers
ENDPOINTS_MAX = 2  # of a call, before any gateway is asked


@dataclass(frozen=True, slots=True)
class _TableMap:
    """Where a table is: `columns` (name and type) choose the partition; endpoints of each, the owner's first."""

    columns: Sequence[tuple[str, int]]
    partitioner: int
    partition_count: int
    endpoints: Sequence[Sequence[str]]


class Owners:
    """Where tables are, and which gateways answer. `random_s` gives a number from 0 to the one it is given."""

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
        self._checking: set[str] = set()
        self._check_at_s: dict[str, float] = {}

    # Calls.

    def route(self, path: str, request: Any) -> "Route | None":
        """Return how a method is routed; None: by no key, or the request is no message."""
        if not isinstance(request, Message):
            return None
        try:
            return self._routes[path]
        except KeyError:
            route = self._routes[path] = route_of(path, request.DESCRIPTOR)
            return route

    def endpoints(self, route: "Route", request: Message) -> Sequence[str]:
        """Return the endpoints to call first, the owner's before others; none where the owner is unknown."""
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

    def asks_next(self, endpoint: str, failure: Failure) -> bool:
        """Record that a call of an endpoint failed; return whether the next gateway is to be asked instead.

        An endpoint that is away is not asked again before it has answered a health check.
        """
        if failure.code not in ASKS_NEXT_CODES:
            return False
        if failure.reason in AWAY_REASONS:
            self._usable.discard(endpoint)
            self._check_at_s[endpoint] = self._now_s() + HEALTH_PAUSE_S
        return True

    # Watching.

    @property
    def known(self) -> frozenset[str]:
        """Return the endpoints that the tables name."""
        tables = list(self._tables.values())
        return frozenset(each for table in tables for endpoints in table.endpoints for each in endpoints)

    @property
    def usable(self) -> Sequence[str]:
        """Return the endpoints that answer."""
        return sorted(self._usable)

    def apply(self, name: str, data: bytes) -> None:
        """Apply a response of WatchTable."""
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
        named = self.known
        self._usable &= named
        for endpoint in set(self._check_at_s) - named:
            self._check_at_s.pop(endpoint, None)

    def watch_ended(self, name: str, failure: Failure) -> float:
        """Record that the watch of a table ended; return after how many seconds to begin another one.

        What was known stays: it is mostly right, and where it is not, it costs a detour.
        """
        if not failure.passes:
            return REFUSED_S
        failures = self._failures[name] = self._failures.get(name, 0) + 1
        most_s = min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2.0 ** min(failures, 16))
        return failure.retry_after_s + self._random_s(most_s)

    def watch_endpoint(self, name: str) -> str:
        """Return the endpoint at which to watch a table, "" for any gateway: another one after each failure."""
        choices = ["", *self.usable]
        return choices[self._failures.get(name, 0) % len(choices)]

    def due_health_checks(self) -> Sequence[str]:
        """Return the endpoints whose health is to be checked now; each once, until `health_checked` is called."""
        now_s = self._now_s()
        waiting = self.known - self._usable - self._checking
        due = [endpoint for endpoint in waiting if now_s >= self._check_at_s.get(endpoint, now_s)]
        self._checking.update(due)
        return due

    def health_checked(self, endpoint: str, *, answers: bool) -> None:
        """Record whether an endpoint answered its health check."""
        self._checking.discard(endpoint)
        if answers and endpoint in self.known:
            self._usable.add(endpoint)
        else:
            self._check_at_s[endpoint] = self._now_s() + HEALTH_PAUSE_S


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


# Fields of the annotations, by their numbers.
TABLE_NAME = 1  # TableOptions.name
QUERY_GET, QUERY_RANGE, QUERY_TABLE = 1, 3, 16  # QueryOptions.get, .range, .table
PARAM_COLUMN, PARAM_OP = 1, 2  # ParamOptions.column, .op
EQUAL = frozenset({0, 1})  # Op.OP_UNSPECIFIED, Op.OP_EQ


@dataclass(frozen=True, slots=True)
class Route:
    """A method that reads a table. `fields` are the request's fields that a column must be equal to, by column."""

    table: str
    fields: Mapping[str, Any]
    response_class: Any

    def key_bytes(self, columns: Sequence[tuple[str, int]], request: Message) -> bytes:
        """Return the key bytes of columns (name and type) that a request gives; raise `NoKey` where it lacks one."""
        parts = []
        for name, key_type in columns:
            field = self.fields.get(name)
            if field is None or (field.has_presence and not request.HasField(field.name)):
                raise NoKey(f'the request has no "{name}"')
            parts.append(encode(key_type, getattr(request, field.name)))
        return b"".join(parts)


def route_of(path: str, request: Any) -> Route | None:
    """Return how a method is routed whose request's descriptor is given; None: by no key, or it is no query.

    It must be generated with the contract's annotations.
    """
    service, _, name = path.removeprefix("/").rpartition("/")
    try:
        method = request.file.pool.FindServiceByName(service).methods_by_name[name]
    except KeyError:
        return None
    queries = numbered(method.GetOptions().SerializeToString(), ANNOTATION)
    if not any(numbered(query, kind) for query in queries for kind in (QUERY_GET, QUERY_RANGE)):
        return None
    tables = [table for query in queries for table in numbered(query, QUERY_TABLE)] or _tables(method.output_type)
    if len(tables) != 1:
        return None
    fields = {_column(field): field for field in request.fields if _is_equality(field)}
    return Route(tables[0].decode(), fields, message_factory.GetMessageClass(method.output_type))


def _tables(response: Any) -> list[bytes]:
    """Return the names of the tables whose rows a response holds."""
    rows = [field.message_type for field in response.fields if field.message_type is not None]
    annotations = [table for row in rows for table in numbered(row.GetOptions().SerializeToString(), ANNOTATION)]
    return [name for table in annotations for name in numbered(table, TABLE_NAME)]


def _column(field: Any) -> str:
    for param in _params(field):
        for column in numbered(param, PARAM_COLUMN):
            return str(column.decode())
    return str(field.name)


def _is_equality(field: Any) -> bool:
    operators = [operator for param in _params(field) for operator in numbered(param, PARAM_OP)]
    return not field.is_repeated and all(operator in EQUAL for operator in operators)


def _params(field: Any) -> list[bytes]:
    return numbered(field.GetOptions().SerializeToString(), ANNOTATION)
