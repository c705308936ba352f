"""One random history of a table, as a job would write it, and what everybody has to answer once they have read it.

A history is data: the same for every way to serve it (`ways.py`). It has chapters. In each a job folds some events, and
writes rows, tombstones and progress markers, some of them again and some of them late; records come that are none.
Within a chapter something happens to the gateways, and goes on while more is written.

What is expected is folded here, by nothing of the product: of each key the row of its newest event.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from io import BytesIO
from struct import pack
from typing import Any, NamedTuple

import fastavro

from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.contract.keys import encode_key
from tablegate.gateway.contract.rows import row_schema
from tablegate.gateway.contract.types import Version, make_version
from tablegate.v1.changelog_pb2 import Manifest, ProgressMarker, SourceTopic
from tests.kit.replication.replicator import START_MS
from tests.kit.table.filled import ACTIONS, RATINGS, catalogue_of
from tests.kit.world.job import next_offsets

SOURCE, SOURCE_PARTITIONS = "events", 2
PARTITIONS = 3  # of the first generation
MOVIES = 14
BROWSERS = ("chrome", "firefox")
EXPIRES_EVERY_S = 8  # a window
RETENTION_S = 86_400
WINDOW_S = 5

Key = Any
"""Of a row: a movie's number, or a browser and the start of a window in ms before or after the world's beginning."""


@dataclass(frozen=True)
class Subject:
    """A table that has a history, and the words to ask for it. `scopes`: what one Range or Subscribe is about."""

    catalogue: Catalogue
    table_name: str
    service: str
    one: str  # of methods: GetRating
    many: str  # ListRatings
    rows_field: str
    row_field: str
    keys: Sequence[Key]
    scopes: Sequence[Mapping[str, str]]
    fields: Callable[[Key], dict[str, Any]]
    columns: Callable[[Key, int], dict[str, Any]]
    key_of: Callable[[Any], Key]
    count_of: Callable[[Any], int]
    expires_s: Callable[[Key], float]
    batches: bool

    @property
    def table(self) -> Any:
        """Return the table of the contract."""
        return self.catalogue.tables[self.table_name]

    def key_bytes(self, key: Key) -> bytes:
        """Return the bytes of a key."""
        columns = self.columns(key, 0)
        return bytes(encode_key(self.table.key, [columns[column.name] for column in self.table.key]))

    def value(self, key: Key, count: int) -> bytes:
        """Return the Avro value of a row."""
        body = BytesIO()
        fastavro.schemaless_writer(body, fastavro.parse_schema(row_schema(self.table)), self.columns(key, count))
        return pack(">bI", 0, 1) + body.getvalue()

    def partition_of(self, key: Key, partitions: int) -> int:
        """Return the partition of a key, of so many."""
        return int(self.table.partition_of(self.key_bytes(key), partitions))

    def is_in(self, key: Key, scope: Mapping[str, str]) -> bool:
        """Return whether a Range or a Subscribe of a scope has a key."""
        return not scope or key[0] == scope["browser"]

    def manifest(self, begun: "Begun", topic_id: str) -> Manifest:
        """Return the manifest of a generation."""
        table = self.table
        return table.manifest(
            generation=begun.generation,
            changelog_topic=self.topic(begun.generation),
            changelog_topic_id=topic_id,
            partition_count=begun.partitions,
            value_schemas={1: json.dumps(row_schema(table))},
            sources=[SourceTopic(topic=SOURCE, partition_count=SOURCE_PARTITIONS)],
        )

    def topic(self, generation: int) -> str:
        """Return the changelog of a generation."""
        return f"{self.table_name}-g{generation}-changelog"


def ratings() -> Subject:
    """Return a table whose rows stay."""
    return Subject(
        catalogue=catalogue_of(RATINGS),
        table_name="ratings",
        service="/examples.ratings.v1.RatingsService",
        one="Rating",
        many="Ratings",
        rows_field="ratings",
        row_field="rating",
        keys=range(MOVIES),
        scopes=[{}],
        fields=lambda key: {"movie_id": key},
        columns=lambda key, count: {
            "movie_id": key,
            "average_rating": count / 4,
            "rating_count": count,
            "update_time": None,
        },
        key_of=lambda row: row.movie_id,
        count_of=lambda row: int(row.rating_count),
        expires_s=lambda _: float("inf"),
        batches=True,
    )


def windows() -> Subject:
    """Return a table with retention: a window is over before the history begins, others while it goes on."""
    # Chapters end at whole seconds: what is over in the moment in which all are asked is no matter of a millisecond.
    ends_s = [-700.5, *(7.5 + EXPIRES_EVERY_S * number for number in range(12)), 9_000.5]
    starts_ms = [round((end_s - RETENTION_S - WINDOW_S) * 1_000) for end_s in ends_s]
    return Subject(
        catalogue=catalogue_of(ACTIONS),
        table_name="action_counts",
        service="/examples.actions.v1.ActionCountsService",
        one="ActionCount",
        many="ActionCounts",
        rows_field="action_counts",
        row_field="action_count",
        keys=[(browser, start_ms) for browser in BROWSERS for start_ms in starts_ms],
        scopes=[{"browser": browser} for browser in BROWSERS],
        fields=lambda key: {"browser": key[0], "window_start": _timestamp(START_MS + key[1])},
        columns=lambda key, count: {
            "browser": key[0],
            "window_start": (START_MS + key[1]) * 1_000,
            "window_end": None,
            "action_count": count,
        },
        key_of=lambda row: (row.browser, row.window_start.ToMilliseconds() - START_MS),
        count_of=lambda row: int(row.action_count),
        expires_s=lambda key: key[1] / 1_000 + WINDOW_S + RETENTION_S,
        batches=False,
    )


def _timestamp(time_ms: int) -> dict[str, int]:
    return {"seconds": time_ms // 1_000, "nanos": time_ms % 1_000 * 1_000_000}


class Written(NamedTuple):
    """A record of a changelog."""

    generation: int
    partition: int
    key: bytes | None
    value: bytes | None
    version: Version | None = None


class Begun(NamedTuple):
    """A generation begins: its changelog is made, with so many partitions, and its manifest published."""

    generation: int
    partitions: int


Step = Written | Begun


class Happening(Enum):
    """What happens to the gateways within a chapter: to all at once, or to one after the other."""

    NOTHING = "nothing happens"
    RESTART = "all gateways restart"
    RESTARTS = "each gateway restarts"
    RESTORE = "all changelogs are compacted, tombstones too, and all stores are lost"
    RESTORES = "all changelogs are compacted, and each gateway loses its store"


LASTS_S = {
    Happening.NOTHING: 18,
    Happening.RESTART: 22,
    Happening.RESTARTS: 36,
    Happening.RESTORE: 28,
    Happening.RESTORES: 42,
}
"""How long a chapter is: three gateways have read everything at its end, and swept what expired before they could."""


@dataclass
class Chapter:
    """What is written `before` and after something happens, and what is so `end_s` after the world's beginning.

    `rows`: the count of each key's row.
    `sent`: what a subscriber gets of each key in this chapter, unless it begins anew; None is a delete.
    """

    happening: Happening
    end_s: int
    before: Sequence[Step]
    after: Sequence[Step]
    generation: int
    partitions: int
    rows: Mapping[Key, int]
    sent: Mapping[Key, Sequence[int | None]]


@dataclass
class _Generation:
    number: int
    partitions: int
    done: int = 0
    written: list[Written] = field(default_factory=list)  # what may come again


class _Writer:
    """The job: it folds events, of which the first has number 1, and keeps one generation or two."""

    def __init__(self, subject: Subject, seed: int) -> None:
        self.chance = random.Random(f"{seed}-{subject.table_name}-history")
        self.events: list[tuple[Key, bool]] = []
        self.generations: list[_Generation] = []
        self.steps: list[Step] = []
        self._subject = subject

    def begin(self, partitions: int) -> None:
        """Begin a generation, with the newest row of each key."""
        generation = _Generation(len(self.generations) + 1, partitions)
        self.generations.append(generation)
        self.steps.append(Begun(generation.number, partitions))
        newest = {key: (event, deletes) for event, (key, deletes) in enumerate(self.events, start=1)}
        for key, (event, deletes) in newest.items():
            if not deletes:
                self._write(generation, key, event, deletes=False)
        generation.done = len(self.events)

    def add_events(self) -> None:
        """Let some events come."""
        keys = self._subject.keys
        for _ in range(self.chance.randint(4, 14)):
            self.events.append((self.chance.choice(keys), self.chance.random() < 0.25))

    def fold(self, generations: Sequence[_Generation]) -> None:
        """Write the rows of all events into these generations, each at its own pace, with what else happens."""
        while behind := [each for each in generations if each.done < len(self.events)]:
            generation = self.chance.choice(behind)
            generation.done += 1
            key, deletes = self.events[generation.done - 1]
            self._write(generation, key, generation.done, deletes=deletes)
            match self.chance.randrange(9):
                case 0:  # a restart from a checkpoint
                    self.steps += generation.written[-self.chance.randint(1, 5) :]
                case 1:  # a task that was taken for dead
                    count = min(2, len(generation.written))
                    self.steps += self.chance.sample(generation.written, count)
                case 2 | 3:
                    self._write_markers(generation, final=False)
                case 4:
                    self._write_odd(generation)

    def end(self, generation: _Generation) -> None:
        """End a generation; something of it comes late all the same."""
        self._write_markers(generation, final=True)
        self._write_markers(self.generations[-1], final=False)
        self.steps += self.chance.sample(generation.written, min(2, len(generation.written)))

    def _write(self, generation: _Generation, key: Key, event: int, *, deletes: bool) -> None:
        version = make_version(generation.number, event)
        value = None if deletes else self._subject.value(key, event)
        partition = self._subject.partition_of(key, generation.partitions)
        written = Written(generation.number, partition, self._subject.key_bytes(key), value, version)
        generation.written.append(written)
        self.steps.append(written)

    def _write_markers(self, generation: _Generation, *, final: bool) -> None:
        marker = ProgressMarker(generation=generation.number, final=final)
        marker.sources.add(topic=SOURCE, next_offsets=next_offsets(generation.done))
        for partition in range(generation.partitions):
            self.steps.append(Written(generation.number, partition, b"", marker.SerializeToString()))

    def _write_odd(self, generation: _Generation) -> None:
        """Write a record that is none. No row has its key: the last record of a key is what compaction keeps."""
        number, subject = generation.number, self._subject
        version = make_version(number, 10**6)
        key, value = self.chance.choice(subject.keys), subject.value(subject.keys[0], 1)
        own = subject.partition_of(key, generation.partitions)
        other = (own + 1) % generation.partitions
        marker = ProgressMarker(generation=number)
        marker.sources.add(topic=SOURCE, next_offsets={-1: 5})
        self.steps.append(
            self.chance.choice(
                [
                    Written(number, own, None, value, version),
                    Written(number, own, b"no key", value, version),
                    Written(number, own, b"no key", None, version),
                    Written(number, own, b"k" * 2_000, value, version),
                    Written(number, other, subject.key_bytes(key), subject.value(key, 7), version),
                    Written(number, other, subject.key_bytes(key), None, version),
                    Written(number, own, b"", b"no marker", None),
                    Written(number, own, b"", marker.SerializeToString(), None),
                ]
            )
        )


def history_of(subject: Subject, seed: int) -> list[Chapter]:
    """Return a history: four chapters, of which one has a rebuild, in any order."""
    writer = _Writer(subject, seed)
    chance = writer.chance
    writer.begin(PARTITIONS)
    happenings = [
        Happening.NOTHING,
        chance.choice([Happening.RESTART, Happening.RESTARTS]),
        chance.choice([Happening.RESTORE, Happening.RESTORES]),
        chance.choice(list(Happening)),
    ]
    chance.shuffle(happenings)
    rebuild = chance.randrange(len(happenings))
    chapters, rows, end_s = [], dict[Key, int](), 0
    for number, happening in enumerate(happenings):
        first = len(writer.events)
        end_s += LASTS_S[happening]
        before = _written_next(writer, rebuilds=number == rebuild)
        if happening in (Happening.RESTORE, Happening.RESTORES):
            writer.generations[-1].written.clear()  # of what was compacted away nothing comes late
        after = _written_next(writer, rebuilds=False)
        sent = dict[Key, list[int | None]]()
        for event, (key, deletes) in enumerate(writer.events[first:], start=first + 1):
            if not deletes:
                rows[key] = event
            elif rows.pop(key, None) is None:
                continue
            sent.setdefault(key, []).append(None if deletes else event)
        chapters.append(
            Chapter(
                happening=happening,
                end_s=end_s,
                before=before,
                after=after,
                generation=writer.generations[-1].number,
                partitions=writer.generations[-1].partitions,
                rows=dict(rows),
                sent=sent,
            )
        )
    return chapters


def _written_next(writer: _Writer, *, rebuilds: bool) -> list[Step]:
    old = writer.generations[-1]
    writer.add_events()
    writer.fold([old])
    if rebuilds:
        writer.begin(writer.chance.choice([PARTITIONS, *range(2, 6)]))
        writer.add_events()
        writer.fold(writer.generations[-2:])
        writer.end(old)
    steps, writer.steps = writer.steps, []
    return steps
