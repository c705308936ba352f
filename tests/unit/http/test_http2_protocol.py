"""HTTP/2 without I/O: the states of a stream, and a connection that is driven by hand."""

import ast
import itertools
from pathlib import Path

import pytest

from tablegate.gateway.http import h2
from tablegate.gateway.http.h2 import connection as h2_connection
from tablegate.gateway.http.h2 import frames
from tablegate.gateway.http.h2.connection import ServerConnection
from tablegate.gateway.http.h2.frames import (
    PREFACE,
    PROTOCOL_ERROR,
    STREAM_CLOSED,
    Http2ConnectionError,
    Http2StreamError,
    frame,
)
from tablegate.gateway.http.h2.headers import HEADER_BYTES_MAX, encode_fields, encode_status
from tablegate.gateway.http.h2.stream import (
    NEED_DATA,
    REFUSALS,
    TRANSITIONS,
    GoawayReceived,
    HeadersTooLarge,
    Stream,
    StreamEnded,
    StreamEvent,
    StreamState,
    WindowUpdated,
    next_state,
)
from tests.kit.http.h2 import block, call, data, head, request

_FOLDER = Path(h2.__file__).parent
_FORBIDDEN = {"asyncio", "socket", "ssl", "selectors", "threading", "time", "logging"}

# RFC 9113, 5.1, by state: what may happen, and the state after it. All else is refused.
_ALLOWED = {
    "IDLE": {"RECEIVE_HEADERS": "OPEN"},
    "OPEN": {
        "RECEIVE_HEADERS": "OPEN",
        "RECEIVE_DATA": "OPEN",
        "RECEIVE_END_STREAM": "HALF_CLOSED_REMOTE",
        "RECEIVE_RST_STREAM": "CLOSED",
        "RECEIVE_WINDOW_UPDATE": "OPEN",
        "SEND_HEADERS": "OPEN",
        "SEND_DATA": "OPEN",
        "SEND_END_STREAM": "HALF_CLOSED_LOCAL",
        "SEND_RST_STREAM": "RESET",
    },
    "HALF_CLOSED_LOCAL": {
        "RECEIVE_HEADERS": "HALF_CLOSED_LOCAL",
        "RECEIVE_DATA": "HALF_CLOSED_LOCAL",
        "RECEIVE_END_STREAM": "CLOSED",
        "RECEIVE_RST_STREAM": "CLOSED",
        "RECEIVE_WINDOW_UPDATE": "HALF_CLOSED_LOCAL",
        "SEND_RST_STREAM": "RESET",
    },
    "HALF_CLOSED_REMOTE": {
        "RECEIVE_RST_STREAM": "CLOSED",
        "RECEIVE_WINDOW_UPDATE": "HALF_CLOSED_REMOTE",
        "SEND_HEADERS": "HALF_CLOSED_REMOTE",
        "SEND_DATA": "HALF_CLOSED_REMOTE",
        "SEND_END_STREAM": "CLOSED",
        "SEND_RST_STREAM": "RESET",
    },
    "RESET": {
        "RECEIVE_HEADERS": "RESET",
        "RECEIVE_DATA": "RESET",
        "RECEIVE_END_STREAM": "RESET",
        "RECEIVE_RST_STREAM": "RESET",
        "RECEIVE_WINDOW_UPDATE": "RESET",
    },
    "CLOSED": {"RECEIVE_RST_STREAM": "CLOSED", "RECEIVE_WINDOW_UPDATE": "CLOSED", "SEND_RST_STREAM": "RESET"},
}
_PAIRS = list(itertools.product(StreamState, StreamEvent))


@pytest.mark.parametrize(("state", "event"), _PAIRS, ids=[f"{state.name}-{event.name}" for state, event in _PAIRS])
def test_state_table(state: StreamState, event: StreamEvent) -> None:
    stream = Stream(None, 1, state, (b"GET", b"/", {}), 0)
    after = _ALLOWED[state.name].get(event.name)
    if after is not None:
        stream.move(event)
        assert stream.state is StreamState[after] is next_state(state, event)
        assert (state, event) not in REFUSALS
        return
    assert (state, event) not in TRANSITIONS
    # What a client does wrong is its error; what we do wrong is ours.
    refused = (Http2ConnectionError, Http2StreamError) if event.name.startswith("RECEIVE_") else AssertionError
    with pytest.raises(refused):
        stream.move(event)
    assert stream.state is state


