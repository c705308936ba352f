"""A table on the disk of this process: reads without a network. It needs `tablegate-client[local]`."""

from tablegate.client.local.directory import LocalTableError
from tablegate.client.local.freshness import LocalLimits, LocalReadError
from tablegate.client.local.table import LocalTable

__all__ = ["LocalLimits", "LocalReadError", "LocalTable", "LocalTableError"]
