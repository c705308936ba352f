"""How fresh a read must be: the check of a snapshot, and the wait until one passes.

How it works: a request's read options become a `ConsistencyRequirement`, which is asked about each partition of a
snapshot (`unmet_reason`). The read itself raises `NotCaughtUp` where there is a reason, so the snapshot that is checked
is also the one that is answered from: nothing can change between the check and the rows. Only then is there a wait: the
read is repeated whenever the store has changed (`when_fresh`), until it passes or `max_wait` is over.

What is compared: a consistency token has next offsets of the changelog, or says that they are too many to be in it;
then what Kafka has when it is asked is enough. Tokens of pages and scans have next offsets as well (`behind_walk`).
`at_least_source` has offsets of the job's own sources, `latest` asks Kafka once for the end of the changelog
(`prepare`), `max_staleness` asks for it where it was not asked for so long, and compares times as well
(`_MaxStaleness`). A source offset that nobody has written would be waited for in vain; so Kafka is asked for that too,
once the wait takes long (`verify`). A row may satisfy a requirement that its partition does not yet (`row_satisfies`):
whoever reads their own write waits for that row, and not for the job's next report.

The model is "zookies" of Zanzibar (Pang et al., USENIX ATC 2019) and the consistency options of SpiceDB.

Decision: docs/decisions/0002-versions-count-inputs.md
Decision: docs/decisions/0070-walks-carry-positions.md
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from google.protobuf.message import Message

from tablegate.gateway.contract.catalogue import Query
from tablegate.gateway.contract.lineage import Place, is_of_another_log
from tablegate.gateway.contract.tokens import InvalidToken, ReadPositions, positions_of
from tablegate.gateway.contract.types import Offset, Partition, Version, read_version
from tablegate.gateway.query.call import Call, EndsUnknown, TopicEnds
from tablegate.gateway.query.errors import (
    LOST_RECORDS,
    DeadlineExceeded,
    FutureOffset,
    InvalidConsistencyToken,
    InvalidField,
    NotCaughtUp,
    NotServed,
    TableRebuilt,
    UntrackedSource,
)
from tablegate.gateway.query.requests import seconds_of
from tablegate.gateway.query.serving import ServedGeneration, TableAccess
from tablegate.gateway.stores.base import Position, Snapshot, StoredPartition
from tablegate.gateway.stores.notifier import Notifier
from tablegate.gateway.telemetry.measures import Histogram
from tablegate.gateway.telemetry.spans import FRESHNESS_WAIT, SPAN
from tablegate.internal.v1.tokens_pb2 import TOKEN_KIND_CONSISTENCY, Token

PREPARE_MIN_S = 0.05  # to ask Kafka takes milliseconds, which also who waits for no rows must have
VERIFY_AFTER_S = 0.1  # what is acknowledged is mostly here by then
TOPIC_CHARS_MAX = 249  # Kafka's own limit

Answer = TypeVar("Answer")
UnmetReason = Callable[[ServedGeneration, Partition, Position], str | None]
"""Why a partition does not meet the requirement, as a text; None where it does."""
RowSatisfies = Callable[[ServedGeneration, Version], bool]
"""Whether a row of this version has all that is required, though its partition may not."""
Ask = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistencyRequirement:
    """A freshness that a request asks for, and how long it would wait (None: half of the time left).

    `row_satisfies`: rows may say for themselves that they are fresh. `prepare` is awaited before each look at the store
    while nothing is fresh enough; without `asks_first`, what an earlier one has found may do. `stored_reason`: what of
    `unmet_reason` the store alone can tell, where that is not all. `verify` is awaited once the wait takes long, and it
    may raise a `QueryError`. `default_timeout_s` is the time of a call without a deadline; `notifier` tells when there
    may be something fresher, and a read that waits checks each `check_s` without it. `is_walk`: it is also that of a
    page or a stream that goes on. `waits`: where waits are measured.
    """

    unmet_reason: UnmetReason
    row_satisfies: RowSatisfies | None = None
    prepare: Ask | None = None
    asks_first: bool = False
    stored_reason: UnmetReason | None = None
    verify: Ask | None = None
    max_wait_s: float | None = None
    default_timeout_s: float
    check_s: float
    notifier: Notifier
    waits: Histogram
    is_walk: bool = False

    def check(self, access: TableAccess, served: ServedGeneration, partition: Partition, position: Position) -> None:
        """Raise `NotCaughtUp` where the partition is not fresh enough."""
        text = self.unmet_reason(served, partition, position)
        if text is not None:
            behind = StoredPartition(served.store_id, partition)
            raise NotCaughtUp(access.table.name, partition, text, behind=behind)

    def check_keys(
        self,
        access: TableAccess,
        snapshot: Snapshot,
        served: ServedGeneration,
        partition: Partition,
        position: Position,
        keys: Iterable[bytes],
    ) -> None:
        """Raise `NotCaughtUp` where neither the partition nor each row of these keys is fresh enough."""
        try:
            self.check(access, served, partition, position)
        except NotCaughtUp:
            if self.row_satisfies is None:
                raise
            visible = access.visible
            for key in keys:
                stored = snapshot.get_stored(served.store_id, partition, key)
                if stored is None or not self.row_satisfies(served, stored.version):
                    raise
                # A row that is not seen says nothing: else its being there, and its version, could be asked for.
                if visible is not None and (stored.row is None or not visible.shows(stored.row)):
                    raise


def requirement_reader(query: Query, access: TableAccess) -> Callable[[Message], ConsistencyRequirement | None]:
    """Return the function from a request to its requirement; None for whatever the store has.

    It raises `InvalidField`.
    """
    if query.read_options is None:
        return lambda _: None
    name = query.read_options.name

    def read(request: Message) -> ConsistencyRequirement | None:
        if not request.HasField(name):
            return None
        options = getattr(request, name)
        requirement = _requirement_of(name, options, access, query.default_timeout_s)
        if options.HasField("max_wait"):
            max_wait_s = _seconds(f"{name}.max_wait", options.max_wait)
            return None if requirement is None else replace(requirement, max_wait_s=max_wait_s)
        return requirement

    return read


def behind_walk(
    token: Token | None,
    read: ReadPositions,
    request: Message,
    query: Query,
    access: TableAccess,
    requirement: ConsistencyRequirement | None,
) -> ConsistencyRequirement | None:
    """Return the requirement of a walk that goes on behind `token`: that, and to have all that the walk has `read`.

    The request's `max_wait` holds for both. None where nothing is required.
    """
    if token is None or not read:
        return requirement
    generation, has_read = token.generation, _HasRead(read, access)

    def unmet_reason(served: ServedGeneration, partition: Partition, position: Position) -> str | None:
        # Offsets of another generation mean nothing here. Whoever opens the walk's token for it refuses it.
        reason = None if served.generation != generation else has_read.unmet_reason(served, partition, position)
        if reason is None and requirement is not None:
            reason = requirement.unmet_reason(served, partition, position)
        return reason

    if requirement is not None:
        prepare = _one_after_another(has_read.prepare, requirement.prepare)
        return replace(
            requirement,
            unmet_reason=unmet_reason,
            row_satisfies=None,
            prepare=prepare,
            asks_first=requirement.asks_first or has_read.prepare is not None,
            is_walk=True,
        )
    return ConsistencyRequirement(
        unmet_reason=unmet_reason,
        prepare=has_read.prepare,
        asks_first=has_read.prepare is not None,
        max_wait_s=_max_wait_s(request, query),
        default_timeout_s=query.default_timeout_s,
        check_s=access.limits.freshness_check_s,
        notifier=access.notifier,
        waits=access.waits,
        is_walk=True,
    )


def _max_wait_s(request: Message, query: Query) -> float | None:
    if query.read_options is None:
        return None
    name = query.read_options.name
    options = getattr(request, name)
    return _seconds(f"{name}.max_wait", options.max_wait) if options.HasField("max_wait") else None


def _one_after_another(first: Ask | None, second: Ask | None) -> Ask | None:
    if first is None or second is None:
        return first or second

    async def both() -> None:
        await first()
        await second()

    return both


async def when_fresh(attempt: Callable[[], Answer], requirement: ConsistencyRequirement, call: Call) -> Answer:
    """Return what `attempt` returns, repeating it while it raises `NotCaughtUp`, for as long as `requirement` allows.

    Raise the last `NotCaughtUp` then, or `DeadlineExceeded` where the call itself is over.
    """
    with SPAN.get().part(FRESHNESS_WAIT, {}) as span:
        started = time.monotonic()
        try:
            return await _waited_for(attempt, requirement, call)
        finally:
            waited_s = time.monotonic() - started
            requirement.waits.add(waited_s)
            span.show(requirement.waits, waited_s)


async def _waited_for(attempt: Callable[[], Answer], requirement: ConsistencyRequirement, call: Call) -> Answer:
    started = time.monotonic()
    left_s = call.time_left_s()
    wait_s = requirement.max_wait_s
    if wait_s is None:
        wait_s = (requirement.default_timeout_s if left_s is None else left_s) / 2
    end_s = wait_s if left_s is None else min(wait_s, left_s)
    verifying: asyncio.Future[None] | None = None
    try:
        while True:
            if requirement.prepare is not None:
                # Where Kafka is slow the read's own check fails, and says that the end is not known.
                with suppress(TimeoutError):
                    prepare_s = max(PREPARE_MIN_S, end_s - (time.monotonic() - started))
                    await asyncio.wait_for(requirement.prepare(), prepare_s)
            try:
                return attempt()
            except NotCaughtUp as error:
                behind = None if error.behind is None else [error.behind]
                waited_s = time.monotonic() - started
                if left_s is not None and waited_s >= left_s:
                    # The client has given up by now: that the table is behind would be news for nobody.
                    raise DeadlineExceeded from None
                if waited_s >= wait_s or call.draining:
                    raise
            if verifying is not None and verifying.done():
                # It raises where the offset is one that nobody has written: waiting for it would only end at the
                # deadline.
                verifying.result()
            # Kafka is asked once, and only for reads that wait for longer than a job usually takes.
            if requirement.verify is not None and verifying is None:
                if waited_s >= VERIFY_AFTER_S:
                    verifying = asyncio.ensure_future(requirement.verify())
                await requirement.notifier.wait(max(0.0, min(VERIFY_AFTER_S, end_s - waited_s)), behind)
            else:
                await requirement.notifier.wait(max(0.0, min(requirement.check_s, end_s - waited_s)), behind)
    finally:
        if verifying is not None:
            verifying.cancel()


def _requirement_of(
    name: str, options: Any, access: TableAccess, default_timeout_s: float
) -> ConsistencyRequirement | None:
    make = partial(
        ConsistencyRequirement,
        default_timeout_s=default_timeout_s,
        check_s=access.limits.freshness_check_s,
        notifier=access.notifier,
        waits=access.waits,
    )
    match options.WhichOneof("consistency"):
        case "at_least":
            return make(**_at_least(options.at_least, access))
        case "at_least_source":
            field = f"{name}.at_least_source"
            wanted = _wanted(field, options.at_least_source)
            verify = None if access.ends is None else partial(_check_written, wanted, access, access.ends)
            return make(
                unmet_reason=_behind_source(field, wanted, access), row_satisfies=_row_satisfies(wanted), verify=verify
            )
        case "max_staleness":
            fresh = _MaxStaleness(_seconds(f"{name}.max_staleness", options.max_staleness), access)
            return make(unmet_reason=fresh.unmet_reason, prepare=fresh.prepare, stored_reason=fresh.too_old)
        case "latest":
            _must_be_true(f"{name}.latest", options.latest)
            if access.ends is None:
                raise NotServed("read option latest is not served here: nobody asks Kafka; take at_least with a token")
            latest = _Latest(access, access.ends)
            return make(unmet_reason=latest.unmet_reason, prepare=latest.prepare, asks_first=True)
        case "minimize_latency":
            _must_be_true(f"{name}.minimize_latency", options.minimize_latency)
    return None


class _Latest:
    """Everything in the changelog when the call arrived: where that ended is asked once, after it did."""

    def __init__(self, access: TableAccess, ends: TopicEnds | None) -> None:
        self._access = access
        self._ends = ends
        self._topic_id = ""
        self._end_offsets: Mapping[int, int] = {}
        self._problem = "the end of its changelog is not known yet"
        self._is_asked = False

    async def prepare(self) -> None:
        """Ask for the ends, once; raise `PartitionUnavailable` where the table is not served."""
        if self._is_asked:
            return
        self._is_asked = True
        with self._access.store.snapshot() as snapshot:
            manifest = self._access.served(snapshot).manifest
        if self._ends is None:
            self._problem = "the end of its changelog is not known: nobody asks Kafka here"
            return
        try:
            self._end_offsets = await self._ends.ends(manifest.changelog_topic)
        except EndsUnknown as error:
            self._problem = f"the end of its changelog is not known: {error}"
        else:
            self._topic_id = manifest.changelog_topic_id

    def unmet_reason(self, served: ServedGeneration, partition: Partition, position: Position) -> str | None:
        """Return why the partition does not have everything."""
        if not self._end_offsets:
            return self._problem
        # Ends of one changelog say nothing about offsets of another.
        if served.manifest.changelog_topic_id != self._topic_id:
            return "it has a new generation since the call arrived"
        return None if position.next_offset >= self._end_offsets.get(partition, 0) else "its changelog has more"


class _MaxStaleness:
    """At most so old, by two measures, both of which must be met.

    No clock that is wrong makes an answer older than it may be: Kafka was asked for the end of the changelog not longer
    ago than that, and all before the end is here. And the newest record that is here must look no older, by the clock
    of this gateway: a changelog that nobody writes to any more is whole, and old all the same.
    """

    def __init__(self, max_staleness_s: float, access: TableAccess) -> None:
        self._max_staleness_s = max_staleness_s
        self._access = access

    async def prepare(self) -> None:
        """Ask for the ends where they are not known of late; raise `PartitionUnavailable` where nothing is served."""
        with self._access.store.snapshot() as snapshot:
            manifest = self._access.served(snapshot).manifest
        if self._access.changelog_ends.age_s(manifest) > self._max_staleness_s:
            await self._access.changelog_ends.ask(manifest)

    def too_old(self, served: ServedGeneration, _partition: Partition, position: Position) -> str | None:
        """Return that the newest record of the partition looks too old."""
        # No job writes markers into a topic of others. Its end alone says what is in it.
        if served.manifest.HasField("foreign"):
            return None
        staleness_s = (self._access.now_ms() - position.as_of_ms) / 1_000
        return None if staleness_s <= self._max_staleness_s else f"it is {staleness_s:.3f} s old"

    def unmet_reason(self, served: ServedGeneration, partition: Partition, position: Position) -> str | None:
        """Return why the partition may be older."""
        reason = self.too_old(served, partition, position)
        if reason is not None:
            return reason
        ends = self._access.changelog_ends
        age_s = ends.age_s(served.manifest)
        if age_s > self._max_staleness_s:
            why = ends.problem or f"Kafka was asked {age_s:.3f} s ago"
            return f"it is not known to be as fresh: {why}"
        return None if ends.is_reached(partition, position.next_offset) else "its changelog has more"


_NOTHING_READ = Place(Offset(0))


class _HasRead:
    """All that earlier answers have read. `prepare` is None where their token says of each partition what that is."""

    def __init__(self, read: ReadPositions, access: TableAccess) -> None:
        self._table = access.table.name
        self._places = read.places
        # What was read was in the changelog. So whoever has all that Kafka has now has it, and more.
        self._latest = _Latest(access, access.ends) if read.everything else None
        self.prepare = None if self._latest is None else self._latest.prepare

    def unmet_reason(self, served: ServedGeneration, partition: Partition, position: Position) -> str | None:
        """Return why the partition does not have what was read of it; raise `TableRebuilt` where it never will."""
        read = self._places.get(partition, _NOTHING_READ)
        if is_of_another_log(read, position.lineage):
            # The answer had records that the changelog has lost since: no wait brings them back.
            raise TableRebuilt(self._table, LOST_RECORDS)
        if position.next_offset < read.next_offset:
            return "it has not applied what the token's answer had"
        return None if self._latest is None else self._latest.unmet_reason(served, partition, position)


def _at_least(token_text: str, access: TableAccess) -> dict[str, Any]:
    """Return the parts of the requirement of a consistency token; raise `InvalidConsistencyToken`."""
    try:
        token = access.signer.open(token_text, kind=TOKEN_KIND_CONSISTENCY, table=access.table.name, generation=None)
    except InvalidToken as error:
        raise InvalidConsistencyToken(f"the consistency token {error.fault.value}; read without it") from None
    has_read = _HasRead(positions_of(token), access)

    def unmet_reason(served: ServedGeneration, partition: Partition, position: Position) -> str | None:
        if token.generation < served.generation:
            # Its offsets are of another changelog, and not every gateway knows which of them these rows cover.
            raise TableRebuilt(access.table.name)
        if token.generation > served.generation:
            return "the token is of a newer generation of the table"
        return has_read.unmet_reason(served, partition, position)

    return {"unmet_reason": unmet_reason, "prepare": has_read.prepare, "asks_first": has_read.prepare is not None}


SourceOffsets = Mapping[tuple[str, int], int]
"""Offsets of records that must be in an answer, by topic and partition."""


def _wanted(name: str, source: Any) -> SourceOffsets:
    """Return the offsets that a request names, of two for one partition the higher; raise `InvalidField`."""
    wanted: dict[tuple[str, int], int] = {}
    for topic in source.topics:
        if len(topic.topic) > TOPIC_CHARS_MAX:
            text = f"has more than {TOPIC_CHARS_MAX} characters, so it names no topic; send the name of a source"
            raise InvalidField(f"{name}.topics.topic", text)
        for source_partition, offset in topic.offsets.items():
            if offset < 0:
                raise InvalidField(f"{name}.topics.offsets", "is negative; send the offset of a record")
            at = (topic.topic, source_partition)
            wanted[at] = max(offset, wanted.get(at, offset))
    if not wanted:
        raise InvalidField(f"{name}.topics", "has no offset; send at least one")
    return wanted


def _behind_source(field: str, wanted: SourceOffsets, access: TableAccess) -> UnmetReason:
    def unmet_reason(served: ServedGeneration, partition: Partition, position: Position) -> str | None:
        # Positions tell up to where the job had read its sources when it wrote what is applied here.
        known = _known_offsets(served, partition, position)
        # All of them before any is compared: no row says that it is fresh, and Kafka is not asked, for a topic that the
        # job does not read.
        for at in wanted:
            if at not in known:
                _check_tracked(field, access.table.name, served, *at)
        if served.manifest.HasField("foreign"):  # each partition has its own rows, and knows of no other
            at = (served.manifest.changelog_topic, partition)
            return None if at not in wanted or known[at] > wanted[at] else "it has not read the source offset"
        if all(known.get(at, 0) > offset for at, offset in wanted.items()):
            return None
        return "its job has not reported the source offset"

    return unmet_reason


def _known_offsets(served: ServedGeneration, partition: Partition, position: Position) -> SourceOffsets:
    """Return up to where sources were read that a partition's rows were made of."""
    if served.manifest.HasField("foreign"):
        return {(served.manifest.changelog_topic, partition): position.next_offset}
    return position.source_offsets


