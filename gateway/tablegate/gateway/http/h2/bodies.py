"""Bodies of HTTP/2 requests, as they come: what a client may send, and when it may send more (RFC 9113, 5.2)."""

from collections.abc import Callable

from tablegate.gateway.http.h2 import frames
from tablegate.gateway.http.h2.exchange import Http2Exchange, SendQueue
from tablegate.gateway.http.h2.frames import (
    FLOW_CONTROL_ERROR,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    WINDOW_BYTES,
    StreamFault,
)

CONNECTION_BYTES_MIN = 1 << 20  # window of a connection: bounds the bodies that are neither served nor read yet
SLACK_BYTES = 1_024  # a stream's window is so much more than a body may have, so that longer ones are seen


class RequestBodies:
    """Bodies on one connection.

    A client gets back the connection's window as bodies are served, read or thrown away, and a stream's as pieces of it
    are read. `refuse` resets a stream, with an error code.
    """

    def __init__(self, body_bytes_max: int, outbox: SendQueue, refuse: Callable[[int, int], None]) -> None:
        self.body_bytes_max = body_bytes_max
        self.stream_window = max(WINDOW_BYTES, body_bytes_max + SLACK_BYTES)
        self.window_size = max(CONNECTION_BYTES_MIN, self.stream_window)
        self.window = self.window_size  # of the connection: what the client may still send
        self.kept = 0  # bytes that are not served or read yet
        self._uploads: dict[int, Http2Exchange] = {}  # those that are served when they are whole
        self._outbox = outbox
        self._refuse = refuse

    def begin(self, exchange: Http2Exchange) -> None:
        """Wait for the body of a request."""
        exchange.buffer = bytearray()
        if not exchange.takes_pieces:
            self._uploads[exchange.stream] = exchange

    def add(self, exchange: Http2Exchange, data: bytes, *, ended: bool) -> bool:
        """Take in bytes; return whether the exchange is to be served now. Raise `StreamFault`."""
        buffer = exchange.buffer
        exchange.complete = ended
        if buffer is None:  # too large, and served already
            return False
        buffer += data
        self.kept += len(data)
        exchange.received += len(data)
        expected = exchange.expected
        if expected is not None and (exchange.received > expected or (ended and exchange.received < expected)):
            raise StreamFault(PROTOCOL_ERROR)
        if exchange.takes_pieces:
            if len(buffer) + exchange.untold > self.stream_window:
                raise StreamFault(FLOW_CONTROL_ERROR)
            exchange.wake()
            return False
        exchange.silent_since = None
        exchange.oversize = len(buffer) > self.body_bytes_max
        if not ended and not exchange.oversize:
            return False
        exchange.body = bytes(buffer)
        self.forget(exchange)
        return True

    def read(self, exchange: Http2Exchange, size: int) -> None:
        """Note that bytes were read."""
        self.kept -= size
        exchange.untold += size
        if exchange.untold >= self.stream_window >> 2 and not exchange.complete:
            self._outbox.put(frames.window_update(exchange.stream, exchange.untold))
            exchange.untold = 0
        self.give_back()

    def forget(self, exchange: Http2Exchange) -> None:
        """Keep nothing of a body any more."""
        if exchange.buffer is not None:
            self.kept -= len(exchange.buffer)
            exchange.buffer = None
            self._uploads.pop(exchange.stream, None)

    def give_back(self) -> None:
        """Let the client send as many bytes as are not kept."""
        free = self.window_size - self.window - self.kept
        enough = self.window_size >> 2
        if free < enough and self.window < enough:
            while free < enough and self.window <= SLACK_BYTES and len(self._uploads) > 1:
                # Bodies that are not whole took it all, so that none could go on: give up the newest.
                self._refuse(next(reversed(self._uploads)), REFUSED_STREAM)
                free = self.window_size - self.window - self.kept
            enough = 1
        if free >= enough:
            self._outbox.put(frames.window_update(0, free))
            self.window += free

    def end_slow(self, now: float, limit_s: float) -> None:
        """Reset the streams whose body has not come on for too long."""
        for exchange in list(self._uploads.values()):
            exchange.silent_since = exchange.silent_since or now
            if now - exchange.silent_since >= limit_s:
                self._refuse(exchange.stream, frames.CANCEL)
