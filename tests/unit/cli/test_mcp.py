"""`tablegate mcp` as a process, asked by the official client of the Model Context Protocol, over real gateways."""

import asyncio
import http.client
import json
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from click.testing import CliRunner

from tablegate.gateway.cli.mcp_server import McpServer
from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.query.call import Call, Methods, UnaryMethod
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.server.metadata import reflection_methods
from tablegate.gateway.stores.notifier import Notifier
from tests.kit.command_line import COMMAND as TABLEGATE
from tests.kit.gateways_in_process.cluster import GrpcCluster
from tests.kit.gateways_in_process.tenants import NAMES, TENANTS, World, write_access
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.programs.agents import COMMAND, agent, mcp_over_http
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import ORDERS, RATINGS, ROOT, SIGNER, catalogue_of, rating, ratings_table

pytestmark = pytest.mark.tools

ROWS = 25
GET = "/examples.ratings.v1.RatingsService/GetRating"


@pytest.fixture(scope="module")
def ratings() -> Iterator[GrpcCluster]:
    """A gateway with movies 1 … ROWS."""
    with GrpcCluster({}) as cluster:
        cluster.put(rating(number, count=number) for number in range(1, ROWS + 1))
        yield cluster


def _at(cluster: GrpcCluster, *words: str, contract: Path = RATINGS) -> tuple[str, ...]:
    return ("--address", f"127.0.0.1:{cluster.whole.port}", "--contract", str(contract), *words)


def test_each_query_answers_by_its_tool(ratings: GrpcCluster) -> None:
    async def run() -> None:
        async with agent(*_at(ratings)) as asking:
            assert len(await asking.tools()) == len(catalogue_of().queries) - 1
            got = await asking.ask("RatingsService_GetRating", movieId="7")
            assert got["rating"]["ratingCount"] == "7"
            assert (await asking.ask("RatingsService_GetRating", movie_id=7))["rating"] == got["rating"]
            keys = [{"movieId": 7}, {"movieId": 1_000}]
            batch = await asking.ask("RatingsService_BatchGetRatings", keys=keys)
            assert batch["results"] == [{"found": got["rating"]}, {"missing": {"movieId": "1000"}}]
            count = await asking.ask("RatingsService_CountRatings", minRatingCount=20)
            assert count["count"] == "6"
            result = await asking.client.call_tool("RatingsService_GetRating", {"movieId": 7})
            [text] = result.content
            assert json.loads(text.text) == result.structured_content  # type: ignore[union-attr]
            masked = await asking.ask("RatingsService_GetRating", movieId=7, readMask="ratingCount")
            assert masked["rating"] == {"movieId": "7", "ratingCount": "7"}

    asyncio.run(run())


def test_a_range_gives_so_many_rows_and_goes_on(ratings: GrpcCluster) -> None:
    async def run() -> None:
        async with agent(*_at(ratings, "--rows", "10")) as asking:
            for size in ({}, {"pageSize": 500}):
                pages, token = [], ""
                while not pages or token:
                    answer = await asking.ask("RatingsService_ListRatings", pageToken=token, **size)
                    pages.append([int(row["movieId"]) for row in answer["ratings"]])
                    token = answer.get("nextPageToken", "")
                assert [len(page) for page in pages] == [10, 10, 5]
                assert list(chain.from_iterable(pages)) == list(range(1, ROWS + 1))
            assert len((await asking.ask("RatingsService_ListRatings", pageSize=3))["ratings"]) == 3
            assert "negative" in await asking.refusal("RatingsService_ListRatings", pageSize=-1)

    asyncio.run(run())


