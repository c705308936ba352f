"""Which gateways give which partitions of a table to one stream."""

import time
from collections.abc import Collection, Mapping, Sequence

from tablegate.gateway.cluster.directory import Peer
from tablegate.gateway.cluster.scatter import grouped
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.router import Router
from tablegate.gateway.query.serving import TableAccess

AVOID_S = 0.5  # a gateway that has just ended a stream is not asked for so long

Group = tuple[Peer | None, list[Partition]]
"""Partitions, and the gateway that is to give them; None: this one."""


class PartitionSources:
    """Who may give what, and who is not to be asked just now."""

    def __init__(self, access: TableAccess, router: Router) -> None:
        self._table = access.table
        self._router = router
        self._own = Peer(router.directory.own_id, "", "")
        self._avoided: dict[str, float] = {}  # gateways, until when

    def is_alive(self, peer: Peer | None) -> bool:
        """Return whether a gateway is known to live, as this one does."""
        return peer is None or any(peer.gateway_id == each.gateway_id for each in self._router.directory.peers)

    def left(self, peer: Peer | None, *, has_spoken: bool) -> None:
        """Take in that a gateway has ended a stream: for a moment it is asked for nothing.

        On a table with retention it is, if it had begun to speak: it may have another process, and no other gateway can
        go on with what it gave.
        """
        if self._table.expiry is not None and has_spoken:
            return
        self._avoided[self._id_of(peer)] = time.monotonic() + AVOID_S

    def groups(
        self,
        wanted: Sequence[Partition],
        here: Collection[Partition],
        givers: Mapping[Partition, str],
        generation: int,
    ) -> list[Group]:
        """Return who may give which: this gateway what is `here`, then as few others as can be.

        But whom `givers` names for a partition, as long as it has that. What nobody can give is in none.
        """
        now_s = time.monotonic()
        avoided = [gateway_id for gateway_id, until_s in self._avoided.items() if until_s > now_s]
        own = () if self._own.gateway_id in avoided else here
        candidates = {
            partition: found
            for partition in wanted
            if (found := self._candidates(partition, avoided, givers[partition], generation, is_here=partition in own))
        }
        mine = [partition for partition, found in candidates.items() if found == [self._own]]
        groups = grouped(candidates, mine, self._own, candidates.__getitem__)
        return [(None if peer is self._own else peer, partitions) for peer, partitions in groups]

    def _candidates(
        self, partition: Partition, avoided: Sequence[str], giver: str, generation: int, *, is_here: bool
    ) -> Sequence[Peer]:
        """Return who may give a partition, the best first: this gateway or `giver` alone, or others."""
        others = self._router.others(self._table.name, partition, generation=generation, without=avoided)
        for peer in [self._own, *others] if is_here else others:
            if peer.gateway_id == giver:
                return [peer]
        return [self._own] if is_here else others

    def _id_of(self, peer: Peer | None) -> str:
        return (peer or self._own).gateway_id
