"""Which table a method reads, and which of its request's fields are key columns: from the contract's annotations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import message_factory
from google.protobuf.message import Message

from tablegate.client.fields import ANNOTATION, numbered
from tablegate.client.keys import NoKey, encode

# Fields of the annotations, by their numbers.
TABLE_NAME = 1  # TableOptions.name
QUERY_GET, QUERY_RANGE, QUERY_TABLE = 1, 3, 16  # QueryOptions.get, .range, .table
PARAM_COLUMN, PARAM_OP = 1, 2  # ParamOptions.column, .op
EQUAL = frozenset({0, 1})  # Op.OP_UNSPECIFIED, Op.OP_EQ


@dataclass(frozen=True, slots=True)
class Route:
    """A method that reads a table. `fields` are those of its request that say what a column is equal to, by column."""

    table: str
    fields: Mapping[str, Any]
    response_class: Any

    def key_bytes(self, columns: Sequence[tuple[str, int]], request: Message) -> bytes:
        """Return the key bytes of columns (name and type) that a request gives; raise `NoKey` where it lacks one."""
        parts = []
        for name, key_type in columns:
            field = self.fields.get(name)
            if field is None or (field.has_presence and not request.HasField(field.name)):
                raise NoKey(f'the request does not say what "{name}" is')
            parts.append(encode(key_type, getattr(request, field.name)))
        return b"".join(parts)


def route_of(path: str, request: Any) -> Route | None:
    """Return how a method is routed whose request's descriptor is given; None: by no key, or it is no query.

    It must be generated with the contract's annotations.
    """
    service, _, name = path.removeprefix("/").rpartition("/")
    try:
        method = request.file.pool.FindServiceByName(service).methods_by_name[name]
    except KeyError:
        return None
    queries = numbered(method.GetOptions().SerializeToString(), ANNOTATION)
    if not any(numbered(query, kind) for query in queries for kind in (QUERY_GET, QUERY_RANGE)):
        return None
    tables = [table for query in queries for table in numbered(query, QUERY_TABLE)] or _tables(method.output_type)
    if len(tables) != 1:
        return None
    fields = {_column(field): field for field in request.fields if _says_equal(field)}
    return Route(tables[0].decode(), fields, message_factory.GetMessageClass(method.output_type))


def _tables(response: Any) -> list[bytes]:
    """Return the names of the tables whose rows a response holds."""
    rows = [field.message_type for field in response.fields if field.message_type is not None]
    annotations = [table for row in rows for table in numbered(row.GetOptions().SerializeToString(), ANNOTATION)]
    return [name for table in annotations for name in numbered(table, TABLE_NAME)]


def _column(field: Any) -> str:
    for param in _params(field):
        for column in numbered(param, PARAM_COLUMN):
            return str(column.decode())
    return str(field.name)


def _says_equal(field: Any) -> bool:
    operators = [operator for param in _params(field) for operator in numbered(param, PARAM_OP)]
    return not field.is_repeated and all(operator in EQUAL for operator in operators)


def _params(field: Any) -> list[bytes]:
    return numbered(field.GetOptions().SerializeToString(), ANNOTATION)
