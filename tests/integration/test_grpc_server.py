"""The gRPC server in this process, over a store that is filled without Kafka."""

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from tablegate.gateway.cluster.directory import Directory
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.query.call import Call, Methods, StreamMethod, UnaryMethod
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.server.health import Health, live_tables
from tablegate.gateway.server.metadata import REFLECTION_SERVICES, reflection_methods, status_methods
from tablegate.gateway.stores.base import Phase
from tablegate.gateway.stores.notifier import Notifier
from tablegate.internal.v1.store_pb2 import TableState
from tablegate.v1.status_pb2 import GetStatusResponse
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import ROOT, SIGNER, FilledTable, catalogue_of, rating, ratings_table

SERVICE = "/examples.ratings.v1.RatingsService"
LOCAL = "127.0.0.1:0"


class Served:
    """The ratings table behind a server, and a channel to it."""

    def __init__(self, server: HttpServer, table: FilledTable, health: Health, channel: aio.Channel) -> None:
        self.server = server
        self.table = table
        self.health = health
        self.channel = channel

    def request(self, method: str, **fields: Any) -> Any:
        return catalogue_of().queries[f"{SERVICE}/{method}"].request_class(**fields)

    def unary(self, method: str, **fields: Any) -> Any:
        query = catalogue_of().queries[f"{SERVICE}/{method}"]
        call = self.channel.unary_unary(query.path, response_deserializer=query.response_class.FromString)
        return call(self.request(method, **fields).SerializeToString(), timeout=5)


def _serve(test: Callable[[Served], Awaitable[None]], more: Methods | None = None) -> None:
    async def run() -> None:
        store, catalogue = MemoryStore(), catalogue_of()
        table = ratings_table(store)
        table.put(rating(number) for number in range(100))
        store.set_status(GetStatusResponse(kafka_reachable=True).SerializeToString())
        health = Health(catalogue)
        health.update(live_tables(store, health.tables, Directory()))
        methods = {
            **query_methods(catalogue, store, SIGNER, Notifier()),
            **health.methods(),
            **status_methods(store),
            **reflection_methods(catalogue),
            **(more or {}),
        }
        server = HttpServer(methods, LOCAL)
        await server.start()
        async with aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            try:
                await test(Served(server, table, health, channel))
            finally:
                await server.stop(0)

    asyncio.run(run())


def _status(error: aio.AioRpcError) -> tuple[status_pb2.Status, error_details_pb2.ErrorInfo]:
    trailers = dict(error.trailing_metadata() or ())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert status.code == error.code().value[0]
    return status, info


async def _refused(call: Awaitable[Any]) -> aio.AioRpcError:
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return caught.value


def test_unary_stream_and_trailers() -> None:
    async def test(served: Served) -> None:
        call = served.unary("GetRating", movie_id=7)
        assert (await call).rating == rating(7)
        assert dict(await call.trailing_metadata())["tablegate-role"] == "owner"
        scan = served.channel.unary_stream(f"{SERVICE}/ScanRatings")
        response_class = catalogue_of().queries[f"{SERVICE}/ScanRatings"].response_class
        messages = [response_class.FromString(message) async for message in scan(b"")]
        assert sorted(row.movie_id for message in messages for row in message.ratings) == list(range(100))  # type: ignore[attr-defined]

    _serve(test)


def test_errors_carry_their_details() -> None:
    async def test(served: Served) -> None:
        error = await _refused(served.unary("GetRating", movie_id=-3))
        assert error.code() is grpc.StatusCode.NOT_FOUND
        status, info = _status(error)
        assert (info.domain, info.reason) == ("tablegate", "ROW_NOT_FOUND")
        assert "-3" not in str(status)
        error = await _refused(served.unary("ListRatings", page_size=-1))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "page_size" in error.details()
        error = await _refused(served.unary("ListRatings", page_token="1.junk"))
        assert _status(error)[1].reason == "INVALID_PAGE_TOKEN"
        served.table.move(Partition(0), phase=Phase.RESTORING)
        error = await _refused(served.unary("ListRatings"))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert dict(error.trailing_metadata() or ())["grpc-retry-pushback-ms"] == "500"

    _serve(test)


def test_unknown_methods_and_services_have_details() -> None:
    async def test(served: Served) -> None:
        for path, words in (
            (f"{SERVICE}/Nothing", "no such method"),
            ("/nobody.v1.Service/Get", "no such service"),
        ):
            error = await _refused(served.channel.unary_unary(path)(b"", timeout=5))
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED
            assert words in (error.details() or "")
            assert _status(error)[1].reason == "NOT_SERVED"
            error = await _refused(served.channel.stream_stream(path)(iter(()), timeout=5).read())
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED

    _serve(test)


def test_a_request_of_10_mb_is_refused() -> None:
    async def test(served: Served) -> None:
        error = await _refused(served.channel.unary_unary(f"{SERVICE}/GetRating")(b"\x00" * 10_000_000, timeout=5))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert _status(error)[1].reason == "REQUEST_TOO_LARGE"
        assert (await served.unary("GetRating", movie_id=1)).rating.movie_id == 1

    _serve(test)


