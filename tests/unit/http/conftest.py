from collections.abc import Iterator

import pytest

from tests.kit.gateways_in_process.web import WebClient, WebDoor, client_of, web_clients


@pytest.fixture(scope="module")
def door() -> Iterator[WebDoor]:
    with WebDoor() as served:
        yield served


@pytest.fixture(params=["http1", "http2"])
def client(request: pytest.FixtureRequest, door: WebDoor) -> WebClient:
    return client_of(web_clients(door), request.param)
