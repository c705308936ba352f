"""Get: the row of one key. The common read, answered at once, from one snapshot, without a task or a coroutine."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from google.rpc import code_pb2
from google.rpc.status_pb2 import Status
from typing_extensions import override

from tablegate.gateway.cluster.directory import Peer
from tablegate.gateway.cluster.scatter import PeerFailed
from tablegate.gateway.contract.catalogue import GetQuery
from tablegate.gateway.contract.indexes import Index
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.contract.wire import FieldEncoder, fields
from tablegate.gateway.query.call import Answer, Call, UnaryHandler
from tablegate.gateway.query.consistency import requirement_reader
from tablegate.gateway.query.errors import PartitionUnavailable, RowNotFound
from tablegate.gateway.query.forwarding import (
    NotServedHere,
    answer,
    answer_by_others,
    answer_fresh,
    forward_whole,
    gather_all,
    local_result,
    unless_store_away,
)
from tablegate.gateway.query.index_reads import IndexKey, IndexReader, index_key_reader, keys_by_partition
from tablegate.gateway.query.masks import mask_reader
from tablegate.gateway.query.requests import key_reader, parse
from tablegate.gateway.query.serving import Scope, ServedGeneration, TableAccess, several_trailer
from tablegate.gateway.stores.base import Position, Snapshot, StoreUnavailable

_NOT_FOUND = "ROW_NOT_FOUND"


def get_handler(query: GetQuery, access: TableAccess) -> UnaryHandler:
    """Return the handler of `query`."""
    if query.index is not None:
        return _index_get_handler(_IndexGetPlan(query, query.index, access))
    plan = _GetPlan(query, access)

    def handle(data: bytes, call: Call) -> Answer:
        read = GetRead(plan, data, call)
        # What `forwarding.answer` does, written out: a Get that is answered at once calls nothing of that module.
        if read.requirement is not None:
            return answer_fresh(read)
        try:
            return read.local()
        except (PartitionUnavailable, StoreUnavailable) as reason:
            return answer_by_others(read, reason)

    return handle


def _index_get_handler(plan: "_IndexGetPlan") -> UnaryHandler:
    def handle(data: bytes, call: Call) -> Answer:
        return answer(_IndexGetRead(plan, data, call))

    return handle


class _GetPlan:
    """A Get, compiled."""

    read_key: Callable[[Any], Any]

    def __init__(self, query: GetQuery, access: TableAccess, *, is_of_key: bool = True) -> None:
        self.query = query
        self.access = access
        self.request_class = query.request_class
        if is_of_key:
            self.read_key = key_reader([param.field for param in query.params], query.table.key)
        self.read_requirement = requirement_reader(query, access)
        self.options_name = None if query.read_options is None else query.read_options.name
        self.read_mask = mask_reader(query)
        self.mask_name = None if query.read_mask is None else query.read_mask.name
        self.row_field = FieldEncoder(query.row.number)
        self.info_field = None if query.read_info is None else FieldEncoder(query.read_info.number)
        self.forward_token = access.forward_token()


class _IndexGetPlan(_GetPlan):
    """A Get by a unique index, compiled."""

    def __init__(self, query: GetQuery, index: Index, access: TableAccess) -> None:
        super().__init__(query, access, is_of_key=False)
        self.read_key = index_key_reader([param.field for param in query.params], index, query.table)
        self.reader = IndexReader(index, access)


class GetRead:
    """A request, parsed."""

    __slots__ = ("access", "call", "data", "key", "plan", "requirement", "scope", "trim")

    def __init__(self, plan: _GetPlan, data: bytes, call: Call) -> None:
        """Parse a request; raise `InvalidField` or `ForeignForward`."""
        request = parse(plan.request_class, data)
        options_name = plan.options_name
        self.plan = plan
        self.access = plan.access
        self.data = data
        self.call = call
        self.key = plan.read_key(request)
        # Looked up here, as most requests have no options: the common read has two functions less to call.
        has_options = options_name is not None and request.HasField(options_name)
        self.requirement = plan.read_requirement(request) if has_options else None
        mask_name = plan.mask_name
        has_mask = mask_name is not None and request.HasField(mask_name)
        self.trim = plan.read_mask(request) if has_mask else None
        forwarded = call.forwarded
        self.scope = None if forwarded is None else plan.access.scope(forwarded)

    def local(self) -> bytes:
        """Return the answer from this gateway's store."""
        plan, access, key = self.plan, self.access, self.key
        with access.store.snapshot() as snapshot:
            served = access.served(snapshot)
            if self.scope is not None:
                self.scope.check(access.table.name, served.generation)
            if served.is_anywhere:
                return self._found_anywhere(snapshot, served)
            partition = access.partition_of(key, served.partition_count)
            position = access.live(snapshot, served, partition)
            if self.requirement is not None:
                self.requirement.check_keys(access, snapshot, served, partition, position, (key,))
            row = snapshot.get(served.store_id, partition, key)
        visible = access.visible
        if visible is not None and row is not None:
            row = visible.row(row)
        positions = {partition: position}
        access.note_age(position.as_of_ms)
        self.call.set_trailer(access.trailer(served, positions))
        if row is None:
            if not plan.query.missing_is_empty:
                raise RowNotFound(access.table.name, access.table.row.full_name)
            found = b""
        else:
            if self.trim is not None:
                row = self.trim(row)
            found = plan.row_field[len(row)] + row
        if plan.info_field is None:
            return found
        info = access.read_info(served, positions)
        return found + plan.info_field[len(info)] + info

    def _found_anywhere(self, snapshot: Snapshot, served: ServedGeneration) -> bytes:
        """Return the answer where any partition may have the key, or of those that another gateway asks for."""
        row, positions = self._read_anywhere(snapshot, served, self.partitions(served))
        self.access.note_read(positions.values())
        self.call.set_trailer(self.access.trailer(served, positions))
        return self._anywhere(row, self.access.read_info(served, positions))

    def _read_anywhere(
        self, snapshot: Snapshot, served: ServedGeneration, partitions: Sequence[Partition]
    ) -> tuple[bytes | None, Mapping[Partition, Position]]:
        """Return the row of the key, and what it was read from; None where none of these partitions has it.

        Raise `PartitionUnavailable` where one that may have it is not here.
        """
        access, key, requirement = self.access, self.key, self.requirement
        for partition in partitions:
            position = access.live_position(snapshot, served, partition)
            row = None if position is None else snapshot.get(served.store_id, partition, key)
            if row is not None and access.visible is not None:
                row = access.visible.row(row)  # one that is not seen is not found: nor does it say where it is
            if row is not None and position is not None:
                if requirement is not None:
                    requirement.check_keys(access, snapshot, served, partition, position, (key,))
                return row, {partition: position}
        positions = {partition: access.live(snapshot, served, partition) for partition in partitions}
        if requirement is not None:
            for partition, position in positions.items():
                requirement.check(access, served, partition, position)
        return None, positions

    def _anywhere(self, row: bytes | None, info: bytes) -> bytes:
        plan = self.plan
        if row is None and not plan.query.missing_is_empty:
            raise RowNotFound(self.access.table.name, self.access.table.row.full_name)
        if row is not None and self.trim is not None:
            row = self.trim(row)
        found = b"" if row is None else plan.row_field.encode(row)
        return found if plan.info_field is None else found + plan.info_field.encode(info)

    def partitions(self, served: ServedGeneration) -> Sequence[Partition]:
        """Return the key's partition, or all that may have it."""
        if served.is_anywhere and self.scope is not None and self.scope.partitions is not None:
            return self.scope.partitions
        return self.access.places_of(self.key, served.partition_count)

    async def remote(self, reason: NotServedHere) -> bytes:
        """Return the answer of another gateway, as it is; or of all that may have the key."""
        plan = self.plan
        if self.access.is_anywhere:
            return await self._gathered(self.access.view().served, reason)
        return await forward_whole(self, reason, plan.query.path, self.data, plan.forward_token)

    def _found_in(self, parts: Sequence["_Part"]) -> tuple[bytes | None, Sequence["_Part"]]:
        """Return the row that parts have, None for none, and those by which it is known."""
        found = [part for part in parts if part.row is not None]
        return (found[0].row, found[:1]) if found else (None, parts)

    async def _gathered(self, served: ServedGeneration, reason: NotServedHere) -> bytes:
        """Return the answer of those that have the partitions, some of which may be here."""
        access, call, plan = self.access, self.call, self.plan
        may_wait = self.requirement is not None

        def read_here(partitions: Sequence[Partition]) -> _Part:
            with access.store.snapshot() as snapshot:
                Scope(served.generation, None, "").check(access.table.name, access.served(snapshot).generation)
                row, positions = self._read_anywhere(snapshot, served, partitions)
            return _Part(access.router.directory.own_id, row, positions, ())

        async def ask_local(partitions: Sequence[Partition]) -> _Part:
            return await local_result(partial(read_here, partitions), self.requirement, call)

        async def ask(peer: Peer, partitions: Sequence[Partition]) -> _Part:
            token = access.forward_token(served.generation, partitions)
            path, left_s = plan.query.path, call.time_left_s()
            try:
                answer = await access.router.forwarder.unary(peer, path, self.data, token, left_s, may_wait=may_wait)
            except PeerFailed as failed:
                if failed.reason == _NOT_FOUND:
                    return _Part(peer.gateway_id, None, {}, ())
                raise
            return self._part(peer, answer.message)

        with unless_store_away(reason):
            parts = await gather_all(access, served, ask, call, ask_local=ask_local, may_wait=may_wait)
        row, used = self._found_in(parts)
        call.set_trailer(several_trailer(frozenset(part.gateway_id for part in parts)))
        if plan.info_field is None or (row is None and not plan.query.missing_is_empty):
            return self._anywhere(row, b"")
        positions = {partition: position for part in used for partition, position in part.positions.items()}
        infos = [info for part in used for info in part.infos]
        return self._anywhere(row, access.merged_read_info(served, positions, infos))

    def _part(self, peer: Peer, message: bytes) -> "_Part":
        """Return what another gateway has of the row; raise `PeerFailed` where it is no answer."""
        query, row, infos = self.plan.query, None, []
        try:
            for number, _, start, end in fields(message):
                if number == query.row.number:
                    row = message[start:end]
                elif query.read_info is not None and number == query.read_info.number:
                    infos.append(message[start:end])
        except ValueError:
            why = Status(code=code_pb2.INTERNAL, message="an answer that is not to what was asked")
            raise PeerFailed(why) from None
        return _Part(peer.gateway_id, row, {}, infos)


