"""Which gateways give which partitions of a table to one stream."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from gateway.contract.types import Partition
from gateway.query.access import TableAccess
from gateway.query.router import Router
from gateway.routing.directory import Peer

AVOID_S = 0.5  # a gateway that has just ended a stream is not asked for so long

Group = tuple[Peer | None, list[Partition]]
"""Partitions, and the gateway that is to give them; None: this one."""


class Givers:
    """Who has given what, and who is not to be asked just now."""

    def __init__(self, access: TableAccess, router: Router) -> None:
        self._table = access.table
        self._router = router
        self._last: dict[Partition, str] = {}
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

    def note(self, peer: Peer | None, partitions: Iterable[Partition]) -> None:
        """Take in that a gateway gives these partitions."""
        self._last.update(dict.fromkeys(partitions, self._id_of(peer)))

    def groups(self, wanted: Sequence[Partition], here: Collection[Partition], generation: int) -> list[Group]:
        """Return who may give which: this gateway what is `here`, then as few others as can be.

        What nobody can give is in none.
        """
        now_s = time.monotonic()
        avoided = [gateway_id for gateway_id, until_s in self._avoided.items() if until_s > now_s]
        own = () if self._router.directory.own_id in avoided else here
        candidates = {
            partition: self._candidates(partition, avoided, generation, is_here=partition in own)
            for partition in wanted
        }
        groups: list[Group] = []
        while counts := Counter(peer for peers in candidates.values() for peer in peers):
            peer = None if None in counts else max(counts, key=counts.__getitem__)
            partitions = [partition for partition, peers in candidates.items() if peer in peers]
            groups.append((peer, partitions))
            for partition in partitions:
                del candidates[partition]
        return groups

    def _candidates(
        self, partition: Partition, avoided: Sequence[str], generation: int, *, is_here: bool
    ) -> Sequence[Peer | None]:
        """Return who may give a partition, the best first."""
        others = self._router.others(self._table.name, partition, generation=generation, without=avoided)
        if self._table.expiry is not None:
            for peer in [None, *others] if is_here else others:
                if self._id_of(peer) == self._last.get(partition):
                    return [peer]
        return [None] if is_here else others

    def _id_of(self, peer: Peer | None) -> str:
        return self._router.directory.own_id if peer is None else peer.gateway_id
