"""One table of a store: may it be answered, from which partitions, and what was read.

Decision: docs/decisions/0034-a-store-that-is-away.md
"""

import copy
import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError, Message

from tablegate.gateway.access.views import View
from tablegate.gateway.cluster.directory import Directory
from tablegate.gateway.cluster.forward_token import ForeignForwardToken, ForwardToken, ForwardTokenSigner
from tablegate.gateway.cluster.scatter import Router
from tablegate.gateway.contract.catalogue import Partitioner, Query, Table
from tablegate.gateway.contract.foreign.topics import PartitionOf, UnfitTopic, is_anywhere, partition_function
from tablegate.gateway.contract.keys import KeyType, encode_key, murmur2_partition
from tablegate.gateway.contract.lineage import place_at
from tablegate.gateway.contract.tokens import (
    InvalidToken,
    ReadPositions,
    StaleGeneration,
    TokenSigner,
    positions_of,
    request_hasher,
)
from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.query.call import Fields, ForView, TopicEnds
from tablegate.gateway.query.changelog_ends import ChangelogEnds
from tablegate.gateway.query.errors import (
    CorruptRow,
    ForeignForward,
    GenerationsMixed,
    PartitionUnavailable,
    QueryError,
    StoreAway,
    TableRebuilt,
)
from tablegate.gateway.query.limits import DEFAULT_LIMITS, QueryLimits
from tablegate.gateway.query.visible_rows import VisibleRows
from tablegate.gateway.stores.base import Phase, Position, Snapshot, StoreCorrupt, StoreReader, StoreUnavailable
from tablegate.gateway.stores.expiry import UnexpiredReader
from tablegate.gateway.stores.notifier import Notifier
from tablegate.gateway.telemetry.measures import Measures
from tablegate.internal.v1.store_pb2 import TableState
from tablegate.internal.v1.tokens_pb2 import TOKEN_KIND_CONSISTENCY, Token, TokenKind
from tablegate.v1.query_pb2 import ReadInfo

NowMs = Callable[[], int]
"""Milliseconds since 1970."""

_LIVE = Phase.LIVE

_logger = logging.getLogger("tablegate.gateway.query")


def wall_clock_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def error_for_store(error: StoreUnavailable) -> QueryError:
    """Return the error that a client gets where the store cannot be read."""
    if isinstance(error, StoreCorrupt):
        _logger.error(
            "the store is damaged; stop the gateway, remove the store, start it", extra={"reason": str(error)}
        )
        return CorruptRow("the store is damaged; ask the operator to have it made anew")
    return StoreAway()


class ServedGeneration:
    """The generation of a table that is served now: its rows' store id, number, partition count and manifest.

    `is_anywhere`: any partition may have a key.
    """

    __slots__ = ("generation", "is_anywhere", "manifest", "partition_count", "partitions", "state", "store_id")

    def __init__(self, state: TableState) -> None:
        self.state = state
        self.store_id = StoreId(state.store_id)
        self.manifest = state.manifest
        self.generation = state.manifest.generation
        self.partition_count = state.manifest.partition_count
        self.partitions = [Partition(number) for number in range(self.partition_count)]
        self.is_anywhere = is_anywhere(state.manifest)


class ServingView(NamedTuple):
    """What a gateway serves of a table: its generation, and those of the partitions in question that are live here.

    `away` is why the store cannot be read, if it cannot: then the generation is the last one known, with no partitions.
    """

    served: ServedGeneration
    partitions: Sequence[Partition]
    away: StoreUnavailable | None = None


class MergedRead(NamedTuple):
    """What an answer was read from, here and elsewhere: positions of one generation, and the times that it is as of."""

    generation: int
    read: ReadPositions
    as_of_ms: Sequence[int]


class _ReadInfo(NamedTuple):
    """A ReadInfo, and what it says."""

    positions: Mapping[Partition, Position]
    generation: int
    info: bytes


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


