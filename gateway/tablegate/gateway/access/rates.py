"""Rates: how much a principal may ask for, in one worker.

It is the part of the access file that bounds what principals use. A limit says for whom it is (`roles`, `principals`;
without either for everyone), of which methods (`methods`; all), and how much it lets through:

    [[limit]]
    name = "everyone"
    calls_per_s = 200                       # and 200 at once, after a second without calls
    bytes_per_s = 10_000_000                # of answers

    [[limit]]
    name = "exports"
    roles = ["analyst"]
    methods = ["examples.ratings.v1.RatingsService/*"]
    streams = 10                            # open at once, scans among them
    scans = 2                               # of them

Each principal is counted by itself. Every limit that is for a principal and a method counts: who has too much of one is
refused, and has then used up nothing of the others.

A bucket is one number: the time at which it is full again. To take from it moves that time on; nothing fills it, and a
principal whose buckets are all full, and who has no stream, is like one that never called. Each call of a limit looks
at the use that was looked at longest ago, and forgets it where it is such. So memory is for those who have called
within the last seconds, however many there are, and no moment pays for all of them.

A unary answer is charged when it is there, so that its principal may have had more than its rate: its next calls wait
until that is made up for, a minute at most (`DEBT_S_MAX`). Who sends a stream is told how long to wait.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from types import TracebackType
from typing import Any, Self

from tablegate.gateway.access.principal import AccessFileError
from tablegate.gateway.access.sections import Section

BURST_S = 1.0  # what was not used for so long may be used at once
DEBT_S_MAX = 60.0  # so long one answer, however long, keeps its principal out; what is beyond is forgiven
RETRY_MS = 1_000  # where nobody knows when a stream ends
PATHS_MAX = 10_000  # whose limits are kept; a gateway has far fewer methods, but a path may be what a client says

_INEXACT_PART = 0.001  # of a call
_ANY = "*"


class Kind(Enum):
    """What a call keeps at work."""

    UNARY = "unary"
    STREAM = "stream"
    SCAN = "scan"  # it is a stream, too


_UNARY, _SCAN = Kind.UNARY, Kind.SCAN


class RateExceeded(Exception):
    """A principal has too much of a limit, named `limit`; the message is for it."""

    def __init__(self, limit: str, allowance: str, retry_after_ms: int) -> None:
        super().__init__(f'the limit "{limit}" allows you {allowance}; try again in {retry_after_ms} ms')
        self.limit = limit
        self.retry_after_ms = retry_after_ms


class _Use:
    """What a principal uses of a limit."""

    __slots__ = ("bytes_full_at_s", "calls_full_at_s", "principal", "scans", "streams")

    def __init__(self, principal: str) -> None:
        self.principal = principal
        self.calls_full_at_s = self.bytes_full_at_s = -math.inf
        self.streams = self.scans = 0


class _Limit:
    """A limit, and what each principal uses of it."""

    def __init__(
        self,
        name: str,
        *,
        principals: frozenset[str],
        roles: frozenset[str],
        methods: Collection[str],
        calls_per_s: float | None,
        streams: int | None,
        scans: int | None,
        bytes_per_s: float | None,
    ) -> None:
        self.name = name
        self.principals = principals
        self.roles = roles
        self.is_for_all = not principals and not roles
        self.charges = bytes_per_s is not None
        self._paths = frozenset(method for method in methods if not method.endswith(_ANY))
        self._services = tuple(method.removesuffix(_ANY) for method in methods if method.endswith(_ANY))
        self._calls_per_s, self._bytes_per_s = calls_per_s, bytes_per_s
        self._call_s = 0.0 if calls_per_s is None else 1 / calls_per_s
        self._byte_s = 0.0 if bytes_per_s is None else 1 / bytes_per_s
        # A slow limit, as of a call a minute, lets one through: its bucket has room for a call. And for a part of
        # another, as sums of floats are not exact: else the last call of a burst would be refused now and then.
        self._calls_lead_s = max(BURST_S - self._call_s, 0.0) + self._call_s * _INEXACT_PART
        self._streams = math.inf if streams is None else streams
        self._scans = math.inf if scans is None else scans
        self._counts = streams is not None or scans is not None
        self._uses: dict[str, _Use] = {}
        self._queue: deque[_Use] = deque()  # all of them, the one that was looked at longest ago first

    def __len__(self) -> int:
        """Return how many principals it remembers."""
        return len(self._uses)

    def is_of(self, path: str) -> bool:
        """Return whether it is of a method."""
        return path in self._paths or path.startswith(self._services)

    def use_of(self, principal: str, now_s: float) -> _Use:
        """Return what a principal uses; valid until another is asked for."""
        queue = self._queue
        if queue:
            oldest = queue.popleft()
            if oldest.calls_full_at_s <= now_s and oldest.bytes_full_at_s <= now_s and not oldest.streams:
                del self._uses[oldest.principal]
            else:
                queue.append(oldest)
        use = self._uses.get(principal)
        if use is None:
            use = self._uses[principal] = _Use(principal)
            queue.append(use)
        return use

    def check(self, use: _Use, kind: Kind, now_s: float) -> None:
        """Raise `RateExceeded` where a call more is too much; change nothing."""
        if (over_s := use.calls_full_at_s - now_s - self._calls_lead_s) > 0:
            raise RateExceeded(self.name, f"{self._calls_per_s:g} calls a second", _ms(over_s))
        if (over_s := use.bytes_full_at_s - now_s - BURST_S) >= 0:
            # At the moment itself the bucket is empty still.
            raise RateExceeded(self.name, f"{self._bytes_per_s:g} bytes of answers a second", _ms(over_s) + 1)
        if kind is not _UNARY:
            if use.streams >= self._streams:
                raise RateExceeded(self.name, f"{self._streams} streams at once", RETRY_MS)
            if kind is _SCAN and use.scans >= self._scans:
                raise RateExceeded(self.name, f"{self._scans} scans at once", RETRY_MS)

    def begin(self, use: _Use, kind: Kind, now_s: float) -> None:
        """Count a call."""
        use.calls_full_at_s = max(use.calls_full_at_s, now_s) + self._call_s
        if self._counts and kind is not _UNARY:
            use.streams += 1
            use.scans += kind is _SCAN

    def end(self, principal: str, kind: Kind) -> None:
        """Count a stream no more."""
        if self._counts:
            use = self._uses[principal]  # nobody forgets one with a stream
            use.streams -= 1
            use.scans -= kind is _SCAN

    def charge(self, principal: str, count: int, now_s: float) -> float:
        """Count bytes; return in how many seconds they are made up for."""
        use = self.use_of(principal, now_s)
        full_at_s = max(use.bytes_full_at_s, now_s) + count * self._byte_s
        use.bytes_full_at_s = min(full_at_s, now_s + BURST_S + DEBT_S_MAX)
        return use.bytes_full_at_s - now_s - BURST_S


class Usage:
    """A call that may begin. Charge it with its answer, where it `is_charged`; where it is a stream, end it."""

    __slots__ = ("_clock", "_is_open", "_kind", "_limits", "_principal", "is_charged")

    def __init__(self, limits: Collection[_Limit], principal: str, kind: Kind, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._principal = principal
        self._kind = kind
        self._clock = clock
        self._is_open = kind is not Kind.UNARY
        self.is_charged = any(limit.charges for limit in limits)

    def charge(self, count: int) -> float:
        """Count bytes of the answer; return how many seconds a stream has to wait before it sends more."""
        wait_s = 0.0
        for limit in self._limits:
            if limit.charges:
                wait_s = max(wait_s, limit.charge(self._principal, count, self._clock()))
        return wait_s

    def end(self) -> None:
        """End a stream; at the second time, and where it is none, nothing happens."""
        if self._is_open:
            self._is_open = False
            for limit in self._limits:
                limit.end(self._principal, self._kind)

    def __enter__(self) -> Self:
        """End it with the context."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self.end()


