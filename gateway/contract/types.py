"""Numbers of the domain, with types of their own."""

from typing import NewType

Partition = NewType("Partition", int)
"""A part of a table and of its changelog, from 0."""

Offset = NewType("Offset", int)
"""Place of a record in a partition of a topic."""

StoreId = NewType("StoreId", int)
"""Which rows of a store belong together: one life of a table."""
