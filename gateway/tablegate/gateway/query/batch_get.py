"""BatchGet: the rows of several keys, in the order asked.

Keys whose partitions are all here are read in one snapshot. Otherwise each gateway that is needed gets one request with
its keys, this gateway's store being one source among them, and the results are put back in the order of the keys.

No answer mixes generations of the table. Where the responses tell theirs (`read_info`), any generation will do as long
as it is one, which keeps a batch answerable while gateways switch; where they do not, all are asked for the generation
that is known here (`generation_asked`). Another generation may have other partitions: then keys that are asked for
together here are apart there, and the other way round. So what has read one partition at two places is not one answer.
Each half of a part that is too long to be handed over at once is asked for.

Decision: docs/decisions/0042-retry-between-generations.md
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from google.protobuf.message import Message
from google.rpc import code_pb2
from google.rpc.status_pb2 import Status

from tablegate.gateway.cluster.directory import Peer
from tablegate.gateway.cluster.forward_token import ForwardToken
from tablegate.gateway.cluster.scatter import PeerFailed
from tablegate.gateway.contract.catalogue import BatchGetQuery
from tablegate.gateway.contract.indexes import Index
from tablegate.gateway.contract.lineage import Place
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.contract.wire import FieldEncoder, fields
from tablegate.gateway.query.call import Answer, Call, UnaryHandler
from tablegate.gateway.query.consistency import ConsistencyRequirement, requirement_reader
from tablegate.gateway.query.errors import GenerationsMixed, TooManyKeys
from tablegate.gateway.query.forwarding import (
    NotServedHere,
    answer,
    gather,
    local_result,
    unless_store_away,
)
from tablegate.gateway.query.index_reads import IndexKey, IndexReader, index_keys_reader, keys_by_partition
from tablegate.gateway.query.masks import Trim, mask_reader
from tablegate.gateway.query.requests import keys_reader, parse
from tablegate.gateway.query.serving import Scope, ServedGeneration, TableAccess, several_trailer
from tablegate.gateway.stores.base import Position, Snapshot


def batch_get_handler(query: BatchGetQuery, access: TableAccess) -> UnaryHandler:
    """Return the handler of `query`."""
    plan = _BatchGetPlan(
        query, access, KeyRows(query, access) if query.index is None else IndexRows(query, query.index, access)
    )

    def handle(data: bytes, call: Call) -> Answer:
        return answer(BatchGetRead(plan, data, call))

    return handle


def generation_asked(
    query: BatchGetQuery, served: ServedGeneration, partitions: Collection[Partition], *, is_anywhere: bool
) -> int:
    """Return which generation results have to be of, so that none are put together that are of several; 0: any one.

    Read infos tell afterwards whether results agree. Without them only what is known here can be asked for. So it is
    where keys may be anywhere: gateways are asked for partitions by number, and another generation may have more.
    """
    if is_anywhere:
        return served.generation
    return 0 if query.read_info is not None or len(partitions) == 1 else served.generation


class _StoreRead(NamedTuple):
    """The results of some keys, as they are in a response; and what this gateway read them from."""

    results: bytes
    served: ServedGeneration
    positions: Mapping[Partition, Position]


class _PartialResult(NamedTuple):
    """Some of the results, and which indexes of the request they are for."""

    gateway_id: str
    indexes: Sequence[int]
    results: Sequence[bytes]
    infos: Sequence[bytes]
    positions: Mapping[Partition, Position]  # where this gateway read them


class KeyRows:
    """Rows by their keys."""

    def __init__(self, query: BatchGetQuery, access: TableAccess) -> None:
        self._access = access
        self.read_keys: Callable[[Message], Sequence[Any]] = keys_reader(query.keys, query.key_fields, query.table)
        """From a request to its keys; raises `InvalidField`."""

    def by_partition(
        self, keys: Sequence[Any], served: ServedGeneration, among: Sequence[Partition] | None = None
    ) -> dict[Partition, list[int]]:
        """Return the places of keys, by partition that may have them; see `TableAccess.indexes_by_partition`."""
        return self._access.indexes_by_partition(keys, served, among)

    def is_anywhere(self, _keys: Sequence[Any], served: ServedGeneration) -> bool:
        """Return whether any partition may have a key, so that several are asked for it."""
        return served.is_anywhere

    def rows(
        self,
        snapshot: Snapshot,
        served: ServedGeneration,
        partition: Partition,
        position: Position,
        keys: Sequence[Any],
        requirement: ConsistencyRequirement | None,
    ) -> list[bytes | None]:
        """Return what a partition has of keys, as it is seen; raise `NotCaughtUp`."""
        if requirement is not None:
            requirement.check_keys(self._access, snapshot, served, partition, position, keys)
        found = snapshot.get_many(served.store_id, partition, keys)
        return found if self._access.visible is None else self._access.visible.rows(found)

    def check_one(self) -> None:
        """Two partitions have a row: that is for whoever writes to a topic of others."""


class IndexRows:
    """Rows by the values of a unique index."""

    def __init__(self, query: BatchGetQuery, index: Index, access: TableAccess) -> None:
        self._access = access
        self._reader = IndexReader(index, access)
        self._read_keys = index_keys_reader(query.keys, query.key_fields, index, query.table)

    def read_keys(self, request: Message) -> Sequence[IndexKey]:
        """Return what a request asks for; raise `InvalidField` or `NotAllowed`."""
        self._reader.check_seen()
        return self._read_keys(request)

    def by_partition(
        self, keys: Sequence[IndexKey], served: ServedGeneration, among: Sequence[Partition] | None = None
    ) -> dict[Partition, list[int]]:
        """Return the places of keys, by partition that may have them."""
        return keys_by_partition(keys, self._access, served, among)

    def is_anywhere(self, keys: Sequence[IndexKey], served: ServedGeneration) -> bool:
        """Return whether any partition may have a key, so that several are asked for it."""
        return served.is_anywhere or any(key.partition_prefix is None for key in keys)

    def rows(
        self,
        snapshot: Snapshot,
        served: ServedGeneration,
        partition: Partition,
        position: Position,
        keys: Sequence[IndexKey],
        requirement: ConsistencyRequirement | None,
    ) -> list[bytes | None]:
        """Return what a partition has of keys, as it is seen; raise `NotCaughtUp`, `IndexNotBuilt` and the like."""
        if requirement is not None:
            requirement.check(self._access, served, partition, position)
        return [self._reader.row(snapshot, served, partition, key.values) for key in keys]

    def check_one(self) -> None:
        """Two partitions have a row: raise `IndexNotUnique`."""
        raise self._reader.not_unique()


class _BatchGetPlan:
    """A BatchGet, compiled."""

    def __init__(self, query: BatchGetQuery, access: TableAccess, by: KeyRows | IndexRows) -> None:
        self.by: Any = by
        self.query = query
        self.access = access
        self.keys_name = query.keys.name
        self.read_requirement = requirement_reader(query, access)
        self.read_mask = mask_reader(query)
        self.info_field = None if query.read_info is None else FieldEncoder(query.read_info.number)
        self._found = FieldEncoder(query.found.number)
        self._missing = FieldEncoder(query.missing.number)
        self._result = FieldEncoder(query.results.number)

    def read(
        self,
        request: Message,
        keys: Sequence[Any],
        requirement: ConsistencyRequirement | None,
        scope: Scope | None,
        trim: Trim | None,
    ) -> _StoreRead:
        """Return what this gateway's store has of these keys of a request, from one snapshot."""
        access = self.access
        positions: dict[Partition, Position] = {}
        rows: list[bytes | None] = [None] * len(keys)
        with access.store.snapshot() as snapshot:
            served = access.served(snapshot)
            if scope is not None:
                scope.check(access.table.name, served.generation)
            # Partition by partition, so that each is checked once and read with one cursor of the store.
            among = None if scope is None else scope.partitions
            for partition, indexes in self.by.by_partition(keys, served, among).items():
                positions[partition] = position = access.live(snapshot, served, partition)
                some = [keys[index] for index in indexes]
                found = self.by.rows(snapshot, served, partition, position, some, requirement)
                for index, row in zip(indexes, found, strict=True):
                    if row is not None:
                        if rows[index] is not None:
                            self.by.check_one()
                        rows[index] = row if trim is None else trim(row)
        return _StoreRead(self._spliced(rows, getattr(request, self.keys_name)), served, positions)

    def _spliced(self, rows: list[bytes | None], keys: Sequence[Message]) -> bytes:
        """Return the bytes of all results, in the order of `keys`."""
        found, result = self._found, self._result
        parts: list[bytes] = []
        for index, row in enumerate(rows):
            if row is None:
                inner = self._missing_entry(keys[index])
                parts += (result[len(inner)], inner)
            else:
                header = found[len(row)]
                parts += (result[len(header) + len(row)], header, row)
        return b"".join(parts)

    def is_found(self, result: bytes) -> bool:
        """Return whether an entry of a response has a row."""
        [(_, _, start, end)] = fields(result)
        return any(number == self.query.found.number for number, *_ in fields(result[start:end]))

    def _missing_entry(self, key: Message) -> bytes:
        query = self.query
        if query.missing.message_type is not None:
            return self._missing.encode(key.SerializeToString())
        # A scalar key: the message is made whole, and only its inside is wanted.
        response = query.response_class()
        entry = getattr(response, query.results.name).add()
        setattr(entry, query.missing.name, key)
        return bytes(entry.SerializeToString())


