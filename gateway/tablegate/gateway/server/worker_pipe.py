"""What the replicator's process and a worker's send each other: a pair of sockets, kept by the parent through restarts.

The replicator sends each worker what its commits have changed; a worker may ask how far a topic of Kafka's is now. The
sockets carry datagrams: a message comes whole, or not at all. Three rules let no change be missed, and nobody wait:
  * A pipe that is full refuses: what it refused is kept, joined with what comes after it, and sent at the next
    `publish`, which comes twice a second at least. It stays small: past a bound it says that everything has changed.
  * A replicator that starts says that everything may have changed: the one before may have died with news unsent.
  * A worker that starts reads the store as it is. What it finds in its pipe is of before, and does no harm.

Kafka is asked as rarely as can be: all who wait for the same topic when it is asked share the answer. Whoever comes
while it is asked shares the next one, as an end that was read before a call arrived is no answer to it. Whatever is in
a question, and whatever becomes of it, the thread that answers goes on.

Decision: docs/decisions/0028-latest-is-asked-by-the-replicator.md
"""

import asyncio
import json
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import NamedTuple

from typing_extensions import override

from tablegate.gateway.kafka.log import LogUnavailable
from tablegate.gateway.query.call import EndsUnknown, TopicEnds
from tablegate.gateway.stores.changes import StoreChanges
from tablegate.gateway.stores.notifier import Notifier

ANSWER_TIMEOUT_S = 6.0  # a little longer than Kafka is waited for
MESSAGE_BYTES_MAX = 64 * 1024  # notifications are shorter; end offsets come in several
ANSWER_PARTITIONS_MAX = 1_000  # whose end offsets are in one message, be they as long as they can
QUESTIONS_MAX = 1_000  # that are read before Kafka is asked
RETRY_S = 0.002  # of an answer, while the worker's pipe is full

_logger = logging.getLogger("tablegate.gateway.server")

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
            try:
                _answer_waiting(select.select(self._workers, [], [])[0], end_offsets)
            # Of this thread there is one: without it no worker would ever be answered again.
            except Exception:
                _logger.exception("questions of workers were not answered")


class _Question(NamedTuple):
    """What a worker wants to know, and the number of its question."""

    worker: socket.socket
    number: int
    topic: str


def _answer_waiting(workers: Sequence[socket.socket], end_offsets: EndOffsets) -> None:
    """Answer all that these workers have asked by now, with one question to Kafka for each topic."""
    asked: dict[str, list[_Question]] = {}
    for question in _questions(workers):
        asked.setdefault(question.topic, []).append(question)
    for topic, questions in asked.items():
        try:
            answers = _answers(end_offsets(topic))
        # Told to the workers, so that their reads wait no longer and say why.
        except LogUnavailable as error:
            answers = [{"problem": str(error)}]
        except Exception:
            _logger.exception("Kafka was not asked for the end of a topic", extra={"topic": topic})
            answers = [{"problem": "the replicator made a mistake; its log has the rest"}]
        for question in questions:
            for answer in answers:
                _send_answer(question.worker, json.dumps({"id": question.number, **answer}).encode())


def _questions(workers: Sequence[socket.socket]) -> Iterator[_Question]:
    """Yield what workers have asked; what is no question is passed over."""
    for worker in workers:
        for _ in range(QUESTIONS_MAX):
            try:
                data = worker.recv(MESSAGE_BYTES_MAX)
            except BlockingIOError:
                break
            # Of another version, or cut off: whoever asked it hears that nobody answers.
            with suppress(ValueError, KeyError, TypeError):
                request = json.loads(data)
                yield _Question(worker, int(request["id"]), str(request["topic"]))


def _answers(end_offsets: Mapping[int, int]) -> list[dict[str, object]]:
    """Return the answer in as many parts as it takes; all but the last say that there is more."""
    ends = list(end_offsets.items())
    starts = range(0, max(1, len(ends)), ANSWER_PARTITIONS_MAX)
    return [
        {"ends": dict(ends[start : start + ANSWER_PARTITIONS_MAX]), "more": start != starts[-1]} for start in starts
    ]


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
        self._asked: dict[int, _Asked] = {}
        self._current: dict[str, asyncio.Task[Mapping[int, int]]] = {}  # by topic: what was asked
        self._next: dict[str, asyncio.Task[Mapping[int, int]]] = {}  # what is asked then

    def listen(self) -> None:
        """Receive what the replicator sends, from now on."""
        asyncio.get_running_loop().add_reader(self._socket, self._receive)

    def close(self) -> None:
        """Receive nothing more."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()

    @override
    async def ends(self, topic: str) -> Mapping[int, int]:
        asking = self._next.get(topic)
        if asking is None:
            asking = self._next[topic] = asyncio.ensure_future(self._ask_after(self._current.get(topic), topic))
            asking.add_done_callback(_retrieve_exception)
        # Others may wait for it as well, when this call is cancelled.
        return await asyncio.shield(asking)

    async def _ask_after(self, before: "asyncio.Task[Mapping[int, int]] | None", topic: str) -> Mapping[int, int]:
        """Ask once the question before is answered: until then, whoever comes shares this one."""
        if before is not None:
            await asyncio.wait({before})
        asking = self._current[topic] = self._next.pop(topic)
        try:
            return await self._ask(topic)
        finally:
            if self._current.get(topic) is asking:
                del self._current[topic]

    async def _ask(self, topic: str) -> Mapping[int, int]:
        number = next(self._numbers)
        asked = self._asked[number] = _Asked({}, asyncio.get_running_loop().create_future())
        try:
            self._socket.send(json.dumps({"id": number, "topic": topic}).encode())
            return await asyncio.wait_for(asked.answer, ANSWER_TIMEOUT_S)
        except (OSError, TimeoutError):
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
        asked = self._asked.get(number) if isinstance(number, int) else None
        if asked is None or asked.answer.done():
            return
        ends = message.get("ends")
        if not isinstance(ends, dict):
            asked.answer.set_exception(EndsUnknown(str(message["problem"])))
            return
        asked.ends.update({int(partition): int(offset) for partition, offset in ends.items()})
        if not message.get("more"):
            asked.answer.set_result(asked.ends)


class _Asked(NamedTuple):
    """A question: the parts of its answer that have come, and the whole."""

    ends: dict[int, int]
    answer: "asyncio.Future[Mapping[int, int]]"


def _retrieve_exception(asking: "asyncio.Task[Mapping[int, int]]") -> None:
    """Retrieve why a question was not answered for which nobody waits any more, or asyncio complains."""
    if not asking.cancelled():
        asking.exception()
