"""What a process of a gateway measures: counts and histograms, in plain numbers.

A Get adds to two histograms, so adding is a search in a short tuple and two sums. Prometheus's library, which costs ten
times that, only writes the text (`server.metrics`). A label is the name of something that was configured or is of ours:
a method, a status, a table, a limit, a gateway. None is ever made of what a client sends.

A process keeps its numbers in a file (`numbers`), from which they are added up (`add`). One event loop or thread.

Decision: docs/decisions/0150-measures-in-plain-numbers.md
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Labels = tuple[str, ...]
"""The values of a metric's labels, in order."""

CALL_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
AGE_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3_600)


class Exemplar(NamedTuple):
    """A value that was counted, when, in seconds since 1970, and the ids of the span that it is of."""

    trace_id: str
    span_id: str
    value: float
    time_s: float


class Histogram:
    """How many values are not above each bound and above the one before, with one more for the rest; and their sum.

    `exemplars`: the last one of each place in `counts`, where there are traces.
    """

    __slots__ = ("bounds", "counts", "exemplars", "now_s", "sum")

    def __init__(self, bounds: Sequence[float], now_s: Callable[[], float] = time.time) -> None:
        """Begin with nothing; `now_s`: the seconds since 1970."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.exemplars: dict[int, Exemplar] = {}
        self.now_s = now_s

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def add_since(self, time_ms: int) -> None:
        """Count the seconds since a time, in milliseconds since 1970; one that is still to come is now."""
        age_s = self.now_s() - time_ms / 1_000
        if age_s < 0:
            age_s = 0.0
        self.counts[bisect_left(self.bounds, age_s)] += 1
        self.sum += age_s

    def show(self, value: float, trace_id: str, span_id: str) -> None:
        """Keep whose value one is that was counted."""
        self.exemplars[bisect_left(self.bounds, value)] = Exemplar(trace_id, span_id, value, self.now_s())


class Histograms(dict[Labels, Histogram]):
    """The histograms of one metric. One that is asked for is made."""

    def __init__(
        self, name: str, about: str, labels: Labels, bounds: Sequence[float], now_s: Callable[[], float] = time.time
    ) -> None:
        super().__init__()
        self.name = name
        self.about = about
        self.labels = labels
        self.bounds = tuple(map(float, bounds))  # to compare floats with integers takes twice as long
        self._now_s = now_s

    def __missing__(self, values: Labels) -> Histogram:
        made = self[values] = Histogram(self.bounds, self._now_s)
        return made


class Counts(dict[Labels, int]):
    """The counts of one metric. One that is asked for is 0."""

    def __init__(self, name: str, about: str, labels: Labels) -> None:
        super().__init__()
        self.name = name
        self.about = about
        self.labels = labels

    def __missing__(self, values: Labels) -> int:
        return 0


class Measures:
    """All that the processes of a gateway measure; each adds to some. `now_s`: the seconds since 1970."""

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self.calls = Histograms(
            "call_duration_seconds",
            "How long calls took that have ended, by method and status; those of streams until their end.",
            ("method", "code"),
            CALL_BOUNDS_S,
        )
        self.read_staleness = Histograms(
            "read_staleness_seconds",
            "How old the rows were that an answer was read from: nothing committed before is missing in it. By the "
            "clocks of Kafka and of this machine.",
            ("table",),
            AGE_BOUNDS_S,
            now_s,
        )
        self.freshness_waits = Histograms(
            "freshness_wait_seconds",
            "How long calls waited for the freshness that they asked for, those that did not get it among them.",
            ("table",),
            CALL_BOUNDS_S,
        )
        self.deliveries = Histograms(
            "change_delivery_seconds",
            "From when Kafka had a change until it was sent to subscribers; of the oldest change of each message. By "
            "the clocks of Kafka and of this machine.",
            ("table",),
            AGE_BOUNDS_S,
            now_s,
        )
        self.forwards = Histograms(
            "forward_duration_seconds",
            "How long other gateways took to answer the calls that were forwarded to them, by gateway and status.",
            ("gateway", "code"),
            CALL_BOUNDS_S,
        )
        self.applies = Histograms(
            "apply_duration_seconds",
            "How long it took to decode and store what was fetched at once of a partition.",
            ("table",),
            CALL_BOUNDS_S,
        )
        self.apply_delays = Histograms(
            "apply_delay_seconds",
            "From when Kafka had a record until it could be read here; of the newest that was fetched at once, of live "
            "partitions. By the clocks of Kafka and of this machine.",
            ("table",),
            AGE_BOUNDS_S,
            now_s,
        )
        self.commits = Histograms(
            "commit_duration_seconds",
            "How long the store took for a transaction of changes, all of it.",
            (),
            CALL_BOUNDS_S,
        )
        self.refused_calls = Counts("refused_calls", "Calls that a limit refused, by its name.", ("limit",))
        self.applied_changes = Counts("applied_changes", "Changes that were stored, those of restores too.", ("table",))
        self.restores = Counts(
            "restores",
            "How often a partition began to be restored: from its changelog, or with rows from elsewhere.",
            ("table",),
        )
        self.transfers = Counts(
            "transfers",
            "Transfers of a partition's rows from another gateway (in) and to one (out) that have ended.",
            ("table", "direction", "result"),
        )
        self.transferred_rows = Counts(
            "transferred_rows",
            "Rows and tombstones that came from other gateways (in) and went to them (out).",
            ("table", "direction"),
        )
        self.spans = Counts(
            "spans",
            "Spans of traces that have ended, that were exported, and whose export failed. Those that are none of both "
            "wait, or found no room in the queue.",
            ("result",),
        )
        self.snapshots = Counts(
            "snapshots",
            "Snapshot files of a partition that were written, or read for a restore.",
            ("table", "direction", "result"),
        )
        self.snapshot_rows = Counts(
            "snapshot_rows",
            "Rows and tombstones that were written to snapshot files, and read from them.",
            ("table", "direction"),
        )
        own = vars(self).values()
        self.histograms = [each for each in own if isinstance(each, Histograms)]
        self.counts = [each for each in own if isinstance(each, Counts)]

    def numbers(self) -> Mapping[str, Any]:
        """Return all numbers, for JSON."""
        return {
            each.name: [(values, histogram.counts, histogram.sum) for values, histogram in each.items()]
            for each in self.histograms
        } | {
            **{each.name: list(each.items()) for each in self.counts},
            "exemplars": [
                (each.name, values, place, exemplar)
                for each in self.histograms
                for values, histogram in each.items()
                for place, exemplar in histogram.exemplars.items()
            ],
        }

    def add(self, numbers: Mapping[str, Any]) -> None:
        """Add what `numbers` returned somewhere else."""
        for histograms in self.histograms:
            for values, counts, total in numbers.get(histograms.name, ()):
                histogram = histograms[tuple(values)]
                histogram.counts = [sum(both) for both in zip(histogram.counts, counts, strict=True)]
                histogram.sum += total
        for own in self.counts:
            for values, count in numbers.get(own.name, ()):
                own[tuple(values)] += count
        by_name = {histograms.name: histograms for histograms in self.histograms}
        for name, values, place, exemplar in numbers.get("exemplars", ()):
            newest, other = by_name[name][tuple(values)].exemplars, Exemplar(*exemplar)
            if place not in newest or newest[place].time_s < other.time_s:
                newest[place] = other
