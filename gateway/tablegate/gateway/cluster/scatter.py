"""Asking other gateways: one for an answer, or the few that between them have all partitions of one.

How it works:

1. Who may be asked for a partition is ranked by the directory: its owner, then the standbys. A gateway that did not
   answer lately is asked last (`is_cooling`).
2. A question about many partitions becomes as few requests as can be (`assign_requests`): this gateway's own store
   first, then whoever has most of what is left. The local store is one source among the others.
3. A gateway that takes longer than it usually does is not waited for alone: the next replica is asked as well, and
   whoever answers first counts (a hedged request; Dean and Barroso, "The Tail at Scale", CACM 2013). Second requests
   are a share of all requests, so that a slow cluster does not get twice the load.
4. A gateway that fails in a way in which another may do better (`another_may_answer`) is left out, and its partitions
   are assigned anew. Any other error is the answer. So is that a replica is behind, where no other one is fresher. One
   that refuses our forward token has another clock or other keys than we have: the next may not. Only where all that
   can be asked refuse it, that is the answer.

Debt: the gateway that is asked for a whole run of partitions fails or succeeds as one; there is no partial result.

Decision: docs/decisions/0053-alone-is-a-cluster-of-one.md
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from google.rpc import code_pb2
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from tablegate.gateway.cluster.directory import Directory, Peer
from tablegate.gateway.cluster.forward_token import ForwardToken
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.stores.base import Snapshot
from tablegate.internal.v1.store_pb2 import TableState

ANSWER_BYTES_MAX = 16 * 1024 * 1024  # a batch of long rows; a longer one is asked for in parts
COOLING_S = 1.0  # a peer that was not there is asked last for so long
HEDGE_MIN_S = 0.01
HEDGE_MAX_S = 0.25
HEDGE_TIMES = 4  # as long as the peer takes in the mean: then the next replica is asked as well
HEDGES_SPARE = 100  # second calls beyond the share of all: those of a moment in which a gateway hangs
HEDGES_SHARE = 0.1  # of all calls: where every gateway is slow, twice the calls would make it worse
FIRST_MEAN_S = 0.025  # of a peer that was not asked yet: its connection has to be made
MEAN_WEIGHT = 0.1  # of the newest answer in the mean

_DOMAIN = "tablegate"
_BEHIND = "NOT_CAUGHT_UP"
_INDEX_NOT_BUILT = "INDEX_NOT_BUILT"
# An error without a reason of ours comes from the network or a proxy on the way, so another gateway may well answer.
_TOKEN_REFUSED = "FOREIGN_FORWARD"
_ANOTHER_MAY_ANSWER = frozenset(
    {"", "PARTITION_UNAVAILABLE", "STORE_UNAVAILABLE", "SHUTTING_DOWN", _TOKEN_REFUSED, _BEHIND, _INDEX_NOT_BUILT}
)
_IS_THERE = frozenset({"PARTITION_UNAVAILABLE", _BEHIND, _INDEX_NOT_BUILT})  # an answer of a gateway that is well
_ANOTHER_MAY_CONTINUE = frozenset({"OVERLOADED", "TABLE_REBUILT"})  # too: not all switch generations at once

PartialResult = TypeVar("PartialResult")
Ask = Callable[[Peer, Sequence[Partition]], Coroutine[Any, Any, PartialResult]]
"""Asks a gateway, which may be this one, for its partial result; raises `PeerFailed`."""
AskLocal = Callable[[Sequence[Partition]], Coroutine[Any, Any, PartialResult]]
"""Reads some partitions from this gateway's own store; raises `PeerFailed` where another gateway may do better."""
Group = tuple[Peer, list[Partition]]
"""A gateway, and what it is asked for."""

Fields = tuple[tuple[bytes, bytes], ...]
"""Names, lower case, and values."""


class Forwarded(NamedTuple):
    """An answer: the response's bytes, and the trailer's fields that are ours."""

    message: bytes
    trailer: Fields


