"""tablegate.v1.GatewayService: what the replicator says of this gateway, where a table is, who would answer, and how a
row has changed.

Beside it server reflection, over the contracts' own descriptor pool, with the files that a client needs to read any
answer.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import _async as aio
from grpc_reflection.v1alpha import reflection_pb2

from tablegate.gateway.cluster.scatter import Router
from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.contract.tokens import TokenSigner
from tablegate.gateway.http.json_codec import JsonCodec
from tablegate.gateway.http.server import keys_limits_of
from tablegate.gateway.query.call import Answer, Call, DuplexMethod, Methods, StreamMethod, TopicEnds, UnaryMethod
from tablegate.gateway.query.errors import InvalidField, QueryError, ShuttingDown, StoreAway
from tablegate.gateway.query.explain import Explainer
from tablegate.gateway.query.requests import parse
from tablegate.gateway.query.row_history import HISTORY_PATH, RowHistories
from tablegate.gateway.query.service import table_accesses
from tablegate.gateway.query.serving import NowMs, TableAccess, wall_clock_ms
from tablegate.gateway.query.whereabouts import table_metadata
from tablegate.gateway.server.health import HEALTH_SERVICE
from tablegate.gateway.server.job_progress import job_statuses
from tablegate.gateway.server.subscriptions import Subscriptions
from tablegate.gateway.stores.base import StoreReader, StoreUnavailable
from tablegate.gateway.stores.changes import StoreChanges
from tablegate.gateway.stores.notifier import Notifier
from tablegate.v1 import errors_pb2
from tablegate.v1 import status_pb2 as gateway_status_pb2
from tablegate.v1.status_pb2 import (
    ExplainRequest,
    GetStatusRequest,
    GetStatusResponse,
    GetTableRequest,
    GetTableResponse,
    TableMetadata,
    WatchTableRequest,
    WatchTableResponse,
)

STATUS_SERVICE = "tablegate.v1.GatewayService"
STATUS_TIMEOUT_S = 5.0

_REPLICATOR_HANGS = GetStatusResponse(replicator_hangs=True).SerializeToString()
READ_EVERY_S = 0.25  # changes that come within it are sent as one
READ_TIMES = 20  # as long as reading took the last time: tables of many partitions are read less often

Found = TypeVar("Found")


def status_methods(
    store: StoreReader,
    *,
    is_late: Callable[[], bool] = lambda: False,
    subscriptions: Subscriptions | None = None,
    snapshots: Callable[[], GetStatusResponse] | None = None,
) -> Methods:
    """Return GetStatus, answered with the bytes that the replicator left in `store`.

    With `is_late` they are old, and the answer says so. `subscriptions`, `snapshots`: what it says of streams and of
    snapshot files. These, and how far jobs have come, are for who asks for it.
    """

    def get_status(data: bytes, _call: Call) -> Answer:
        request: Any = parse(GetStatusRequest, data)
        try:
            with store.snapshot() as snapshot:
                status = snapshot.status()
                # Messages that follow on one another are one message.
                if request.with_jobs:
                    status += GetStatusResponse(jobs=job_statuses(snapshot, _tables_of(status))).SerializeToString()
        except StoreUnavailable as error:
            raise StoreAway from error
        if is_late():
            status += _REPLICATOR_HANGS
        if request.with_snapshots and snapshots is not None:
            status += snapshots().SerializeToString()
        return with_subscriptions(status) if request.with_subscriptions and subscriptions is not None else status

    async def with_subscriptions(status: bytes) -> bytes:
        assert subscriptions is not None
        return status + (await subscriptions.status()).SerializeToString()

    return {f"/{STATUS_SERVICE}/GetStatus": UnaryMethod(get_status, STATUS_TIMEOUT_S, STATUS_TIMEOUT_S)}


def _tables_of(status: bytes) -> list[str]:
    return [table.table for table in GetStatusResponse.FromString(status).tables]


def metadata_methods(
    catalogue: Catalogue,
    store: StoreReader,
    signer: TokenSigner,
    notifier: Notifier,
    *,
    ends: TopicEnds | None = None,
    router: Router | None = None,
    now_ms: NowMs = wall_clock_ms,
) -> Methods:
    """Return GetTable, WatchTable and Explain. The arguments are those of `query_methods`."""
    accesses = table_accesses(catalogue, store, signer, notifier, ends=ends, router=router, now_ms=now_ms)
    watched = {name: _WatchedTable(access) for name, access in accesses.items()}
    explainer = Explainer(catalogue, accesses)
    codec = JsonCodec([catalogue.pool, descriptor_pool.Default()], keys_limits_of(catalogue))

    def get_table(data: bytes, _call: Call) -> bytes:
        access = _named(GetTableRequest, data, accesses)
        return GetTableResponse(table=_metadata(access)).SerializeToString()

    async def watch_table(data: bytes, call: Call) -> AsyncIterator[bytes]:
        async for table in _named(WatchTableRequest, data, watched).metadata(call):
            yield WatchTableResponse(table=table).SerializeToString()

    def explain(data: bytes, call: Call) -> bytes:
        request: Any = parse(ExplainRequest, data)
        asked = request.message
        view = call.view_of(f"/{request.method.removeprefix('/')}")
        if request.WhichOneof("request") == "json":
            asked = codec.from_json(explainer.request_class(request.method), request.json.encode())
        try:
            return explainer.explain(request.method, asked, view).SerializeToString()
        except StoreUnavailable as error:
            raise StoreAway from error

    timeout_s = STATUS_TIMEOUT_S
    return {
        f"/{STATUS_SERVICE}/GetTable": UnaryMethod(get_table, timeout_s, timeout_s),
        f"/{STATUS_SERVICE}/WatchTable": StreamMethod(watch_table),
        f"/{STATUS_SERVICE}/Explain": UnaryMethod(explain, timeout_s, timeout_s),
    }


def history_methods(
    catalogue: Catalogue,
    store: StoreReader,
    signer: TokenSigner,
    notifier: Notifier,
    *,
    router: Router | None = None,
    now_ms: NowMs = wall_clock_ms,
) -> Methods:
    """Return GetHistory. It gives rows: where those are guarded, so is it. Arguments are those of `query_methods`."""
    accesses = table_accesses(catalogue, store, signer, notifier, ends=None, router=router, now_ms=now_ms)
    codec = JsonCodec([catalogue.pool, descriptor_pool.Default()], keys_limits_of(catalogue))
    answer = RowHistories(catalogue, accesses, codec).answer
    return {HISTORY_PATH: UnaryMethod(answer, STATUS_TIMEOUT_S, STATUS_TIMEOUT_S, checks_forward_token=True)}


def _named(request_class: type[Message], data: bytes, tables: Mapping[str, Found]) -> Found:
    """Return what there is of the table that a request names; raise `InvalidField`."""
    request: Any = parse(request_class, data)
    found = tables.get(request.table)
    if found is None:
        raise InvalidField("table", f"is no table of the contracts here; send one of {', '.join(sorted(tables))}")
    return found


def _metadata(access: TableAccess) -> TableMetadata:
    """Return where a table is now; raise `PartitionUnavailable` or `StoreAway`."""
    try:
        with access.store.snapshot() as snapshot:
            return table_metadata(access, snapshot)
    except StoreUnavailable as error:
        raise StoreAway from error


class _WatchedTable:
    """What is sent to those who watch a table: read once for all of them when the status changes. One event loop."""

    def __init__(self, access: TableAccess) -> None:
        self._access = access
        self._watchers = 0
        self._newest = TableMetadata()
        self._shape = TableMetadata()  # the same without positions
        self._error: QueryError | None = None
        self._changed = asyncio.Event()
        self._is_due = False
        self._read_at_s = 0.0
        access.notifier.listen(on_change=self._note, on_shutdown=self._wake)

    async def metadata(self, call: Call) -> AsyncIterator[TableMetadata]:
        """Yield where the table is, at once and after each change; raise why that is not known, or `ShuttingDown`."""
        if not self._watchers:
            self._read()
        self._watchers += 1
        sent = None
        try:
            while True:
                changed = self._changed
                if call.draining:
                    raise ShuttingDown
                if self._error is not None:
                    raise self._error
                if sent is not self._newest:
                    sent = self._newest
                    yield sent
                else:
                    await changed.wait()
        finally:
            self._watchers -= 1

    def _note(self, changes: StoreChanges) -> None:
        """Read where the table is, soon, unless only rows have changed: a new phase comes with a new status."""
        if self._watchers and not self._is_due and (changes.status or changes.everything):
            self._is_due = True
            wait_s = max(0.0, self._read_at_s - time.monotonic())
            asyncio.get_running_loop().call_later(wait_s, self._read)

    def _read(self) -> None:
        self._is_due, self._error = False, None
        begin_s = time.monotonic()
        try:
            newest = _metadata(self._access)
        except QueryError as error:
            self._error = error
            self._wake()
        else:
            shape = _without_positions(newest)
            if shape != self._shape:
                self._newest, self._shape = newest, shape
                self._wake()
        end_s = time.monotonic()
        self._read_at_s = end_s + max(READ_EVERY_S, READ_TIMES * (end_s - begin_s))

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _without_positions(table: TableMetadata) -> TableMetadata:
    kept = TableMetadata()
    kept.CopyFrom(table)
    for partition in kept.partitions:
        for replica in partition.replicas:
            replica.ClearField("next_offset")
    return kept


# Both versions have the same messages; grpcio has Python for the older one only.
REFLECTION_SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")

_OWN_FILES: Sequence[Any] = (
    health_pb2.DESCRIPTOR,
    error_details_pb2.DESCRIPTOR,
    status_pb2.DESCRIPTOR,
    errors_pb2.DESCRIPTOR,
    gateway_status_pb2.DESCRIPTOR,
    reflection_pb2.DESCRIPTOR,
)


def reflection_pool(catalogue: Catalogue) -> DescriptorPool:
    """Return a pool of the contracts' files and of ours; where both have a file, the contracts' one counts."""
    files = {file.name: file for file in catalogue.files.file}
    pool = DescriptorPool()
    added: set[str] = set()

    def add(name: str) -> None:
        if name in added:
            return
        added.add(name)
        for dependency in files[name].dependency:
            add(dependency)
        pool.Add(files[name])

    for file in _OWN_FILES:
        _collect(file, files)
    for name in list(files):
        add(name)
    return pool


def _collect(file: FileDescriptor, files: dict[str, descriptor_pb2.FileDescriptorProto]) -> None:
    if file.name in files:
        return
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    files[file.name] = proto
    for dependency in file.dependencies:
        _collect(dependency, files)


def reflection_methods(catalogue: Catalogue) -> Methods:
    """Return the methods of both versions of reflection."""
    names = (*catalogue.services, HEALTH_SERVICE, STATUS_SERVICE, *REFLECTION_SERVICES)
    servicer = aio.ReflectionServicer(names, pool=reflection_pool(catalogue))

    async def describe(requests: AsyncIterator[bytes], _call: Call) -> AsyncIterator[bytes]:
        async for response in servicer.ServerReflectionInfo(_parsed(requests), None):
            yield response.SerializeToString()

    return {f"/{service}/ServerReflectionInfo": DuplexMethod(describe) for service in REFLECTION_SERVICES}


async def _parsed(requests: AsyncIterator[bytes]) -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
    async for data in requests:
        try:
            yield reflection_pb2.ServerReflectionRequest.FromString(data)
        except DecodeError:
            raise InvalidField("", "the request is not a ServerReflectionRequest; send one") from None
