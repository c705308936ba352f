"""The events of a subscription.

A message of the gateway becomes its changes and then one of Reset, CatchingUp and Current, whose `token` says exactly
where a copy is that has all events up to there. Whoever keeps a copy beyond the process keeps rows and token in one
transaction: a copy that is ahead of its token would keep rows that were deleted before it came back.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

KeyValue = int | bool | str | bytes | datetime

Key = KeyValue | tuple[KeyValue, ...]
"""A row's key: the value of its one column, or a tuple in the order of the table's key. Timestamps are in UTC."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Drop every row: a new snapshot begins."""

    token: str


@dataclass(frozen=True, slots=True)
class Upsert:
    """The row of `key` is now `row`, the contract's message."""

    key: Key
    row: Any


@dataclass(frozen=True, slots=True)
class Delete:
    """The row of `key` is gone, or no longer matches the request. `message` is the contract's key message."""

    key: Key
    message: Any


@dataclass(frozen=True, slots=True)
class CatchingUp:
    """The rows so far are not the complete table."""

    token: str


@dataclass(frozen=True, slots=True)
class Current:
    """The rows are the table as of `as_of` (UTC): nothing is missing that was in the changelog before.

    `read_info` is the gateway's ReadInfo; its consistency token makes another read at least as fresh. Comes also as
    heartbeat, when nothing changes.
    """

    as_of: datetime
    read_info: Any
    token: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The stream broke, for the reason that `text` gives; it goes on where it was after `retry_after_s`.

    `code` is the name of the gRPC status; `reason` the gateway's, "" where it gave none.
    """

    code: str
    reason: str
    text: str
    retry_after_s: float


Event = Reset | Upsert | Delete | CatchingUp | Current | Disconnected
