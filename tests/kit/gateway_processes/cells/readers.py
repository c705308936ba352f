"""Clients of the cells, each a thread that reads in one way and passes the tokens it got; they note what is wrong.

A violation is an answer that no client may ever get. A failure is a call that failed though it was tried again as the
client package does it.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Collection, Hashable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Self

import grpc

import tablegate.client
from tablegate.client.channels import Options
from tablegate.client.failures import failure_of
from tests.kit.gateway_processes.cells.changelog import CONTRACT, SERVICE, CellKey, Cells, by_partition
from tests.kit.gateway_processes.cluster import Cluster
from tests.kit.gateway_processes.gateway import soon
from tests.kit.table.filled import catalogue_of

OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
EACH_IN_TURN = (("grpc.lb_policy_name", "round_robin"),)  # another gateway with each call, not one as long as it can
NO_RETRIES = (("grpc.enable_retries", 0),)
BATCHES, BATCH_KEYS = 10, 20
TABLE_REBUILT = "TABLE_REBUILT"
PAGE_ROWS = 7
TABLE_PAGE_ROWS = 250
SCAN_AGAIN_S = 0.1
SCAN_STREAMS_MAX = 30  # of one scan


class Failure(NamedTuple):
    """A call that failed, between two moments of the monotonic clock."""

    what: str
    begin_s: float
    end_s: float
    code: str
    reason: str
    text: str


@dataclass(slots=True)
class Past:
    """What a client knows of some keys: the token of the last answer about them, and the revisions that it saw."""

    token: str = ""
    revisions: dict[CellKey, int] = field(default_factory=dict)


class Reader:
    """A client. `reads` counts answers, `owned` those that a partition's owner gave; `breaks` are broken streams.

    `rebuilt` counts the tokens that were given up as they are of a generation before.

    Between two reads it waits `pause_s`. `options` are those of its channel, beside the client package's.
    """

    def __init__(self, cells: Cells, target: str, *, pause_s: float, seed: int = 0, options: Options = ()) -> None:
        self.violations: list[str] = []
        self.failures: list[Failure] = []
        self.breaks: list[Failure] = []
        self.reads = self.rebuilt = 0
        self.owned: Counter[str] = Counter()  # by gateway
        self._cells = cells
        self._pause_s = pause_s
        self._choice = random.Random(seed)
        self._pasts: dict[Hashable, Past] = {}
        self._channel = tablegate.client.open_channel(target, options=(*OWN_CONNECTION, *options))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._channel.close()

    def read(self) -> None:
        """Read once, and look at the answer."""
        raise NotImplementedError

    def _run(self) -> None:
        while not self._stopping.wait(self._pause_s):
            try:
                self.read()
            except Exception as error:  # noqa: BLE001 (a reader that died would find nothing)
                self.violations.append(f"{type(self).__name__}: {error!r}")

    def _past(self, scope: Hashable) -> Past:
        return self._pasts.setdefault(scope, Past())

    def _ask(self, method: str, request: Any, past: Past) -> Any:
        """Return the answer, at least as fresh as what is known; None where it failed."""
        if past.token:
            request.read_options.at_least = past.token
        begin_s = time.monotonic()
        try:
            answer, call = stub_of(self._channel, method).with_call(request)
        except grpc.RpcError as error:
            failed = _failure(method, begin_s, error)
            if failed.reason == TABLE_REBUILT:
                past.token = ""
                self.rebuilt += 1
            elif failed.code == "NOT_FOUND":
                self.violations.append(f"{method} {request}: NOT_FOUND")
            else:
                self.failures.append(failed)
            return None
        self.reads += 1
        trailer = dict(call.trailing_metadata())
        if trailer.get("tablegate-role") == "owner":
            self.owned[str(trailer["tablegate-gateway"])] += 1
        return answer

    def _take(self, past: Past, rows: Iterable[Any], info: Any, new: Past | None = None) -> set[CellKey]:
        """Hold rows against what is known, and note them there, or in `new`; return their keys."""
        new = past if new is None else new
        as_of_ms = info.as_of_time.ToMilliseconds()
        found: set[CellKey] = set()
        for row in rows:
            key = (row.shelf, row.number)
            if key in found:
                self._say(f"{key} came twice")
            found.add(key)
            if row.number >= self._cells.shelf_cells:
                continue
            known, floor = past.revisions.get(key, 0), self._cells.floor(key, as_of_ms)
            if row.revision < known:
                self._say(f"{key} at revision {row.revision}, after {known}")
            if row.revision < floor:
                self._say(f"{key} at revision {row.revision}; {floor} was there as of {as_of_ms}")
            new.revisions[key] = max(known, row.revision)
        new.token = info.consistency_token
        return found

    def _miss(self, wanted: Collection[CellKey], found: set[CellKey]) -> None:
        if missing := [key for key in wanted if key not in found]:
            self._say(f"{len(missing)} rows are missing, such as {missing[:3]}")

    def _say(self, text: str) -> None:
        self.violations.append(f"{type(self).__name__}: {text}")


class Gets(Reader):
    """Gets of one cell: any, and more often one that was asked for before."""

    def read(self) -> None:
        key = self._choice.choice(self._choice.choice((self._cells.hot, self._cells.hot, self._cells.cold)))
        past = self._past(key)
        answer = self._ask("GetCell", request_of("GetCell", shelf=key[0], number=key[1]), past)
        if answer is not None:
            self._miss([key], self._take(past, [answer.cell], answer.read_info))


class BatchGets(Reader):
    """Gets of several cells, of several partitions."""

    def __init__(self, cells: Cells, target: str, *, pause_s: float, seed: int = 0, options: Options = ()) -> None:
        super().__init__(cells, target, pause_s=pause_s, seed=seed, options=options)
        half = BATCH_KEYS // 2
        self._batches = [
            [*self._choice.sample(cells.hot, half), *self._choice.sample(cells.cold, half)] for _ in range(BATCHES)
        ]

    def read(self) -> None:
        place = self._choice.randrange(len(self._batches))
        keys, past = self._batches[place], self._past(place)
        request = request_of("BatchGetCells", keys=[{"shelf": shelf, "number": number} for shelf, number in keys])
        answer = self._ask("BatchGetCells", request, past)
        if answer is None:
            return
        rows = [result.found for result in answer.results if result.HasField("found")]
        self._miss(keys, self._take(past, rows, answer.read_info))
        given = [(row.shelf, row.number) for row in rows]
        if len(given) == len(keys) and given != keys:
            self._say("the answers of a batch are in another order than asked")


class Walks(Reader):
    """Ranges, page by page, to their end."""

    def _walk(self, method: str, past: Past, wanted: Collection[CellKey], **fields: Any) -> None:
        found: list[CellKey] = []
        page_token = ""
        while not self._stopping.is_set():
            answer = self._ask(method, request_of(method, page_token=page_token, **fields), past)
            if answer is None:
                return  # noted; a walk that ends early misses nothing
            self._take(past, answer.cells, answer.read_info)
            found += [(row.shelf, row.number) for row in answer.cells]
            page_token = answer.next_page_token
            if not page_token:
                break
        else:
            return
        if found != sorted(set(found)):
            self._say("the rows of a walk are out of order, or came twice")
        self._miss(wanted, set(found))


class ShelfWalks(Walks):
    """Ranges over one shelf, and so one partition."""

    def read(self) -> None:
        shelf = self._choice.choice(self._cells.shelves)
        wanted = [(shelf, number) for number in range(self._cells.shelf_cells)]
        self._walk("ListShelf", self._past(shelf), wanted, shelf=shelf, page_size=PAGE_ROWS)


class TableWalks(Walks):
    """Ranges over the whole table, and so all partitions."""

    def read(self) -> None:
        self._walk("ListCells", self._past("all"), self._cells.lasting, page_size=TABLE_PAGE_ROWS)


class Scans(Reader):
    """Scans of the whole table; one whose stream breaks goes on by its resume token."""

    def __init__(self, cells: Cells, target: str, *, pause_s: float, seed: int = 0, options: Options = ()) -> None:
        super().__init__(cells, target, pause_s=pause_s, seed=seed, options=options)
        self._scanned = Past()

    def read(self) -> None:
        found: list[CellKey] = []
        resume_token = ""
        for _ in range(SCAN_STREAMS_MAX):
            new = Past()  # of this stream: its token says nothing of what the ones before it gave
            resume_token, is_whole = self._stream(found, resume_token, new)
            if is_whole:
                self._scanned = new
                self.reads += 1
                if len(found) != len(set(found)):
                    self._say("a row of a scan came twice")
                self._miss(self._cells.lasting, set(found))
            if is_whole or self._stopping.wait(SCAN_AGAIN_S):
                return
        self._say(f"a scan did not end within {SCAN_STREAMS_MAX} streams")

    def _stream(self, found: list[CellKey], resume_token: str, new: Past) -> tuple[str, bool]:
        """Read on; return the resume token, and whether that was all."""
        request = request_of("ScanCells", scan_options={"resume_token": resume_token})
        if self._scanned.token:
            request.read_options.at_least = self._scanned.token
        begin_s = time.monotonic()
        try:
            for message in stub_of(self._channel, "ScanCells")(request):
                self._take(self._scanned, message.cells, message.progress.read_info, new)
                found += [(row.shelf, row.number) for row in message.cells]
                resume_token = message.progress.resume_token
        except grpc.RpcError as error:
            failed = _failure("ScanCells", begin_s, error)
            if failed.reason == TABLE_REBUILT:
                self._scanned.token = ""
                self.rebuilt += 1
                found.clear()
                return "", False
            (self.breaks if failed.code == "UNAVAILABLE" else self.failures).append(failed)
            return resume_token, False
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
