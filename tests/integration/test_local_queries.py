"""A local table answers the contract's queries as gateways do: the same requests, the same answers and refusals."""

import asyncio
import base64
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from tablegate.client import open_channel
from tablegate.client.local import LocalLimits, LocalReadError, LocalTable, aio
from tests.kit.gateway_processes.gateway import soon
from tests.kit.gateways_in_process.shelves import (
    OFTEN,
    SHELVES,
    Outcome,
    ShelvesServer,
    local_things,
    outcome,
    query,
    random_request,
    request,
    shelves,
    stub,
    thing,
)
from tests.kit.seeds import seeds
from tests.kit.table.contracts import bind_sources, edited

WAIT_S = 60.0
ASKED = (
    "GetThing",
    "FindThing",
    "GetThingByCode",
    "BatchGetThings",
    "BatchGetThingsByCode",
    "ListThings",
    "ListThingsOfCity",
    "ListThingsByTag",
    "CountThings",
    "CountThingsOfCity",
    "CountAllThings",
    "ScanThings",
)
REQUESTS = 60  # of each method
INFINITE = base64.urlsafe_b64encode(b'["", Infinity, 0, null]').decode()  # is JSON to Python


@pytest.fixture
def server() -> Iterator[ShelvesServer]:
    with ShelvesServer() as server:
        yield server


def is_same(table: Any, server: ShelvesServer) -> bool:
    return {(row.shop, row.number): row for row in table.scan()} == server.rows


def check_all(choice: random.Random, table: Any, channel: grpc.Channel, turns: int = REQUESTS) -> dict[str, int]:
    """Ask both the same; return how many were answered with rows, by method."""
    answered = dict.fromkeys(ASKED, 0)
    for name in ASKED:
        for _ in range(turns):
            asked = random_request(choice, name)
            theirs, ours = outcome(channel, name, asked), outcome(table.channel, name, asked)
            assert ours == theirs, f"{name} of {asked}"
            answered[name] += any(theirs.pages)
    return answered


