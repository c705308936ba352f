"""BatchGet over several gateways: one call to each that is needed; the results in the order asked."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from google.protobuf.message import Message
from google.rpc import code_pb2
from google.rpc.status_pb2 import Status
from tablegate.gateway.cluster.directory import Peer
from tablegate.gateway.cluster.forward_token import ForwardToken
from tablegate.gateway.cluster.forwarding import PeerFailed
from tablegate.gateway.contract.catalogue import BatchGetQuery
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.call import Call
from tablegate.gateway.query.consistency import ConsistencyRequirement
from tablegate.gateway.query.errors import GenerationsMixed
from tablegate.gateway.query.forwarding import Missing, part_here, unless_away
from tablegate.gateway.query.router import Router, Scope
from tablegate.gateway.query.serving import ServedGeneration, TableAccess, several_trailer
from tablegate.gateway.query.wire import Heads, fields
from tablegate.gateway.stores.base import Position


class Read(NamedTuple):
    """The results of some keys, as they are in a response; and what this gateway read them from."""

    results: bytes
    life: ServedGeneration
    positions: Mapping[Partition, Position]


ReadHere = Callable[[Message, list[bytes], ConsistencyRequirement | None, Scope | None], Read]
"""From a request and its keys to what this gateway has of them; raises `PartitionUnavailable`."""


class _Part(NamedTuple):
    """Some of the results, and which places of the request they are for."""

    gateway_id: str
    places: Sequence[int]
    results: Sequence[bytes]
    info: bytes
    positions: Mapping[Partition, Position]  # where this gateway read them


def generation_asked(query: BatchGetQuery, life: ServedGeneration, partitions: Collection[Partition]) -> int:
    """Return which generation parts have to be of, so that none are put together that are of several; 0: any one.

    Read infos tell afterwards whether parts agree. Without them only what is known here can be asked for.
    """
    return 0 if query.read_info is not None or len(partitions) == 1 else life.generation


class RoutedBatch:
    """A BatchGet, compiled, for keys that this gateway does not all have."""

    def __init__(self, query: BatchGetQuery, access: TableAccess, read: ReadHere) -> None:
        self._query = query
        self._access = access
        self._read = read
        self._info_heads = None if query.read_info is None else Heads(query.read_info.number)

    async def answer(
        self,
        router: Router,
        missing: Missing,
        request: Message,
        keys: list[bytes],
        wish: ConsistencyRequirement | None,
        call: Call,
    ) -> bytes:
        """Return the response; raise a `QueryError`, or `missing` where the store is away for others as well."""
        access, name = self._access, self._query.table.name
        life, here, _ = access.held(partial(access.places, keys))
        places = access.places(keys, life)

        without_keys = self._query.request_class()
        without_keys.CopyFrom(request)
        without_keys.ClearField(self._query.keys.name)

        async def ask(mark: ForwardToken, peer: Peer, partitions: Sequence[Partition]) -> _Part:
            mine = sorted(place for partition in partitions for place in places[partition])
            asked = self._query.request_class()
            asked.CopyFrom(without_keys)
            all_keys = getattr(request, self._query.keys.name)
            getattr(asked, self._query.keys.name).extend([all_keys[place] for place in mine])
            if peer.gateway_id == router.directory.own_id:
                some_keys = [keys[place] for place in mine]
                scope = Scope(life.generation, None, "")
                read = await part_here(partial(self._read, asked, some_keys, wish, scope), wish, call)
                return self._part(peer, mine, read.results, read.positions)
            data, left_s, may_wait = asked.SerializeToString(), call.time_left_s(), wish is not None
            answer = await router.forwarder.unary(peer, self._query.path, data, mark, left_s, may_wait=may_wait)
            return self._part(peer, mine, answer.message)

        async def merged(generation: int) -> bytes:
            parts = await router.answers(
                name,
                places,
                partial(ask, ForwardToken(name, generation)),
                call,
                generation=generation,
                here=here,
                may_wait=wish is not None,
            )
            return self._merged(life, parts, len(keys), call)

        with unless_away(missing):
            try:
                return await merged(generation_asked(self._query, life, places))
            except GenerationsMixed:  # for hours, perhaps: gateways may stay apart
                return await merged(life.generation)

    def _part(
        self, peer: Peer, places: Sequence[int], response: bytes, positions: Mapping[Partition, Position] | None = None
    ) -> _Part:
        """Take a response apart; raise `PeerFailed` where it is none to what was asked."""
        results, info = [], b""
        results_number = self._query.results.number
        info_number = 0 if self._query.read_info is None else self._query.read_info.number
        try:
            for number, start, value, end in fields(response):
                if number == results_number:
                    results.append(response[start:end])
                elif number == info_number:
                    info = response[value:end]
        except ValueError:
            results = []
        if len(results) != len(places):
            raise PeerFailed(Status(code=code_pb2.INTERNAL, message="an answer that is not to what was asked"))
        return _Part(peer.gateway_id, places, results, info, positions or {})

    def _merged(self, life: ServedGeneration, parts: Sequence[_Part], count: int, call: Call) -> bytes:
        results = [b""] * count
        positions: dict[Partition, Position] = {}
        for part in parts:
            positions.update(part.positions)
            for place, result in zip(part.places, part.results, strict=True):
                results[place] = result
        call.set_trailer(several_trailer(frozenset(part.gateway_id for part in parts)))
        if self._info_heads is not None:
            infos = [part.info for part in parts if part.info]
            results.append(self._info_heads.embed(self._access.merged_read_info(life, positions, infos)))
        return b"".join(results)
