from collections.abc import Iterator

import pytest

from tests.kit.gateways_in_process.web import WebClient, WebServer, client_of, web_clients


@pytest.fixture(scope="module")
def server() -> Iterator[WebServer]:
    with WebServer() as served:
        yield served


@pytest.fixture(params=["http1", "http2"])
def client(request: pytest.FixtureRequest, server: WebServer) -> WebClient:
    return client_of(web_clients(server), request.param)