@pytest.mark.parametrize("seed", seeds(4, in_check=1))
def test_random_queries_have_the_answers_of_a_gateway(server: ShelvesServer, tmp_path: Path, seed: int) -> None:
    choice = random.Random(seed)
    server.put(*(thing(choice) for _ in range(60)))
    with local_things(server, tmp_path) as (table, channel):
        table.wait_current(WAIT_S)
        answered = check_all(choice, table, channel)
        assert all(answered.values()), answered
        for _ in range(3):
            server.put(*(thing(choice) for _ in range(20)))
            server.delete(*(thing(choice) for _ in range(20)))
            soon(lambda: is_same(table, server), "the changes")
            check_all(choice, table, channel, REQUESTS // 6)
        server.rebuild(*(thing(choice) for _ in range(20)))
        soon(lambda: is_same(table, server), "the new generation")
        check_all(choice, table, channel, REQUESTS // 6)
    with local_things(server, tmp_path) as (table, channel):
        table.wait_current(WAIT_S)
        check_all(choice, table, channel, REQUESTS // 6)


def test_an_empty_table_answers_as_an_empty_gateway(server: ShelvesServer, tmp_path: Path) -> None:
    with local_things(server, tmp_path) as (table, channel):
        table.wait_current(WAIT_S)
        check_all(random.Random(1), table, channel, 10)
        [only] = stub(table.channel, "ScanThings")(request("ScanThings"))
        assert not only.things
        assert only.progress.resume_token


def test_a_page_of_few_that_pass_goes_on_by_its_token(server: ShelvesServer, tmp_path: Path) -> None:
    choice = random.Random(2)
    rows = [thing(choice, shop="a", number=number, code=f"c{number}") for number in range(12_000)]
    server.put(*rows)
    with local_things(server, tmp_path) as (table, channel):
        table.wait_current(WAIT_S)
        asked = request("ListThings", shop="a", code_prefix="c1199", page_size=30)
        numbers, pages = [], 0
        while True:
            answer = stub(table.channel, "ListThings")(asked)
            numbers += [row.number for row in answer.things]
            pages += 1
            asked.page_token = answer.next_page_token
            if not answer.next_page_token:
                break
        assert (numbers, pages) == ([1199, *range(11_990, 12_000)], 3)
        assert stub(table.channel, "CountThings")(request("CountThings", shop="a", number_from=5)).count == 11_995
        assert stub(table.channel, "CountAllThings")(request("CountAllThings")).count == 12_000
        del channel


def refusal(channel: Any, name: str, asked: Any) -> tuple[str, str]:
    code, reason, _ = outcome(channel, name, asked).refusal
    return code, reason


def test_freshness_is_shown_or_refused(server: ShelvesServer, tmp_path: Path) -> None:
    server.put(thing(random.Random(3), shop="a", number=1))
    with local_things(server, tmp_path) as (table, channel):
        table.wait_current(WAIT_S)

        def ask(**options: Any) -> tuple[str, str]:
            return refusal(table.channel, "GetThing", request("GetThing", shop="a", number=1, read_options=options))

        answered = ("", "")
        assert ask(max_staleness={"seconds": 60}) == answered
        assert ask(minimize_latency=True) == answered
        assert ask(max_staleness={"nanos": 1}, max_wait={}) == ("UNAVAILABLE", "NOT_CAUGHT_UP")
        assert ask(latest=True) == ("UNAVAILABLE", "NOT_CAUGHT_UP")
        assert ask(at_least="other") == ("UNAVAILABLE", "NOT_CAUGHT_UP")
        info = stub(table.channel, "GetThing")(request("GetThing", shop="a", number=1)).read_info
        assert info.as_of_time.ToDatetime() is not None
        # What the copy says of itself, a gateway understands.
        asked = request("GetThing", shop="a", number=1, read_options={"at_least": info.consistency_token})
        assert outcome(channel, "GetThing", asked).pages
        for wrong in ({"max_staleness": {"seconds": -1}}, {"latest": False}, {"max_wait": {"seconds": -1}}):
            asked = request("GetThing", shop="a", number=1, read_options=wrong)
            assert outcome(table.channel, "GetThing", asked) == outcome(channel, "GetThing", asked)


def test_tokens_of_others_are_refused(server: ShelvesServer, tmp_path: Path) -> None:
    choice = random.Random(4)
    server.put(*(thing(choice, shop="a", number=number) for number in range(20)))
    with local_things(server, tmp_path) as (table, channel):
        table.wait_current(WAIT_S)
        asked = request("ListThings", shop="a", page_size=2)
        theirs = stub(channel, "ListThings")(asked).next_page_token
        ours = stub(table.channel, "ListThings")(asked).next_page_token
        refused = ("INVALID_ARGUMENT", "INVALID_PAGE_TOKEN")
        for wrong in (theirs, "x", "é", "W10=", INFINITE, ours[:-4], ours + "A"):
            asked.page_token = wrong
            assert refusal(table.channel, "ListThings", asked) == refused, wrong
        asked.page_token = ours
        asked.shop = "b"
        assert refusal(table.channel, "ListThings", asked) == refused
        scan = request("ScanThings", scan_options={"resume_token": theirs})
        assert refusal(table.channel, "ScanThings", scan) == ("INVALID_ARGUMENT", "INVALID_RESUME_TOKEN")
        asked.shop = "a"
        server.rebuild(thing(choice, shop="a", number=1))
        soon(lambda: is_same(table, server), "the new generation")
        assert refusal(table.channel, "ListThings", asked) == ("FAILED_PRECONDITION", "TABLE_REBUILT")


def test_a_scan_goes_on_behind_its_token(server: ShelvesServer, tmp_path: Path) -> None:
    choice = random.Random(5)
    server.put(*(thing(choice, shop="a", number=number) for number in range(1_200)))
    with local_things(server, tmp_path) as (table, _):
        table.wait_current(WAIT_S)
        scan = stub(table.channel, "ScanThings")
        first, *rest = scan(request("ScanThings"))
        options = {"resume_token": first.progress.resume_token}
        again = list(scan(request("ScanThings", scan_options=options)))
        assert [row.number for each in (first, *again) for row in each.things] == list(range(1_200))
        assert [row for each in again for row in each.things] == [row for each in rest for row in each.things]
        limited = list(scan(request("ScanThings", scan_options={"limit": 700})))
        assert sum(len(each.things) for each in limited) == 700
        # A limit counts what was given before, too.
        options = {"limit": 700, "resume_token": limited[0].progress.resume_token}
        more = list(scan(request("ScanThings", scan_options=options)))
        assert sum(len(each.things) for each in more) == 700 - len(limited[0].things)
        [sliced] = scan(request("ScanThings", scan_options={"slices": 4}))
        [token] = sliced.progress.slice_tokens
        whole = scan(request("ScanThings", scan_options={"resume_token": token}))
        assert sum(len(each.things) for each in whole) == 1_200
        stream = scan(request("ScanThings"))
        next(stream)
        stream.cancel()
        assert list(stream) == []


def test_what_a_local_table_has_not_is_refused(server: ShelvesServer, tmp_path: Path) -> None:
    with local_things(server, tmp_path) as (table, _):
        with pytest.raises(LocalReadError, match=r"has not all rows yet|no row") as caught:
            stub(table.channel, "GetThing")(request("GetThing"))
        assert caught.value.reason in ("PARTITION_UNAVAILABLE", "ROW_NOT_FOUND")
        with pytest.raises(LocalReadError, match="ask a gateway") as caught:
            next(stub(table.channel, "SubscribeThings")(query("SubscribeThings").request_class()))
        assert (caught.value.code(), caught.value.reason) == (grpc.StatusCode.UNIMPLEMENTED, "NOT_SERVED")
        other = table.channel.unary_unary("/no.Service/Get", bytes, bytes)
        with pytest.raises(LocalReadError, match="no code of a service"):
            other(b"")


def test_a_full_file_leaves_entries_and_rows_of_one_moment(server: ShelvesServer, tmp_path: Path) -> None:
    choice = random.Random(8)
    server.put(*(thing(choice) for _ in range(60)))
    small = LocalLimits(map_bytes=2**20, full_pause_s=0.05)
    with local_things(server, tmp_path, limits=small) as (table, channel):
        table.wait_current(WAIT_S)
        check_all(choice, table, channel, 5)
        many = [thing(choice, shop="m", number=number, code="x" * 400) for number in range(5_000)]
        server.put(*many)
        soon(lambda: "give it more" in table.trouble, "it says so")
        rows = list(table.scan())
        tagged = stub(table.channel, "ListThingsByTag")(request("ListThingsByTag", tag="a", page_size=1_000)).things
        assert {(row.shop, row.number) for row in tagged} == {(row.shop, row.number) for row in rows if "a" in row.tags}
        assert stub(table.channel, "CountAllThings")(request("CountAllThings")).count == len(rows)
    with local_things(server, tmp_path) as (table, channel):
        soon(lambda: is_same(table, server), "it goes on with more room")
        check_all(choice, table, channel, 5)


def test_a_directory_of_a_contract_without_the_index_is_made_anew(server: ShelvesServer, tmp_path: Path) -> None:
    """Its rows have no entries of the index, so nothing of it may be read."""
    choice = random.Random(9)
    server.put(*(thing(choice) for _ in range(30)))
    text = edited(
        SHELVES.read_text("utf-8"), ('    index: {\n      name: "by_tag"\n      columns: "tags"\n    }\n', "")
    )
    start, end = text.index("  rpc ListThingsByTag("), text.index("  rpc CountThings(")
    older = bind_sources(
        tmp_path / "older",
        shelves__v1__shelves=text[:start]
        + text[end:]
        .replace("message ListThingsByTagRequest {", "message Unused {")
        .replace('  string tag = 1 [(tablegate.v1.param) = {\n    column: "tags"\n    op: OP_CONTAINS\n  }];\n', ""),
    )
    row, asked = older.tables["things"].row_class, query("SubscribeThings").request_class(subscribe_options=OFTEN)
    directory = tmp_path / "copy"
    with (
        open_channel(server.address) as channel,
        LocalTable(stub(channel, "SubscribeThings"), asked, directory, row=row) as table,
    ):
        table.wait_current(WAIT_S)
        assert table.count() == len(server.rows)
    with local_things(server, directory) as (table, channel):
        table.wait_current(WAIT_S)
        check_all(choice, table, channel, 5)


def test_a_table_of_asyncio_answers_alike(server: ShelvesServer, tmp_path: Path) -> None:
    choice = random.Random(6)
    server.put(*(thing(choice, shop="a", number=number, code=f"c{number}") for number in range(1_100)))
    asked = query("SubscribeThings").request_class(subscribe_options=OFTEN)
    row = shelves().tables["things"].row_class

    async def use(channel: grpc.Channel) -> None:
        async with aio.LocalTable(stub(channel, "SubscribeThings"), asked, tmp_path, row=row) as table:
            await table.wait_current(WAIT_S)
            assert table.is_current
            got = await table.get(("a", 7), max_staleness_s=60, max_wait_s=1)
            assert got == await table.get(("a", 7)) == server.rows["a", 7]
            assert await table.batch_get([("a", 7), ("b", 7)]) == [got, None]
            assert [each.number for each in await table.range("a", start=5, limit=2)] == [5, 6]
            assert [each.number async for each in table.scan()] == list(range(1_100))
            assert await table.count() == 1_100
            local = table.channel
            answer = await stub(local, "GetThingByCode")(request("GetThingByCode", code="c9"))
            assert answer.thing == server.rows["a", 9]
            answer = await stub(local, "ListThings")(request("ListThings", shop="a", code_prefix="c99", page_size=3))
            assert [each.code for each in answer.things] == ["c99", "c990", "c991"]
            scanned = [each async for each in stub(local, "ScanThings")(request("ScanThings", code="c5"))]
            assert [each.code for answer in scanned for each in answer.things] == ["c5"]
            with pytest.raises(LocalReadError, match="no row"):
                await stub(local, "GetThing")(request("GetThing", shop="no"))
        with pytest.raises(Exception, match="is closed"):
            await table.get(("a", 7))

    with open_channel(server.address) as channel:
        asyncio.run(use(channel))


def test_who_waits_by_asyncio_takes_no_thread(tmp_path: Path) -> None:
    """A thread that waits cannot be cancelled: with the loop's few threads all reads would stop, and the close."""
    asked, row = query("SubscribeThings").request_class(), shelves().tables["things"].row_class

    async def use(channel: grpc.Channel) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        async with aio.LocalTable(stub(channel, "SubscribeThings"), asked, tmp_path, row=row) as table:
            waiting = asyncio.create_task(table.wait_current())
            with pytest.raises(TimeoutError, match="not current after"):
                await table.wait_current(0.01)
            reading = asyncio.create_task(table.count(max_staleness_s=1, max_wait_s=WAIT_S))
            with pytest.raises(LocalReadError, match="has not heard"):
                await table.count(max_staleness_s=1, max_wait_s=0.01)
            await asyncio.to_thread(int)
        with pytest.raises(RuntimeError, match="is closed"):
            await waiting
        with pytest.raises(LocalReadError, match="has not heard"):
            await reading

    with open_channel("127.0.0.1:1") as channel:
        asyncio.run(asyncio.wait_for(use(channel), WAIT_S))


def test_a_cancelled_open_of_asyncio_leaves_the_directory(tmp_path: Path) -> None:
    asked, row = query("SubscribeThings").request_class(), shelves().tables["things"].row_class

    async def use(channel: grpc.Channel) -> None:
        async def opened() -> None:
            async with aio.LocalTable(stub(channel, "SubscribeThings"), asked, tmp_path, row=row):
                await asyncio.sleep(WAIT_S)

        opening = asyncio.create_task(opened())
        while not (tmp_path / "owner").exists():
            await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        async with aio.LocalTable(stub(channel, "SubscribeThings"), asked, tmp_path, row=row) as table:
            assert table.as_of is None

    with open_channel("127.0.0.1:1") as channel:
        asyncio.run(use(channel))


def test_an_outcome_tells_answers_apart(server: ShelvesServer) -> None:
    server.put(thing(random.Random(7), shop="a", number=1))
    with open_channel(server.address) as channel:
        found = outcome(channel, "FindThing", request("FindThing", shop="a", number=1))
        assert found != outcome(channel, "FindThing", request("FindThing", shop="a", number=2)) == Outcome((b"",))