FREE = Usage((), "", Kind.UNARY, time.monotonic)


class Rates:
    """All limits. One thread. `settings` are what they were read from."""

    def __init__(self, limits: Collection[_Limit], clock: Callable[[], float], settings: Any = None) -> None:
        self.settings = settings
        self._limits = tuple(limits)
        self._clock = clock
        self._of_paths: dict[str, tuple[_Limit, ...]] = {}

    def __len__(self) -> int:
        """Return how many principals are remembered, by each limit that does."""
        return sum(map(len, self._limits))

    @property
    def is_empty(self) -> bool:
        """Return whether there is no limit."""
        return not self._limits

    def admit(self, principal: str, roles: Collection[str], path: str, kind: Kind) -> Usage:
        """Let a call begin, or raise `RateExceeded`.

        `principal`: its name; all who show no credential have one together, such as "". `path`: of the method.
        """
        limits = self._of_paths.get(path)
        if limits is None:
            limits = self._find(path)
        if not limits:
            return FREE
        now_s = self._clock()
        uses = []
        for limit in limits:
            if limit.is_for_all or principal in limit.principals or not limit.roles.isdisjoint(roles):
                use = limit.use_of(principal, now_s)
                limit.check(use, kind, now_s)
                uses.append((limit, use))
        is_done = kind is _UNARY  # with its beginning, unless its answer is charged
        for limit, use in uses:
            limit.begin(use, kind, now_s)
            if limit.charges:
                is_done = False
        return FREE if is_done else Usage([limit for limit, _ in uses], principal, kind, self._clock)

    def _find(self, path: str) -> tuple[_Limit, ...]:
        if len(self._of_paths) >= PATHS_MAX:
            self._of_paths.clear()
        found = self._of_paths[path] = tuple(limit for limit in self._limits if limit.is_of(path))
        return found


