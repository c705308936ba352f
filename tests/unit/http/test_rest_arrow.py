"""Rows as Arrow over REST: what a Scan and a Range answer who accepts it, and what else who cannot have it."""

import asyncio
import gzip
import http.client
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pool

from tablegate.client.arrow import arrow_table
from tablegate.gateway.access.gate import Gate
from tablegate.gateway.contract.catalogue import RangeQuery
from tablegate.gateway.http.json_codec import JsonCodec
from tablegate.gateway.http.rest.arrow import ARROW, Accepted, ArrowLimits, ArrowRows, accepted_by, gives_rows
from tablegate.gateway.http.rest.protocol import RestProtocol
from tablegate.gateway.http.rpc.calls import Calls
from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.query.call import Call, Methods, StreamMethod
from tablegate.gateway.query.errors import NotCaughtUp
from tablegate.gateway.query.limits import QueryLimits
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.stores.notifier import Notifier
from tests.kit.gateways_in_process.ratings import RatingsServer
from tests.kit.gateways_in_process.tenants import write_access
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.gateways_in_process.web import HTTP_TIMEOUT_S, SERVICE, WebClient, client_of, web_clients
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, catalogue_of, rating, ratings_table

ACCEPT = ARROW.decode()
SCAN = f"{SERVICE}/ScanRatings"
ROWS = [rating(number, average=number / 7) for number in range(100)]
MANY = ArrowLimits(batch_rows=20)  # batches of rows that come in messages of 10


class ArrowServer(ServerThread):
    """REST over 100 movies, with some methods in place of its own."""

    def __init__(self, limits: ArrowLimits, *, has_extra: bool = True, methods: Methods | None = None) -> None:
        super().__init__(self._made)
        self._limits = limits
        self._has_extra = has_extra
        self._others = methods or {}

    def _made(self) -> HttpServer:
        store, catalogue = MemoryStore(), catalogue_of()
        ratings_table(store).put(ROWS)
        small = QueryLimits(message_rows_max=10, scan_first_read_rows=10)
        methods = {**query_methods(catalogue, store, SIGNER, Notifier(), limits=small), **self._others}

        def web(methods: Methods, calls: Calls) -> list[Any]:
            codec = JsonCodec([catalogue.pool, descriptor_pool.Default()])
            arrow = ArrowRows(catalogue.queries, codec, self._limits, lambda: self._has_extra)
            return [RestProtocol(catalogue.routes, methods, calls, codec, arrow)]

        return HttpServer(methods, "127.0.0.1:0", web=web)


def client_to(server: Any, version: str = "http1") -> WebClient:
    return client_of(web_clients(server), version)


def by_movie(table: pa.Table) -> pa.Table:
    return table.sort_by("movie_id")


def whole() -> pa.Table:
    return arrow_table(ROWS, type(ROWS[0]))


async def broken(data: bytes, _call: Call) -> AsyncIterator[bytes]:
    """Give 60 rows, then an error: by then 40 of them are sent."""
    response: Any = catalogue_of().queries[SCAN].response_class
    yield response(ratings=ROWS[:20]).SerializeToString()
    yield response(ratings=ROWS[20:40]).SerializeToString()
    yield response(ratings=ROWS[40:60]).SerializeToString()
    await asyncio.sleep(0)
    raise NotCaughtUp("ratings", 0, "it is 3 s behind")


