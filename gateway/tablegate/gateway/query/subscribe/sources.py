"""The sources of a subscription: which gateway sends which partitions, and the stream of each, read one message ahead.

This gateway's store is one source among the others (`peer` is None): its stream is a run of the same code that serves a
subscription alone, with a call of its own.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing

from typing_extensions import override

from tablegate.gateway.access.views import View
from tablegate.gateway.cluster.directory import Peer
from tablegate.gateway.cluster.scatter import Router, assign_requests
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.call import AtTurn, Call, Fields
from tablegate.gateway.query.serving import TableAccess
from tablegate.v1.query_pb2 import SUBSCRIBE_PHASE_CURRENT, SubscribeProgress

Group = tuple[Peer | None, list[Partition]]
"""Partitions, and the gateway that is to send them; None: this one."""


class PartitionSources:
    """Which gateways may be a source of what, and which are not to be asked just now."""

    def __init__(self, access: TableAccess) -> None:
        self._table = access.table
        self._avoid_s = access.limits.avoid_s
        self._router: Router = access.router
        self._own = Peer(access.router.directory.own_id, "", "")
        self._avoided: dict[str, float] = {}  # gateways, until when

    def is_alive(self, peer: Peer | None) -> bool:
        """Return whether a gateway is known to live, as this one does."""
        return peer is None or any(peer.gateway_id == each.gateway_id for each in self._router.directory.peers)

    def record_end(self, peer: Peer | None, *, has_sent: bool) -> None:
        """Record that a gateway has ended a stream: for a moment it is asked for nothing.

        On a table with retention it is asked at once, if it had sent something: it may have another process, and no
        other gateway can go on with what it sent.
        """
        if self._table.expiry is not None and has_sent:
            return
        self._avoided[self._id_of(peer)] = time.monotonic() + self._avoid_s

    def groups(
        self,
        wanted: Sequence[Partition],
        local: Collection[Partition],
        sources: Mapping[Partition, str],
        generation: int,
    ) -> list[Group]:
        """Return which gateway is to send which partitions: this one those that are `local`, then as few as can be.

        But the one that `sources` names for a partition, as long as it has that. What no gateway has is in no group.
        """
        now_s = time.monotonic()
        avoided = [gateway_id for gateway_id, until_s in self._avoided.items() if until_s > now_s]
        own = () if self._own.gateway_id in avoided else local
        candidates = {
            partition: found
            for partition in wanted
            if (found := self._candidates(partition, avoided, sources[partition], generation, is_here=partition in own))
        }
        # A partition whose sender is another gateway is not ours to send, though it may be here.
        mine = [partition for partition, found in candidates.items() if found == [self._own]]
        groups = assign_requests(candidates, mine, self._own, candidates.__getitem__)
        return [(None if peer is self._own else peer, partitions) for peer, partitions in groups]

    def _candidates(
        self, partition: Partition, avoided: Sequence[str], source: str, generation: int, *, is_here: bool
    ) -> Sequence[Peer]:
        """Return the gateways that may send a partition, best first: this one or `source` alone, or others."""
        others = self._router.candidates(self._table.name, partition, generation=generation, without=avoided)
        # The gateway that sent a partition comes first where no other one could go on with it, even if this one has it.
        for peer in [self._own, *others] if is_here else others:
            if peer.gateway_id == source:
                return [peer]
        return [self._own] if is_here else others

    def _id_of(self, peer: Peer | None) -> str:
        return (peer or self._own).gateway_id


class PartCall(Call):
    """The call of a source that is this gateway: its messages go into another stream, and nothing else of it counts."""

    def __init__(self, call: Call) -> None:
        self._call = call

    @override
    def time_left_s(self) -> float | None:
        return self._call.time_left_s()

    @property
    @override
    def draining(self) -> bool:
        return self._call.draining

    @property
    @override
    def forwarded(self) -> str | None:
        return None

    @property
    @override
    def view(self) -> View | None:
        return self._call.view

    @override
    def view_of(self, path: str) -> View | None:
        return self._call.view_of(path)

    @override
    def offer(self, message: bytes) -> bool:
        return False

    @property
    @override
    def parks(self) -> bool:
        return False

    @override
    async def turn(self) -> None:
        await self._call.turn()

    @property
    @override
    def at_turn(self) -> AtTurn:
        return self._call.at_turn

    @property
    @override
    def at_turn_for_many(self) -> AtTurn:
        return self._call.at_turn_for_many

    @override
    def set_trailer(self, trailer: Fields) -> None:
        return


class PartitionStream:
    """The stream of some partitions, from a gateway (`peer`; None: this one). It wakes who waits at each news.

    One message at most is kept: until it is popped, the gateway has to wait. `error` is why it ended, if it did;
    `has_sent`: something came before. `is_filling`: rows of the snapshot are still to come. `is_current` and
    `as_of_ms` are of the last message popped.
    """

    def __init__(
        self,
        peer: Peer | None,
        partitions: Collection[Partition],
        messages: AsyncGenerator[bytes, None],
        wake: Callable[[], None],
        *,
        is_filling: bool,
    ) -> None:
        self.peer = peer
        self.partitions = frozenset(partitions)
        self.is_filling = is_filling
        self.is_current = False
        self.as_of_ms = 0
        self.has_ended = False
        self.has_sent = False
        self.error: Exception | None = None
        self._messages = messages
        self._wake = wake
        self._received_s = time.monotonic()
        self._message: bytes | None = None
        self._popped = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())

    @property
    def has_message(self) -> bool:
        """Return whether there is something to pop."""
        return self._message is not None

    @property
    def silent_s(self) -> float:
        """Return the seconds since the gateway last sent something, 0 while that is not popped."""
        return 0.0 if self.has_message else time.monotonic() - self._received_s

    def pop(self) -> bytes:
        """Return the message that there is."""
        message = self._message
        assert message is not None
        self._message, self._received_s = None, time.monotonic()
        self._popped.set()
        return message

    def record(self, progress: SubscribeProgress) -> None:
        """Record what a message says."""
        self.is_current = progress.phase == SUBSCRIBE_PHASE_CURRENT
        if self.is_current:
            self.as_of_ms = progress.read_info.as_of_time.ToMilliseconds()

    def cancel(self) -> "asyncio.Future[None]":
        """End it, with the message that was not popped. Return the task, done once it has ended."""
        self._task.cancel()
        return self._task

    async def _run(self) -> None:
        try:
            async with aclosing(self._messages) as messages:
                async for message in messages:
                    # One message ahead and no more: a client that reads slowly makes the sources wait, and gRPC makes
                    # their gateways wait.
                    self._message, self.has_sent = message, True
                    self._popped.clear()
                    self._wake()
                    await self._popped.wait()
        except Exception as error:  # noqa: BLE001  the subscription reads `error`
            self.error = error
        finally:
            self.has_ended = True
            self._wake()