def test_a_scan_gives_so_many_rows_and_goes_on(ratings: GrpcCluster) -> None:
    async def scan(asking: Any, **options: Any) -> list[list[int]]:
        pages, token = [], ""
        while not pages or token:
            given = {**options, "resumeToken": token}
            answer = await asking.ask("RatingsService_ScanRatings", scanOptions=given, minRatingCount=1)
            pages.append([int(row["movieId"]) for row in answer.get("ratings", [])])
            token = answer["progress"].get("resumeToken", "")
        return pages

    async def run() -> None:
        async with agent(*_at(ratings, "--rows", "10")) as asking:
            pages = await scan(asking)
            assert [len(page) for page in pages] == [10, 10, 5]
            assert sorted(chain.from_iterable(pages)) == list(range(1, ROWS + 1))
            assert [len(page) for page in await scan(asking, limit=12)] == [10, 2]
            assert [len(page) for page in await scan(asking, limit=3)] == [3]
            sliced = await asking.ask("RatingsService_ScanRatings", scanOptions={"slices": 3})
            [token] = sliced["progress"]["sliceTokens"]
            given = {"resumeToken": token}
            first = await asking.ask("RatingsService_ScanRatings", scanOptions=given)
            assert [int(row["movieId"]) for row in first["ratings"]] == pages[0]
            forged = await asking.refusal("RatingsService_ScanRatings", scanOptions={"resumeToken": "abc"})
            assert forged.startswith('field "scanOptions.resumeToken": is no token')
            assert "negative" in await asking.refusal("RatingsService_ScanRatings", scanOptions={"limit": -1})

    asyncio.run(run())


def test_a_scan_that_takes_no_limit_is_cut(ratings: GrpcCluster, tmp_path: Path) -> None:
    text = re.sub(r".*ScanOptions scan_options.*\n", "", RATINGS.read_text())
    contract = tmp_path / "ratings.proto"
    contract.write_text(text)

    async def run() -> None:
        async with agent(*_at(ratings, "--rows", "10", contract=contract)) as asking:
            result = await asking.client.call_tool("RatingsService_ScanRatings", {})
            assert len(result.structured_content["ratings"]) == 10
            assert "resumeToken" not in result.structured_content["progress"]
            assert "narrow the filters" in result.content[1].text  # type: ignore[union-attr]

    asyncio.run(run())


def test_what_is_wrong_is_the_error_of_a_tool(ratings: GrpcCluster) -> None:
    from mcp.shared.exceptions import MCPError  # takes a second, which each process would that collects tests

    tool = "RatingsService_GetRating"

    async def run() -> None:
        async with agent(*_at(ratings)) as asking:
            missing = 'NOT_FOUND (ROW_NOT_FOUND): table "ratings" has no row with this key'
            assert await asking.refusal(tool, movieId=1_000) == missing
            assert (await asking.refusal(tool, movieId="secret")).startswith('field "movieId": is not an int64')
            assert "secret" not in await asking.refusal(tool, movieId="secret")
            assert await asking.refusal(tool) == 'field "movieId": is missing; give it'
            assert await asking.refusal(tool, movieId=None) == 'field "movieId": is missing; give it'
            keys = [{"movieId": 0}, {}]
            assert await asking.refusal("RatingsService_BatchGetRatings", keys=keys) == (
                'field "keys[1].movieId": is missing; give it'
            )
            assert (await asking.refusal(tool, movieId=1, movie=2)).startswith('field "movie": is no field of')
            wrong = await asking.refusal(tool, movieId=1, readOptions={"maxStaleness": "soon"})
            assert wrong.startswith('field "readOptions.maxStaleness": is not a duration')
            assert "nothing" in await asking.refusal(tool, movieId=1, readMask="nothing")  # says the gateway
            with pytest.raises(MCPError, match="there is no tool of this name"):
                await asking.client.call_tool("secret", {})

    asyncio.run(run())


def test_every_kind_of_column_comes_by_its_schema() -> None:
    catalogue = catalogue_of(ORDERS)
    row_class: Any = catalogue.tables["orders"].row_class
    row = row_class(id=2**60, tags=["a"], labels={"k": "v"}, cash=float("nan"), blobs=[b"\0"], weights=[float("inf")])
    row.took.FromSeconds(90)
    row.history.append(9)
    row.by_line[-1].sku = "x"
    row.address.city = ""
    with GrpcCluster({}, contract=ORDERS, table="orders", service="/test.orders.v1.OrdersService") as cluster:
        cluster.put([row])

        async def run() -> None:
            async with agent(*_at(cluster, contract=ORDERS)) as asking:
                await asking.tools()  # from now on the client holds answers to their schemas
                got = (await asking.ask("OrdersService_GetOrder", id=str(2**60)))["row"]
                assert got == {
                    "id": str(2**60),
                    "tags": ["a"],
                    "labels": {"k": "v"},
                    "byLine": {"-1": {"sku": "x"}},
                    "address": {"city": ""},
                    "cash": "NaN",
                    "blobs": ["AA=="],
                    "weights": ["Infinity"],
                    "took": "90s",
                    "history": [9],
                }

        asyncio.run(run())


