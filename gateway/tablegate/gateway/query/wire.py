"""Protobuf wire bytes: enough to splice stored rows into responses without decoding them."""

from collections.abc import Iterable, Iterator

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


def fields(message: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, start, start of the value, and end of each field of a message that has a length; pass over others.

    Raise `ValueError` where the bytes are no message.
    """
    at = 0
    while at < len(message):
        start = at
        tag, at = _varint_at(message, at)
        match tag & 7:
            case 0:
                _, at = _varint_at(message, at)
            case 1:
                at += 8
            case 2:
                length, at = _varint_at(message, at)
                yield tag >> 3, start, at, at + length
                at += length
            case 5:
                at += 4
            case wire_type:
                raise ValueError(f"no field has wire type {wire_type}")
    if at > len(message):
        raise ValueError("the message ends in the middle of a field")


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint at a place, and the place behind it."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("the message ends in the middle of a number")


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
