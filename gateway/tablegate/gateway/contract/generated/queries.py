"""What is generated for a table: a service with a method of each kind, and the messages that these take and give.

Names follow from the table and its row: table "orders" with row Order has the service OrdersService with GetOrder,
BatchGetOrders, ListOrders (a Range), ScanOrders, SubscribeOrders and CountOrders. They are stable: clients are
generated from them. `text` writes them as a .proto does, `files` adds them to descriptors; both mean the same.

Decision: docs/decisions/0092-a-row-alone-is-served.md
Decision: docs/decisions/0188-a-row-alone-is-counted.md
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from google.protobuf.descriptor import FieldDescriptor

from tablegate.gateway.contract.catalogue import Op, Table
from tablegate.gateway.contract.columns import is_one_value, operator_fits, type_name
from tablegate.gateway.contract.generated.names import capitalized, folded, words_of

KINDS = ("get", "batch_get", "range", "scan", "subscribe", "count")
"""Kinds of queries, by their names in QueryOptions, in the order in which they are written."""

IMPORTS = (
    "google/api/annotations.proto",
    "google/api/field_behavior.proto",
    "google/protobuf/field_mask.proto",
    "tablegate/v1/options.proto",
    "tablegate/v1/query.proto",
)
"""What the generated text needs beside the row's own file."""

_FLOATS = (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE)
_RESERVED = range(19_000, 20_000)  # numbers that protobuf keeps for itself
_NUMBER_MAX = 2**29 - 1  # of a field
_BOUND_BY_NAME = ("page_size", "page_token")  # a Range finds these by their names


