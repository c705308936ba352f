"""What the status says of the streams of all workers, while somebody asks."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tablegate.gateway.contract.types import Offset, Partition, StoreId
from tablegate.gateway.query.subscribe.cursor import ChangePosition
from tablegate.gateway.query.subscribe.open_streams import OpenStream, OpenStreams, Sent
from tablegate.gateway.server.child import ProcessFile
from tablegate.gateway.server.metadata import STATUS_SERVICE, status_methods
from tablegate.gateway.server.metrics import process_metrics
from tablegate.gateway.server.subscriptions import STREAMS_MAX, Subscriptions
from tablegate.v1.status_pb2 import GetStatusRequest, GetStatusResponse
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import LocalCall, now_ms, rating, ratings_table


class _Stream(OpenStream):
    """A stream that was sent all before an offset."""

    def __init__(
        self, path: str, store_id: StoreId, offset: int, *, is_part: bool = False, behind_s: float | None = None
    ) -> None:
        self.path, self.is_part, self.opened_s = path, is_part, 0.0
        self._since_s = behind_s
        self._sent = Sent(store_id, {Partition(0): ChangePosition(Offset(offset))}, is_filling=False)

    def sent(self) -> Sent:
        return self._sent

    def behind_since_s(self) -> float | None:
        return None if self._since_s is None else time.monotonic() - self._since_s


class _Workers:
    """Two workers of a gateway over one store, with a partition of five records."""

    def __init__(self, directory: Path) -> None:
        self.store = MemoryStore()
        self.table = ratings_table(self.store, 1)
        self.table.put(map(rating, range(5)))
        self.streams = [OpenStreams(), OpenStreams()]
        self.files = [ProcessFile(directory / "processes", name=f"worker-{each}", parent=1) for each in range(2)]
        self.answers = [
            Subscriptions(streams, self.store, file, wait_s=20)
            for streams, file in zip(self.streams, self.files, strict=True)
        ]
        for worker in range(2):
            self.publish(worker)

    def open(self, worker: int, path: str, offset: int, *, is_part: bool = False) -> ExitStack:
        """Open a stream for as long as the context."""
        stack = ExitStack()
        stream = _Stream(path, self.table.store_id, offset, is_part=is_part)
        self.streams[worker].add(stream)
        stack.callback(self.streams[worker].discard, stream)
        return stack

    def publish(self, worker: int) -> None:
        """Write a worker's file, as it does each second."""
        self.files[worker].write({"streams": 1, **self.answers[worker].numbers()})

    def ask(self) -> GetStatusResponse:
        """Ask the first worker, while the second one goes on."""

        async def asked() -> GetStatusResponse:
            answer = asyncio.ensure_future(self.answers[0].status())
            await asyncio.sleep(0)
            self.publish(1)
            return await answer

        return asyncio.run(asked())


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[_Workers]:
    return _Workers(tmp_path)


def test_nothing_is_counted_until_somebody_asks(workers: _Workers) -> None:
    with workers.open(1, "/a.B/Subscribe", 5):
        assert workers.answers[1].numbers().keys() == {"streams_behind"}
        workers.ask()
        assert len(workers.answers[1].numbers()["subscriptions"]) == 1


def test_streams_of_all_workers_that_are_behind_are_counted(workers: _Workers) -> None:
    def gauges() -> tuple[float, float]:
        for worker in range(2):
            workers.publish(worker)
        metrics = {metric.name: metric for metric in process_metrics(workers.files[0].all())}
        names = ("tablegate_streams_behind", "tablegate_stream_behind_seconds")
        count, longest_s = (metrics[name].samples[0].value for name in names)
        return count, longest_s

    with ExitStack() as stack:
        assert gauges() == (0, 0)
        for worker, behind_s in ((0, None), (0, 0.0), (0, 70.0), (1, 50.0)):
            stream = _Stream("/a.B/Subscribe", workers.table.store_id, 5, behind_s=behind_s)
            workers.streams[worker].add(stream)
            stack.callback(workers.streams[worker].discard, stream)
        count, longest_s = gauges()
        assert count == 2
        assert longest_s == pytest.approx(70, abs=1)
    assert gauges() == (0, 0)


def test_streams_of_all_workers_are_answered_for(workers: _Workers) -> None:
    with (
        workers.open(0, "/a.B/Subscribe", 5),
        workers.open(1, "/a.B/Subscribe", 3, is_part=True),
        workers.open(1, "/a.B/Other", 4),
    ):
        other, both = workers.ask().subscriptions
    assert (other.method, other.streams, other.behind) == ("a.B/Other", 1, 1)
    assert (both.method, both.streams, both.gateway_streams, both.behind) == ("a.B/Subscribe", 2, 1, 1)
    [stream] = both.furthest
    assert (stream.lag_records, stream.for_gateway, stream.filling) == (2, True, False)
    assert stream.open_seconds > 0


def test_the_streams_that_waited_the_longest_are_named(workers: _Workers) -> None:
    with ExitStack() as stack:
        for worker in range(2):
            for offset in (*range(5), *range(5), *range(5), *range(5)):
                stack.enter_context(workers.open(worker, "/a.B/Subscribe", offset))
        [answer] = workers.ask().subscriptions
    assert (answer.streams, answer.behind, len(answer.furthest)) == (40, 40, STREAMS_MAX)
    assert [stream.lag_records for stream in answer.furthest[:8]] == [5] * 8


def test_a_worker_that_does_not_answer_keeps_nobody_waiting_for_ever(workers: _Workers, tmp_path: Path) -> None:
    hurried = Subscriptions(workers.streams[0], workers.store, workers.files[0], wait_s=0)
    with workers.open(0, "/a.B/Subscribe", 5), workers.open(1, "/a.B/Subscribe", 5):
        [answer] = asyncio.run(hurried.status()).subscriptions
    assert answer.streams == 1
    assert json.loads((tmp_path / "processes/worker-1.json").read_text())["streams"] == 1


def test_the_status_has_streams_for_who_asks_for_them(workers: _Workers) -> None:
    workers.store.set_status(GetStatusResponse(gateway_id="g", kafka_reachable=True).SerializeToString())
    alone = Subscriptions(workers.streams[0], workers.store, workers.files[0], now_ms=now_ms, wait_s=0)
    method = status_methods(workers.store, subscriptions=alone)[f"/{STATUS_SERVICE}/GetStatus"]
    with workers.open(0, "/a.B/Subscribe", 5):
        plain = method.handler(b"", LocalCall())  # type: ignore[union-attr]
        assert not GetStatusResponse.FromString(plain).subscriptions  # type: ignore[arg-type]
        asked = GetStatusRequest(with_subscriptions=True).SerializeToString()
        answer = GetStatusResponse.FromString(asyncio.run(method.handler(asked, LocalCall())))  # type: ignore[union-attr, arg-type]
    assert (answer.gateway_id, len(answer.subscriptions)) == ("g", 1)