def rates_of(
    settings: Mapping[str, Any], *, paths: Collection[str] = (), clock: Callable[[], float] = time.monotonic
) -> Rates:
    """Return the limits of a parsed access file; raise `AccessFileError`.

    `paths`: of the methods that are served. With them a limit of none of them is refused, as it is a slip of the pen.
    """
    sections = settings.get("limit", [])
    if not isinstance(sections, list):
        raise AccessFileError("limit is no list; begin each limit with [[limit]]")
    limits: dict[str, _Limit] = {}
    for number, section in enumerate(sections, 1):
        limit = _limit(section, f"[[limit]] number {number}", paths)
        if limit.name in limits:
            raise AccessFileError(
                f'[[limit]] number {number} has the name of another one, "{limit.name}"; take a new one'
            )
        limits[limit.name] = limit
    return Rates(limits.values(), clock, sections)


_AMOUNTS = ("calls_per_s", "streams", "scans", "bytes_per_s")
_KEYS = ("name", "principals", "roles", "methods", *_AMOUNTS)


def _limit(settings: object, where: str, paths: Collection[str]) -> _Limit:
    section = Section(settings, where, _KEYS)
    name = section.text("name")  # which those who meet the limit read
    if not any(amount in section for amount in _AMOUNTS):
        raise section.refuse(f"limits nothing; add one of {', '.join(_AMOUNTS)}")
    return _Limit(
        name,
        principals=frozenset(section.texts("principals", ())),
        roles=frozenset(section.texts("roles", ())),
        methods=_methods(section, paths),
        calls_per_s=_rate(section, "calls_per_s"),
        streams=_count(section, "streams"),
        scans=_count(section, "scans"),
        bytes_per_s=_rate(section, "bytes_per_s"),
    )


def _methods(section: Section, paths: Collection[str]) -> list[str]:
    """Return the paths of methods; those of a service end with "/*"."""
    found = []
    for name in section.texts("methods", (_ANY,)):
        path = name if name == _ANY else f"/{name.removeprefix('/')}"
        if path != _ANY and (path.count("/") != 2 or not path.rpartition("/")[2] or _ANY in path.removesuffix("/*")):
            raise section.refuse(f'"methods" has "{name}", which is none; write package.Service/Method, or …Service/*')
        if paths and not any(
            each.startswith(path.removesuffix(_ANY)) if path.endswith(_ANY) else each == path for each in paths
        ):
            raise section.refuse(f'"methods" has "{name}", which is not served here; see tablegate tables')
        found.append(path)
    return found


def _rate(section: Section, name: str) -> float | None:
    # A bucket is a time: beyond these it would not move, or never be full.
    return section.number(name, 1.0, 1e-9, 1e12) if name in section else None


def _count(section: Section, name: str) -> int | None:
    value = section.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise section.refuse(f'"{name}" is no whole number, 1 or more; who may have none needs no [[rule]]')
    return value


def _ms(duration_s: float) -> int:
    return math.ceil(duration_s * 1_000)
