"""Where a copy is that several gateways fill, each some partitions of it."""

from collections.abc import Collection, Sequence

from gateway.contract.types import Partition
from gateway.internal.v1.tokens_pb2 import Token
from gateway.query.access import Life, TableAccess
from gateway.query.subscription_messages import marks_of, signed
from gateway.subscription.cursor import Mark


class JoinedCursor:
    """Marks of the partitions whose rows were begun, and up to which key one of them, `filling`, is taken.

    A mark's skip means something in the life of the store that made it, and so that is kept with it.
    """

    def __init__(self) -> None:
        self.marks: dict[Partition, Mark] = {}
        self.filling: Partition | None = None
        self._after_key = b""
        self._life_ids: dict[Partition, int] = {}

    def is_done(self, partition: Partition) -> bool:
        """Return whether all rows of a partition are taken."""
        return partition in self.marks and partition != self.filling

    def take(self, token: Token) -> None:
        """Move to where a token of some partitions is."""
        marks = marks_of(token)
        self.marks.update(marks)
        self._life_ids.update(dict.fromkeys(marks, token.life_id))
        if token.partition in marks:
            self.filling, self._after_key = Partition(token.partition), token.after_key
        elif self.filling in marks:
            self.filling, self._after_key = None, b""

    def token(self, access: TableAccess, life: Life, request_hash: int, partitions: Sequence[Partition]) -> str:
        """Return the resume token of those partitions."""
        marks = {partition: self.marks[partition] for partition in partitions if partition in self.marks}
        life_ids = {self._life_ids[partition] for partition in marks}
        token = Token(life_id=life_ids.pop() if len(life_ids) == 1 else 0)
        token.partition = next((each for each in partitions if each not in marks), life.partition_count)
        if self.filling in marks:
            token.partition, token.after_key = self.filling, self._after_key
        return signed(token, marks, access, life, request_hash)

    def has_any(self, partitions: Collection[Partition]) -> bool:
        """Return whether the copy may have rows of one of them."""
        return not self.marks.keys().isdisjoint(partitions)
