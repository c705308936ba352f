"""How fresh a read must be: the check of a snapshot, and the wait until one passes."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import Message

from gateway.contract.catalogue import Query
from gateway.contract.tokens import InvalidToken, StaleGeneration
from gateway.contract.types import Partition
from gateway.internal.v1.tokens_pb2 import TOKEN_KIND_CONSISTENCY, Token
from gateway.query.access import Life, TableAccess
from gateway.query.call import Call
from gateway.query.errors import (
    DeadlineExceeded,
    InvalidConsistencyToken,
    InvalidField,
    NotCaughtUp,
    NotServed,
    TableRebuilt,
    UntrackedSource,
)
from gateway.stores.base import Position
from gateway.subscription.bell import Bell

LOOK_S = 0.5  # a waiting read looks at least so often, whatever rings

Answer = TypeVar("Answer")
Lack = Callable[[Life, Partition, Position], str | None]
"""What a partition lacks, as a text; None when it is fresh enough."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A freshness that a request asks for, and how long it would wait (None: half of the time left).

    `default_timeout_s` is the time of a call without a deadline; `bell` rings when there may be something fresher.
    """

    lack: Lack
    max_wait_s: float | None
    default_timeout_s: float
    bell: Bell

    def check(self, access: TableAccess, life: Life, partition: Partition, position: Position) -> None:
        """Raise `NotCaughtUp` where the partition is not fresh enough."""
        text = self.lack(life, partition, position)
        if text is not None:
            raise NotCaughtUp(access.table.name, partition, text)


def wish_reader(query: Query, access: TableAccess) -> Callable[[Message], Wish | None]:
    """Return the function from a request to its wish; None for whatever the replica has. It raises `InvalidField`."""
    if query.read_options is None:
        return lambda _: None
    name = query.read_options.name

    def read(request: Message) -> Wish | None:
        if not request.HasField(name):
            return None
        options = getattr(request, name)
        lack = _lack_of(name, options, access)
        max_wait_s = None
        if options.HasField("max_wait"):
            max_wait_s = _seconds(f"{name}.max_wait", options.max_wait)
        return None if lack is None else Wish(lack, max_wait_s, query.default_timeout_s, access.bell)

    return read


def when_fresh(attempt: Callable[[], Answer], wish: Wish, call: Call) -> Answer | Awaitable[Answer]:
    """Return what `attempt` returns, repeating it while it raises `NotCaughtUp`, for as long as `wish` allows.

    A replica that is fresh enough answers at once; an awaitable is returned only where there is something to wait for.
    """
    try:
        return attempt()
    except NotCaughtUp:
        return _when_fresh(attempt, wish, call)


async def _when_fresh(attempt: Callable[[], Answer], wish: Wish, call: Call) -> Answer:
    started = time.monotonic()
    left_s = call.time_left_s()
    wait_s = wish.max_wait_s
    if wait_s is None:
        wait_s = (wish.default_timeout_s if left_s is None else left_s) / 2
    while True:
        try:
            return attempt()
        except NotCaughtUp:
            waited_s = time.monotonic() - started
            if left_s is not None and waited_s >= left_s:
                raise DeadlineExceeded from None
            if waited_s >= wait_s or call.draining:
                raise
        remaining_s = wait_s - waited_s if left_s is None else min(wait_s, left_s) - waited_s
        await wish.bell.wait(max(0.0, min(LOOK_S, remaining_s)))


def _lack_of(name: str, options: Any, access: TableAccess) -> Lack | None:
    match options.WhichOneof("consistency"):
        case "at_least":
            return _behind_token(options.at_least, access)
        case "at_least_source":
            return _behind_source(f"{name}.at_least_source", options.at_least_source, access)
        case "max_staleness":
            return _too_old(_seconds(f"{name}.max_staleness", options.max_staleness), access)
        case "latest":
            _must_be_true(f"{name}.latest", options.latest)
            raise NotServed(
                "read option latest is not served yet: ask for at_least with a token, or for a small max_staleness"
            )
        case "minimize_latency":
            _must_be_true(f"{name}.minimize_latency", options.minimize_latency)
    return None


def _behind_token(token_text: str, access: TableAccess) -> Lack:
    opened: dict[int, Token] = {}

    def lack(life: Life, partition: Partition, position: Position) -> str | None:
        token = opened.get(life.generation)
        if token is None:
            try:
                token = access.signer.open(
                    token_text, kind=TOKEN_KIND_CONSISTENCY, table=access.table.name, generation=life.generation
                )
            except InvalidToken as error:
                text = f"the consistency token {error.fault.value}; read without it"
                raise InvalidConsistencyToken(text) from None
            except StaleGeneration as error:
                if error.token_generation < life.generation:
                    # Its offsets are of another changelog, and not every gateway knows which of them these rows cover.
                    raise TableRebuilt(access.table.name) from None
                return "the token is of a newer generation of the table"
            opened[life.generation] = token
        wanted = _offset_in(token, partition)
        return None if position.next_offset >= wanted else "it has not applied what the token's answer had"

    return lack


def _offset_in(token: Token, partition: Partition) -> int:
    """Return the next offset that `token` has of the partition, 0 where it has none."""
    if not token.partitions:
        return token.next_offsets[partition] if partition < len(token.next_offsets) else 0
    for number, next_offset in zip(token.partitions, token.next_offsets, strict=True):
        if number == partition:
            return next_offset
    return 0


def _behind_source(name: str, source: Any, access: TableAccess) -> Lack:
    wanted: dict[tuple[str, int], int] = {}
    for topic in source.topics:
        for source_partition, offset in topic.offsets.items():
            if offset < 0:
                raise InvalidField(f"{name}.topics.offsets", "is negative; send the offset of a record")
            wanted[topic.topic, source_partition] = offset
    if not wanted:
        raise InvalidField(f"{name}.topics", "has no offset; send at least one")

    def lack(life: Life, _: Partition, position: Position) -> str | None:
        known = position.source_offsets
        for (topic, source_partition), offset in wanted.items():
            next_offset = known.get((topic, source_partition))
            if next_offset is None:
                _check_tracked(access.table.name, life, topic, source_partition)
            if next_offset is None or next_offset <= offset:
                return "its job has not reported the source offset"
        return None

    return lack


def _check_tracked(table: str, life: Life, topic: str, source_partition: int) -> None:
    for source in life.manifest.sources:
        if source.topic == topic:
            if 0 <= source_partition < source.partition_count:
                return
            text = f'source topic "{topic}" has no partition {source_partition}, only {source.partition_count} of them'
            raise UntrackedSource(table, topic, f"{text}; check the position")
    text = f'its job does not read a topic named "{topic}"; name one that it reads, or use at_least'
    raise UntrackedSource(table, topic, text)


def _too_old(max_staleness_s: float, access: TableAccess) -> Lack:
    def lack(_life: Life, _partition: Partition, position: Position) -> str | None:
        staleness_s = (access.now_ms() - position.as_of_ms) / 1_000
        return None if staleness_s <= max_staleness_s else f"it is {staleness_s:.3f} s old"

    return lack


def _seconds(field: str, duration: Any) -> float:
    seconds = float(duration.seconds) + float(duration.nanos) / 1e9
    if seconds < 0:
        raise InvalidField(field, "is negative; send a duration of 0 or more")
    return seconds


def _must_be_true(field: str, value: bool) -> None:
    if not value:
        raise InvalidField(field, "is false; set it to true, or leave it out")