class TableAccess:
    """A table as its queries see it. One thread.

    `visible`: what a principal may see of it; None: all. `waits`, `deliveries`: what is measured of it.
    """

    def __init__(
        self,
        table: Table,
        store: StoreReader,
        signer: TokenSigner,
        notifier: Notifier,
        now_ms: NowMs,
        ends: TopicEnds | None = None,
        router: Router | None = None,
        limits: QueryLimits = DEFAULT_LIMITS,
        measures: Measures | None = None,
    ) -> None:
        measures = Measures() if measures is None else measures
        self.table = table
        self.store = store if table.expiry is None else UnexpiredReader(store, table.expiry, now_ms)
        self.signer = signer
        self.notifier = notifier
        self.ends = ends
        self.changelog_ends = ChangelogEnds(ends)
        self.now_ms = now_ms
        self.limits = limits
        self.visible: VisibleRows | None = None
        self._staleness = measures.read_staleness[(table.name,)]
        self.waits = measures.freshness_waits[(table.name,)]
        self.deliveries = measures.deliveries[(table.name,)]
        self.router = Router.alone() if router is None else router
        # The common partitioner is called without the table between: one function less on every read of a key.
        is_murmur2 = table.partitioner is Partitioner.MURMUR2
        self._own_partition_of: PartitionOf = murmur2_partition if is_murmur2 else table.partition_of
        self.partition_of: PartitionOf = self._own_partition_of  # of the generation that is served
        self._directory = self.router.directory
        self._forward_tokens = ForwardTokenSigner(signer, now_ms)
        self._key_fields = [(column.name, column.type is KeyType.TIMESTAMP) for column in table.key]
        self._served: ServedGeneration | None = None
        self._read_infos: dict[Partition, tuple[Position, int, bytes]] = {}
        self._read_several: _ReadInfo | None = None  # the last of several partitions
        self._trailers: dict[Partition, Fields] = {}
        self._trailers_version = (0, 0)  # of the directory, and the table's generation

    def seen(self, view: View) -> "TableAccess":
        """Return the table as those see it who have this view."""
        access = copy.copy(self)
        access.visible = VisibleRows(view, self.table)
        access.signer = self.signer.sealing()
        access._read_infos, access._read_several = {}, None
        return access

    def forward_token(
        self, generation: int = 0, partitions: Sequence[Partition] = (), resume_token: str = ""
    ) -> ForwardToken:
        """Return what another gateway is asked for, for the same view."""
        view = None if self.visible is None else self.visible.view
        return ForwardToken(self.table.name, generation, tuple(partitions), resume_token, view)

    def request_hasher(self, query: Query) -> Callable[[Message], int]:
        """Return the function from a request to the `request_hash` of its tokens, which are of this view alone."""
        return request_hasher(query, b"" if self.visible is None else self.visible.view.digest())

    def scope(self, forwarded: str) -> Scope:
        """Return what another gateway asks for, by the text that it has signed; raise `ForeignForward` or `ForView`."""
        token = self._opened_forward(forwarded)
        if token.view is not None and (self.visible is None or self.visible.view != token.view):
            raise ForView  # never answered from more than the view, whoever calls the handler
        partitions = tuple(Partition(number) for number in token.partitions)
        return Scope(token.generation, partitions or None, token.resume_token, token.view)

    def forwarded_view(self, forwarded: str) -> View | None:
        """Return what of the table another gateway asks for; None: all. Raise `ForeignForward`."""
        return self._opened_forward(forwarded).view

    def _opened_forward(self, forwarded: str) -> ForwardToken:
        try:
            return self._forward_tokens.open(forwarded, self.table.name)
        except ForeignForwardToken as error:
            raise ForeignForward(str(error)) from None

    def served(self, snapshot: Snapshot) -> ServedGeneration:
        """Return the generation that is served; raise `PartitionUnavailable` where the table is not."""
        state, known = snapshot.table(self.table.name), self._served
        return known if known is not None and state is known.state else self._served_by(state)

    def last_served(self, away: StoreUnavailable) -> ServedGeneration:
        """Return the generation that was served when the store was last read; raise `away` where none is known."""
        state = self.router.tables.get(self.table.name) if self.router.is_clustered else None
        if state is None:
            raise away
        try:
            return self._served_by(state)
        except PartitionUnavailable:
            raise away from None

    def view(self, partitions_of: Callable[[ServedGeneration], Iterable[Partition]] = lambda _: ()) -> ServingView:
        """Return which of these partitions are live here: none while the store is away.

        Raise `PartitionUnavailable` where the table is not served, `StoreUnavailable` where no generation is known.
        """
        try:
            with self.store.snapshot() as snapshot:
                served = self.served(snapshot)
                live = [each for each in partitions_of(served) if self.is_live(snapshot, served, each)]
                return ServingView(served, live)
        except StoreUnavailable as away:
            return ServingView(self.last_served(away), (), away)

    def _served_by(self, state: TableState | None) -> ServedGeneration:
        known = self._served
        if known is not None and state == known.state:
            return known
        if state is None or not state.HasField("manifest"):
            text = state.problem if state is not None and state.problem else "no manifest of its job has been read yet"
            raise PartitionUnavailable(self.table.name, None, text.rstrip("."))
        if state.problem:
            raise PartitionUnavailable(self.table.name, None, state.problem.rstrip("."))
        partition_of = self._own_partition_of
        if state.manifest.HasField("foreign"):
            try:
                partition_of = partition_function(self.table, state.manifest)
            except UnfitTopic as error:  # stored by a gateway with another contract
                raise PartitionUnavailable(self.table.name, None, str(error)) from None
        self.partition_of = partition_of
        self._served = known = ServedGeneration(state)
        # Read infos are of a generation's offsets.
        self._read_infos.clear()
        self._read_several = None
        return known

    def check_served_here(self, partitions_of: Callable[[ServedGeneration], Iterable[Partition]]) -> None:
        """Raise `PartitionUnavailable` where others are to be asked at once: before this gateway waits for anything.

        And `StoreUnavailable`.
        """
        with self.store.snapshot() as snapshot:
            served = self.served(snapshot)
            for partition in partitions_of(served):
                self.live(snapshot, served, partition)

    def live(self, snapshot: Snapshot, served: ServedGeneration, partition: Partition) -> Position:
        """Return the position of a partition that may be answered; raise `PartitionUnavailable`."""
        position = snapshot.position(served.store_id, partition)
        if position is None or position.phase is not _LIVE:
            raise PartitionUnavailable(self.table.name, partition, "it is being restored")
        return position

    def live_position(self, snapshot: Snapshot, served: ServedGeneration, partition: Partition) -> Position | None:
        """Return the position of a partition that this gateway may answer from; None of another."""
        position = snapshot.position(served.store_id, partition)
        return None if position is None or position.phase is not _LIVE else position

    def is_live(self, snapshot: Snapshot, served: ServedGeneration, partition: Partition) -> bool:
        """Return whether this gateway may answer from a partition."""
        return self.live_position(snapshot, served, partition) is not None

    def key_of_row(self, row: bytes) -> bytes:
        """Return the key bytes of a row of the table; raise `ValueError` where it is no such row."""
        try:
            message: Any = self.table.row_class.FromString(row)
        except DecodeError:
            raise ValueError("the bytes are no row") from None
        values = [
            getattr(message, name).ToMicroseconds() if is_time else getattr(message, name)
            for name, is_time in self._key_fields
        ]
        return encode_key(self.table.key, values)

    @property
    def is_anywhere(self) -> bool:
        """Return whether any partition may have a key of the generation that was served last."""
        return self._served is not None and self._served.is_anywhere

    def places_of(self, key: bytes, partition_count: int) -> Sequence[Partition]:
        """Return the partitions that may have a key of the generation that was served last."""
        if self._served is not None and self._served.is_anywhere:
            return self._served.partitions  # whose count it is, as callers have just asked what is served
        return (self.partition_of(key, partition_count),)

    def indexes_by_partition(
        self, keys: Sequence[bytes], served: ServedGeneration, among: Sequence[Partition] | None = None
    ) -> dict[Partition, list[int]]:
        """Return the indexes of `keys` by partition, lowest partition first.

        `among`: where a key may be in any partition, those that are asked for; None: all.
        """
        if served.is_anywhere:
            return {partition: list(range(len(keys))) for partition in among or served.partitions}
        partition_of, partition_count = self.partition_of, served.partition_count
        indexes: dict[Partition, list[int]] = {}
        for index, key in enumerate(keys):
            indexes.setdefault(partition_of(key, partition_count), []).append(index)
        return dict(sorted(indexes.items()))

    def open_token(
        self,
        text: str,
        *,
        kind: TokenKind,
        request_hash: int,
        served: ServedGeneration,
        refused: Callable[[str], QueryError],
    ) -> Token:
        """Return the token of a query of this table; `refused` makes the error of a bad one from what is wrong with it.

        Raise that, `TableRebuilt`, or `PartitionUnavailable` where the token is of a generation that is not here yet.
        """
        token = self.open_any_generation(text, kind=kind, request_hash=request_hash, refused=refused)
        self.check_generation(token, served)
        return token

    def open_any_generation(
        self, text: str, *, kind: TokenKind, request_hash: int, refused: Callable[[str], QueryError]
    ) -> Token:
        """Return the token of a query of this table, of whichever generation; raise what `refused` makes."""
        try:
            return self.signer.open(text, kind=kind, table=self.table.name, generation=None, request_hash=request_hash)
        except InvalidToken as error:
            raise refused(error.fault.value) from None

    def check_generation(self, token: Token, served: ServedGeneration) -> None:
        """Raise `TableRebuilt`, or `PartitionUnavailable` where the token is of a generation that is not here yet."""
        # This gateway is behind: it has not switched yet, another one has, or will have in a moment.
        if token.generation > served.generation:
            raise PartitionUnavailable(self.table.name, None, "the token is of a newer generation of it")
        if token.generation < served.generation:
            raise TableRebuilt(self.table.name)

    def note_read(self, positions: Iterable[Position]) -> None:
        """Measure how old an answer is that was read from `positions`."""
        self.note_age(min((position.as_of_ms for position in positions), default=0))

    def note_age(self, as_of_ms: int) -> None:
        """Measure how old an answer is; not where nothing was written yet, so that there is no time: 0."""
        if not as_of_ms:
            return
        # `Histogram.add_since`, written out: each Get comes here.
        staleness = self._staleness
        age_s = staleness.now_s() - as_of_ms / 1_000
        if age_s < 0:
            age_s = 0.0
        staleness.counts[bisect_left(staleness.bounds, age_s)] += 1
        staleness.sum += age_s

    def read_info(self, served: ServedGeneration, positions: Mapping[Partition, Position]) -> bytes:
        """Return the ReadInfo of an answer made from `positions`."""
        # Signing costs more than the read. Between two commits of a partition all its answers have the same info.
        if len(positions) != 1:
            several = self._read_several
            if several is None or several.generation != served.generation or several.positions != positions:
                made = self._made_read_info(served, positions)
                several = self._read_several = _ReadInfo(dict(positions), served.generation, made)
            return several.info
        [(partition, position)] = positions.items()
        kept = self._read_infos.get(partition)
        if kept is not None and kept[1] == served.generation and (kept[0] is position or kept[0] == position):
            return kept[2]
        made = self._made_read_info(served, positions)
        self._read_infos[partition] = (position, served.generation, made)
        return made

    def merged_read_info(
        self, served: ServedGeneration, positions: Mapping[Partition, Position], infos: Sequence[bytes]
    ) -> bytes:
        """Return the ReadInfo of what `merged_read` returns; raise `GenerationsMixed`."""
        return self.signed_read_info(self.merged_read(served, positions, infos))

    def merged_read(
        self, served: ServedGeneration, positions: Mapping[Partition, Position], infos: Sequence[bytes]
    ) -> MergedRead:
        """Return what an answer was read from, of `positions` here, and of answers with `infos` elsewhere.

        Raise `GenerationsMixed` where they are of several generations of the table.
        """
        # Where nothing was read here, the first info decides which generation the others have to be of.
        generation = served.generation if positions else None
        read = read_positions(positions)
        as_of_ms = [position.as_of_ms for position in positions.values()]
        for data in infos:
            info = ReadInfo.FromString(data)
            try:
                token = self.signer.open(
                    info.consistency_token, kind=TOKEN_KIND_CONSISTENCY, table=self.table.name, generation=generation
                )
            except StaleGeneration:
                raise GenerationsMixed(self.table.name) from None
            generation = token.generation
            read = read.joined(positions_of(token))
            if info.HasField("as_of_time"):
                as_of_ms.append(info.as_of_time.ToMilliseconds())
        return MergedRead(generation or served.generation, read, as_of_ms)

    def _made_read_info(self, served: ServedGeneration, positions: Mapping[Partition, Position]) -> bytes:
        as_of_ms = [position.as_of_ms for position in positions.values()]
        return self.signed_read_info(MergedRead(served.generation, read_positions(positions), as_of_ms))

    def signed_read_info(self, merged: MergedRead) -> bytes:
        """Return the ReadInfo of an answer."""
        token = Token(
            kind=TOKEN_KIND_CONSISTENCY,
            table=self.table.name,
            generation=merged.generation,
            issue_time_ms=self.now_ms(),
        )
        info = ReadInfo(consistency_token=self.signer.sign_read(token, merged.read))
        if merged.as_of_ms:
            # The oldest counts: no row of the answer may be older than it says.
            oldest_ms = min(merged.as_of_ms)
            info.as_of_time.seconds = oldest_ms // 1_000
            info.as_of_time.nanos = oldest_ms % 1_000 * 1_000_000
        return info.SerializeToString()

    def trailer(self, served: ServedGeneration, positions: Mapping[Partition, Position]) -> Fields:
        """Return what follows an answer: which partition and gateway gave it, in which role."""
        directory = self._directory
        if not directory.own_id:  # it stands alone, and has no name to tell
            return _ALONE_SEVERAL if len(positions) != 1 else _alone_trailer(next(iter(positions)))
        version = directory.version, served.generation
        if version != self._trailers_version:
            self._trailers_version = version
            self._trailers.clear()
        if len(positions) != 1:
            return several_trailer(frozenset((directory.own_id,)))
        [partition] = positions
        kept = self._trailers.get(partition)
        if kept is None:
            kept = self._trailers[partition] = _trailer(directory, self.table.name, partition, served.generation)
        return kept


