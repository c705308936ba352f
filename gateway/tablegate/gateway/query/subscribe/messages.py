"""The messages of a Subscribe: changes and progress as the contract has them, and the tokens to go on from.

Decision: docs/decisions/0023-token-in-each-message.md
Decision: docs/decisions/0026-incarnations-where-rows-expire.md
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from google.protobuf.message import Message

from tablegate.gateway.contract.catalogue import SubscribeQuery
from tablegate.gateway.contract.keys import decode_key
from tablegate.gateway.contract.lineage import add_places, places_of
from tablegate.gateway.contract.tokens import CLIENT_TOKEN_CHARS_MAX
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.contract.wire import FieldEncoder, MessageSplitter
from tablegate.gateway.query.serving import ServedGeneration, TableAccess
from tablegate.gateway.query.subscribe.cursor import ChangePosition, Cursor, Given, Selection
from tablegate.gateway.stores.base import Position
from tablegate.internal.v1.tokens_pb2 import TOKEN_KIND_SUBSCRIBE, Token
from tablegate.v1.query_pb2 import (
    SUBSCRIBE_PHASE_CATCHING_UP,
    SUBSCRIBE_PHASE_CURRENT,
    SubscribePhase,
    SubscribeProgress,
)

ChangePositions = Mapping[Partition, ChangePosition]
Positions = Mapping[Partition, Position]


class ChangeEncoder:
    """Splices rows and keys into the response of a Subscribe."""

    def __init__(self, query: SubscribeQuery) -> None:
        self._key = query.table.key
        self._key_class = _key_class(query)
        self._changes = FieldEncoder(query.changes.number)
        self._upsert = FieldEncoder(query.upsert.number)
        self._delete = FieldEncoder(query.delete.number)
        self._progress = FieldEncoder(query.progress.number)
        self._splitter = MessageSplitter(query.changes, query.progress)
        self._read_info = FieldEncoder(SubscribeProgress.READ_INFO_FIELD_NUMBER)

    def message(self, given: Sequence[Given], progress: SubscribeProgress, read_info: bytes | None) -> bytes:
        """Return a response; `read_info` are the bytes of what belongs into `progress`."""
        upsert, delete = self._upsert, self._delete
        changes = [
            delete.encode(self._key_message(key)) if row is None else upsert[len(row)] + row for key, row in given
        ]
        return self.joined(self._changes.encode_all(changes), progress, read_info)

    def joined(self, changes: bytes, progress: SubscribeProgress, read_info: bytes | None) -> bytes:
        """Return a response of changes as they are on the wire."""
        encoded = progress.SerializeToString()
        if read_info is not None:
            encoded += self._read_info.encode(read_info)
        return changes + self._progress.encode(encoded)

    def split(self, response: bytes) -> tuple[bytes, SubscribeProgress]:
        """Return what `joined` was given."""
        parts = self._splitter.split(response)
        return parts.repeated, SubscribeProgress.FromString(parts.progress)

    def _key_message(self, key: bytes) -> bytes:
        message = self._key_class()
        for column, value in zip(self._key, decode_key(self._key, key), strict=True):
            field: Any = getattr(message, column.name)
            if isinstance(field, Message):
                field.FromMicroseconds(value)  # type: ignore[attr-defined]
            else:
                setattr(message, column.name, value)
        return message.SerializeToString()


def _key_class(query: SubscribeQuery) -> type[Message]:
    response: Any = query.response_class()
    change = getattr(response, query.changes.name).add()
    return type(getattr(change, query.delete.name))


class ProgressEncoder:
    """Encodes messages to those who ask for the same of one generation of a table."""

    __slots__ = ("_access", "_encoder", "_is_part", "_request_hash", "_selection", "_served")

    def __init__(
        self,
        encoder: ChangeEncoder,
        access: TableAccess,
        served: ServedGeneration,
        selection: Selection,
        request_hash: int,
        *,
        is_part: bool = False,
    ) -> None:
        """Encode what clients get; what `is_part` of another gateway's stream has tokens as long as they are."""
        self._is_part = is_part
        self._encoder = encoder
        self._access = access
        self._served = served
        self._selection = selection
        self._request_hash = request_hash

    def encode(
        self, given: Sequence[Given], phase: SubscribePhase, cursor: Cursor, positions: Positions | None = None
    ) -> bytes:
        """Return the message after which a copy is at `cursor`; with `positions` it says what is read."""
        text = self.token(cursor)
        if not self._is_part:
            text = client_token(text, self._access, self._served, self._request_hash)
        progress = SubscribeProgress(phase=phase, resume_token=text)
        read_info = None
        if positions is not None:
            mine = {partition: positions[partition] for partition in self._selection.partitions}
            read_info = self._access.read_info(self._served, mine)
        return self._encoder.message(given, progress, read_info)

    def encode_live(
        self, given: Sequence[Given], change_positions: ChangePositions, positions: Positions, is_whole: bool
    ) -> bytes:
        """Return a message of the broadcaster."""
        cursor = Cursor(dict(change_positions), filling=len(self._selection.partitions))
        if is_whole:
            return self.encode(given, SUBSCRIBE_PHASE_CURRENT, cursor, positions)
        return self.encode(given, SUBSCRIBE_PHASE_CATCHING_UP, cursor)

    def token(self, cursor: Cursor) -> str:
        """Return the resume token of a cursor."""
        selection, served, change_positions = self._selection, self._served, cursor.change_positions
        is_filled = cursor.filling == len(selection.partitions)
        token = Token(
            after_key=cursor.after_key,
            partition=served.partition_count if is_filled else selection.partitions[cursor.filling],
        )
        router = self._access.router
        source = "" if router is None else router.directory.own_id
        floors = {each: floor for each, floor in cursor.floors.items() if each not in change_positions}
        return signed_token(token, change_positions, floors, self._access, served, self._request_hash, lambda _: source)


