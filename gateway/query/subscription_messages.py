"""What a Subscribe says: changes and progress as the contract's messages, and the tokens to go on from."""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import Message

from gateway.contract.catalogue import SubscribeQuery
from gateway.contract.keys import decode_key
from gateway.contract.types import Offset, Partition
from gateway.internal.v1.tokens_pb2 import TOKEN_KIND_SUBSCRIBE, Token
from gateway.query.access import Life, TableAccess
from gateway.query.wire import Heads
from gateway.stores.base import Position
from gateway.subscription.cursor import Cursor, Given, Mark, Selection
from gateway.v1.query_pb2 import (
    SUBSCRIBE_PHASE_CATCHING_UP,
    SUBSCRIBE_PHASE_CURRENT,
    SubscribePhase,
    SubscribeProgress,
)

Marks = Mapping[Partition, Mark]
Positions = Mapping[Partition, Position]


class ChangeEncoder:
    """Splices rows and keys into the response of a Subscribe."""

    def __init__(self, query: SubscribeQuery) -> None:
        self._key = query.table.key
        self._key_class = _key_class(query)
        self._changes = Heads(query.changes.number)
        self._upsert = Heads(query.upsert.number)
        self._delete = Heads(query.delete.number)
        self._progress = Heads(query.progress.number)
        self._read_info = Heads(SubscribeProgress.READ_INFO_FIELD_NUMBER)

    def message(self, given: Sequence[Given], progress: SubscribeProgress, read_info: bytes | None) -> bytes:
        """Return a response; `read_info` are the bytes of what belongs into `progress`."""
        upsert, delete = self._upsert, self._delete
        changes = [
            delete.embed(self._key_message(key)) if row is None else upsert[len(row)] + row for key, row in given
        ]
        told = progress.SerializeToString()
        if read_info is not None:
            told += self._read_info.embed(read_info)
        return self._changes.embed_all(changes) + self._progress.embed(told)

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


class Speaker:
    """Says things to those who ask for the same of one life of a table."""

    def __init__(
        self, encoder: ChangeEncoder, access: TableAccess, life: Life, selection: Selection, request_hash: int
    ) -> None:
        self._encoder = encoder
        self._access = access
        self._life = life
        self._selection = selection
        self._request_hash = request_hash

    def say(
        self, given: Sequence[Given], phase: SubscribePhase, cursor: Cursor, positions: Positions | None = None
    ) -> bytes:
        """Return the message after which a copy is at `cursor`; with `positions` it says what is read."""
        progress = SubscribeProgress(phase=phase, resume_token=self._token(cursor))
        read_info = None
        if positions is not None:
            mine = {partition: positions[partition] for partition in self._selection.partitions}
            read_info = self._access.read_info(self._life, mine)
        return self._encoder.message(given, progress, read_info)

    def say_live(self, given: Sequence[Given], marks: Marks, positions: Positions, is_whole: bool) -> bytes:
        """Return a message of the feed."""
        cursor = Cursor(dict(marks), filling=len(self._selection.partitions))
        if is_whole:
            return self.say(given, SUBSCRIBE_PHASE_CURRENT, cursor, positions)
        return self.say(given, SUBSCRIBE_PHASE_CATCHING_UP, cursor)

    def _token(self, cursor: Cursor) -> str:
        selection, life, marks = self._selection, self._life, cursor.marks
        is_filled = cursor.filling == len(selection.partitions)
        token = Token(
            kind=TOKEN_KIND_SUBSCRIBE,
            table=self._access.table.name,
            generation=life.generation,
            request_hash=self._request_hash,
            issue_time_ms=self._access.now_ms(),
            after_key=cursor.after_key,
            partition=life.partition_count if is_filled else selection.partitions[cursor.filling],
            partitions=list(marks),
            next_offsets=[mark.offset for mark in marks.values()],
            life_id=life.state.life_id,
            changelog_topic_id=life.manifest.changelog_topic_id,
        )
        if any(mark.skip for mark in marks.values()):
            token.skips.extend([mark.skip for mark in marks.values()])
        return self._access.signer.sign(token)


def cursor_of(token: Token, life: Life, selection: Selection, *, ages: bool) -> Cursor | None:
    """Return the cursor that a token of this generation says; None where only a new snapshot helps.

    `ages`: the table has retention. Each store removes what is expired at its own time, so what a subscriber has been
    told of that is known in the store alone that made its token.
    """
    is_same_life = token.life_id == life.state.life_id
    if token.changelog_topic_id != life.manifest.changelog_topic_id or (ages and not is_same_life):
        return None
    skips = list(token.skips) if is_same_life and token.skips else [0] * len(token.partitions)
    marks = {
        Partition(partition): Mark(Offset(offset), skip)
        for partition, offset, skip in zip(token.partitions, token.next_offsets, skips, strict=True)
    }
    partitions = list(selection.partitions)
    filling = partitions.index(Partition(token.partition)) if token.partition in partitions else len(partitions)
    begun = partitions[:filling] + [partition for partition in partitions[filling : filling + 1] if partition in marks]
    return Cursor(marks, filling, token.after_key) if list(marks) == begun else None