@pytest.mark.tools
@pytest.mark.parametrize("version", ["http1", "http2"])
@pytest.mark.parametrize("limits", [ArrowLimits(), MANY, ArrowLimits(flush_s=0)])
def test_a_scan_is_one_stream_of_arrow(limits: ArrowLimits, version: str) -> None:
    with ArrowServer(limits) as server:
        answer = client_to(server, version).ask("GET", "/v1/ratings:scan", accept=ACCEPT)
        lines = client_to(server, version).ask("GET", "/v1/ratings:scan").body.splitlines()
    assert (answer.status, answer.headers["content-type"]) == (200, ACCEPT)
    assert answer.body.endswith(b"\xff\xff\xff\xff\0\0\0\0")
    reader = pa.ipc.open_stream(answer.body)
    batches = [reader.read_next_batch_with_custom_metadata() for _ in range(_batches(answer.body))]
    assert len(batches) == {32_768: 1, 20: 5}.get(limits.batch_rows if limits.flush_s else 0, len(batches))
    assert by_movie(pa.Table.from_batches([batch for batch, _ in batches])) == whole()
    last, line = json.loads(batches[-1][1]["tablegate"]), json.loads(lines[-1])
    assert last["progress"].keys() == line["progress"].keys()


def _batches(body: bytes) -> int:
    return sum(1 for _ in pa.ipc.open_stream(body))


def test_a_scan_goes_on_behind_a_batch_of_arrow() -> None:
    with ArrowServer(MANY) as server:
        client = client_to(server)
        reader = pa.ipc.open_stream(client.ask("GET", "/v1/ratings:scan", accept=ACCEPT).body)
        first, about = reader.read_next_batch_with_custom_metadata()
        token = json.loads(about["tablegate"])["progress"]["resumeToken"]
        rest = client.ask("GET", f"/v1/ratings:scan?scanOptions.resumeToken={token}", accept=ACCEPT)
    assert first.num_rows == 20
    assert by_movie(pa.concat_tables([pa.Table.from_batches([first]), pa.ipc.open_stream(rest.body).read_all()])) == (
        whole()
    )


def test_a_scan_without_rows_has_columns_and_progress() -> None:
    with ArrowServer(ArrowLimits()) as server:
        body = client_to(server).ask("GET", "/v1/ratings:scan?minRatingCount=1000000", accept=ACCEPT).body
    reader = pa.ipc.open_stream(body)
    batch, about = reader.read_next_batch_with_custom_metadata()
    assert (reader.schema, batch.num_rows) == (whole().schema, 0)
    assert json.loads(about["tablegate"])["progress"]["resumeToken"]


@pytest.mark.parametrize("version", ["http1", "http2"])
def test_pages_of_a_range_are_streams_of_arrow(version: str) -> None:
    pages, token = [], ""
    with ArrowServer(ArrowLimits()) as server:
        while True:
            asked = f"/v1/ratings?pageSize=40&pageToken={token}"
            answer = client_to(server, version).ask("GET", asked, accept=ACCEPT)
            assert (answer.status, answer.headers["content-type"]) == (200, ACCEPT)
            pages.append(pa.ipc.open_stream(answer.body).read_all())
            about = json.loads(pages[-1].schema.metadata[b"tablegate"])
            assert about["readInfo"]
            token = about.get("nextPageToken", "")
            if not token:
                break
    assert [page.num_rows for page in pages] == [40, 40, 20]
    assert pa.concat_tables(pages).replace_schema_metadata() == whole()


def test_a_mask_chooses_columns_of_arrow() -> None:
    with ArrowServer(MANY) as server:
        client = client_to(server)
        masked = "readMask=averageRating"
        scanned = pa.ipc.open_stream(client.ask("GET", f"/v1/ratings:scan?{masked}", accept=ACCEPT).body).read_all()
        page = pa.ipc.open_stream(client.ask("GET", f"/v1/ratings?{masked}", accept=ACCEPT).body).read_all()
        everything = client.ask("GET", "/v1/ratings:scan?readMask=*", accept=ACCEPT).body
        wrong = [client.ask("GET", f"/v1/{path}?readMask=name", accept=ACCEPT) for path in ("ratings", "ratings:scan")]
    assert by_movie(scanned) == whole().select(["movie_id", "average_rating"])
    assert page.column_names == ["movie_id", "average_rating"]
    assert by_movie(pa.ipc.open_stream(everything).read_all()) == whole()
    assert [answer.status for answer in wrong] == [400, 400]
    assert "Rating has no such field" in wrong[1].json["error"]["message"]


