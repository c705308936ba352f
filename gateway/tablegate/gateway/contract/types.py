"""Numbers of the domain, with types of their own."""

from typing import NewType

Partition = NewType("Partition", int)
"""A part of a table and of its changelog, from 0."""

Offset = NewType("Offset", int)
"""Place of a record in a partition of a topic."""

COMPACTION_LAG_MS = 6 * 60 * 60 * 1000
"""Age that a record of a changelog has at least when compaction looks at it: so jobs set their topics."""

StoreId = NewType("StoreId", int)
"""Which rows of a store belong together: one incarnation of a table."""
