"""Unary answers that take waiting: from this gateway's store once it is fresh, else from other gateways.

A unary read is one object with two ways to answer: `local`, a plain function over one snapshot, and `remote`, a
coroutine that asks others. Almost every read ends in `local` at once, and then nothing here is called. Otherwise:

1. `local` raised that a partition is not served here, or that the store is away: `remote` is awaited, if others may be
   asked at all. A gateway that stands alone, and one that answers for another gateway, asks nobody: the error stands.
2. The request asks for freshness (`requirement`), and the store has not got it: `local` is tried again at each change,
   until it passes or the wait is over (`when_fresh`). Others are asked at once where a partition is not here anyway.
3. No gateway has a partition: gateways do not all switch to a new generation of a table in the same moment. So both
   are tried again for a moment, and for as long as gateways switch, but for no more than half of the client's time.

A walk over pages may have read more elsewhere than this store has. It waits here for a moment only (`WALK_WAIT_S`);
then others are asked, as one that gave a page before has it.

There is one coroutine for all of it (`answer_later`), made only when there is something to wait for.

Decision: docs/decisions/0033-a-forward-is-the-same-call.md
Decision: docs/decisions/0042-retry-between-generations.md
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from google.rpc import code_pb2

from tablegate.gateway.cluster.directory import Peer
from tablegate.gateway.cluster.forward_token import ForwardToken
from tablegate.gateway.cluster.scatter import ANSWER_BYTES_MAX, Ask, AskLocal, Forwarded, NoReplica, PeerFailed
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.call import Answer, Call
from tablegate.gateway.query.consistency import ConsistencyRequirement, when_fresh
from tablegate.gateway.query.errors import (
    AnswerTooLarge,
    DeadlineExceeded,
    IndexNotBuilt,
    NotCaughtUp,
    PartitionUnavailable,
    PeerError,
    QueryError,
    StoreAway,
    status_of,
)
from tablegate.gateway.query.serving import Scope, ServedGeneration, TableAccess, error_for_store
from tablegate.gateway.stores.base import StoreUnavailable

WALK_WAIT_S = 0.25  # a store that follows has by then what another had
RETRY_S = 0.1
HEARD_S = 0.3  # in which this gateway hears that others have switched
TIME_PART = 0.5  # of what the call has left: its client may want to try it elsewhere

Result = TypeVar("Result")
NotServedHere = PartitionUnavailable | StoreUnavailable | NotCaughtUp
"""Why this gateway cannot answer."""


class ForwardedRead(Protocol):
    """A unary request, parsed, that others may answer."""

    access: TableAccess
    call: Call
    requirement: ConsistencyRequirement | None
    scope: Scope | None

    def partitions(self, served: ServedGeneration) -> Iterable[Partition]:
        """Return the partitions that are read."""

    async def remote(self, reason: NotServedHere) -> bytes:
        """Return the answer with the help of others; raise a `QueryError`, or `reason` where nobody can answer."""


class UnaryRead(ForwardedRead, Protocol):
    """One that is answered from one snapshot."""

    def local(self) -> bytes:
        """Return the answer from one snapshot of this gateway's store; raise a `QueryError` or `StoreUnavailable`.

        `PartitionUnavailable` says that another gateway may answer, `NotCaughtUp` that this one may later.
        """


def answer(read: UnaryRead) -> Answer:
    """Return the answer to a read: from this gateway's store at once, if it can be."""
    if read.requirement is not None:
        return answer_fresh(read)
    try:
        return read.local()
    except (PartitionUnavailable, StoreUnavailable) as reason:
        return answer_by_others(read, reason)


def answer_fresh(read: UnaryRead) -> Answer:
    """Return the answer to a read with a requirement: at once where the store is fresh enough."""
    requirement = read.requirement
    assert requirement is not None
    try:
        # The store is mostly fresh enough. Then the answer costs no coroutine, as for a read without a requirement.
        if not requirement.asks_first:
            try:
                return read.local()
            except NotCaughtUp:
                pass
        if _may_ask_others(read):
            read.access.check_served_here(read.partitions)
    except (PartitionUnavailable, StoreUnavailable) as reason:
        return answer_by_others(read, reason)
    return answer_later(read, partial(_local, read))