def test_a_gateway_may_be_away_and_come_back() -> None:
    with GrpcCluster({}) as cluster:
        cluster.put([rating(7)])
        words = _at(cluster)
        cluster.whole.stop()

        async def run() -> None:
            async with agent(*words) as asking:
                assert await asking.tools()
                away = await asking.refusal("RatingsService_GetRating", movieId=7)
                assert away.startswith(f"no gateway answers at {words[1]}")
                cluster.whole.start()
                async with asyncio.timeout(60):
                    while (await asking.client.call_tool("RatingsService_GetRating", {"movieId": 7})).is_error:
                        await asyncio.sleep(0.1)

        asyncio.run(run())


@contextmanager
def _served(methods: Methods) -> Iterator[str]:
    with ServerThread(lambda: HttpServer(methods, "127.0.0.1:0")) as server:
        yield f"127.0.0.1:{server.port}"


def test_a_cancelled_call_ends_at_the_gateway(tmp_path: Path) -> None:
    patient = tmp_path / "ratings.proto"  # so that no deadline ends the call
    patient.write_text(
        re.sub(r"(default|max)_timeout: {seconds: \d+}", r"\1_timeout: {seconds: 600}", RATINGS.read_text())
    )
    assert catalogue_of(patient).queries[GET].default_timeout_s == 600
    began, ended = asyncio.Event(), asyncio.Event()
    store, catalogue = MemoryStore(), catalogue_of()
    ratings_table(store).put([rating(7)])

    async def run() -> None:
        here = asyncio.get_running_loop()

        async def wait(_data: bytes, _call: Call) -> bytes:
            here.call_soon_threadsafe(began.set)
            try:
                await asyncio.sleep(3_600)
            finally:
                here.call_soon_threadsafe(ended.set)
            return b""

        methods = {**query_methods(catalogue, store, SIGNER, Notifier()), GET: UnaryMethod(wait, 3_600.0, 3_600.0)}
        with _served(methods) as address:
            async with agent("--address", address, "--contract", str(patient)) as asking:
                call = asyncio.create_task(asking.client.call_tool("RatingsService_GetRating", {"movieId": 7}))
                await began.wait()
                call.cancel()
                await ended.wait()
                count = await asking.ask("RatingsService_CountRatings")
                assert count["count"] == "1"

    asyncio.run(asyncio.wait_for(run(), 60))


def test_an_agent_sees_what_its_credential_may(tmp_path: Path) -> None:
    world = World("invoices", write_access(tmp_path), random.Random(1))
    with world.cluster as cluster:
        for _ in range(60):
            world.put()
        credential = tmp_path / "credential"

        async def run() -> None:
            credential.write_text("ann")
            with (tmp_path / "log").open("w") as log:
                words = _at(cluster, contract=TENANTS)
                async with agent(*words, before=("--credential", str(credential)), log=log) as asking:
                    for key in ("ann", "bob", "all"):  # renewed in its file
                        credential.write_text(key)
                        answer = await asking.ask("InvoicesService_ScanInvoices")
                        rows = {
                            (row.get("tenant", ""), int(row.get("number", 0))): row for row in answer.get("rows", [])
                        }
                        assert rows.keys() == world.seen(key).keys() != set()
                        assert any("margin" in row for row in rows.values()) == (key == "all")
                    credential.write_text("nobody-knows-this")
                    refused = await asking.refusal("InvoicesService_ScanInvoices")
                    assert refused.startswith("UNAUTHENTICATED")
                    assert "nobody-knows-this" not in refused
                    credential.unlink()
                    assert "cannot be read" in await asking.refusal("InvoicesService_ScanInvoices")
                    assert "cannot be read" in await asking.refusal(
                        "InvoicesService_GetInvoice", tenant=NAMES[0], number=1
                    )
            assert "nobody-knows-this" not in (tmp_path / "log").read_text()

        asyncio.run(run())


