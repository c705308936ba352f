"""HTTP/2 frames (RFC 9113): their numbers, the few that we send besides answers, and what can be wrong with one."""

from collections.abc import Iterator
from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
FRAME_BYTES_MAX = 16_384  # of a payload: what each side must take, so neither announces more nor sends more
WINDOW_MAX = 2**31 - 1
WINDOW_BYTES = 65_535  # of a connection, and of a stream, until something else is said

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITIZED = 0x20

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = (
    range(1, 7)
)

NO_ERROR = 0x0
PROTOCOL_ERROR = 0x1
INTERNAL_ERROR = 0x2
FLOW_CONTROL_ERROR = 0x3
STREAM_CLOSED = 0x5
FRAME_SIZE_ERROR = 0x6
REFUSED_STREAM = 0x7
CANCEL = 0x8
COMPRESSION_ERROR = 0x9
ENHANCE_YOUR_CALM = 0xB

_HEAD = Struct(">LBL")  # the length takes the upper 24 bits of the first word, the type the lower 8
_SETTING = Struct(">HL")
_PRIORITY_BYTES = 5
pack_head = _HEAD.pack
"""Make a head of: length << 8 | type, flags, stream."""
unpack_head = _HEAD.unpack_from
"""Read the same; the stream with its reserved bit."""


class ConnectionFault(Exception):
    """What ends a connection: an error code, and a sentence for the client's log."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class StreamFault(Exception):
    """What ends a stream: an error code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame."""
    return pack_head(len(payload) << 8 | kind, flags, stream) + payload


def header_frames(block: bytes, stream: int, flags: int) -> bytes:
    """Return a header block as HEADERS, and CONTINUATION where it is long; flags: 0 or END_STREAM."""
    if len(block) <= FRAME_BYTES_MAX:
        return frame(HEADERS, flags | END_HEADERS, stream, block)
    pieces = [block[at : at + FRAME_BYTES_MAX] for at in range(0, len(block), FRAME_BYTES_MAX)]
    return b"".join(
        [
            frame(HEADERS, flags, stream, pieces[0]),
            *[frame(CONTINUATION, 0, stream, piece) for piece in pieces[1:-1]],
            frame(CONTINUATION, END_HEADERS, stream, pieces[-1]),
        ]
    )


def rst_stream(stream: int, code: int) -> bytes:
    """Return a RST_STREAM."""
    return frame(RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def window_update(stream: int, size: int) -> bytes:
    """Return a WINDOW_UPDATE."""
    return frame(WINDOW_UPDATE, 0, stream, size.to_bytes(4, "big"))


def goaway(last_stream: int, code: int, text: str = "") -> bytes:
    """Return a GOAWAY."""
    return frame(GOAWAY, 0, 0, last_stream.to_bytes(4, "big") + code.to_bytes(4, "big") + text.encode())


def settings(*values: tuple[int, int]) -> bytes:
    """Return a SETTINGS."""
    return frame(SETTINGS, 0, 0, b"".join([_SETTING.pack(*value) for value in values]))


def read_settings(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yield the entries of a SETTINGS that we know; raise `ConnectionFault` for values that cannot be."""
    if len(payload) % _SETTING.size:
        raise ConnectionFault(FRAME_SIZE_ERROR, "SETTINGS of a wrong length")
    for name, value in _SETTING.iter_unpack(payload):
        if name == ENABLE_PUSH and value > 1:
            raise ConnectionFault(PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
        if name == INITIAL_WINDOW_SIZE and value > WINDOW_MAX:
            raise ConnectionFault(FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is too large")
        if name == MAX_FRAME_SIZE and not FRAME_BYTES_MAX <= value < 2**24:
            raise ConnectionFault(PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of its range")
        yield name, value


def unpadded(payload: bytes, flags: int) -> bytes:
    """Return a payload without its padding."""
    if not flags & PADDED:
        return payload
    if not payload:
        raise ConnectionFault(FRAME_SIZE_ERROR, "padded frame without a length of its padding")
    end = len(payload) - payload[0]
    if end < 1:
        raise ConnectionFault(PROTOCOL_ERROR, "padding is longer than its frame")
    return payload[1:end]


def header_block(payload: bytes, flags: int, stream: int) -> bytes:
    """Return what a HEADERS frame has of its block, without padding and priority."""
    block = unpadded(payload, flags)
    if not flags & PRIORITIZED:
        return block
    check_priority(block, stream)
    return block[_PRIORITY_BYTES:]


def check_priority(payload: bytes, stream: int) -> None:
    """Check a priority, which says nothing to us; RFC 7540 forbade that a stream depends on itself."""
    if len(payload) < _PRIORITY_BYTES:
        raise ConnectionFault(FRAME_SIZE_ERROR, "priority is too short")
    if int.from_bytes(payload[:4], "big") & WINDOW_MAX == stream:
        raise ConnectionFault(PROTOCOL_ERROR, "stream depends on itself")
