"""What every door shares: it takes `Methods` and serves them in its protocol, with these limits."""

import logging
import traceback
from typing import Protocol

from gateway.query.call import Methods
from gateway.query.errors import Internal, NotServed, QueryError

REQUEST_BYTES_MAX = 256 * 1024  # 1,000 keys of 250 bytes
STREAMS_MAX = 2_000  # a process; each holds some 0.5 MB at worst
CALLS_MAX = 5_000  # unary calls at once, a process: those that wait for freshness pile up
CONNECTION_STREAMS_MAX = 1_000  # calls at once on one connection

_logger = logging.getLogger("gateway.server")


class Door(Protocol):
    """A protocol that a gateway speaks."""

    async def start(self) -> None:
        """Listen; raise `OSError` where the address cannot be had."""

    def drain(self) -> None:
        """Tell streams to end; new calls may still come."""

    async def stop(self, grace_s: float) -> None:
        """Stop listening, wait for the calls at work, at most `grace_s`, then end them."""


def unknown_method(path: str, methods: Methods) -> NotServed:
    """Return the error for a path that is no method."""
    service = path.rpartition("/")[0] + "/"
    if any(known.startswith(service) for known in methods):
        return NotServed("the service has no such method; list its methods by reflection, or look into its contract")
    return NotServed("no such service is served here; check the address and the name of the service")


def as_query_error(error: Exception, path: str) -> QueryError:
    """Return what the client is told. Our own mistakes are logged: where they were, not with which values."""
    if isinstance(error, QueryError):
        return error
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    _logger.error("a handler failed", extra={"method": path, "error": type(error).__name__, "stack": where})
    return Internal()