class Label(Enum):
    """How often a field is there, as a .proto says it."""

    SINGLE = ""
    OPTIONAL = "optional "
    REPEATED = "repeated "


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message. `type`: a scalar's name, or the full name of a message or enum.

    `column` and `op` are those of its param option, where they are not the field's own name and "equal". `number`: 0
    where it is the field's place in its message.
    """

    comment: str
    type: str
    name: str
    label: Label = Label.SINGLE
    required: bool = False
    column: str = ""
    op: Op | None = None
    number: int = 0


@dataclass(frozen=True, slots=True)
class Message:
    """A message. `oneof`: the name of the oneof that has all its fields, where it is one."""

    comment: str
    name: str
    fields: tuple[Field, ...]
    oneof: str = ""
    oneof_comment: str = ""

    @property
    def numbered(self) -> Iterator[tuple[int, Field]]:
        """Yield the fields with their numbers."""
        return ((field.number or place, field) for place, field in enumerate(self.fields, 1))


@dataclass(frozen=True, slots=True)
class Method:
    """A method, which takes NAMERequest and gives NAMEResponse. `http`: the verb and the path of its route.

    `table`: its table's name, where its response does not say which one it is of.
    """

    comment: str
    name: str
    kind: str
    http: tuple[str, str]
    streams: bool = False
    scatter: bool = False
    table: str = ""


@dataclass(frozen=True, slots=True)
class Service:
    """A service of methods."""

    comment: str
    name: str
    methods: tuple[Method, ...]


class Queries(NamedTuple):
    """All that is generated for one table."""

    service: Service
    messages: tuple[Message, ...]

    @property
    def names(self) -> list[str]:
        """Names that are used in the package of the row."""
        return [self.service.name, *(message.name for message in self.messages)]


def queries_of(table: Table, kinds: Collection[str] = KINDS) -> Queries:
    """Return the queries of a table, of these kinds."""
    writer = _Writer(table)
    parts = [getattr(writer, kind)() for kind in KINDS if kind in kinds]
    messages = [message for part in parts for message in part.messages]
    if {"batch_get", "subscribe"} & set(kinds):
        messages.insert(0, writer.key_message)
    methods = tuple(part.method for part in parts)
    return Queries(Service(f"Reads the table {table.name}.", writer.rows + "Service", methods), tuple(messages))


class _Part(NamedTuple):
    method: Method
    messages: list[Message]


class _Writer:
    """Writes the queries of one table. `row` and `rows` are the names of one and of several in those of methods."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._row_type = table.row.full_name
        self.row = table.row.name
        self.rows = "".join(word.capitalize() for word in table.name.split("_"))
        self._key = [table.row.fields_by_name[column.name] for column in table.key]
        self._collection = f"/v1/{table.name}"
        self._key_type = ".".join(filter(None, (table.row.file.package, self.row + "Key")))
        comment = f"Key of {_with_article(self.row)}."
        self.key_message = Message(comment, self.row + "Key", tuple(map(_given, self._key)))

    def get(self) -> _Part:
        """Return the Get."""
        path = "/".join([self._collection, *(f"{{{column.name}}}" for column in self._key)])
        method = Method("One row, by its key.", f"Get{self.row}", "get", ("get", path))
        request = _request(map(_given, self._key), [_READ_OPTIONS, _READ_MASK])
        return _part(method, request, [Field("The row.", self._row_type, "row"), _READ_INFO])

    def batch_get(self) -> _Part:
        """Return the BatchGet."""
        route = ("post", f"{self._collection}:batchGet")
        method = Method("Several rows, in the order asked.", f"BatchGet{self.rows}", "batch_get", route)
        keys = Field("Keys, at most 100.", self._key_type, "keys", Label.REPEATED, required=True)
        result_type = self._key_type.removesuffix("Key") + "Result"
        results = Field("One for each key, in the order of the request.", result_type, "results", Label.REPEATED)
        result = Message(
            "One result of a batch.",
            f"{self.row}Result",
            (Field("The row.", self._row_type, "found"), Field("No row has this key.", self._key_type, "missing")),
            "result",
            "Row, or key without a row.",
        )
        return _part(method, [keys, _READ_OPTIONS, _READ_MASK], [results, _READ_INFO], result)

    def range(self) -> _Part:
        """Return the Range."""
        prefix = self._prefix()
        what = f"Rows of one {' and '.join(words_of(field.name) for field in prefix)}," if prefix else "Rows"
        method = Method(
            f"{what} in key order, a page at a time.",
            f"List{self.rows}",
            "range",
            ("get", self._collection),
            scatter=not prefix,
        )
        page = [
            Field("Direction.", "tablegate.v1.Order", "order"),
            Field("Rows on a page, at most 1000; 0 means 50.", "int32", "page_size"),
            Field(
                "next_page_token of the previous page; all else but the mask must be the same.", "string", "page_token"
            ),
            _READ_OPTIONS,
            _READ_MASK,
        ]
        request = _request(self._run(prefix), page, by_name=_BOUND_BY_NAME)
        found = Field("One page, in key order.", self._row_type, "rows", Label.REPEATED)
        token = Field("Empty at the end, and only there.", "string", "next_page_token")
        return _part(method, request, [found, token, _READ_INFO])

    def scan(self) -> _Part:
        """Return the Scan."""
        route = ("get", f"{self._collection}:scan")
        method = Method("All rows that pass the filters.", f"Scan{self.rows}", "scan", route, streams=True)
        options = Field("Where to resume after a broken stream.", "tablegate.v1.ScanOptions", "scan_options")
        rows = Field("Rows, several to a message.", self._row_type, "rows", Label.REPEATED)
        progress = Field("How far the scan has come.", "tablegate.v1.ScanProgress", "progress")
        return _part(method, self._filtered([options, _READ_OPTIONS, _READ_MASK]), [rows, progress])

    def subscribe(self) -> _Part:
        """Return the Subscribe."""
        route = ("get", f"{self._collection}:subscribe")
        comment = "The rows as they are now, then every change."
        method = Method(comment, f"Subscribe{self.rows}", "subscribe", route, streams=True, scatter=True)
        options = Field("Where to start or resume.", "tablegate.v1.SubscribeOptions", "subscribe_options")
        only = Field("Only these keys, at most 1000; none means all.", self._key_type, "keys", Label.REPEATED)
        change_type = self._key_type.removesuffix("Key") + "Change"
        changes = Field("Changes, oldest first for each key. May be empty.", change_type, "changes", Label.REPEATED)
        followed = "Set on the first message, then every few seconds."
        progress = Field(followed, "tablegate.v1.SubscribeProgress", "progress")
        gone = "The row is gone, or no longer passes the filters."
        change = Message(
            "A change of one row.",
            f"{self.row}Change",
            (Field("The row is now this.", self._row_type, "upsert"), Field(gone, self._key_type, "delete")),
            "change",
            "What happened.",
        )
        return _part(method, self._filtered([options, only, _READ_MASK]), [changes, progress], change)

    def count(self) -> _Part:
        """Return the Count."""
        route = ("get", f"{self._collection}:count")
        comment = "How many rows there are that pass the filters."
        method = Method(comment, f"Count{self.rows}", "count", route, scatter=True, table=self._table.name)
        number = Field("How many.", "int64", "count")
        return _part(method, self._filtered([_READ_OPTIONS]), [number, _READ_INFO])

    def _prefix(self) -> list[FieldDescriptor]:
        """Return the key columns that a List fixes: all but the last, where those choose one partition."""
        columns = self._key[:-1]
        return columns if len(columns) >= self._table.partition_by_count else []

    def _run(self, prefix: Sequence[FieldDescriptor]) -> Iterator[Field]:
        """Yield the params of a List: the columns before, each given, then bounds on the next one."""
        yield from map(_given, prefix)
        bounded = self._key[len(prefix)]
        if len(self._key) - len(prefix) > 1:
            yield _same(bounded)
        if operator_fits(Op.GTE, bounded):
            for suffix, op, which in (("from", Op.GTE, "from this {} on"), ("before", Op.LT, "before this {}")):
                comment = f"Only rows {which.format(words_of(bounded.name))}."
                yield _optional(bounded, f"{bounded.name}_{suffix}", op, comment)

    def _filtered(self, parts: Sequence[Field]) -> list[Field]:
        """Return the fields of a request with filters. Numbers stay as they are while columns come and go.

        So these parts come first, and a filter's number is that of its column, behind them.
        """
        filters = list(self._filters(behind=len(parts)))
        fields = _request(filters, parts)
        return [*fields[len(filters) :], *fields[: len(filters)]]

    def _filters(self, *, behind: int) -> Iterator[Field]:
        """Yield a filter for each column: a floor where equality says little, equality where it does."""
        for field in self._table.row.fields:
            number = field.number + behind
            if number in _RESERVED or number > _NUMBER_MAX:
                continue
            if operator_fits(Op.CONTAINS, field):
                comment = f"Only rows with this among their {words_of(field.name)}."
                filter_ = _optional(field, f"{field.name}_contains", Op.CONTAINS, comment)
            elif not is_one_value(field):
                continue
            elif field.message_type is not None or field.type in _FLOATS:
                comment = f"Only rows with at least this {words_of(field.name)}."
                if field.message_type is not None:
                    comment = f"Only rows whose {field.name} is this or later."
                filter_ = _optional(field, f"min_{field.name}", Op.GTE, comment)
            else:
                filter_ = _same(field)
            yield replace(filter_, number=number)


