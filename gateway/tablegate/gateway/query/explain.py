"""Explain: who would answer a request now, and why. It goes as far as the query does before it reads or asks."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from google.protobuf.message import Message

from tablegate.gateway.access.views import View
from tablegate.gateway.cluster.directory import Peer
from tablegate.gateway.cluster.scatter import assign_requests
from tablegate.gateway.contract.catalogue import (
    BatchGetQuery,
    Catalogue,
    CountQuery,
    GetQuery,
    Query,
    RangeQuery,
    ScanQuery,
    SubscribeQuery,
)
from tablegate.gateway.contract.indexes import Index
from tablegate.gateway.contract.types import Offset, Partition
from tablegate.gateway.query.batch_get import generation_asked
from tablegate.gateway.query.consistency import ConsistencyRequirement, requirement_reader
from tablegate.gateway.query.count import CountPlan
from tablegate.gateway.query.errors import (
    InvalidField,
    NotCaughtUp,
    NotServed,
    TableRebuilt,
    TooManyKeys,
    resume_token_refused,
)
from tablegate.gateway.query.index_reads import (
    IndexReader,
    fixes_partition,
    index_key_reader,
    index_keys_reader,
    keys_by_partition,
)
from tablegate.gateway.query.masks import mask_reader
from tablegate.gateway.query.range import Page, RangePlan, partitions_of
from tablegate.gateway.query.requests import key_reader, keys_reader, parse, seconds_of
from tablegate.gateway.query.serving import ServedGeneration, TableAccess
from tablegate.gateway.query.store_scan import ScanPlan
from tablegate.gateway.query.subscribe.selections import SubscribeReader, SubscribeRequest
from tablegate.gateway.query.whereabouts import Whereabouts
from tablegate.gateway.stores.base import Phase, Position, Snapshot
from tablegate.internal.v1.tokens_pb2 import TOKEN_KIND_SUBSCRIBE
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

    def explain(self, method: str, data: bytes, view: View | None = None) -> ExplainResponse:
        """Explain a request of somebody with a view; raise what its query would, and `StoreUnavailable`."""
        plan = self._plan(method)
        if view is not None:
            plan = _Plan(plan.query, plan.access.seen(view))
        return plan.explain(data)

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
        self.access = access
        self._read = reads_reader(query, access)
        self._read_requirement = requirement_reader(query, access)
        self._read_mask = mask_reader(query)

    def explain(self, data: bytes) -> ExplainResponse:
        """Explain a request."""
        query, access = self.query, self.access
        request = parse(query.request_class, data)
        asked = self._read(request)
        requirement = self._read_requirement(request)
        self._read_mask(request)
        with access.store.snapshot() as snapshot:
            served = access.served(snapshot)
            reads = asked(served)
            moment = _Moment(query, access, snapshot, served, reads.keys, requirement)
            return ExplainResponse(
                query=type(query).__name__.removesuffix("Query"),
                table=query.table.name,
                generation=served.generation,
                reads=f"{len(reads.keys)} of {served.partition_count} partitions: {reads.why}",
                freshness=_freshness(query, request),
                partitions=moment.plans(),
                not_promised=_not_promised(query, served),
            )


class _Moment:
    """What would happen in the moment of a snapshot."""

    def __init__(
        self,
        query: Query,
        access: TableAccess,
        snapshot: Snapshot,
        served: ServedGeneration,
        keys: Mapping[Partition, Sequence[bytes]],
        requirement: ConsistencyRequirement | None,
    ) -> None:
        self._query = query
        self._access = access
        self._snapshot = snapshot
        self._served = served
        self._keys = keys
        self._requirement = requirement
        self._own_id = access.router.directory.own_id
        self._index: Index | None = getattr(query, "index", None)
        live = [each for each in keys if access.is_live(snapshot, served, each)]
        self._without_index = frozenset(each for each in live if not self._has_index(each))
        self._here = frozenset(live) - self._without_index

    def _has_index(self, partition: Partition) -> bool:
        """Return whether this gateway has what a query reads by; a query of no index has it."""
        if self._index is None:
            return True
        store_id = self._served.store_id
        return self._snapshot.index_range(store_id, partition, self._index, start=b"", end=None, limit=0) is not None

    def plans(self) -> list[PartitionPlan]:
        """Return the plan of each partition, by number."""
        whereabouts = Whereabouts(self._access, self._snapshot, self._served)
        sources = self._sources()
        plans = []
        for partition in self._keys:
            replicas = whereabouts.replicas(partition)
            unmet_reason = self._unmet_reason(partition)
            if partition in self._here:
                route, gateway_id, why = PARTITION_ROUTE_HERE, self._own_id, self._why_here(replicas, unmet_reason)
            elif (peer := sources.get(partition)) is not None:
                route, gateway_id = PARTITION_ROUTE_FORWARDED, peer.gateway_id
                why = self._why_forwarded(gateway_id, replicas)
            else:
                route, gateway_id, why = PARTITION_ROUTE_NONE, "", self._why_none(replicas)
                if self._index is not None and partition in self._without_index:
                    why = f'its index "{self._index.name}" is being built here'
            plans.append(
                PartitionPlan(partition=partition, route=route, gateway_id=gateway_id, why=why, replicas=replicas)
            )
        return plans

    def _sources(self) -> dict[Partition, Peer]:
        """Return which other gateway gives a partition, for those that one does."""
        router = self._access.router
        name = self._access.table.name
        # A key's answer is good whatever generation it is from; parts of one answer are all of the same.
        generation = 0 if len(self._keys) == 1 else self._served.generation
        if isinstance(self._query, BatchGetQuery):
            is_anywhere = self._served.is_anywhere or not (
                self._index is None or fixes_partition(self._index, self._access.table)
            )
            generation = generation_asked(self._query, self._served, self._keys, is_anywhere=is_anywhere)
        peers = {
            partition: router.candidates(name, partition, generation=generation)
            for partition in self._keys
            if partition not in self._here
        }
        peers = {partition: found for partition, found in peers.items() if found}
        if isinstance(self._query, ScanQuery):
            return _in_turn(peers)
        own = Peer(self._own_id, "", "")
        return {each: peer for peer, members in assign_requests(peers, (), own, peers.__getitem__) for each in members}

    def _unmet_reason(self, partition: Partition) -> str:
        """Return why this gateway's partition is not as fresh as asked; raise what is wrong with the requirement."""
        requirement = self._requirement
        if requirement is None or requirement.asks_first:  # Kafka
            return ""
        if partition not in self._here:
            # Asked for its errors alone: a bad token is bad whoever answers.
            requirement.unmet_reason(self._served, partition, _NOWHERE)
            return ""
        position = self._access.live(self._snapshot, self._served, partition)
        if requirement.stored_reason is not None:
            return requirement.stored_reason(self._served, partition, position) or ""
        keys = self._keys[partition]
        try:
            if keys:
                requirement.check_keys(self._access, self._snapshot, self._served, partition, position, keys)
            else:
                requirement.check(self._access, self._served, partition, position)
        except NotCaughtUp:
            return requirement.unmet_reason(self._served, partition, position) or ""
        return ""

    def _why_here(self, replicas: Sequence[Replica], unmet_reason: str) -> str:
        text = "this gateway has it"
        if not any(replica.gateway_id == self._own_id and replica.role for replica in replicas):
            text += ", though it does not announce it"
        return f"{text}; it waits first: {unmet_reason}" if unmet_reason else text

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
        return any(
            peer.gateway_id == gateway_id and router.forwarder.is_cooling(peer) for peer in router.directory.peers
        )

    def _why_none(self, replicas: Sequence[Replica]) -> str:
        if not self._access.router.is_clustered:
            return f"this gateway {_does(replicas[0])}" if replicas else "this gateway does not have it"
        coming = [replica for replica in replicas if not replica.role]
        if not coming:
            return "no live gateway has it"
        return ", ".join(f'"{replica.gateway_id}" {_does(replica)}' for replica in coming)


