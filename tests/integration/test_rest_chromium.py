"""The page at /docs, as a person uses it."""

from collections.abc import Iterator

import pytest

from tests.kit.gateways_in_process.rest import RestServer
from tests.kit.programs.chromium import PROGRAM, Chromium

pytestmark = [pytest.mark.tools, pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed")]

FIND = "[...document.querySelectorAll('.opblock')].find(block => block.querySelector('[data-path=\"%s\"]'))"
COUNT_REQUESTS = """
    const plainFetch = window.fetch;
    window.fetch = (...request) => { window.requests++; return plainFetch(...request); };
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with RestServer(WatchOn='get: "/watched"') as server, Chromium() as browser:
        browser.open(f"http://127.0.0.1:{server.port}/docs")
        browser.wait_for("document.querySelector('.opblock')")
        browser.run(COUNT_REQUESTS)
        yield browser
        assert not [text for text in browser.messages if "Content Security Policy" in text]


def try_out(browser: Chromium, path: str) -> tuple[str, str]:
    """Open an operation, execute it with the values it comes with, and return status and body as they are shown."""
    block = FIND % path
    browser.run(f"{block}.querySelector('.opblock-summary-control').click()")
    # A click does nothing while the operation is still being read, and a second one would ask again.
    browser.run("window.requests = 0")
    browser.wait_for(f"window.requests || {block}.querySelector('.execute')?.click()")
    browser.wait_for(f"{block}.querySelector('.live-responses-table .response-col_status')")
    answer = f"{block}.querySelector('.live-responses-table tbody')"
    shown = [f"{answer}.querySelector('{of}').innerText" for of in (".response-col_status", "pre")]
    status, body = [browser.run(script) for script in shown]
    return status.strip(), body


def test_the_page_names_the_table_and_its_queries(browser):
    assert browser.run("document.querySelector('.info .title').innerText").startswith("Tablegate: ratings")
    assert browser.run("document.querySelectorAll('.opblock').length") == 6


def test_a_get(browser):
    status, body = try_out(browser, "/v1/ratings/{movieId}")
    assert status == "200"
    assert '"movieId": "1"' in body


def test_a_batch_get(browser):
    status, body = try_out(browser, "/v1/ratings:batchGet")
    assert status == "200"
    assert '"found": {' in body


def test_the_beginning_of_a_stream(browser):
    status, body = try_out(browser, "/v1/ratings:scan")
    assert status == "200"
    assert body.startswith('{"ratings":[{')


def test_a_stream_without_end_is_cut(browser):
    shown = browser.run(f"fetch('/watched?name={'x' * 1_000}').then(answer => answer.text())")
    assert shown.endswith("(this page shows only the beginning of a stream)\n")
