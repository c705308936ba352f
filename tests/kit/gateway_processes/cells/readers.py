"""Clients of the cells, each a thread that reads in one way, and writes what it saw into the history of its run.

Nothing is judged here but what a run needs to go on: a failure is a call that failed though it was tried again as the
client package does it.
"""

import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import grpc

import tablegate.client
from tablegate.client.channels import Options
from tablegate.client.failures import failure_of
from tests.kit.gateway_processes.cells.changelog import CONTRACT, SERVICE, Cells, by_partition, number_of
from tests.kit.gateway_processes.cluster import Cluster
from tests.kit.gateway_processes.gateway import soon
from tests.kit.histories.client import HistoryClient
from tests.kit.histories.history import History
from tests.kit.table.filled import catalogue_of

OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
EACH_IN_TURN = (("grpc.lb_policy_name", "round_robin"),)  # another gateway with each call, not one as long as it can
NO_RETRIES = (("grpc.enable_retries", 0),)
BATCHES, BATCH_KEYS = 10, 20
TABLE_REBUILT = "TABLE_REBUILT"
NOT_CAUGHT_UP = "NOT_CAUGHT_UP"
PAGE_ROWS = 7
TABLE_PAGE_ROWS = 250
SCAN_AGAIN_S = 0.1
SCAN_STREAMS_MAX = 30  # of one scan
STALENESS_MS = (500, 2_000)
ALL = (0, 2**40)
"""The range of all keys."""


class Failure(NamedTuple):
    """A call that failed, between two moments of the monotonic clock."""

    what: str
    begin_s: float
    end_s: float
    code: str
    reason: str
    text: str


class Reader(HistoryClient):
    """A client. `reads` counts answers, `owned` those that a partition's owner gave; `breaks` are broken streams.

    `rebuilt` counts the tokens that were given up as they are of a generation before, `refused` the answers that would
    not have been as fresh as they were to be.

    Between two reads it waits `pause_s`. `options` are those of its channel, beside the client package's.
    """

    def __init__(
        self,
        history: History,
        cells: Cells,
        target: str,
        *,
        pause_s: float,
        seed: int = 0,
        options: Options = (),
    ) -> None:
        super().__init__(history)
        self.failures: list[Failure] = []
        self.breaks: list[Failure] = []
        self.reads = self.rebuilt = self.refused = 0
        self.owned: Counter[str] = Counter()  # by gateway
        self._cells = cells
        self._pause_s = pause_s
        self._choice = random.Random(seed)
        self._channel = tablegate.client.open_channel(target, options=(*OWN_CONNECTION, *options))

    def close(self) -> None:
        """Close its connection."""
        self._channel.close()

    def read(self) -> None:
        """Read once."""
        raise NotImplementedError

    def work(self) -> None:
        while not self._stopping.wait(self._pause_s):
            self.read()

    def _ask(self, op: str, method: str, request: Any, **asked: Any) -> tuple[Any, Mapping[str, Any]]:
        """Return the answer, and who gave it; None where it failed."""
        self._history.invoke(self._process, op, **asked)
        begin_s = time.monotonic()
        try:
            answer, call = stub_of(self._channel, method).with_call(request)
        except grpc.RpcError as error:
            self._fail(op, _failure(method, begin_s, error))
            return None, {}
        self.reads += 1
        trailer = dict(call.trailing_metadata())
        by = str(trailer.get("tablegate-gateway", ""))
        is_owner = trailer.get("tablegate-role") == "owner"
        if is_owner:
            self.owned[by] += 1
        return answer, {"by": by, "owner": is_owner}

    def _fail(self, op: str, failed: Failure) -> None:
        is_over = failed.code != "DEADLINE_EXCEEDED"
        (self._history.fail if is_over else self._history.info)(
            self._process, op, code=failed.code, reason=failed.reason
        )
        if failed.code == "NOT_FOUND":
            self.reads += 1
        elif failed.reason == TABLE_REBUILT:
            self.rebuilt += 1
            self._tokens.clear()
        elif self._asks_for_more and (not is_over or failed.reason == NOT_CAUGHT_UP):
            self.refused += 1  # the client tries again, to its deadline
        else:
            self.failures.append(failed)

    _asks_for_more = False
    """Whether it asks for answers that a gateway may have to refuse."""

    def _ok_cells(self, op: str, cells: Iterable[Any], info: Any, **more: Any) -> None:
        self._ok(op, [(number_of((cell.shelf, cell.number)), cell.revision) for cell in cells], info, **more)