def test_refusals_are_those_of_the_rfc() -> None:
    found = {(state.name, event.name): (type(error), error.code) for (state, event), error in REFUSALS.items()}
    connection_error, stream_error = (Http2ConnectionError, PROTOCOL_ERROR), (Http2StreamError, STREAM_CLOSED)
    assert found == {
        ("IDLE", "RECEIVE_DATA"): connection_error,
        ("IDLE", "RECEIVE_END_STREAM"): connection_error,
        ("IDLE", "RECEIVE_RST_STREAM"): connection_error,
        ("IDLE", "RECEIVE_WINDOW_UPDATE"): connection_error,
        ("HALF_CLOSED_REMOTE", "RECEIVE_HEADERS"): stream_error,
        ("HALF_CLOSED_REMOTE", "RECEIVE_DATA"): stream_error,
        ("HALF_CLOSED_REMOTE", "RECEIVE_END_STREAM"): stream_error,
        ("CLOSED", "RECEIVE_HEADERS"): (Http2ConnectionError, STREAM_CLOSED),
        ("CLOSED", "RECEIVE_DATA"): stream_error,
        ("CLOSED", "RECEIVE_END_STREAM"): stream_error,
    }


def test_states_of_the_common_request_are_those_of_the_table() -> None:
    stream = Stream(None, 1, StreamState.IDLE, (b"GET", b"/", {}), 0)
    stream.move(StreamEvent.RECEIVE_HEADERS)
    assert h2_connection._AFTER_HEADERS is stream.state
    stream.move(StreamEvent.RECEIVE_DATA)
    stream.move(StreamEvent.RECEIVE_END_STREAM)
    assert h2_connection._AFTER_REQUEST is stream.state
    stream.move(StreamEvent.SEND_HEADERS)
    stream.move(StreamEvent.SEND_DATA)
    stream.move(StreamEvent.SEND_END_STREAM)
    assert h2_connection._AFTER_RESPONSE is stream.state


