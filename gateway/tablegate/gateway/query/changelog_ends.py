"""Where the changelog of a table ended when Kafka was asked last: what proves that an answer is fresh.

A broker that is asked at a moment names an end. All that was committed before that moment lies before the end. So a
partition that has reached it has everything up to that moment, however old its newest record is, and whatever any clock
says: that of this gateway, those of brokers, those of jobs. How long ago the moment is, the clock of this machine says
that only goes on. What is proved stays so until it is too old for who asks.

Decision: docs/decisions/0067-freshness-is-proved-by-ends.md
"""

import asyncio
import math
import time
from collections.abc import Mapping
from contextlib import suppress

from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.call import EndsUnknown, TopicEnds
from tablegate.v1.changelog_pb2 import Manifest


class ChangelogEnds:
    """Asks Kafka where the changelog of a table ends, and keeps the answer. One event loop at a time.

    `problem`: why it is not known; "" after an answer.
    """

    def __init__(self, ends: TopicEnds | None) -> None:
        self.problem = "Kafka was not asked yet"
        self._ends = ends
        self._asked_s = -math.inf
        self._topic_id = ""
        self._offsets: Mapping[int, int] = {}
        self._asking: asyncio.Future[None] | None = None

    def age_s(self, manifest: Manifest) -> float:
        """Return how long ago Kafka was asked for what is known of this changelog; infinite: nothing is."""
        return time.monotonic() - self._asked_s if self._topic_id == manifest.changelog_topic_id else math.inf

    def is_reached(self, partition: Partition, next_offset: int) -> bool:
        """Return whether a position has all that was in the changelog then."""
        return next_offset >= self._offsets.get(partition, 0)

    async def ask(self, manifest: Manifest) -> None:
        """Ask Kafka, unless somebody is asking: reads that come together have one answer."""
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._ask(manifest))
            self._asking.add_done_callback(self._forget)
        # Whoever waits no longer leaves the answer to the others.
        await asyncio.shield(self._asking)

    def _forget(self, asking: "asyncio.Future[None]") -> None:
        if self._asking is asking:
            self._asking = None
        with suppress(asyncio.CancelledError):
            asking.exception()

    async def _ask(self, manifest: Manifest) -> None:
        if self._ends is None:
            self.problem = "nobody asks Kafka here"
            return
        asked_s = time.monotonic()  # before the question is sent: all that is committed by now is before the end
        try:
            offsets = await self._ends.ends(manifest.changelog_topic)
        except EndsUnknown as error:
            self.problem = str(error)
        else:
            self._asked_s, self._topic_id, self._offsets = asked_s, manifest.changelog_topic_id, offsets
            self.problem = ""
