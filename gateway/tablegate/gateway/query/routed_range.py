"""Range, from this gateway's store and from those of others."""

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import NamedTuple

from google.protobuf.message import Message
from google.rpc import code_pb2
from google.rpc.status_pb2 import Status
from tablegate.gateway.cluster.directory import Peer
from tablegate.gateway.cluster.forward_token import ForwardToken
from tablegate.gateway.cluster.forwarding import PeerFailed
from tablegate.gateway.contract.catalogue import RangeQuery
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.call import Call, UnaryHandler
from tablegate.gateway.query.consistency import ConsistencyRequirement
from tablegate.gateway.query.forwarding import Missing, Whole, here_or, part_here, router_instead, unless_away
from tablegate.gateway.query.ranges import KEY, Page, RangePlan, Row, Run
from tablegate.gateway.query.requests import parse
from tablegate.gateway.query.router import Router, Scope
from tablegate.gateway.query.serving import ServedGeneration, TableAccess, several_trailer
from tablegate.gateway.query.wire import fields


def range_handler(query: RangeQuery, access: TableAccess) -> UnaryHandler:
    """Return the handler of `query`."""
    plan = RangePlan(query, access)
    whole, routed = Whole(query, access), _RoutedRange(plan)

    def handle(data: bytes, call: Call) -> bytes | Awaitable[bytes]:
        request = parse(query.request_class, data)
        page = plan.page(request)
        wish = plan.read_wish(request)
        scope = access.scope(call)

        asked = partial(plan.partitions, page)

        def instead(missing: Missing) -> Awaitable[bytes]:
            if page.partition_prefix is not None:
                return whole.answer(missing, asked, data, call, scope, may_wait=wish is not None)
            return routed.answer(router_instead(access, missing, scope), missing, request, data, page, wish, call)

        attempt = partial(plan.answer, request, page, wish, call, scope)
        return here_or(instead, attempt, access, asked, wish, call, scope)

    return handle


class _Part(NamedTuple):
    """The rows of a page that some partitions have, in order. `has_more`: they have others, behind the last one."""

    gateway_id: str
    rows: list[Row]
    has_more: bool
    info: bytes
    run: Run | None  # where this gateway read them


class _RoutedRange:
    """A Range over all partitions, of which this gateway does not have each: a page of each gateway, merged."""

    def __init__(self, plan: RangePlan) -> None:
        self._plan = plan
        self._path = plan.query.path

    async def answer(
        self,
        router: Router,
        missing: Missing,
        request: Message,
        data: bytes,
        page: Page,
        wish: ConsistencyRequirement | None,
        call: Call,
    ) -> bytes:
        """Return the response; raise a `QueryError`, or `missing` where the store is away for others as well."""
        plan, access = self._plan, self._plan.access
        name, may_wait = access.table.name, wish is not None
        life, here, _ = access.held(lambda life: life.partitions)

        async def ask(peer: Peer, partitions: Sequence[Partition]) -> _Part:
            if peer.gateway_id == router.directory.own_id:
                scope = Scope(life.generation, partitions, "")
                run = await part_here(partial(plan.run, request, page, wish, scope), wish, call)
                return _Part(peer.gateway_id, run.rows, len(run.rows) > page.size, b"", run)
            mark = ForwardToken(name, life.generation, tuple(partitions))
            left_s = call.time_left_s()
            answer = await router.forwarder.unary(peer, self._path, data, mark, left_s, may_wait=may_wait)
            return self._part(peer, answer.message)

        with unless_away(missing):
            parts = await router.answers(
                name, life.partitions, ask, call, generation=life.generation, here=here, may_wait=may_wait
            )
            call.set_trailer(several_trailer(frozenset(part.gateway_id for part in parts)))
            return self._merged(request, page, life, parts)

    def _part(self, peer: Peer, response: bytes) -> _Part:
        """Take a response apart; raise `PeerFailed` where it is none."""
        query, key_of_row = self._plan.query, self._plan.access.key_of_row
        info_number = 0 if query.read_info is None else query.read_info.number
        rows: list[Row] = []
        info, has_more = b"", False
        try:
            for number, _, start, end in fields(response):
                if number == query.rows.number:
                    row = response[start:end]
                    rows.append((key_of_row(row), row))
                elif number == query.next_page_token.number:
                    has_more = end > start
                elif number == info_number:
                    info = response[start:end]
        except ValueError:
            raise PeerFailed(Status(code=code_pb2.INTERNAL, message="an answer that is no page")) from None
        return _Part(peer.gateway_id, rows, has_more, info, None)

    def _merged(self, request: Message, page: Page, life: ServedGeneration, parts: Sequence[_Part]) -> bytes:
        """Return the response with the first rows of all parts: up to where the first part that has more ends."""
        plan = self._plan
        rows = sorted((row for part in parts for row in part.rows), key=KEY, reverse=page.descending)
        ends = [part.rows[-1][0] for part in parts if part.has_more]
        if ends:
            end = max(ends) if page.descending else min(ends)
            rows = [row for row in rows if (row[0] >= end if page.descending else row[0] <= end)]
        info = b""
        if plan.query.read_info is not None:
            run = next((part.run for part in parts if part.run is not None), None)
            infos = [part.info for part in parts if part.info]
            info = plan.access.merged_read_info(life, {} if run is None else run.positions, infos)
        return plan.response(request, page, life, rows, has_more=bool(ends), info=info)
