"""The ratings table behind a server of this process, while it changes, and while server and connections come and go."""

import asyncio
from typing import Any, Self

from typing_extensions import override

from tablegate.gateway.http.h2_connection import Http2Connection
from tests.kit.gateways_in_process.ratings import RatingsServer

DRAIN_S = 5
CONNECT_S = 0.05  # until one that is being made is there, and is broken off as well
PIECE_BYTES = 64 * 1024


class LiveRatings(RatingsServer):
    """100 movies at first. Clients reach the server through a relay: so a connection can be cut under them."""

    def __init__(self, history_changes_max: int = 100_000, **settings: Any) -> None:
        super().__init__(history_changes_max, **settings)
        self._relay = Relay()

    def __enter__(self) -> Self:
        super().__enter__()
        self.put(range(1, 101))
        return self

    @property
    @override
    def address(self) -> str:
        return f"127.0.0.1:{self._relay.port}"

    @override
    def start(self) -> None:
        super().start()
        self._run(self._relay.start(self.port))

    @override
    def stop(self) -> None:
        self._run(self._drain())
        super().stop()

    def cut(self) -> None:
        """Break off all connections without a word; new ones are taken."""
        self._run(self._relay.cut())

    def reset_streams(self) -> None:
        """Break off all answers as proxies do: by INTERNAL_ERROR, over HTTP/1.1 by the end of the connection."""

        async def reset() -> None:
            for connection in tuple(self._server._listener._connections):
                if isinstance(connection, Http2Connection):
                    for exchange in tuple(connection.h2.streams.values()):
                        connection.abort(exchange)
                else:
                    connection.close()

        self._run(reset())

    def die(self) -> None:
        """End as a gateway that is killed: nobody hears of it."""
        self._relay.refuse()
        self.cut()
        super().stop()

    def stall(self) -> None:
        """Let no byte through, either way, until it goes on."""
        self._run(self._relay.stall())

    def go_on(self) -> None:
        """Let bytes through again."""
        self._run(self._relay.go_on())

    async def _drain(self) -> None:
        """End streams as a gateway does that is told to end: each hears of it."""
        self._relay.refuse()
        self._server.drain()
        self._bell.shutdown()
        await self._server.stop(DRAIN_S)
        await self._relay.end()


class Relay:
    """Carries bytes between clients and a port of this machine. One event loop."""

    def __init__(self) -> None:
        self.port = 0
        self._carrying: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, to_port: int) -> None:
        """Take connections, on the port of the last time where there was one."""
        self._flows = asyncio.Event()
        self._flows.set()

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
        """Break off the connections, also those that are being made."""
        while self._carrying:
            for writer in self._writers:
                writer.transport.abort()
            await asyncio.wait(self._carrying, timeout=CONNECT_S)

    async def stall(self) -> None:
        """Hold back what comes from now on."""
        self._flows.clear()

    async def go_on(self) -> None:
        """Send what was held back, and what comes."""
        self._flows.set()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to_port: int) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", to_port)
        except OSError:  # the server is gone
            writer.transport.abort()
            return
        both = {writer, far_writer}
        self._writers |= both
        try:
            await asyncio.gather(self._copy(reader, far_writer), self._copy(far_reader, writer))
        finally:
            self._writers -= both

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy until either side ends, then end the other."""
        try:
            while data := await reader.read(PIECE_BYTES):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass  # it was cut
        finally:
            writer.close()
