"""Health (grpc.health.v1): a service is SERVING while every partition of every table that it reads is answered.

With a replicator that hangs none is: what is here is answered, and grows older.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from tablegate.gateway.cluster.directory import Directory
from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.query.call import Call, Methods, StreamMethod, UnaryMethod
from tablegate.gateway.query.errors import InvalidField, QueryError, ShuttingDown
from tablegate.gateway.stores.base import Phase, Snapshot, StoreReader, StoreUnavailable
from tablegate.v1 import errors_pb2

HEALTH_SERVICE = "grpc.health.v1.Health"
CHECK_TIMEOUT_S = 5.0

SERVING: int = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: int = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN: int = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class UnknownService(QueryError):
    """The service of a health check is not served here: ask for another."""

    reason = errors_pb2.ERROR_REASON_ROW_NOT_FOUND  # the health protocol wants NOT_FOUND

    def __init__(self) -> None:
        super().__init__("no such service is served here; list the services by reflection")


def tables_by_service(catalogue: Catalogue) -> Mapping[str, frozenset[str]]:
    """Return the tables that each service reads; "" reads all."""
    tables: dict[str, set[str]] = {service: set() for service in catalogue.services}
    for path, query in catalogue.queries.items():
        tables.setdefault(path.split("/")[1], set()).add(query.table.name)
    return {"": frozenset(catalogue.tables), **{service: frozenset(names) for service, names in tables.items()}}


def live_tables(store: StoreReader, names: frozenset[str], directory: Directory) -> frozenset[str]:
    """Return which of the tables are served whole, by this gateway or by those that it asks.

    None while the store cannot be read.
    """
    try:
        with store.snapshot() as snapshot:
            return frozenset(name for name in names if _is_live(snapshot, name, directory))
    except StoreUnavailable:
        return frozenset()


def _is_live(snapshot: Snapshot, name: str, directory: Directory) -> bool:
    state = snapshot.table(name)
    if state is None or state.problem or not state.HasField("manifest"):
        return False
    # It ends at the first that is missing, so that a gateway that restores spends no time on what is there already.
    for partition in map(Partition, range(state.manifest.partition_count)):
        position = snapshot.position(StoreId(state.store_id), partition)
        is_here = position is not None and position.phase is Phase.LIVE
        if not is_here and not directory.replicas(name, partition):
            return False
    return True


class ReplicatorBeat:
    """Whether the replicator lives, as a worker sees it: it stores another status twice a second.

    What counts is when that was seen to change, by the clock that only goes on: the time within it is of a clock that
    may be set.
    """

    def __init__(self, late_s: float, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self.late_s = late_s
        self._monotonic_s = monotonic_s
        self._status = b""
        self._changed_s = monotonic_s()

    def note(self, status: bytes) -> None:
        """Record what the status is now."""
        if status != self._status:
            self._status, self._changed_s = status, self._monotonic_s()

    @property
    def is_late(self) -> bool:
        """Return whether nothing was heard of it for too long."""
        return self._monotonic_s() >= self._changed_s + self.late_s


class Health:
    """The health of each service. One event loop."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._tables = tables_by_service(catalogue)
        self._serving = dict.fromkeys(self._tables, False)
        self._draining = False
        self._missing = self._tables[""]
        self._changed = asyncio.Event()

    @property
    def serving(self) -> bool:
        """Return whether every service is."""
        return self._serving[""]

    @property
    def tables(self) -> frozenset[str]:
        """Return the names of all tables."""
        return self._tables[""]

    @property
    def missing(self) -> frozenset[str]:
        """Return the names of the tables that are not served whole."""
        return self._missing

    @property
    def draining(self) -> bool:
        """Return whether the gateway goes away."""
        return self._draining

    def update(self, live: frozenset[str]) -> None:
        """Take in which tables are served whole."""
        self._missing = self.tables - live
        serving = {service: not self._draining and tables <= live for service, tables in self._tables.items()}
        if serving != self._serving:
            self._serving = serving
            self._announce()

    def drain(self) -> None:
        """Say NOT_SERVING from now on."""
        self._draining = True
        self._serving = dict.fromkeys(self._serving, False)
        self._announce()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def methods(self) -> Methods:
        """Return Check and Watch."""
        return {
            f"/{HEALTH_SERVICE}/Check": UnaryMethod(self._check, CHECK_TIMEOUT_S, CHECK_TIMEOUT_S),
            f"/{HEALTH_SERVICE}/Watch": StreamMethod(self._watch),
        }

    def _status(self, service: str) -> int:
        serving = self._serving.get(service)
        if serving is None:
            return SERVICE_UNKNOWN
        return SERVING if serving else NOT_SERVING

    def _check(self, data: bytes, _call: Call) -> bytes:
        service = _service_of(data)
        if service not in self._serving:
            raise UnknownService
        return _response(self._status(service))

    async def _watch(self, data: bytes, _call: Call) -> AsyncIterator[bytes]:
        service = _service_of(data)
        sent = None
        while True:
            changed = self._changed
            status = self._status(service)
            if status != sent:
                sent = status
                yield _response(status)
            if self._draining:
                raise ShuttingDown
            await changed.wait()


def _service_of(data: bytes) -> str:
    try:
        return str(health_pb2.HealthCheckRequest.FromString(data).service)
    except DecodeError:
        raise InvalidField("", "the request is not a grpc.health.v1.HealthCheckRequest; send one") from None


def _response(status: int) -> bytes:
    return bytes(health_pb2.HealthCheckResponse(status=status).SerializeToString())
