"""Tables as an online store of Feast, which asks for features by BatchGet. It needs `tablegate-client` beside `feast`.

    # feature_store.yaml
    online_store:
      type: tablegate.client.feast.TablegateOnlineStore
      address: gateway:50051

How it works: a feature view is a table, of its own name or of the one that its tag `tablegate_table` says; its features
are columns, the join keys of its entities the columns of the key. The gateway tells its contract by reflection, so it
needs `--reflection`; a table's is asked for once. The job writes the table: Feast only reads.

A feature's time is the column that the view's source calls its timestamp, where the row has it; else how old the answer
may be at most.

| option | |
|---|---|
| `address` | of a gateway, host:port |
| `credential` | file of a JWT or an API key |
| `ca` | for TLS: PEM file of the CA to trust; "system": those that gRPC trusts |
| `cert`, `key` | PEM files of a client certificate |

Decision: docs/decisions/0177-feast-only-reads.md
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Literal

import grpc
from feast import Entity, FeatureView, Field, RepoConfig, ValueType
from feast.infra.online_stores.online_store import OnlineStore
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.repo_config import FeastConfigBaseModel
from feast.types import FeastType
from google.protobuf.message import Message

from tablegate.client.connection import connection_of
from tablegate.client.queries import READ_MASK, QueryError, TableQueries, answered, field_of, queries_of

__all__ = ["TablegateOnlineStore", "TablegateOnlineStoreConfig"]

TABLE_TAG = "tablegate_table"

_Read = tuple[datetime | None, dict[str, Value] | None]
_Get = Callable[[Any], Value]

_TIMESTAMP = "google.protobuf.Timestamp"
_INTEGERS = {"INT32": "int32_val", "INT64": "int64_val"}
_NUMBERS = {"DOUBLE": "double_val", "FLOAT": "float_val"}
_BOOLS, _TEXTS, _BYTES = {"BOOL": "bool_val"}, {"STRING": "string_val"}, {"BYTES": "bytes_val"}
_TIMES = {"UNIX_TIMESTAMP": "unix_timestamp_val"}


class TablegateOnlineStoreConfig(FeastConfigBaseModel):  # type: ignore[misc] # mypy has no Feast
    """The options in `feature_store.yaml`."""

    type: Literal["tablegate.client.feast.TablegateOnlineStore"] = "tablegate.client.feast.TablegateOnlineStore"
    address: str
    credential: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None


class TablegateOnlineStore(OnlineStore):  # type: ignore[misc] # mypy has no Feast
    """Reads features of a gateway. Any thread may use it; a process that forks opens a channel of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = 0
        self._channel: grpc.Channel | None = None
        self._queries: dict[str, TableQueries] = {}
        self._views: dict[tuple[str, str], _View] = {}  # by the names of table and view

    def online_read(
        self,
        config: RepoConfig,
        table: FeatureView,
        entity_keys: list[EntityKey],
        requested_features: list[str] | None = None,
    ) -> list[_Read]:
        """Return time and features of each key, None and None where there is no row; raise `QueryError`."""
        options: TablegateOnlineStoreConfig = config.online_store
        queries, channel = self._bound(options, table.tags.get(TABLE_TAG) or table.name)
        view = self._view(queries, table.name)
        wanted = None if requested_features is None else frozenset(requested_features)
        features = {one.name: view.getter(one) for one in table.features if wanted is None or one.name in wanted}
        time_column = view.time_column(table)
        keys = iter([_key_row(queries, table.name, key) for key in entity_keys])
        found: list[_Read] = []
        while part := list(islice(keys, queries.keys_max)):
            request = queries.batch_request(part)
            mask = field_of(request.DESCRIPTOR, READ_MASK)
            if mask:
                getattr(request, mask).paths.extend([*features, *([time_column] if time_column else [])])
            try:
                rows, info = queries.batch_rows(channel, request)
            except grpc.RpcError as error:
                raise answered(error, options.address) from None
            as_of = None if info is None else info.as_of_time.ToDatetime(tzinfo=UTC)
            for row in rows:
                if row is None:
                    found.append((None, None))
                    continue
                is_timed = time_column and row.HasField(time_column)
                time = getattr(row, time_column).ToDatetime(tzinfo=UTC) if is_timed else as_of
                found.append((time, _values(features, row, queries.table)))
        return found

    def online_write_batch(
        self,
        config: RepoConfig,  # noqa: ARG002 - as Feast calls it
        table: FeatureView,
        data: list[tuple[EntityKey, dict[str, Value], datetime, datetime | None]],  # noqa: ARG002
        progress: Callable[[int], Any] | None,  # noqa: ARG002
    ) -> None:
        """Raise `QueryError`: the job writes the table."""
        raise QueryError(
            f'feature view "{table.name}" is a table that its job writes, and Feast only reads it: '
            "leave materialize and push out, or give them another online store"
        )

    def update(
        self,
        config: RepoConfig,
        tables_to_delete: Sequence[FeatureView],
        tables_to_keep: Sequence[FeatureView],
        entities_to_delete: Sequence[Entity],
        entities_to_keep: Sequence[Entity],
        partial: bool,
    ) -> None:
        """Do nothing: tables are made by jobs."""

    def teardown(self, config: RepoConfig, tables: Sequence[FeatureView], entities: Sequence[Entity]) -> None:
        """Remove nothing: tables are the jobs'."""

    async def close(self) -> None:
        """Close the channel."""
        with self._lock:
            if self._channel is not None:
                self._channel.close()
            self._channel = None

    def _bound(self, options: TablegateOnlineStoreConfig, name: str) -> tuple[TableQueries, grpc.Channel]:
        with self._lock:
            if self._channel is None or self._process != os.getpid():
                given = options.model_dump(exclude_none=True, exclude={"type"})
                self._channel, self._process = connection_of(given).open(), os.getpid()
            queries = self._queries.get(name)
            if queries is None:
                queries = queries_of(self._channel, options.address, name)
                if not queries.batch_get:
                    raise QueryError(f'the contract of table "{name}" has no BatchGet by its key: Feast needs one')
                self._queries[name] = queries
            return queries, self._channel

    def _view(self, queries: TableQueries, name: str) -> "_View":
        key = queries.table, name
        view = self._views.get(key)
        if view is None:  # two threads may make it at once: either is good
            view = self._views[key] = _View(queries, name)
        return view


