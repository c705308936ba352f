"""Which of the project's files a Get passes, from the socket to the store and back: `python -m tests.bench.paths`.

Two gateways serve LMDB stores over real sockets in this process. A Get is asked a few times, so that everything kept is
there, and then a few times more while the calls of the event loop's thread are recorded. Of these the one with the
fewest calls counts: the others may have been asked along with something that is no Get, such as a PING of the client,
or in two turns of a busy machine. The client is in another thread, and not counted. What counts is how many files a
reader has to open to follow one call; how long it takes is not measured.
"""

import asyncio
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import grpc

from tablegate.gateway.cluster.directory import Directory
from tablegate.gateway.cluster.forward_token import ForwardTokenSigner
from tablegate.gateway.cluster.peers import GrpcForwarder
from tablegate.gateway.cluster.scatter import Router
from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.query.serving import wall_clock_ms
from tablegate.gateway.stores.base import Phase
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tablegate.gateway.stores.notifier import Notifier
from tablegate.v1.status_pb2 import GetStatusResponse
from tests.kit.table.filled import ROOT, SIGNER, FilledTable, catalogue_of, rating

GET = "/examples.ratings.v1.RatingsService/GetRating"
PROJECT = ROOT / "gateway/tablegate/gateway"
WARM_CALLS = 5
RECORDED_CALLS = 100  # on a busy machine most are slow, and meet timers of their connections
PARTITIONS = 4
LOCAL_MAX, FORWARDED_MAX = 13, 20
"""How many files each may pass."""


class _Gateway:
    """A gateway of two, which holds some partitions of the ratings."""

    def __init__(self, gateway_id: str, directory: Path, held: range) -> None:
        self.gateway_id = gateway_id
        self.held = held
        self._store = LmdbStore(directory)
        self._table = FilledTable(self._store, catalogue_of().tables["ratings"], PARTITIONS)
        self._table.publish(phase=Phase.RESTORING)
        for partition in self._table.next_offsets:
            if partition in held:
                self._table.move(partition)
        rows = [rating(number) for number in range(100)]
        self._table.put(row for row in rows if self._table.partition_of(row) in held)
        self.movie_id = next(row.movie_id for row in rows if self._table.partition_of(row) in held)

    async def start(self) -> None:
        """Listen."""
        forwarder = GrpcForwarder(ForwardTokenSigner(SIGNER, wall_clock_ms).sign)
        self._router = Router(Directory(), forwarder)
        methods = query_methods(catalogue_of(), self._store, SIGNER, Notifier(), router=self._router)
        self._server = HttpServer(methods, "127.0.0.1:0")
        await self._server.start()
        self.port = self._server.port

    def announce(self, gateways: "list[_Gateway]") -> None:
        """Let it know of the gateways, as its replicator would."""
        status = GetStatusResponse(gateway_id=self.gateway_id)
        for gateway in gateways:
            record = status.gateways.add(alive=True).record
            record.gateway_id, record.endpoint = gateway.gateway_id, f"127.0.0.1:{gateway.port}"
            serving = record.tables.add(table="ratings").serving
            serving.generation = 1
            serving.partitions.extend(gateway.held)
            serving.phases.extend([int(Phase.LIVE)] * len(gateway.held))  # type: ignore[list-item]
            serving.next_offsets.extend([0] * len(gateway.held))
        self._store.set_status(status.SerializeToString())
        with self._store.snapshot() as snapshot:
            self._router.refresh(snapshot, ["ratings"])

    async def stop(self) -> None:
        """End."""
        await self._server.stop(0)
        await self._router.forwarder.close()
        self._store.close()


class _Recorder:
    """Counts calls by file in the thread that starts it, of one Get after the other."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._gets: list[Counter[str]] = []

    @property
    def calls(self) -> Mapping[str, int]:
        """Those of the Get that passed the fewest files: on a busy machine bytes of others come between."""
        return min(self._gets, key=lambda calls: (len(calls), calls.total()))

    def start(self) -> None:
        self._calls = Counter()
        sys.setprofile(self._called)

    def stop(self) -> None:
        sys.setprofile(None)
        self._gets.append(self._calls)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            name = frame.f_code.co_filename
            if name.startswith(str(PROJECT)):
                self._calls[str(Path(name).relative_to(PROJECT))] += 1


def _ask(port: int, movie_id: int, on_asking: Callable[[], None], on_answered: Callable[[], None]) -> None:
    request: Any = catalogue_of().queries[GET].request_class(movie_id=movie_id)
    with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        method: Any = channel.unary_unary(GET, None, None)
        for _ in range(WARM_CALLS):
            method(request.SerializeToString(), timeout=10)
        for _ in range(RECORDED_CALLS):
            on_asking()
            method(request.SerializeToString(), timeout=10)
            on_answered()


async def _recorded(port: int, movie_id: int) -> Mapping[str, int]:
    """Return how often each file is called for one warm Get."""
    loop, recorder = asyncio.get_running_loop(), _Recorder()

    def in_loop(work: Callable[[], None]) -> Callable[[], None]:
        async def run() -> None:
            work()

        return lambda: asyncio.run_coroutine_threadsafe(run(), loop).result()

    asking = threading.Thread(target=_ask, args=(port, movie_id, in_loop(recorder.start), in_loop(recorder.stop)))
    asking.start()
    while asking.is_alive():
        await asyncio.sleep(0.01)
    asking.join()
    return recorder.calls


async def measure() -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Return the calls by file of a local Get, and of one that is forwarded."""
    with tempfile.TemporaryDirectory() as directory:
        ours = _Gateway("a", Path(directory) / "a", range(2))
        others = _Gateway("b", Path(directory) / "b", range(2, PARTITIONS))
        gateways = [ours, others]
        for gateway in gateways:
            await gateway.start()
        for gateway in gateways:
            gateway.announce(gateways)
        try:
            return await _recorded(ours.port, ours.movie_id), await _recorded(ours.port, others.movie_id)
        finally:
            for gateway in gateways:
                await gateway.stop()


def main() -> None:
    """Print both paths."""
    local, forwarded = asyncio.run(measure())
    for name, calls, most in (("a Get", local, LOCAL_MAX), ("a forwarded Get", forwarded, FORWARDED_MAX)):
        print(f"{name}: {len(calls)} files (at most {most}), {sum(calls.values())} calls")
        for file, count in sorted(calls.items()):
            print(f"  {file} ({count})")


if __name__ == "__main__":
    main()
