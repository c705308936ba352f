"""Bytes from sockets, through one buffer for all connections of the process.

For each read, asyncio's other way allocates 256 KiB and gives most of it back to the system, which costs 15 µs.
"""

import asyncio

from typing_extensions import override

BUFFER_BYTES = 256 * 1024  # read at once

_buffer = memoryview(bytearray(BUFFER_BYTES))


class Receiver(asyncio.BufferedProtocol):
    """A protocol that takes its bytes in by `data_received`. Only for event loops of one thread."""

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        return _buffer

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(_buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Take bytes in."""
        raise NotImplementedError