def _row_satisfies(wanted: SourceOffsets) -> RowSatisfies:
    """Return whether rows have what is wanted, where their versions are offsets of the one source.

    All records of a key lie in one partition then; those of other partitions change nothing of its row.
    """
    # With one source whose records keep their key's partition, a row's version is the offset of the newest record in
    # it.
    newest, topics = max(wanted.values()), {topic for topic, _ in wanted}

    def row_satisfies(served: ServedGeneration, version: Version) -> bool:
        sources = served.manifest.sources
        is_offset = len(sources) == 1 and sources[0].keyed and topics == {sources[0].topic}
        return is_offset and read_version(version)[1] >= newest

    return row_satisfies


async def _check_written(wanted: SourceOffsets, access: TableAccess, ends: TopicEnds) -> None:
    """Raise `FutureOffset` where a record is waited for that nobody has written."""
    for topic in {topic for topic, _ in wanted}:
        try:
            end_offsets = await ends.ends(topic)
        except EndsUnknown:
            continue
        for (wanted_topic, source_partition), offset in wanted.items():
            if wanted_topic == topic and offset >= end_offsets.get(source_partition, 0):
                raise FutureOffset(access.table.name, topic, source_partition)


def _check_tracked(field: str, table: str, served: ServedGeneration, topic: str, source_partition: int) -> None:
    """Raise `UntrackedSource` where the job of the generation does not read that partition of a topic."""
    for source in served.manifest.sources:
        if source.topic == topic:
            if 0 <= source_partition < source.partition_count:
                return
            text = f'source topic "{topic}" has no partition {source_partition}, only {source.partition_count} of them'
            raise UntrackedSource(f"{field}.topics.offsets", table, topic, f"{text}; check the position")
    text = f'its job does not read a topic named "{topic}"; name one that it reads, or use at_least'
    raise UntrackedSource(f"{field}.topics.topic", table, topic, text)


def _seconds(field: str, duration: Any) -> float:
    seconds = seconds_of(duration)
    if seconds < 0:
        raise InvalidField(field, "is negative; send a duration of 0 or more")
    return seconds


def _must_be_true(field: str, value: bool) -> None:
    if not value:
        raise InvalidField(field, "is false; set it to true, or leave it out")
