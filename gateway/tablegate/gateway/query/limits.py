"""The limits and times of queries that a test may need to be others. What none needs is a constant beside its code.

Decision: docs/decisions/0057-limits-through-constructors.md
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLimits:
    """How much an answer, a message and a subscriber's queue may hold, and how long a query waits for what."""

    # Answers and messages.
    page_bytes_max: int = 1024 * 1024  # a client takes answers of 4 MiB by default; a page of long rows ends early
    read_rows_max: int = 5_000  # of a page, by those who see only some of them: it goes on by its token
    message_rows_max: int = 500  # of a stream; more win nothing: the cost of a message is spread already
    message_bytes_max: int = 64 * 1024  # of a stream: what a client that stops reading makes us hold

    # For what no gateway has: others may have just left, or be about to switch. And a stream that is broken off costs
    # its client more than a call.
    retries_s: float = 2.0

    # Waits for freshness.
    freshness_check_s: float = 0.5  # a read that waits checks at least so often, whatever it is notified of

    # Scans.
    scan_first_read_rows: int = 50  # before the length of rows is known
    scan_flush_s: float = 0.01  # rows that passed a filter wait no longer for others

    # Counts.
    count_read_rows: int = 500  # at once
    count_changes_max: int = 5_000  # that correct the number in one slice
    count_slice_s: float = 0.002  # of the event loop: then others are served, and the snapshot is let go

    # Subscriptions to this gateway's store.
    stream_min_s: float = 1_800.0  # the longest time of a stream is drawn, from this to
    stream_max_s: float = 3_600.0  # this: subscribers move on one by one
    progress_min_s: float = 0.1  # however often a client wants to hear
    subscriber_bytes_max: int = 256 * 1024  # queued for a subscriber
    queued_bytes_max: int = 64 * 1024 * 1024  # queued for all of a table; what is queued for several counts once
    publish_messages_max: int = 2  # before subscribers get their turn: half of what may be queued for one
    publish_found_max: int = 2_000  # groups of changes, found in one turn of the event loop: half a millisecond
    publish_sent_max: int = 1_000  # changes sent to groups in one turn, a message counted as 20: two milliseconds
    publish_given_max: int = 300  # subscribers of one group that are given a message in one turn: two milliseconds
    publish_flush_s: float = 0.01  # changes that come within it, or less, go together; the first of them at once
    publish_retry_s: float = 0.5  # where the table cannot be read: no notification may come when it can be again
    burst_wait_s: float = 0.05  # in a burst: who pops less than all in that time is slow, and does not hold up others

    # Subscriptions to several gateways.
    sources_check_s: float = 1.0  # how often it is checked whether gateways live, and where partitions without one are
    sources_retry_s: float = 0.5  # the same, while there are such partitions
    silent_s: float = 2.0  # beyond some missed messages of progress: then a stream is dead
    avoid_s: float = 0.5  # a gateway that has just ended a stream is not asked for so long


DEFAULT_LIMITS = QueryLimits()
