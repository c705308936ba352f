"""A table whose rows come from a DataFrame of the user's: frozen data, no Spark.

    def scored(spark, visits):
        users = spark.read.parquet("/data/users")
        return visits.join(users, "user").select("user", score("age", "pages").alias("score"))

    TABLE = FrameTable(
        name="scores",
        contract="scores.proto",
        rows=scored,
        sources={"visits": Source("visits", Json("user BIGINT, pages INT"))},
    )

Decision: docs/decisions/0087-dataframes-as-tables.md
Decision: docs/decisions/0099-functions-of-users-in-jobs.md
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tablegate.jobs.declared import DeclarationError, SourceLine, declaring_line
from tablegate.jobs.function_code import function_code, function_text
from tablegate.jobs.table import SIDE_NAME, Mode, Output, Source, Table, problems_of_name

SESSION = "spark"
"""Name of the parameter that gets the Spark session, unless one is annotated with its class."""
OUTPUT_MODES = ("update", "append")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTable:
    """A table whose rows come from a DataFrame of your own.

    `name` and `contract` are as `Table` has them. The DataFrame has a column for each field of the contract's row, of
    the same name; it may have others. `deletes`: a condition over the DataFrame's columns; where it is true, the row of
    that key is deleted. `order`: an expression; of several rows of one key in a batch that with the greatest counts.
    `generation` is raised when the table is to be built anew.

    `rows`: a function that returns the streaming DataFrame; then `tablegate job run` keeps the table. Without it, an
    application of yours has the DataFrame, and publishes it with `tablegate.jobs.publishing`. A parameter `spark`, or
    one annotated with `SparkSession`, gets the session; the others are `sources` by name, each a streaming DataFrame of
    the records that decode: their fields, and the struct `kafka`. A record whose value is null has null fields.
    `output_mode`: "update" or "append", as Spark has it. `emit_interval_s`: how often rows come at most; 0 is as often
    as possible.
    """

    name: str
    contract: str
    rows: Callable[..., Any] | None = None
    sources: Mapping[str, Source] = field(default_factory=dict)
    deletes: str | None = None
    order: str | None = None
    output_mode: str = "update"
    emit_interval_s: float | None = None
    generation: int = 1
    code: str = field(init=False, default="", compare=False, repr=False)
    words: frozenset[str] = field(init=False, default=frozenset(), compare=False, repr=False)
    declared_at: SourceLine = field(default_factory=declaring_line, compare=False, repr=False)

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise DeclarationError(f'{self.declared_at}: table "{self.name}": {problem}')
        object.__setattr__(self, "sources", MappingProxyType(dict(self.sources)))
        if self.rows is not None:
            # Now, as the file may be another one when a job asks.
            object.__setattr__(self, "code", function_code(self.rows))
            object.__setattr__(self, "words", frozenset(re.findall(r"\w+", function_text(self.rows).lower())))

    @property
    def session_parameter(self) -> str | None:
        """Name of the parameter of `rows` that gets the Spark session; None where it wants none."""
        return next((one.name for one in self._parameters() if _is_session(one)), None)

    @property
    def all_sides(self) -> Mapping[str, Source]:
        """The sources by name, as those of a `Table`."""
        return self.sources

    def source_of(self, side: str) -> Source:
        """Return the source of a name."""
        return self.sources[side]

    # What a `Table` may have, and a DataFrame has not.

    @property
    def mode(self) -> Mode:
        """Micro-batches: a version is that of a batch."""
        return Mode.MICROBATCH

    @property
    def outputs(self) -> tuple[Output, ...]:
        """Nothing."""
        return ()

    @property
    def has_row_outputs(self) -> bool:
        """False."""
        return False

    @property
    def has_keyed_versions(self) -> bool:
        """False."""
        return False

    @property
    def atomic(self) -> bool:
        """False."""
        return False

    def why_not_realtime(self) -> str:
        """Return what needs micro-batches."""
        return "rows of a function"

    def _parameters(self) -> list[inspect.Parameter]:
        return list(inspect.signature(self.rows).parameters.values()) if self.rows is not None else []

    def _problems(self) -> Iterator[str]:
        yield from problems_of_name(self.name, self.generation)
        if self.output_mode not in OUTPUT_MODES:
            yield f'output_mode "{self.output_mode}" is none of {", ".join(OUTPUT_MODES)}'
        if self.emit_interval_s is not None and self.emit_interval_s < 0:
            yield f"emit_interval_s {self.emit_interval_s:g} is negative; use 0 or more"
        if self.rows is None:
            if self.sources:
                yield "sources are for rows=, a function that gets them; give rows=, or remove sources"
            return
        if not callable(self.rows):
            yield f"rows= is {self.rows!r}; give a function that returns a streaming DataFrame"
            return
        for name, source in self.sources.items():
            if not SIDE_NAME.fullmatch(name) or name == SESSION:
                yield f'"{name}" is not a valid name of a source; use lower-case letters, digits and underscores'
            for what, is_given in (
                ("keyed", source.keyed),
                ("event_time", source.event_time is not None),
                ("each", source.each is not None),
            ):
                if is_given:
                    yield f'source "{name}" has {what}=, which is for tables with columns=; remove it'
            if source.is_table:
                yield (
                    f'source "{name}" has the rows of table "{source.topic}", of which each change may come again, and '
                    "a function cannot tell; make a Table with a Latest side of it"
                )
        yield from self._problems_of_parameters()

        topics = [source.topic for source in self.sources.values()]
        for name, source in self.sources.items():
            if source.history is not None and topics.count(source.topic) > 1:
                yield f'source "{name}" has a history, and its topic is of several sources; make them one'

    def _problems_of_parameters(self) -> Iterator[str]:
        names = [one.name for one in self._parameters() if not _is_session(one)]
        known = ", ".join([SESSION, *self.sources])
        for one in self._parameters():
            if one.name in names and one.name not in self.sources and one.default is inspect.Parameter.empty:
                yield f'rows= has a parameter "{one.name}", and there are {known}; name it like a source'
        for name in self.sources:
            if name not in names:
                yield f'source "{name}" is no parameter of rows=; add it there, or remove the source'


Declared = Table | FrameTable
"""What a job keeps."""


def _is_session(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    kind = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return parameter.name == SESSION or kind.rpartition(".")[2] == "SparkSession"
