"""Subscribe streams that wait over mTLS, as rows expire, tokens end and the policy changes meanwhile."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import grpc
import pytest

from tablegate.gateway.access.gate import Gate
from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.http.tls import TlsFiles
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.stores.notifier import Notifier
from tablegate.v1.query_pb2 import SUBSCRIBE_PHASE_CURRENT
from tests.kit.access.issuer import SigningKey, key_set
from tests.kit.call.subscribing import TIMEOUT_S, Copy
from tests.kit.http.certificates import Authority
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import ACTIONS, SIGNER, FilledTable, catalogue_of

PATH = "/examples.actions.v1.ActionCountsService/SubscribeActionCounts"
NOW_MS = 1_790_000_000_000
POLICY = """
[[issuer]]
issuer = "https://login.example"
audience = "tablegate"
jwks_file = "keys.json"
leeway_s = 0

[certificates]

[[rule]]
tables = ["action_counts"]
"""


class Gateway:
    """Action counts of firefox behind mTLS; `key` signs tokens for it."""

    def __init__(self, directory: Path) -> None:
        self.key = SigningKey()
        (directory / "keys.json").write_bytes(key_set(self.key))
        self._file = directory / "access.toml"
        self._file.write_text(POLICY)
        catalogue = catalogue_of(ACTIONS)
        self.gate = Gate(self._file, catalogue)
        self.gate.start()
        authority = Authority(directory)
        pair, self._authority, self._client = authority.issue(), authority, authority.issue("ann")
        self._store, self._notifier = MemoryStore(), Notifier()
        self._table = FilledTable(self._store, catalogue.tables["action_counts"], 2, incarnation_id=1)
        self._table.publish()
        self.counts: dict[int, int] = {}  # by the window's start
        self._version = 0
        methods = query_methods(catalogue, self._store, SIGNER, self._notifier, now_ms=lambda: NOW_MS)
        tls = TlsFiles(pair.certificate, pair.key, authority.certificate)
        self.server = HttpServer(methods, "127.0.0.1:0", tls=tls, gate=self.gate)
        query = catalogue.queries[PATH]
        self._request = query.request_class(browser="firefox").SerializeToString()
        self._parse = query.response_class.FromString

    def _row(self, start_s: int) -> Any:
        row: Any = self._table.table.row_class(browser="firefox", action_count=self._version)
        row.window_start.FromMilliseconds(NOW_MS + start_s * 1_000)
        return row

    def put(self, *starts_s: int) -> None:
        for start_s in starts_s:
            self._version += 1
            self._table.put([self._row(start_s)])
            self.counts[start_s] = self._version
        self._notifier.notify()

    def expire(self, *starts_s: int) -> None:
        for start_s in starts_s:
            key = self._table.key_of(self._row(start_s))
            partition = self._table.table.partition_of(key, self._table.partition_count)
            assert self._store.expire(self._table.store_id, partition, [key], time_ms=NOW_MS) == 1
            del self.counts[start_s]
        self._notifier.notify()

    def set_policy(self, text: str) -> None:
        self._file.write_text(text)
        for _ in range(2):
            self.check()

    def check(self) -> None:
        """Do what a worker does on its timer."""
        self.gate.refresh()
        self.server.check_streams()

    def subscribe(self, token: str = "") -> "Stream":
        credentials = grpc.ssl_channel_credentials(
            self._authority.certificate.read_bytes(),
            self._client.key.read_bytes(),
            self._client.certificate.read_bytes(),
        )
        channel = grpc.aio.secure_channel(f"127.0.0.1:{self.server.port}", credentials)
        shown = [("authorization", f"Bearer {token}")] if token else []
        return Stream(self, channel, channel.unary_stream(PATH, None, self._parse)(self._request, metadata=shown))

    async def until_parked(self, streams: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while sum(each._parked is not None for each in self.server.calls._streams) < streams:
                await asyncio.sleep(0.001)


class Stream:
    """A client's stream, over a connection of its own, and its copy."""

    def __init__(self, gateway: Gateway, channel: grpc.aio.Channel, call: Any) -> None:
        self.gateway, self.channel, self.call = gateway, channel, call
        self.copy = Copy(lambda row: (row.window_start.ToMilliseconds() - NOW_MS) // 1_000, attrgetter("action_count"))

    async def until_current(self) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while self.copy.phase != SUBSCRIBE_PHASE_CURRENT or self.copy.counts != self.gateway.counts:
                self.copy.take(await self.call.read())


def run(tmp_path: Path, talk: Callable[[Gateway], Awaitable[None]]) -> None:
    async def serve() -> None:
        gateway = Gateway(tmp_path)
        await gateway.server.start()
        try:
            await talk(gateway)
        finally:
            await gateway.server.stop(0)
            gateway.gate.close()

    asyncio.run(serve())


def test_rows_that_expire_while_streams_wait_are_deletes(tmp_path: Path) -> None:
    async def talk(gateway: Gateway) -> None:
        gateway.put(*range(8))
        streams = [gateway.subscribe() for _ in range(3)]
        for stream in streams:
            await stream.until_current()
        for expired in ((0, 1), (2,), (3, 4)):
            await gateway.until_parked(len(streams))
            gateway.expire(*expired)
            for stream in streams:
                await stream.until_current()
        gateway.put(9)
        for stream in streams:
            await stream.until_current()
            assert (stream.copy.resets, stream.copy.given) == (1, 8 + 5 + 1)
            await stream.channel.close()

    run(tmp_path, talk)


def test_a_token_that_ends_while_its_stream_waits_ends_it(tmp_path: Path) -> None:
    async def talk(gateway: Gateway) -> None:
        gateway.put(1)
        now_s = int(time.time())
        ending, other = (gateway.subscribe(gateway.key.token(exp=now_s + left_s)) for left_s in (3, 3_600))
        for stream in (other, ending):
            await stream.until_current()
        await gateway.until_parked(2)
        gateway.set_policy(f"{POLICY}# read again\n")
        async with asyncio.timeout(TIMEOUT_S):
            while not ending.call.done():
                gateway.check()
                await asyncio.sleep(0.02)
        assert time.time() >= now_s + 3
        assert await ending.call.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "credential has ended" in await ending.call.details()
        gateway.put(2)
        await other.until_current()
        for stream in (other, ending):
            await stream.channel.close()

    run(tmp_path, talk)


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        ('tables = ["action_counts"]\nroles = ["operator"]', grpc.StatusCode.PERMISSION_DENIED),
        ('tables = ["action_counts"]\nhide = ["action_count"]', grpc.StatusCode.UNAVAILABLE),
    ],
    ids=["the table", "a column"],
)
def test_a_policy_that_takes_something_away_ends_streams_that_wait(
    tmp_path: Path, rule: str, code: grpc.StatusCode
) -> None:
    async def talk(gateway: Gateway) -> None:
        gateway.put(1)
        stream = gateway.subscribe()
        await stream.until_current()
        await gateway.until_parked(1)
        gateway.set_policy(POLICY.replace('tables = ["action_counts"]', rule))
        gateway.put(2)
        async with asyncio.timeout(TIMEOUT_S):
            assert await stream.call.code() is code
            # Another view's token is refused: the newest one leads nowhere.
            assert "resume token" not in await stream.call.details()
        await stream.channel.close()

    run(tmp_path, talk)