def test_a_hidden_column_is_no_column_of_arrow(tmp_path: Path) -> None:
    rule = '[[rule]]\nprincipals = ["key ann"]\ntables = ["ratings"]\nhide = ["average_rating"]\n'
    access = write_access(tmp_path, f'[api_keys]\nfile = "keys.toml"\n{rule}', {"ann": {}})
    with RatingsServer(gate=lambda catalogue: Gate(access, catalogue)) as server:
        server.put(range(10))
        for path in ("/v1/ratings:scan", "/v1/ratings"):
            answer = client_to(server).ask("GET", path, accept=ACCEPT, authorization="Bearer ann")
            table = pa.ipc.open_stream(answer.body).read_all()
            names = [name for name in whole().column_names if name != "average_rating"]
            assert (table.num_rows, table.column_names) == (10, names)
        assert client_to(server).ask("GET", "/v1/ratings:scan", accept=ACCEPT).status == 401


def test_who_accepts_gzip_gets_arrow_in_gzip() -> None:
    with ArrowServer(MANY) as server:
        for path in ("/v1/ratings:scan", "/v1/ratings?pageSize=100"):
            answer = client_to(server).ask("GET", path, accept=ACCEPT, accept_encoding="gzip")
            assert answer.headers["content-encoding"] == "gzip"
            table = pa.ipc.open_stream(gzip.decompress(answer.body)).read_all()
            assert by_movie(table).replace_schema_metadata() == whole()


@pytest.mark.parametrize("accepted", ["identity", "gzip"])
def test_a_scan_that_breaks_off_is_no_whole_stream(accepted: str) -> None:
    with ArrowServer(MANY, methods={SCAN: StreamMethod(broken)}) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HTTP_TIMEOUT_S)
        connection.request("GET", "/v1/ratings:scan", headers={"accept": ACCEPT, "accept-encoding": accepted})
        with pytest.raises(http.client.IncompleteRead) as found:
            connection.getresponse().read()
        connection.close()
    if accepted == "identity":
        reader = pa.ipc.open_stream(found.value.partial)
        assert reader.read_next_batch().num_rows == 20
        assert b"NOT_CAUGHT_UP" in found.value.partial
        with pytest.raises(pa.ArrowInvalid, match="Expected to read"):
            reader.read_all()


def test_a_scan_that_breaks_off_is_no_whole_stream_over_http2() -> None:
    with ArrowServer(MANY, methods={SCAN: StreamMethod(broken)}) as server:
        body = client_to(server, "http2").ask("GET", "/v1/ratings:scan", accept=ACCEPT).body
    reader = pa.ipc.open_stream(body)
    assert [reader.read_next_batch().num_rows for _ in range(2)] == [20, 20]
    assert b"NOT_CAUGHT_UP" in body
    with pytest.raises(pa.ArrowInvalid, match="Expected to read"):
        reader.read_next_batch()


def test_an_error_before_the_first_batch_is_an_error() -> None:
    with ArrowServer(ArrowLimits(), methods={SCAN: StreamMethod(broken)}) as server:
        answer = client_to(server).ask("GET", "/v1/ratings:scan", accept=ACCEPT)
    assert (answer.status, answer.json["error"]["details"][0]["reason"]) == (503, "NOT_CAUGHT_UP")


def test_a_damaged_row_is_no_row_of_arrow() -> None:
    async def damaged(data: bytes, _call: Call) -> AsyncIterator[bytes]:
        yield b"\x0a\x03\x08\x80\x80"

    with ArrowServer(ArrowLimits(), methods={SCAN: StreamMethod(damaged)}) as server:
        answer = client_to(server).ask("GET", "/v1/ratings:scan", accept=ACCEPT)
    assert (answer.status, answer.json["error"]["status"]) == (500, "DATA_LOSS")
    assert 'table "ratings" has a damaged row' in answer.json["error"]["message"]