def answer_by_others(read: UnaryRead, reason: NotServedHere) -> Answer:
    """Return how others answer what this gateway cannot; raise why where nobody is to be asked."""
    if not _may_ask_others(read) or _is_of_table(reason):
        raise _as_query_error(reason)
    return answer_later(read, partial(_local, read), reason)


async def answer_later(
    read: ForwardedRead, local: Callable[[], Awaitable[bytes]], reason: NotServedHere | None = None
) -> bytes:
    """Return the answer: of this gateway, by `local`; else, as for a `reason` it is not there, of others."""
    may_ask_others, end_s = _may_ask_others(read), None
    while True:
        try:
            if reason is None:
                try:
                    return await local()
                except (PartitionUnavailable, StoreUnavailable) as error:
                    if not may_ask_others or _is_of_table(error):
                        raise
                    reason = error
                except NotCaughtUp as error:
                    if not _may_walk_on_by_others(read):
                        raise
                    reason = error
            return await read.remote(reason)
        except StoreUnavailable as away:
            # Only here does a store's error become a client's: above, it still decides who else is asked.
            raise _as_query_error(away) from away
        except PartitionUnavailable:
            if isinstance(reason, NotCaughtUp):
                raise reason from None
            left_s = read.call.time_left_s()
            if not may_ask_others:
                raise
            now_s = time.monotonic()
            if end_s is None:
                begin_s = now_s
                # Never more than half of the time that is left, so that a client may still try another gateway
                # (decision 42).
                retries_s = read.access.limits.retries_s
                end_s = now_s + (retries_s if left_s is None else min(retries_s, left_s * TIME_PART))
            # The first retry is for whoever has the time. Later ones are for a switch, which is heard of in a moment.
            if now_s + RETRY_S > (end_s if now_s == begin_s else heard_by_s(read.access, begin_s, end_s)):
                raise
        reason = None
        await asyncio.sleep(RETRY_S)


def heard_by_s(access: TableAccess, begin_s: float, end_s: float) -> float:
    """Return when it is heard that somebody has what nobody had at `begin_s`: `end_s` only while gateways switch."""
    is_switching = access.router.directory.is_switching(access.table.name)
    return end_s if is_switching else min(end_s, begin_s + HEARD_S)


async def _local(read: UnaryRead) -> bytes:
    if read.requirement is None:
        return read.local()
    if _may_ask_others(read):
        # What is not here is not waited for.
        read.access.check_served_here(read.partitions)
    requirement = read.requirement
    if _may_walk_on_by_others(read):
        wait_s = WALK_WAIT_S if requirement.max_wait_s is None else min(WALK_WAIT_S, requirement.max_wait_s)
        requirement = replace(requirement, max_wait_s=wait_s)
    return await when_fresh(read.local, requirement, read.call)


def _may_walk_on_by_others(read: ForwardedRead) -> bool:
    """Return whether it goes on with a walk, and each of its partitions is on another gateway as well."""
    if read.requirement is None or not read.requirement.is_walk or not _may_ask_others(read):
        return False
    access = read.access
    served = access.view().served
    candidates = partial(access.router.candidates, access.table.name, generation=served.generation)
    return all(candidates(partition) for partition in read.partitions(served))


def _may_ask_others(read: ForwardedRead) -> bool:
    return read.scope is None and read.access.router.is_clustered


def _is_of_table(reason: NotServedHere) -> bool:
    """Return whether every gateway says the same: no partition, but the table has no manifest or another generation."""
    return isinstance(reason, PartitionUnavailable) and reason.partition is None


def _as_query_error(reason: NotServedHere) -> Exception:
    return error_for_store(reason) if isinstance(reason, StoreUnavailable) else reason


