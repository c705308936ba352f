"""Protobuf wire bytes: enough to splice stored rows into responses without decoding them."""

from collections.abc import Iterable

_LENGTH_DELIMITED = 2
_HEAD_LENGTHS_MAX = 4_096  # heads kept of each field: longer rows are rare, and lengths come from data


def varint(value: int) -> bytes:
    """Return `value` (not negative) as a base-128 varint."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class Heads(dict[int, bytes]):
    """What stands before a message in a field: tag and length, by length, kept once made."""

    def __init__(self, field_number: int) -> None:
        self._tag = varint(field_number << 3 | _LENGTH_DELIMITED)
        super().__init__()

    def __missing__(self, length: int) -> bytes:
        head = self._tag + varint(length)
        if length <= _HEAD_LENGTHS_MAX:
            self[length] = head
        return head

    def embed(self, message: bytes) -> bytes:
        """Return `message` as the value of the field."""
        return self[len(message)] + message

    def embed_all(self, messages: Iterable[bytes]) -> bytes:
        """Return `messages` as the values of the field, which is repeated."""
        parts: list[bytes] = []
        for message in messages:
            parts += (self[len(message)], message)
        return b"".join(parts)
