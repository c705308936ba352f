"""Reads by an index: the run of entries that a request asks for, in one partition at a time.

An index is kept in each partition of its table. So who asks by it asks all of them, unless the index has the columns
that choose the partition, and the request fixes those.

Decision: docs/decisions/0116-an-index-is-chosen-by-the-params.md
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.indexes import INDEX_BYTES_MAX, Index, is_cut
from tablegate.gateway.contract.keys import after_prefix
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.errors import IndexNotBuilt, IndexNotUnique, InvalidField, NotAllowed
from tablegate.gateway.query.requests import KeyBounds, ReadKey, index_values_reader, key_reader
from tablegate.gateway.query.serving import ServedGeneration, TableAccess
from tablegate.gateway.stores.base import Snapshot

SAME_VALUES_MAX = 100  # rows of one value that are looked at for one that is seen, where they are to be unique

Entry = tuple[bytes, bytes]
"""Entry and row bytes."""


class EntryRun(NamedTuple):
    """Which entries of an index are wanted: whose column bytes are in `bounds`, and that lie behind `after`."""

    reader: "IndexReader"
    bounds: KeyBounds
    after: bytes | None
    descending: bool

    def behind(self, entry: bytes) -> "EntryRun":
        """Return what is behind an entry."""
        return self._replace(after=entry)

    def rows(self, snapshot: Snapshot, served: ServedGeneration, partition: Partition, limit: int) -> list[Entry]:
        """Return the first rows of a partition; raise `IndexNotBuilt`."""
        return self.reader.entries(snapshot, served, partition, self, limit)


class IndexReader:
    """An index of a table, as those read it who see the table so; raises `NotAllowed` for a column that they do not."""

    def __init__(self, index: Index, access: TableAccess) -> None:
        self.index = index
        self._access = access
        hidden = () if access.visible is None else access.visible.view.hidden
        self._hidden = next((column.name for column in index.columns if column.top_name in hidden), None)

    def check_seen(self) -> None:
        """Raise `NotAllowed` where a column of the index is hidden: the order of rows tells what they hold."""
        if self._hidden is not None:
            text = f'the query reads by index "{self.index.name}", and its column "{self._hidden}" is hidden from you'
            raise NotAllowed(text)

    def entries(
        self, snapshot: Snapshot, served: ServedGeneration, partition: Partition, run: EntryRun, limit: int
    ) -> list[Entry]:
        """Return at most `limit` entries of a run and their rows; raise `IndexNotBuilt`."""
        start, end = run.bounds.start, run.bounds.end
        assert start is not None, "the run has entries"
        # What is stored is cut: whoever has the same beginning may be in the bounds or not.
        low = start[:INDEX_BYTES_MAX]
        high = end if end is None or len(end) <= INDEX_BYTES_MAX else after_prefix(end[:INDEX_BYTES_MAX])
        found: list[Entry] = []
        after = run.after
        while True:
            some = snapshot.index_range(
                served.store_id,
                partition,
                self.index,
                start=low,
                end=high,
                limit=limit,
                after=after,
                descending=run.descending,
            )
            if some is None:
                raise IndexNotBuilt(self._access.table.name, self.index.name, partition)
            holds = self.index.holds
            found += [(entry, row) for entry, row in some if not is_cut(entry) or holds(row, start, end)]
            if len(some) < limit or len(found) >= limit:
                return found[:limit]
            after = some[-1][0]

    def row(self, snapshot: Snapshot, served: ServedGeneration, partition: Partition, values: bytes) -> bytes | None:
        """Return the one row that has these values, as it is seen; raise `IndexNotBuilt` or `IndexNotUnique`."""
        visible = self._access.visible
        run = EntryRun(self, KeyBounds(values, after_prefix(values)), None, descending=False)
        limit = 2 if visible is None else SAME_VALUES_MAX
        rows = [row for _, row in self.entries(snapshot, served, partition, run, limit)]
        is_full = len(rows) == limit
        if visible is not None:
            rows = [seen for row in rows if (seen := visible.row(row)) is not None]
        if len(rows) > 1 or is_full:
            raise self.not_unique()
        return rows[0] if rows else None

    def not_unique(self) -> IndexNotUnique:
        """Return the error that several rows have the same values."""
        return IndexNotUnique(self._access.table.name, self.index.name)


class IndexKey(NamedTuple):
    """What a request asks for by a unique index; `partition_prefix`: the bytes that choose the partition, if it has."""

    values: bytes
    partition_prefix: bytes | None


def index_key_reader(fields: Sequence[FieldDescriptor], index: Index, table: Table) -> Callable[[Message], IndexKey]:
    """Return the function from a message to the key in its `fields`, which are of the columns of `index`."""
    read_values = index_values_reader(fields, index.columns)
    read_prefix = partition_reader(dict(zip(index.column_names, fields, strict=True)), table)
    if read_prefix is None:
        return lambda message: IndexKey(read_values(message), None)
    return lambda message: IndexKey(read_values(message), read_prefix(message))


def index_keys_reader(
    keys: FieldDescriptor, key_fields: Sequence[FieldDescriptor], index: Index, table: Table
) -> Callable[[Message], list[IndexKey]]:
    """Return the function from a request to the keys in its repeated field `keys`; it raises `InvalidField`."""
    name = keys.name
    encode = index.columns[0].encode
    read = index_key_reader(key_fields, index, table) if key_fields else None

    def read_keys(request: Message) -> list[IndexKey]:
        values = getattr(request, name)
        if read is None:
            return [IndexKey(encode(value), None) for value in values]
        found = []
        for at, value in enumerate(values):
            try:
                found.append(read(value))
            except InvalidField as error:
                raise InvalidField(f"{name}[{at}].{error.field}", error.description) from None
        return found

    return read_keys


def keys_by_partition(
    keys: Sequence[IndexKey], access: TableAccess, served: ServedGeneration, among: Sequence[Partition] | None = None
) -> dict[Partition, list[int]]:
    """Return the places in `keys` of those that a partition may have, by partition, lowest partition first.

    `among`: where any partition may have one, those that are asked for; None: all.
    """
    if served.is_anywhere or any(key.partition_prefix is None for key in keys):
        return {partition: list(range(len(keys))) for partition in among or served.partitions}
    found: dict[Partition, list[int]] = {}
    for at, key in enumerate(keys):
        assert key.partition_prefix is not None, "it was asked for"
        found.setdefault(access.partition_of(key.partition_prefix, served.partition_count), []).append(at)
    return dict(sorted(found.items()))


def fixes_partition(index: Index, table: Table) -> bool:
    """Return whether the values of an index tell the partition of their row."""
    return {column.name for column in table.key[: table.partition_by_count]} <= set(index.column_names)


def partition_reader(fields: Mapping[str, FieldDescriptor], table: Table) -> ReadKey | None:
    """Return the function from a message to the bytes that choose the partition; None where no `fields` fix them."""
    leading = table.key[: table.partition_by_count]
    if not all(column.name in fields for column in leading):
        return None
    return key_reader([fields[column.name] for column in leading], leading)