def read_positions(positions: Mapping[Partition, Position]) -> ReadPositions:
    """Return what was read from these positions."""
    return ReadPositions(
        {each: place_at(position.lineage, position.next_offset) for each, position in positions.items()}
    )


@lru_cache(maxsize=4_096)
def _alone_trailer(partition: Partition) -> Fields:
    return ((b"tablegate-partition", b"%d" % partition), (b"tablegate-role", b"owner"))


_ALONE_SEVERAL: Fields = ((b"tablegate-partition", b"several"), (b"tablegate-role", b"owner"))


def _trailer(directory: Directory, table: str, partition: Partition, generation: int) -> Fields:
    replicas = directory.replicas(table, partition, generation)
    owner_id = replicas[0].gateway_id if replicas else directory.own_id
    return (
        (b"tablegate-partition", b"%d" % partition),
        (b"tablegate-role", b"owner" if owner_id == directory.own_id else b"standby"),
        (b"tablegate-gateway", directory.own_id.encode()),
        (b"tablegate-owner", owner_id.encode()),
    )


@lru_cache(maxsize=1_024)
def several_trailer(gateway_ids: frozenset[str]) -> Fields:
    """Return the trailer of an answer from several partitions, to which these gateways gave their parts."""
    return ((b"tablegate-partition", b"several"), (b"tablegate-gateway", ",".join(sorted(gateway_ids)).encode()))