@contextmanager
def unless_store_away(reason: NotServedHere) -> Iterator[None]:
    """Where others cannot answer either, raise that the store is away, or an index is not whole, if that was why."""
    try:
        yield
    except PartitionUnavailable:
        if isinstance(reason, StoreUnavailable | IndexNotBuilt):
            raise reason from None
        raise


async def local_result(attempt: Callable[[], Result], requirement: ConsistencyRequirement | None, call: Call) -> Result:
    """Return this gateway's part of an answer, once it is fresh; raise `PeerFailed` where others are to be asked."""
    with failing_as_peer():
        return attempt() if requirement is None else await when_fresh(attempt, requirement, call)


@contextmanager
def failing_as_peer() -> Iterator[None]:
    """Raise `PeerFailed` where this gateway cannot give its part of an answer, so that others are asked."""
    try:
        yield
    except (PartitionUnavailable, NotCaughtUp) as reason:
        raise PeerFailed(status_of(reason)) from None
    except StoreUnavailable:
        # As a peer that failed, so that this gateway is one source among others: where it cannot, a replica is asked.
        raise PeerFailed(status_of(StoreAway())) from None


async def forward_whole(
    read: ForwardedRead, reason: NotServedHere, path: str, data: bytes, token: ForwardToken, *, is_long: bool = False
) -> bytes:
    """Return what another gateway answers to the whole request, which is about one partition.

    `is_long`: the answer takes its time, whoever gives it. Raise a `QueryError`, or `reason` where the store is away
    for others as well.
    """
    access, call = read.access, read.call
    router, may_wait = access.router, is_long or read.requirement is not None
    if isinstance(reason, PartitionUnavailable):
        partition = reason.partition
        assert partition is not None
    elif isinstance(reason, NotCaughtUp):
        [partition] = read.partitions(access.view().served)
    else:
        # The store is away, so its own word for the partition count is missing; the last known generation has to do.
        [partition] = read.partitions(access.last_served(reason))

    async def ask(peer: Peer, _: Sequence[Partition]) -> Forwarded:
        return await router.forwarder.unary(peer, path, data, token, call.time_left_s(), may_wait=may_wait)

    with unless_store_away(reason):
        [answer] = await gather(access, [partition], ask, call, may_wait=may_wait)
    call.set_trailer(answer.trailer)
    return answer.message


async def gather(
    access: TableAccess,
    partitions: Collection[Partition],
    ask: Ask[Result],
    call: Call,
    *,
    ask_local: AskLocal[Result] | None = None,
    local: Collection[Partition] = (),
    generation: int = 0,
    may_wait: bool = False,
) -> list[Result]:
    """Return partial results that cover `partitions`; raise a `QueryError`. Otherwise as `Router.gather`."""
    name = access.table.name
    try:
        return await access.router.gather(
            name, partitions, ask, ask_local=ask_local, local=local, generation=generation, may_wait=may_wait
        )
    except PeerFailed as failed:
        call.set_trailer(failed.trailer)
        raise error_for(failed, name) from None
    except NoReplica as error:
        raise PartitionUnavailable(name, error.partition, "no gateway that has it answers") from None


async def gather_all(
    access: TableAccess,
    served: ServedGeneration,
    ask: Ask[Result],
    call: Call,
    *,
    ask_local: AskLocal[Result],
    may_wait: bool,
) -> list[Result]:
    """Return, as `gather` does, partial results that cover all partitions, of which those served here are local."""
    return await gather(
        access,
        served.partitions,
        ask,
        call,
        ask_local=ask_local,
        local=access.view(lambda _: served.partitions).partitions,
        generation=served.generation,
        may_wait=may_wait,
    )


def error_for(failed: PeerFailed, table: str) -> QueryError:
    """Return the error that the client gets for an answer that another gateway did not give."""
    if failed.reason:
        return PeerError(failed.status)
    if failed.status.code == code_pb2.DEADLINE_EXCEEDED:
        return DeadlineExceeded()
    if failed.is_too_large:
        return AnswerTooLarge(ANSWER_BYTES_MAX)
    return PartitionUnavailable(table, None, "the gateway that has it does not answer")
