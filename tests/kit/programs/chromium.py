"""Headless Chromium, driven over a pipe by the DevTools protocol: what a person would see and click."""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from typing import Any, Self

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_TIMEOUT_S = 60.0
_FIRST_FREE_DESCRIPTOR = 10
_PHONE_PX = 700
_KEY_CODES = {"Tab": 9, "Enter": 13, "Escape": 27}
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"),
)


class Chromium:
    """A browser with one page. `messages`: what the page wrote to its console, and what the browser complained of."""

    def __init__(self, *, width: int = 1280, height: int = 1600) -> None:
        self.messages: list[str] = []
        self._size = (width, height)
        self._last_id = 0
        self._held = b""

    def __enter__(self) -> Self:
        assert PROGRAM is not None, "the caller looks for it"
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        commands_in, self._commands = os.pipe()
        self._answers, answers_out = os.pipe()
        width, height = self._size
        flags = [*_FLAGS, f"--user-data-dir={self._profile.name}", f"--window-size={width},{height}"]
        # The browser reads commands from descriptor 3 and answers on 4; ours may be these two, so move them first.
        theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, _FIRST_FREE_DESCRIPTOR) for end in (commands_in, answers_out)]
        shell = f'exec "$0" "$@" 3<&{theirs[0]} 4>&{theirs[1]}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, PROGRAM, *flags, "about:blank"],
            pass_fds=theirs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (commands_in, answers_out, *theirs):
            os.close(end)
        try:
            self._attach()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _attach(self) -> None:
        self._session = ""
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def __exit__(self, *_: object) -> None:
        os.close(self._commands)  # a browser without its pipe ends
        try:
            self._process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)
        self._profile.cleanup()

    def open(self, url: str) -> None:
        """Go to a page."""
        self._ask("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """Return what a script in the page gives; a promise is waited for."""
        answer = self._ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Wait until a script gives something true."""
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            if self.run(f"Boolean({script})"):
                return
            assert time.monotonic() < deadline, f"never true in the page: {script}; it said {self.messages}"
            time.sleep(0.05)

    def emulate(self, *, width: int, height: int, dark: bool = False) -> None:
        """Be a screen of this size, whose owner likes it dark or light; one of a phone where it is narrow."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < _PHONE_PX}
        self._ask("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])

    def press(self, key: str) -> None:
        """Press a key that writes nothing, such as Tab; Enter writes a line."""
        text = {"text": "\r"} if key == "Enter" else {}
        named = {"key": key, "code": key, "windowsVirtualKeyCode": _KEY_CODES[key]}
        self._ask("Input.dispatchKeyEvent", type="keyDown", **named, **text)
        self._ask("Input.dispatchKeyEvent", type="keyUp", **named)

    def picture(self) -> bytes:
        """Return what is seen, as PNG."""
        return base64.b64decode(self._ask("Page.captureScreenshot", format="png")["data"])

    def _ask(self, method: str, **params: Any) -> Any:
        self._last_id += 1
        command: dict[str, Any] = {"id": self._last_id, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self._read()
            if message.get("id") == self._last_id:
                assert "error" not in message, message["error"]
                return message["result"]
            if message.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
                self.messages.append(json.dumps(message["params"]))

    def _read(self) -> Any:
        while b"\0" not in self._held:
            piece = os.read(self._answers, 1 << 20)
            assert piece, "the browser has ended"
            self._held += piece
        first, self._held = self._held.split(b"\0", 1)
        return json.loads(first)
