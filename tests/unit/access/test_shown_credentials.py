"""Clients that show who they are: channels of the Python client, and commands."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner

from tablegate.client import aio, open_channel, open_direct_channel
from tablegate.gateway.access.gate import Gate
from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.server.metadata import reflection_methods, status_methods
from tests.kit.command_line import COMMAND
from tests.kit.gateways_in_process.tenants import POLICY, TENANTS, World, write_access
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import catalogue_of


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World("tickets", write_access(tmp_path), random.Random(1))
    with made.cluster:
        made.cluster.put([made.row_class(ticket_id=number, owner=number % 4, note="n") for number in range(8)])
        yield made


def method(world: World, channel: Any, name: str) -> Any:
    query = world.cluster.catalogue.queries[world.cluster.path(name)]
    make = channel.unary_unary if name == "GetTicket" else channel.unary_stream
    return make(
        query.path,
        request_serializer=query.request_class.SerializeToString,
        response_deserializer=query.response_class.FromString,
    )


@pytest.mark.parametrize("open_one", [open_channel, open_direct_channel])
@pytest.mark.parametrize("key", ["ann", "all"])  # only one of them may know where partitions are
def test_channels_show_a_credential(world: World, open_one: Any, key: str) -> None:
    asked = iter(["nobody's", *[key] * 100])
    with open_one(f"127.0.0.1:{world.cluster['a'].port}", credential=lambda: next(asked)) as channel:
        get = method(world, channel, "GetTicket")
        with pytest.raises(grpc.RpcError) as caught:
            get(world.cluster.request("GetTicket", ticket_id=1))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        for number in (1, 5):
            assert get(world.cluster.request("GetTicket", ticket_id=number)).row.owner == 1
        scan = method(world, channel, "ScanTickets")
        rows = [row for message in scan(world.cluster.request("ScanTickets")) for row in message.rows]
        assert len(rows) == (2 if key == "ann" else 8)


@pytest.mark.parametrize("open_one", [aio.open_channel, aio.open_direct_channel])
@pytest.mark.parametrize("key", ["ann", "all"])
def test_channels_of_asyncio_show_a_credential(world: World, open_one: Any, key: str) -> None:
    async def ask() -> None:
        async with open_one(f"127.0.0.1:{world.cluster['a'].port}", credential=key) as channel:
            for number in (1, 5):
                answer = await method(world, channel, "GetTicket")(world.cluster.request("GetTicket", ticket_id=number))
                assert answer.row.owner == 1
            scan = method(world, channel, "ScanTickets")(world.cluster.request("ScanTickets"))
            rows = [row async for message in scan for row in message.rows]
            assert len(rows) == (2 if key == "ann" else 8)

    asyncio.run(ask())


def run(*words: str) -> Any:
    return CliRunner().invoke(COMMAND, list(words), env={"COLUMNS": "200"})


def test_commands_show_a_credential(world: World, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("all\n")
    address = f"127.0.0.1:{world.cluster.whole.port}"
    shown = run("--credential", str(file), "explain", world.cluster.path("GetTicket")[1:], "{}", "--address", address)
    assert shown.exit_code == 0, shown.output
    refused = run("explain", world.cluster.path("GetTicket")[1:], "{}", "--address", address)
    assert refused.exit_code == 1
    assert (
        "UNAUTHENTICATED (NOT_AUTHENTICATED): the call shows no credential; show one: tablegate --credential FILE"
        in refused.output
    )


def test_tables_are_shown_without_the_right_to_the_status(tmp_path: Path) -> None:
    catalogue = catalogue_of(TENANTS)
    access = write_access(tmp_path, f'{POLICY}\n[[rule]]\nprincipals = ["key ann"]\nrights = ["reflection"]\n')
    methods = {**reflection_methods(catalogue), **status_methods(MemoryStore())}
    file = tmp_path / "key"
    file.write_text("ann")
    with ServerThread(lambda: HttpServer(methods, "127.0.0.1:0", gate=Gate(access, catalogue))) as server:
        address = f"127.0.0.1:{server.port}"
        shown = run("--credential", str(file), "tables", "--address", address)
        assert shown.exit_code == 0, shown.output
        assert "TicketsService/GetTicket" in shown.output
        assert "serving" not in shown.output
        refused = run("--credential", str(file), "status", "--address", address)
        assert "PERMISSION_DENIED (NOT_ALLOWED): you may not ask for status" in refused.output


@pytest.mark.parametrize("text", ["", "two words", "é", "a\nb"])
def test_files_without_a_credential(tmp_path: Path, text: str) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    shown = run("--credential", str(file), "status")
    assert shown.exit_code == 1
    assert f'"{file}" holds no credential; write a JWT or an API key there, alone' in shown.output
    missing = run("--credential", str(tmp_path / "none"), "status")
    assert "cannot be read: No such file or directory; check the path" in missing.output


def test_check_reads_the_access_file(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text('[[rule]]\ntables = ["orders"]')
    shown = run("check", "tests/kit/table/tenants.proto", "--access", str(file))
    assert shown.exit_code == 1
    assert (
        f'access file "{file}": [[rule]] number 1 "tables" has "orders", which is no table of the contracts'
        in shown.output
    )
    write_access(tmp_path)
    assert run("check", "tests/kit/table/tenants.proto", "--access", str(file)).exit_code == 0