def _does(replica: Replica) -> str:
    return f"{_DOES[replica.phase]}, at offset {replica.next_offset}"


def _in_turn(peers: Mapping[Partition, Sequence[Peer]]) -> dict[Partition, Peer]:
    """Return whom a scan asks for each partition: the best for the first, and for as many behind it as that one has."""
    sources: dict[Partition, Peer] = {}
    for partition, found in peers.items():
        before = sources.get(Partition(partition - 1))
        sources[partition] = found[0] if before is None or before not in found else before
    return sources


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


def _not_promised(query: Query, served: ServedGeneration) -> Iterator[str]:
    """Yield what a topic that others write cannot promise."""
    manifest = served.manifest
    if not manifest.HasField("foreign"):
        return
    if manifest.foreign.HasField("retention"):
        kept_s = manifest.foreign.retention.seconds
        yield f"rows whose records are older than {kept_s} s may be missing, as the topic deletes records by their age"
    if served.is_anywhere:
        yield "if producers have written a key to several partitions, any of its rows may be answered"
    if isinstance(query, SubscribeQuery):
        yield "a stream that resumes begins with all rows again where compaction may have removed a change"
    yield "rows that were written in one transaction may be seen one by one"


class Reads(NamedTuple):
    """The partitions that a request reads, with the keys of each where it is for keys; and why those."""

    keys: Mapping[Partition, Sequence[bytes]]
    why: str