class BatchGetRead:
    """A request, parsed."""

    def __init__(self, plan: _BatchGetPlan, data: bytes, call: Call) -> None:
        """Parse a request; raise `InvalidField`, `TooManyKeys` or `ForeignForward`."""
        query = plan.query
        self.access = plan.access
        self.call = call
        self._plan = plan
        self._request = request = parse(query.request_class, data)
        key_count = len(getattr(request, plan.keys_name))
        if key_count > query.max_keys:
            raise TooManyKeys(key_count, query.max_keys)
        self._keys = plan.by.read_keys(request)
        self.requirement = plan.read_requirement(request)
        self._trim = plan.read_mask(request)
        forwarded = call.forwarded
        self.scope = None if forwarded is None else plan.access.scope(forwarded)

    def local(self) -> bytes:
        """Return the answer from this gateway's store."""
        access, info_field = self.access, self._plan.info_field
        results, served, positions = self._plan.read(
            self._request, self._keys, self.requirement, self.scope, self._trim
        )
        access.note_read(positions.values())
        self.call.set_trailer(access.trailer(served, positions))
        return results if info_field is None else results + info_field.encode(access.read_info(served, positions))

    def partitions(self, served: ServedGeneration) -> Iterable[Partition]:
        """Return the partitions of the keys."""
        found: Iterable[Partition] = self._plan.by.by_partition(self._keys, served)
        return found

    async def remote(self, reason: NotServedHere) -> bytes:
        """Return the answer, of all sources that have keys of it."""
        plan, keys = self._plan, self._keys
        served, local, _ = self.access.view(self.partitions)
        indexes, is_anywhere = plan.by.by_partition(keys, served), plan.by.is_anywhere(keys, served)
        generation = generation_asked(plan.query, served, indexes, is_anywhere=is_anywhere)
        with unless_store_away(reason):
            try:
                return await self._gathered(served, local, indexes, generation)
            # Asked again for the known generation only: which is answerable as soon as any gateways have all of it.
            except GenerationsMixed:  # for hours, perhaps: gateways may stay apart
                return await self._gathered(served, local, indexes, served.generation)

    async def _gathered(
        self,
        served: ServedGeneration,
        local: Collection[Partition],
        indexes: Mapping[Partition, Sequence[int]],
        generation: int,
    ) -> bytes:
        """Return the answer, all of one generation."""
        query, access, call, requirement = self._plan.query, self.access, self.call, self.requirement
        router, may_wait = access.router, requirement is not None
        token = access.forward_token(generation)
        is_anywhere = self._plan.by.is_anywhere(self._keys, served)

        def indexes_of(partitions: Sequence[Partition]) -> list[int]:
            return sorted({index for partition in partitions for index in indexes[partition]})

        async def ask_local(partitions: Sequence[Partition]) -> _PartialResult:
            some = indexes_of(partitions)
            keys = [self._keys[index] for index in some]
            scope = Scope(served.generation, partitions if is_anywhere else None, "")
            attempt = partial(self._plan.read, self._request_for(some), keys, requirement, scope, self._trim)
            read = await local_result(attempt, requirement, call)
            return self._partial(router.directory.own_id, some, read.results, read.positions)

        async def ask(peer: Peer, partitions: Sequence[Partition]) -> _PartialResult:
            of_these = token._replace(partitions=tuple(partitions)) if is_anywhere else token
            return await ask_for(peer, indexes_of(partitions), of_these)

        async def ask_for(peer: Peer, some: Sequence[int], token: ForwardToken) -> _PartialResult:
            data = self._request_for(some).SerializeToString()
            left_s = call.time_left_s()
            try:
                answer = await router.forwarder.unary(peer, query.path, data, token, left_s, may_wait=may_wait)
            except PeerFailed as failed:
                if not failed.is_too_large or len(some) == 1:
                    raise
                # Rows that are too long to come together come in halves, of the same gateway: it is well.
                half, token = len(some) // 2, token._replace(generation=generation or served.generation)
                return _joined(await ask_for(peer, some[:half], token), await ask_for(peer, some[half:], token))
            return self._partial(peer.gateway_id, some, answer.message)

        results = await gather(
            access,
            indexes,
            ask,
            call,
            ask_local=ask_local,
            local=local,
            generation=generation,
            may_wait=may_wait,
        )
        return self._merge_sources(served, results)

    def _request_for(self, indexes: Sequence[int]) -> Any:
        """Return the request with some of its keys."""
        name = self._plan.keys_name
        request: Any = self._plan.query.request_class()
        request.CopyFrom(self._request)
        request.ClearField(name)
        keys = getattr(self._request, name)
        getattr(request, name).extend([keys[index] for index in indexes])
        return request

    def _partial(
        self,
        gateway_id: str,
        indexes: Sequence[int],
        response: bytes,
        positions: Mapping[Partition, Position] | None = None,
    ) -> _PartialResult:
        """Take a response apart; raise `PeerFailed` where it is none to what was asked."""
        query = self._plan.query
        results, infos = [], []
        results_number = query.results.number
        info_number = 0 if query.read_info is None else query.read_info.number
        try:
            for number, start, value, end in fields(response):
                if number == results_number:
                    results.append(response[start:end])
                elif number == info_number:
                    infos.append(response[value:end])
        except ValueError:
            results = []
        if len(results) != len(indexes):
            raise PeerFailed(Status(code=code_pb2.INTERNAL, message="an answer that is not to what was asked"))
        return _PartialResult(gateway_id, indexes, results, infos, positions or {})

    def _merge_sources(self, served: ServedGeneration, partial_results: Sequence[_PartialResult]) -> bytes:
        """Return the response, its results in the order of the keys."""
        results, found = [b""] * len(self._keys), set[int]()
        is_anywhere = self._plan.by.is_anywhere(self._keys, served)
        positions: dict[Partition, Position] = {}
        for each in partial_results:
            positions.update(each.positions)
            for index, result in zip(each.indexes, each.results, strict=True):
                # Where any partition may have a key, several are asked for it, and one has it.
                if not is_anywhere or not results[index] or self._plan.is_found(result):
                    results[index] = result
                if is_anywhere and self._plan.is_found(result):
                    if index in found:
                        self._plan.by.check_one()
                    found.add(index)
        self.call.set_trailer(several_trailer(frozenset(each.gateway_id for each in partial_results)))
        if self._plan.info_field is not None:
            parts = [[info for info in each.infos if info] for each in partial_results]
            read = self.access.merged_read(served, positions, [info for infos in parts for info in infos])
            if read.generation != served.generation:
                self._check_places(served, parts)
            results.append(self._plan.info_field.encode(self.access.signed_read_info(read)))
        return b"".join(results)

    def _check_places(self, served: ServedGeneration, parts: Iterable[Sequence[bytes]]) -> None:
        """Raise `GenerationsMixed` where parts with these infos have read a partition at several places.

        Of the generation that is served here each partition is asked for once, of another one maybe more often.
        """
        places: dict[Partition, Place] = {}
        for infos in parts:
            for partition, place in self.access.merged_read(served, {}, infos).read.places.items():
                if places.setdefault(partition, place) != place:
                    raise GenerationsMixed(self.access.table.name)


def _joined(first: _PartialResult, second: _PartialResult) -> _PartialResult:
    """Return two results of one gateway as one."""
    indexes, results = [*first.indexes, *second.indexes], [*first.results, *second.results]
    return first._replace(indexes=indexes, results=results, infos=[*first.infos, *second.infos])
