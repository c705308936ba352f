"""The scenarios of `clients/scenarios.txt`, with the client of each language; and live tables in React."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.client_scenarios.built import CLIENTS, built_go, built_java, built_typescript, site
from tests.kit.client_scenarios.clients import PageClient, ProgramClient, PythonClient
from tests.kit.client_scenarios.play import Play, Scenario, scenarios
from tests.kit.gateway_processes.gateway import soon
from tests.kit.gateways_in_process.client_copies import for_asyncio, for_threads
from tests.kit.gateways_in_process.live_ratings import LiveRatings
from tests.kit.programs.chromium import PROGRAM, Chromium
from tests.kit.table.filled import ROOT

pytestmark = pytest.mark.timeout(1_200)  # the first test builds a client, and others wait for it

each_scenario = pytest.mark.parametrize("scenario", scenarios(), ids=lambda scenario: scenario.name)


@pytest.fixture(scope="module")
def typescript() -> Path:
    return built_typescript()


@pytest.fixture(scope="module")
def go_driver() -> Path:
    return built_go() / "driver/driver"


@pytest.fixture(scope="module")
def java_driver() -> list[str | Path]:
    # It ends before the optimizing compiler has paid for itself.
    return ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", built_java(), "tablegate.driver.Driver"]


@pytest.fixture(scope="module")
def page(typescript: Path) -> Iterator[PageClient]:
    if PROGRAM is None:
        pytest.skip("pages need Chromium")
    with site(typescript / "site") as address, Chromium() as browser:
        browser.open(f"{address}/page.html")
        browser.wait_for("globalThis.ask")
        yield PageClient(browser)


@pytest.fixture
def react(typescript: Path) -> Iterator[tuple[Chromium, LiveRatings]]:
    """The page `test/react.tsx`, and the gateway that it follows."""
    if PROGRAM is None:
        pytest.skip("pages need Chromium")
    with LiveRatings(origins=("*",)) as live, site(typescript / "site") as address, Chromium() as browser:
        browser.open(f"{address}/react.html?gateway={live.address}")
        yield browser, live


@each_scenario
@pytest.mark.parametrize("copying", [for_threads, for_asyncio])
def test_the_python_client(scenario: Scenario, copying: Callable[..., Any], tmp_path: Path) -> None:
    with PythonClient(copying) as client, Play(client, tmp_path) as play:
        play.run(scenario)


@pytest.mark.tools
@each_scenario
def test_the_typescript_client_in_node(scenario: Scenario, typescript: Path, tmp_path: Path) -> None:
    with ProgramClient(["node", typescript / "node.js"]) as client, Play(client, tmp_path) as play:
        play.run(scenario)


@pytest.mark.tools
@each_scenario
def test_the_typescript_client_in_a_page(scenario: Scenario, page: PageClient, tmp_path: Path) -> None:
    with Play(page, tmp_path) as play:
        play.run(scenario)


@pytest.mark.tools
@each_scenario
def test_the_go_client(scenario: Scenario, go_driver: Path, tmp_path: Path) -> None:
    # A race that the detector finds ends the program.
    with ProgramClient(["env", "GORACE=halt_on_error=1", go_driver]) as client, Play(client, tmp_path) as play:
        play.run(scenario)


@pytest.mark.tools
@pytest.mark.jvm
@each_scenario
def test_the_java_client(scenario: Scenario, java_driver: list[str | Path], tmp_path: Path) -> None:
    with ProgramClient(java_driver) as client, Play(client, tmp_path) as play:
        play.run(scenario)


def _text(selector: str) -> str:
    return f"document.querySelector({json.dumps(selector)})?.textContent"


@pytest.mark.tools
def test_a_react_component_stays_live(react: tuple[Chromium, LiveRatings]) -> None:
    browser, live = react
    browser.wait_for(f'{_text("section p")} === "100 movies, live "')
    browser.wait_for(f'{_text(".movie")} === "rated {live.counts[7]} times"')
    live.put([7, 101])
    browser.wait_for(f'{_text("section p")} === "101 movies, live "')
    browser.wait_for(f'{_text(".movie")} === "rated {live.counts[7]} times"')
    live.stop()
    browser.wait_for(f'{_text("section p")}.startsWith("101 movies, stale UNAVAILABLE")')
    live.delete([7])
    live.start()
    browser.wait_for(f'{_text("section p")} === "100 movies, live "')
    browser.wait_for(f'{_text(".movie")} === "no such movie"')
    shown = browser.run("[...document.querySelectorAll('li')].map(each => each.textContent)")
    assert sorted(shown) == sorted(f"movie {movie}: 5 of {count}" for movie, count in live.counts.items())
    assert not [message for message in browser.messages if "Warning" in message or "exceptionThrown" in message]


@pytest.mark.tools
def test_a_row_of_a_table_is_rendered_when_it_changes(react: tuple[Chromium, LiveRatings]) -> None:
    browser, live = react
    browser.wait_for(f'{_text("#counted")}?.startsWith("{live.counts[3]} ")')
    rendered = int(browser.run(_text("#counted")).split()[1])
    live.put([4, 101])
    browser.wait_for(f'{_text("#size")} === "101"')
    live.put([3])
    browser.wait_for(f'{_text("#counted")} === "{live.counts[3]} {rendered + 1}"')


@pytest.mark.tools
def test_a_react_component_closes_its_table(react: tuple[Chromium, LiveRatings]) -> None:
    browser, live = react
    browser.wait_for(f'{_text("#size")} === "100"')
    browser.run("document.querySelector('#one').click()")
    browser.wait_for(f'{_text("#size")} === "1"')
    soon(lambda: live.open_streams == 2, "the one before has ended")
    browser.run("document.querySelector('#away').click()")
    soon(lambda: live.open_streams == 0, "none is left")


def test_the_how_to_shows_the_component_that_was_run() -> None:
    page = (ROOT / "docs/how-to/subscribe-from-typescript.md").read_text("utf-8")
    assert (CLIENTS / "typescript/example/RatingsPage.tsx").read_text("utf-8") in page