Asked = Callable[[ServedGeneration], Reads]
"""From a table's served to what a request reads of it; raises what the query raises of a bad token."""
Read = Callable[[Message], Asked]
"""From a request to what it asks for; raises what the query raises of a bad request."""


def reads_reader(query: Query, access: TableAccess) -> Read:
    """Return the function from a request of `query` to what it asks for."""
    match query:
        case GetQuery():
            return _get_reader(query, access)
        case BatchGetQuery():
            return _batch_get_reader(query, access)
        case RangeQuery():
            return _range_reader(query, access)
        case CountQuery():
            return _count_reader(query, access)
        case ScanQuery():
            return _scan_reader(query, access)
        case SubscribeQuery():
            return _subscribe_reader(query, access)
        case _:
            raise TypeError(query)


def _get_reader(query: GetQuery, access: TableAccess) -> Read:
    if query.index is not None:
        return _index_get_reader(query, query.index, access)
    read_key = key_reader([param.field for param in query.params], query.table.key)

    def read(request: Message) -> Asked:
        key = read_key(request)
        why = f"that of its {_columns(access)}"
        anywhere = "all, as nobody knows how its producers choose partitions"
        return lambda served: Reads(
            dict.fromkeys(access.indexes_by_partition([key], served), (key,)), anywhere if served.is_anywhere else why
        )

    return read


def _index_get_reader(query: GetQuery, index: Index, access: TableAccess) -> Read:
    read_key = index_key_reader([param.field for param in query.params], index, query.table)
    reader = IndexReader(index, access)

    def read(request: Message) -> Asked:
        reader.check_seen()
        key = read_key(request)
        return lambda served: _by_index(keys_by_partition([key], access, served), access, index)

    return read


def _index_batch_get_reader(query: BatchGetQuery, index: Index, access: TableAccess) -> Read:
    read_keys = index_keys_reader(query.keys, query.key_fields, index, query.table)
    reader = IndexReader(index, access)

    def read(request: Message) -> Asked:
        asked = len(getattr(request, query.keys.name))
        if asked > query.max_keys:
            raise TooManyKeys(asked, query.max_keys)
        reader.check_seen()
        keys = read_keys(request)
        return lambda served: _by_index(keys_by_partition(keys, access, served), access, index)

    return read


