"""A gateway that has answered from nothing of a table, where others may answer from an older generation of it.

Would it answer from the new one as soon as that is restored, a client that asks one gateway and then another would see
rows of the new generation and then of the old one. So it follows the new one as they do, beside what they answer from,
sends reads to them meanwhile, and begins when one of them is ready to. If they die or are to go, it begins without.
"""

from tablegate.gateway.cluster.assignment import Assignment
from tablegate.gateway.kafka.log import Clock
from tablegate.gateway.replication.partitions import GenerationReplica
from tablegate.v1.changelog_pb2 import Manifest

RETURN_S = 7.0  # with the time after which a gateway is taken for dead, that after which its partitions are given away


class LateJoiner:
    """Says when `following`, the first generation that is here, may be answered from. One thread.

    `others` has generation, partition count and topic id of what other gateways answer from; None: nothing older.
    """

    def __init__(self, table: str, following: GenerationReplica, *, share: Assignment, clock: Clock) -> None:
        self.others: Manifest | None = None
        self._table = table
        self._following = following
        self._share = share
        self._clock = clock
        self._missed_s: float | None = None  # since when the others do not answer from everything

    def may_begin(self) -> bool:
        """Take notice of the others; return whether the generation may be answered from.

        Before all were heard, it may if nothing of it is here: who is found to have an older one then answers.
        """
        following, now_s = self._following, self._clock.monotonic_s()
        new = following.manifest.generation
        older = self._share.older(self._table, new=new)
        if older is not None:
            self.others = Manifest(
                table=self._table,
                generation=older.generation,
                partition_count=older.partition_count,
                changelog_topic_id=older.topic_id,
            )
        if self.others is None:
            return following.wanted() is not None or not following.replicas
        if older is not None and older.is_whole:
            self._missed_s = None
        elif self._missed_s is None:
            self._missed_s = now_s
        is_missed = self._missed_s is not None and now_s >= self._missed_s + RETURN_S
        return self._share.is_due(self._table, new=new) or (is_missed and (older is None or following.is_live))
