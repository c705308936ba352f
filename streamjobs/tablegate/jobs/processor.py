"""Processors: what users write where SQL aggregates do not suffice. Python gets the records of a key in their order.

    class Points(Processor):
        state = "points BIGINT"
        emits = "invoice STRING, earned BIGINT, total BIGINT"

        def on_record(self, key, record, state):
            earned = int(record.amount * 0.1)
            state.points += earned
            yield {"invoice": record.invoice, "earned": earned, "total": state.points}

A test of it needs no Spark:

    points = Trial(Points(), customer="ann")
    assert points.record(invoice="i1", amount=20.0) == [{"invoice": "i1", "earned": 2, "total": 2}]

Executors unpickle this module by value, so it imports nothing of the project but modules that do as well.

Decision: docs/decisions/0110-a-processor-says-what-it-reads.md
"""

import inspect
import keyword
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType, TracebackType
from typing import Any, ClassVar, Self

from tablegate.jobs.declared import DeclarationError, SourceLine, declaring_line
from tablegate.jobs.values import Column, Misfit, fit_columns, parse_columns

_OWN_NAMES = "__"
"""What the names of the runtime's own columns begin with."""

Emitted = Iterable[Mapping[str, object]] | None


class ProcessorError(Exception):
    """What stops a processor. Raise it to give the reason: of other exceptions the text is not shown."""


class UnknownField(ProcessorError, AttributeError):
    """A name that a record, a key or a state does not have, or that cannot be set."""


