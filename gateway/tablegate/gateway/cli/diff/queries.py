"""Two queries of one path, compared as a client meets them that was compiled against the old one."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions

from tablegate.gateway.cli.diff.differences import Difference
from tablegate.gateway.cli.diff.messages import message_differences
from tablegate.gateway.contract.catalogue import BatchGetQuery, Catalogue, Param, Query, RangeQuery
from tablegate.gateway.contract.http_rules import FieldPath, HttpRoute

_LIMITS = {
    "default_page_size": "",
    "max_page_size": "",
    "max_keys": "",
    "max_rows": "",
    "default_timeout_s": " s",
    "max_timeout_s": " s",
}
"""Numbers that a client does not mind to see grow, with their units. 0 is no limit."""


def query_differences(old: Catalogue, new: Catalogue, table: str) -> Iterator[Difference]:
    """Yield in what the queries of a table differ: those that OLD has, then those that NEW adds."""
    for path, query in old.queries.items():
        if query.table.name != table:
            continue
        now = new.queries.get(path)
        if now is not None:
            yield from _query(old, new, query, now)
        elif path in new.other_methods:
            yield _broken(path, "is no query any more: calls are answered UNIMPLEMENTED")
        else:
            yield _broken(path, "is gone: calls are answered UNIMPLEMENTED, and REST routes 404")
    for path, query in new.queries.items():
        if query.table.name == table and path not in old.queries:
            yield Difference(_name(path), f"is new, a {_kind(query)}: {path.lstrip('/')}")


def _query(catalogue: Catalogue, other: Catalogue, old: Query, new: Query) -> Iterator[Difference]:
    path = old.path
    if old.table.name != new.table.name:
        yield _broken(path, f'reads table "{new.table.name}", it read "{old.table.name}"')
    if _kind(old) != _kind(new):
        yield _broken(path, f"is a {_kind(new)}, it was a {_kind(old)}")
    rows = [(old.table.row.full_name, new.table.row.full_name)]  # columns are compared with the table
    messages: Sequence[tuple[str, Any, Any]] = (
        ("request", old.request_class.DESCRIPTOR, new.request_class.DESCRIPTOR),
        ("response", old.response_class.DESCRIPTOR, new.response_class.DESCRIPTOR),
    )
    for what, before, now in messages:
        for each in message_differences(before, now, is_request=what == "request", known=rows):
            text = f'{what} field "{".".join(each.path)}" {each.text}'
            yield Difference(_name(path), text, breaks_clients=each.breaks_clients)
    yield from _params(old, new)
    if _kind(old) == _kind(new):
        yield from _options(old, new)
    before_method, now_method = _method(catalogue, path), _method(other, path)
    if _is_free(before_method) != _is_free(now_method):
        text = "may be asked by HTTP GET over Connect" if _is_free(now_method) else "takes no Connect GET any more"
        yield Difference(_name(path), text, breaks_clients=_is_free(before_method))
    yield from _routes(path, _routes_of(catalogue, path), _routes_of(other, path))


def _params(old: Query, new: Query) -> Iterator[Difference]:
    """Yield what request fields mean otherwise, and those that must be given now."""
    before, now = _params_of(old), _params_of(new)
    fields = {field.number for field in old.request_class.DESCRIPTOR.fields}
    for number, param in now.items():
        known = before.get(number)
        what = f'request field "{param.field.name}"'
        if known is None:
            if param.required:
                yield _broken(new.path, f"{what} must be given")
            elif number in fields:
                yield _broken(new.path, f"{what} is a condition now: {_meaning(param)}")
        elif _meaning(known) != _meaning(param):
            yield _broken(new.path, f"{what} means {_meaning(param)}, it meant {_meaning(known)}")
    left = {field.number for field in new.request_class.DESCRIPTOR.fields}
    for number, param in before.items():
        if number not in now and number in left:
            yield _broken(new.path, f'request field "{param.field.name}" is no condition any more')


def _params_of(query: Query) -> Mapping[int, Param]:
    parts = ("params", "prefix", "bounds", "filters")
    return {param.field.number: param for part in parts for param in getattr(query, part, ())}


def _meaning(param: Param) -> str:
    """Return a condition without the column's name: that is compared with the table."""
    required = ", which must be given" if param.required else ""
    numbers = ".".join(str(field.number) for field in (*param.within, param.column))
    return f"{param.op.name} column number {numbers}{required}"


