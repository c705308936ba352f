"""What users write to declare a table: frozen data, no Spark.

A file of one declaration has a constant `TABLE`:

    TABLE = Table(
        name="ratings",
        contract="examples/ratings/v1/ratings.proto",
        source=Source("ratings", Avro(RATING_SCHEMA)),
        key={"movie_id": "movie_id"},
        columns={"average_rating": "avg(rating)", "update_time": "max(kafka.timestamp)"},
    )

Its expressions are Spark SQL. Those of a source (`where`, `event_time`) and the table's `key` see the fields of one
record; `columns` aggregate over the records of a key; `having` sees the row that came out. The struct `kafka` beside
the fields has the record's own `key`, `value`, `topic`, `partition`, `offset` and `timestamp`. Where a source has
`each`, all but `each` itself see `item`, too.

Decision: docs/decisions/0100-declarations-take-more.md
Decision: docs/decisions/0120-rows-of-another-table.md
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

from tablegate.gateway.contract.binder.problems import ContractError
from tablegate.gateway.contract.rows import row_schema
from tablegate.gateway.contract.types import is_topic_name
from tablegate.jobs.contracts import contract_path, first_problem, table_of_contract
from tablegate.jobs.declared import DeclarationError, SourceLine, declaring_line
from tablegate.jobs.formats import Avro, Bytes, Double, Format, Json, Long, Protobuf, RowKey, Text
from tablegate.jobs.function_code import function_code
from tablegate.jobs.history import History
from tablegate.jobs.messages import why_not_written
from tablegate.jobs.processor import Processor

__all__ = [
    "KAFKA_COLUMN",
    "Avro",
    "Bytes",
    "DeclarationError",
    "Double",
    "Format",
    "Global",
    "History",
    "Join",
    "Json",
    "Latest",
    "Long",
    "Mode",
    "Processor",
    "ProcessorOutput",
    "Protobuf",
    "RecordOutput",
    "RowOutput",
    "Source",
    "Table",
    "Text",
    "Window",
    "rows_of",
]

KAFKA_COLUMN = "kafka"
"""Struct of a source record's own key, value, topic, partition, offset and timestamp, for expressions.

With `each`, it has the place of the element in its array as well: `element`, from 0. With `headers`, it has those, a
MAP<STRING, BINARY>: of several with one name the last.
"""
WINDOW_COLUMN = "window"
"""Struct of a window's start and end, for the key and columns of a table with a `Window`."""
ITEM_COLUMN = "item"
"""Element of the array that a `Source` or a `RecordOutput` has `each` of."""

GENERATION_MAX = 2**32 - 1  # it travels in 4 bytes
REALTIME_TRIGGER_S_MIN = 5.0  # Spark refuses shorter batches in Real-time Mode
EXPIRES_AFTER_S_MIN = 60.0  # to remove rows, a job stops its query for some seconds, ten times in that time at most

_TABLE_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
SIDE_NAME = re.compile(r"[a-z][a-z0-9_]*")
_WORD = re.compile(r"[A-Za-z_]\w*(?!\w|\s*\()")  # functions are none
_WINDOW_CALL = re.compile(r"\b(session_)?window\s*\(", re.IGNORECASE)
_OWN_NAMES = "__"
"""What the names of the runtime's own columns begin with."""


class Mode(Enum):
    """How a job runs: Spark's Real-time Mode (milliseconds), or micro-batches."""

    REALTIME = "realtime"
    MICROBATCH = "microbatch"


