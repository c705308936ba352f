"""Rates: limits by principal and method, against a model that counts tokens; and what a file may say.

Times and rates are powers of two, so that the model and the buckets agree to the last bit.
"""

import math
import tomllib
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tablegate.gateway.access.principal import AccessFileError
from tablegate.gateway.access.rates import (
    DEBT_S_MAX,
    PATHS_MAX,
    RETRY_MS,
    Kind,
    RateExceeded,
    Rates,
    Usage,
    rates_of,
)

UNKNOWN = (
    '[[limit]] number 1 "calls" is unknown; known are bytes_per_s, calls_per_s, methods, name, principals, roles, '
    "scans, streams"
)
GET, SCAN = "/shop.Orders/GetOrder", "/shop.Orders/ScanOrders"


class Clock:
    """A time that a test sets."""

    now_s = 1_024.0

    def __call__(self) -> float:
        """Return it."""
        return self.now_s


def rates(text: str, clock: Clock | None = None, **more: Any) -> Rates:
    return rates_of(tomllib.loads(text), clock=clock or Clock(), **more)


def admitted(
    limits: Rates, *, principal: str = "ann", path: str = GET, kind: Kind = Kind.UNARY, most: int = 100
) -> int:
    """Return how many calls are admitted one after the other, `most` at most."""
    for count in range(most):
        try:
            limits.admit(principal, (), path, kind)
        except RateExceeded:
            return count
    return most


def test_without_limits_all_is_free() -> None:
    limits = rates_of({})
    assert admitted(limits) == 100
    with limits.admit("ann", (), GET, Kind.STREAM) as admission:
        assert admission.charge(10**12) == 0
    assert len(limits) == 0


@pytest.mark.parametrize(("calls_per_s", "burst"), [(200, 200), (0.3, 1), (1, 1), (2.5, 2), (7, 7), (999.9, 999)])
def test_a_burst_is_of_one_second(calls_per_s: float, burst: int) -> None:
    clock = Clock()
    limits = rates(f'[[limit]]\nname = "a"\ncalls_per_s = {calls_per_s}', clock)
    for _ in range(3):
        assert admitted(limits, most=2_000) == burst
        clock.now_s += 100  # no more is saved


def test_who_comes_back_when_told_is_admitted() -> None:
    clock = Clock()
    limits = rates('[[limit]]\nname = "slow"\ncalls_per_s = 0.3\nbytes_per_s = 7', clock)
    limits.admit("ann", (), GET, Kind.UNARY).charge(100)
    for _ in range(50):
        with pytest.raises(
            RateExceeded, match=r'the limit "slow" allows you .* a second; try again in \d+ ms'
        ) as refusal:
            limits.admit("ann", (), GET, Kind.UNARY)
        assert refusal.value.limit == "slow"
        clock.now_s += refusal.value.retry_after_ms / 1_000
        if admitted(limits, most=1):
            break
    assert clock.now_s - 1_024 == pytest.approx((100 - 7) / 7, abs=0.01)


def test_a_limit_is_for_whom_it_names_each_by_itself() -> None:
    limits = rates(
        """
        [[limit]]
        name = "some"
        principals = ["ann"]
        roles = ["analyst", "auditor"]
        calls_per_s = 1
        """
    )
    for principal, roles, count in (("ann", (), 1), ("bob", ("auditor",), 1), ("bea", {"analyst"}, 1), ("cid", (), 9)):
        for _ in range(count):
            limits.admit(principal, roles, GET, Kind.UNARY)
    for principal, roles in (("ann", ()), ("bob", ("auditor",)), ("bea", ("x", "analyst"))):
        with pytest.raises(RateExceeded):
            limits.admit(principal, roles, GET, Kind.UNARY)


@pytest.mark.parametrize("methods", ['["shop.Orders/GetOrder"]', '["/shop.Orders/GetOrder", "a.B/*"]', '["a.B/C"]'])
def test_a_limit_is_of_the_methods_it_names(methods: str) -> None:
    limits = rates(f'[[limit]]\nname = "a"\nmethods = {methods}\ncalls_per_s = 1')
    limited = {path for path in (GET, SCAN, "/a.B/C", "/a.Bc/D") if admitted(limits, path=path, principal=path) == 1}
    assert (
        limited
        == {
            '["shop.Orders/GetOrder"]': {GET},
            '["/shop.Orders/GetOrder", "a.B/*"]': {GET, "/a.B/C"},
            '["a.B/C"]': {"/a.B/C"},
        }[methods]
    )


