"""The local table: follows a Subscribe into its directory, and answers reads from there.

How it works: a Subscribe fills an LMDB file, and keeps it. The rows of a response and its resume token are written in
one transaction, so a process that was killed goes on where its file is (`directory`). Reads are answered from
the file, by any thread.

What a read can be sure of: nothing is missing that was in the changelog before `as_of`. How old that is, is what the
clocks say: this machine's, and that of the gateway, whichever says more (`Freshness`). Where a read asks for more than
can be shown, it fails as it would at a gateway: UNAVAILABLE, with the reason NOT_CAUGHT_UP.

Decision: docs/decisions/0152-a-local-table-is-a-subscription-on-disk.md
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Generic, Self, TypeVar

import grpc
from google.protobuf.message import Message

from tablegate.client.events import CatchingUp, Current, Delete, Disconnected, Event, Key, Reset, Upsert
from tablegate.client.failures import SubscribeError
from tablegate.client.fields import SUBSCRIBE_OPTIONS, ContractMismatch, field_of_type
from tablegate.client.local.channel import LocalChannel
from tablegate.client.local.directory import (
    CopyDirectory,
    CopyState,
    DirectoryDamaged,
    IsGone,
    LocalTableError,
    machine_boot_id,
)
from tablegate.client.local.freshness import DEFAULT_LIMITS, Freshness, LocalLimits, LocalReadError
from tablegate.client.local.keys import EPOCH, KeyEncoder, fingerprint_of, has_indexes, has_retention, next_prefix
from tablegate.client.local.queries import LocalQueries, gone_at, table_of
from tablegate.client.streams import Method, subscribe

SCAN_ROWS = 1_000  # read at once: a longer read would keep the pages of rows that are gone
LIVE = 2  # SubscribeStart

Row = TypeVar("Row", bound=Message)


class LocalTable(Generic[Row]):
    """The rows of a Subscribe in a directory of this machine, kept in a thread of its own. Any thread may read.

    It starts when it is made, with what the directory has, and ends with its `with`, or `close`. One process has a
    directory: a process that forks makes its tables afterwards.

    `request` chooses the rows, as for a `LiveTable`; `row` is the contract's message of a row. What the directory has
    of another request or row message is removed. `boot_id` is what changes when the machine starts, "" where the system
    does not know it; then what a killed process leaves is removed.

    Each read may ask for more than what is there. `max_staleness_s`: nothing is missing that is older than that.
    `max_wait_s`: how long to wait for it.
    A read raises `LocalReadError` where it cannot be answered, `TypeError` for a value that no key has, and
    `LocalTableError` where the directory fails.

    Raise `LocalTableError` where the directory cannot be used, `ContractMismatch` where `row` is no row of a table or
    `request` no Subscribe's, `ValueError` where that asks for changes alone.
    """

    def __init__(
        self,
        method: Method,
        request: Message,
        directory: str | os.PathLike[str],
        *,
        row: type[Row],
        limits: LocalLimits = DEFAULT_LIMITS,
        boot_id: Callable[[], str] = machine_boot_id,
        freshness: Freshness | None = None,
    ) -> None:
        options = getattr(request, field_of_type(request.DESCRIPTOR, SUBSCRIBE_OPTIONS))
        if options.start == LIVE:
            raise ValueError("a local table has all rows: leave SUBSCRIBE_START_LIVE out")
        self._method = method
        self._request = request
        self._limits = limits
        self._row = row
        self._parse: Callable[[bytes], Row] = row.FromString
        self._key = KeyEncoder(row.DESCRIPTOR)
        self._freshness = freshness or Freshness()
        self._changed = threading.Condition()  # whether it is current or fresher, or has ended
        self._listeners: set[Callable[[], None]] = set()  # are told so, too
        self._is_current = False
        self._is_checked = False  # whether a gateway has sent rows of the message that `row` is
        self._has_ended = False
        self._error: Exception | None = None
        self._trouble = ""
        self._closed = threading.Event()
        self._subscription: Any = None
        self._queries: LocalQueries | None = None
        index_keys: Callable[[bytes], list[bytes]] | None = None
        index_ids: Sequence[bytes] = ()
        if has_indexes(row.DESCRIPTOR):
            indexes = table_of(row.DESCRIPTOR).row_indexes
            index_keys, index_ids = indexes.keys_of, indexes.ids
        self._gone_at = gone_at(row.DESCRIPTOR) if has_retention(row.DESCRIPTOR) else None
        fingerprint = fingerprint_of(request, row.DESCRIPTOR, index_ids)
        self._directory = CopyDirectory(
            directory,
            fingerprint,
            map_bytes=limits.map_bytes,
            boot_id=boot_id(),
            index_keys=index_keys,
            gone_now=None if self._gone_at is None else self._gone_now,
        )
        self._thread = threading.Thread(target=self._run, name="tablegate-local-table", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it; the directory keeps the rows for the next one."""
        if self._directory.is_forked:  # the stream and its thread are of the process that forked this one
            return
        self._closed.set()
        subscription = self._subscription
        if subscription is not None:
            subscription.close()
        self._thread.join()
        self._directory.close()

    # How it is.

    @property
    def is_current(self) -> bool:
        """Whether the stream is up, and the copy was complete as of `as_of`."""
        return self._is_current and not self._has_ended

    @property
    def as_of(self) -> datetime | None:
        """Nothing is missing that was in the changelog before this (UTC); None before the first complete snapshot."""
        as_of_us = self._directory.state.as_of_us
        return EPOCH + timedelta(microseconds=as_of_us) if as_of_us else None

    @property
    def consistency_token(self) -> str:
        """With it as `at_least`, a gateway answers no older than this copy is; "" before the first snapshot."""
        return self._directory.state.consistency_token

    @property
    def age_s(self) -> float | None:
        """Seconds since `as_of`; None before this process has heard from a gateway how old the rows are."""
        return self._freshness.age_s

    @property
    def trouble(self) -> str:
        """Why it is not current, in a sentence; "" where it is, or nothing is known."""
        return "" if self.is_current else self._trouble

    def wait_current(self, timeout_s: float | None = None) -> None:
        """Return when the copy is current.

        Raise `TimeoutError` after `timeout_s`, what ended the copy where something did, and `RuntimeError` once it is
        closed.
        """
        with self._changed:
            is_over = self._changed.wait_for(lambda: self.is_current or self._has_ended, timeout_s)
        self._waited_current(timeout_s, is_over=is_over)

    def _waited_current(self, timeout_s: float | None, *, is_over: bool) -> None:
        """Raise what `wait_current` does after it has waited."""
        if not is_over:
            trouble = f": {self._trouble}" if self._trouble else ""
            raise TimeoutError(f"the copy is not current after {timeout_s:g} s{trouble}")
        if self._error is not None:
            raise self._error
        if self._has_ended:
            raise RuntimeError("the local table is closed")

    # Reads.

    def get(self, key: Key, *, max_staleness_s: float | None = None, max_wait_s: float = 0.0) -> Row | None:
        """Return the row of a key; None where there is none."""
        if max_staleness_s is not None:
            self._wait_fresh(max_staleness_s, max_wait_s)
        state = self._directory.state
        if not state.copy or state.refusal:
            raise self._unanswered(state)
        data = self._directory.get(self._key.encode(key))
        return None if data is None else self._parse(data)

    def batch_get(
        self,
        keys: Iterable[Key],
        *,
        max_staleness_s: float | None = None,
        max_wait_s: float = 0.0,
    ) -> list[Row | None]:
        """Return the rows of keys in their order, all of one moment; None for a key without one."""
        self._require(max_staleness_s, max_wait_s)
        found = self._directory.get_many([self._key.encode(key) for key in keys])
        return [None if data is None else self._parse(data) for data in found]

    def range(
        self,
        *leading: Any,
        start: Any = None,
        end: Any = None,
        after: Key | None = None,
        limit: int = SCAN_ROWS,
        descending: bool = False,
        max_staleness_s: float | None = None,
        max_wait_s: float = 0.0,
    ) -> list[Row]:
        """Return rows in key order, at most `limit`, all of one moment.

        `leading` are the values of the first key columns; `start` and `end` bound the column after these, the end is
        not in it. `after`: the key of the last row of the page before this one.
        """
        self._require(max_staleness_s, max_wait_s)
        prefix = self._key.encode_leading(leading)
        low = prefix if start is None else prefix + self._key.encode_column(len(leading), start)
        high = next_prefix(prefix) if end is None else prefix + self._key.encode_column(len(leading), end)
        if after is not None:
            last = self._key.encode(after)
            if descending:
                high = last if high is None else min(high, last)
            else:
                low = max(low, last + b"\x00")
        found = self._directory.range(low, high, limit=limit, is_descending=descending)
        return [self._parse(data) for data in found]

    def scan(self, *, max_staleness_s: float | None = None, max_wait_s: float = 0.0) -> Iterator[Row]:
        """Yield all rows in key order, each as it is when it comes; a row that is there all the time comes once."""
        for rows in self.pages(max_staleness_s=max_staleness_s, max_wait_s=max_wait_s):
            yield from rows

    def pages(self, *, max_staleness_s: float | None = None, max_wait_s: float = 0.0) -> Iterator[list[Row]]:
        """Yield what `scan` does, in lists of rows that are of one moment each."""
        self._require(max_staleness_s, max_wait_s)
        low = b""
        while found := self._directory.range(low, None, limit=SCAN_ROWS):
            rows = [self._parse(data) for data in found]
            yield rows
            if len(found) < SCAN_ROWS:
                return
            low = self._key.encode(self.key_of(rows[-1])) + b"\x00"
            self._require(None, 0.0)

    def count(self, *, max_staleness_s: float | None = None, max_wait_s: float = 0.0) -> int:
        """Return how many rows there are."""
        self._require(max_staleness_s, max_wait_s)
        return self._directory.count()

    @property
    def channel(self) -> Any:
        """What stubs of generated code are made with whose queries this table answers, as gateways answer them."""
        return LocalChannel(self.queries)

    @property
    def queries(self) -> LocalQueries:
        """The contract's queries over the rows that are here."""
        if self._queries is None:
            self._queries = LocalQueries(self._row.DESCRIPTOR, self._directory, self._require)
        return self._queries

    def key_of(self, row: Row) -> Key:
        """Return the key of a row, as `get` is given it."""
        return self._key.key_of(row)

    @contextmanager
    def _listened(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call it, in the table's thread, when it is current or fresher, or has ended."""
        with self._changed:
            self._listeners.add(listener)
        try:
            yield
        finally:
            with self._changed:
                self._listeners.remove(listener)

    def _announce_change(self) -> None:
        with self._changed:
            self._changed.notify_all()
            for listener in self._listeners:
                listener()

    def _gone_now(self) -> IsGone:
        """Return what says whether the row of a key is over by the clocks."""
        assert self._gone_at is not None
        return self._gone_at(int(self._freshness.passed_s(self._directory.state.as_of_us / 1e6) * 1e6))

    def _require(self, max_staleness_s: float | None, max_wait_s: float) -> None:
        """Return where a read can be answered, and is as fresh as that; else raise `LocalReadError`."""
        if max_staleness_s is not None:
            self._wait_fresh(max_staleness_s, max_wait_s)
        state = self._directory.state
        if not state.copy or state.refusal:
            raise self._unanswered(state)

    def _unanswered(self, state: CopyState) -> Exception:
        if state.refusal:
            code, reason, text = state.refusal
            return LocalReadError(grpc.StatusCode[code], reason, text)
        trouble = f" ({self._trouble})" if self._trouble else ""
        text = f"the local table has not all rows yet{trouble}: wait_current waits for them"
        return LocalReadError(grpc.StatusCode.UNAVAILABLE, "PARTITION_UNAVAILABLE", text, 1.0)

    def _wait_fresh(self, max_staleness_s: float, max_wait_s: float) -> None:
        """Return once the copy is as fresh as that; raise `LocalReadError` after `max_wait_s`."""
        unmet = self._unmet_reason(max_staleness_s)
        if unmet and max_wait_s > 0:
            end_s = time.monotonic() + max_wait_s
            with self._changed:
                while (unmet := self._unmet_reason(max_staleness_s)) and not self._has_ended:
                    if not self._changed.wait(min(end_s - time.monotonic(), threading.TIMEOUT_MAX)):
                        break
        if unmet:
            trouble = f" ({self._trouble})" if self._trouble else ""
            raise LocalReadError(grpc.StatusCode.UNAVAILABLE, "NOT_CAUGHT_UP", f"the local table {unmet}{trouble}", 0.1)

    def _unmet_reason(self, max_staleness_s: float) -> str:
        age_s = self._freshness.age_s
        if age_s is None:
            return "has not heard from a gateway yet"
        return "" if age_s <= max_staleness_s else f"is {age_s:.3f} s old"

    # Following. All below runs in the one thread.

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                try:
                    self._follow()
                except DirectoryDamaged:
                    raise
                except LocalTableError as error:  # a disk that is full, or fails, may be well again later
                    self._directory.roll_back()
                    self._is_current, self._trouble = False, str(error)
                    self._closed.wait(self._limits.full_pause_s)
        except SubscribeError as error:
            self._error = error
            self._refused(error)
        except Exception as error:  # noqa: BLE001 - `wait_current` raises it
            self._error = error
        finally:
            self._directory.roll_back()
            self._trouble = str(self._error or "") or self._trouble
            self._has_ended = True
            self._announce_change()

    def _follow(self) -> None:
        """Apply what a subscription gives, from where the directory is, until the table is closed."""
        state = self._directory.state
        self._subscription = subscription = subscribe(
            self._method, self._request, token_store=_Token(state), restart=True
        )
        if self._closed.is_set():
            return
        self._writing, self._pending, self._committed_s = state, 0, time.monotonic()
        with subscription:
            for event in subscription:
                self._apply(event)

    def _apply(self, event: Event) -> None:
        directory, state = self._directory, self._writing
        match event:
            case Upsert(key, row):
                if not self._is_checked:
                    self._check(row)
                directory.put(state, self._key.encode(key), row.SerializeToString())
                self._pending += 1
            case Delete(key):
                directory.delete(state, self._key.encode(key))
                self._pending += 1
            case Reset(token):
                # Not committed yet: until the rows of its message are here, the directory goes on as before it.
                self._writing = directory.begin_copy(replace(state, token=token))
                self._is_current = False
            case CatchingUp(token):
                self._writing = replace(state, token=token, refusal=())
                self._is_current = False
                took_s = time.monotonic() - self._committed_s
                due = self._pending >= self._limits.fill_changes or took_s >= self._limits.fill_s
                if due or not state.is_filling:
                    self._commit()
            case Current(as_of, read_info, token):
                self._current(as_of, read_info.consistency_token, token)
            case Disconnected():
                self._commit()
                self._is_current = False
                self._freshness.disconnected()
                self._trouble = f"{event.code}: {event.text}"

    def _current(self, as_of: datetime, consistency_token: str, token: str) -> None:
        as_of_us = (as_of - EPOCH) // timedelta(microseconds=1)
        state = replace(self._writing, token=token, as_of_us=as_of_us, consistency_token=consistency_token, refusal=())
        self._writing = self._directory.publish_copy(state) if state.is_filling else state
        self._commit()
        self._freshness.heard(as_of_us / 1e6)
        self._is_current, self._trouble = True, ""
        self._announce_change()

    def _commit(self) -> None:
        self._directory.commit(self._writing)
        self._pending, self._committed_s = 0, time.monotonic()

    def _check(self, row: Message) -> None:
        """Raise `ContractMismatch` where the rows are not those that `row` was to be."""
        if row.DESCRIPTOR.full_name != self._row.DESCRIPTOR.full_name:
            theirs, ours = row.DESCRIPTOR.full_name, self._row.DESCRIPTOR.full_name
            raise ContractMismatch(
                f"the rows of this Subscribe are {theirs}, and not {ours}: give the message of a row here"
            )
        self._is_checked = True

    def _refused(self, error: SubscribeError) -> None:
        """Stop reads where the gateway does not show these rows any more; the next process is told so, too."""
        if error.code not in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
            return
        self._directory.refuse((error.code, error.reason, str(error)))


class _Token:
    """The token of a directory: it is written with the rows, and not when the subscription says so."""

    def __init__(self, state: CopyState) -> None:
        self._token = state.token

    def load(self) -> str:
        """Return where the rows are."""
        return self._token

    def save(self, token: str) -> None:
        """Do nothing."""