@pytest.mark.parametrize("path", sorted(_FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_no_io_and_nothing_of_ours(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names = [node.module or ""]
        for name in names:
            assert name.partition(".")[0] not in _FORBIDDEN
            assert not name.startswith("tablegate") or name.startswith("tablegate.gateway.http.h2")


# A connection by hand.


def _connection(**options: int) -> ServerConnection[Stream]:
    connection = ServerConnection(body_bytes_max=options.get("body_bytes_max", 100), new_stream=Stream)
    connection.receive_data(PREFACE + frame(frames.SETTINGS, 0, 0))
    assert connection.next_event() is None
    connection.output.clear()
    return connection


def test_request_and_answer() -> None:
    connection = _connection()
    connection.receive_data(call(1, b"/echo", b"body") + call(3, b"/echo", b"other")[:-1])
    stream = connection.next_event()
    assert isinstance(stream, Stream)
    assert (stream.method, stream.target, stream.body) == (b"POST", b"/echo", b"body")
    assert stream.state is StreamState.HALF_CLOSED_REMOTE
    assert connection.next_event() is None  # HEADERS alone: the body is not whole
    assert connection.next_event() is NEED_DATA
    headers, trailers = encode_status(200), encode_fields(((b"rest", b"none"),))
    assert connection.send_response(stream, headers, b"answer", trailers)
    assert stream.state is StreamState.CLOSED
    assert b"".join(connection.output) == b"".join(
        (head(1, headers), data(1, b"answer"), head(1, trailers, ended=True))
    )
    connection.receive_data(b"r")
    other = connection.next_event()
    assert isinstance(other, Stream)
    assert other.body == b"other"
    assert connection.unread == b""


def test_answer_before_its_request_is_whole() -> None:
    connection = _connection()
    connection.receive_data(head(1, request(b"/early")) + data(1, b"x" * 101))
    assert connection.next_event() is None
    stream = connection.next_event()
    assert isinstance(stream, Stream)
    assert stream.oversize
    assert stream.state is StreamState.OPEN
    assert connection.send_response(stream, encode_status(413), b"too large", None) == 0
    connection.send_headers(stream, encode_status(413))
    connection.send_data(stream, b"too large", end_stream=True)
    assert stream.state is StreamState.RESET
    assert b"".join(connection.output).endswith(frames.rst_stream(1, frames.NO_ERROR))
    connection.receive_data(data(1, b"late"))
    assert connection.next_event() is None
    assert not connection.streams


def test_events() -> None:
    connection = _connection()
    too_large = block((b"a", b"b" * (HEADER_BYTES_MAX - 100)))
    connection.receive_data(
        call(1, b"/never")
        + frames.window_update(0, 5)
        + frames.window_update(1, 5)
        + frames.rst_stream(1, frames.CANCEL)
        + head(3, request(b"/large") + too_large, ended=True)
        + frames.goaway(0, frames.NO_ERROR)
    )
    stream = connection.next_event()
    assert isinstance(stream, Stream)
    events = []
    while connection.unread:
        events.append(connection.next_event())
    assert [type(event) for event in events] == [
        WindowUpdated,
        WindowUpdated,
        StreamEnded,
        HeadersTooLarge,
        GoawayReceived,
    ]
    assert isinstance(events[1], WindowUpdated)
    assert events[1].stream is stream
    assert stream.state is StreamState.CLOSED
    assert connection.send_window == stream.send_window == frames.WINDOW_BYTES + 5


def test_request_that_streams_its_body_and_is_there_at_once() -> None:
    connection = ServerConnection(body_bytes_max=100, new_stream=Stream, streams_body=lambda _: True)
    connection.receive_data(PREFACE + frame(frames.SETTINGS, 0, 0) + call(1, b"/pieces", b"body"))
    assert connection.next_event() is None
    stream = connection.next_event()
    assert isinstance(stream, Stream)
    assert stream.state is StreamState.HALF_CLOSED_REMOTE
    assert connection.windows.read(stream) == b"body"
    assert connection.windows.read(stream) == b""
    assert connection.windows.kept == 0


def test_errors_of_a_connection() -> None:
    connection = _connection()
    connection.receive_data(data(1, b"x"))
    with pytest.raises(Http2ConnectionError, match="DATA on a stream that is not open") as caught:
        connection.next_event()
    connection.send_goaway(caught.value.code, caught.value.text)
    assert connection.output == [frames.goaway(0, PROTOCOL_ERROR, caught.value.text)]
    with pytest.raises(Http2ConnectionError, match="not the preface"):
        ServerConnection(body_bytes_max=100, new_stream=Stream).receive_data(b"GET / HTTP/1.1\r\n")


def _padded(stream_id: int, size: int) -> bytes:
    return frame(frames.DATA, frames.PADDED, stream_id, b"\xff" + b"x" * size + bytes(255))


def test_padding_is_given_back_to_the_window_of_its_stream() -> None:
    for streams_body in (False, True):
        connection = ServerConnection(
            body_bytes_max=frames.WINDOW_BYTES, new_stream=Stream, streams_body=lambda _, is_so=streams_body: is_so
        )
        connection.receive_data(PREFACE + frame(frames.SETTINGS, 0, 0) + head(1, request(b"/padded")))
        window = connection.windows.stream_size
        widening = frames.window_update(1, 512)
        for _ in range(1_000):  # four times the window, nearly all of it padding
            connection.receive_data(_padded(1, 1))
            window -= 257
            assert window >= 0
            while connection.next_event() is not NEED_DATA:
                pass
            for sent in connection.output:
                if bytes(sent[3:9]) == widening[3:9]:
                    window += int.from_bytes(sent[9:13], "big")
            connection.output.clear()
            connection.widen_windows()
            if streams_body:
                connection.windows.read(connection.streams[1])
        connection.receive_data(data(1, b"end", ended=True))
        assert connection.next_event() is not None
