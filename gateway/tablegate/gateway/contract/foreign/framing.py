"""The wire format of Confluent's schema registry: 00, the schema's id in 4 bytes, and, of Protobuf, which message."""

from collections.abc import Sequence

from tablegate.gateway.contract.rows import VALUE_PREFIX_BYTES, UndecodableRecord

PLAIN_ID = 0
"""Id of the only schema of what is Avro alone; no registry has it."""


def schema_id_of(data: bytes, what: str) -> int:
    """Return the schema id before what begins at `VALUE_PREFIX_BYTES`; raise `UndecodableRecord`."""
    if len(data) < VALUE_PREFIX_BYTES or data[0] != 0:
        raise UndecodableRecord(f"{what} is not in the Confluent wire format")
    return int.from_bytes(data[1:VALUE_PREFIX_BYTES], "big")


class ProtobufFrame:
    """The wire format of Protobuf, of the message of a schema that an index names: a place in each level.

    `what` is a key or a value.
    """

    def __init__(self, index: Sequence[int], what: str) -> None:
        self._what = what
        self._place = ".".join(map(str, index)) or "0"
        path = b"".join(map(_zigzag, (len(index), *index)))
        # The list of indexes with 0 alone is written as one zero; some writers write its length, 1, before it.
        self._paths = (path,) if [*index] not in ([], [0]) else (b"\x00", b"\x02\x00")

    def body(self, data: bytes) -> bytes:
        """Return the message that is in the wire format; raise `UndecodableRecord`."""
        schema_id_of(data, self._what)
        for path in self._paths:
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
