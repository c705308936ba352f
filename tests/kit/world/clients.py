"""The clients of a world: each asks as clients do, any gateway at any time, and has each answer checked.

A client does one thing at a time; its call may take as long as the world lets it. What is not answered is no fault by
itself: gateways may refuse, and a client tries another one. `check` runs in the moment in which an answer came.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from google.rpc import code_pb2
from google.rpc.error_details_pb2 import ErrorInfo

from tablegate.gateway.cluster.scatter import PeerFailed
from tablegate.gateway.query.errors import QueryError, status_of
from tablegate.v1.query_pb2 import (
    ORDER_ASCENDING,
    ORDER_DESCENDING,
    SUBSCRIBE_PHASE_CURRENT,
    SUBSCRIBE_PHASE_RESET,
    ReadInfo,
)
from tests.kit.call.subscribing import token_of
from tests.kit.table.filled import LocalCall
from tests.kit.world.checker import CheckedCopy, Checker, Guarantee, GuaranteeBroken, Stated
from tests.kit.world.gateway import Answered, WorldGateway
from tests.kit.world.job import source_of

if TYPE_CHECKING:
    from tests.kit.world.world import World

SERVICE = "/examples.ratings.v1.RatingsService"
GIVES_UP_S = 6.0
HALF_A_SECOND = {"nanos": 500_000_000}


def stated_by(info: ReadInfo) -> Stated:
    """Return what an answer says of itself."""
    token = token_of(info.consistency_token)
    numbers = token.partitions or range(len(token.next_offsets))
    as_of_ms = info.as_of_time.ToMilliseconds() if info.HasField("as_of_time") else None
    return Stated(token.generation, dict(zip(numbers, token.next_offsets, strict=True)), as_of_ms)


def reason_of(error: Any) -> str:
    """Return the reason of a status; "" where it has none of ours."""
    info = ErrorInfo()
    return next((str(info.reason) for detail in error.details if detail.Unpack(info)), "")


class Client:
    """Does something now and then: `begin` returns what, or None. `rate`: how often, of the world's steps."""

    rate = 0.3

    def __init__(self, name: str, world: "World", chance: random.Random) -> None:
        self.name = name
        self.world = world
        self.chance = chance
        self._task: asyncio.Task[Any] | None = None
        self._gives_up_s = 0.0

    def begin(self) -> Coroutine[Any, Any, None] | None:
        """Return what to do next."""
        raise NotImplementedError

    def tick(self) -> None:
        """Go on; raise what was found wrong."""
        task = self._task
        if task is None:
            if self.chance.random() < self.rate:
                coroutine = self.begin()
                if coroutine is not None:
                    self._task = self.world.loop.create_task(coroutine)
                    self._gives_up_s = self.world.clock.passed_s + GIVES_UP_S
            return
        if task.done():
            self.check_now()
        elif self.world.clock.passed_s > self._gives_up_s:
            task.cancel()

    def check_now(self) -> None:
        """Raise what was found wrong, where there is an end already."""
        if self._task is not None and self._task.done():
            task, self._task = self._task, None
            error = None if task.cancelled() else task.exception()
            if isinstance(error, GuaranteeBroken):
                raise error
            if error is not None:
                text = f"{self.name} hears of a mistake inside: {type(error).__name__}: {error}"
                raise GuaranteeBroken(Guarantee.MALFORMED if self.world.has_odd_records else Guarantee.STAYS_UP, text)

    async def close(self) -> None:
        """End what is under way."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._task is not None and not self._task.cancelled():
            self._task.exception()

    def gateway(self) -> WorldGateway:
        """Return any gateway; one that is down fails its calls."""
        return self.chance.choice(list(self.world.gateways.values()))

    async def ask(self, gateway: WorldGateway, method: str, **fields: Any) -> Answered:
        """Ask; return how it ended."""
        path = f"{SERVICE}/{method}"
        query: Any = self.world.catalogue.queries[path]
        try:
            answered = await gateway.ask(path, query.request_class(**fields), query.response_class)
        except asyncio.CancelledError:
            self.world.record(f"{self.name}: {method} at {gateway.name} is given up")
            raise
        if answered.error is not None and answered.error.code != code_pb2.NOT_FOUND:
            reason = reason_of(answered.error) or code_pb2.Code.Name(answered.error.code)
            self.world.record(f"{self.name}: {method} at {gateway.name}: {reason}")
        return answered

    def what(self, method: str, gateway: WorldGateway) -> str:
        """Return the words for an answer in a report."""
        return f"{method} of {self.name} at {gateway.name}"


def batch_rows(message: Any) -> dict[int, int]:
    """Return the rows of a BatchGet."""
    return {each.found.movie_id: each.found.rating_count for each in message.results if each.HasField("found")}


class Session(Client):
    """Reads the same keys again and again, each time with the token of the answer before."""

    def __init__(self, name: str, world: "World", chance: random.Random, keys: Sequence[int]) -> None:
        super().__init__(name, world, chance)
        self._keys = keys
        self._token = ""
        self._stated: Stated | None = None
        self._seen: dict[int, int] = {}

    async def begin(self) -> None:  # type: ignore[override]
        gateway, token, before = self.gateway(), self._token, self._stated
        options = {"at_least": token, "max_wait": HALF_A_SECOND} if token else None
        keys = [{"movie_id": key} for key in self._keys]
        answered = await self.ask(gateway, "BatchGetRatings", keys=keys, read_options=options)
        if answered.error is not None:
            if reason_of(answered.error) == "TABLE_REBUILT":
                self._token, self._stated, self._seen = "", None, {}
            return
        stated, rows = stated_by(answered.message.read_info), batch_rows(answered.message)
        what, checker = self.what("BatchGet", gateway), self.world.checker
        self.world.record(f"{self.name}: {gateway.name} answers {rows} at {dict(stated.positions)}")
        checker.rows(stated, self._keys, rows, what)
        if before is not None:
            checker.at_least(stated, before, what)
            for key, count in self._seen.items():
                checker.not_back(key, count, rows.get(key), what)
        self._seen = rows
        self._token, self._stated = answered.message.read_info.consistency_token, stated


class Reader(Client):
    """Reads any key, with any requirement but that of a session."""

    async def begin(self) -> None:  # type: ignore[override]
        gateway, key = self.gateway(), self.chance.randrange(self.world.keys)
        ask = self.chance.choice([self._plain, self._plain, self._fresh, self._latest, self._own])
        await ask(gateway, key)

    async def _get(
        self, gateway: WorldGateway, key: int, options: Any, more: Callable[[Stated, int | None, str], None]
    ) -> None:
        answered = await self.ask(gateway, "GetRating", movie_id=key, read_options=options)
        what = self.what("Get", gateway)
        if answered.error is None:
            row = answered.message.rating
            stated, count = stated_by(answered.message.read_info), row.rating_count
            self.world.record(f"{self.name}: {gateway.name} has {key} as {count} at {dict(stated.positions)}")
            self.world.checker.rows(stated, [key], {key: count}, what)
            more(stated, count, what)
        elif answered.error.code == code_pb2.NOT_FOUND:
            found = self._position_of(answered)
            self.world.record(
                f"{self.name}: {answered.by} has not {key}, at {dict(found.positions) if found else None}"
            )
            if found is not None:
                self.world.checker.rows(found, [key], {}, what)
                more(found, None, what)

    def _position_of(self, answered: Answered) -> Stated | None:
        """Return where the gateway was that has not found a row, which no answer of that kind says."""
        gateway = self.world.gateways.get(answered.by)
        if gateway is None or answered.partition is None:
            return None
        with gateway.disk.store.snapshot() as snapshot:
            state = snapshot.table("ratings")
            position = None if state is None else snapshot.position(state.store_id, answered.partition)
        if state is None or position is None:
            raise GuaranteeBroken(Guarantee.NOT_FOUND, f"{answered.by} has not the partition that it has no row of")
        return Stated(state.manifest.generation, {answered.partition: int(position.next_offset)}, None)

    async def _plain(self, gateway: WorldGateway, key: int) -> None:
        await self._get(gateway, key, None, lambda *_: None)

    async def _fresh(self, gateway: WorldGateway, key: int) -> None:
        staleness_ms = self.chance.choice([300, 1_000, 3_000])
        since_ms = self.world.clock.now_ms() - staleness_ms
        staleness = {"nanos": staleness_ms % 1_000 * 1_000_000, "seconds": staleness_ms // 1_000}
        options = {"max_staleness": staleness, "max_wait": HALF_A_SECOND}

        def check(stated: Stated, _: int | None, what: str) -> None:
            self.world.checker.fresh(stated, since_ms=since_ms, what=f"{what}, no more than {staleness_ms} ms old,")

        await self._get(gateway, key, options, check)

    async def _latest(self, gateway: WorldGateway, key: int) -> None:
        ends, losses = self.world.ends(), self.world.log.losses()
        options = {"latest": True, "max_wait": HALF_A_SECOND}

        def check(stated: Stated, _: int | None, what: str) -> None:
            self.world.checker.latest(stated, self.world.log.kept(ends, losses), f"{what}, the latest,")

        await self._get(gateway, key, options, check)

    async def _own(self, gateway: WorldGateway, key: int) -> None:
        written = self.world.written(key)
        if written is None:
            return
        partition, offset = source_of(written)
        wanted = {"topics": [{"topic": "ratings", "offsets": {partition: offset}}]}
        options = {"at_least_source": wanted, "max_wait": HALF_A_SECOND}
        await self._get(
            gateway,
            key,
            options,
            lambda stated, count, what: self.world.checker.own_write(
                stated, key, count, written, f"{what}, with a write of its own,"
            ),
        )


class Walker(Client):
    """Walks over all pages, asking for no freshness; each page of any gateway."""

    async def begin(self) -> None:  # type: ignore[override]
        self._gives_up_s = self.world.clock.passed_s + 10 * GIVES_UP_S
        pages: list[tuple[Stated, Mapping[int, int]]] = []
        token, size, failures, low = "", self.chance.choice([2, 3, 7]), 0, -1
        while True:
            gateway = self.gateway()
            answered = await self.ask(gateway, "ListRatings", page_size=size, page_token=token)
            if answered.error is not None:
                failures += 1
                if failures > 12 or reason_of(answered.error) in ("TABLE_REBUILT", "INVALID_PAGE_TOKEN"):
                    return
                await asyncio.sleep(0.2)
                continue
            message = answered.message
            stated, rows = stated_by(message.read_info), {row.movie_id: row.rating_count for row in message.ratings}
            what = self.what("page", gateway)
            self.world.record(f"{self.name}: page of {gateway.name}: {rows} at {dict(stated.positions)}")
            high = max(rows, default=low) if message.next_page_token else self.world.keys
            self.world.checker.rows(stated, range(low + 1, high + 1), rows, what)
            pages.append((stated, rows))
            low, token = high, message.next_page_token
            if not token:
                break
            await asyncio.sleep(self.chance.choice([0.0, 0.1, 0.5]))
        self.world.checker.walk(pages, f"walk of {self.name}")


class Finder(Client):
    """Reads the whole table by its index, of gateways some of which have none yet, or build it."""

    async def begin(self) -> None:  # type: ignore[override]
        gateway, descending = self.gateway(), self.chance.random() < 0.5
        order = ORDER_DESCENDING if descending else ORDER_ASCENDING
        answered = await self.ask(gateway, "ListRatingsByCount", page_size=1_000, order=order)
        if answered.error is not None:
            return
        message, what = answered.message, self.what("read by the index", gateway)
        at = dict(stated_by(message.read_info).positions)
        self.world.record(f"{self.name}: {gateway.name} has {[row.movie_id for row in message.ratings]} at {at}")
        self.world.bites["read by the index"] += 1
        check_by_count(self.world.checker, message, self.world.keys, what, descending=descending)


def check_by_count(checker: Checker, message: Any, keys: int, what: str, *, descending: bool) -> None:
    """Raise where an answer by the index is not the table, each row once, in the order of counts."""
    counts = [row.rating_count for row in message.ratings]
    rows = {row.movie_id: row.rating_count for row in message.ratings}
    if len(rows) != len(counts) or message.next_page_token:
        raise GuaranteeBroken(Guarantee.PAGES, f"{what} has a row twice, or is no whole page")
    if counts != sorted(counts, reverse=descending):
        raise GuaranteeBroken(Guarantee.PAGES, f"{what} is in another order")
    checker.rows(stated_by(message.read_info), range(keys), rows, what)


class Browser(Client):
    """Walks over the table by its index, each page of any gateway."""

    rate = 0.2

    async def begin(self) -> None:  # type: ignore[override]
        self._gives_up_s = self.world.clock.passed_s + 10 * GIVES_UP_S
        descending = self.chance.random() < 0.5
        order = ORDER_DESCENDING if descending else ORDER_ASCENDING
        pages: list[tuple[Stated, Mapping[int, int]]] = []
        token, size, failures, last = "", self.chance.choice([2, 3, 7]), 0, None
        while True:
            gateway = self.gateway()
            answered = await self.ask(gateway, "ListRatingsByCount", order=order, page_size=size, page_token=token)
            if answered.error is not None:
                failures += 1
                if failures > 12 or reason_of(answered.error) == "TABLE_REBUILT":
                    return
                await asyncio.sleep(0.2)
                continue
            message, what = answered.message, self.what("page by the index", gateway)
            stated = stated_by(message.read_info)
            counts = [row.rating_count for row in message.ratings]
            self.world.record(f"{self.name}: page of {gateway.name}: {counts} at {dict(stated.positions)}")
            if not self.world.has_odd_records:
                ordered = [*([] if last is None else [last]), *counts]
                if ordered != sorted(set(ordered), reverse=descending):
                    raise GuaranteeBroken(Guarantee.PAGES, f"{what} is not in order: {ordered}")
            rows = {row.movie_id: row.rating_count for row in message.ratings}
            self.world.checker.rows(stated, rows, rows, what)
            pages.append((stated, rows))
            last = counts[-1] if counts else last
            token = message.next_page_token
            if not token:
                break
            await asyncio.sleep(self.chance.choice([0.0, 0.1, 0.5]))
        self.world.bites["walked by the index"] += 1
        self.world.checker.browse(pages, f"walk of {self.name}")


class Seeker(Client):
    """Asks for rows by what they count: each count belongs to one event, and so to one row at most."""

    async def begin(self) -> None:  # type: ignore[override]
        newest = self.world.events.count
        if not newest:
            return
        gateway = self.gateway()
        counts = sorted({max(1, newest - self.chance.randrange(40)) for _ in range(self.chance.choice([1, 6]))})
        answered = await self.ask(gateway, "BatchGetRatingsByCount", counts=counts)
        if answered.error is not None:
            return
        message, what = answered.message, self.what("BatchGet by the index", gateway)
        stated = stated_by(message.read_info)
        self.world.bites["sought by the index"] += 1
        found: dict[int, int] = {}
        for count, result in zip(counts, message.results, strict=True):
            if result.HasField("rating"):
                if result.rating.rating_count != count:
                    raise GuaranteeBroken(Guarantee.CONVERGENCE, f"{what} gives another row than that of {count}")
                found[count] = result.rating.movie_id
        self.world.record(f"{self.name}: {gateway.name} has {found} of {counts} at {dict(stated.positions)}")
        for count in counts:
            self.world.checker.sought(stated, self.world.events.keys[count - 1][0], count, found.get(count), what)


class Scanner(Client):
    """Scans the table, and goes on elsewhere where a scan breaks off or it feels like it."""

    rate = 0.1

    async def begin(self) -> None:  # type: ignore[override]
        self._gives_up_s = self.world.clock.passed_s + 10 * GIVES_UP_S
        messages: list[tuple[Stated, Mapping[int, int]]] = []
        token = ""
        for _ in range(12):
            gateway = self.gateway()
            cut = self.chance.choice([1, 2, 99])
            request = self.world.request("ScanRatings", scan_options={"resume_token": token})
            try:
                async with aclosing(gateway.messages(f"{SERVICE}/ScanRatings", request, LocalCall(None))) as found:
                    async for data in found:
                        token = self._receive(gateway, data, messages)
                        cut -= 1
                        if not cut:
                            break
            except QueryError as error:
                reason = reason_of(status_of(error))
                self.world.record(f"{self.name}: scan at {gateway.name}: {reason}")
                if reason == "TABLE_REBUILT":
                    return
                cut = 0
            except PeerFailed:
                self.world.record(f"{self.name}: scan at {gateway.name} breaks off")
                cut = 0
            if cut and messages:
                self.world.checker.walk(messages, f"scan of {self.name}")
                return
            await asyncio.sleep(0.2)

    def _receive(self, gateway: WorldGateway, data: bytes, messages: list[tuple[Stated, Mapping[int, int]]]) -> str:
        message = self.world.response("ScanRatings", data)
        rows = {row.movie_id: row.rating_count for row in message.ratings}
        stated = stated_by(message.progress.read_info)
        self.world.record(f"{self.name}: scan of {gateway.name}: {rows} at {dict(stated.positions)}")
        messages.append((stated, rows))
        token: str = message.progress.resume_token
        return token


class Subscriber(Client):
    """Keeps a copy of the table; its stream breaks now and then, and goes on by its token on any gateway."""

    rate = 0.5

    def __init__(self, name: str, world: "World", chance: random.Random) -> None:
        super().__init__(name, world, chance)
        self.copy = CheckedCopy(world.checker)
        self.stated: Stated | None = None  # of the newest message that said that the copy is current
        self._token = ""
        self.is_away = False  # it leaves its stream, and comes back with its token

    def tick(self) -> None:
        self._gives_up_s = float("inf")
        if self.is_away:
            if self._task is None:
                return
            self._task.cancel()
        if self._task is not None and not self.world.is_calm and self.chance.random() < 0.02:
            self._task.cancel()
        super().tick()

    async def begin(self) -> None:  # type: ignore[override]
        gateway = self.gateway()
        request = self.world.request("SubscribeRatings", subscribe_options={"resume_token": self._token})
        self.world.record(f"{self.name}: subscribes at {gateway.name}{', with its token' if self._token else ''}")
        try:
            call = LocalCall(None)
            async with aclosing(gateway.messages(f"{SERVICE}/SubscribeRatings", request, call)) as messages:
                async for data in messages:
                    self._receive(gateway, self.world.response("SubscribeRatings", data))
        except QueryError as error:
            reason = reason_of(status_of(error))
            self.world.record(f"{self.name}: stream of {gateway.name} ends: {reason}")
            if reason == "TABLE_REBUILT":
                self._token = ""
        except PeerFailed:
            self.world.record(f"{self.name}: stream of {gateway.name} breaks off")
        except asyncio.CancelledError:
            self.world.record(f"{self.name}: leaves {gateway.name}")

    def _receive(self, gateway: WorldGateway, message: Any) -> None:
        what, progress = self.what("stream", gateway), message.progress
        if not self._token or progress.phase == SUBSCRIBE_PHASE_RESET:
            self.copy.reset()
        for change in message.changes:
            if change.HasField("upsert"):
                self.copy.upsert(change.upsert.movie_id, change.upsert.rating_count, what)
            else:
                self.copy.delete(change.delete.movie_id, what)
        self._token = progress.resume_token
        self.copy.is_current = False
        if progress.phase == SUBSCRIBE_PHASE_CURRENT:
            self.stated = stated_by(progress.read_info)
            self.copy.current(self.stated, what)
        if message.changes or progress.phase == SUBSCRIBE_PHASE_RESET:
            at = dict(self.stated.positions) if self.copy.is_current and self.stated is not None else "some moment"
            self.world.record(
                f"{self.name}: copy from {gateway.name} is {dict(sorted(self.copy.rows.items()))} at {at}"
            )