def _options(old: Any, new: Any) -> Iterator[Difference]:
    for name, unit in _LIMITS.items():
        before, now = getattr(old, name, None), getattr(new, name, None)
        if before is not None and now is not None and before != now:
            shrinks = now > 0 and (before == 0 or now < before)
            text = f"{name.removesuffix('_s')} is {now:g}{unit}, it was {before:g}{unit}"
            yield Difference(_name(old.path), text, breaks_clients=shrinks)
    if getattr(old, "missing_is_empty", None) != getattr(new, "missing_is_empty", None):
        yield _broken(old.path, f"a key without a row is answered {'empty' if new.missing_is_empty else 'NOT_FOUND'}")
    if getattr(old, "disconnects_slow", None) != getattr(new, "disconnects_slow", None):
        what = "is disconnected" if new.disconnects_slow else "misses values between"
        yield _broken(old.path, f"a slow subscriber {what}")
    yield from _indexes(old, new)
    if getattr(old, "scatter", None) != getattr(new, "scatter", None):
        yield Difference(_name(old.path), f"scatter is {str(new.scatter).lower()}")


def _indexes(old: Any, new: Any) -> Iterator[Difference]:
    indexes = [getattr(query, "index", None) for query in (old, new)]
    before, now = ("the key" if index is None else f'index "{index.name}"' for index in indexes)
    if isinstance(new, RangeQuery) and len({None if index is None else index.id for index in indexes}) > 1:
        text = f"reads by {now}, it read by {before}: rows come in another order, and page tokens are refused once"
        yield Difference(_name(old.path), text)
    if isinstance(new, BatchGetQuery) and _asked_by(old) != _asked_by(new):
        yield _broken(old.path, f"takes the values of {now}, it took those of {before}")


def _asked_by(query: BatchGetQuery) -> frozenset[str]:
    """Return the numbers of the columns whose values a BatchGet takes."""
    if query.index is None:
        return frozenset(str(query.table.row.fields_by_name[column.name].number) for column in query.table.key)
    return frozenset(column.numbers for column in query.index.columns)


def _method(catalogue: Catalogue, path: str) -> MethodDescriptor:
    service, _, name = path.lstrip("/").rpartition("/")
    found: MethodDescriptor = catalogue.pool.FindServiceByName(service).methods_by_name[name]
    return found


def _is_free(method: MethodDescriptor) -> bool:
    """Return whether a method says that it has no side effects: Connect then takes it by GET."""
    return bool(method.GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS)


def _routes(path: str, old: Mapping[str, HttpRoute], new: Mapping[str, HttpRoute]) -> Iterator[Difference]:
    for shape, route in old.items():
        now = new.get(shape)
        if now is None:
            yield _broken(path, f"REST route {_shown(route)} is gone")
        elif _binding(route) != _binding(now):
            yield _broken(path, f"REST route {_shown(now)} takes other fields or another body than it did")
    for shape, route in new.items():
        if shape not in old:
            yield Difference(_name(path), f"REST route {_shown(route)} is new")


def _routes_of(catalogue: Catalogue, path: str) -> Mapping[str, HttpRoute]:
    """Return the routes of a method by what a request looks like."""
    routes = (route for route in catalogue.routes if route.path == path)
    return {
        f"{route.http_method} /{'/'.join(route.template.segments)}:{route.template.verb}": route for route in routes
    }


def _binding(route: HttpRoute) -> object:
    """Return what of a request goes where, by the numbers of fields."""
    variables = [(_numbers(each.field), each.start, each.end) for each in route.template.variables]
    body = [field.number if field is not None else 0 for field in (route.body, route.response_body)]
    return variables, route.whole_body, body


def _numbers(field: FieldPath) -> list[int]:
    return [part.number for part in field]


def _shown(route: HttpRoute) -> str:
    """Return a route as a contract has it: "GET /v1/ratings/{movie_id}"."""
    segments = list(route.template.segments)
    for variable in reversed(route.template.variables):
        inside = "/".join(segments[variable.start : variable.end])
        name = ".".join(part.name for part in variable.field)
        segments[variable.start : variable.end] = [f"{{{name}}}" if inside == "*" else f"{{{name}={inside}}}"]
    verb = f":{route.template.verb}" if route.template.verb else ""
    return f"{route.http_method} /{'/'.join(segments)}{verb}"


def _broken(path: str, text: str) -> Difference:
    return Difference(_name(path), text, breaks_clients=True)


def _kind(query: Query) -> str:
    return type(query).__name__.removesuffix("Query")


def _name(path: str) -> str:
    return path.rpartition("/")[2]
