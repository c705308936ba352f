import gzip
import re
from collections.abc import Iterator

import pytest

from tests.kit.gateways_in_process.rest import RestServer
from tests.kit.gateways_in_process.web import WebClient, client_of, web_clients

TYPES = {
    "/docs": "text/html; charset=utf-8",
    "/docs/page.js": "text/javascript; charset=utf-8",
    "/docs/swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "/docs/swagger-ui.css": "text/css; charset=utf-8",
    "/openapi.json": "application/json",
}


@pytest.fixture(scope="module")
def server() -> Iterator[RestServer]:
    with RestServer() as served:
        yield served


@pytest.fixture(params=["http1", "http2"])
def client(request: pytest.FixtureRequest, server: RestServer) -> WebClient:
    return client_of(web_clients(server), request.param)


@pytest.mark.parametrize("path", TYPES)
def test_a_page(client, path):
    plain = client.ask("GET", path)
    assert (plain.status, plain.headers["content-type"]) == (200, TYPES[path])
    assert "content-encoding" not in plain.headers
    assert "script-src 'self';" in plain.headers["content-security-policy"]
    packed = client.ask("GET", path, accept_encoding="gzip, br")
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) or len(plain.body) < 1_000


@pytest.mark.parametrize("path", TYPES)
def test_a_page_that_the_client_has(client, path):
    etag = client.ask("GET", path).headers["etag"]
    same = client.ask("GET", path, if_none_match=f'"another", {etag}')
    assert (same.status, same.body, same.headers["etag"]) == (304, b"", etag)
    assert client.ask("GET", path, if_none_match='W/"another"').status == 200


def test_etags_are_the_same_in_another_process(server):
    with RestServer() as other:
        for path in TYPES:
            etags = {WebClient(one, http2=False).ask("GET", path).headers["etag"] for one in (server, other)}
            assert len(etags) == 1


def test_a_page_is_only_got(client):
    answer = client.ask("POST", "/docs", b"{}")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


def test_nothing_else_is_a_page(client):
    for path in ("README.md", "LICENSE", "swagger-ui.css.gz", "../pages.py", "%2e%2e/pages.py", "/etc/passwd", ""):
        assert client.ask("GET", f"/docs/{path}").status == 404


def test_the_page_takes_nothing_from_elsewhere(server):
    page = WebClient(server, http2=False).ask("GET", "/docs").body.decode()
    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert links == ["data:,", "docs/swagger-ui.css", "docs/swagger-ui-bundle.js", "docs/page.js"]
