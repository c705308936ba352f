"""A network between two processes that a test takes apart: TCP connections go through a link, which may fail."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self

from tablegate.examples.demo.kafka import HOST, free_port

CHUNK_BYTES = 2**16


class Link:
    """Listens at `address`, and passes on to `target` what comes, while the block runs. Any thread.

    `cuts` counts connections that were reset or refused, `delayed_bytes` what had to wait.
    """

    def __init__(self, target: str = "") -> None:
        self.target = target
        self.address = f"{HOST}:{free_port()}"
        self.cuts = 0
        self.delayed_bytes = 0
        self._is_cut = False
        self._delay_s = 0.0
        self._open: set[asyncio.Transport] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="Link")

    def __enter__(self) -> Self:
        self._thread.start()
        self._may_go_there = self._call(self._new_gate)
        self._may_come_back = self._call(self._new_gate)
        host, _, port = self.address.rpartition(":")
        self._server = self._run(asyncio.start_server(self._accept, host, int(port)))
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """Reset all connections, and each that is begun."""
        self._call(self._cut)

    def stall(self, *, there: bool = True, back: bool = True) -> None:
        """Let bytes stand still, from whoever connects to the target (`there`) or from there (`back`)."""
        for gate, is_stalled in ((self._may_go_there, there), (self._may_come_back, back)):
            if is_stalled:
                self._call(gate.clear)

    def slow(self, delay_s: float) -> None:
        """Let whatever comes wait for so long before it goes on."""
        self._delay_s = delay_s

    def mend(self) -> None:
        """Let all pass as before; what stood still goes on."""
        self._is_cut, self._delay_s = False, 0.0
        self._call(self._may_go_there.set)
        self._call(self._may_come_back.set)

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def _call(self, function: Callable[[], Any]) -> Any:
        async def call() -> Any:
            return function()

        return self._run(call())

    def _new_gate(self) -> asyncio.Event:
        gate = asyncio.Event()
        gate.set()
        return gate

    def _cut(self) -> None:
        self._is_cut = True
        self.cuts += len(self._open)
        for transport in self._open:
            transport.abort()

    async def _close(self) -> None:
        self._server.close()
        for transport in self._open:
            transport.abort()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            self.cuts += 1
            writer.transport.abort()
            return
        host, _, port = self.target.rpartition(":")
        try:
            target_reader, target_writer = await asyncio.open_connection(host, int(port))
        except OSError:  # the target is down: so is whoever reaches it here
            writer.transport.abort()
            return
        transports = {writer.transport, target_writer.transport}
        self._open |= transports
        ways = (
            asyncio.ensure_future(self._pass(reader, target_writer, self._may_go_there)),
            asyncio.ensure_future(self._pass(target_reader, writer, self._may_come_back)),
        )
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for transport in transports:
                transport.abort()
            self._open -= transports

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        """Pass on what comes, until either end closes."""
        try:
            while data := await reader.read(CHUNK_BYTES):
                if self._delay_s or not gate.is_set():
                    self.delayed_bytes += len(data)
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                await gate.wait()
                writer.write(data)
                await writer.drain()
        except OSError:  # as either end may close at any time
            return
