"""Which partitions of each table this gateway is to have: all where it stands alone, else its part of the cluster's."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from typing_extensions import override

from tablegate.gateway.contract.types import Partition
from tablegate.internal.v1.transfer_pb2 import TransferResponse


class OlderGeneration(NamedTuple):
    """An older generation of a table that other gateways answer from, or are about to: nothing of it need be LIVE.

    `is_whole`: each of its partitions is answered by one of them that is not draining.
    """

    generation: int
    partition_count: int
    topic_id: str
    is_whole: bool


class Holder(NamedTuple):
    """Another gateway that answers from a partition; `endpoint` is host:port."""

    gateway_id: str
    endpoint: str


class TransferFailed(Exception):
    """A gateway, or a snapshot file, gives no more rows of a partition; the message says why."""


class OriginAway(TransferFailed):
    """It cannot be asked, or does not go on: what else is there may not be given either."""


class IncomingParts(Protocol):
    """The parts of one transfer, as they come."""

    def next(self) -> TransferResponse | None:
        """Return the next part; None where none has come yet. Raise `TransferFailed`."""

    def close(self) -> None:
        """Want no more. Repeats do nothing."""


class Assignment(Protocol):
    """Assigns partitions to this gateway. One thread. `version` changes whenever other answers may be had."""

    @property
    def version(self) -> int:
        """Return how often what it knows has changed."""

    @property
    def is_alone(self) -> bool:
        """Return whether no other gateway can have what is missing here."""

    @property
    def is_ready(self) -> bool:
        """Return whether anything may be followed yet."""

    def assigned(self, table: str, partition_count: int, *, generation: int) -> frozenset[Partition] | None:
        """Return the partitions of a generation of a table that are to be here; None while that is not known."""

    def are_others_live(
        self, table: str, partition: Partition, *, partition_count: int, generation: int, is_served: bool
    ) -> bool:
        """Return whether all gateways that are to have a partition do, and are alive, so that it need not be here.

        They have it where it is LIVE in `generation` or a newer one; with `is_served`, where they answer from it.
        """

    def is_owner(self, table: str, partition: Partition, *, partition_count: int, generation: int) -> bool:
        """Return whether no gateway ranked before this one has a partition, which is LIVE here, LIVE in a generation.

        Two may think so for a moment: of what an owner alone does, a second time must do no harm.
        """

    def holders(self, table: str, partition: Partition, *, generation: int) -> Sequence[Holder]:
        """Return the other gateways that are alive and answer from a partition of a generation, by name."""

    @property
    def next_beat(self) -> int:
        """Return the number of the announcement that will be made next."""

    @property
    def heard_beat(self) -> int:
        """Return the number of the newest announcement of ours that the others can have heard."""

    def unmet_requirement(self, table: str, partition_count: int, *, old: int, new: int, has_part: bool) -> str | None:
        """Return what the other gateways need before `new` takes the place of generation `old`; None: nothing.

        `has_part`: whether a partition of `old` is here, to tell when `new` is as far.
        """

    def older_generation(self, table: str, *, new: int) -> OlderGeneration | None:
        """Return the newest generation before `new` that other living gateways answer from; None: there is none.

        Those that refuse `new` do not count: they never switch to it, and their contract reads rows in another way.
        """

    def is_switch_due(self, table: str, *, new: int) -> bool:
        """Return whether another living gateway answers from generation `new` or a newer one."""

    def newest_generation(self, table: str) -> int:
        """Return the newest generation that another living gateway follows; 0: none does."""


class SoleGateway(Assignment):
    """Everything is here."""

    version = 0
    is_alone = True
    is_ready = True
    next_beat = heard_beat = 0

    @override
    def assigned(self, table: str, partition_count: int, *, generation: int) -> frozenset[Partition] | None:
        return frozenset(Partition(number) for number in range(partition_count))

    @override
    def are_others_live(
        self, table: str, partition: Partition, *, partition_count: int, generation: int, is_served: bool
    ) -> bool:
        return False

    @override
    def is_owner(self, table: str, partition: Partition, *, partition_count: int, generation: int) -> bool:
        return True

    @override
    def holders(self, table: str, partition: Partition, *, generation: int) -> Sequence[Holder]:
        return ()

    @override
    def unmet_requirement(self, table: str, partition_count: int, *, old: int, new: int, has_part: bool) -> str | None:
        return None

    @override
    def older_generation(self, table: str, *, new: int) -> OlderGeneration | None:
        return None

    @override
    def is_switch_due(self, table: str, *, new: int) -> bool:
        return False

    @override
    def newest_generation(self, table: str) -> int:
        return 0
