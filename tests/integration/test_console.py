"""The console in a real browser: each screen, and what it says where something is missing, old, refused or lost."""

import hashlib
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tablegate.gateway.contract.types import Offset
from tablegate.gateway.stores.snapshots.format import new_name
from tablegate.internal.v1.transfer_pb2 import TransferRequest
from tablegate.v1.status_pb2 import SnapshotsStatus
from tests.kit.gateways_in_process.cluster import GrpcCluster, movie_of
from tests.kit.gateways_in_process.console import PATHS, Busy, ConsoleGateway, row_of, silent_stream
from tests.kit.programs.chromium import PROGRAM, Chromium
from tests.kit.programs.console_page import PHONE, WIDE, ConsolePage
from tests.kit.table.accounts import ACCOUNTS
from tests.kit.table.filled import RATINGS, rating

pytestmark = [pytest.mark.tools, pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed")]

ROWS = {"ratings": 1_204, "customers": 931, "product_views": 64, "accounts": 60, "balances": 0}
SCREENS = {
    "tables": ("tables", "serving"),
    "map": ("map/ratings", "answers first"),
    "rows": ("rows/ratings", "average_rating"),
    "live": ("rows/ratings?query=SubscribeRatings", "live"),
    "row": ("row/ratings?movieId=7", "Partition"),
    "calls": ("calls", "Calls a second"),
    "job": ("job/ratings", "Read up to"),
    "no-job": ("job/balances_of_none", "There is no such table"),
    "empty": ("rows/balances", "No rows"),
    "nothing": ("rows/nothing", "There is no such table"),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def gateway() -> Iterator[ConsoleGateway]:
    with ConsoleGateway(ROWS, contracts=[*PATHS, ACCOUNTS]) as gateway:
        yield gateway


@pytest.fixture
def page(browser: Chromium, gateway: ConsoleGateway) -> Iterator[ConsolePage]:
    page = ConsolePage(browser, gateway.port)
    yield page
    assert not [text for text in browser.messages if "Content Security Policy" in text or "exceptionThrown" in text]
    assert not page.foreign_requests()


@pytest.mark.parametrize(
    ("size", "dark"), [(WIDE, False), (WIDE, True), (PHONE, False)], ids=["light", "dark", "phone"]
)
@pytest.mark.parametrize("screen", SCREENS)
def test_a_screen_is_for_everybody(page, screen, size, dark):
    path, text = SCREENS[screen]
    page.open(path, size=size, dark=dark)
    page.wait(text)
    assert page.complaints() == []
    assert page.run("document.documentElement.scrollWidth") <= size[0], "nothing hangs out at the side"


def test_tables(page, gateway):
    page.open()
    page.wait("1,204")
    assert "its job has published no manifest" in page.text()
    with Busy(gateway):
        page.wait_for(
            "tbody tr", "it.innerText.includes('ratings') && Number(it.querySelector('.figure').innerText) > 0"
        )


def test_the_job_of_a_table(page, gateway):
    page.open("tables")
    page.wait("serving")
    page.click("tbody a[href='#/job/ratings']")
    page.wait("Real-time Mode")
    page.wait("ratings-events")
    page.wait("ratings-dead-letters")
    assert re.search(r"Newest marker\s+[\d.]+ \w+ ago", page.text())
    read_to = "document.querySelector('.offsets').innerText"
    before = page.run(read_to)
    with Busy(gateway):
        page.wait_for("[aria-label=Sources] tbody tr", "Number(it.querySelector('.figure').innerText) > 0")
    assert page.run(read_to) != before
    unpublished = next(name for name in gateway.catalogue.tables if name not in gateway.tables)
    page.open(f"job/{unpublished}")
    page.wait("No job has published this table")


def test_a_table_that_no_job_keeps_has_none(browser):
    with ConsoleGateway({"ratings": 20}, contracts=[RATINGS]) as gateway:
        gateway.do(lambda: gateway.say(foreign=["ratings"], set_aside={"key is null": 1, "value is not JSON": 7}))
        page = ConsolePage(browser, gateway.port)
        page.open("tables")
        page.wait("no job")
        assert "from ratings-events" in page.text("tbody")
        assert re.search(r"7 set aside: value is not JSON\s+1 set aside: key is null", page.text("tbody"))
        page.open("job/ratings")
        page.wait("No job keeps this table")
        assert page.complaints() == []


def test_rows_are_read_as_one_scrolls(page):
    page.open("rows/ratings")
    page.wait("500 rows, more when you scroll")
    scroll = "(() => { const grid = document.querySelector('.grid'); grid.scrollTop = grid.scrollHeight; })()"
    page.run(scroll)
    page.wait("1,000 rows, more when you scroll")
    page.run(scroll)
    page.wait("1,204 rows")
    page.run(scroll)
    page.wait_for(".grid td a", "it.innerText === '1204'")
    assert page.run("document.querySelectorAll('.grid tbody tr').length") < 100


def test_rows_between_bounds(page):
    page.open("rows/ratings?query=ListRatings")
    page.wait("500 rows")
    page.fill("movieIdFrom", "1200")
    page.click("button[type=submit]")
    page.wait("5 rows")
    assert page.run("[...document.querySelectorAll('.grid td a')].map((it) => it.innerText)") == [
        str(number) for number in range(1_200, 1_205)
    ]
    assert "movieIdFrom=1200" in page.run("location.hash"), "the address leads there again"


def test_rows_by_an_index(page):
    page.open("rows/accounts")
    page.wait("By city")
    page.click(".tabs a", "By city")
    page.wait("This query needs address.city")
    page.fill("city", "Ulm")
    page.click("button[type=submit]")
    page.wait("20 rows")
    page.click(".tabs a", "By number")
    page.wait("This query needs number")
    page.fill("number", "N-7")
    page.click("button[type=submit]")
    page.wait("1 row")
    assert page.text(".grid td") == "birch"


def test_a_filter_that_is_wrong_is_said(page):
    page.open("rows/ratings?query=ListRatings&movieIdFrom=many")
    page.wait("The gateway refuses this request")
    page.wait_for("[role=alert]", "it.innerText.includes('Change what you ask for')")


def test_live_rows(page, gateway):
    page.open("rows/ratings?query=SubscribeRatings")
    page.wait("1,204 rows, live")
    gateway.delete("ratings", 1_204)
    page.wait("1,203 rows, live")
    gateway.change("ratings", 1_204)
    page.wait("1,204 rows, live")
    first = page.text(".grid td a")
    gateway.change("ratings", int(first))
    page.wait_for("tr.changed td a", f"it.innerText === '{first}'")


def test_a_row_and_its_changes(page, gateway):
    gateway.change("ratings", 9)
    page.open("rows/ratings")
    page.wait("500 rows")
    page.click(".grid td a", "9")
    page.wait("Who answers, and why")
    page.wait("This gateway has it.")
    page.wait_for(".log li:nth-child(1)", "it.innerText.includes('changed') && it.innerText.includes('→')")
    page.wait_for(".log li:nth-child(2)", "it.innerText.includes('added') && it.innerText.includes('version 1/')")
    assert "goes back to" in page.text()
    gateway.delete("ratings", 9)
    page.wait("No row has this key")
    page.wait_for(".log li:nth-child(1)", "it.innerText.includes('deleted')")
    gateway.change("ratings", 9)
    page.wait_for(".log li:nth-child(1)", "it.innerText.includes('added')")
    assert page.run("document.querySelectorAll('.log li').length") == 4


def test_a_row_that_changes_all_the_time(page, gateway):
    page.open("row/ratings?movieId=11")
    page.wait_for(".log li", "it.innerText.includes('added')")
    for _ in range(120):
        gateway.change("ratings", 11)
    page.wait("older ones of this row are in the history")
    assert page.run("document.querySelectorAll('.log li').length") == 100
    sequence = gateway.tables["ratings"].sequence
    page.wait_for(".log li:nth-child(1)", f"it.innerText.includes('version 1/{sequence:,}')")


def test_a_row_without_changes_says_how_far_back_that_is_known(page, gateway):
    page.open("row/ratings?movieId=123456")
    page.wait("No change of this row is in the history.")
    page.wait("The history of partition")


def test_changes_of_a_generation_made_anew_take_the_place_of_the_old_ones(browser):
    with ConsoleGateway({"ratings": 20}, contracts=[RATINGS]) as gateway:
        page = ConsolePage(browser, gateway.port)
        page.open("row/ratings?movieId=7")
        page.wait_for(".log li", "it.innerText.includes('version 1/')")

        def rebuild() -> None:
            table = gateway.tables["ratings"]
            table.generation, table.sequence = 2, 0
            table.publish()
            table.put([row_of(gateway.catalogue, "ratings", 7, gateway.chance)])

        gateway.do(rebuild)
        page.wait_for(".log li", "it.innerText.includes('version 2/1')")
        assert page.run("document.querySelectorAll('.log li').length") == 1


def test_a_row_whose_history_may_not_be_seen(browser, tmp_path):
    with ConsoleGateway({"ratings": 20}, contracts=[RATINGS], access=_access_file(tmp_path)) as gateway:
        page = ConsolePage(browser, gateway.port)
        page.open("tables")
        page.run("sessionStorage.setItem('tablegate-credential', 'the-key')")
        page.open("row/ratings?movieId=7")
        page.wait("may not ask for history")
        page.wait("first seen")
        gateway.change("ratings", 7)
        page.wait_for(".log li", "it.innerText.includes('changed') && it.innerText.includes('→')")
        assert page.complaints() == []
        page.run("sessionStorage.clear()")


def test_a_row_whose_history_another_gateway_has(browser):
    with GrpcCluster({"a": [0, 1, 2], "b": [3, 4, 5]}, has_console=True) as cluster:
        number = movie_of(cluster, 4)
        cluster.put([rating(number)])
        page = ConsolePage(browser, cluster["a"].port)
        page.open(f"row/ratings?movieId={number}")
        page.wait("The history of partition 4 at b goes back to")
        page.wait_for(".log li:nth-child(1)", "it.innerText.includes('added') && it.innerText.includes('version 1/')")
        page.wait("Held by b")
        cluster.put([rating(number, count=9)])
        page.wait_for(".log li:nth-child(1)", "it.innerText.includes('changed') && it.innerText.includes('→')")
        assert page.complaints() == []


def test_a_row_whose_history_nobody_has_now(browser):
    with GrpcCluster({"a": [0, 1, 2], "b": [3, 5]}, has_console=True) as cluster:
        page = ConsolePage(browser, cluster["a"].port)
        page.open(f"row/ratings?movieId={movie_of(cluster, 4)}")
        page.wait("No history now")
        page.wait("it is asked for again by itself")
        cluster["b"].hold([3, 4, 5])
        cluster.announce()
        page.wait("The history of partition 4 at b is empty")


def test_the_commands_of_a_row_work(page, gateway):
    page.open("row/customers?id=7")
    page.wait("grpcurl -plaintext")
    page.click(".tabs button:nth-child(2)", "curl")
    command = page.text("pre")
    answer = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout
    assert '"id":"7"' in answer
    page.click(".tabs button", "Python")
    assert page.run("document.querySelector('.tabs [aria-pressed=true]').innerText") == "Python"
    compile(page.text("pre"), "shown", "exec")


def test_calls(browser):
    with ConsoleGateway({"customers": 9}) as gateway:
        page = ConsolePage(browser, gateway.port)
        page.open("calls")
        page.wait("No calls yet")
        url = f"http://127.0.0.1:{gateway.data_port}/examples.customers.v1.CustomersService/GetCustomer"
        ask = ["curl", "-s", url, "-H", "content-type: application/json", "-d", '{"id": "7"}']
        subprocess.run(ask, check=True, stdout=subprocess.DEVNULL)
        page.wait("GetCustomer")
        subprocess.run(ask, check=True, stdout=subprocess.DEVNULL)
        page.wait_for("tbody tr", "it.innerText.includes('ms')")


def test_subscribers(browser):
    with ConsoleGateway({"ratings": 300}, contracts=[RATINGS]) as gateway:
        page = ConsolePage(browser, gateway.port)
        page.open("calls")
        page.wait("Nobody is subscribed")
        subscribe = "examples.ratings.v1.RatingsService/SubscribeRatings"
        with silent_stream(gateway.data_port, subscribe):
            page.wait_for("[aria-label=Subscribers] tbody tr", "it.innerText.includes('SubscribeRatings')")
            assert "Streams that are behind" not in page.text()
            # More than sockets take in, so that what follows waits for the client, which reads nothing.
            for _ in range(60):
                gateway.change("ratings", count=5_000)
            page.wait("Streams that are behind")
            page.wait_for(".after li", "it.innerText.includes('records behind') && it.innerText.includes('open for')")
            assert page.complaints() == []
            assert page.run("document.documentElement.scrollWidth <= innerWidth")
        page.wait("Nobody is subscribed")


def test_subscribers_need_the_right_to_the_status(browser, tmp_path):
    access = _access_file(tmp_path, rights='["metrics", "reflection"]')
    with ConsoleGateway({"ratings": 20}, contracts=[RATINGS], has_admin=False, access=access) as gateway:
        page = ConsolePage(browser, gateway.port)
        page.open("tables")
        page.run("sessionStorage.setItem('tablegate-credential', 'the-key')")
        page.open("calls")
        page.wait("Held for clients")
        page.wait("may not ask for status")
        assert page.complaints() == []
        page.run("sessionStorage.clear()")


def test_the_keyboard_alone(page):
    page.open("tables")
    page.wait("serving")
    page.browser.press("Tab")
    assert page.run("document.activeElement.innerText") == "To the content"
    page.browser.press("Enter")
    assert page.run("document.activeElement.id") == "main"
    while page.run("document.activeElement.innerText") != "ratings":
        page.browser.press("Tab")
    page.browser.press("Enter")
    page.wait("Rows of ratings")
    assert page.run("document.activeElement.id") == "main", "one goes on from where the new screen begins"


def test_an_address_that_is_no_address_leads_somewhere(page):
    page.open("rows/100%")
    page.wait("have no table “100%”")
    page.run("location.hash = '#/map/%E0%A4%A'")
    page.wait("Partitions of %E0%A4%A")


def test_a_row_is_the_one_of_its_key_also_where_that_is_empty(page, gateway):
    nobody = gateway.catalogue.tables["product_views"].row_class(view_count=77)
    page.open("row/product_views")
    page.wait("No row has this key")
    gateway.do(lambda: gateway.tables["product_views"].put([nobody]))
    page.wait_for("dd", "it.innerText === '77'")
    page.open("rows/product_views")
    page.wait("(empty)")
    page.click(".grid td a", "(empty)")
    page.wait_for("dd", "it.innerText === '77'")
    gateway.do(lambda: gateway.tables["product_views"].delete([nobody]))


def test_a_command_shows_all_that_it_does(page):
    """A key may have characters that turn the line around, or that a terminal obeys."""
    page.open("row/product_views?product=a%E2%80%AEb%C2%9B2J")
    page.wait("grpcurl -plaintext")
    for name in ("curl", "Python", "grpcurl"):
        page.run(f"[...document.querySelectorAll('.tabs button')].find((it) => it.innerText === '{name}').click()")
        page.wait_for("pre", f"it.getAttribute('aria-label') === '{name}'")
        shown = page.text("pre")
        assert r"a\u202eb\u009b2J" in shown
        assert all(each.isprintable() or each == "\n" for each in shown)


def test_hostile_rows_are_text(page, gateway):
    table = gateway.tables["customers"]
    names = ("<img src=x onerror=alert(1)>", "<script>alert(1)</script>", "javascript:alert(1)", "\u202eevil\0\u2028")
    rows = [
        gateway.catalogue.tables["customers"].row_class(id=100_000 + number, account_number=f"X-{number}", name=name)
        for number, name in enumerate((*names, "w" * 1_000_000))
    ]
    gateway.do(lambda: table.put(rows))
    page.open("rows/customers?query=ListCustomers&idFrom=100000")
    page.wait("5 rows")
    shown = page.run("[...document.querySelectorAll('.grid td:nth-child(2)')].map((it) => it.textContent)")
    assert [text for text in shown if text][: len(names)] == list(names)
    assert page.run("document.querySelectorAll('.grid td img, .grid td script').length") == 0
    assert page.run("document.querySelector('.grid').textContent.length") < 10_000, "a megabyte is not in the table"
    gateway.do(lambda: table.delete(rows))


def test_colours_are_chosen_and_kept(page):
    page.open("tables")
    page.wait("serving")
    before = page.run("getComputedStyle(document.body).color")
    page.click(".theme")
    page.click(".theme")
    page.open("tables")
    page.wait("Dark")
    assert page.run("getComputedStyle(document.body).color") != before
    page.run("localStorage.clear()")


def test_brokers_that_do_not_answer_are_said(page, gateway):
    gateway.kafka_reachable = False
    gateway.do(gateway.say)
    page.open("tables")
    page.wait("The brokers do not answer.")
    gateway.kafka_reachable = True
    gateway.do(gateway.say)
    page.wait_for("main", "!it.innerText.includes('The brokers do not answer')")


def test_snapshot_files_are_shown(browser):
    with ConsoleGateway({"ratings": 20, "customers": 9}) as gateway:
        page = ConsolePage(browser, gateway.port)
        page.open("tables")
        page.wait("from ratings-events")
        assert "napshot file" not in page.text("main")
        snapshots = SnapshotsStatus()
        for partition in range(3):
            snapshots.files.add(table="ratings", partition=partition, next_offset=40)
        snapshots.files[1].write_time.FromSeconds(int(time.time()) - 7_210)
        snapshots.useless.add(table="customers", partition=2, file="customers-2-9", problem="it is cut off")
        gateway.snapshots = snapshots
        page.wait("1 of 3 snapshot files, the oldest 2 h old")
        page.wait("Snapshot file customers-2-9 of partition 2 is of no use: it is cut off")
        assert "No snapshot file can be written" not in page.text("main")
        gateway.snapshots = SnapshotsStatus(problem='"/snapshots" is full')
        page.wait("No snapshot file can be written.")
        assert '"/snapshots" is full.' in page.text("main [role=alert]")
        assert page.complaints() == []


def test_long_names_of_snapshot_files_fit_a_phone(browser):
    asked = TransferRequest(table="customers", generation=1_700_000_000, partition=131)
    file = new_name(asked, time_ms=int(time.time() * 1_000), next_offset=Offset(40), draw=7)
    snapshots = SnapshotsStatus(problem=f'"/srv/{"_".join(["snapshots"] * 9)}" is full')
    snapshots.useless.add(table="customers", partition=131, file=file, problem="it is cut off")
    with ConsoleGateway({"customers": 9}) as gateway:
        gateway.snapshots = snapshots
        page = ConsolePage(browser, gateway.port)
        page.open("tables", size=PHONE)
        page.wait(f"Snapshot file {file} of partition 131")
        page.wait("is full")
        # A phone's window grows with what hangs out.
        assert page.run("innerWidth") == PHONE[0], "nothing hangs out at the side"


def test_streams_that_are_behind_are_counted(browser):
    with ConsoleGateway({"ratings": 20}, contracts=[RATINGS]) as gateway:
        page = ConsolePage(browser, gateway.port)
        gateway.second_worker.write({"streams": 5, "streams_behind": [0, 0.0]})
        page.open("calls")
        page.wait("Held for clients")
        page.wait_for(".figures", r"/Streams\s+5\s+Connections/i.test(it.innerText)")
        gateway.second_worker.write({"streams": 5, "streams_behind": [2, 7.5]})
        page.wait_for(".figures", r"/Streams\s+5, 2 behind/i.test(it.innerText)")


def test_a_credential_is_asked_for_where_it_is_needed(browser, tmp_path):
    access = _access_file(tmp_path, rights='["status", "metadata", "explain", "metrics", "reflection"]')
    with ConsoleGateway({"ratings": 20}, contracts=[RATINGS], has_admin=False, access=access) as gateway:
        page = ConsolePage(browser, gateway.port)
        page.open("rows/ratings")
        page.wait("You may not see this")
        assert page.complaints() == []
        _show(page, "another-key")
        page.wait("Show another credential")
        _show(page, "the-key")
        page.wait("20 rows")
        page.open("tables")
        page.wait("serving")
        page.run("sessionStorage.clear()")


def _show(page, credential):
    page.fill("credential", credential)
    page.click(".refused [type=submit]")


def test_rows_alone_may_need_a_credential(browser, tmp_path):
    with ConsoleGateway({"ratings": 20}, contracts=[RATINGS], access=_access_file(tmp_path)) as gateway:
        page = ConsolePage(browser, gateway.port)
        page.open("tables")
        page.wait("serving")
        page.click("tbody a")
        page.wait("You may not see this")
        _show(page, "the-key")
        page.wait("20 rows")
        page.run("sessionStorage.clear()")


def test_a_credential_that_cannot_be_sent_is_asked_for_again(browser, tmp_path):
    with ConsoleGateway({"ratings": 20}, contracts=[RATINGS], access=_access_file(tmp_path)) as gateway:
        page = ConsolePage(browser, gateway.port)
        page.open("rows/ratings")
        page.wait("You may not see this")
        _show(page, "“the-key”")
        page.wait("has characters that none has")
        _show(page, "the-key")
        page.wait("20 rows")
        page.run("sessionStorage.clear()")


def _access_file(directory: Path, rights: str = '["explain"]') -> Path:
    digest = hashlib.sha256(b"the-key").hexdigest()
    (directory / "keys.toml").write_text(f'[[key]]\nname = "ann"\nsha256 = "{digest}"\n')
    access = directory / "access.toml"
    rule = f'[[rule]]\nprincipals = ["key ann"]\ntables = ["*"]\nrights = {rights}\n'
    access.write_text(f'[api_keys]\nfile = "keys.toml"\n{rule}')
    return access


def test_100_000_rows_live(browser):
    with ConsoleGateway({"ratings": 100_000}, contracts=[RATINGS]) as gateway:
        page = ConsolePage(browser, gateway.port)
        page.open("rows/ratings?query=SubscribeRatings")
        page.wait("100,000 rows, live")
        assert page.run("document.querySelectorAll('.grid tbody tr').length") < 100
        page.run("(() => { const grid = document.querySelector('.grid'); grid.scrollTop = grid.scrollHeight / 2; })()")
        page.wait_for(".grid tr[aria-rowindex='50001']")
        gateway.delete("ratings", 5)
        page.wait("99,999 rows, live")


# Gateways that go away while one looks.


def test_partitions_move_while_one_looks(browser):
    placement = {"a": [0, 1, 2, 3], "b": [2, 3, 4, 5], "c": [4, 5, 0, 1]}
    with GrpcCluster(placement, has_console=True) as cluster:
        page = ConsolePage(browser, cluster["a"].port)
        page.open("map/ratings")
        page.wait_for("[data-gateway=c]")
        owned = page.run("document.querySelectorAll('[data-gateway=b] .cell.owner').length")
        assert owned
        cluster["b"].stop()
        cluster.announce(dead={"b"})
        page.wait_for("[data-gateway=b]", "it.innerText.includes('does not answer')")
        page.wait_for(".log li", "it.innerText.includes('b → ')")
        assert page.run("document.querySelectorAll('.cells .cell.owner').length") == 6, "each has an owner"
        assert page.complaints() == []


def test_1_000_partitions(browser):
    placement = {name: [each for each in range(1_000) if each % 3 != place] for place, name in enumerate("abc")}
    with GrpcCluster(placement, partition_count=1_000, has_console=True) as cluster:
        page = ConsolePage(browser, cluster["a"].port)
        page.open("map/ratings")
        page.wait_for("[data-gateway=c]")
        assert page.run("document.querySelectorAll('.cells .cell').length") == 3_000
        assert page.run("document.querySelectorAll('.cells .cell.owner').length") == 1_000
        assert page.complaints() == []
        cluster["b"].stop()
        cluster.announce(dead={"b"})
        page.wait_for("[data-gateway=b]", "it.innerText.includes('does not answer')")
        page.wait_for(".log li", "it.innerText.includes('more')")


def test_a_lost_connection_is_said_and_found_again(browser):
    with GrpcCluster({"a": range(6)}, has_console=True) as cluster:
        cluster.put(rating(number) for number in range(30))
        page = ConsolePage(browser, cluster["a"].port)
        page.open("rows/ratings?query=SubscribeRatings")
        page.wait("30 rows, live")
        cluster["a"].stop()
        page.wait("The stream is broken.")
        page.wait("no answer")
        assert "30 rows" in page.text(), "what was there stays"
        assert page.complaints() == []
        cluster["a"].start()
        cluster.announce()
        page.wait("30 rows, live")
        page.wait_for(".connection", "it.innerText.includes('live')")
        cluster.put([rating(77)])
        page.wait("31 rows, live")


def test_a_gateway_comes_back_with_another_contract(browser):
    with ConsoleGateway({"customers": 9}) as gateway:
        page = ConsolePage(browser, gateway.port)
        page.open("rows/customers")
        page.wait("9 rows")
    page.wait("no answer")
    with ConsoleGateway({"ratings": 20}, contracts=[RATINGS], port=gateway.port):
        page.wait("There is no such table")
        asked = page.run(
            "performance.getEntriesByType('resource').map((it) => `${it.name.split('/').at(-1)} ${it.responseStatus}`)"
        )
        since = asked[len(asked) - asked[::-1].index("GetStatus 0") :]
        assert since.index("contracts.json 200") <= 2, "it asks as soon as the gateway answers, not each minute"
        page.open("rows/ratings")
        page.wait("20 rows")


def test_a_page_that_does_not_come_is_said(browser):
    with GrpcCluster({"a": range(6)}, has_console=True) as cluster:
        cluster.put(rating(number) for number in range(700))
        page = ConsolePage(browser, cluster["a"].port)
        page.open("rows/ratings")
        page.wait("500 rows, more when you scroll")
        cluster["a"].stop()
        page.run("(() => { const grid = document.querySelector('.grid'); grid.scrollTop = grid.scrollHeight; })()")
        page.wait("The next rows did not come.")
        assert "500 rows" in page.text()
        cluster["a"].start()
        cluster.announce()
        page.click(".banner button", "Try now")
        page.wait("700 rows")


def test_partitions_that_nobody_has_are_said(browser):
    with GrpcCluster({"a": [0, 1, 2], "b": [3, 4, 5]}, has_console=True) as cluster:
        page = ConsolePage(browser, cluster["a"].port)
        cluster["b"].stop()
        cluster.announce(dead={"b"})
        page.open("rows/ratings")
        page.wait("Nobody can answer this now")
        page.wait("It is tried again by itself")


def test_nobody_who_answers_is_said(browser):
    with GrpcCluster({"a": range(6)}, has_console=True) as cluster:
        page = ConsolePage(browser, cluster["a"].port)
        page.open("map/ratings")
        page.wait_for("[data-gateway=a]")
        cluster["a"].stop()
        page.run("location.hash = '#/calls'")
        page.wait("The connection is lost")
        page.wait("It is tried again by itself")