def test_calls_without_a_deadline_get_one() -> None:
    seen: list[float | None] = []

    async def tell(_data: bytes, call: Call) -> bytes:
        seen.append(call.time_left_s())
        return b""

    async def stream(_data: bytes, call: Call) -> AsyncIterator[bytes]:
        seen.append(call.time_left_s())
        yield b""

    async def test(served: Served) -> None:
        unary = served.channel.unary_unary("/test.Service/Tell")
        await unary(b"")
        await unary(b"", timeout=100)
        await unary(b"", timeout=30)
        await served.channel.unary_stream("/test.Service/Stream")(b"").read()
        default, cut, own, none = seen
        assert default is not None
        assert 15 < default <= 20
        assert cut is not None
        assert 45 < cut <= 50
        assert own is not None
        assert 25 < own <= 30.1  # it travels in whole units
        assert none is None

    _serve(test, {"/test.Service/Tell": UnaryMethod(tell, 20.0, 50.0), "/test.Service/Stream": StreamMethod(stream)})


def test_a_waiting_read_without_a_deadline_ends() -> None:
    async def test(served: Served) -> None:
        request = served.request("GetRating", movie_id=1)
        request.read_options.at_least_source.topics.add(topic="ratings").offsets[0] = 10**9
        started = time.monotonic()
        error = await _refused(served.channel.unary_unary(f"{SERVICE}/GetRating")(request.SerializeToString()))
        assert _status(error)[1].reason == "NOT_CAUGHT_UP"
        assert time.monotonic() - started > 0.9  # half of the contract's default of 2 s

    _serve(test)


def test_cancel_and_deadline_reach_the_handler() -> None:
    begun: list[str] = []
    ended: list[str] = []

    async def wait(_data: bytes, _call: Call) -> bytes:
        begun.append("unary")
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.append("unary")
            raise
        return b""

    async def stream(_data: bytes, _call: Call) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 1_000
                await asyncio.sleep(0.001)
        finally:
            ended.append("stream")

    async def test(served: Served) -> None:
        call = served.channel.unary_unary("/test.Service/Wait")(b"")
        await _soon(lambda: begun == ["unary"])
        call.cancel()
        await _soon(lambda: ended == ["unary"])
        await _refused(served.channel.unary_unary("/test.Service/Wait")(b"", timeout=1.0))
        await _soon(lambda: ended == ["unary", "unary"])
        streaming = served.channel.unary_stream("/test.Service/Stream")(b"")
        await streaming.read()
        streaming.cancel()
        await _soon(lambda: ended[2:] == ["stream"])

    methods: Methods = {
        "/test.Service/Wait": UnaryMethod(wait, 20.0, 20.0),
        "/test.Service/Stream": StreamMethod(stream),
    }
    _serve(test, methods)