class _View:
    """How rows of a table become features of a feature view: found out once for each type that one is declared as.

    Feast makes a view anew now and then, and it may have been applied with other types: so no view is remembered, but
    what its features and its time are called and declared as.
    """

    def __init__(self, queries: TableQueries, name: str) -> None:
        self._queries = queries
        self._name = name
        self._getters: dict[tuple[str, FeastType], _Get] = {}
        self._time_columns: dict[str, str] = {}

    def getter(self, feature: Field) -> _Get:
        """Return the function from a row to a feature's value; raise `QueryError` where its column has another type."""
        declared = feature.name, feature.dtype
        getter = self._getters.get(declared)
        if getter is None:
            kind = feature.dtype.to_value_type()
            getter = self._getters[declared] = _getter(self._queries, self._name, feature.name, kind)
        return getter

    def time_column(self, view: FeatureView) -> str:
        """Return the column of the view's time; "" where the row has none of that name."""
        name = getattr(getattr(view, "batch_source", None), "timestamp_field", "")
        column = self._time_columns.get(name)
        if column is None:
            column = self._time_columns[name] = _time_column(self._queries, name)
        return column


def _key_row(queries: TableQueries, view: str, key: EntityKey) -> Message:
    """Return a row with the columns of a key; raise `QueryError`."""
    names = [*key.join_keys]
    if sorted(names) != sorted(queries.key):
        raise QueryError(
            f'feature view "{view}" has the join keys {", ".join(names)}, and table "{queries.table}" the key '
            f"{', '.join(queries.key)}: give it entities with these join keys"
        )
    row: Any = queries.row_class()
    for name, value in zip(names, key.entity_values, strict=True):
        kind = value.WhichOneof("val") or "null_val"
        described = row.DESCRIPTOR.fields_by_name[name]
        plain = getattr(value, kind)
        try:
            if described.message_type is not None:
                getattr(row, name).FromSeconds(plain)
            elif described.enum_type is not None and isinstance(plain, str):
                setattr(row, name, described.enum_type.values_by_name[plain].number)
            else:
                setattr(row, name, plain)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise QueryError(
                f'join key "{name}" of feature view "{view}" has a value of {kind.removesuffix("_val")}, '
                f'which column "{name}" of table "{queries.table}" cannot have: ask by values of its type'
            ) from None
    return row  # type: ignore[no-any-return]