def test_a_call_that_one_limit_refuses_uses_nothing_of_the_others() -> None:
    clock = Clock()
    limits = rates('[[limit]]\nname = "a"\ncalls_per_s = 8\n[[limit]]\nname = "b"\nstreams = 1', clock)
    with limits.admit("ann", (), GET, Kind.STREAM):
        assert admitted(limits, kind=Kind.STREAM) == 0
        assert admitted(limits) == 7


def test_a_scan_is_a_stream_and_ends_once() -> None:
    limits = rates('[[limit]]\nname = "a"\nstreams = 3\nscans = 2')
    scans = [limits.admit("ann", (), SCAN, Kind.SCAN) for _ in range(2)]
    with pytest.raises(RateExceeded, match="2 scans at once") as refusal:
        limits.admit("ann", (), SCAN, Kind.SCAN)
    assert refusal.value.retry_after_ms == RETRY_MS
    limits.admit("ann", (), GET, Kind.STREAM)
    scans[0].end()
    scans[0].end()
    limits.admit("ann", (), SCAN, Kind.SCAN)
    with pytest.raises(RateExceeded, match="3 streams at once"):
        limits.admit("ann", (), SCAN, Kind.STREAM)


def test_a_stream_that_ends_makes_no_room_for_a_scan() -> None:
    limits = rates('[[limit]]\nname = "a"\nscans = 1')
    limits.admit("ann", (), SCAN, Kind.SCAN)
    limits.admit("ann", (), GET, Kind.STREAM).end()
    assert admitted(limits, kind=Kind.SCAN) == 0


def test_an_answer_however_long_is_forgiven_in_time() -> None:
    clock = Clock()
    limits = rates('[[limit]]\nname = "a"\nbytes_per_s = 1', clock)
    admission = limits.admit("ann", (), GET, Kind.UNARY)
    for _ in range(3):
        assert admission.charge(10**15) == DEBT_S_MAX
    clock.now_s += DEBT_S_MAX
    assert admitted(limits) == 0
    clock.now_s += 0.001
    assert admitted(limits, most=5) == 5


def test_a_stream_that_waits_as_told_sends_at_its_rate() -> None:
    clock = Clock()
    limits = rates('[[limit]]\nname = "a"\nbytes_per_s = 1024', clock)
    with limits.admit("ann", (), SCAN, Kind.SCAN) as admission:
        for _ in range(100):
            clock.now_s += max(0.0, admission.charge(512))
    assert clock.now_s - 1_024 == 100 * 512 / 1_024 - 1


def test_a_late_answer_is_charged_to_who_was_forgotten_meanwhile() -> None:
    clock = Clock()
    limits = rates('[[limit]]\nname = "a"\nbytes_per_s = 1', clock)
    admission = limits.admit("ann", (), GET, Kind.UNARY)
    clock.now_s += 10
    limits.admit("bob", (), GET, Kind.UNARY)
    limits.admit("cid", (), GET, Kind.UNARY)
    admission.charge(1_000)
    assert admitted(limits) == 0


def test_of_many_principals_those_of_the_last_seconds_are_remembered() -> None:
    clock = Clock()
    limits = rates('[[limit]]\nname = "a"\ncalls_per_s = 4\nstreams = 9', clock)
    stream = limits.admit("ann", (), GET, Kind.STREAM)
    most = 0
    for number in range(20_000):
        limits.admit(f"principal {number}", (), GET, Kind.UNARY)
        clock.now_s += 1 / 1024  # each has its call back after 256 of them
        most = max(most, len(limits))
    assert most <= 2 * 257  # one that was looked at just before is looked at again after as many
    stream.end()
    for _ in range(1_000):
        limits.admit("bob", (), GET, Kind.UNARY)
        clock.now_s += 1
    assert len(limits) == 1
    assert admitted(limits, kind=Kind.STREAM) == 4  # those of the calls: ann's stream is nobody else's