def _by_index(partitions: Iterable[Partition], access: TableAccess, index: Index) -> Reads:
    some = dict.fromkeys(partitions, ())
    why = (
        f"by their {_columns(access)}"
        if fixes_partition(index, access.table)
        else f"all, as none of its columns is {_columns(access)}"
    )
    return Reads(some, f'{why}; index "{index.name}" is kept in each')


def _batch_get_reader(query: BatchGetQuery, access: TableAccess) -> Read:
    if query.index is not None:
        return _index_batch_get_reader(query, query.index, access)
    read_keys = keys_reader(query.keys, query.key_fields, query.table)

    def read(request: Message) -> Asked:
        asked = len(getattr(request, query.keys.name))
        if asked > query.max_keys:
            raise TooManyKeys(asked, query.max_keys)
        keys = read_keys(request)

        def reads(served: ServedGeneration) -> Reads:
            indexes = access.indexes_by_partition(keys, served)
            of_partition = {partition: [keys[index] for index in found] for partition, found in indexes.items()}
            return Reads(of_partition, f"those of its {len(keys)} keys")

        return reads

    return read


def _range_reader(query: RangeQuery, access: TableAccess) -> Read:
    plan = RangePlan(query, access)

    def read(request: Message) -> Asked:
        page = plan.page(request)

        def reads(served: ServedGeneration) -> Reads:
            plan.remaining(page, served)
            return _reads_of_run(query, page, access, served)

        return reads

    return read


def _count_reader(query: CountQuery, access: TableAccess) -> Read:
    plan = CountPlan(query, access)

    def read(request: Message) -> Asked:
        page = plan.asked(request)
        return lambda served: _reads_of_run(query, page, access, served)

    return read


def _reads_of_run(query: RangeQuery | CountQuery, page: Page, access: TableAccess, served: ServedGeneration) -> Reads:
    is_one = page.partition_prefix is not None and not served.is_anywhere
    found = _all_or_one(partitions_of(page, access, served), access, is_one=is_one)
    return found if query.index is None else found._replace(why=f'{found.why}; by index "{query.index.name}"')


def _scan_reader(query: ScanQuery, access: TableAccess) -> Read:
    plan = ScanPlan(query, access)

    def read(request: Message) -> Asked:
        plan.read_filters(request)

        def reads(served: ServedGeneration) -> Reads:
            token_text = plan.token_text(request)
            start = plan.resumed(request, token_text, served).partition
            why = "those behind its resume token, one after the other" if token_text else "all, one after the other"
            return Reads(dict.fromkeys(served.partitions[start:], ()), why)

        return reads

    return read


def _subscribe_reader(query: SubscribeQuery, access: TableAccess) -> Read:
    reader = SubscribeReader(query, access)

    def read(request: Message) -> Asked:
        asked = SubscribeRequest(reader, request.SerializeToString())

        def reads(served: ServedGeneration) -> Reads:
            if asked.resume_token:
                with suppress(TableRebuilt):  # it begins anew
                    access.open_token(
                        asked.resume_token,
                        kind=TOKEN_KIND_SUBSCRIBE,
                        request_hash=asked.request_hash,
                        served=served,
                        refused=resume_token_refused,
                    )
            selection = asked.select(served.partition_count, access.places_of)
            if not selection.partitions:
                return Reads({}, "no key can be in what it asks for")
            if selection.keys is not None:
                return Reads({each: selection.keys[each] for each in selection.partitions}, "those of its keys")
            is_one = len(selection.partitions) < served.partition_count
            return _all_or_one(selection.partitions, access, is_one=is_one)

        return reads

    return read


def _all_or_one(partitions: Sequence[Partition], access: TableAccess, *, is_one: bool) -> Reads:
    columns = _columns(access)
    why = f"that of its {columns}" if is_one else f"all, as it does not fix {columns}"
    return Reads(dict.fromkeys(partitions, ()), why)


def _columns(access: TableAccess) -> str:
    """Return the columns that choose the partition."""
    table = access.table
    return ", ".join(column.name for column in table.key[: table.partition_by_count])
