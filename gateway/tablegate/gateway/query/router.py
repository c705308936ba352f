"""Routing, as queries see it: who has a partition, and asking them."""

from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from google.rpc import code_pb2
from tablegate.gateway.cluster.directory import Directory, Peer
from tablegate.gateway.cluster.forward_token import ForwardToken
from tablegate.gateway.cluster.forwarding import Forwarder, PeerFailed
from tablegate.gateway.cluster.scatter import Ask, NoReplica, ScatterGather, candidates
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.call import Call
from tablegate.gateway.query.errors import DeadlineExceeded, PartitionUnavailable, PeerError, QueryError
from tablegate.gateway.stores.base import Snapshot
from tablegate.internal.v1.store_pb2 import TableState

Part = TypeVar("Part")

if TYPE_CHECKING:
    from tablegate.gateway.query.serving import ServedGeneration


class Scope(NamedTuple):
    """What another gateway asks this one for. It is answered from this gateway's own store only.

    `generation` must be the one that is served (0: any); `partitions` are those to answer from, None: those that the
    request says; `resume_token` takes the place of the request's where it is set.
    """

    generation: int
    partitions: Sequence[Partition] | None
    resume_token: str

    def check(self, table: str, life: "ServedGeneration") -> None:
        """Raise `PartitionUnavailable` where another generation is served."""
        if self.generation not in (0, life.generation):
            raise PartitionUnavailable(table, None, "this gateway serves another generation of it")


class Router:
    """The directory and the forwarder of a gateway that is one of several.

    `tables` are states of tables as they were when the store was last looked at: what to ask by while it is away.
    """

    def __init__(self, directory: Directory, forwarder: Forwarder) -> None:
        self.directory = directory
        self.forwarder = forwarder
        self.tables: dict[str, TableState] = {}

    def look(self, snapshot: Snapshot, tables: Iterable[str] = ()) -> None:
        """Take in what the replicator says of this gateway and the others, and of these tables.

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
        self, peer: Peer, path: str, data: bytes, mark: ForwardToken, time_left_s: float | None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the messages of a peer's stream; raise `PeerFailed` (see `Forwarder.stream`)."""
        return self.forwarder.stream(peer, path, data, mark, time_left_s)

    async def answers(
        self,
        table: str,
        partitions: Collection[Partition],
        ask: Ask[Part],
        call: Call,
        *,
        generation: int = 0,
        here: Collection[Partition] = (),
        may_wait: bool = False,
    ) -> list[Part]:
        """Return parts of an answer that cover `partitions`, asked of as few gateways as can be; raise a `QueryError`.

        `generation`, `here`, `may_wait`: as of `ScatterGather`.
        """
        spread = ScatterGather(
            self.directory, self.forwarder, ask, table=table, generation=generation, here=here, may_wait=may_wait
        )
        try:
            return await spread.answers(partitions)
        except PeerFailed as failed:
            call.set_trailer(failed.trailer)
            raise told(failed, table) from None
        except NoReplica as error:
            raise PartitionUnavailable(table, error.partition, "no gateway that has it answers") from None

    def others(
        self, table: str, partition: Partition, *, generation: int = 0, without: Collection[str] = ()
    ) -> Sequence[Peer]:
        """Return which other gateways may be asked for a partition, best first; see `candidates`."""
        return candidates(self.directory, self.forwarder, table, partition, generation, without)


def told(failed: PeerFailed, table: str) -> QueryError:
    """Return what the client is told of an answer that another gateway did not give."""
    if failed.reason:
        return PeerError(failed.status)
    if failed.status.code == code_pb2.DEADLINE_EXCEEDED:
        return DeadlineExceeded()
    return PartitionUnavailable(table, None, "the gateway that has it does not answer")