def test_paths_of_clients_fill_no_memory() -> None:
    limits = rates('[[limit]]\nname = "a"\nmethods = ["a.B/C"]\ncalls_per_s = 1')
    for number in range(PATHS_MAX + 10):
        limits.admit("ann", (), f"/no/{number}", Kind.UNARY)
    assert len(limits._of_paths) <= PATHS_MAX  # nothing else shows it


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("limit = 3", "limit is no list; begin each limit with [[limit]]"),
        ("limit = [3]", "[[limit]] number 1 is no table; write it as one"),
        ("[[limit]]\ncalls_per_s = 1", '[[limit]] number 1 needs "name", a text without line breaks; give it'),
        ('[[limit]]\nname = ""', '[[limit]] number 1 needs "name", a text without line breaks; give it'),
        (
            '[[limit]]\nname = "a"',
            "[[limit]] number 1 limits nothing; add one of calls_per_s, streams, scans, bytes_per_s",
        ),
        ('[[limit]]\nname = "a"\ncalls = 1', UNKNOWN),
        (
            '[[limit]]\nname = "a"\nscans = 1\n[[limit]]\nname = "a"\nscans = 1',
            '[[limit]] number 2 has the name of another one, "a"; take a new one',
        ),
        (
            '[[limit]]\nname = "a"\nscans = 1\nroles = []',
            '[[limit]] number 1 "roles" is no text or list of texts; correct it, or leave it out',
        ),
        (
            '[[limit]]\nname = "a"\nscans = 1\nprincipals = 1',
            '[[limit]] number 1 "principals" is no text or list of texts; correct it, or leave it out',
        ),
        *(
            (
                f'[[limit]]\nname = "a"\nscans = 1\nmethods = ["{method}"]',
                (
                    f'[[limit]] number 1 "methods" has "{method}", which is none; write package.Service/Method, or '
                    "…Service/*"
                ),
            )
            for method in ("GetOrder", "shop.Orders/", "shop.*/GetOrder", "a/b/c", "shop.Orders/Get*")
        ),
        (
            '[[limit]]\nname = "a"\nscans = 1\nmethods = ["shop.Order/GetOrder"]',
            '[[limit]] number 1 "methods" has "shop.Order/GetOrder", which is not served here; see tablegate tables',
        ),
        (
            '[[limit]]\nname = "a"\nscans = 1\nmethods = ["shop.Order/*"]',
            '[[limit]] number 1 "methods" has "shop.Order/*", which is not served here; see tablegate tables',
        ),
        *(
            (
                f'[[limit]]\nname = "a"\n{name} = {value}',
                f'[[limit]] number 1 "{name}" is no number from 1e-09 to 1e+12; correct it',
            )
            for name, value in (
                ("calls_per_s", 0),
                ("calls_per_s", "nan"),
                ("bytes_per_s", "inf"),
                ("bytes_per_s", "true"),
            )
        ),
        *(
            (
                f'[[limit]]\nname = "a"\n{name} = {value}',
                f'[[limit]] number 1 "{name}" is no whole number, 1 or more; who may have none needs no [[rule]]',
            )
            for name, value in (("streams", 0), ("scans", -1), ("scans", 1.5), ("streams", "true"))
        ),
    ],
)
def test_a_wrong_file_says_where_and_what_to_do(text: str, message: str) -> None:
    with pytest.raises(AccessFileError) as refusal:
        rates(text, paths={GET, SCAN})
    assert str(refusal.value) == message


def test_methods_that_are_served_are_accepted() -> None:
    rates('[[limit]]\nname = "a"\nscans = 1\nmethods = ["*", "shop.Orders/*", "shop.Orders/GetOrder"]', paths={GET})


@dataclass
class Tokens:
    """A bucket as books have it: tokens that come back with time."""

    rate: Fraction
    room: Fraction
    at_s: Fraction = Fraction(0)
    tokens: Fraction = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = self.room

    def fill(self, now_s: Fraction) -> None:
        self.tokens = min(self.room, self.tokens + (now_s - self.at_s) * self.rate)
        self.at_s = now_s


POWERS = st.sampled_from([0.25, 0.5, 1, 2, 8, 32])


