"""What comes over a connection: header blocks, HTTP/2, HTTP/1.1, JSON. Other people's libraries are the oracles."""

from collections.abc import Mapping
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h11
import hpack
from google.protobuf import descriptor_pool, json_format

from tablegate.gateway.http.exchange import App, Excess, Exchange
from tablegate.gateway.http.h1_exchange import Http1Exchange
from tablegate.gateway.http.h1_parser import SLICE_BYTES, RequestParser
from tablegate.gateway.http.h2.connection import ServerConnection
from tablegate.gateway.http.h2.frames import Http2ConnectionError
from tablegate.gateway.http.h2.headers import HpackDecoder
from tablegate.gateway.http.h2.huffman import HpackError
from tablegate.gateway.http.h2.stream import NEED_DATA, DataReceived, Stream
from tablegate.gateway.http.json_codec import JsonCodec
from tablegate.gateway.query.errors import QueryError
from tests.kit.fuzz.pieces import pieces_of
from tests.kit.table.filled import catalogue_of

_BODY_BYTES_MAX = 4_096
_HEADER_BYTES_MAX = 16_384
_FIELDS_BYTES_MAX = 2**20  # of one block, to hpack: a few bytes may mean many fields


def hpack_blocks(data: bytes) -> None:
    """Blocks of one connection: hpack decodes the same fields, or refuses the same block."""
    ours, theirs = HpackDecoder(), hpack.Decoder(max_header_list_size=_FIELDS_BYTES_MAX)
    for block in pieces_of(data):
        try:
            expected = [(bytes(name), bytes(value)) for name, value in theirs.decode(block, raw=True)]
        except hpack.OversizedHeaderListError:
            return
        except hpack.HPACKError:
            expected = None
        try:
            found = ours.decode(block)
        except HpackError:
            found = None
        assert found == expected, (block, found, expected)
        if found is None:
            return


class _Http2Run:
    """A connection that is given bytes; `seen` is what it makes of them."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.over = False
        self._connection: ServerConnection[Stream] = ServerConnection(body_bytes_max=_BODY_BYTES_MAX, new_stream=Stream)

    def receive(self, data: bytes) -> None:
        if self.over:
            return
        try:
            self._connection.receive_data(data)
            while self._connection.started and (event := self._connection.next_event()) is not NEED_DATA:
                if isinstance(event, Stream):
                    self.seen.append((event.stream_id, event.method, event.target, event.body, event.oversize))
                elif event is not None and not isinstance(event, DataReceived):
                    self.seen.append((type(event).__name__,))
        except Http2ConnectionError as error:
            self.over = True
            self.seen.append(("over", error.code))
        self._check_kept_bytes()

    def _check_kept_bytes(self) -> None:
        """What is counted of requests is that of open streams, and ends with them."""
        connection = self._connection
        assert connection.request_bytes == sum(connection._large_requests.values())
        assert connection._large_requests.keys() <= connection.streams.keys()
        assert connection.windows.kept >= 0
        if self.over:
            connection.end_streams()
            assert connection.request_bytes == connection.windows.kept == 0


def http2(data: bytes) -> None:
    """Bytes after the preface: how they are cut changes nothing, and a request is to h2 what it is here."""
    pieces = pieces_of(data)
    whole, cut = _Http2Run(), _Http2Run()
    start = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
    whole.receive(start + b"".join(pieces))
    cut.receive(start)
    for piece in pieces:
        cut.receive(piece)
    assert whole.seen == cut.seen, (whole.seen, cut.seen)
    theirs = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding=None))
    theirs.initiate_connection()
    try:
        events = theirs.receive_data(start + b"".join(pieces))
    except (h2.exceptions.H2Error, hpack.HPACKError, ValueError, IndexError):
        return  # it gives no events of what came before
    asked = {event.stream_id: dict(event.headers) for event in events if isinstance(event, h2.events.RequestReceived)}
    for stream_id, *request in (one for one in whole.seen if len(one) > 2):
        headers = asked[stream_id]
        assert request[:2] == [headers[b":method"], headers[b":path"]], (request, headers)


class _AnyApp(App):
    body_bytes_max = _BODY_BYTES_MAX

    def streams_body(self, exchange: Exchange) -> bool:
        return False

    def serve(self, exchange: Exchange) -> None:
        raise AssertionError("nothing is served here")

    def refuse(self, exchange: Exchange, excess: Excess) -> None:
        raise AssertionError("nothing is served here")


def _http1_requests(pieces: list[bytes]) -> tuple[list[tuple[bytes, bytes, bytes]], bool]:
    def new_exchange(method: bytes, target: bytes, headers: Mapping[bytes, bytes], http10: bool) -> Http1Exchange:
        return Http1Exchange(None, method, target, headers, http10=http10)  # type: ignore[arg-type]

    parser = RequestParser(_AnyApp(), new_exchange, _HEADER_BYTES_MAX)
    for piece in pieces:
        rest = piece
        while rest and not parser.over and parser.refusal is None:
            rest = parser.feed(rest[:SLICE_BYTES]) + rest[SLICE_BYTES:]
    return [(one.method, one.target, one.body) for one in parser.ready], parser.refusal is not None


def http1(data: bytes) -> None:
    """Bytes of a connection: how they are cut changes nothing, and the first request is to h11 what it is here."""
    pieces = pieces_of(data)
    found, refused = _http1_requests([b"".join(pieces)])
    assert (found, refused) == _http1_requests(pieces)
    theirs = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEADER_BYTES_MAX)
    theirs.receive_data(b"".join(pieces))
    try:
        request = theirs.next_event()
        body = b""
        while isinstance(event := theirs.next_event(), h11.Data):
            body += event.data
    except h11.RemoteProtocolError:
        return
    is_whole = isinstance(request, h11.Request) and isinstance(event, h11.EndOfMessage)
    if is_whole and found and len(body) < _BODY_BYTES_MAX and request.target.startswith(b"/"):
        assert found[0] == (request.method, request.target, body), (found[0], request, body)


def _codec() -> JsonCodec:
    return JsonCodec([catalogue_of().pool, descriptor_pool.Default()])


_CODEC = _codec()
_REQUEST_CLASSES = [query.request_class for query in catalogue_of().queries.values()]


def json_text(data: bytes) -> None:
    """A byte that chooses the message, and a text: what is taken is to protobuf the same, and comes back the same."""
    request_class: Any = _REQUEST_CLASSES[data[0] % len(_REQUEST_CLASSES)] if data else _REQUEST_CLASSES[0]
    text = data[1:]
    try:
        found = request_class.FromString(_CODEC.from_json(request_class, text))
    except QueryError:
        return
    assert found == json_format.Parse(text, request_class()), (text, found)
    # A double in a token or a duration out of range has no JSON; all that was JSON has.
    again = _CODEC.to_json(request_class, found.SerializeToString())
    assert request_class.FromString(_CODEC.from_json(request_class, again)) == found, (text, again)