def signed_token(
    token: Token,
    change_positions: ChangePositions,
    floors: ChangePositions,
    access: TableAccess,
    served: ServedGeneration,
    request_hash: int,
    source_of: Callable[[int], str],
) -> str:
    """Return the text of a resume token, to which the change positions, floors of other partitions, and what it belongs
    to are added.

    `source_of` says which gateway has sent the partitions of an incarnation.
    """
    token.kind = TOKEN_KIND_SUBSCRIBE
    token.table = access.table.name
    token.generation = served.generation
    token.request_hash = request_hash
    token.issue_time_ms = access.now_ms()
    token.changelog_topic_id = served.manifest.changelog_topic_id
    known = {**change_positions, **floors}
    token.floors.extend(floors)
    add_places(token, {partition: each.place for partition, each in known.items()})
    if any(each.skip for each in known.values()):
        token.skips.extend([each.skip for each in known.values()])
    # Incarnations are numbered in the token: mostly all partitions have the same one, and a number is shorter than an
    # id.
    numbers: dict[int, int] = {}  # of incarnations
    incarnations = [numbers.setdefault(each.incarnation_id, len(numbers)) for each in known.values()]
    if any(numbers):
        token.incarnation_ids.extend(numbers)
        sources = [source_of(incarnation_id) for incarnation_id in numbers]
        token.gateways.extend(sources if any(sources) else ())
    if any(incarnations):
        token.incarnations.extend(incarnations)
    return access.signer.sign(token)


def client_token(text: str, access: TableAccess, served: ServedGeneration, request_hash: int) -> str:
    """Return a resume token as a client gets it: where `text` is too long to be kept, one that begins anew."""
    if len(text) < CLIENT_TOKEN_CHARS_MAX:
        return text
    # Of no changelog, so nobody goes on with it: a change position that is not exact repeats changes or loses some.
    token = Token(kind=TOKEN_KIND_SUBSCRIBE, table=access.table.name, generation=served.generation)
    token.request_hash, token.issue_time_ms = request_hash, access.now_ms()
    return access.signer.sign(token)


def change_positions_of(token: Token) -> tuple[dict[Partition, ChangePosition], dict[Partition, ChangePosition]]:
    """Return the change positions that a resume token says, and the floors of other partitions."""
    zeros = [0] * len(token.next_offsets)
    incarnation_ids = token.incarnation_ids or [0]
    known = {
        partition: ChangePosition(place.next_offset, skip, incarnation_ids[number], place.leader_epoch, place.gap)
        for (partition, place), skip, number in zip(
            places_of(token).items(), token.skips or zeros, token.incarnations or zeros, strict=True
        )
    }
    floors = {partition: known.pop(partition) for partition in map(Partition, token.floors) if partition in known}
    return known, floors