class RatesModel(RuleBasedStateMachine):
    """Three principals, two limits, and a model for each pair of them."""

    @initialize(
        calls=st.none() | POWERS,
        size=POWERS,
        streams=st.integers(1, 4),
        scans=st.integers(1, 4),
        others=st.none() | st.integers(1, 2),
    )
    def limit(self, calls: float | None, size: float, streams: int, scans: int, others: int | None) -> None:
        wide: dict[str, Any] = {"name": "wide", "bytes_per_s": size, "scans": scans}
        narrow: dict[str, Any] = {"name": "narrow", "roles": ["r"], "methods": [SCAN], "streams": streams}
        if calls is not None:
            wide["calls_per_s"] = calls
        if others is not None:
            narrow["calls_per_s"] = others
        self.limits = [wide, narrow]
        self.clock = Clock()
        self.rates = rates_of({"limit": self.limits}, clock=self.clock)
        self.calls: dict[tuple[str, str], Tokens] = {}
        self.bytes: dict[tuple[str, str], Tokens] = {}
        self.open: list[tuple[Usage, str, Kind, list[str]]] = []
        self.begun: list[tuple[Usage, str]] = []
        self.roles = {"ann": ("r",), "bob": (), "cid": ("r", "q")}

    @rule(steps=st.integers(1, 64) | st.sampled_from([1_000, 10_000]))
    def wait(self, steps: int) -> None:
        self.clock.now_s += steps / 64

    @rule(
        principal=st.sampled_from(["ann", "bob", "cid"]), path=st.sampled_from([GET, SCAN]), kind=st.sampled_from(Kind)
    )
    def call(self, principal: str, path: str, kind: Kind) -> None:
        matching = [
            limit
            for limit in self.limits
            if path in limit.get("methods", [path]) and ("roles" not in limit or "r" in self.roles[principal])
        ]
        refusing = [limit["name"] for limit in matching if self._refuses(limit, principal, kind)]
        if refusing:
            with pytest.raises(RateExceeded) as refusal:
                self.rates.admit(principal, self.roles[principal], path, kind)
            assert refusal.value.limit == refusing[0]
            assert refusal.value.retry_after_ms > 0
            return
        admission = self.rates.admit(principal, self.roles[principal], path, kind)
        for limit in matching:
            if "calls_per_s" in limit:
                self._calls(limit, principal).tokens -= 1
        names = [limit["name"] for limit in matching]
        if kind is not Kind.UNARY:
            self.open.append((admission, principal, kind, names))
        self.begun = [*self.begun[-3:], (admission, principal)]

    @rule(data=st.data(), count=st.integers(0, 64))
    def charge(self, data: st.DataObject, count: int) -> None:
        if not self.begun:
            return
        admission, principal = data.draw(st.sampled_from(self.begun))
        wait_s = admission.charge(count)
        bucket = self._bytes(self.limits[0], principal)
        bucket.tokens = max(bucket.tokens - count, -bucket.rate * Fraction(DEBT_S_MAX))
        assert wait_s == max(0, -bucket.tokens / bucket.rate)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.open:
            self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))[0].end()

    @invariant()
    def remembers_no_more_than_there_are(self) -> None:
        assert not hasattr(self, "rates") or len(self.rates) <= 6

    def _refuses(self, limit: dict[str, Any], principal: str, kind: Kind) -> bool:
        if "calls_per_s" in limit and self._calls(limit, principal).tokens < 1:
            return True
        if "bytes_per_s" in limit and self._bytes(limit, principal).tokens <= 0:
            return True
        mine = [each for _, who, each, names in self.open if who == principal and limit["name"] in names]
        if kind is not Kind.UNARY and len(mine) >= limit.get("streams", math.inf):
            return True
        return kind is Kind.SCAN and mine.count(Kind.SCAN) >= limit.get("scans", math.inf)

    def _calls(self, limit: dict[str, Any], principal: str) -> Tokens:
        rate = Fraction(limit["calls_per_s"])
        bucket = self.calls.setdefault((limit["name"], principal), Tokens(rate, max(rate, Fraction(1))))
        bucket.fill(Fraction(self.clock.now_s))
        return bucket

    def _bytes(self, limit: dict[str, Any], principal: str) -> Tokens:
        rate = Fraction(limit["bytes_per_s"])
        bucket = self.bytes.setdefault((limit["name"], principal), Tokens(rate, rate))
        bucket.fill(Fraction(self.clock.now_s))
        return bucket


TestRatesModel = RatesModel.TestCase