class Gets(Reader):
    """Gets of one cell: any, and more often one that was asked for before. Each cell is a session."""

    def read(self) -> None:
        cells = self._cells
        shelf, number = self._choice.choice(
            self._choice.choice((cells.hot, cells.hot, cells.hot, cells.cold, cells.cold, cells.passing))
        )
        request = request_of("GetCell", shelf=shelf, number=number)
        session = f"{shelf}/{number}"
        more = self._in_session(session, request)
        answer, by = self._ask("get", "GetCell", request, keys=[number_of((shelf, number))], **more)
        if answer is not None:
            self._ok_cells("get", [answer.cell], answer.read_info, **by)
            self._keep(session, answer.read_info)


class FreshGets(Reader):
    """Gets of one cell that is to have an age, be the latest, or have what was written. They may be refused."""

    _asks_for_more = True

    def read(self) -> None:
        key = self._choice.choice(self._choice.choice((self._cells.hot, self._cells.cold)))
        request = request_of("GetCell", shelf=key[0], number=key[1])
        request.read_options.max_wait.FromMilliseconds(1_000)
        asked: dict[str, Any]
        match self._choice.randrange(3):
            case 0:
                asked = {"staleness_ms": self._choice.choice(STALENESS_MS)}
                request.read_options.max_staleness.FromMilliseconds(asked["staleness_ms"])
            case 1:
                asked = {"latest": True}
                request.read_options.latest = True
            case _:
                asked = {"own": self._cells.acknowledged(key)}
                request.read_options.at_least_source.topics.add(topic="cells").offsets[0] = asked["own"] - 1
        answer, by = self._ask("get", "GetCell", request, keys=[number_of(key)], **asked)
        if answer is not None:
            self._ok_cells("get", [answer.cell], answer.read_info, **by)


class BatchGets(Reader):
    """Gets of several cells, of several partitions. Each batch is a session."""

    def __init__(self, history: History, cells: Cells, target: str, *, pause_s: float, seed: int = 0) -> None:
        super().__init__(history, cells, target, pause_s=pause_s, seed=seed)
        half = BATCH_KEYS // 2
        self._batches = [
            [*self._choice.sample(cells.hot, half), *self._choice.sample(cells.cold, half)] for _ in range(BATCHES)
        ]

    def read(self) -> None:
        place = self._choice.randrange(len(self._batches))
        keys = self._batches[place]
        request = request_of("BatchGetCells", keys=[{"shelf": shelf, "number": number} for shelf, number in keys])
        more = self._in_session(str(place), request)
        answer, by = self._ask("batch", "BatchGetCells", request, keys=[number_of(key) for key in keys], **more)
        if answer is None:
            return
        rows = [result.found for result in answer.results if result.HasField("found")]
        self._ok_cells("batch", rows, answer.read_info, **by)
        self._keep(str(place), answer.read_info)


class Walks(Reader):
    """Ranges, page by page, to their end. No page asks for freshness: it must not need to."""

    def _walk(self, method: str, whole: tuple[int, int], **fields: Any) -> None:
        page_token, low, is_first = "", whole[0], True
        while not self._stopping.is_set():
            request = request_of(method, page_token=page_token, **fields)
            answer, by = self._ask("page", method, request, walk=whole, first=is_first)
            if answer is None:
                return  # noted; a walk that ends early misses nothing
            page_token = answer.next_page_token
            high = number_of((answer.cells[-1].shelf, answer.cells[-1].number)) + 1 if page_token else whole[1]
            self._ok_cells("page", answer.cells, answer.read_info, range=(low, high), last=not page_token, **by)
            low, is_first = high, False
            if not page_token:
                return