async def _soon(holds: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("did not happen")


def test_a_mistake_of_ours_is_internal_and_its_log_has_no_values(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_data: bytes, _call: Call) -> bytes:
        raise KeyError("secret key")

    async def test(served: Served) -> None:
        error = await _refused(served.channel.unary_unary("/test.Service/Fail")(b""))
        assert error.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in (error.details() or "")

    _serve(test, {"/test.Service/Fail": UnaryMethod(fail, 5.0, 5.0)})
    [record] = [record for record in caplog.records if record.name == "tablegate.gateway.http"]
    assert "secret" not in str(vars(record))
    assert "test_grpc_server.py" in str(vars(record))


def test_health_follows_the_table_and_the_drain() -> None:
    async def test(served: Served) -> None:
        check = served.channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        for service in ("", SERVICE[1:]):
            assert (await check(health_pb2.HealthCheckRequest(service=service))).status == 1
        error = await _refused(check(health_pb2.HealthCheckRequest(service="nobody")))
        assert error.code() is grpc.StatusCode.NOT_FOUND
        told: list[int] = []
        watch = served.channel.unary_stream(
            "/grpc.health.v1.Health/Watch", response_deserializer=health_pb2.HealthCheckResponse.FromString
        )(b"")
        watching = asyncio.create_task(_to_its_end(watch, lambda answer: told.append(answer.status)))
        await _soon(lambda: told == [1])
        served.table.move(Partition(1), phase=Phase.RESTORING)
        served.health.update(live_tables(served.table.store, served.health.tables, Directory()))
        await _soon(lambda: told == [1, 2])
        served.table.move(Partition(1))
        served.health.update(live_tables(served.table.store, served.health.tables, Directory()))
        await _soon(lambda: told == [1, 2, 1])
        served.health.drain()
        error = await _refused(watching)
        assert told == [1, 2, 1, 2]
        assert _status(error)[1].reason == "SHUTTING_DOWN"

    _serve(test)


def test_a_table_is_live_only_while_all_of_it_is_answered() -> None:
    store, names = MemoryStore(), frozenset({"ratings"})
    table = ratings_table(store)
    assert live_tables(store, names, Directory()) == names
    for partition in table.next_offsets:
        table.move(partition, phase=Phase.RESTORING)
        assert live_tables(store, names, Directory()) == frozenset()
        table.move(partition)
    table.publish(problem="the manifest has another key")
    assert live_tables(store, names, Directory()) == frozenset()
    table.publish()
    assert live_tables(store, names, Directory()) == names
    assert store.drop(table.store_id, limit=1)
    assert live_tables(store, names, Directory()) == frozenset()
    store.put_table("ratings", TableState())
    assert live_tables(store, names, Directory()) == frozenset()
    store.close()
    assert live_tables(store, names, Directory()) == frozenset()


def test_a_service_serves_only_while_all_of_its_tables_do() -> None:
    health = Health(catalogue_of(ROOT / "tests/kit/call/shop.proto"))
    assert len(health.tables) > 1
    for missing in health.tables:
        health.update(health.tables)
        assert health.serving
        health.update(health.tables - {missing})
        assert not health.serving
    health.drain()
    health.update(health.tables)
    assert not health.serving


def test_draining_ends_streams_and_lets_unary_calls_finish() -> None:
    async def slow(_data: bytes, _call: Call) -> bytes:
        await asyncio.sleep(0.5)
        return b"done"

    async def endless(_data: bytes, call: Call) -> AsyncIterator[bytes]:
        from tablegate.gateway.query.errors import ShuttingDown

        while not call.draining:
            yield b"x"
            await asyncio.sleep(0.02)
        raise ShuttingDown

    async def test(served: Served) -> None:
        unary = served.channel.unary_unary("/test.Service/Slow")(b"")
        told: list[bytes] = []
        stream = served.channel.unary_stream("/test.Service/Endless")(b"")
        streaming = asyncio.create_task(_to_its_end(stream, told.append))
        await _soon(lambda: len(told) > 2)
        stopping = asyncio.create_task(served.server.stop(5))
        assert await unary == b"done"
        error = await _refused(streaming)
        assert _status(error)[1].reason == "SHUTTING_DOWN"
        await stopping

    methods: Methods = {
        "/test.Service/Slow": UnaryMethod(slow, 20.0, 20.0),
        "/test.Service/Endless": StreamMethod(endless),
    }
    _serve(test, methods)


def test_what_outlives_the_drain_is_told() -> None:
    async def slow(_data: bytes, _call: Call) -> bytes:
        await asyncio.sleep(30)
        return b""

    async def deaf(_data: bytes, _call: Call) -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.sleep(30)

    async def test(served: Served) -> None:
        unary = served.channel.unary_unary("/test.Service/Slow")(b"")
        stream = served.channel.unary_stream("/test.Service/Deaf")(b"")
        assert await stream.read() == b"x"
        stopping = asyncio.create_task(served.server.stop(0.2))
        for error in (await _refused(unary), await _refused(stream.read())):
            assert _status(error)[1].reason == "SHUTTING_DOWN"
        await stopping

    methods: Methods = {
        "/test.Service/Slow": UnaryMethod(slow, 20.0, 20.0),
        "/test.Service/Deaf": StreamMethod(deaf),
    }
    _serve(test, methods)


async def _to_its_end(stream: Any, on_message: Callable[[Any], None]) -> None:
    async for message in stream:
        on_message(message)


@pytest.mark.parametrize("reflection", REFLECTION_SERVICES)
def test_reflection_tells_the_contract_and_what_answers_need(reflection: str) -> None:
    symbols = (
        "examples.ratings.v1.RatingsService",
        "grpc.health.v1.Health",
        "tablegate.v1.GatewayService",
        "google.rpc.ErrorInfo",
        "tablegate.v1.query",
    )

    async def test(served: Served) -> None:
        ask = served.channel.stream_stream(
            f"/{reflection}/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        requests = [reflection_pb2.ServerReflectionRequest(list_services="")]
        requests += [reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol) for symbol in symbols]
        listed, *found = [answer async for answer in ask(iter(requests))]
        names = {service.name for service in listed.list_services_response.service}
        assert {SERVICE[1:], "grpc.health.v1.Health", "tablegate.v1.GatewayService", *REFLECTION_SERVICES} == names
        assert all(answer.file_descriptor_response.file_descriptor_proto for answer in found)

    _serve(test)


def test_status_is_what_the_replicator_said() -> None:
    async def test(served: Served) -> None:
        answer = await served.channel.unary_unary("/tablegate.v1.GatewayService/GetStatus")(b"")
        assert GetStatusResponse.FromString(answer).kafka_reachable

    _serve(test)


def test_a_second_door_on_the_port_is_refused_unless_it_is_shared() -> None:
    async def test(served: Served) -> None:
        with pytest.raises(OSError, match="in use"):
            await HttpServer({}, f"127.0.0.1:{served.server.port}").start()

    _serve(test)


def test_the_query_layer_knows_no_grpc() -> None:
    """Handlers take bytes and a call: importing them must not bring grpc in."""
    code = "import sys, tablegate.gateway.query.service; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
    assert not [
        path
        for path in Path(ROOT, "gateway/tablegate/gateway/query").glob("*.py")
        if re.search(r"\bgrpc\b", path.read_text())
    ]
