"""Tables of windows over gateways that each remove what is expired at their own time."""

import asyncio
import random
from dataclasses import replace
from operator import attrgetter
from typing import Any

from tablegate.gateway.contract.lineage import places_of
from tablegate.gateway.query.limits import QueryLimits
from tablegate.v1.query_pb2 import SUBSCRIBE_PHASE_CURRENT
from tests.kit.call.subscribing import TIMEOUT_S, Copy, options, token_of
from tests.kit.gateways_in_process.cluster_without_network import QUICK_LIMITS, LocalCluster, Placement
from tests.kit.table.parcels import PARCELS

VISITS = PARCELS.with_name("visits.proto")
QUICK: dict[str, Any] = {"progress_interval": {"nanos": 20_000_000}}
SHORT_MESSAGES = replace(QUICK_LIMITS, message_rows_max=3)
NOW_MS = 1_790_000_000_000
WINDOW_US = 5_000_000
ONE_EACH: Placement = {0: [0], 1: [1], 2: []}
ON_TWO: Placement = {0: [0, 1], 1: [0, 1], 2: []}


async def until(stream: Any, one: Copy, wanted: dict[Any, int]) -> None:
    """Take messages until the copy is current and as wanted."""
    while one.phase != SUBSCRIBE_PHASE_CURRENT or one.counts != wanted:
        one.take(await asyncio.wait_for(anext(stream), TIMEOUT_S))


class Windows:
    """Visits of pages on gateways that remove what is expired at their own times. Each window starts 5 s after one."""

    def __init__(
        self, held: Placement = ONE_EACH, *, partition_count: int = 2, limits: QueryLimits = SHORT_MESSAGES
    ) -> None:
        self.cluster = LocalCluster(
            held,
            path=VISITS,
            table="visits",
            service="/visits.v1.VisitsService",
            partition_count=partition_count,
            now_ms=lambda: NOW_MS,
            limits=limits,
        )
        self.counts: dict[Any, int] = {}
        self.version = 0

    def row(self, page: str, window: int) -> Any:
        row: Any = self.cluster.whole.table.row_class(page=page, visits=self.version)
        row.window_start.FromMicroseconds(NOW_MS * 1_000 + window * WINDOW_US)
        return row

    def put(self, *windows: int) -> None:
        for page in "abcdefgh":
            for window in windows:
                self.version += 1
                self.counts[page, window] = self.version
                self.cluster.put([self.row(page, window)])

    def expire(self, number: int, window: int, *, least: int = 1) -> None:
        """Remove a window from one gateway, of which it has `least` pages at least."""
        gateway, whole = self.cluster[number], self.cluster.whole
        removed = 0
        for page in "abcdefgh":
            key = whole.key_of(self.row(page, window))
            partition = whole.table.partition_of(key, whole.partition_count)
            if partition in gateway.phases:
                removed += gateway.store.expire(gateway.store_id, partition, [key], time_ms=NOW_MS)
                self.counts.pop((page, window), None)
        assert removed >= least
        gateway.bell.notify()

    def open(self, number: int, one: Copy) -> Any:
        return self.cluster.stream(number, "SubscribeVisits", subscribe_options=options(one.token, **QUICK))

    def disturb(self, choice: random.Random) -> None:
        """Let a gateway go or come back, lose a partition and get it again, or remove a window."""
        gateway = self.cluster[choice.randrange(len(self.cluster.gateways))]
        match choice.randrange(6):
            case 0 if sum(each.is_down for each in self.cluster.gateways.values()) == 0:
                gateway.kill()
            case 1 | 2 if gateway.is_down:
                gateway.start()
                self.cluster.follow()
            case 3 if not gateway.is_down:
                partition = choice.choice(sorted(gateway.phases))
                gateway.lose(partition)
                gateway.follow(partition)
            case _:
                if not gateway.is_down and (windows := sorted({window for _, window in self.counts})):
                    self.expire(int(gateway.gateway_id[1:]), choice.choice(windows), least=0)

    def has_all_of(self, one: Copy) -> bool:
        """Return whether for each partition a gateway lives in whose store a copy can go on."""
        token = token_of(one.token)
        ids, partitions = token.incarnation_ids, list(places_of(token))
        incarnations = [ids[number] for number in token.incarnations] or list(ids) * len(partitions)
        return all(
            any(
                not each.is_down and each.incarnations.get(partition) == incarnation_id
                for each in self.cluster.gateways.values()
            )
            for partition, incarnation_id in zip(partitions, incarnations, strict=True)
        )

    def given(self, one: Copy) -> dict[Any, int]:
        """Return what is stored by those who gave a copy."""
        token, whole, found = token_of(one.token), self.cluster.whole, {}
        partitions = list(places_of(token))
        incarnations = token.incarnations or [0] * len(partitions)
        for partition, number in zip(partitions, incarnations, strict=True):
            gateway = self.cluster.gateways[token.gateways[number]]
            assert gateway.incarnations[partition] == token.incarnation_ids[number]
            with gateway.store.snapshot() as snapshot:
                for _, data in snapshot.range(gateway.store_id, partition, start=b"", end=None, limit=10_000):
                    row: Any = whole.table.row_class.FromString(data)
                    found[key_of(row)] = row.visits
        return found


def key_of(row: Any) -> tuple[str, int]:
    """Return page and number of a window."""
    return row.page, (row.window_start.ToMicroseconds() - NOW_MS * 1_000) // WINDOW_US


def window_copy() -> Copy:
    return Copy(key_of, attrgetter("visits"))
