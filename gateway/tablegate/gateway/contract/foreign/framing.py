"""The wire format of Confluent's schema registry: 00, the schema's id in 4 bytes, and, of Protobuf, which message.

It is before a record's bytes, or in a header of the record, where 01 and the schema's GUID may be in place of 00 and
the id. What is in a header is put before the bytes, so that all records are read alike.

Decision: docs/decisions/0169-schema-ids-in-headers-of-topics.md
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from tablegate.gateway.contract.rows import VALUE_PREFIX_BYTES, UndecodableRecord

PLAIN_ID = 0
"""Id of the only schema of what is Avro alone; no registry has it."""


def schema_id_of(data: bytes, what: str) -> int:
    """Return the schema id before what begins at `VALUE_PREFIX_BYTES`; raise `UndecodableRecord`."""
    if len(data) < VALUE_PREFIX_BYTES or data[0] != 0:
        raise UndecodableRecord(f"{what} is not in the Confluent wire format")
    return int.from_bytes(data[1:VALUE_PREFIX_BYTES], "big")


KEY_HEADER, VALUE_HEADER = "__key_schema_id", "__value_schema_id"
_GUID_BYTES = 17  # with the byte before it


class SchemaIds(NamedTuple):
    """The headers of a record that say of which schemas its key and its value are; None where it has none."""

    key: bytes | None
    value: bytes | None


class HeaderFrames:
    """Puts what a header says before the bytes that it is of.

    `what` is a key or a value; `guids`: the ids of schemas; None where the codec asks for no id. `paths`: what may
    follow the id, which of Protobuf says which message of the schema it is.
    """

    def __init__(self, what: str, guids: Mapping[str, int] | None, paths: Sequence[bytes] = (b"",)) -> None:
        self._what = what
        self._frames = None
        if guids is not None:
            self._frames = {UUID(guid).bytes: b"\x00" + number.to_bytes(4, "big") for guid, number in guids.items()}
        self._paths = paths

    def before(self, header: bytes) -> bytes:
        """Return what is to be before the bytes; raise `UndecodableRecord`."""
        kind = header[:1]
        size = _GUID_BYTES if kind == b"\x01" else VALUE_PREFIX_BYTES
        if kind not in (b"\x00", b"\x01"):
            raise UndecodableRecord(f"{self._what} has a header of a schema id that is of no known kind")
        if len(header) < size:
            raise UndecodableRecord(f"{self._what} has a header of a schema id that ends early")
        if header[size:] not in self._paths:
            raise UndecodableRecord(
                f"{self._what} has a header of a schema id that goes on with what its codec has not"
            )
        if kind == b"\x00":
            return header
        frame = bytes(VALUE_PREFIX_BYTES) if self._frames is None else self._frames.get(header[1:_GUID_BYTES])
        if frame is None:
            raise UndecodableRecord(f"{self._what} has a schema GUID in a header that is not in the manifest")
        return frame + header[_GUID_BYTES:]


class ProtobufFrame:
    """The wire format of Protobuf, of the message of a schema that an index names: a place in each level.

    `what` is a key or a value.
    """

    def __init__(self, index: Sequence[int], what: str) -> None:
        self._what = what
        self._place = ".".join(map(str, index)) or "0"
        path = b"".join(map(_zigzag, (len(index), *index)))
        # The list of indexes with 0 alone is written as one zero; some writers write its length, 1, before it.
        self.paths = (path,) if [*index] not in ([], [0]) else (b"\x00", b"\x02\x00")

    def body(self, data: bytes) -> bytes:
        """Return the message that is in the wire format; raise `UndecodableRecord`."""
        schema_id_of(data, self._what)
        for path in self.paths:
            if data.startswith(path, VALUE_PREFIX_BYTES):
                return data[VALUE_PREFIX_BYTES + len(path) :]
        raise UndecodableRecord(f"{self._what} is not of message {self._place} of its schema")


def _zigzag(number: int) -> bytes:
    """Return a number that is not negative as the registry's clients write it: a varint of its double."""
    number *= 2
    low = bytearray()
    while number > 0x7F:
        low.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*low, number])
