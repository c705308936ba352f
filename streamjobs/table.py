"""What users write to declare a table: frozen data, no Spark.

A file of one declaration has a constant `TABLE`. Its expressions are Spark SQL over the fields of the source's records;
the struct `kafka` beside them has the record's own `key`, `topic`, `partition`, `offset` and `timestamp`:

    TABLE = Table(
        name="ratings",
        contract="examples/ratings/v1/ratings.proto",
        source=Source(topic="ratings", schema=RATING_SCHEMA),
        key={"movie_id": "movie_id"},
        columns={"average_rating": "avg(rating)", "update_time": "max(kafka.timestamp)"},
    )
"""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from types import MappingProxyType

KAFKA_COLUMN = "kafka"
"""Struct of a source record's own key, topic, partition, offset and timestamp, for expressions."""

GENERATION_MAX = 2**32 - 1  # it travels in 4 bytes
REALTIME_TRIGGER_S_MIN = 5.0  # Spark refuses shorter batches in Real-time Mode

_TABLE_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_OWN_FIELDS = "__"
"""What the names of the runtime's own columns begin with."""


class DeclarationError(Exception):
    """A declaration that no job can run; the message says where, what and what to do."""


class Mode(Enum):
    """How a job runs: Spark's Real-time Mode (milliseconds), or micro-batches."""

    REALTIME = "realtime"
    MICROBATCH = "microbatch"


@dataclass(frozen=True, slots=True)
class SourceLine:
    """Where a declaration stands."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def _caller() -> SourceLine:
    """Return the line that makes a declaration: the first frame outside of this file and of generated `__init__`s."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename in (__file__, "<string>"):
        frame = frame.f_back
    return SourceLine(frame.f_code.co_filename, frame.f_lineno)


@dataclass(frozen=True, slots=True)
class Source:
    """A topic of Avro records in the Confluent wire format.

    `schema`: Avro JSON text of a record; the reader's, and without a schema registry the writer's too. `keyed`: the
    records of one key of the table lie in one partition, in their order, so that a row's version can be the offset
    of its newest input. Else its version is the number of its inputs.
    """

    topic: str
    schema: str
    _: KW_ONLY
    keyed: bool = False
    declared_at: SourceLine = field(default_factory=_caller, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not _TOPIC_NAME.fullmatch(self.topic):
            raise DeclarationError(
                f'{self.declared_at}: source topic "{self.topic}" is no topic name; '
                "use letters, digits, dots, underscores and hyphens, at most 249"
            )
        for name in self.field_names:
            if name == KAFKA_COLUMN or name.startswith(_OWN_FIELDS):
                raise DeclarationError(
                    f'{self.declared_at}: source "{self.topic}" has a field "{name}", a name that the job needs '
                    "itself; give the field another name in the schema, and its old one as an alias"
                )

    @property
    def field_names(self) -> tuple[str, ...]:
        """Names of the record's fields; raise `DeclarationError` where the schema is no Avro record."""
        try:
            schema = json.loads(self.schema)
            if schema["type"] != "record":
                raise ValueError("not a record")
            return tuple(str(avro_field["name"]) for avro_field in schema["fields"])
        except (ValueError, TypeError, KeyError):
            raise DeclarationError(
                f'{self.declared_at}: the schema of source "{self.topic}" is no Avro record; '
                'give JSON text like {"type": "record", "name": …, "fields": […]}'
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table, kept by aggregates over a source.

    `name` is the table's name in the contract. `contract` is the path of the `.proto` or descriptor set: absolute, or
    as seen from the directory of the declaration or one above it, or of an example. `key` and `columns` have a Spark
    SQL expression for each column of the contract's row: of one record for `key`, an aggregate for `columns`.
    `generation` is raised when logic or input changes: the table is then built anew, in a changelog of its own.
    `trigger_s` is the length of a batch, and so the time between two progress markers; None is the mode's default.
    """

    name: str
    contract: str
    source: Source
    key: Mapping[str, str]
    columns: Mapping[str, str]
    generation: int = 1
    mode: Mode = Mode.REALTIME
    trigger_s: float | None = None
    declared_at: SourceLine = field(default_factory=_caller, compare=False, repr=False)

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise DeclarationError(f'{self.declared_at}: table "{self.name}": {problem}')
        # A frozen declaration holds no dict that somebody else may still change.
        object.__setattr__(self, "key", MappingProxyType(dict(self.key)))
        object.__setattr__(self, "columns", MappingProxyType(dict(self.columns)))

    def _problems(self) -> list[str]:
        problems = []
        if not _TABLE_NAME.fullmatch(self.name):
            problems.append("no table name; use a lower-case letter, then at most 62 letters, digits or underscores")
        if not self.key:
            problems.append("no key; give the expression of each key column of the contract")
        if not self.columns:
            problems.append("no columns; give an aggregate for each column of the contract that is not in the key")
        for name in self.key:
            if name in self.columns:
                problems.append(f'"{name}" is in key and in columns; remove it from one')
        for name, expression in {**self.key, **self.columns}.items():
            if not expression.strip():
                problems.append(f'column "{name}" has no expression; write Spark SQL')
        if not 1 <= self.generation <= GENERATION_MAX:
            problems.append(f"generation {self.generation} is not from 1 to {GENERATION_MAX}")
        if not isinstance(self.mode, Mode):
            problems.append(f"mode {self.mode!r} is no Mode; use Mode.REALTIME or Mode.MICROBATCH")
        if self.trigger_s is not None:
            least_s = REALTIME_TRIGGER_S_MIN if self.mode is Mode.REALTIME else 0.0
            if self.trigger_s < least_s:
                problems.append(
                    f"trigger_s {self.trigger_s:g} is too short for {self.mode.value}; use {least_s:g} or more"
                )
        return problems
