"""What the replicator's process and a worker's tell each other: a pair of sockets, kept by the parent through restarts.

The replicator rings the worker's bell after each commit; the worker may ask how far a topic of Kafka's is now. A line
that is full has rung: nothing waits for a worker.
"""

import asyncio
import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from tablegate.gateway.kafka.log import LogUnavailable
from tablegate.gateway.query.call import EndsUnknown, TopicEnds
from tablegate.gateway.query.notifier import Notifier
from typing_extensions import override

ANSWER_TIMEOUT_S = 6.0  # a little longer than Kafka is waited for
MESSAGE_BYTES_MAX = 64 * 1024  # some two thousand partitions
RETRY_S = 0.002  # of an answer, while the worker has not taken what it was told

_RING = b"!"

EndOffsets = Callable[[str], Mapping[int, int]]
"""From a topic to the end offset of each partition; raises `LogUnavailable`."""


class WorkerPipe(NamedTuple):
    """The file descriptors of a pair of sockets: the worker's end, and the replicator's."""

    worker_fd: int
    replicator_fd: int


def make_line() -> WorkerPipe:
    """Return a new line; children get its ends by `pass_fds`."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for end in ends:
        end.setblocking(False)
    return WorkerPipe(ends[0].detach(), ends[1].detach())


def close_line(line: WorkerPipe) -> None:
    """Close this process's ends."""
    for end in line:
        os.close(end)


class ReplicatorEnd:
    """The replicator's ends of the lines to all workers."""

    def __init__(self, fds: Sequence[int]) -> None:
        self._workers = [socket.socket(fileno=fd) for fd in fds]

    def ring(self) -> None:
        """Ring all bells."""
        for worker in self._workers:
            try:
                worker.send(_RING)
            except BlockingIOError:
                continue

    def answer(self, end_offsets: EndOffsets) -> None:
        """Answer what workers ask, in a thread of its own, for as long as the process lives."""
        threading.Thread(target=self._serve, args=(end_offsets,), name="lines", daemon=True).start()

    def _serve(self, end_offsets: EndOffsets) -> None:
        while True:
            for worker in select.select(self._workers, [], [])[0]:
                try:
                    asked = json.loads(worker.recv(MESSAGE_BYTES_MAX))
                except BlockingIOError:
                    continue
                try:
                    answer = {"id": asked["id"], "ends": end_offsets(asked["topic"])}
                except LogUnavailable as error:
                    answer = {"id": asked["id"], "problem": str(error)}
                _tell(worker, json.dumps(answer).encode())


def _tell(worker: socket.socket, data: bytes) -> None:
    until_s = time.monotonic() + ANSWER_TIMEOUT_S
    while time.monotonic() < until_s:
        try:
            worker.send(data)
        except BlockingIOError:
            time.sleep(RETRY_S)
        else:
            return


class WorkerEnd(TopicEnds):
    """A worker's end of its line, on the event loop that runs."""

    def __init__(self, fd: int, bell: Notifier) -> None:
        self._socket = socket.socket(fileno=fd)
        self._bell = bell
        # Another life of this worker may have asked: its answers are not ours.
        self._numbers = count(time.monotonic_ns())
        self._asked: dict[int, asyncio.Future[Mapping[int, int]]] = {}

    def listen(self) -> None:
        """Take what the replicator tells, from now on."""
        asyncio.get_running_loop().add_reader(self._socket, self._take)

    @override
    async def ends(self, topic: str) -> Mapping[int, int]:
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._socket.send(json.dumps({"id": number, "topic": topic}).encode())
            return await asyncio.wait_for(answer, ANSWER_TIMEOUT_S)
        except (BlockingIOError, TimeoutError):
            raise EndsUnknown("the replicator does not answer") from None
        finally:
            del self._asked[number]

    def _take(self) -> None:
        rings = False
        while True:
            try:
                data = self._socket.recv(MESSAGE_BYTES_MAX)
            except BlockingIOError:
                break
            if data == _RING:
                rings = True
            else:
                self._answered(json.loads(data))
        if rings:
            self._bell.ring()

    def _answered(self, message: Mapping[str, object]) -> None:
        number = message["id"]
        answer = self._asked.get(number) if isinstance(number, int) else None
        if answer is None or answer.done():
            return
        ends = message.get("ends")
        if isinstance(ends, dict):
            answer.set_result({int(partition): int(offset) for partition, offset in ends.items()})
        else:
            answer.set_exception(EndsUnknown(str(message["problem"])))
