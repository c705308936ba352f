"""Explain: who would answer a request now, and why. It goes as far as the query does before it reads or asks."""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import Message
from tablegate.gateway.cluster.directory import Peer
from tablegate.gateway.cluster.scatter import grouped
from tablegate.gateway.contract.catalogue import BatchGetQuery, Catalogue, GetQuery, Query, ScanQuery
from tablegate.gateway.contract.types import Offset, Partition
from tablegate.gateway.query.consistency import ConsistencyRequirement, wish_reader
from tablegate.gateway.query.errors import InvalidField, NotCaughtUp, NotServed
from tablegate.gateway.query.reads import reads_reader
from tablegate.gateway.query.requests import parse, seconds_of
from tablegate.gateway.query.routed_batch import generation_asked
from tablegate.gateway.query.serving import ServedGeneration, TableAccess
from tablegate.gateway.query.whereabouts import Whereabouts
from tablegate.gateway.stores.base import Phase, Position, Snapshot
from tablegate.v1.cluster_pb2 import (
    REPLICA_PHASE_CATCHING_UP,
    REPLICA_PHASE_LIVE,
    REPLICA_PHASE_RESTORING,
    REPLICA_PHASE_UNSPECIFIED,
)
from tablegate.v1.status_pb2 import (
    PARTITION_ROUTE_FORWARDED,
    PARTITION_ROUTE_HERE,
    PARTITION_ROUTE_NONE,
    ExplainResponse,
    PartitionPlan,
    Replica,
)

_NOWHERE = Position(next_offset=Offset(0), as_of_ms=0, phase=Phase.RESTORING, history_start=Offset(0))
_DOES = {
    REPLICA_PHASE_UNSPECIFIED: "does with it what this gateway does not know",
    REPLICA_PHASE_RESTORING: "restores it",
    REPLICA_PHASE_LIVE: "has it",
    REPLICA_PHASE_CATCHING_UP: "catches up with it",
}


class Explainer:
    """Explains the queries of a catalogue, whose tables are accessed by `accesses`."""

    def __init__(self, catalogue: Catalogue, accesses: Mapping[str, TableAccess]) -> None:
        self._catalogue = catalogue
        self._plans = {path: _Plan(query, accesses[query.table.name]) for path, query in catalogue.queries.items()}

    def request_class(self, method: str) -> type[Message]:
        """Return the class of a method's requests; raise `InvalidField` or `NotServed` where it is no query."""
        return self._plan(method).query.request_class

    def explain(self, method: str, data: bytes) -> ExplainResponse:
        """Explain a request; raise what its query would, and `StoreUnavailable`."""
        return self._plan(method).explain(data)

    def _plan(self, method: str) -> "_Plan":
        path = f"/{method.removeprefix('/')}"
        plan = self._plans.get(path)
        if plan is not None:
            return plan
        if path in self._catalogue.other_methods:
            raise NotServed(f'method "{path}" is no query: its contract has no (tablegate.v1.query) option on it')
        raise InvalidField(
            "method", 'is no method of a contract here; send package.Service/Method, of "tablegate tables"'
        )


class _Plan:
    """The plans of one query."""

    def __init__(self, query: Query, access: TableAccess) -> None:
        self.query = query
        self._access = access
        self._read = reads_reader(query, access)
        self._read_wish = wish_reader(query, access)

    def explain(self, data: bytes) -> ExplainResponse:
        """Explain a request."""
        query, access = self.query, self._access
        request = parse(query.request_class, data)
        asked = self._read(request)
        wish = self._read_wish(request)
        with access.store.snapshot() as snapshot:
            life = access.life(snapshot)
            reads = asked(life)
            moment = _Moment(query, access, snapshot, life, reads.keys, wish)
            return ExplainResponse(
                query=type(query).__name__.removesuffix("Query"),
                table=query.table.name,
                generation=life.generation,
                reads=f"{len(reads.keys)} of {life.partition_count} partitions: {reads.why}",
                freshness=_freshness(query, request),
                partitions=moment.plans(),
            )