def test_too_many_answers_of_arrow_are_refused() -> None:
    async def endless(data: bytes, _call: Call) -> AsyncIterator[bytes]:
        while True:
            yield catalogue_of().queries[SCAN].response_class(ratings=ROWS).SerializeToString()

    with (
        ArrowServer(ArrowLimits(at_work_max=1), methods={SCAN: StreamMethod(endless)}) as server,
        socket.create_connection(("127.0.0.1", server.port), HTTP_TIMEOUT_S) as one,
    ):
        one.sendall(b"GET /v1/ratings:scan HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: %b\r\n\r\n" % ARROW)
        assert one.recv(1_000).startswith(b"HTTP/1.1 200")
        for path in ("/v1/ratings", "/v1/ratings:scan"):
            answer = client_to(server).ask("GET", path, accept=ACCEPT)
            assert (answer.status, answer.json["error"]["details"][0]["reason"]) == (429, "OVERLOADED")
            assert "1 answers of Arrow at work here; back off, or accept JSON" in answer.json["error"]["message"]
        assert client_to(server).ask("GET", "/v1/ratings").status == 200


def test_a_gateway_without_the_extra_names_it() -> None:
    with ArrowServer(ArrowLimits(), has_extra=False) as server:
        client = client_to(server)
        for path in ("/v1/ratings", "/v1/ratings:scan"):
            answer = client.ask("GET", path, accept=ACCEPT)
            assert answer.status == 406
            assert answer.json["error"]["message"] == (
                "this gateway makes no Arrow: install tablegate-gateway[arrow] there, or accept application/json"
            )
            other = client.ask("GET", path, accept=f"{ACCEPT}, */*;q=0.1")
            assert (other.status, other.json if path == "/v1/ratings" else other.body) != (406, b"")
            assert other.headers["content-type"] in ("application/json", "application/x-ndjson")


@pytest.mark.parametrize("path", ["/v1/ratings/1", "/v1/ratings:count", "/v1/ratings:subscribe"])
def test_what_has_no_rows_is_no_arrow(path: str) -> None:
    with ArrowServer(ArrowLimits()) as server:
        answer = client_to(server).ask("GET", path, accept=ACCEPT)
    assert answer.status == 406
    assert answer.json["error"]["message"] == "only a Scan and a Range answer as Arrow; accept application/json here"


def test_a_route_that_answers_with_another_field_gives_no_rows() -> None:
    catalogue = catalogue_of()
    [pages] = [route for route in catalogue.routes if route.path == f"{SERVICE}/ListRatings"]
    query = catalogue.queries[pages.path]
    assert isinstance(query, RangeQuery)
    assert gives_rows(query, pages)
    assert gives_rows(query, replace(pages, response_body=query.rows))
    assert not gives_rows(query, replace(pages, response_body=query.next_page_token))


@pytest.mark.parametrize(
    ("accept", "accepted"),
    [
        (ACCEPT, Accepted(arrow=True, json=False)),
        (f"text/html, {ACCEPT.upper()} ; q=0.5", Accepted(arrow=True, json=False)),
        (f"{ACCEPT};q=0.0", Accepted(arrow=False, json=False)),
        (f"{ACCEPT};q=x", Accepted(arrow=True, json=False)),
        (f"{ACCEPT}, */*;q=0.1", Accepted(arrow=True, json=True)),
        (f"application/json, {ACCEPT};q=0.9", Accepted(arrow=False, json=True)),
        (f"application/json;q=0.9, {ACCEPT}", Accepted(arrow=True, json=True)),
        ("*/*", Accepted(arrow=False, json=True)),
        ("", Accepted(arrow=False, json=False)),
    ],
)
def test_what_an_accept_header_accepts(accept: str, accepted: Accepted) -> None:
    assert accepted_by(accept.encode()) == accepted
