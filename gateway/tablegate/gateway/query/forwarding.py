"""Answers that this gateway gives where it can, and others where it has not got the partitions, or no store."""

from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from tablegate.gateway.cluster.directory import Peer
from tablegate.gateway.cluster.forward_token import ForwardToken
from tablegate.gateway.cluster.forwarding import Forwarded, PeerFailed
from tablegate.gateway.contract.catalogue import Query
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.call import Call, close_unawaited
from tablegate.gateway.query.consistency import ConsistencyRequirement, when_fresh
from tablegate.gateway.query.errors import PartitionUnavailable, StoreAway, status_of
from tablegate.gateway.query.router import Router, Scope
from tablegate.gateway.query.serving import ServedGeneration, TableAccess
from tablegate.gateway.stores.base import StoreUnavailable

Answer = TypeVar("Answer")
PartitionsOf = Callable[[ServedGeneration], Iterable[Partition]]
"""From a table's life to the partitions that are asked."""
Missing = PartitionUnavailable | StoreUnavailable
"""Why this gateway cannot answer."""
Instead = Callable[[Missing], Awaitable[bytes]]
"""From why this gateway cannot answer to the answer of others; raises that where none is to be asked."""


def here_or(
    instead: Instead,
    attempt: Callable[[], bytes],
    access: TableAccess,
    asked: PartitionsOf,
    wish: ConsistencyRequirement | None,
    call: Call,
    scope: Scope | None,
) -> bytes | Awaitable[bytes]:
    """Return what `attempt` returns once it is fresh; what others say where a partition is not here, or goes away."""
    if wish is None:
        try:
            return attempt()
        except (PartitionUnavailable, StoreUnavailable) as missing:
            return instead(missing)
    if access.router is None or scope is not None:
        return when_fresh(attempt, wish, call)
    try:
        access.check_held(asked)
        answer = when_fresh(attempt, wish, call)
    except (PartitionUnavailable, StoreUnavailable) as missing:
        return instead(missing)
    return answer if isinstance(answer, bytes) else _HereOr(answer, instead)


def router_instead(access: TableAccess, missing: Missing, scope: Scope | None) -> Router:
    """Return how others are asked for what is missing here; raise `missing` where none is to be asked."""
    router = access.router
    if router is None or scope is not None:
        raise missing
    if isinstance(missing, PartitionUnavailable) and missing.partition is None:
        raise missing
    return router


@contextmanager
def unless_away(missing: Missing) -> Iterator[None]:
    """Where others cannot answer either, raise that the store is away, if it was for that that they were asked."""
    try:
        yield
    except PartitionUnavailable:
        if isinstance(missing, StoreUnavailable):
            raise missing from None
        raise


class _HereOr(Awaitable[bytes]):
    """An answer to wait for, and what is asked where it is none. Closed before anybody waited, it closes the answer."""

    def __init__(self, answer: Awaitable[bytes], instead: Instead) -> None:
        self._answer = answer
        self._instead = instead

    def __await__(self) -> Generator[Any, Any, bytes]:
        try:
            return (yield from self._answer.__await__())
        except (PartitionUnavailable, StoreUnavailable) as missing:
            answer = self._instead(missing)
        return (yield from answer.__await__())

    def close(self) -> None:
        close_unawaited(self._answer)


async def part_here(attempt: Callable[[], Answer], wish: ConsistencyRequirement | None, call: Call) -> Answer:
    """Return this gateway's part of an answer, once it is fresh; raise `PeerFailed` where others are to be asked."""
    try:
        answer = attempt() if wish is None else when_fresh(attempt, wish, call)
        return await answer if isinstance(answer, Awaitable) else answer
    except PartitionUnavailable as missing:
        raise PeerFailed(status_of(missing)) from None
    except StoreUnavailable:
        raise PeerFailed(status_of(StoreAway())) from None


class Whole:
    """Asks another gateway for the whole answer to a request about one partition."""

    def __init__(self, query: Query, access: TableAccess) -> None:
        self._path = query.path
        self._access = access
        self._mark = ForwardToken(query.table.name)

    def answer(
        self, missing: Missing, asked: PartitionsOf, data: bytes, call: Call, scope: Scope | None, *, may_wait: bool
    ) -> Awaitable[bytes]:
        """Return the answer of another gateway, `asked` being the partition; raise `missing` where none is asked."""
        router = router_instead(self._access, missing, scope)
        if isinstance(missing, PartitionUnavailable):
            partition = missing.partition
            assert partition is not None
        else:
            [partition] = asked(self._access.last_life(missing))
        return self._asked(router, missing, partition, data, call, may_wait)

    async def _asked(
        self, router: Router, missing: Missing, partition: Partition, data: bytes, call: Call, may_wait: bool
    ) -> bytes:
        async def ask(peer: Peer, _: Sequence[Partition]) -> Forwarded:
            left_s = call.time_left_s()
            return await router.forwarder.unary(peer, self._path, data, self._mark, left_s, may_wait=may_wait)

        with unless_away(missing):
            [answer] = await router.answers(self._mark.table, [partition], ask, call, may_wait=may_wait)
        call.set_trailer(answer.trailer)
        return answer.message
