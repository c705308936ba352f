"""HTTP/2 frames (RFC 9113, 4 and 6): their numbers, those that we send, and what can be wrong with one.

A frame is nine bytes and a payload: length (24 bits), type (8), flags (8), a reserved bit, stream (31).
`unpack_frame_header` reads the nine bytes as three integers, since that is one call into C: length and type stay packed
in the first, and are taken apart by a shift and a mask where they are needed.
"""

from collections.abc import Iterator
from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER_BYTES = 9
# Of a payload. Each side must accept as much. A longer frame would only let one stream keep the others waiting, so we
# announce no more, and send no more where a client would accept it.
FRAME_BYTES_MAX = 16_384
WINDOW_MAX = 2**31 - 1
WINDOW_BYTES = 65_535  # of a connection, and of a stream, until SETTINGS or WINDOW_UPDATE change it

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY_FLAG = 0x20

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

_FRAME_HEADER = Struct(">LBL")  # the length takes the upper 24 bits of the first word, the type the lower 8
_SETTING = Struct(">HL")
_PRIORITY_BYTES = 5
pack_frame_header = _FRAME_HEADER.pack
"""Make a frame header of: length << 8 | type, flags, stream."""
unpack_frame_header = _FRAME_HEADER.unpack_from
"""Read the same; the stream with its reserved bit."""


class Http2ConnectionError(Exception):
    """What ends a connection (RFC 9113, 5.4.1): an error code, and a sentence for the client's log."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Http2StreamError(Exception):
    """What ends a stream, and leaves its connection (RFC 9113, 5.4.2): an error code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame."""
    return pack_frame_header(len(payload) << 8 | kind, flags, stream) + payload


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


def decode_settings(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yield name and value of each setting; raise `Http2ConnectionError` for values that RFC 9113, 6.5.2 forbids."""
    if len(payload) % _SETTING.size:
        raise Http2ConnectionError(FRAME_SIZE_ERROR, "SETTINGS of a wrong length")
    for name, value in _SETTING.iter_unpack(payload):
        if name == ENABLE_PUSH and value > 1:
            raise Http2ConnectionError(PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
        if name == INITIAL_WINDOW_SIZE and value > WINDOW_MAX:
            raise Http2ConnectionError(FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is too large")
        if name == MAX_FRAME_SIZE and not FRAME_BYTES_MAX <= value < 2**24:
            raise Http2ConnectionError(PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of its range")
        yield name, value


def remove_padding(payload: bytes, flags: int) -> bytes:
    """Return a payload without its padding."""
    if not flags & PADDED:
        return payload
    if not payload:
        raise Http2ConnectionError(FRAME_SIZE_ERROR, "padded frame without a length of its padding")
    end = len(payload) - payload[0]
    if end < 1:
        raise Http2ConnectionError(PROTOCOL_ERROR, "padding is longer than its frame")
    return payload[1:end]


def header_block(payload: bytes, flags: int, stream: int) -> bytes:
    """Return the part of a header block that a HEADERS frame holds, without padding and priority."""
    block = remove_padding(payload, flags)
    if not flags & PRIORITY_FLAG:
        return block
    check_priority(block, stream)
    return block[_PRIORITY_BYTES:]


def check_length(payload: bytes, size: int, name: str) -> None:
    """Raise `Http2ConnectionError` where a payload has another length than all of its kind."""
    if len(payload) != size:
        raise Http2ConnectionError(FRAME_SIZE_ERROR, f"{name} of a wrong length")


def check_priority(payload: bytes, stream: int) -> None:
    """Check a priority, which changes nothing here: RFC 9113 deprecates the scheme, RFC 7540 forbade a loop in it."""
    if len(payload) < _PRIORITY_BYTES:
        raise Http2ConnectionError(FRAME_SIZE_ERROR, "priority is too short")
    if int.from_bytes(payload[:4], "big") & WINDOW_MAX == stream:
        raise Http2ConnectionError(PROTOCOL_ERROR, "stream depends on itself")