def test_without_a_contract_it_is_the_gateways() -> None:
    store, catalogue = MemoryStore(), catalogue_of()
    ratings_table(store).put([rating(7)])
    methods = {**query_methods(catalogue, store, SIGNER, Notifier()), **reflection_methods(catalogue)}
    with _served(methods) as address:

        async def run() -> None:
            async with agent("--address", address) as asking:
                tool = (await asking.tools())["RatingsService_GetRating"]
                assert tool.description == "Get: the row of one key of table `ratings`; an error where there is none."
                assert (await asking.ask("RatingsService_GetRating", movieId=7))["rating"]["movieId"] == "7"

        asyncio.run(run())


def test_the_configuration_of_the_page_works(ratings: GrpcCluster) -> None:
    page = (ROOT / "docs/how-to/let-an-agent-ask.md").read_text()
    found = re.search(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    [server] = json.loads(found[1])["mcpServers"].values()
    assert server["command"] == "tablegate"
    here = {"127.0.0.1:50051": f"127.0.0.1:{ratings.whole.port}", "/home/me/shop/orders.proto": str(RATINGS)}
    command, *words = [here.get(word, word) for word in server["args"]]
    assert command == "mcp"
    assert {*here.values()} <= {*words}

    async def run() -> None:
        async with agent(*words) as asking:
            assert (await asking.ask("RatingsService_CountRatings"))["count"] == str(ROWS)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--address", "127.0.0.1:1"], "no gateway answers at 127.0.0.1:1"),
        (["--contract", "none.proto"], 'contract "none.proto" is not a file'),
        (["--contract", str(RATINGS), "--listen", "0.0.0.0:80"], "is not an address of this machine alone"),
        (["--contract", str(RATINGS), "--listen", "127.0.0.1:65536"], "is not an address of this machine alone"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(words: list[str], sentence: str) -> None:
    done = CliRunner().invoke(TABLEGATE, ["mcp", *words])
    assert done.exit_code == 1
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_ctrl_c_ends_it_while_its_stdin_is_open(ratings: GrpcCluster) -> None:
    info = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    begin = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": info})
    words = [*COMMAND, "mcp", *_at(ratings)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            print(begin, file=process.stdin, flush=True)
            assert "serverInfo" in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == -signal.SIGINT
        finally:
            process.kill()


def test_tools_answer_over_http(ratings: GrpcCluster) -> None:
    from mcp.client.client import Client

    async def run(url: str) -> None:
        async with Client(url) as client:
            result = await client.call_tool("RatingsService_GetRating", {"movieId": 7})
            assert result.structured_content["rating"]["movieId"] == "7"

    with mcp_over_http(*_at(ratings)) as url:
        asyncio.run(run(url))
        port = urlsplit(url).port
        assert port is not None
        assert _status(port, host="evil.example") == 421  # a page whose own name leads here
        assert _status(port, origin="https://evil.example") == 403
        assert _status(port, host=f"127.0.0.1:{port}", name="RatingsService_CountRatings  ") == 200


def _status(port: int, *, host: str = "", origin: str = "", name: str = "RatingsService_CountRatings") -> int:
    """Return the HTTP status of a call of a tool in the form of 2026-07-28, whose header says its name again."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "RatingsService_CountRatings", "arguments": {}, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": name,
        "host": host or f"127.0.0.1:{port}",
        **({"origin": origin} if origin else {}),
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("POST", "/mcp", body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_taken_port_is_one_sentence(ratings: GrpcCluster) -> None:
    port = ratings.whole.port
    words = ["mcp", *_at(ratings), "--listen", f"127.0.0.1:{port}"]
    done = subprocess.run([sys.executable, *COMMAND[1:], *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"127.0.0.1:{port} cannot be listened on" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_second_ctrl_c_ends_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr("os._exit", end)
    server = McpServer(uvicorn.Config("none"))
    server.handle_exit(signal.SIGINT, None)
    assert server.should_exit
    with pytest.raises(SystemExit) as ended:
        server.handle_exit(signal.SIGINT, None)
    assert ended.value.code == 130
