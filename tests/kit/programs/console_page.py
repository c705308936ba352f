"""The console in a browser, as a person uses it."""

import json
from typing import Any

from tests.kit.programs.chromium import Chromium
from tests.kit.programs.npm import installed

WIDE, PHONE = (1280, 800), (390, 844)
SERIOUS = ("serious", "critical")


class ConsolePage:
    """The console of a gateway at a port, in a browser that others use after it."""

    def __init__(self, browser: Chromium, port: int) -> None:
        self.browser = browser
        self._url = f"http://127.0.0.1:{port}/console"
        browser.messages.clear()

    def open(self, screen: str = "", *, size: tuple[int, int] = WIDE, dark: bool = False) -> None:
        """Open a screen as if it were the first one."""
        self.browser.emulate(width=size[0], height=size[1], dark=dark)
        self.browser.open("about:blank")
        self.browser.open(f"{self._url}#/{screen}")

    def wait(self, text: str) -> None:
        """Wait until a text is on the page."""
        self.browser.wait_for(f"document.body?.innerText.includes({json.dumps(text)})")

    def wait_for(self, selector: str, condition: str = "true") -> None:
        """Wait until there is an element for which a condition holds, in which it is `it`."""
        self.browser.wait_for(
            f"[...document.querySelectorAll({json.dumps(selector)})].some((it) => Boolean({condition}))"
        )

    def run(self, script: str) -> Any:
        """Return what a script gives."""
        return self.browser.run(script)

    def text(self, selector: str = "main") -> str:
        """Return the text of an element, as it is seen."""
        text: str = self.run(f"document.querySelector({json.dumps(selector)}).innerText")
        return text

    def click(self, selector: str, containing: str = "") -> None:
        """Click on the first element that has a text."""
        self.run(
            f"[...document.querySelectorAll({json.dumps(selector)})]"
            f".find((it) => it.textContent.includes({json.dumps(containing)})).click()"
        )

    def fill(self, name: str, text: str) -> None:
        """Write into the field of a name."""
        self.run(
            f"(() => {{ const it = document.querySelector('[name={json.dumps(name)}]'); it.value = {json.dumps(text)};"
            " it.dispatchEvent(new Event('input', { bubbles: true })) })()"
        )

    def complaints(self) -> list[str]:
        """Return what axe finds serious, one line each."""
        # As what the protocol evaluates, it is no script of the page, and no content security policy is asked.
        self.run((installed() / "node_modules/axe-core/axe.min.js").read_text() + "; undefined")
        found = json.loads(self.run("axe.run(document).then((result) => JSON.stringify(result.violations))"))
        return [
            f"{rule['id']}: {node['target']} {node['failureSummary']}"
            for rule in found
            for node in rule["nodes"]
            if rule["impact"] in SERIOUS
        ]

    def foreign_requests(self) -> list[str]:
        """Return what was asked of others than the gateway."""
        asked: list[str] = self.run("performance.getEntriesByType('resource').map((each) => each.name)")
        return [url for url in asked if not url.startswith(self._url.removesuffix("/console"))]
