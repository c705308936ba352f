"""What browsers do, and the captchas they pass, in JSON: two topics with the same keys."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime

from tablegate.examples.samples.events import Clock, Event, json_bytes, numbers, steady_clock

ACTIONS = "browser_actions"
CAPTCHAS = "captchas"
TOPICS = {ACTIONS: 2, CAPTCHAS: 2}

KNOWN_BROWSER = "browser-1"
KNOWN_ACTION_COUNT = 6

_ACTIONS = ("click", "scroll", "search", "login")
_CAPTCHA_SHARE = 0.1
_PASSED_SHARE = 0.5
_FORGOTTEN_SHARE = 0.1
_DISORDER_MS_MAX = 2_000  # less than the lateness that tables allow


def action(browser: str, name: str, time_ms: int) -> Event:
    """Return an action at `time_ms`, in milliseconds since 1970."""
    time = datetime.fromtimestamp(time_ms // 1000, UTC).replace(microsecond=time_ms % 1000 * 1000)
    text = time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Event(ACTIONS, browser.encode(), json_bytes({"browser": browser, "action": name, "time": text}))


def captcha(browser: str, *, passed: bool) -> Event:
    """Return the outcome of a captcha."""
    return Event(CAPTCHAS, browser.encode(), json_bytes({"browser": browser, "passed": passed}))


def forgotten(browser: str) -> Event:
    """Return the tombstone of a captcha."""
    return Event(CAPTCHAS, browser.encode(), None)


def known_events(*, clock: Clock | None = None) -> Iterator[Event]:
    """Yield all events of the known browser: six actions, and a captcha that it did not pass."""
    now_ms = clock or steady_clock()
    for _ in range(KNOWN_ACTION_COUNT):
        yield action(KNOWN_BROWSER, "login", now_ms())
    yield captcha(KNOWN_BROWSER, passed=False)


def events(
    count: int | None = None, *, seed: int = 1, browsers: int = 500, clock: Clock | None = None
) -> Iterator[Event]:
    """Yield `count` actions and captchas of browsers but the known one; without a count, for ever.

    The time of an action is the clock's, or up to two seconds before; without a clock, a steady one that starts at
    2026-11-21T10:00:00Z gives each event a millisecond. The same arguments give the same events.
    """
    choice = random.Random(seed)
    now_ms = clock or steady_clock()
    for _ in numbers(count):
        browser = f"browser-{choice.randint(2, browsers)}"
        time_ms = now_ms() - choice.randint(0, _DISORDER_MS_MAX)
        if choice.random() >= _CAPTCHA_SHARE:
            yield action(browser, choice.choice(_ACTIONS), time_ms)
        elif choice.random() < _FORGOTTEN_SHARE:
            yield forgotten(browser)
        else:
            yield captcha(browser, passed=choice.random() < _PASSED_SHARE)
