"""The gateways of a cluster, as queries see them: who has a partition, and asking those who do.

A gateway that stands alone is a cluster of one: its directory knows nobody, so there is nobody to ask.

Decision: docs/decisions/0053-alone-is-a-cluster-of-one.md
"""

from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from google.rpc import code_pb2

from tablegate.gateway.access.views import View
from tablegate.gateway.cluster.directory import Directory, Peer
from tablegate.gateway.cluster.forward_token import ForwardToken
from tablegate.gateway.cluster.scatter import (
    ANSWER_BYTES_MAX,
    Ask,
    Forwarder,
    NoReplica,
    PeerFailed,
    ScatterGather,
    candidates,
)
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.call import Call
from tablegate.gateway.query.errors import AnswerTooLarge, DeadlineExceeded, PartitionUnavailable, PeerError, QueryError
from tablegate.gateway.stores.base import Snapshot
from tablegate.internal.v1.store_pb2 import TableState

PartialResult = TypeVar("PartialResult")
AskLocal = Callable[[Sequence[Partition]], Coroutine[Any, Any, PartialResult]]
"""Reads some partitions from this gateway's own store; raises `PeerFailed` where another gateway may do better."""


class Scope(NamedTuple):
    """What another gateway asks this one for. It is answered from this gateway's own store only.

    `generation` must be the one that is served (0: any); `partitions` are those to answer from, None: those that the
    request says; `resume_token` takes the place of the request's where it is set. `view`: what of the table is seen.
    """

    generation: int
    partitions: Sequence[Partition] | None
    resume_token: str
    view: View | None = None

    def check(self, table: str, served_generation: int) -> None:
        """Raise `PartitionUnavailable` where another generation is served."""
        if self.generation not in (0, served_generation):
            raise PartitionUnavailable(table, None, "this gateway serves another generation of it")


class Router:
    """The directory and the forwarder of a gateway.

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
        call: Call,
        *,
        ask_local: AskLocal[PartialResult] | None = None,
        local: Collection[Partition] = (),
        generation: int = 0,
        may_wait: bool = False,
    ) -> list[PartialResult]:
        """Return partial results that cover `partitions`, of as few sources as can be; raise a `QueryError`.

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
        try:
            return await scatter.results(partitions)
        except PeerFailed as failed:
            call.set_trailer(failed.trailer)
            raise error_for(failed, table) from None
        except NoReplica as error:
            raise PartitionUnavailable(table, error.partition, "no gateway that has it answers") from None

    def candidates(
        self, table: str, partition: Partition, *, generation: int = 0, without: Collection[str] = ()
    ) -> Sequence[Peer]:
        """Return which other gateways may be asked for a partition, best first; see `scatter.candidates`."""
        return candidates(self.directory, self.forwarder, table, partition, generation, without)


def error_for(failed: PeerFailed, table: str) -> QueryError:
    """Return the error that the client gets for an answer that another gateway did not give."""
    if failed.reason:
        return PeerError(failed.status)
    if failed.status.code == code_pb2.DEADLINE_EXCEEDED:
        return DeadlineExceeded()
    if failed.is_too_large:
        return AnswerTooLarge(ANSWER_BYTES_MAX)
    return PartitionUnavailable(table, None, "the gateway that has it does not answer")


def _sign_nothing(_: ForwardToken) -> str:
    raise AssertionError("a gateway that stands alone has nobody to forward to")
