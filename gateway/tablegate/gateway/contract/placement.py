"""Which gateways are to have a partition: rendezvous hashing, the same on every gateway that knows the same candidates.

Each gateway has a score for each partition of a table, which depends on nothing else; the highest comes first. So one
that joins takes partitions from all others, one that leaves gives its own to all others, and nothing moves between
those that stay. Zones take turns: nobody is second of its zone before each zone had its first.

Decision: docs/decisions/0043-refusing-gateways-are-no-candidates.md
Decision: docs/decisions/0044-placement-cost.md
"""

import sys
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import shake_256
from typing import NamedTuple

from tablegate.gateway.contract.types import Partition
from tablegate.v1.cluster_pb2 import REPLICA_PHASE_LIVE, GenerationAnnouncement

_BLOCK_PARTITIONS = 64  # scores that one hash gives
_BLOCKS_MAX = 65_536  # kept; 100 gateways with 10,000 partitions have a quarter of them


class Candidate(NamedTuple):
    """A gateway that may have partitions, and where it stands ("": it does not say)."""

    gateway_id: str
    zone: str


def ranked(table: str, partition: Partition, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return all candidates, the best for a partition first. The order in which they are given means nothing."""
    block, place = divmod(partition, _BLOCK_PARTITIONS)
    return _ranked([_scores(table, each.gateway_id, block)[place] for each in candidates], candidates)


def wanted(table: str, partition: Partition, candidates: Sequence[Candidate], replicas: int) -> list[Candidate]:
    """Return the candidates that are to have a partition, the best first: `replicas` of them, with 0 all."""
    return ranked(table, partition, candidates)[: replicas or None]


def wanted_of_all(
    table: str, partition_count: int, candidates: Sequence[Candidate], replicas: int
) -> Iterator[list[Candidate]]:
    """Yield what `wanted` returns for each partition of a table, from 0 on; quicker than asking for each."""
    for block in range(-(-partition_count // _BLOCK_PARTITIONS)):
        scores = [_scores(table, each.gateway_id, block) for each in candidates]
        left = partition_count - block * _BLOCK_PARTITIONS
        for place in range(min(left, _BLOCK_PARTITIONS)):
            yield _ranked([each[place] for each in scores], candidates)[: replicas or None]


def _ranked(scores: Sequence[int], candidates: Sequence[Candidate]) -> list[Candidate]:
    order = [candidates[place] for place in sorted(range(len(scores)), key=scores.__getitem__, reverse=True)]
    if len({each.zone for each in order}) < 2:
        return order
    counts: dict[str, int] = {}
    turns: list[list[Candidate]] = []
    for each in order:
        turn = counts[each.zone] = counts.get(each.zone, -1) + 1
        if turn == len(turns):
            turns.append([])
        turns[turn].append(each)
    return [each for turn in turns for each in turn]


@lru_cache(maxsize=_BLOCKS_MAX)
def _scores(table: str, gateway_id: str, block: int) -> "array[int]":
    """Return a gateway's scores for the partitions of a block."""
    name = f"{table}\0{gateway_id}\0{block}"
    scores = array("Q", shake_256(name.encode()).digest(8 * _BLOCK_PARTITIONS))
    if sys.byteorder == "little":
        scores.byteswap()
    return scores


def is_candidate(generation: int, *, serving: int, building: int, refused: int) -> bool:
    """Return whether a gateway is a candidate for partitions of a generation, by those that it announces; 0 is none.

    One that refuses the generation or a newer one is not, nor one that builds a newer one and answers from nothing:
    they will not have it. It may be in all other cases; what it did not speak of yet, it may be about to follow.
    """
    if serving == generation:
        return True
    return refused < generation and (serving > 0 or building <= generation)


def live_partitions(announced: GenerationAnnouncement) -> frozenset[Partition]:
    """Return the partitions that a gateway announces as live."""
    pairs = zip(announced.partitions, announced.phases, strict=False)
    return frozenset(Partition(number) for number, phase in pairs if phase == REPLICA_PHASE_LIVE)
