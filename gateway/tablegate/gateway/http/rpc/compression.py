"""Answers that are compressed with gzip or zstd, for those who ask for it.

Who asks: over REST and Connect, whoever accepts it, as HTTP has it: of what a client accepts most, zstd before gzip.
That takes a third of the time, and is an extra; without it clients get gzip. Over gRPC and gRPC-Web every client says
of itself that it accepts gzip; there it is who compresses its requests (`grpc-encoding`), and is answered alike, as
grpc-go's servers do.

What is compressed: answers from `SMALL_BYTES` on, and the messages of a stream whose method says so. Streams that wait
for changes stay plain: many clients are given the same bytes, and a change is small. So do server-sent events.

It takes some milliseconds a megabyte, at the lowest level. Longer answers are compressed in slices, and the loop serves
others between two of them.

Decision: docs/decisions/0135-who-asks-gets-gzip.md
Decision: docs/decisions/0197-zstd-for-those-who-accept-it.md
"""

import asyncio
import re
import zlib
from collections.abc import Callable
from typing import Any, Protocol

try:  # an extra
    import zstandard
except ImportError:
    zstandard = None  # type: ignore[assignment]

from tablegate.gateway.http.exchange import Exchange
from tablegate.gateway.http.rpc.calls import GZIP

_QUALITY = re.compile(rb"[01](?:\.[0-9]*)?")
SMALL_BYTES = 1_024  # a packet takes so much, whatever is in it
SLICE_BYTES = 256 * 1024  # two milliseconds of the event loop at most
_LEVEL = 1  # the others take up to three times as long, and save a sixth
_MEMORY_LEVEL, _WINDOW = 8, 16 + zlib.MAX_WBITS
_STREAM_MEMORY_LEVEL, _STREAM_WINDOW = 5, 16 + 12  # 32 KiB for as long as a stream is open, and not 256


ZSTD = b"zstd"
HAS_ZSTD = zstandard is not None
CODINGS = (ZSTD, GZIP) if HAS_ZSTD else (GZIP,)
"""What answers are compressed by; of those that a client accepts alike, the first."""

_ZSTD_LEVEL = 1
_ZSTD_STREAM = {"window_log": 12, "hash_log": 12, "chain_log": 12}  # 58 KiB for as long as a stream is open, not 570


def coding_for(header: bytes | None, codings: tuple[bytes, ...] = CODINGS) -> bytes | None:
    """Return by what an answer is compressed for an `accept-encoding`; None: not at all.

    It is the one that is accepted most; none where that is `identity`, or nothing known.
    """
    if not header:
        return None
    accepted: dict[bytes, float] = {}
    for item in header.lower().split(b","):
        name, *parameters = item.split(b";")
        accepted[name.strip()] = min([1.0, *(_quality(each) for each in parameters)])
    others = accepted.get(b"*", 0.0)
    best, coding = accepted.get(b"identity", 0.0), None
    for each in codings:
        quality = accepted.get(each, others)
        if quality > 0 and (quality > best or (coding is None and quality == best)):
            best, coding = quality, each
    return coding


def _quality(parameter: bytes) -> float:
    """Return what a parameter says of how much something is accepted; 1 where it is none, or says no number."""
    name, _, value = parameter.partition(b"=")
    if name.strip() != b"q" or not _QUALITY.fullmatch(value.strip()):
        return 1.0
    return float(value)


def accepts_gzip(header: bytes | None) -> bool:
    """Return whether an `accept-encoding` has gzip, or anything, and does not refuse it."""
    return coding_for(header, (GZIP,)) is not None


def coding_of_body(exchange: Exchange, body: bytes) -> bytes | None:
    """Return by what a body of HTTP is compressed; None: it is short, or the client does not accept any."""
    return coding_for(exchange.headers.get(b"accept-encoding")) if len(body) >= SMALL_BYTES else None


class _Packer(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self, mode: int = ..., /) -> bytes: ...


def _packer(coding: bytes) -> _Packer:
    if coding == ZSTD:
        packer: _Packer = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compressobj()
        return packer
    return zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY_LEVEL)


def _stream_packer(coding: bytes) -> tuple[_Packer, int]:
    """Return what packs a stream, and how it is flushed after a piece."""
    if coding == ZSTD:
        parameters: Any = zstandard.ZstdCompressionParameters.from_level(_ZSTD_LEVEL, **_ZSTD_STREAM)
        packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        return packer, zstandard.COMPRESSOBJ_FLUSH_BLOCK
    return zlib.compressobj(_LEVEL, zlib.DEFLATED, _STREAM_WINDOW, _STREAM_MEMORY_LEVEL), zlib.Z_SYNC_FLUSH


def zipped(data: bytes, coding: bytes = GZIP) -> bytes:
    """Return data as gzip has it, or another coding."""
    packer = _packer(coding)
    return packer.compress(data) + packer.flush()


def answer_zipped(exchange: Exchange, data: bytes, answer: Callable[[bytes], None], coding: bytes = GZIP) -> None:
    """Call `answer` with the compressed data: at once, or from a task where that takes long."""
    if len(data) <= SLICE_BYTES:
        answer(zipped(data, coding))
        return

    async def work() -> None:
        packer = _packer(coding)
        parts = []
        for at in range(0, len(data), SLICE_BYTES):
            parts.append(packer.compress(data[at : at + SLICE_BYTES]))
            await asyncio.sleep(0)
        answer(b"".join([*parts, packer.flush()]))

    exchange.on_gone = asyncio.ensure_future(work()).cancel


class ZippedBody:
    """A body in pieces that is one gzip, or one frame of zstd; each piece can be decompressed once it is there."""

    def __init__(self, coding: bytes = GZIP) -> None:
        self._packer, self._flush = _stream_packer(coding)

    def piece(self, data: bytes) -> bytes:
        """Return the next piece."""
        return self._packer.compress(data) + self._packer.flush(self._flush)

    def last(self, data: bytes) -> bytes:
        """Return the last piece."""
        return self._packer.compress(data) + self._packer.flush()
