"""Flow control of what clients send (RFC 9113, 5.2): bodies of requests as they arrive, and windows that bound them.

Two kinds of bodies share a connection's window:

- Uploads, which are served when they are whole. A stream's window is a little larger than the longest body that is
  served, and is never widened: the body that is longer is seen, and served cut, as `oversize`.
- Streamed bodies, which are served from their headers on and read piece by piece. Their stream's window is widened as
  pieces are read.

The connection's window bounds the bytes that are kept here, of all of its streams. It is widened as bodies are served,
read or thrown away, by quarters of itself, so that WINDOW_UPDATEs are few. When unfinished uploads have used up all of
it, none could ever go on: then the newest are refused (REFUSED_STREAM: clients may send them again), which leaves the
oldest room to end.
"""

from collections.abc import Callable

from tablegate.gateway.http.h2 import frames
from tablegate.gateway.http.h2.frames import (
    FLOW_CONTROL_ERROR,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    WINDOW_BYTES,
    Http2StreamError,
)
from tablegate.gateway.http.h2.stream import OPEN, RequestBody, Stream

CONNECTION_BYTES_MIN = 1 << 20  # of a connection's window: four bodies of the longest gRPC request fit into it
SLACK_BYTES = 1_024  # a stream's window is so much more than a body may have, so that longer ones are seen


class ReceiveWindows:
    """The windows of one connection, and the bodies that count in them.

    `output` takes the WINDOW_UPDATEs. `refuse` resets a stream, by its number and with an error code.
    """

    def __init__(
        self, body_bytes_max: int, output: Callable[[bytes], object], refuse: Callable[[int, int], object]
    ) -> None:
        self.body_bytes_max = body_bytes_max
        self.stream_size = max(WINDOW_BYTES, body_bytes_max + SLACK_BYTES)
        self.size = max(CONNECTION_BYTES_MIN, self.stream_size)
        self.window = self.size  # of the connection: what the client may still send
        self.widen_below = self.size - (self.size >> 2)  # `widen` does nothing while the window is larger
        self.kept = 0  # bytes that are not served or read yet
        self._uploads: dict[int, Stream] = {}  # oldest first
        self._output = output
        self._refuse = refuse

    def begin(self, stream: Stream, expected: int | None) -> None:
        """Wait for the body of a request."""
        stream.arriving = RequestBody(expected)
        if not stream.streams_body:
            self._uploads[stream.stream_id] = stream

    def add(self, stream: Stream, data: bytes, *, ended: bool) -> bool:
        """Add bytes to a body; return whether the request of an upload is to be served now.

        Raise `Http2StreamError` where they are more than its window, or not as many as its content-length says.
        """
        body = stream.arriving
        if body is None or body.data is None:
            return False
        body.data += data
        self.kept += len(data)
        body.received += len(data)
        expected = body.expected
        if expected is not None and (body.received > expected or (ended and body.received < expected)):
            raise Http2StreamError(PROTOCOL_ERROR)
        if stream.streams_body:
            if len(body.data) + body.unacknowledged > self.stream_size:
                raise Http2StreamError(FLOW_CONTROL_ERROR)
            return False
        # An upload beyond its window gets no FLOW_CONTROL_ERROR: "too large" as an answer tells its client more.
        body.silent_since = None
        stream.oversize = len(body.data) > self.body_bytes_max
        if not ended and not stream.oversize:
            return False
        stream.body = bytes(body.data)
        self.discard(stream)
        return True

    def read(self, stream: Stream) -> bytes:
        """Return what has arrived of a streamed body since the last time, and let the client send as much again."""
        body = stream.arriving
        if body is None or not body.data:
            return b""
        data = bytes(body.data)
        body.data.clear()
        self.kept -= len(data)
        body.unacknowledged += len(data)
        if body.unacknowledged >= self.stream_size >> 2 and stream.state is OPEN:
            self._output(frames.window_update(stream.stream_id, body.unacknowledged))
            body.unacknowledged = 0
        self.widen()
        return data

    def keep(self, stream: Stream) -> None:
        """Count the whole body of a request that is served later."""
        self.kept += len(stream.body)

    def release(self, stream: Stream) -> None:
        """Count it no more."""
        self.kept -= len(stream.body)

    def discard(self, stream: Stream) -> None:
        """Keep nothing of a body any more."""
        body = stream.arriving
        if body is not None and body.data is not None:
            self.kept -= len(body.data)
            body.data = None
            self._uploads.pop(stream.stream_id, None)

    def widen(self) -> None:
        """Let the client send as many bytes over the connection as are not kept."""
        free = self.size - self.window - self.kept
        enough = self.size >> 2
        if free < enough and self.window < enough:
            while free < enough and self.window <= SLACK_BYTES and len(self._uploads) > 1:
                self._refuse(next(reversed(self._uploads)), REFUSED_STREAM)
                free = self.size - self.window - self.kept
            enough = 1
        if free >= enough:
            self._output(frames.window_update(0, free))
            self.window += free

    def end_slow(self, now: float, limit_s: float) -> None:
        """Reset the uploads of which nothing came for `limit_s` seconds."""
        for stream in list(self._uploads.values()):
            body = stream.arriving
            assert body is not None, "an upload has a body that is arriving"
            body.silent_since = body.silent_since or now
            if now - body.silent_since >= limit_s:
                self._refuse(stream.stream_id, frames.CANCEL)
