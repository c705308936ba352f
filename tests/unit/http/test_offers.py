"""Messages that go past their handler: each in its place, and none where the client has no room for it."""

import base64
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from typing_extensions import override

from tablegate.gateway.http.json_codec import JsonCodec
from tablegate.gateway.http.rest.arrow import ArrowRows
from tablegate.gateway.http.rest.protocol import RestProtocol
from tablegate.gateway.http.rpc.calls import Calls
from tablegate.gateway.http.rpc.connect import ConnectProtocol
from tablegate.gateway.http.server import HttpServer, WebProtocol
from tablegate.gateway.query.call import Call, Methods, StreamMethod
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.gateways_in_process.web import SERVICE, Answer, WebClient, WebServer, client_of, web_clients
from tests.kit.table.filled import catalogue_of, rating

SCAN = f"{SERVICE}/ScanRatings"
LARGE = "/test.Service/Large"
COUNT = 40
LARGE_BYTES, LARGE_COUNT = 40_000, 500  # more than any window and all buffers on the way take
TIMEOUT_S = 60.0
ORIGIN = "https://pages.example.org"

RESPONSE: Any = catalogue_of().queries[SCAN].response_class


class OfferingServer(WebServer):
    """Streams rows by offer and by yield in turn. `taken`: of the last stream, the numbers that went by offer."""

    def __init__(self) -> None:
        super().__init__({SCAN: StreamMethod(self._rows), LARGE: StreamMethod(self._large)}, origins=(ORIGIN,))
        self.taken: list[int] = []
        self.refused = threading.Event()

    async def _rows(self, _data: bytes, call: Call) -> AsyncIterator[bytes]:
        self.taken.clear()
        for number in range(COUNT):
            message = RESPONSE(ratings=[rating(number)]).SerializeToString()
            if number % 4 != 3 and call.offer(message):
                self.taken.append(number)
            else:
                yield message

    async def _large(self, _data: bytes, call: Call) -> AsyncIterator[bytes]:
        yield b"0"
        for number in range(1, LARGE_COUNT):
            message = (b"%d" % number).ljust(LARGE_BYTES)
            if not call.offer(message):
                self.refused.set()
                yield message


@pytest.fixture(scope="module")
def offering() -> Iterator[OfferingServer]:
    with OfferingServer() as served:
        yield served


@pytest.fixture(params=["http1", "http2"])
def offered_client(request: pytest.FixtureRequest, offering: OfferingServer) -> WebClient:
    return client_of(web_clients(offering), request.param)


def _enveloped(body: bytes) -> Iterator[bytes]:
    while body:
        end = 5 + int.from_bytes(body[1:5], "big")
        if body[0] == 0:
            yield body[5:end]
        body = body[end:]


def _from_envelopes(body: bytes) -> list[int]:
    return [RESPONSE.FromString(message).ratings[0].movie_id for message in _enveloped(body)]


def _from_text(body: bytes) -> list[int]:
    return _from_envelopes(b"".join(base64.b64decode(body[at : at + 4]) for at in range(0, len(body), 4)))


def _movie(message: Any) -> int:
    return int(message["ratings"][0].get("movieId", 0))


def _from_json_envelopes(body: bytes) -> list[int]:
    return [_movie(json.loads(message)) for message in _enveloped(body)]


def _from_lines(body: bytes) -> list[int]:
    return [_movie(json.loads(line)) for line in body.splitlines()]


def _from_events(body: bytes) -> list[int]:
    *events, last = body.decode().removesuffix("\n\n").split("\n\n")
    assert last.startswith("event: end")
    return [_movie(json.loads(event.removeprefix("data: "))) for event in events]


def _posted(body: bytes, content_type: str) -> Callable[[WebClient], Answer]:
    return lambda client: client.post(SCAN, body, content_type, origin=ORIGIN)


def _got(accept: str) -> Callable[[WebClient], Answer]:
    return lambda client: client.ask("GET", "/v1/ratings:scan", accept=accept)


NOTHING = bytes(5)  # an envelope
WAYS: dict[str, tuple[Callable[[WebClient], Answer], Callable[[bytes], list[int]]]] = {
    "grpc-web": (_posted(NOTHING, "application/grpc-web+proto"), _from_envelopes),
    "grpc-web-text": (_posted(base64.b64encode(NOTHING), "application/grpc-web-text"), _from_text),
    "connect": (_posted(NOTHING, "application/connect+proto"), _from_envelopes),
    "connect-json": (_posted(b"\0\0\0\0\2{}", "application/connect+json"), _from_json_envelopes),
    "lines": (_got("application/x-ndjson"), _from_lines),
    "events": (_got("text/event-stream"), _from_events),
}


@pytest.mark.parametrize("way", WAYS)
def test_offers_come_in_their_places_over_every_protocol_of_the_web(
    offering: OfferingServer, offered_client: WebClient, way: str
) -> None:
    ask, read = WAYS[way]
    answer = ask(offered_client)
    assert answer.status == 200
    assert read(answer.body) == list(range(COUNT))
    assert offering.taken, "no offer was taken"
    assert 0 not in offering.taken, "nothing goes before the head"


def test_offers_come_in_their_places_over_grpc(offering: OfferingServer) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{offering.port}") as channel:
        messages = list(channel.unary_stream(SCAN, response_deserializer=RESPONSE.FromString)(b"", timeout=TIMEOUT_S))
    assert [message.ratings[0].movie_id for message in messages] == list(range(COUNT))
    assert offering.taken
    assert 0 not in offering.taken


def test_a_client_that_does_not_read_is_offered_no_more_and_misses_nothing(offering: OfferingServer) -> None:
    offering.refused.clear()
    with grpc.insecure_channel(f"127.0.0.1:{offering.port}") as channel:
        stream = channel.unary_stream(LARGE)(b"", timeout=TIMEOUT_S)
        assert offering.refused.wait(TIMEOUT_S), "all offers were taken, though nobody reads"
        messages = list(stream)
    assert [int(message) for message in messages] == list(range(LARGE_COUNT))
    assert {len(message) for message in messages[1:]} == {LARGE_BYTES}


class _CountingCodec(JsonCodec):
    """Counts the messages of which it made JSON."""

    made = 0

    @override
    def to_json(self, message_class: type[Message], data: bytes) -> bytes:
        self.made += 1
        return super().to_json(message_class, data)


def test_json_of_what_many_streams_are_given_is_made_once() -> None:
    """Some milliseconds of the event loop for a full message, times thousands of pages that listen."""
    catalogue, message = catalogue_of(), RESPONSE(ratings=[rating(7)]).SerializeToString()
    codec = _CountingCodec([catalogue.pool])

    async def rows(_data: bytes, _call: Call) -> AsyncIterator[bytes]:
        yield message

    def web(methods: Methods, calls: Calls) -> Sequence[WebProtocol]:
        rest = RestProtocol(catalogue.routes, methods, calls, codec, ArrowRows(catalogue.queries, codec))
        return ConnectProtocol(methods, calls, codec), rest

    methods = {path: StreamMethod(rows) for path in catalogue.queries}
    with ServerThread(lambda: HttpServer(methods, "127.0.0.1:0", web=web)) as server:
        client = WebClient(server, http2=False)
        for way, (ask, read) in WAYS.items():
            if not way.startswith("grpc"):
                assert [read(ask(client).body) for _ in range(3)] == [[7]] * 3
    assert codec.made == len(["of Connect", "of REST"])
