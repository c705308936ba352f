"""What the replicator's process and a worker's send each other: a pair of sockets, kept by the parent through restarts.

The replicator sends each worker what its commits have changed; a worker may ask how far a topic of Kafka's is now. The
sockets carry datagrams: a message comes whole, or not at all. Three rules let no change be missed, and nobody wait:
  * A pipe that is full refuses: what it refused is kept, joined with what comes after it, and sent at the next
    `publish`, which comes twice a second at least. It stays small: past a bound it says that everything has changed.
  * A replicator that starts says that everything may have changed: the one before may have died with news unsent.
  * A worker that starts reads the store as it is. What it finds in its pipe is of before, and does no harm.

Decision: docs/decisions/0028-latest-is-asked-by-the-replicator.md
"""

import asyncio
import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import NamedTuple

from typing_extensions import override

from tablegate.gateway.kafka.log import LogUnavailable
from tablegate.gateway.query.call import EndsUnknown, TopicEnds
from tablegate.gateway.stores.changes import StoreChanges
from tablegate.gateway.stores.notifier import Notifier

ANSWER_TIMEOUT_S = 6.0  # a little longer than Kafka is waited for
MESSAGE_BYTES_MAX = 64 * 1024  # the end offsets of some two thousand partitions; notifications are shorter
RETRY_S = 0.002  # of an answer, while the worker's pipe is full

_CHANGES = b"C"  # begins a notification; whatever else comes is JSON

EndOffsets = Callable[[str], Mapping[int, int]]
"""From a topic to the end offset of each partition; raises `LogUnavailable`."""


class WorkerPipe(NamedTuple):
    """The file descriptors of a pair of sockets: the worker's end, and the replicator's."""

    worker_fd: int
    replicator_fd: int


def open_pipe() -> WorkerPipe:
    """Return a new pipe; children get its ends by `pass_fds`."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for end in ends:
        end.setblocking(False)
    return WorkerPipe(ends[0].detach(), ends[1].detach())


def close_pipe(pipe: WorkerPipe) -> None:
    """Close this process's ends."""
    for end in pipe:
        os.close(end)


class ReplicatorEnd:
    """The replicator's ends of the pipes to all workers."""

    def __init__(self, fds: Sequence[int]) -> None:
        self._workers = [socket.socket(fileno=fd) for fd in fds]
        self._unsent = [StoreChanges() for _ in fds]  # what each worker's pipe has refused

    def publish(self, changes: StoreChanges) -> None:
        """Send all workers what has changed, with what their pipes have refused before. It never waits."""
        data = changes.encode()
        for worker, unsent in zip(self._workers, self._unsent, strict=True):
            # What was refused goes first, joined with the news: the order of notifications means nothing.
            if unsent:
                unsent.update(changes)
                if _send(worker, unsent.encode()):
                    unsent.clear()
            elif changes and not _send(worker, data):
                unsent.update(changes)

    def close(self) -> None:
        """Close the ends, where nobody is answered."""
        for worker in self._workers:
            worker.close()

    def answer(self, end_offsets: EndOffsets) -> None:
        """Answer what workers ask, in a thread of its own, for as long as the process lives."""
        # Kafka may take seconds to answer, and the thread that follows the changelogs must not wait for it.
        threading.Thread(target=self._answer_all, args=(end_offsets,), name="pipes", daemon=True).start()

    def _answer_all(self, end_offsets: EndOffsets) -> None:
        while True:
            for worker in select.select(self._workers, [], [])[0]:
                try:
                    request = json.loads(worker.recv(MESSAGE_BYTES_MAX))
                except BlockingIOError:
                    continue
                try:
                    answer = {"id": request["id"], "ends": end_offsets(request["topic"])}
                # Told to the worker, so that its read waits no longer and says why.
                except LogUnavailable as error:
                    answer = {"id": request["id"], "problem": str(error)}
                data = json.dumps(answer).encode()
                if len(data) > MESSAGE_BYTES_MAX:
                    problem = f"its {len(answer['ends'])} partitions are too many for an answer"
                    data = json.dumps({"id": request["id"], "problem": problem}).encode()
                _send_answer(worker, data)


def _send(worker: socket.socket, changes: bytes) -> bool:
    """Send a notification; return False where the pipe is full."""
    try:
        worker.send(_CHANGES + changes)
    except BlockingIOError:
        return False
    return True


def _send_answer(worker: socket.socket, data: bytes) -> None:
    """Send an answer, for as long as the worker waits for it."""
    until_s = time.monotonic() + ANSWER_TIMEOUT_S
    while time.monotonic() < until_s:
        try:
            worker.send(data)
        except BlockingIOError:
            time.sleep(RETRY_S)
        else:
            return


class WorkerEnd(TopicEnds):
    """A worker's end of its pipe, on the event loop that runs."""

    def __init__(self, fd: int, notifier: Notifier) -> None:
        self._socket = socket.socket(fileno=fd)
        self._notifier = notifier
        # The process before this one may have asked: its answers are not ours.
        self._numbers = count(time.monotonic_ns())
        self._asked: dict[int, asyncio.Future[Mapping[int, int]]] = {}

    def listen(self) -> None:
        """Receive what the replicator sends, from now on."""
        asyncio.get_running_loop().add_reader(self._socket, self._receive)

    def close(self) -> None:
        """Receive nothing more."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()

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

    def _receive(self) -> None:
        """Receive all messages that are there; pass on at once what all notifications among them say."""
        changes = StoreChanges()
        # A worker that was busy finds many: they cost one publication, as what they name is joined.
        while True:
            try:
                data = self._socket.recv(MESSAGE_BYTES_MAX)
            except BlockingIOError:
                break
            if data.startswith(_CHANGES):
                changes.update(StoreChanges.decode(data[len(_CHANGES) :]))
            else:
                # Whoever waits for an answer that is damaged waits on; what else has come is passed on.
                with suppress(ValueError, KeyError, TypeError):
                    self._receive_answer(json.loads(data))
        if changes:
            self._notifier.notify(changes)

    def _receive_answer(self, message: Mapping[str, object]) -> None:
        number = message["id"]
        answer = self._asked.get(number) if isinstance(number, int) else None
        if answer is None or answer.done():
            return
        ends = message.get("ends")
        if isinstance(ends, dict):
            answer.set_result({int(partition): int(offset) for partition, offset in ends.items()})
        else:
            answer.set_exception(EndsUnknown(str(message["problem"])))
