"""What gRPC, gRPC-Web and Connect streams put around messages: a byte of flags and a length of four bytes."""

import zlib
from collections.abc import AsyncIterator

from tablegate.gateway.http.exchange import Exchange
from tablegate.gateway.query.errors import InvalidField, NotServed, RequestTooLarge

COMPRESSED = 1  # the flag
GZIP = b"gzip"
MESSAGE_BYTES_MAX = 256 * 1024  # of a request: 1,000 keys of 250 bytes
_PREFIX = 5
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


def envelope(message: bytes, flags: int = 0) -> bytes:
    """Return `message` with its prefix."""
    return b"%c%b%b" % (flags, len(message).to_bytes(4, "big"), message)


class Enveloper:
    """Returns messages with their prefix. The last is kept: many streams may be given the very same, one by one."""

    def __init__(self) -> None:
        self._message = b""
        self._enveloped = envelope(b"")

    def __call__(self, message: bytes) -> bytes:
        """Return `message` with its prefix."""
        if message is not self._message:
            self._message, self._enveloped = message, envelope(message)
        return self._enveloped


def only_message(body: bytes, encoding: bytes | None) -> bytes:
    """Return the one message of a request; raise a `QueryError` where the body is something else.

    `encoding`: that of compressed messages, by `checked_encoding`.
    """
    if body and len(body) < _PREFIX:
        raise InvalidField("", "the request ends inside its message; send the whole message")
    if not body:
        raise NotServed("the request has no whole message, but the method takes one; send one")
    length = int.from_bytes(body[1:_PREFIX], "big")
    if length > MESSAGE_BYTES_MAX:
        raise RequestTooLarge(MESSAGE_BYTES_MAX)
    if length != len(body) - _PREFIX:
        if length < len(body) - _PREFIX:
            raise NotServed("the request has more than one message, but the method takes one; send one")
        raise InvalidField("", "the request ends inside its message; send the whole message")
    return _plain(body[0], body[_PREFIX:], encoding)


async def messages(exchange: Exchange, encoding: bytes | None) -> AsyncIterator[bytes]:
    """Yield the messages of a request as they come; raise a `QueryError` at what is none."""
    held = b""
    while True:
        at = 0  # thousands of messages may come in one piece, and what follows each is not copied
        while len(held) - at >= _PREFIX:
            begin = at + _PREFIX
            length = int.from_bytes(held[at + 1 : begin], "big")
            if length > MESSAGE_BYTES_MAX:
                raise RequestTooLarge(MESSAGE_BYTES_MAX)
            if len(held) < begin + length:
                break
            yield _plain(held[at], held[begin : begin + length], encoding)
            at = begin + length
        held = held[at:]
        piece = await exchange.read()
        if not piece:
            break
        held += piece
    if held:
        raise InvalidField("", "the request ends inside a message; send whole messages")


def _plain(flags: int, message: bytes, encoding: bytes | None) -> bytes:
    if flags == 0:
        return message
    if flags != COMPRESSED:
        raise InvalidField("", f"a message has the unknown flags {flags:#04x}; check the client")
    if encoding is None:
        raise InvalidField("", "a message is marked as compressed, but the request names no encoding; check the client")
    return unzipped(message)


def checked_encoding(encoding: bytes | None) -> bytes | None:
    """Return the compression that a request names, None for none; raise `NotServed` at one that is not known here."""
    if encoding in (None, b"", b"identity"):
        return None
    if encoding == GZIP:
        return encoding
    raise NotServed("the request's compression is not known here; use gzip or none")


def unzipped(data: bytes, bytes_max: int = MESSAGE_BYTES_MAX) -> bytes:
    """Return what gzip packed; raise `RequestTooLarge` where it is longer, without unpacking the rest."""
    inflater = zlib.decompressobj(_GZIP_WINDOW)
    try:
        plain = inflater.decompress(data, bytes_max + 1)
    except zlib.error:
        raise InvalidField("", "the request says gzip and is not; check the client") from None
    if len(plain) > bytes_max:
        raise RequestTooLarge(bytes_max)
    if not inflater.eof:
        raise InvalidField("", "the request's gzip ends early; check the client")
    return plain
