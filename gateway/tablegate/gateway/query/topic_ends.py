"""How far a topic of Kafka's is: what a query may have to ask, though it reads from a store."""

from collections.abc import Mapping
from typing import Protocol


class EndsUnknown(Exception):
    """Kafka, or who asks it, did not answer; the message says who."""


class TopicEnds(Protocol):
    """Asks Kafka."""

    async def ends(self, topic: str) -> Mapping[int, int]:
        """Return the end offset of each partition, read after the call was made; raise `EndsUnknown`."""
