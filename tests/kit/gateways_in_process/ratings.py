"""The ratings table behind a server in this process: it is changed, stopped and started again, with planted faults."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

from tablegate.gateway.access.gate import Gate
from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.http.server import HttpServer, web_protocols
from tablegate.gateway.query.call import Call, Methods, Parked, ParkedStream, StreamMethod, UnaryMethod
from tablegate.gateway.query.errors import QueryError
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.server.metadata import reflection_methods
from tablegate.gateway.stores.notifier import Notifier
from tablegate.v1.query_pb2 import SUBSCRIBE_PHASE_RESET
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, catalogue_of, rating, ratings_table

SERVICE = "/examples.ratings.v1.RatingsService"
SUBSCRIBE = f"{SERVICE}/SubscribeRatings"
GET = f"{SERVICE}/GetRating"
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Fault:
    """What befalls a call after so many messages: an error, or silence."""

    after: int
    error: QueryError | None = None


class _SeenStream(ParkedStream):
    """A stream whose messages its server looks at, also where it goes on after it was parked."""

    def __init__(
        self,
        server: "RatingsServer",
        begin: Callable[[], AsyncIterator[bytes]],
        response_class: Any,
        fault: Fault | None,
    ) -> None:
        self._server = server
        self._begin = begin
        self._response_class = response_class
        self._fault = fault
        self._left = fault.after if fault is not None else None
        self._parked: ParkedStream | None = None
        server.open_streams += 1

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield what the stream yields, until its fault befalls it."""
        is_parked = False
        try:
            async for message in self._begin() if self._parked is None else self._parked.messages():
                if self._left == 0:
                    await self._server.befall(self._fault)
                phase = self._response_class.FromString(message).progress.phase
                self._server.resets += phase == SUBSCRIBE_PHASE_RESET
                yield message
                self._left = None if self._left is None else self._left - 1
        except Parked as parked:
            self._parked, is_parked = parked.stream, True
            raise Parked(self) from None
        finally:
            if not is_parked:
                self._server.open_streams -= 1

    def wait(self, wake: Callable[[], None]) -> None:
        """Wait without a task."""
        assert self._parked is not None
        self._parked.wait(wake)

    def leave(self) -> None:
        """End it while it is parked."""
        assert self._parked is not None
        self._server.open_streams -= 1
        self._parked.leave()


class RatingsServer:
    """`counts` is what the table holds: movie → count. `faults` befall one call each, in turn.

    `streams`: how many came; `open_streams`: how many there are; `resets`: how often one was given a snapshot. `left_s`
    are the seconds that each Get had left when it came. `signer` makes the tokens of the next start. Pages of `origins`
    may ask it; `gate` makes what decides who may call.
    """

    def __init__(
        self,
        history_changes_max: int = 100_000,
        *,
        origins: tuple[str, ...] = (),
        gate: Callable[[Catalogue], Gate] | None = None,
    ) -> None:
        self.open_streams = 0
        self.resets = 0
        self.signer = SIGNER
        self.gate: Gate | None = None
        self._origins = origins
        self._make_gate = gate
        self.counts: dict[int, int] = {}
        self.faults: deque[Fault] = deque()
        self.streams = 0
        self.left_s: list[float | None] = []
        self.port = 0
        self._store = MemoryStore(history_changes_max=history_changes_max)
        self._table = ratings_table(self._store)
        self._version = 0
        self._served: ServerThread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._served is not None:
            self.stop()

    @property
    def address(self) -> str:
        """Return where it listens, or did."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen: on the port of before, if there was one."""
        self._served = ServerThread(self._made)
        self._served.__enter__()
        self.port = self._served.port

    def stop(self) -> None:
        """End all streams, and listen no more."""
        assert self._served is not None
        self._served.__exit__()
        self._served = None

    def put(self, movie_ids: Iterable[int]) -> None:
        """Count each of these movies once more."""

        self._do(lambda: self._count(movie_ids))

    def delete(self, movie_ids: Iterable[int]) -> None:
        """Delete the rows of these movies."""

        def write() -> None:
            for movie_id in movie_ids:
                self.counts.pop(movie_id, None)
                self._table.delete([rating(movie_id)])

        self._do(write)

    def rebuild(self, movie_ids: Iterable[int]) -> None:
        """Begin another generation, of these movies."""

        def write() -> None:
            self._table.generation += 1
            self._table.publish()
            self.counts.clear()
            self._count(movie_ids)

        self._do(write)

    def read_source(self, topic: str, next_offset: int) -> None:
        """Have read a topic of sources up to there."""

        def write() -> None:
            for partition in self._table.next_offsets:
                self._table.move(partition, source_offsets={(topic, 0): next_offset})

        self._do(write)

    def check_rights(self) -> None:
        """Read again who may call, and end the streams of those who may not."""

        async def check() -> None:
            assert self.gate is not None
            self.gate.refresh()
            self._server.check_streams()

        self._run(check())

    def _count(self, movie_ids: Iterable[int]) -> None:
        for movie_id in movie_ids:
            self._version += 1
            self.counts[movie_id] = self._version
            self._table.put([rating(movie_id, count=self._version)])

    def _do(self, write: Callable[[], None]) -> None:
        """Write in the thread of the event loop, as whoever reads there expects."""
        if self._served is None:
            write()
            return

        async def announce() -> None:
            write()
            self._bell.notify()

        self._run(announce())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _made(self) -> HttpServer:
        self._loop, self._bell = asyncio.get_running_loop(), Notifier()
        catalogue = catalogue_of()
        methods = {**query_methods(catalogue, self._store, self.signer, self._bell), **reflection_methods(catalogue)}
        self.gate = self._make_gate(catalogue) if self._make_gate is not None else None
        web = web_protocols(catalogue, cors_origins=self._origins)
        self._server = HttpServer(
            {**methods, **self._faulty(methods)}, f"127.0.0.1:{self.port}", web=web, gate=self.gate
        )
        return self._server

    def _faulty(self, methods: Methods) -> Methods:
        subscribe, get = methods[SUBSCRIBE], methods[GET]
        response_class: Any = catalogue_of().queries[SUBSCRIBE].response_class
        assert isinstance(subscribe, StreamMethod)
        assert isinstance(get, UnaryMethod)

        async def stream(data: bytes, call: Call) -> AsyncIterator[bytes]:
            self.streams += 1
            fault = self.faults.popleft() if self.faults else None
            seen = _SeenStream(self, partial(subscribe.handler, data, call), response_class, fault)
            async for message in seen.messages():
                yield message

        def answer(data: bytes, call: Call) -> Any:
            self.left_s.append(call.time_left_s())
            if self.faults:
                error = self.faults.popleft().error
                assert error is not None
                raise error
            return get.handler(data, call)

        unary = UnaryMethod(answer, get.default_timeout_s, get.max_timeout_s)
        return {SUBSCRIBE: StreamMethod(stream), GET: unary}

    async def befall(self, fault: Fault | None) -> None:
        assert fault is not None
        if fault.error is not None:
            raise fault.error
        await asyncio.sleep(3_600)