class ShelfWalks(Walks):
    """Ranges over one shelf, and so one partition."""

    def read(self) -> None:
        shelf = self._choice.choice(self._cells.shelves)
        whole = number_of((shelf, 0)), number_of((shelf + 1, 0))
        self._walk("ListShelf", whole, shelf=shelf, page_size=PAGE_ROWS)


class TableWalks(Walks):
    """Ranges over the whole table, and so all partitions."""

    def read(self) -> None:
        self._walk("ListCells", ALL, page_size=TABLE_PAGE_ROWS)


class Scans(Reader):
    """Scans of the whole table; one whose stream breaks goes on by its resume token."""

    def read(self) -> None:
        self.scan()

    def scan(self, **options: Any) -> bool:
        """Scan once; return whether it came to its end."""
        resume_token, is_first = "", True
        for _ in range(SCAN_STREAMS_MAX):
            request = request_of("ScanCells", scan_options={"resume_token": resume_token}, read_options=options)
            latest = {"latest": True} if options.get("latest") else {}
            self._history.invoke(self._process, "scan", walk=ALL, first=is_first, **latest)
            resume_token, is_whole = self._stream(request, resume_token)
            if is_whole:
                self.reads += 1
            if is_whole or self._stopping.wait(SCAN_AGAIN_S):
                return is_whole
            is_first = not resume_token
        raise AssertionError(f"a scan did not end within {SCAN_STREAMS_MAX} streams")

    def _stream(self, request: Any, resume_token: str) -> tuple[str, bool]:
        """Read on; return the resume token, and whether that was all."""
        begin_s = time.monotonic()
        pending: Any = None
        try:
            for message in stub_of(self._channel, "ScanCells")(request):
                if pending is not None:
                    self._ok_cells("scan", pending.cells, pending.progress.read_info, last=False)
                pending = message
                resume_token = message.progress.resume_token
        except grpc.RpcError as error:
            if pending is not None:
                self._ok_cells("scan", pending.cells, pending.progress.read_info, last=False)
            failed = _failure("ScanCells", begin_s, error)
            if failed.code == "UNAVAILABLE" and failed.reason != TABLE_REBUILT:
                self._history.fail(self._process, "scan", code=failed.code, reason=failed.reason)
                self.breaks.append(failed)
            else:
                self._fail("scan", failed)
            return "" if failed.reason == TABLE_REBUILT else resume_token, False
        if pending is None:
            self._history.ok(self._process, "scan", position=None)
        else:
            self._ok_cells("scan", pending.cells, pending.progress.read_info, last=True)
        return resume_token, True


def until_readable(cells: Cells, cluster: Cluster) -> None:
    """Return once each gateway that is up has answered from each partition."""
    keys = by_partition(cells, cells.lasting)
    with ExitStack() as stack:
        for member in cluster.up:
            channel = stack.enter_context(grpc.insecure_channel(member.listens_at, [("grpc.enable_retries", 0)]))
            get = stub_of(channel, "GetCell")
            for partition, [(shelf, number), *_] in keys.items():
                request = request_of("GetCell", shelf=shelf, number=number)
                soon(partial(get, request, timeout=5), f"partition {partition} is read")


def request_of(method: str, **fields: Any) -> Any:
    """Return a request."""
    return catalogue_of(CONTRACT).queries[f"{SERVICE}/{method}"].request_class(**fields)


def stub_of(channel: grpc.Channel, method: str) -> Any:
    """Return a method as a generated stub has it."""
    query = catalogue_of(CONTRACT).queries[f"{SERVICE}/{method}"]
    kind: Any = channel.unary_stream if method in ("ScanCells", "SubscribeCells") else channel.unary_unary
    return kind(
        query.path,
        request_serializer=query.request_class.SerializeToString,
        response_deserializer=query.response_class.FromString,
    )


def _failure(what: str, begin_s: float, error: grpc.RpcError) -> Failure:
    failure = failure_of(error)
    return Failure(what, begin_s, time.monotonic(), failure.code, failure.reason, failure.text)