class Fields:
    """Named values that only read: a record, its `kafka`, a struct in it, the key."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_values", values)

    def __getattr__(self, name: str) -> Any:
        values = object.__getattribute__(self, "_values")
        try:
            return values[name]
        except KeyError:
            raise UnknownField(f"no field {name}; there are {', '.join(values)}") from None

    def __setattr__(self, name: str, value: object) -> None:
        raise UnknownField(f"{name} cannot be set: records and keys only read")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fields) and bool(self._values == other._values)

    __hash__ = None  # type: ignore[assignment] # values may be lists

    def __repr__(self) -> str:
        return f"Fields({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"


class State:
    """What is kept of one key: an attribute for each declared column, to be changed at will."""

    __slots__ = ("_values",)

    def __init__(self, values: dict[str, Any]) -> None:
        object.__setattr__(self, "_values", values)

    def __getattr__(self, name: str) -> Any:
        values = object.__getattribute__(self, "_values")
        try:
            return values[name]
        except KeyError:
            raise UnknownField(f"no state column {name}; there are {', '.join(values)}") from None

    def __setattr__(self, name: str, value: object) -> None:
        self.__getattr__(name)
        self._values[name] = value

    def __repr__(self) -> str:
        return f"State({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"


class Processor:
    """Python over the records of each key; micro-batches only, as Real-time Mode runs no Python.

    `state` and `emits` are columns in Spark SQL's DDL. `state`: what is kept of one key. A new key starts with zeros,
    empty text, lists and maps; TIMESTAMP, DATE and STRUCT, which have no zero, with None. It is kept for ever: let it
    not grow with the records of a key. `emits`: what `on_record` and `on_timer` yield, beside the key's columns.
    Values are of exactly the type that `tablegate.jobs.values` names, or None. What is kept on `self` is lost.

    `reads`: names of the source's fields that `on_record` uses; without it, all of them. Python gets these alone, and
    `kafka`. What it gets is most of what a record costs, where it has many fields.

    `every_s`: `on_timer` runs at the next whole multiple of so many seconds of processing time after a record of the
    key, then again after its next record; never more often than batches run. After a start of the job timers wait for
    the first record of any key, as Spark runs no batch before it.

    The functions must do the same with the same arguments: a batch that a crash cut off runs again.
    """

    state: ClassVar[str]
    emits: ClassVar[str]
    reads: ClassVar[tuple[str, ...] | None] = None
    every_s: ClassVar[float | None] = None
    declared_at: SourceLine

    def __new__(cls, *arguments: Any, **named: Any) -> Self:  # noqa: ARG004 - `__init__` takes them
        """Raise `DeclarationError` where the class is wrong."""
        # Not in `__init_subclass__`: that runs again where a class is unpickled, before it has its attributes.
        made = super().__new__(cls)
        object.__setattr__(made, "declared_at", declaring_line())
        for problem in _problems(cls):
            raise DeclarationError(f'{made.declared_at}: processor "{cls.__name__}" {problem}')
        return made

    def on_record(self, key: Any, record: Any, state: Any) -> Emitted:
        """Take the next record of a key, change its state, yield what is to be emitted.

        A key's records of one partition come in their order; in a batch, those of several by topic and partition.
        `record` has the source's fields, or those of `reads`, and `kafka`: topic, partition, offset, timestamp.
        """
        raise NotImplementedError

    def on_timer(self, key: Any, state: Any, now: datetime) -> Emitted:
        """As `on_record`, at a time; `now` is the time of the batch, in UTC."""
        raise NotImplementedError


def _problems(cls: type[Processor]) -> Iterator[str]:
    for attribute in ("state", "emits"):
        ddl = getattr(cls, attribute, None)
        if not isinstance(ddl, str):
            yield f'has no {attribute}; give it columns like "total BIGINT, tags ARRAY<STRING>"'
            continue
        try:
            names = [column.name for column in parse_columns(ddl)]
        except ValueError as error:
            yield f"{attribute} {error}"
            continue
        for name in names:
            if name.startswith(_OWN_NAMES) or keyword.iskeyword(name):
                yield f'{attribute} has a column "{name}", a name that Python or the job needs itself; give it another'
    yield from _problems_of_reads(cls.reads)
    if cls.on_record is Processor.on_record:
        yield "has no on_record; define on_record(self, key, record, state)"
    has_timer = cls.on_timer is not Processor.on_timer
    if cls.every_s is None:
        if has_timer:
            yield "has on_timer and no every_s; set it to the seconds between two runs"
    elif not (type(cls.every_s) in (int, float) and cls.every_s >= 0.001):  # Spark's timers are in milliseconds
        yield f"every_s {cls.every_s!r} is not a number of seconds; give 0.001 or more"
    elif not has_timer:
        yield "has every_s and no on_timer; define on_timer(self, key, state, now)"


def _problems_of_reads(reads: object) -> Iterator[str]:
    if reads is None:
        return
    if not isinstance(reads, tuple) or not all(isinstance(name, str) for name in reads):
        yield f'reads {reads!r} is no tuple of names; give it the fields that on_record uses, like ("amount",)'
        return
    for name in reads:
        if name == "kafka":
            yield 'reads "kafka", which every record has; remove it'
        if reads.count(name) > 1:
            yield f'reads "{name}" twice; remove one'


@dataclass(frozen=True, slots=True)
class Steps:
    """Runs a processor's functions on the state of one key at a time, and checks what comes out. `owner`: whose it is.

    Every error is a `ProcessorError` that names file, line, processor, key columns and the record's place, not values.
    """

    processor: Processor
    owner: str
    key_columns: Sequence[str]
    state_columns: tuple[Column, ...] = field(init=False)
    emit_columns: tuple[Column, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "state_columns", parse_columns(self.processor.state))
        object.__setattr__(self, "emit_columns", parse_columns(self.processor.emits))

    def state(self, stored: Sequence[Any] | None) -> State:
        """Return the state that was kept, or that of a new key."""
        if stored is None:
            return State({column.name: column.type.zero for column in self.state_columns})
        return State(
            {
                column.name: None if value is None else column.type.load(value)
                for column, value in zip(self.state_columns, stored, strict=True)
            }
        )

    def stored(self, state: State) -> tuple[Any, ...]:
        """Return the state as it is kept; raise `ProcessorError` where it does not fit its columns."""
        try:
            fitted = fit_columns(self.state_columns, state._values, separator="state.")
        except Misfit as misfit:
            raise self._error(_Place(self.processor.on_record, None), None, str(misfit)) from misfit
        return tuple(
            None if fitted[column.name] is None else column.type.store(fitted[column.name])
            for column in self.state_columns
        )

    def on_record(self, key: Fields, record: Fields, state: Any) -> Iterator[dict[str, Any]]:
        """Yield what one record emits, checked."""
        function = self.processor.on_record
        return self._checked(function, lambda: function(key, record, state), record.kafka)

    def on_timer(self, key: Fields, state: Any, now: datetime) -> Iterator[dict[str, Any]]:
        """Yield what the timer emits, checked."""
        function = self.processor.on_timer
        return self._checked(function, lambda: function(key, state, now), None)

    def unloadable(self, kafka: Fields, misfit: Misfit) -> ProcessorError:
        """Return the error of a record that has a value which Python cannot have."""
        return self._error(_Place(self.processor.on_record, None), kafka, f"record{misfit}")

    def _checked(
        self, function: Callable[..., Any], run: Callable[[], Emitted], kafka: Fields | None
    ) -> Iterator[dict[str, Any]]:
        emitted: Any = None
        try:
            emitted = run()
            if isinstance(emitted, Mapping):
                raise ProcessorError("returns a mapping; yield it")
            for one in () if emitted is None else emitted:
                if not isinstance(one, Mapping):
                    raise ProcessorError(f"yields a {type(one).__name__}; yield dictionaries")
                yield fit_columns(self.emit_columns, one)
        except Misfit as misfit:
            raise self._error(_Place(function, emitted), kafka, f"emitted {misfit}") from misfit
        except ProcessorError as error:
            raise self._error(_Place(function, emitted, error), kafka, str(error)) from error
        except Exception as error:
            raise self._error(_Place(function, emitted, error), kafka, f"raises {type(error).__name__}") from error

    def _error(self, at: "_Place", kafka: Fields | None, what: str) -> ProcessorError:
        columns = ", ".join(f'"{name}"' for name in self.key_columns)
        of = ""
        if kafka is not None:
            of = f', record of topic "{kafka.topic}" partition {kafka.partition} offset {kafka.offset},'
        return ProcessorError(
            f'{at}: {self.owner} processor "{type(self.processor).__name__}" (key {columns}){of} '
            f"{at.function}: {what}; correct it and start the job again"
        )


class _Place:
    """A line of the user's file: where an error passed last, else where a generator stands, else the function's."""

    def __init__(self, function: Callable[..., Any], emitted: object, error: Exception | None = None) -> None:
        code = inspect.unwrap(getattr(function, "__func__", function)).__code__
        self.function = function.__name__
        self._file, self._line = code.co_filename, code.co_firstlineno
        frame = emitted.gi_frame if inspect.isgenerator(emitted) else None
        if frame is not None:
            self._line = frame.f_lineno
        at: TracebackType | None = error.__traceback__ if error is not None else None
        while at is not None:
            if at.tb_frame.f_code.co_filename == self._file:
                self._line = at.tb_lineno
            at = at.tb_next

    def __str__(self) -> str:
        return f"{self._file}:{self._line}"


class Trial:
    """One key of a processor without Spark, for tests: the same checks, the same state, the same errors."""

    def __init__(self, processor: Processor, **key: object) -> None:
        self._steps = Steps(processor, "trial of", tuple(key))
        self._key = Fields(MappingProxyType(key))
        self._stored: tuple[Any, ...] | None = None
        self._next_offset = 0

    @property
    def state(self) -> State:
        """The state now; a copy."""
        return self._steps.state(self._stored)

    def record(self, **fields: object) -> list[dict[str, Any]]:
        """Return what the next record emits; `kafka` is made up where it is not given."""
        kafka = Fields({"topic": "trial", "partition": 0, "offset": self._next_offset, "timestamp": datetime.now(UTC)})
        self._next_offset += 1
        reads = self._steps.processor.reads
        wanted = fields if reads is None else (*reads, "kafka")
        record = Fields({"kafka": kafka, **{name: value for name, value in fields.items() if name in wanted}})
        return self._run(lambda state: self._steps.on_record(self._key, record, state))

    def timer(self, now: datetime) -> list[dict[str, Any]]:
        """Return what the timer emits at a time."""
        return self._run(lambda state: self._steps.on_timer(self._key, state, now))

    def _run(self, run: Callable[[State], Iterator[dict[str, Any]]]) -> list[dict[str, Any]]:
        state = self.state
        emitted = list(run(state))
        self._stored = self._steps.stored(state)
        return emitted