class _Moment:
    """What would happen in the moment of a snapshot."""

    def __init__(
        self,
        query: Query,
        access: TableAccess,
        snapshot: Snapshot,
        life: ServedGeneration,
        keys: Mapping[Partition, Sequence[bytes]],
        wish: ConsistencyRequirement | None,
    ) -> None:
        self._query = query
        self._access = access
        self._snapshot = snapshot
        self._life = life
        self._keys = keys
        self._wish = wish
        self._own_id = "" if access.router is None else access.router.directory.own_id
        self._here = frozenset(each for each in keys if access.is_live(snapshot, life, each))

    def plans(self) -> list[PartitionPlan]:
        """Return the plan of each partition, by number."""
        whereabouts = Whereabouts(self._access, self._snapshot, self._life)
        givers = self._givers()
        plans = []
        for partition in self._keys:
            replicas = whereabouts.replicas(partition)
            lack = self._lack(partition)
            if partition in self._here:
                route, gateway_id, why = PARTITION_ROUTE_HERE, self._own_id, self._why_here(replicas, lack)
            elif (peer := givers.get(partition)) is not None:
                route, gateway_id = PARTITION_ROUTE_FORWARDED, peer.gateway_id
                why = self._why_forwarded(gateway_id, replicas)
            else:
                route, gateway_id, why = PARTITION_ROUTE_NONE, "", self._why_none(replicas)
            plans.append(
                PartitionPlan(partition=partition, route=route, gateway_id=gateway_id, why=why, replicas=replicas)
            )
        return plans

    def _givers(self) -> dict[Partition, Peer]:
        """Return which other gateway gives a partition, for those that one does."""
        router = self._access.router
        if router is None:
            return {}
        name = self._access.table.name
        # A key's answer is good whatever generation it is from; parts of one answer are all of the same.
        generation = self._life.generation
        if isinstance(self._query, BatchGetQuery):
            generation = generation_asked(self._query, self._life, self._keys)
        elif isinstance(self._query, GetQuery) or len(self._keys) == 1:
            generation = 0
        peers = {
            partition: router.others(name, partition, generation=generation)
            for partition in self._keys
            if partition not in self._here
        }
        peers = {partition: found for partition, found in peers.items() if found}
        if isinstance(self._query, ScanQuery):
            return _in_turn(peers)
        own = Peer(self._own_id, "", "")
        return {each: peer for peer, members in grouped(peers, (), own, peers.__getitem__) for each in members}

    def _lack(self, partition: Partition) -> str:
        """Return what this gateway's partition lacks to be as fresh as asked; raise what is wrong with the wish."""
        wish = self._wish
        if wish is None or wish.prepare is not None:  # that one asks Kafka first
            return ""
        if partition not in self._here:
            wish.lack(self._life, partition, _NOWHERE)
            return ""
        position = self._access.live(self._snapshot, self._life, partition)
        keys = self._keys[partition]
        try:
            if keys:
                wish.check_keys(self._access, self._snapshot, self._life, partition, position, keys)
            else:
                wish.check(self._access, self._life, partition, position)
        except NotCaughtUp:
            return wish.lack(self._life, partition, position) or ""
        return ""

    def _why_here(self, replicas: Sequence[Replica], lack: str) -> str:
        text = "this gateway has it"
        if not any(replica.gateway_id == self._own_id and replica.role for replica in replicas):
            text += ", though it does not announce it"
        return f"{text}; it waits first: {lack}" if lack else text

    def _why_forwarded(self, gateway_id: str, replicas: Sequence[Replica]) -> str:
        asked = [replica.gateway_id for replica in replicas if replica.role]
        if gateway_id not in asked:
            return f'"{gateway_id}" has it, of another generation'
        if gateway_id == asked[0]:
            return f'"{gateway_id}" is its owner'
        text = f'"{gateway_id}" is a standby'
        if asked[0] == self._own_id:
            return f"{text}; its owner, this gateway, does not answer from it now"
        if self._is_away(asked[0]):
            return f'{text}; its owner "{asked[0]}" did not answer lately'
        return f"{text}, and is asked for other partitions anyway"

    def _is_away(self, gateway_id: str) -> bool:
        router = self._access.router
        assert router is not None
        return any(
            peer.gateway_id == gateway_id and router.forwarder.is_cooling(peer) for peer in router.directory.peers
        )

    def _why_none(self, replicas: Sequence[Replica]) -> str:
        if self._access.router is None:
            return f"this gateway {_does(replicas[0])}" if replicas else "this gateway does not have it"
        coming = [replica for replica in replicas if not replica.role]
        if not coming:
            return "no gateway that lives has it"
        return ", ".join(f'"{replica.gateway_id}" {_does(replica)}' for replica in coming)


def _does(replica: Replica) -> str:
    return f"{_DOES[replica.phase]}, at offset {replica.next_offset}"


def _in_turn(peers: Mapping[Partition, Sequence[Peer]]) -> dict[Partition, Peer]:
    """Return whom a scan asks for each partition: the best for the first, and for as many behind it as that one has."""
    givers: dict[Partition, Peer] = {}
    for partition, found in peers.items():
        before = givers.get(Partition(partition - 1))
        givers[partition] = found[0] if before is None or before not in found else before
    return givers


def _freshness(query: Query, request: Message) -> str:
    """Return how fresh the answer must be, by the names of the options; no token and no offset."""
    if query.read_options is None or not request.HasField(query.read_options.name):
        return "whatever the gateway has"
    options: Any = getattr(request, query.read_options.name)
    match options.WhichOneof("consistency"):
        case None | "minimize_latency":
            return "whatever the gateway has"
        case "at_least":
            text = "at_least: what the token's answer had"
        case "at_least_source":
            text = f"at_least_source: records of {', '.join(topic.topic for topic in options.at_least_source.topics)}"
        case "max_staleness":
            text = f"max_staleness: {seconds_of(options.max_staleness):g} s"
        case name:
            text = f"{name}: all that the changelog has"
    if options.HasField("max_wait"):
        return f"{text}; it waits up to {seconds_of(options.max_wait):g} s"
    return f"{text}; it waits for half of the time left to the deadline"