def _time_column(queries: TableQueries, name: str) -> str:
    """Return the column that a view calls its timestamp; "" where the row has none of that name."""
    described: Any = queries.row_class.DESCRIPTOR.fields_by_name.get(name)
    is_time = described is not None and not described.is_repeated and described.message_type is not None
    return name if is_time and described.message_type.full_name == _TIMESTAMP else ""


def _getter(queries: TableQueries, view: str, name: str, kind: ValueType) -> _Get:
    """Return the function from a row to a feature's value; raise `QueryError` where the column is not of its type."""
    described: Any = queries.row_class.DESCRIPTOR.fields_by_name.get(name)
    if described is None:
        has = ", ".join(queries.row_class.DESCRIPTOR.fields_by_name)
        raise QueryError(
            f'feature view "{view}" has a feature "{name}", and table "{queries.table}" has {has}: name one of these'
        )
    fields, plain = _kinds(described)
    single = kind.name.removesuffix("_LIST")
    if single not in fields or described.is_repeated != kind.name.endswith("_LIST"):
        wanted = " or ".join(f"{one}_LIST" if described.is_repeated else one for one in fields)
        raise QueryError(
            f'feature "{name}" of feature view "{view}" is declared as {kind.name}, and column "{name}" of table '
            f'"{queries.table}" can be {wanted or "no type of Feast"}: declare it so, or leave it out'
        )
    into = fields[single]
    if described.is_repeated:
        return lambda row: _listed(f"{single.lower()}_list_val", [plain(each) for each in getattr(row, name)])
    may_be_unset = described.has_presence
    return lambda row: (
        Value() if may_be_unset and not row.HasField(name) else Value(**{into: plain(getattr(row, name))})
    )


def _values(features: Mapping[str, _Get], row: Any, table: str) -> dict[str, Value]:
    values = {}
    for name, get in features.items():
        try:
            values[name] = get(row)
        except ValueError:
            text = f'column "{name}" of table "{table}" has a number that is too large for the type of the feature'
            raise QueryError(f"{text}: declare it as a wider one") from None
    return values


def _listed(into: str, values: list[Any]) -> Value:
    made = Value()
    listed = getattr(made, into)
    listed.SetInParent()
    listed.val.extend(values)
    return made


def _kinds(described: Any) -> tuple[Mapping[str, str], Callable[[Any], Any]]:
    """Return the types of Feast that a column's values may have, with their fields, and how a value becomes that."""
    message = described.message_type
    if message is not None:
        if message.full_name == _TIMESTAMP:
            return _TIMES, lambda time: time.seconds
        if message.full_name.startswith("google.protobuf.") and message.full_name.endswith("Value"):
            value = message.fields_by_name.get("value")
            if value is not None and [*message.fields] == [value]:
                return _kinds(value)[0], lambda wrapped: wrapped.value
        return {}, lambda value: value
    if described.enum_type is not None:
        names = {value.number: value.name for value in described.enum_type.values}
        return _TEXTS, lambda number: names.get(number) or str(number)
    if described.type == described.TYPE_BYTES:
        return _BYTES, lambda value: value
    of_type: Mapping[int, Mapping[str, str]] = {
        described.CPPTYPE_STRING: _TEXTS,
        described.CPPTYPE_BOOL: _BOOLS,
        described.CPPTYPE_DOUBLE: _NUMBERS,
        described.CPPTYPE_FLOAT: _NUMBERS,
    }
    return of_type.get(described.cpp_type, _INTEGERS), lambda value: value
