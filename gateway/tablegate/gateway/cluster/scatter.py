"""Asking many partitions of the gateways that have them: as few calls as can be, others where one fails or is slow."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from tablegate.gateway.cluster.directory import Directory, Peer
from tablegate.gateway.cluster.forwarding import HEDGE_MAX_S, Forwarder, PeerFailed
from tablegate.gateway.contract.types import Partition

PartialResult = TypeVar("PartialResult")
Ask = Callable[[Peer, Sequence[Partition]], Coroutine[Any, Any, PartialResult]]
"""Asks a gateway, which may be this one, for its part of an answer; raises `PeerFailed`."""
Group = tuple[Peer, list[Partition]]
"""A gateway, and what it is asked for."""


class NoReplica(Exception):
    """No gateway that could be asked answers from `partition`."""

    def __init__(self, partition: Partition) -> None:
        super().__init__(f"no gateway answers from partition {partition}")
        self.partition = partition


class ScatterGather(Generic[PartialResult]):
    """One question, put to the gateways that have the partitions of a table.

    `here` are partitions that this gateway answers itself. `generation`: of which they must be, 0: of any. `may_wait`:
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
        here: Collection[Partition],
        may_wait: bool,
    ) -> None:
        self._directory = directory
        self._forwarder = forwarder
        self._ask = ask
        self._table = table
        self._generation = generation
        self._here = here
        self._may_wait = may_wait
        self._own = Peer(directory.own_id, "", "")

    async def answers(
        self, partitions: Collection[Partition], tried: frozenset[str] = frozenset()
    ) -> list[PartialResult]:
        """Return parts that cover `partitions`, without gateways that were tried.

        Raise `PeerFailed` where a gateway says what any would say, `NoReplica`, or what asking this gateway raises.
        """
        groups = self._groups(partitions, tried)
        if len(groups) == 1:
            return await self._answer(*groups[0], tried)
        tasks = [asyncio.ensure_future(self._answer(peer, members, tried)) for peer, members in groups]
        try:
            return [part for parts in await asyncio.gather(*tasks) for part in parts]
        finally:
            for task in tasks:
                task.cancel()

    async def _answer(self, peer: Peer, partitions: Sequence[Partition], tried: frozenset[str]) -> list[PartialResult]:
        """Return parts that cover `partitions`: of this gateway, or of others where it fails or takes long."""
        tried |= {peer.gateway_id}
        first = asyncio.ensure_future(self._ask(peer, partitions))
        others: asyncio.Future[list[PartialResult]] | None = None
        try:
            await asyncio.wait({first}, timeout=self._hedge_s(peer))
            if not first.done() and self._forwarder.may_hedge():
                others = asyncio.ensure_future(self.answers(partitions, tried))
                await asyncio.wait({first, others}, return_when=asyncio.FIRST_COMPLETED)
                if not first.done() and _settles(others):
                    self._forwarder.cool(peer)
                    return others.result()
            try:
                return [await first]
            except PeerFailed as failed:
                if not failed.is_elsewhere:
                    raise
            return await (self.answers(partitions, tried) if others is None else others)
        finally:
            for task in (first, others):
                if task is not None:
                    task.cancel()
                    task.add_done_callback(_forget)

    def _hedge_s(self, peer: Peer) -> float | None:
        """Return how long only this one is asked; None where only it is, as it is ours."""
        if peer is self._own:
            return None
        return HEDGE_MAX_S if self._may_wait else self._forwarder.hedge_s(peer)

    def _groups(self, partitions: Collection[Partition], tried: frozenset[str]) -> list[Group]:
        """Return who is asked for what, without gateways that were tried; raise `NoReplica`."""

        def peers_of(partition: Partition) -> Sequence[Peer]:
            return candidates(self._directory, self._forwarder, self._table, partition, self._generation, tried)

        here = () if self._own.gateway_id in tried else self._here
        return grouped(partitions, here, self._own, peers_of)


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


def grouped(
    partitions: Collection[Partition],
    here: Collection[Partition],
    own: Peer,
    peers_of: Callable[[Partition], Sequence[Peer]],
) -> list[Group]:
    """Return who is asked for what: this gateway for what is `here`, then whoever has most of the rest.

    `peers_of`: who else may be asked for a partition, best first. Raise `NoReplica` where that is nobody.
    """
    groups: list[Group] = []
    mine = [each for each in partitions if each in here]
    if mine:
        groups.append((own, mine))
    rest = set(partitions).difference(mine)
    holdings: dict[Peer, set[Partition]] = {}
    owned: Counter[Peer] = Counter()
    for partition in rest:
        peers = peers_of(partition)
        if not peers:
            raise NoReplica(partition)
        owned[peers[0]] += 1
        for peer in peers:
            holdings.setdefault(peer, set()).add(partition)
    while rest:
        best = max(holdings, key=lambda peer: (len(holdings[peer]), owned[peer], peer.gateway_id))
        members = holdings.pop(best)
        groups.append((best, sorted(members)))
        rest -= members
        for held in holdings.values():
            held.difference_update(members)
    return groups


def _settles(others: "asyncio.Future[list[PartialResult]]") -> bool:
    """Return whether what came of asking others is an answer, good or bad, to the question."""
    error = others.exception()
    return not (isinstance(error, NoReplica) or (isinstance(error, PeerFailed) and error.is_elsewhere))


def _forget(task: "asyncio.Future[Any]") -> None:
    """Take in how a task ended that nobody waits for any more, or asyncio complains."""
    if not task.cancelled():
        task.exception()