class PeerFailed(Exception):
    """A gateway answered with an error, or not at all. `status` is as it came, with all details.

    `reason` is that of its ErrorInfo in our domain, such as "PARTITION_UNAVAILABLE"; "" where there is none: then it
    was no gateway that spoke, but the network. `another_may_answer`: another replica may. `trailer`: as in `Forwarded`.
    `is_too_large`: the answer was there, and is longer than this gateway receives.
    """

    def __init__(self, status: Status, trailer: Fields = ()) -> None:
        super().__init__(status.message)
        self.status = status
        self.trailer = trailer
        self.reason = _reason_of(status)
        # gRPC's own word for a message beyond its limit. Every replica has the same rows, so none has a shorter answer.
        self.is_too_large = not self.reason and status.code == code_pb2.RESOURCE_EXHAUSTED
        is_final = self.is_too_large or status.code == code_pb2.DEADLINE_EXCEEDED
        self.another_may_answer = self.reason in _ANOTHER_MAY_ANSWER and not is_final

    @property
    def another_may_continue(self) -> bool:
        """Return whether another replica may go on with a stream."""
        return self.another_may_answer or self.reason in _ANOTHER_MAY_CONTINUE

    @property
    def is_away(self) -> bool:
        """Return whether the gateway is not there, for any partition."""
        return self.another_may_answer and self.reason not in _IS_THERE

    @property
    def is_behind(self) -> bool:
        """Return whether the gateway has the partition, but not as fresh as is asked for, or not its index yet."""
        return self.reason in (_BEHIND, _INDEX_NOT_BUILT)

    @property
    def is_token_refused(self) -> bool:
        """Return whether the gateway did not believe that a gateway of its cluster asks."""
        return self.reason == _TOKEN_REFUSED


@dataclass(slots=True)
class _Known:
    """What is known of a peer. `mean_s`: how long it takes to answer."""

    mean_s: float = FIRST_MEAN_S
    cool_until_s: float = 0.0


