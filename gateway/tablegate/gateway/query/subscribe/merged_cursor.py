"""Where a copy is that several gateways fill, each some partitions of it."""

from collections.abc import Collection, Sequence

from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.serving import ServedGeneration, TableAccess
from tablegate.gateway.query.subscribe.cursor import ChangePosition
from tablegate.gateway.query.subscribe.messages import givers_of, marks_of, signed
from tablegate.internal.v1.tokens_pb2 import Token


class MergedCursor:
    """Marks of the partitions whose rows were begun, and up to which key one of them, `filling`, is taken."""

    def __init__(self) -> None:
        self.marks: dict[Partition, ChangePosition] = {}
        self.filling: Partition | None = None
        self._after_key = b""
        self._givers: dict[int, str] = {}  # of what is of each life

    def is_done(self, partition: Partition) -> bool:
        """Return whether all rows of a partition are taken."""
        return partition in self.marks and partition != self.filling

    def take(self, token: Token) -> None:
        """Move to where a token of some partitions is."""
        marks = marks_of(token)
        self.marks.update(marks)
        self._givers.update(givers_of(token))
        if token.partition in marks:
            self.filling, self._after_key = Partition(token.partition), token.after_key
        elif self.filling in marks:
            self.filling, self._after_key = None, b""

    def token(
        self, access: TableAccess, life: ServedGeneration, request_hash: int, partitions: Sequence[Partition]
    ) -> str:
        """Return the resume token of those partitions."""
        marks = {partition: self.marks[partition] for partition in partitions if partition in self.marks}
        token = Token(partition=next((each for each in partitions if each not in marks), life.partition_count))
        if self.filling in marks:
            token.partition, token.after_key = self.filling, self._after_key
        return signed(token, marks, access, life, request_hash, lambda life_id: self._givers.get(life_id, ""))

    def giver_of(self, partition: Partition, life_id: int | None) -> str:
        """Return the gateway that gave a partition, where one of this life (None: of none) cannot go on with it."""
        mark = self.marks.get(partition)
        return "" if mark is None or mark.life_id == life_id else self._givers.get(mark.life_id, "")

    def has_any(self, partitions: Collection[Partition]) -> bool:
        """Return whether the copy may have rows of one of them."""
        return not self.marks.keys().isdisjoint(partitions)