def sources_of(token: Token) -> dict[int, str]:
    """Return the gateway of each incarnation, as a resume token says: it sent the partitions that are of it."""
    return dict(zip(token.incarnation_ids, token.gateways, strict=False))


def cursor_of(token: Token, served: ServedGeneration, selection: Selection) -> tuple[Cursor, Selection] | None:
    """Return the cursor that a token of this generation says, and the selection with its partitions in that order.

    None where only a new snapshot helps.
    """
    if token.changelog_topic_id != served.manifest.changelog_topic_id:
        return None
    change_positions, floors = change_positions_of(token)
    filling = Partition(token.partition)
    is_filled = filling == served.partition_count
    done = [each for each in selection.partitions if each in change_positions and each != filling]
    rest = [each for each in selection.partitions if each not in change_positions and each != filling]
    # A cursor of partitions that are not selected is of another request, or of a table that was partitioned otherwise.
    if not change_positions.keys() <= set(selection.partitions) or (is_filled and rest):
        return None
    if is_filled:
        return Cursor(change_positions, len(done)), selection
    if filling not in selection.partitions:
        return None
    cursor = Cursor(change_positions, len(done), token.after_key, floors)
    return cursor, replace(selection, partitions=[*done, filling, *rest])


class MergedCursor:
    """Where a copy is that several sources fill, each some partitions of it.

    Change positions of the partitions that were begun, and up to which key one of them, `filling`, is filled. `floors`
    are those of a `Cursor`.
    """

    def __init__(self, floors: ChangePositions = MappingProxyType({})) -> None:
        self.change_positions: dict[Partition, ChangePosition] = {}
        self._floors = dict(floors)
        self.filling: Partition | None = None
        self._after_key = b""
        self._sources: dict[int, str] = {}  # the gateway of each incarnation

    def is_done(self, partition: Partition) -> bool:
        """Return whether a partition is filled."""
        return partition in self.change_positions and partition != self.filling

    def begun_anew(self) -> "MergedCursor":
        """Return the cursor of a copy that takes the place of this one."""
        return MergedCursor({**self._floors, **self.change_positions})

    def apply(self, token: Token) -> None:
        """Move to where a token of some partitions is."""
        change_positions, floors = change_positions_of(token)
        self.change_positions.update(change_positions)
        self._floors.update(floors)
        self._sources.update(sources_of(token))
        if token.partition in change_positions:
            self.filling, self._after_key = Partition(token.partition), token.after_key
        elif self.filling in change_positions:
            self.filling, self._after_key = None, b""

    def token(
        self, access: TableAccess, served: ServedGeneration, request_hash: int, partitions: Sequence[Partition]
    ) -> str:
        """Return the resume token of those partitions."""
        known = {each: self.change_positions[each] for each in partitions if each in self.change_positions}
        floors = {each: self._floors[each] for each in partitions if each in self._floors and each not in known}
        token = Token(partition=next((each for each in partitions if each not in known), served.partition_count))
        if self.filling in known:
            token.partition, token.after_key = self.filling, self._after_key
        return signed_token(
            token,
            known,
            floors,
            access,
            served,
            request_hash,
            lambda incarnation_id: self._sources.get(incarnation_id, ""),
        )

    def source_of(self, partition: Partition, incarnation_id: int | None) -> str:
        """Return the gateway that has to go on with a partition; "" where a store of this incarnation can itself."""
        # A store of the same incarnation can go on itself. Otherwise only the gateway that sent the partition can.
        known = self.change_positions.get(partition)
        return (
            ""
            if known is None or known.incarnation_id == incarnation_id
            else self._sources.get(known.incarnation_id, "")
        )

    def has_any(self, partitions: Collection[Partition]) -> bool:
        """Return whether the copy may have rows of one of them."""
        return not self.change_positions.keys().isdisjoint(partitions)