class _IndexGetRead(GetRead):
    """A request of a Get by a unique index, parsed. All partitions that may have the row are looked at.

    So two rows of one value are noticed, and the answer's token has where none was.
    """

    __slots__ = ()

    plan: _IndexGetPlan
    key: IndexKey

    def __init__(self, plan: _IndexGetPlan, data: bytes, call: Call) -> None:
        """Parse a request; raise `InvalidField`, `ForeignForward` or `NotAllowed`."""
        plan.reader.check_seen()
        super().__init__(plan, data, call)

    @override
    def local(self) -> bytes:
        access = self.access
        with access.store.snapshot() as snapshot:
            served = access.served(snapshot)
            if self.scope is not None:
                self.scope.check(access.table.name, served.generation)
            return self._found_anywhere(snapshot, served)

    @override
    def _read_anywhere(
        self, snapshot: Snapshot, served: ServedGeneration, partitions: Sequence[Partition]
    ) -> tuple[bytes | None, Mapping[Partition, Position]]:
        access, reader, values, requirement = self.access, self.plan.reader, self.key.values, self.requirement
        positions: dict[Partition, Position] = {}
        found: list[bytes] = []
        for partition in partitions:
            positions[partition] = position = access.live(snapshot, served, partition)
            if requirement is not None:
                requirement.check(access, served, partition, position)
            row = reader.row(snapshot, served, partition, values)
            if row is not None:
                found.append(row)
        if len(found) > 1:
            raise reader.not_unique()
        return found[0] if found else None, positions

    @override
    def partitions(self, served: ServedGeneration) -> Sequence[Partition]:
        if self.scope is not None and self.scope.partitions is not None:
            return self.scope.partitions
        return list(keys_by_partition([self.key], self.access, served))

    @override
    async def remote(self, reason: NotServedHere) -> bytes:
        served = self.access.view().served
        if len(self.partitions(served)) == 1:
            return await forward_whole(self, reason, self.plan.query.path, self.data, self.plan.forward_token)
        return await self._gathered(served, reason)

    @override
    def _found_in(self, parts: Sequence["_Part"]) -> tuple[bytes | None, Sequence["_Part"]]:
        found = [part.row for part in parts if part.row is not None]
        if len(found) > 1:
            raise self.plan.reader.not_unique()
        return found[0] if found else None, parts


class _Part(NamedTuple):
    """What a gateway has of a row that may be in any partition; `positions` are those of this gateway."""

    gateway_id: str
    row: bytes | None
    positions: Mapping[Partition, Position]
    infos: Sequence[bytes]
