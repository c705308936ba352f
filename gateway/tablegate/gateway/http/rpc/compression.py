"""Answers that are compressed with gzip, for those who ask for it.

Who asks: over REST and Connect, whoever accepts it, as HTTP has it. Over gRPC and gRPC-Web every client says of itself
that it accepts gzip; there it is who compresses its requests (`grpc-encoding`), and is answered alike, as grpc-go's
servers do.

What is compressed: answers from `SMALL_BYTES` on, and the messages of a stream whose method says so. Streams that wait
for changes stay plain: many clients are given the same bytes, and a change is small. So do server-sent events.

It takes some milliseconds a megabyte, at the lowest level. Longer answers are compressed in slices, and the loop serves
others between two of them.

Decision: docs/decisions/0135-who-asks-gets-gzip.md
"""

import asyncio
import zlib
from collections.abc import Callable

from tablegate.gateway.http.exchange import Exchange
from tablegate.gateway.http.rpc.calls import GZIP

SMALL_BYTES = 1_024  # a packet takes so much, whatever is in it
SLICE_BYTES = 256 * 1024  # two milliseconds of the event loop at most
_LEVEL = 1  # the others take up to three times as long, and save a sixth
_MEMORY_LEVEL, _WINDOW = 8, 16 + zlib.MAX_WBITS
_STREAM_MEMORY_LEVEL, _STREAM_WINDOW = 5, 16 + 12  # 32 KiB for as long as a stream is open, and not 256


def accepts_gzip(header: bytes | None) -> bool:
    """Return whether an `accept-encoding` has gzip, or anything, and does not refuse it."""
    if not header:
        return False
    found = False
    for item in header.lower().split(b","):
        name, _, parameters = item.partition(b";")
        if name.strip() in (GZIP, b"*"):
            found = parameters.replace(b" ", b"").rstrip(b"0") not in (b"q=", b"q=0.")
            if name.strip() == GZIP:
                break
    return found


def wants_zipped(exchange: Exchange, body: bytes) -> bool:
    """Return whether a body of HTTP is to be compressed: it is not short, and the client accepts it."""
    return len(body) >= SMALL_BYTES and accepts_gzip(exchange.headers.get(b"accept-encoding"))


def zipped(data: bytes) -> bytes:
    """Return data as gzip has it."""
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY_LEVEL)
    return compressor.compress(data) + compressor.flush()


def answer_zipped(exchange: Exchange, data: bytes, answer: Callable[[bytes], None]) -> None:
    """Call `answer` with the compressed data: at once, or from a task where that takes long."""
    if len(data) <= SLICE_BYTES:
        answer(zipped(data))
        return

    async def work() -> None:
        compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY_LEVEL)
        parts = []
        for at in range(0, len(data), SLICE_BYTES):
            parts.append(compressor.compress(data[at : at + SLICE_BYTES]))
            await asyncio.sleep(0)
        answer(b"".join([*parts, compressor.flush()]))

    exchange.on_gone = asyncio.ensure_future(work()).cancel


class ZippedBody:
    """A body in pieces that is one gzip; each piece can be decompressed once it is there."""

    def __init__(self) -> None:
        self._packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _STREAM_WINDOW, _STREAM_MEMORY_LEVEL)

    def piece(self, data: bytes) -> bytes:
        """Return the next piece."""
        return self._packer.compress(data) + self._packer.flush(zlib.Z_SYNC_FLUSH)

    def last(self, data: bytes) -> bytes:
        """Return the last piece."""
        return self._packer.compress(data) + self._packer.flush()
