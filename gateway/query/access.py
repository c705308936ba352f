"""One table of a store: may it be answered, from which partitions, and what was read."""

from collections.abc import Callable, Mapping

from gateway.contract.catalogue import Table
from gateway.contract.tokens import InvalidToken, StaleGeneration, TokenSigner
from gateway.contract.types import Partition, StoreId
from gateway.internal.v1.store_pb2 import TableState
from gateway.internal.v1.tokens_pb2 import TOKEN_KIND_CONSISTENCY, Token, TokenKind
from gateway.query.call import Fields
from gateway.query.errors import PartitionUnavailable, QueryError, TableRebuilt
from gateway.query.expiry import UnexpiredReader
from gateway.query.topic_ends import TopicEnds
from gateway.stores.base import Phase, Position, Snapshot, StoreReader
from gateway.subscription.bell import Bell
from gateway.v1.query_pb2 import ReadInfo

NowMs = Callable[[], int]
"""Milliseconds since 1970."""

_LIVE = Phase.LIVE


class Life:
    """The life of a table that is served now: its rows' store id, generation, partition count and manifest."""

    __slots__ = ("generation", "manifest", "partition_count", "partitions", "state", "store_id")

    def __init__(self, state: TableState) -> None:
        self.state = state
        self.store_id = StoreId(state.store_id)
        self.manifest = state.manifest
        self.generation = state.manifest.generation
        self.partition_count = state.manifest.partition_count
        self.partitions = [Partition(number) for number in range(self.partition_count)]


class TableAccess:
    """A table as its queries see it. One thread."""

    def __init__(
        self,
        table: Table,
        store: StoreReader,
        signer: TokenSigner,
        bell: Bell,
        now_ms: NowMs,
        ends: TopicEnds | None = None,
    ) -> None:
        self.table = table
        self.store = store if table.expiry is None else UnexpiredReader(store, table.expiry, now_ms)
        self.signer = signer
        self.bell = bell
        self.ends = ends
        self.now_ms = now_ms
        self._life: Life | None = None
        self._read_infos: dict[Partition, tuple[Position, int, bytes]] = {}

    def life(self, snapshot: Snapshot) -> Life:
        """Return the life that is served; raise `PartitionUnavailable` where the table is not."""
        state = snapshot.table(self.table.name)
        known = self._life
        if known is not None and (state is known.state or state == known.state):
            return known
        if state is None or not state.HasField("manifest"):
            text = state.problem if state is not None and state.problem else "no manifest of its job has been read yet"
            raise PartitionUnavailable(self.table.name, None, text.rstrip("."))
        if state.problem:
            raise PartitionUnavailable(self.table.name, None, state.problem.rstrip("."))
        self._life = known = Life(state)
        self._read_infos.clear()
        return known

    def live(self, snapshot: Snapshot, life: Life, partition: Partition) -> Position:
        """Return the position of a partition that may be answered; raise `PartitionUnavailable`."""
        position = snapshot.position(life.store_id, partition)
        if position is None or position.phase is not _LIVE:
            raise PartitionUnavailable(self.table.name, partition, "it is being restored")
        return position

    def open_token(
        self, text: str, *, kind: TokenKind, request_hash: int, life: Life, refused: Callable[[str], QueryError]
    ) -> Token:
        """Return the token of a query of this table; `refused` makes the error of a bad one from what is wrong with it.

        Raise that, `TableRebuilt`, or `PartitionUnavailable` where the token is of a generation that is not here yet.
        """
        name = self.table.name
        try:
            return self.signer.open(text, kind=kind, table=name, generation=life.generation, request_hash=request_hash)
        except InvalidToken as error:
            raise refused(error.fault.value) from None
        except StaleGeneration as error:
            if error.token_generation > life.generation:
                raise PartitionUnavailable(name, None, "the token is of a newer generation of it") from None
            raise TableRebuilt(name) from None

    def read_info(self, life: Life, positions: Mapping[Partition, Position]) -> bytes:
        """Return the ReadInfo of an answer made from `positions`."""
        if len(positions) != 1:
            return self._made_read_info(life, positions)
        [(partition, position)] = positions.items()
        kept = self._read_infos.get(partition)
        if kept is not None and kept[1] == life.generation and (kept[0] is position or kept[0] == position):
            return kept[2]
        made = self._made_read_info(life, positions)
        self._read_infos[partition] = (position, life.generation, made)
        return made

    def _made_read_info(self, life: Life, positions: Mapping[Partition, Position]) -> bytes:
        token = Token(
            kind=TOKEN_KIND_CONSISTENCY,
            table=self.table.name,
            generation=life.generation,
            issue_time_ms=self.now_ms(),
            next_offsets=[position.next_offset for position in positions.values()],
        )
        if list(positions) != life.partitions[: len(positions)]:
            token.partitions.extend(positions)
        info = ReadInfo(consistency_token=self.signer.sign(token))
        if positions:
            as_of_ms = min([position.as_of_ms for position in positions.values()])
            info.as_of_time.seconds = as_of_ms // 1_000
            info.as_of_time.nanos = as_of_ms % 1_000 * 1_000_000
        return info.SerializeToString()


_TRAILERS: dict[Partition, Fields] = {}
_SEVERAL: Fields = ((b"tablegate-partition", b"several"), (b"tablegate-role", b"owner"))


def trailer(partitions: Mapping[Partition, Position]) -> Fields:
    """Return what follows an answer: which partition gave it, in which role."""
    if len(partitions) != 1:
        return _SEVERAL
    [partition] = partitions
    kept = _TRAILERS.get(partition)
    if kept is None:
        kept = _TRAILERS[partition] = ((b"tablegate-partition", b"%d" % partition), (b"tablegate-role", b"owner"))
    return kept
