"""Which log an offset is of: leader epochs, as Kafka counts them.

An offset alone does not say what was read. A changelog that loses its tail, as after an unclean election of a leader,
grows again: the same offsets are other records then. Kafka gives each term of a leader a number, the leader epoch, and
each batch of records carries the one that it was written in. Only one leader writes in an epoch, so two logs that both
have records of an epoch are equal up to the last that both have.

Whoever reads a partition keeps its lineage: the runs of epochs that were read, and between which offsets. A place says
how far somebody has read, and of which epoch the last record was. A place is of another log where the lineage has
records of another epoch at its offsets (`is_of_another_log`). Two gateways agree on that without a word: both have it
from the log. What compaction has removed is in no lineage, and then nothing is held against a place.

Decision: docs/decisions/0064-a-place-has-a-leader-epoch.md
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tablegate.gateway.contract.types import Offset, Partition
from tablegate.internal.v1.tokens_pb2 import Token

UNKNOWN_EPOCH = -1  # of a broker that tells none, and where nothing was read
RUNS_MAX = 64  # a rolling restart of brokers adds two or three; tokens of older epochs are accepted unchecked


class EpochRun(NamedTuple):
    """Records of one leader epoch that were read: the offset of the first, and the one behind the last."""

    leader_epoch: int
    start: Offset
    end: Offset


Lineage = tuple[EpochRun, ...]
"""The runs that were read of a partition, the oldest first; both epochs and offsets go up. The newest `RUNS_MAX`."""


class Place(NamedTuple):
    """How far somebody has read: all before `next_offset`.

    `leader_epoch` is that of the last record before it, `UNKNOWN_EPOCH` where that is not known. `gap` is how many
    offsets are between that record's end and `next_offset`: those of no record, as compaction leaves them.
    """

    next_offset: Offset
    leader_epoch: int = UNKNOWN_EPOCH
    gap: int = 0

    @property
    def read_end(self) -> Offset:
        """Return the offset behind the last record that was read."""
        return Offset(self.next_offset - self.gap)


def continued(lineage: Lineage, runs: Iterable[EpochRun]) -> Lineage:
    """Return a lineage with what was read next, of which `is_continued_by` is true."""
    for run in runs:
        if lineage and lineage[-1].leader_epoch == run.leader_epoch:
            lineage = (*lineage[:-1], EpochRun(run.leader_epoch, lineage[-1].start, run.end))
        else:
            lineage = (*lineage, run)[-RUNS_MAX:]
    return lineage


def is_continued_by(lineage: Lineage, runs: Sequence[EpochRun]) -> bool:
    """Return whether runs may follow on a lineage: in one log neither offsets nor epochs go down."""
    if not lineage or not runs:
        return True
    return runs[0].leader_epoch >= lineage[-1].leader_epoch and runs[0].start >= lineage[-1].end


def cut(lineage: Lineage, next_offset: Offset) -> Lineage:
    """Return what a lineage has before an offset."""
    return tuple(run._replace(end=min(run.end, next_offset)) for run in lineage if run.start < next_offset)


def place_at(lineage: Lineage, next_offset: Offset) -> Place:
    """Return the place of whoever has read a partition of this lineage up to an offset."""
    for run in reversed(lineage):
        if run.start < next_offset:
            return Place(next_offset, run.leader_epoch, max(0, next_offset - run.end))
    return Place(next_offset)


def lineage_of(place: Place) -> Lineage:
    """Return the least lineage in which that place is; none where its epoch is not known."""
    if place.leader_epoch == UNKNOWN_EPOCH:
        return ()
    return (EpochRun(place.leader_epoch, Offset(place.read_end - 1), place.read_end),)


def is_of_another_log(place: Place, lineage: Lineage) -> bool:
    """Return whether the last record before a place is certainly not one of the log of this lineage."""
    epoch, end = place.leader_epoch, place.read_end
    if epoch == UNKNOWN_EPOCH or not lineage:
        return False
    for run in reversed(lineage):
        if run.leader_epoch == epoch:
            return False
        # Offsets go up with epochs: a record is before all of later epochs, and behind all of earlier ones.
        if run.leader_epoch < epoch:
            return end <= run.end
        if end > run.start:
            return True
    return False


def add_places(token: Token, places: Mapping[Partition, Place]) -> None:
    """Write places into a token, in their order. What is the same of all is written once."""
    # The common token has all partitions, in order; then their numbers need not be in it.
    if list(places) != list(range(len(places))):
        token.partitions.extend(places)
    token.next_offsets.extend([place.next_offset for place in places.values()])
    epochs = [place.leader_epoch + 1 for place in places.values()]
    gaps = [place.gap for place in places.values()]
    if any(epochs):
        token.leader_epochs.extend(epochs[:1] if len(set(epochs)) == 1 else epochs)
    if any(gaps):
        token.gaps.extend(gaps)


def clear_places(token: Token) -> None:
    """Remove from a token what `add_places` has written."""
    for name in ("partitions", "next_offsets", "leader_epochs", "gaps"):
        token.ClearField(name)


def places_of(token: Token) -> dict[Partition, Place]:
    """Return the places of a token, by partition; where it names no partitions they are 0, 1, 2, ..."""
    count = len(token.next_offsets)
    numbers: Sequence[int] = token.partitions or range(count)
    epochs: Sequence[int] = token.leader_epochs or [0]
    if len(epochs) == 1:
        epochs = [epochs[0]] * count
    gaps = token.gaps or [0] * count
    return {
        Partition(number): Place(Offset(next_offset), epoch - 1, gap)
        for number, next_offset, epoch, gap in zip(numbers, token.next_offsets, epochs, gaps, strict=True)
    }