class Forwarder:
    """Calls to other gateways, in the event loop that runs. `sign` makes the text of a forward token."""

    def __init__(self, sign: Callable[[ForwardToken], str]) -> None:
        self.sign = sign
        self._known: dict[Peer, _Known] = {}
        self._hedges_left = float(HEDGES_SPARE)

    async def unary(
        self,
        peer: Peer,
        path: str,
        data: bytes,
        token: ForwardToken,
        time_left_s: float | None,
        *,
        may_wait: bool = False,
    ) -> Forwarded:
        """Return what the peer answers; raise `PeerFailed`. `may_wait`: its request asks for freshness."""
        raise NotImplementedError

    def stream(
        self, peer: Peer, path: str, data: bytes, token: ForwardToken, time_left_s: float | None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the messages of the peer; raise `PeerFailed`. Close it (`aclosing`) to cancel the call.

        It takes a message from the network when it is asked for one: who reads slowly makes the peer wait.
        """
        raise NotImplementedError

    def keep(self, peers: Iterable[Peer]) -> None:
        """Forget all peers but these, and close what is open to others."""
        peers = set(peers)
        for peer in [peer for peer in self._known if peer not in peers]:
            del self._known[peer]

    async def close(self) -> None:
        """Close what is open."""
        self.keep(())

    def answered(self, peer: Peer, took_s: float | None) -> None:
        """Record that a peer answered, and how long it took; None where it may have had to wait for something."""
        # Each answer earns a share of a hedge. So hedges cannot double the load of a cluster that is slow as a whole.
        self._hedges_left = min(HEDGES_SPARE, self._hedges_left + HEDGES_SHARE)
        if took_s is None:
            return
        known = self._know(peer)
        known.mean_s += MEAN_WEIGHT * (took_s - known.mean_s)

    def cool(self, peer: Peer) -> None:
        """Ask this peer last for a moment: it was not there, or another answered while it was waited for."""
        self._know(peer).cool_until_s = time.monotonic() + COOLING_S

    def is_cooling(self, peer: Peer) -> bool:
        """Return whether a peer was not there lately."""
        known = self._known.get(peer)
        return known is not None and known.cool_until_s > time.monotonic()

    def hedge_s(self, peer: Peer) -> float:
        """Return how long an answer of this peer is waited for before another is asked as well."""
        known = self._known.get(peer)
        mean_s = FIRST_MEAN_S if known is None else known.mean_s
        return min(HEDGE_MAX_S, max(HEDGE_MIN_S, HEDGE_TIMES * mean_s))

    def may_hedge(self) -> bool:
        """Return whether one more call may be a second one; count it."""
        if self._hedges_left < 1:
            return False
        self._hedges_left -= 1
        return True

    def _know(self, peer: Peer) -> _Known:
        return self._known.setdefault(peer, _Known())


def _reason_of(status: Status) -> str:
    info = ErrorInfo()
    for detail in status.details:
        if detail.Unpack(info) and info.domain == _DOMAIN:
            return str(info.reason)
    return ""


class NoReplica(Exception):
    """No gateway that could be asked answers from `partition`."""

    def __init__(self, partition: Partition) -> None:
        super().__init__(f"no gateway answers from partition {partition}")
        self.partition = partition


class ScatterGather(Generic[PartialResult]):
    """One question, put to the gateways that have the partitions of a table.

    `local` are partitions that this gateway answers itself. `generation`: of which they must be, 0: of any. `may_wait`:
    the answer may take its time, as fresh ones do.
    """

    def __init__(
        self,
        directory: Directory,
        forwarder: Forwarder,
        ask: Ask[PartialResult],
        *,
        table: str,
        generation: int,
        local: Collection[Partition],
        may_wait: bool,
    ) -> None:
        self._directory = directory
        self._forwarder = forwarder
        self._ask = ask
        self._table = table
        self._generation = generation
        self._local = local
        self._may_wait = may_wait
        self._own = Peer(directory.own_id, "", "")
        self._was_away = False  # that a gateway failed in another way than by refusing our token

    async def results(
        self, partitions: Collection[Partition], tried: frozenset[str] = frozenset()
    ) -> list[PartialResult]:
        """Return results that cover `partitions`, without gateways that were tried.

        Raise `PeerFailed` where a gateway says what any would say, `NoReplica`, or what asking this gateway raises.
        """
        groups = self._groups(partitions, tried)
        # The common case: one owner has it all, and neither a task nor a gather is needed.
        if len(groups) == 1:
            return await self._answer(*groups[0], tried)
        tasks = [asyncio.ensure_future(self._answer(peer, members, tried)) for peer, members in groups]
        try:
            return [result for results in await asyncio.gather(*tasks) for result in results]
        finally:
            for task in tasks:
                task.cancel()

    async def _answer(self, peer: Peer, partitions: Sequence[Partition], tried: frozenset[str]) -> list[PartialResult]:
        """Return results that cover `partitions`: of this gateway, or of others where it fails or takes long."""
        # A gateway is asked once for a question, whichever way it fails: each further attempt has fewer candidates, so
        # this ends.
        tried |= {peer.gateway_id}
        first = asyncio.ensure_future(self._ask(peer, partitions))
        others: asyncio.Future[list[PartialResult]] | None = None
        behind: PeerFailed | None = None
        refused: PeerFailed | None = None
        try:
            await asyncio.wait({first}, timeout=self._hedge_s(peer))
            if not first.done() and self._forwarder.may_hedge():
                others = asyncio.ensure_future(self.results(partitions, tried))
                await asyncio.wait({first, others}, return_when=asyncio.FIRST_COMPLETED)
                # The hedged request counts only where it settles the question. If it found nobody else, the first one
                # is all there is.
                if not first.done() and _settles(others):
                    self._forwarder.cool(peer)
                    return others.result()
            try:
                # A gateway that fails where another may do better is replaced; if others were asked already, theirs is
                # the answer.
                return [await first]
            except PeerFailed as failed:
                if not failed.another_may_answer:
                    raise
                if failed.is_behind:
                    behind = failed
                elif failed.is_token_refused:
                    refused = failed
                else:
                    self._was_away = True
            return await (self.results(partitions, tried) if others is None else others)
        except NoReplica:
            reason = behind or (None if self._was_away else refused)
            if reason is None:
                raise
            raise reason from None
        except PeerFailed as failed:
            # That a replica is behind says more than that the last one refused our token.
            if behind is None or not failed.is_token_refused:
                raise
            raise behind from None
        finally:
            for task in (first, others):
                if task is not None:
                    task.cancel()
                    # Whoever lost the race may still fail: asyncio logs an exception that nobody has read.
                    task.add_done_callback(_retrieve_exception)

    def _hedge_s(self, peer: Peer) -> float | None:
        """Return how long only this one is asked; None where only it is: ours, which waits for nothing."""
        if peer is self._own:
            return HEDGE_MAX_S if self._may_wait else None
        return HEDGE_MAX_S if self._may_wait else self._forwarder.hedge_s(peer)

    def _groups(self, partitions: Collection[Partition], tried: frozenset[str]) -> list[Group]:
        """Return who is asked for what, without gateways that were tried; raise `NoReplica`."""

        def peers_of(partition: Partition) -> Sequence[Peer]:
            return candidates(self._directory, self._forwarder, self._table, partition, self._generation, tried)

        local = () if self._own.gateway_id in tried else self._local
        return assign_requests(partitions, local, self._own, peers_of)


def candidates(
    directory: Directory,
    forwarder: Forwarder,
    table: str,
    partition: Partition,
    generation: int,
    tried: Collection[str] = (),
) -> Sequence[Peer]:
    """Return which others may be asked, best first: those that were not there lately only where there is nobody else.

    `tried`: names of gateways to leave out.
    """
    replicas = directory.replicas(table, partition, generation)
    peers = [peer for peer in replicas if peer.gateway_id not in tried and peer.gateway_id != directory.own_id]
    return [peer for peer in peers if not forwarder.is_cooling(peer)] or peers


def assign_requests(
    partitions: Collection[Partition],
    local: Collection[Partition],
    own: Peer,
    peers_of: Callable[[Partition], Sequence[Peer]],
) -> list[Group]:
    """Return who is asked for what: this gateway for what is `local`, then whoever has most of the rest.

    `peers_of`: who else may be asked for a partition, best first. Raise `NoReplica` where that is nobody.
    """
    groups: list[Group] = []
    # The local store is the cheapest source, so it takes all that it has, even where another gateway has more.
    mine = [each for each in partitions if each in local]
    if mine:
        groups.append((own, mine))
    rest = set(partitions).difference(mine)
    partitions_of: dict[Peer, set[Partition]] = {}
    owned: Counter[Peer] = Counter()
    for partition in rest:
        peers = peers_of(partition)
        if not peers:
            raise NoReplica(partition)
        owned[peers[0]] += 1
        for peer in peers:
            partitions_of.setdefault(peer, set()).add(partition)
    while rest:
        # Most partitions first, which makes the fewest requests; among equals the owner of most, as it is the freshest;
        # then the name, so that the choice is the same each time.
        best = max(partitions_of, key=lambda peer: (len(partitions_of[peer]), owned[peer], peer.gateway_id))
        members = partitions_of.pop(best)
        groups.append((best, sorted(members)))
        rest -= members
        for members_of in partitions_of.values():
            members_of.difference_update(members)
    return groups


class Router:
    """The gateways of a cluster, as queries see them: who has a partition, and asking those who do.

    A gateway that stands alone is a cluster of one: its directory knows nobody, so there is nobody to ask.

    `tables` are states of tables as they were in the last snapshot: what to ask others by while the store is away.
    """

    def __init__(self, directory: Directory, forwarder: Forwarder) -> None:
        self.directory = directory
        self.forwarder = forwarder
        self.tables: dict[str, TableState] = {}

    @classmethod
    def alone(cls) -> "Router":
        """Return the router of a gateway that stands alone."""
        return cls(Directory(), Forwarder(_sign_nothing))

    @property
    def is_clustered(self) -> bool:
        """Return whether this gateway has a name by which others know it."""
        return bool(self.directory.own_id)

    def refresh(self, snapshot: Snapshot, tables: Iterable[str] = ()) -> None:
        """Apply what the replicator says of this gateway and the others, and of these tables.

        Close channels to those that are gone.
        """
        version = self.directory.version
        self.directory.update(snapshot.status())
        if version != self.directory.version:
            self.forwarder.keep(self.directory.peers)
        for name in tables:
            state = snapshot.table(name)
            if state is not None:
                self.tables[name] = state

    def stream(
        self, peer: Peer, path: str, data: bytes, token: ForwardToken, time_left_s: float | None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the messages of a peer's stream; raise `PeerFailed` (see `Forwarder.stream`)."""
        return self.forwarder.stream(peer, path, data, token, time_left_s)

    async def gather(
        self,
        table: str,
        partitions: Collection[Partition],
        ask: Ask[PartialResult],
        *,
        ask_local: AskLocal[PartialResult] | None = None,
        local: Collection[Partition] = (),
        generation: int = 0,
        may_wait: bool = False,
    ) -> list[PartialResult]:
        """Return partial results that cover `partitions`, of as few sources as can be; raise `PeerFailed`, `NoReplica`.

        The sources are other gateways (`ask`), and this gateway's store for the `local` partitions (`ask_local`).
        `generation`, `may_wait`: as of `ScatterGather`.
        """
        own_id = self.directory.own_id

        async def ask_source(peer: Peer, some: Sequence[Partition]) -> PartialResult:
            if ask_local is not None and peer.gateway_id == own_id:
                return await ask_local(some)
            return await ask(peer, some)

        scatter = ScatterGather(
            self.directory,
            self.forwarder,
            ask_source,
            table=table,
            generation=generation,
            local=local,
            may_wait=may_wait,
        )
        return await scatter.results(partitions)

    def candidates(
        self, table: str, partition: Partition, *, generation: int = 0, without: Collection[str] = ()
    ) -> Sequence[Peer]:
        """Return which other gateways may be asked for a partition, best first; see `candidates`."""
        return candidates(self.directory, self.forwarder, table, partition, generation, without)


def _settles(others: "asyncio.Future[list[PartialResult]]") -> bool:
    """Return whether what came of asking others is an answer, good or bad, to the question."""
    error = others.exception()
    return not (isinstance(error, NoReplica) or (isinstance(error, PeerFailed) and error.another_may_answer))


def _retrieve_exception(task: "asyncio.Future[Any]") -> None:
    """Retrieve how a task ended that nobody waits for any more, or asyncio complains."""
    if not task.cancelled():
        task.exception()


def _sign_nothing(_: ForwardToken) -> str:
    raise AssertionError("a gateway that stands alone has nobody to forward to")
