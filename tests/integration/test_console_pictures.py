"""The pictures of the console in the documentation, drawn anew with --rewrite-pictures: look at what came."""

import json
import random
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.gateways_in_process.cluster import GrpcCluster
from tests.kit.gateways_in_process.console import Busy, ConsoleGateway, silent_stream
from tests.kit.programs.chromium import PROGRAM, Chromium
from tests.kit.programs.console_page import PHONE, ConsolePage
from tests.kit.table.filled import ROOT, rating

pytestmark = [pytest.mark.tools, pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed")]

PICTURES = ROOT / "docs/images"
SIZE, MAP_SIZE, LOW_SIZE = (1180, 720), (1180, 540), (1180, 590)
SECONDS = 75  # until plots have something to show
ROWS = {
    "stock_ticks": 48,
    "ratings": 4_812,
    "customers": 931,
    "product_views": 1_204,
    "balances": 640,
    "reward_points": 2_210,
}
QUESTIONS = {
    "examples.ratings.v1.RatingsService/GetRating": {"movieId": "7"},
    "examples.ratings.v1.RatingsService/ListRatings": {"pageSize": 20},
    "examples.customers.v1.CustomersService/GetCustomer": {"id": "7"},
    "examples.stocks.v1.StocksService/ListStockTicks": {},
}


@pytest.fixture
def browser(request: pytest.FixtureRequest) -> Iterator[Chromium]:
    if not request.config.getoption("--rewrite-pictures"):
        pytest.skip("--rewrite-pictures draws them")
    PICTURES.mkdir(exist_ok=True)
    with Chromium() as browser:
        yield browser


def draw(page: ConsolePage, name: str) -> None:
    file: Path = PICTURES / f"console-{name}.png"
    file.write_bytes(page.browser.picture())


def test_pictures_of_one_gateway(browser):
    with ConsoleGateway(ROWS) as gateway, Busy(gateway), _asked(gateway):
        page = ConsolePage(browser, gateway.port)
        page.open("tables", size=SIZE)
        page.wait("4,812")
        time.sleep(SECONDS)
        draw(page, "tables")
        page.run("location.hash = '#/calls'")
        page.wait("GetCustomer")
        page.open("calls", size=SIZE, dark=True)
        time.sleep(SECONDS)
        draw(page, "calls")
        page.open("job/ratings", size=LOW_SIZE)
        page.wait("ratings-events")
        time.sleep(SECONDS)
        draw(page, "job")
        page.open("rows/ratings?query=SubscribeRatings", size=PHONE)
        page.wait("4,812 rows, live")
        time.sleep(2)
        draw(page, "phone")


def test_the_picture_of_subscribers(browser):
    with ConsoleGateway({"ratings": 300, "customers": 20}) as gateway:
        page = ConsolePage(browser, gateway.port)
        page.open("calls", size=LOW_SIZE)
        with (
            silent_stream(gateway.data_port, "examples.ratings.v1.RatingsService/SubscribeRatings"),
            silent_stream(gateway.data_port, "examples.customers.v1.CustomersService/SubscribeCustomers"),
        ):
            page.wait("SubscribeCustomers")
            for _ in range(12):
                gateway.change("ratings", count=4_000)
                gateway.change("customers", count=10)
                time.sleep(2)
            page.wait("Streams that are behind")
            page.run("document.querySelector('.next').scrollIntoView()")
            time.sleep(1)
            draw(page, "subscribers")


def test_pictures_of_a_cluster(browser):
    placement = {f"gateway-{place}": [each for each in range(96) if each % 3 != place] for place in range(3)}
    with GrpcCluster(placement, partition_count=96, has_console=True) as cluster:
        cluster.put(rating(number, average=7.5, count=number % 40 + 1) for number in range(1, 400))
        page = ConsolePage(browser, cluster["gateway-0"].port)
        page.open("row/ratings?movieId=7", size=SIZE)
        page.wait("Held by")
        page.wait("added")
        for count in (9, 10, 11):
            cluster.put([rating(7, average=7 + count / 10, count=count)])
            page.wait(f"→ {count}")
        draw(page, "row")
        page.open("map/ratings", size=MAP_SIZE)
        page.wait_for("[data-gateway=gateway-2]")
        cluster["gateway-1"].stop()
        cluster.announce(dead={"gateway-1"})
        page.wait_for(".log li", "it.innerText.includes('gateway-1 → ')")
        page.wait("does not answer")
        time.sleep(1)  # colours come slowly
        draw(page, "map")
        page.open("map/ratings", size=MAP_SIZE, dark=True)
        page.wait("does not answer")
        time.sleep(1)
        draw(page, "map-dark")


@contextmanager
def _asked(gateway: ConsoleGateway) -> Iterator[None]:
    """Ask the data port, as clients would, until the context ends."""
    ends, chance = threading.Event(), random.Random(3)

    def ask() -> None:
        while not ends.wait(chance.uniform(0.001, 0.05)):
            path = chance.choices(list(QUESTIONS), weights=[8, 3, 5, 1])[0]
            url = f"http://127.0.0.1:{gateway.data_port}/{path}"
            body = json.dumps(QUESTIONS[path]).encode()
            asked = urllib.request.Request(url, body, {"content-type": "application/json"})
            with urllib.request.urlopen(asked) as answer:
                answer.read()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
