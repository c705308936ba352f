"""The ratings table behind a door of this process, while it changes, and while door and connections come and go."""

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from typing import Any, Self, TypeVar

from gateway.door.door import Door
from gateway.query.plans import query_methods
from gateway.stores.memory import MemoryStore
from gateway.subscription.bell import Bell
from tests.support.tables import SIGNER, catalogue_of, rating, ratings_table

WORK_TIMEOUT_S = 30
PIECE_BYTES = 64 * 1024

Result = TypeVar("Result")


class LiveRatings:
    """100 movies at first. `counts`: what a client's copy must become, movie → number of ratings.

    Clients reach the door through a relay at `address`, which stays the same: so a connection can be cut under them.
    """

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self._store = MemoryStore()
        self._table = ratings_table(self._store)
        self._relay = Relay()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.open()
        self.put(range(1, 101))
        return self

    def __exit__(self, *_: object) -> None:
        self.drain()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def address(self) -> str:
        """Where clients connect to."""
        return f"127.0.0.1:{self._relay.port}"

    def open(self) -> None:
        """Open a door, as a gateway that starts does."""
        self._work(self._open())

    def drain(self) -> None:
        """Close the door, as a gateway that is told to end does; then nothing listens."""
        self._work(self._drain())

    def cut(self) -> None:
        """Break off all connections without a word; new ones are taken."""
        self._work(self._relay.cut())

    def put(self, movie_ids: Iterable[int]) -> None:
        """Give each movie one rating more."""
        self._work(self._put(movie_ids))

    def delete(self, movie_id: int) -> None:
        """Remove a movie."""
        self._work(self._delete(movie_id))

    def _work(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WORK_TIMEOUT_S)

    async def _open(self) -> None:
        self._bell = Bell()
        self._door = Door(query_methods(catalogue_of(), self._store, SIGNER, self._bell), "127.0.0.1:0")
        await self._door.start()
        await self._relay.start(self._door.port)

    async def _drain(self) -> None:
        self._relay.refuse()
        self._door.drain()
        self._bell.toll()
        await self._door.stop(5)
        await self._relay.end()

    async def _put(self, movie_ids: Iterable[int]) -> None:
        for movie_id in movie_ids:
            self.counts[movie_id] = self.counts.get(movie_id, 0) + 1
            self._table.put([rating(movie_id, count=self.counts[movie_id])])
        self._bell.ring()

    async def _delete(self, movie_id: int) -> None:
        del self.counts[movie_id]
        self._table.delete([rating(movie_id)])
        self._bell.ring()


class Relay:
    """Carries bytes between clients and a port of this machine. One event loop."""

    def __init__(self) -> None:
        self.port = 0
        self._carrying: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, to_port: int) -> None:
        """Take connections, on the port of the last time where there was one."""

        def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._carry(reader, writer, to_port))
            self._carrying.add(task)
            task.add_done_callback(self._carrying.discard)

        self._server = await asyncio.start_server(serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Take no more connections."""
        self._server.close()

    async def end(self) -> None:
        """Wait until the connections have ended."""
        await asyncio.gather(*self._carrying)

    async def cut(self) -> None:
        """Break off the connections."""
        for writer in self._writers:
            writer.transport.abort()
        await self.end()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to_port: int) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", to_port)
        both = {writer, far_writer}
        self._writers |= both
        try:
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        finally:
            self._writers -= both


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until either side ends, then end the other."""
    try:
        while data := await reader.read(PIECE_BYTES):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass  # it was cut
    finally:
        writer.close()