class Join(Enum):
    """What a key without a row on that side means: no row in the table, or null fields."""

    INNER = "inner"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class Source:
    """A topic, and how its records become rows of fields.

    `value` and `key` say which fields a record has: `Avro`, `Json`, `Protobuf`, `Text`, `Long`, `Double`, `Bytes`.
    `where`: records that do not meet it are passed over. `event_time`: a TIMESTAMP of the fields, for windows; by
    default Kafka's own. `keyed`: the records of one key of the table lie in one partition, in their order, so that a
    row's version can be the offset of its newest input, by which producers read their own writes; the job stops where
    that turns out to be untrue. Else the version is the number of inputs, right for any producer.
    `each`: an array made of the record's fields, each element of which is an input of its own, `item` in all other
    expressions, `where` among them. A record without elements makes none. `kafka.element` is the element's place.
    `headers`: expressions see the record's headers by name, `kafka.headers['trace']`, null where there is none of it.
    `more_topics`: topics with records of the same formats, read as if they were one with it; `kafka.topic` tells which.
    `pattern`: `topic` is a regular expression of Python's, and all topics whose whole names match it are read as if
    they were one, also those that are made later. `history`: records that come before the topic's.
    """

    topic: str
    value: Format
    _: KW_ONLY
    key: Format | RowKey | None = None
    where: str | None = None
    event_time: str | None = None
    keyed: bool = False
    each: str | None = None
    headers: bool = False
    more_topics: tuple[str, ...] = ()
    pattern: bool = False
    history: History | None = None
    declared_at: SourceLine = field(default_factory=declaring_line, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.pattern:
            self._check_pattern()
        else:
            check_topic(self.topic, f"{self.declared_at}: source topic")
        if isinstance(self.key, Avro) and self.key.others:
            raise DeclarationError(
                f'{self.declared_at}: source "{self.topic}" has a key of several types; remove others'
            )
        if self.more_topics:
            self._check_topics()
        if self.history is not None:
            self._check_history(self.history)
        if self.each is not None:
            self._check_each()
        seen: set[str] = set()
        for name in self.field_names:
            if name == KAFKA_COLUMN or name.startswith(_OWN_NAMES):
                raise DeclarationError(
                    f'{self.declared_at}: source "{self.topic}" has a field "{name}", a name that the job needs '
                    "itself; give the field another name in the schema, and its old one as an alias"
                )
            if name.lower() in seen:
                raise DeclarationError(
                    f'{self.declared_at}: source "{self.topic}" has field "{name}" twice (Spark ignores case '
                    "in names); give one of them another name"
                )
            seen.add(name.lower())

    def _check_topics(self) -> None:
        if isinstance(self.more_topics, str):
            raise DeclarationError(
                f'{self.declared_at}: more_topics of source "{self.topic}" is a text; write ("{self.more_topics}",)'
            )
        for name in self.more_topics:
            check_topic(name, f"{self.declared_at}: source topic")
        if len({*self.topics}) < len(self.topics):
            raise DeclarationError(f'{self.declared_at}: source "{self.topic}" has a topic twice; remove one')
        if self.keyed:
            raise DeclarationError(
                f'{self.declared_at}: source "{self.topic}" has several topics, and offsets of two topics have no '
                "order; remove keyed=True"
            )

    def _check_pattern(self) -> None:
        where = f'{self.declared_at}: source "{self.topic}" is a pattern'
        try:
            re.compile(self.topic)
        except re.error as error:
            raise DeclarationError(f"{where} that is no regular expression: {error}; correct it") from None
        if not self.topic:
            raise DeclarationError(f"{where} that no topic matches; give a regular expression of topics' whole names")
        if self.more_topics:
            raise DeclarationError(f'{where} and has more_topics; add their names to the pattern: "{self.topic}|…"')
        if self.keyed:
            raise DeclarationError(f"{where}, and offsets of two topics have no order; remove keyed=True")
        if self.history is not None:
            raise DeclarationError(
                f"{where}, and a history goes up to a place in topics that are known; remove one of the two"
            )

    def matches(self, name: str) -> bool:
        """Return whether a topic of this name is read, as far as the declaration says."""
        return re.fullmatch(self.topic, name) is not None if self.pattern else name in self.topics

    def _check_history(self, history: History) -> None:
        where = f'{self.declared_at}: source "{self.topic}" has a history'
        if self.keyed:
            raise DeclarationError(f"{where}, whose records have no offset to make versions of; remove keyed=True")
        if self.more_topics and history.offsets is not None:
            raise DeclarationError(f"{where} and several topics; give topic_from as a time")

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics that are read; of a pattern nothing but that."""
        return self.topic, *self.more_topics

    def of_one_topic(self, topics: "Sequence[str]") -> "Iterator[Source]":
        """Yield a source for each of the topics that it is read from."""
        for name in topics:
            yield replace(self, topic=name, more_topics=(), pattern=False)

    def _check_each(self) -> None:
        where = f'{self.declared_at}: source "{self.topic}"'
        if not (self.each or "").strip():
            raise DeclarationError(f"{where} has an empty each; give an expression that makes an array, or remove it")
        if self.keyed:
            raise DeclarationError(
                f"{where} has each and keyed, and several elements of one record would make changes of one version; "
                "remove keyed=True"
            )
        if ITEM_COLUMN in map(str.lower, self.field_names):
            raise DeclarationError(
                f'{where} has a field "{ITEM_COLUMN}", which with each is the element; give the field another name in '
                "the schema"
            )

    @property
    def is_table(self) -> bool:
        """Whether the records are rows of another table, whose name `topic` then is."""
        return isinstance(self.key, RowKey)

    @property
    def names(self) -> tuple[str, ...]:
        """Names that expressions see beside `kafka`: of the record's fields, and `item` with `each`."""
        return self.field_names if self.each is None else (*self.field_names, ITEM_COLUMN)

    @property
    def field_names(self) -> tuple[str, ...]:
        """Names of a record's fields; raise `DeclarationError` where a format is wrong."""
        names: tuple[str, ...] = ()
        for form in (self.value, self.key):
            if form is not None:
                try:
                    names += form.field_names
                except ValueError as error:
                    raise DeclarationError(f'{self.declared_at}: source "{self.topic}": {error}') from None
        return names


def rows_of(table: str, *, contract: str, where: str | None = None) -> Source:
    """Return a source of the rows of another table that a job keeps, for a `Latest` or a `Global` side.

    `table` is its name, and `contract` what that table has. A row has the columns of its message; a delete has those of
    the key. Which topic they are in, the manifest tells when a job starts: it is of one generation, and the job stops
    where the other table has been built anew.
    """
    declared_at = declaring_line()
    where_it_is = f'{declared_at}: rows_of("{table}")'
    try:
        bound = table_of_contract(table, contract, declared_at)
    except ContractError as error:
        raise DeclarationError(f"{where_it_is}: {first_problem(error, contract_path(contract, declared_at))}") from None
    except ValueError as error:
        raise DeclarationError(f"{where_it_is}: {error}") from None
    if bound.window is not None:
        raise DeclarationError(
            f"{where_it_is}: its windows end without a record that says so, and would stay here for ever; read the "
            "sources of that table"
        )
    schema = dict(row_schema(bound))
    key = {column.name for column in bound.key}
    schema["fields"] = [field for field in schema["fields"] if field["name"] not in key]
    return Source(table, Avro(json.dumps(schema)), key=RowKey(bound.key), where=where)


@dataclass(frozen=True, slots=True)
class Latest:
    """A side of a join that is a table itself: the newest record of each key counts, a null value deletes it.

    `join`: whether the table has a row for a key that this side lacks. `key` replaces the table's key expressions for
    this side's records, where their fields have other names. A record that does not meet the source's `where` deletes,
    too: what it replaces is no longer so.

    The only side of a table may take key columns from fields of the value, beside all fields of the record's key. Then
    the row moves with them: what the record made before is deleted.
    """

    source: Source
    _: KW_ONLY
    join: Join = Join.INNER
    key: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Global:
    """A topic that is read from its start in each batch, and joined to each record of the other sides.

    `key`: expression of this topic's own key. `on`: the key function, an expression over the other side's record.
    A change of this topic shows in a row with the row's next input. Micro-batches only; for topics that fit in memory.
    """

    source: Source
    _: KW_ONLY
    key: str
    on: str
    join: Join = Join.LEFT


Side = Source | Latest | Global


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Windows of event time: `size_s` long, one each `hop_s` (by default one after the other).

    `late_s`: how far behind the newest event of its partition another may come; a later one is dropped, and counted.
    `ahead_s`: how far ahead of Kafka's time of its record an event may be; one beyond is malformed, as it would end the
    windows of all others.
    """

    size_s: float
    hop_s: float | None = None
    late_s: float = 0.0
    ahead_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class RowOutput:
    """A topic that gets a record for each change of the table; one without value where the row is gone.

    `key` and `value` are expressions over the row in a format: `Long("movie_id")`, `Json("id, name")`. The fields of an
    `Avro` record are columns of these names. `where`: changes to rows that do not meet it are left out.
    """

    topic: str
    _: KW_ONLY
    key: Format
    value: Format
    where: str | None = None


@dataclass(frozen=True, slots=True)
class RecordOutput:
    """A topic that gets a record for each record of a source; with `each`, for each element of an array in it.

    `key` and `value` are expressions over the record's fields in a format, and over `item`, the element. `side` names
    the source in a table that has several.
    """

    topic: str
    _: KW_ONLY
    key: Format
    value: Format
    where: str | None = None
    each: str | None = None
    side: str | None = None


@dataclass(frozen=True, slots=True)
class ProcessorOutput:
    """A topic that gets what a processor emits, each record once, also when a batch is run again.

    `by`: the processor's key, expressions over the record's fields. `key` and `value` are expressions over `by` and
    what it emits, and the same when a batch is run again.
    """

    topic: str
    _: KW_ONLY
    processor: Processor
    by: Mapping[str, str]
    key: Format
    value: Format
    where: str | None = None
    side: str | None = None


Output = RowOutput | RecordOutput | ProcessorOutput
SharedOutputs = tuple[RecordOutput, ...] | tuple[ProcessorOutput]
"""Outputs beside the table's changes that one query feeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table: of one `source`, or of several `sides` by name.

    `name` is the table's name in the contract. `contract` is the path of the `.proto` or descriptor set: absolute, or
    as seen from the directory of the declaration or one above it, or of an example. `key` and `columns` have an
    expression for each column of the contract's row. With `sides`, the fields of a side's records are a struct of its
    name: `count(actions)`, `prospects.name`. With a `processor`, `columns` are expressions over what it emits. A row
    that does not meet `having` is deleted.

    `trigger_s` (Real-time Mode) is the length of a batch: how often progress is saved and published, what Kafka
    Streams calls `commit.interval.ms`; rows come at once all the same. `emit_interval_s` (micro-batches) is how often
    rows come: at most one change of a key in that time, what Kafka Streams' record cache does; 0 is as often as
    possible. `atomic` (micro-batches): readers see the changes of a batch in one partition all at once, and a batch has
    20,000 changes at most. `generation` is raised when logic or input changes: then the table is built anew, in a
    changelog of its own.

    `expires_after_s` (micro-batches): how long after its newest input, by Kafka's time, a row is deleted, and the job
    forgets it; up to a tenth later. An input behind that begins the row anew.

    `functions` (micro-batches): UDFs of Spark's by name, for the expressions: what `udf`, `pandas_udf` or `arrow_udf`
    makes of a function of yours. They get what the expression gives them, nulls too, and give the same for the same.
    """

    name: str
    contract: str
    source: Source | None = None
    sides: Mapping[str, Side] = field(default_factory=dict)
    key: Mapping[str, str]
    columns: Mapping[str, str]
    window: Window | None = None
    having: str | None = None
    expires_after_s: float | None = None
    functions: Mapping[str, Any] = field(default_factory=dict)
    processor: Processor | None = None
    outputs: tuple[Output, ...] = ()
    mode: Mode = Mode.REALTIME
    trigger_s: float | None = None
    emit_interval_s: float | None = None
    atomic: bool = False
    generation: int = 1
    function_codes: Mapping[str, str] = field(init=False, default_factory=dict, compare=False, repr=False)
    declared_at: SourceLine = field(default_factory=declaring_line, compare=False, repr=False)

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise DeclarationError(f'{self.declared_at}: table "{self.name}": {problem}')
        # Now, as the file may be another one when a job asks.
        codes = {name: function_code(function) for name, function in self.functions.items()}
        object.__setattr__(self, "function_codes", codes)
        # A frozen declaration holds no dict that somebody else may still change.
        for name in ("sides", "key", "columns", "functions", "function_codes"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @property
    def all_sides(self) -> Mapping[str, Side]:
        """The sides by name; a lone source has the empty name, and its fields no struct around them."""
        return {"": self.source} if self.source is not None else self.sides

    def source_of(self, side: str) -> Source:
        """Return the source of a side."""
        found = self.all_sides[side]
        return found if isinstance(found, Source) else found.source

    @property
    def has_row_outputs(self) -> bool:
        """Whether topics get the table's changes."""
        return any(isinstance(output, RowOutput) for output in self.outputs)

    @property
    def has_keyed_versions(self) -> bool:
        """Whether a row's version is the offset of its newest input: then all its inputs lie in one partition."""
        sources = [self.source_of(name) for name, side in self.all_sides.items() if not isinstance(side, Global)]
        return self.processor is None and len(sources) == 1 and sources[0].keyed

    @property
    def rows_move(self) -> bool:
        """Whether the newest record of a key of the source says which row it makes, so that the row may become another.

        It is so where the only side is a `Latest`, and a key column is made of fields of its value.
        """
        return any(isinstance(side, Latest) and self.value_fields_in_key(name) for name, side in self.sides.items())

    def value_fields_in_key(self, side: str) -> list[str]:
        """Return the fields of a side's value that its key expressions name."""
        declared = self.sides[side]
        own = declared.key if isinstance(declared, Latest) and declared.key is not None else self.key
        words = {word.lower() for expression in own.values() for word in _WORD.findall(expression)}
        return [name for name in self.source_of(side).value.field_names if name.lower() in words]

    def why_not_realtime(self) -> str | None:
        """Return what in the declaration needs micro-batches; None where Real-time Mode supports all of it."""
        if self.atomic:
            return "atomic batches"
        if self.processor is not None:
            return "a processor"
        if self.expires_after_s is not None:
            return "rows that expire, as the job stops its query to remove them"
        if self.functions:
            return f'the function "{next(iter(self.functions))}", which Python computes'
        for name, side in self.all_sides.items():
            if isinstance(side, Global):
                return f'the global side "{name}"'
            source = self.source_of(name)
            if isinstance(source.value, Protobuf) or isinstance(source.key, Protobuf):
                return f'the Protobuf of source "{source.topic}" ({source.declared_at}), which Python decodes'
        return None

    def _problems(self) -> Iterator[str]:
        yield from problems_of_name(self.name, self.generation)
        yield from self._problems_of_columns()
        yield from self._problems_of_functions()
        yield from self._problems_of_sides()
        yield from self._problems_of_each()
        yield from self._problems_of_outputs()
        yield from self._problems_of_time()
        if self.expires_after_s is not None:
            yield from self._problems_of_expiry(self.expires_after_s)

    def _problems_of_expiry(self, expires_after_s: float) -> Iterator[str]:
        what = f"expires_after_s {expires_after_s:g}"
        if not EXPIRES_AFTER_S_MIN <= expires_after_s < math.inf:
            yield f"{what} is not a time of {EXPIRES_AFTER_S_MIN:g} seconds or more"
        if self.window is not None:
            yield f"{what} and a window, whose rows end by the contract's retention; remove one"
        if self.processor is not None:
            yield f"{what} and a processor, which ends its rows itself: let it emit what does not meet having"
        if self.atomic:
            yield f"{what}, and any number of rows may expire at once, while an atomic batch is bounded; remove one"
        if self.has_keyed_versions:
            yield f"{what} and keyed=True, by which versions are offsets, and a delete by time has none; remove keyed"
        tables = [name for name, side in self.sides.items() if isinstance(side, Latest)]
        others = [name for name, side in self.sides.items() if not isinstance(side, Global)]
        if tables and len(others) > 1:
            yield (
                f'{what}, and with a row the newest record of side "{tables[0]}" would be forgotten, which later '
                "records need; make that side a Global, or remove expires_after_s"
            )

    def _problems_of_functions(self) -> Iterator[str]:
        for name, function in self.functions.items():
            if not SIDE_NAME.fullmatch(name):
                yield f'"{name}" is not a valid name of a function; use lower-case letters, digits and underscores'
            if not hasattr(function, "evalType"):
                yield (
                    f'function "{name}" is no UDF of Spark\'s; decorate it with udf, pandas_udf or arrow_udf of '
                    "pyspark.sql.functions, and its type"
                )
            elif not function.deterministic:
                yield (
                    f'function "{name}" is called nondeterministic: it would give something else when a batch runs '
                    "again; compute it from what is in the record"
                )

    def _problems_of_sides(self) -> Iterator[str]:
        if (self.source is None) == (not self.sides):
            yield "give either source or sides"
            return
        for name, side in self.sides.items():
            if not SIDE_NAME.fullmatch(name) or name in (KAFKA_COLUMN, WINDOW_COLUMN, ITEM_COLUMN):
                yield f'"{name}" is not a valid side name; use lower-case letters, digits and underscores'
            if isinstance(side, Latest):
                yield from self._problems_of_latest(name, side)
            if self.source_of(name).is_table and self.source_of(name).topic == self.name:
                yield f'side "{name}" has the rows of the table itself; name another table'
            if not isinstance(side, Source) and (side.source.more_topics or side.source.pattern):
                yield (
                    f'side "{name}" has several topics, and which of two topics has the newer record of a key is not '
                    "known; give each topic a side of its own"
                )
            if not isinstance(side, Source) and side.source.each is not None:
                yield (
                    f'side "{name}" has each, and the newest record of a key counts on it, with all that is in it; '
                    "remove each, or make it a Source"
                )
        for name, side in self.all_sides.items():
            if isinstance(side, Source) and side.is_table:
                yield (
                    f"{f'side {chr(34)}{name}{chr(34)}' if name else 'the source'} has the rows of table "
                    f'"{side.topic}", of which each change would count, and may come again; write '
                    f"sides={{{chr(34)}{name or side.topic}{chr(34)}: Latest(rows_of(…))}}"
                )
        if self.sides and all(isinstance(side, Global) for side in self.sides.values()):
            yield "all sides are global, so no record would ever make a row; give a source or a Latest side"
        if self.processor is not None and self.source is None:
            yield "a processor has one source; remove sides or processor"
        yield from self._problems_of_histories()

    def _problems_of_histories(self) -> Iterator[str]:
        for name, side in self.all_sides.items():
            source = self.source_of(name)
            if source.history is None:
                continue
            if not isinstance(side, Source):
                yield (
                    f'side "{name}" has a history, which has no order with the records of its topic; write its records '
                    "to the topic, or make it a Source"
                )
            if self.atomic:
                yield f'source "{source.topic}" has a history, and an atomic batch is bounded; remove history or atomic'
            if [self.source_of(one).topic for one in self.all_sides].count(source.topic) > 1:
                yield f'topic "{source.topic}" has a history, and is of several sides; make them one'

    def _problems_of_latest(self, name: str, side: Latest) -> Iterator[str]:
        if side.key is not None and list(side.key) != self._record_key():
            yield f'side "{name}" has other key columns than the table; give the same in the same order'
        fields = self.value_fields_in_key(name)
        if not fields:
            return
        reads = f'side "{name}" has a key made of "{fields[0]}", a field of its value'
        if len(self.sides) > 1 or self.window is not None:
            yield (
                f"{reads}, so its rows would stay where they were when it changes; make the key of the fields of the "
                "record's key, or give that side a table of its own"
            )
            return
        if side.source.keyed:
            yield f"{reads}, so records of one row may come from several partitions; remove keyed=True"
        own = [one.strip(" `") for one in (side.key or self.key).values()]
        record_key = side.source.key.field_names if side.source.key is not None else ()
        if not record_key or not set(record_key) <= set(own):
            which = (
                " and ".join(f'"{one}"' for one in record_key) or "a field of the record's key, which needs a format"
            )
            yield f"{reads}, and several records may have the same; add key columns that are {which}"

    def _record_key(self) -> list[str]:
        return [name for name, expression in self.key.items() if not is_window_start(expression)]

    def _problems_of_columns(self) -> Iterator[str]:
        if not self.key:
            yield "no key; give the expression of each key column of the contract"
        if not self.columns:
            yield "no columns; give an aggregate for each column of the contract that is not in the key"
        for name in self.key:
            if name in self.columns:
                yield f'"{name}" is in key and in columns; remove it from one'
        for name, expression in {**self.key, **self.columns}.items():
            if not expression.strip():
                yield f'column "{name}" has no expression; write Spark SQL'
        own_keys = [side.key for side in self.sides.values() if isinstance(side, Latest) and side.key is not None]
        for name, expression in (pair for key in (self.key, *own_keys) for pair in key.items()):
            made = _WINDOW_CALL.search(expression)
            if made is not None and made.group(1):
                yield (
                    f'key column "{name}" makes session windows, in which each record would be a session of its own; '
                    "keep the newest session of a key by a processor"
                )
            elif made is not None:
                yield f'key column "{name}" makes windows of its own; give window=Window(size_s=…) and window.start'
        starts = [name for name, expression in self.key.items() if is_window_start(expression)]
        if self.window is not None and len(starts) != 1:
            yield 'has a window, so one key column must be "window.start"'
        if self.window is None and starts:
            yield f'key column "{starts[0]}" is the start of a window; give window=Window(size_s=…)'

    def _problems_of_outputs(self) -> Iterator[str]:
        schemas: dict[tuple[str, int], object] = {}
        for output in self.outputs:
            yield from self._problems_of_patterns(output)
            for place, form in enumerate((output.key, output.value)):
                if isinstance(form, Protobuf):
                    yield from _problems_of_protobuf(output.topic, form)
                # A subject has one schema at a time.
                schema = form.schema if isinstance(form, Avro) else form.files if isinstance(form, Protobuf) else None
                if schema is not None and schemas.setdefault((output.topic, place), schema) != schema:
                    yield f'outputs to "{output.topic}" have different schemas; give them one, or other topics'
            check_topic(output.topic, f'{self.declared_at}: table "{self.name}": output topic')
            for form in (output.key, output.value):
                if isinstance(form, Avro):
                    yield from _problems_of_avro(output.topic, form)
                if isinstance(form, Json) and form.at is not None:
                    yield f'output "{output.topic}" has Json(…, at="{form.at}"), which is for sources; remove at'
            if isinstance(output, RowOutput):
                if self.atomic:
                    yield (
                        f'output "{output.topic}" gets the changes of the table, and an atomic batch goes to the '
                        "changelog alone; remove the output, or atomic"
                    )
                continue
            names = [name for name, side in self.all_sides.items() if not isinstance(side, Global)]
            if (
                isinstance(output, RecordOutput)
                and output.each is not None
                and (output.side or "") in names
                and self.source_of(output.side or "").each is not None
            ):
                yield f'output "{output.topic}" has each, and its source, too; remove one: both name the element item'
            if (output.side or "") not in names:
                known = ", ".join(f'"{name}"' for name in names if name)
                yield (
                    f'output "{output.topic}" needs side=, one of {known}'
                    if known
                    else (f'output "{output.topic}" names a side, but the table has one source; remove side=')
                )
        written: dict[tuple[str, str], SharedOutputs] = {}
        for outputs in shared_outputs(self.outputs):
            source = self.all_sides.get(outputs[0].side or "")
            for topic in {output.topic for output in outputs} if source is not None else ():
                read = self.source_of(outputs[0].side or "").topic
                # What a query has written is known by the table and the topic that it was made of.
                if written.setdefault((topic, read), outputs) is not outputs:
                    yield (
                        f'two outputs write to "{topic}" what they make of topic "{read}" apart from each other, so '
                        "nobody could tell after a crash which of them has written a record; give them different topics"
                    )

    def _problems_of_patterns(self, output: Output) -> Iterator[str]:
        for name in self.all_sides:
            source = self.source_of(name)
            if source.pattern and source.matches(output.topic):
                yield (
                    f'output "{output.topic}" matches the pattern "{source.topic}" of a source, so the table would '
                    "read what it writes; give the output another topic, or correct the pattern"
                )
        side = "" if isinstance(output, RowOutput) else output.side or ""
        if not isinstance(output, RowOutput) and side in self.all_sides and self.source_of(side).pattern:
            yield (
                f'output "{output.topic}" is made of the records of a pattern, and could not tell after a topic more '
                "which of them it has written; name the topics: topic and more_topics"
            )

    def _problems_of_each(self) -> Iterator[str]:
        for name in self.all_sides:
            source = self.source_of(name)
            if self.atomic and source.each is not None:
                yield (
                    f'source "{source.topic}" has each, which makes any number of changes of one record, and an atomic '
                    "batch is bounded; remove each, or atomic"
                )

    def _problems_of_time(self) -> Iterator[str]:
        if not isinstance(self.mode, Mode):
            yield f"mode {self.mode!r} is not a Mode; use Mode.REALTIME or Mode.MICROBATCH"
            return
        if self.window is not None:
            yield from _problems_of_window(self.window, has_processor=self.processor is not None)
        if self.mode is Mode.REALTIME:
            reason = self.why_not_realtime()
            if reason is not None:
                yield f"Spark's Real-time Mode does not support {reason}; use mode=Mode.MICROBATCH"
            if self.emit_interval_s is not None:
                yield "Real-time Mode emits each change; remove emit_interval_s, or use mode=Mode.MICROBATCH"
            if self.trigger_s is not None and self.trigger_s < REALTIME_TRIGGER_S_MIN:
                yield (
                    f"trigger_s {self.trigger_s:g} is too short for Real-time Mode; "
                    f"use {REALTIME_TRIGGER_S_MIN:g} or more"
                )
        else:
            if self.trigger_s is not None:
                yield "trigger_s is the batch of Real-time Mode; in micro-batches give emit_interval_s"
            if self.emit_interval_s is not None and self.emit_interval_s < 0:
                yield f"emit_interval_s {self.emit_interval_s:g} is negative; use 0 or more"


def problems_of_name(name: str, generation: int) -> Iterator[str]:
    """Yield what is wrong with what every table has."""
    if not _TABLE_NAME.fullmatch(name):
        yield "the name is not valid; use a lower-case letter, then at most 62 letters, digits or underscores"
    if not 1 <= generation <= GENERATION_MAX:
        yield f"generation {generation} is not from 1 to {GENERATION_MAX}"


def _problems_of_avro(topic: str, form: Avro) -> Iterator[str]:
    try:
        names = form.field_names
    except ValueError as error:
        yield f'output "{topic}": {error}'
        return
    if not names:
        yield f'output "{topic}" has an Avro record without fields; give it one'
    if form.others:
        yield f'output "{topic}" has Avro of several types, which is for sources; remove others'


def _problems_of_protobuf(topic: str, form: Protobuf) -> Iterator[str]:
    try:
        why_not = why_not_written(form.descriptor)
    except ValueError as error:
        yield f'output "{topic}": {error}'
        return
    if why_not is not None:
        yield f'output "{topic}" is in Protobuf with {why_not}; give a message without it, or use Json'


def _problems_of_window(window: Window, *, has_processor: bool) -> Iterator[str]:
    if has_processor:
        yield "has a processor and a window; a processor keeps its own time, remove one"
    if window.size_s <= 0 or (window.hop_s is not None and not 0 < window.hop_s <= window.size_s):
        yield "window needs size_s above 0, and hop_s above 0 and at most size_s"
    if window.late_s < 0:
        yield f"window late_s {window.late_s:g} is negative; use 0 or more"
    if window.ahead_s < 0:
        yield f"window ahead_s {window.ahead_s:g} is negative; use 0 or more"


def shared_outputs(outputs: Sequence[Output]) -> list[SharedOutputs]:
    """Return the outputs that are not made of the table's changes: together those that one query can feed.

    Records of a side go to any number of topics. A processor has a state, and a query has one operator with state.
    """
    of_side: dict[str | None, tuple[RecordOutput, ...]] = {}
    for output in outputs:
        if isinstance(output, RecordOutput):
            of_side[output.side] = (*of_side.get(output.side, ()), output)
    return [*of_side.values(), *((output,) for output in outputs if isinstance(output, ProcessorOutput))]


def is_window_start(expression: str) -> bool:
    """Return whether a key column is the start of the window."""
    return expression.strip().lower() == f"{WINDOW_COLUMN}.start"


def check_topic(name: str, where: str) -> None:
    """Raise `DeclarationError` where `name` is no name of a topic."""
    if not is_topic_name(name):
        raise DeclarationError(
            f'{where} "{name}" is not a valid topic name; use letters, digits, dots, underscores, hyphens: at most 249'
        )
