"""How many changes a sink has written, by batch: when Spark reports one, the next may be at work already."""


class BatchChanges:
    """Counts changes. The thread of the batches adds, that of the reports pops."""

    def __init__(self) -> None:
        self._by_batch: dict[int, int] = {}

    def add(self, batch_id: int, changes: int) -> None:
        """Count changes of a batch."""
        self._by_batch[batch_id] = self._by_batch.get(batch_id, 0) + changes

    def pop(self, batch_id: int) -> int:
        """Return how many were written up to a batch that has ended, since the last call."""
        return sum(self._by_batch.pop(each) for each in [*self._by_batch] if each <= batch_id)