_READ_OPTIONS = Field("How fresh the answer must be.", "tablegate.v1.ReadOptions", "read_options")
_READ_MASK = Field(
    "Only these fields of rows, and their keys; none means all.", "google.protobuf.FieldMask", "read_mask"
)
_READ_INFO = Field("What was read.", "tablegate.v1.ReadInfo", "read_info")


def _part(method: Method, request: Sequence[Field], response: Sequence[Field], *more: Message) -> _Part:
    name = method.name
    asked = Message(f"Request of {name}.", f"{name}Request", tuple(request))
    answered = Message(f"Response of {name}.", f"{name}Response", tuple(response))
    return _Part(method, [asked, answered, *more])


def _request(params: Iterable[Field], parts: Sequence[Field], *, by_name: Collection[str] = ()) -> list[Field]:
    """Return the fields of a request: params, then what it has beside them. No two have one name, in JSON either.

    Params keep their names, but for those that are in `by_name`, by which a part is found.
    """
    kept = {folded(name) for name in by_name}
    columns = [
        replace(field, column=field.column or field.name) if folded(field.name) in kept else field for field in params
    ]
    # A column's own name comes before the names made of others.
    used = kept | {folded(field.name) for field in columns if not field.column}
    asked = [_free(field, used) if field.column else field for field in columns]
    return [*asked, *(part if part.name in by_name else _free(part, used) for part in parts)]


def _free(field: Field, used: set[str]) -> Field:
    """Return the field under a name that is not used; take it."""
    name = field.name
    while folded(name) in used:
        name = f"query_{name}"
    used.add(folded(name))
    return replace(field, name=name)


def _given(field: FieldDescriptor) -> Field:
    return Field(f"{capitalized(words_of(field.name))}.", type_name(field), field.name, required=True)


def _same(field: FieldDescriptor) -> Field:
    return replace(_optional(field, field.name, Op.EQ, f"Only rows with this {words_of(field.name)}."), column="")


def _optional(field: FieldDescriptor, name: str, op: Op, comment: str) -> Field:
    return Field(comment, type_name(field), name, Label.OPTIONAL, column=field.name, op=op)


def _with_article(name: str) -> str:
    return f"{'an' if name[:1] in 'AEIOU' else 'a'} {name}"
