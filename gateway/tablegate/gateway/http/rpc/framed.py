"""Calls whose protocol puts the end of an answer into its body: gRPC-Web, Connect streams, REST streams."""

import asyncio
from abc import abstractmethod

from tablegate.gateway.http.exchange import Exchange, Head
from tablegate.gateway.http.rpc.calls import Calls, ServedCall
from typing_extensions import override


class FramedCall(ServedCall):
    """A call whose answer ends with a frame of its own, in the body."""

    __slots__ = ("_begun", "_head")

    def __init__(self, calls: Calls, exchange: Exchange, head: Head) -> None:
        super().__init__(calls, exchange)
        self._head = head
        self._begun = False

    @abstractmethod
    def framed(self, message: bytes) -> bytes:
        """Return the frame of a message."""

    @override
    async def send(self, message: bytes) -> None:
        self._begin()
        await self.exchange.send(self.framed(message))

    @override
    def offer(self, message: bytes) -> bool:
        return self._begun and self.exchange.offer(self.framed(message))

    def end_with(self, frames: bytes) -> None:
        """Send the last frames, and end the answer."""
        if not self._begun:
            self.exchange.respond(self._head, frames)
            return
        # A client that does not read makes the last frame wait, too; whoever ended the call does not.
        self.exchange.on_gone = asyncio.ensure_future(self._finish(frames)).cancel

    async def _finish(self, frames: bytes) -> None:
        await self.exchange.send(frames)
        self.exchange.end()

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self.exchange.begin(self._head)
