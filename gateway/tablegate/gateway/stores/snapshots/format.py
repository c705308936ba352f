"""A snapshot file: the rows of a partition as another gateway would give them, kept as a file or an object.

    magic, frame of a TransferRequest, frames of TransferResponses, 4 zero bytes, SHA-256 of all bytes before it

A frame is a length of 4 bytes, little endian, and a message of as many bytes. The request says of what the rows are, so
that a file that was copied to another place is of no use there. The last response is handed on only where the digest is
right, and without it no position is stored: so what is cut or changed is never served.

The name says of what, and of when, a snapshot is. It is never written twice, and there is no pointer to the newest one:

    TABLE/GENERATION-DIGEST/PARTITION/TIME-OFFSET-RANDOM       TIME in milliseconds, of 13 digits; OFFSET of 20

Decision: docs/decisions/0161-snapshots-have-names-and-no-pointer.md
Decision: docs/decisions/0185-snapshot-files-are-not-compressed.md
"""

import re
from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from tablegate.gateway.contract.types import Offset, Partition
from tablegate.gateway.stores.snapshots.files import SnapshotFile
from tablegate.internal.v1.transfer_pb2 import TransferRequest, TransferResponse

MAGIC = b"tablegate snapshot 1\n"
FRAME_BYTES_MAX = 256 << 20  # one with a single long row, or with all repairs; a longer one is damage

_LENGTH_BYTES = 4
_END = bytes(_LENGTH_BYTES)
_MessageT = TypeVar("_MessageT", bound=Message)
_NAME = re.compile(
    r"(?P<folder>(?P<table>[a-z][a-z0-9_]*)/[0-9]+-[0-9a-f]{16})/(?P<partition>[0-9]{1,9})"
    r"/(?P<time>[0-9]{13})-(?P<offset>[0-9]{20})-[0-9a-f]{16}"
)


class SnapshotDamaged(Exception):
    """A snapshot that cannot be used; the message says why."""


class SnapshotName(NamedTuple):
    """What the name of a snapshot file says: its rows are as they were at `next_offset`, or later."""

    folder: str
    partition: Partition
    time_ms: int
    next_offset: Offset
    file: SnapshotFile


def folder_of(request: TransferRequest) -> str:
    """Return where the snapshots of a table are that fit a request, whichever partition it is for."""
    of_all = TransferRequest()
    of_all.CopyFrom(request)
    of_all.ClearField("partition")
    digest = sha256(of_all.SerializeToString(deterministic=True)).hexdigest()
    return f"{request.table}/{request.generation}-{digest[:16]}"


def new_name(request: TransferRequest, *, time_ms: int, next_offset: Offset, draw: int) -> str:
    """Return a name that no snapshot file has had, with 64 bits drawn at random."""
    at = f"{time_ms:013d}-{next_offset:020d}-{draw:016x}"
    return f"{folder_of(request)}/{request.partition}/{at}"


def snapshots_of(files: Iterator[SnapshotFile]) -> Iterator[SnapshotName]:
    """Yield what is a snapshot by its name."""
    for file in files:
        found = _NAME.fullmatch(file.name)
        if found is not None:
            partition, time_ms, offset = map(int, found.group("partition", "time", "offset"))
            yield SnapshotName(found["folder"], Partition(partition), time_ms, Offset(offset), file)


class Encoder:
    """Makes the bytes of one snapshot, in order: `begin`, `part` of each, `end`."""

    def __init__(self) -> None:
        self._digest = sha256()

    def begin(self, request: TransferRequest) -> bytes:
        """Return what comes first."""
        return self._hashed(MAGIC + _frame(request))

    def part(self, part: TransferResponse) -> bytes:
        """Return a part."""
        return self._hashed(_frame(part))

    def end(self) -> bytes:
        """Return what comes last."""
        return self._hashed(_END) + self._digest.digest()

    def _hashed(self, data: bytes) -> bytes:
        self._digest.update(data)
        return data


def _frame(message: Message) -> bytes:
    data = message.SerializeToString()
    return len(data).to_bytes(_LENGTH_BYTES, "little") + data


def parts_in(chunks: Iterator[bytes], request: TransferRequest) -> Iterator[TransferResponse]:
    """Yield the parts of a snapshot, the last one where all bytes are right; raise `SnapshotDamaged`.

    Also where it is not of what a request is for.
    """
    source = _Source(chunks)
    if source.read(len(MAGIC)) != MAGIC:
        raise SnapshotDamaged("it does not begin as a snapshot does")
    header = source.frame(TransferRequest)
    if header is None:
        raise SnapshotDamaged("it does not say of what it is")
    if header != request:
        raise SnapshotDamaged("it is of another table, partition, generation or contract")
    last: TransferResponse | None = None
    while (part := source.frame(TransferResponse)) is not None:
        if last is not None:
            raise SnapshotDamaged("more comes behind its last part")
        if part.last_position:
            last = part
        else:
            yield part
    digest = source.digest()
    if source.read(len(digest)) != digest or not source.is_at_end():
        raise SnapshotDamaged("its digest is wrong")
    if last is None:
        raise SnapshotDamaged("it has no last part")
    yield last


class _Source:
    """The bytes of a snapshot, as they come in chunks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._data = b""
        self._at = 0
        self._digest = sha256()

    def digest(self) -> bytes:
        """Return that of all that was read."""
        return self._digest.digest()

    def read(self, count: int) -> bytes:
        """Return the next `count` bytes; raise `SnapshotDamaged` where there are not so many."""
        while len(self._data) - self._at < count:
            chunk = next(self._chunks, b"")
            if not chunk:
                raise SnapshotDamaged("it is cut off")
            self._data, self._at = self._data[self._at :] + chunk, 0
        found = self._data[self._at : self._at + count]
        self._at += count
        self._digest.update(found)
        return found

    def frame(self, kind: type[_MessageT]) -> _MessageT | None:
        """Return the next message; None at the end of all."""
        length = int.from_bytes(self.read(_LENGTH_BYTES), "little")
        if not length:
            return None
        if length > FRAME_BYTES_MAX:
            raise SnapshotDamaged("a part of it is too long")
        try:
            return kind.FromString(self.read(length))
        except DecodeError:
            raise SnapshotDamaged("a part of it cannot be read") from None

    def is_at_end(self) -> bool:
        """Return whether nothing more comes."""
        return self._at == len(self._data) and not next(self._chunks, b"")
