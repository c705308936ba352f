"""The Redis store over TLS, and where the other end has none."""

import socket
from pathlib import Path

import pytest

from tablegate.examples.demo.kafka import free_port
from tablegate.gateway.stores.base import StoreUnavailable
from tablegate.gateway.stores.redis.connection import CONNECT_TIMEOUT_S
from tablegate.gateway.stores.redis.store import RedisReader, RedisStore
from tests.kit.http.certificates import Authority
from tests.kit.programs.redis import RedisServer, needs_redis
from tests.kit.store.batches import apply_batches, expected_rows, rows_of

pytestmark = needs_redis


@pytest.mark.tools
def test_redis_with_tls_may_answer_slower_than_it_connects(tmp_path: Path) -> None:
    authority, port = Authority(tmp_path), free_port()
    pair = authority.issue()
    files = ["--tls-cert-file", str(pair.certificate), "--tls-key-file", str(pair.key)]
    files += ["--tls-ca-cert-file", str(authority.certificate), "--tls-auth-clients", "no"]
    with RedisServer("--tls-port", str(port), *files) as server:
        url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={authority.certificate}"
        store, reader = RedisStore(url), RedisReader(url)
        apply_batches(store, 0, 3)
        server.run("CLIENT", "PAUSE", int(CONNECT_TIMEOUT_S * 1_500))
        apply_batches(store, 3, 5)
        assert rows_of(reader) == expected_rows(5)
        for each in (store, reader):
            each.close()
        with pytest.raises(StoreUnavailable, match=r"certificate verify failed"):
            RedisStore(f"rediss://127.0.0.1:{port}/0")


def test_a_server_that_begins_no_tls_is_told_in_the_time_to_connect() -> None:
    """It waits for more, as Redis does where the bytes that it takes for a command have no end of a line."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(StoreUnavailable) as raised:
            RedisStore(f"rediss://127.0.0.1:{port}/0?socket_connect_timeout=0.3")
    why = "does not answer (no TLS handshake within 0.3 s; redis:// is without TLS): "
    assert str(raised.value).startswith(f"Redis at 127.0.0.1:{port} {why}")


def test_a_redis_without_tls_is_told() -> None:
    with RedisServer(port=True) as server, pytest.raises(StoreUnavailable, match="does not answer"):
        RedisStore(f"rediss://127.0.0.1:{server.port}/0?socket_connect_timeout=0.3")
