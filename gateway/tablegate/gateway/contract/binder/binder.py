"""The binder turns a descriptor set into a catalogue, or reports everything that is wrong with it.

It works in one pass. Each step adds to one list of problems, so that a contract is corrected at once, and not problem
by problem:

1. `files`: build a descriptor pool; refuse options and well-known messages that are not what this version knows.
2. `tables`: bind each message with a `table` option: name, columns, key, partitioning, window, retention.
3. `alone`: add generated queries to files that have rows and no service, and begin again with those.
4. `results`: find the table that a method reads, by the row in its response.
5. `queries`, `fields`: bind the request and the response of each method by the kind of its query.
6. Make routes of the `google.api.http` options (below; the grammar is that of google/api/http.proto).

It touches no files and no network: descriptors in, catalogue out.

Decision: docs/decisions/0001-contracts-have-only-what-is-served.md
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from google.api import annotations_pb2
from google.api.http_pb2 import HttpRule
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.duration_pb2 import Duration

from tablegate.gateway.contract.binder.alone import add_queries, rows_alone
from tablegate.gateway.contract.binder.fields import Method
from tablegate.gateway.contract.binder.files import (
    build_pool,
    check_bound_messages,
    check_options,
    merge,
    message_classes,
    messages_of,
    option,
)
from tablegate.gateway.contract.binder.problems import ContractError, Problem, Problems
from tablegate.gateway.contract.binder.queries import KINDS, Timeouts
from tablegate.gateway.contract.binder.results import find_table, named_table
from tablegate.gateway.contract.binder.tables import bind_tables, find_rows
from tablegate.gateway.contract.catalogue import Catalogue, Query, Table
from tablegate.gateway.contract.http_rules import ONE, REST, FieldPath, HttpRoute, Template, Variable, is_message
from tablegate.v1 import options_pb2

__all__ = ["ContractError", "Problem", "bind", "merge"]

TIMEOUTS_DEFAULT = Timeouts(default_s=5.0, max_s=30.0)
TIMEOUT_MAX_S = 3600.0  # a unary call that may take longer has its unit wrong


def bind(files: FileDescriptorSet) -> Catalogue:
    """Return the catalogue of the contracts in `files`, imports included; raise `ContractError` with all problems."""
    files = merge([files])
    problems = Problems()
    pool, own = build_pool(files)
    check_options(own, problems)
    check_bound_messages(pool, problems)
    alone = rows_alone(own)
    rows, tables = _bind_rows(own, problems)
    if alone and not problems.found:
        files = add_queries(files, pool, own, tables, problems)
        pool, own = build_pool(files)
        rows, tables = _bind_rows(own, problems)
    services = _Services(tables, {row.full_name for row in rows}, problems)
    for file in own:
        for service in file.services_by_name.values():
            services.bind(service)
    _check_not_empty(own, found_table=bool(rows), found_query=services.found_query or bool(alone), problems=problems)
    _check_params_used(own, services.request_names, problems)
    routes = http_routes(services.bound, problems)
    if problems.found:
        raise ContractError(problems.found)
    return Catalogue(
        tables={table.name: table for table in tables.values()},
        queries=services.queries,
        other_methods=services.other_methods,
        services=tuple(service.full_name for service in services.bound),
        routes=routes,
        pool=pool,
        files=files,
        message_classes=message_classes(own),
    )


def _bind_rows(own: list[FileDescriptor], problems: Problems) -> tuple[list[Descriptor], dict[str, Table]]:
    rows = find_rows(message for file in own for message in messages_of(file))
    return rows, bind_tables(rows, problems)


class _Services:
    """What the services of the contracts have, as they are bound one after the other."""

    def __init__(self, tables: Mapping[str, Table], rows: set[str], problems: Problems) -> None:
        self._tables = tables
        self._rows = rows
        self._problems = problems
        self.queries: dict[str, Query] = {}
        self.other_methods: dict[str, bool] = {}
        self.bound: list[ServiceDescriptor] = []
        self.request_names: set[str] = set()
        self.found_query = False

    def bind(self, service: ServiceDescriptor) -> None:
        """Bind the methods of a service that has a query; leave any other service alone."""
        serving = option(service, options_pb2.serving)
        options = {method.name: option(method, options_pb2.query) for method in service.methods}
        if all(query is None for query in options.values()):
            if serving is not None:
                text = "has the serving option and no method with a query option"
                self._problems.of_service(service, text, "remove the option, or make a method a query")
            return
        self.found_query = True
        self.bound.append(service)
        timeouts = _bind_timeouts(service, serving or options_pb2.ServingOptions(), self._problems)
        for method in service.methods:
            path = f"/{service.full_name}/{method.name}"
            query = options[method.name]
            if query is None:
                self.other_methods[path] = method.server_streaming
                continue
            self.request_names.add(method.input_type.full_name)
            bound = self._bind_query(method, query, timeouts)
            if bound is not None:
                self.queries[path] = bound

    def _bind_query(
        self, method: MethodDescriptor, options: options_pb2.QueryOptions, timeouts: Timeouts
    ) -> Query | None:
        kind_name = options.WhichOneof("kind")
        if kind_name is None:
            text = "has a query option that says no kind of query"
            self._problems.of_method(method, text, f"say one of {', '.join(KINDS)}")
            return None
        kind = KINDS[kind_name]
        if method.client_streaming or method.server_streaming != kind.streams:
            shape = (
                "takes one request and streams responses"
                if kind.streams
                else "takes one request and gives one response"
            )
            hint = 'write "stream" before the response alone' if kind.streams else 'remove "stream"'
            self._problems.of_method(method, f"has the wrong shape: {kind.name} {shape}", hint)
            return None
        if kind_name == "count":
            table = named_table(method, options.table, self._tables, self._problems)
        else:
            table = find_table(method, options.table, self._tables, self._rows, self._problems)
        if table is None:
            return None
        return kind.bind(Method(method, kind.name, table, self._problems), getattr(options, kind_name), timeouts)


def _bind_timeouts(service: ServiceDescriptor, serving: options_pb2.ServingOptions, problems: Problems) -> Timeouts:
    max_s = _seconds(serving.max_timeout) if serving.HasField("max_timeout") else TIMEOUTS_DEFAULT.max_s
    if not 0 < max_s <= TIMEOUT_MAX_S:
        text = f"max_timeout is {max_s:g} s"
        problems.of_service(service, text, f"take more than 0 and at most {TIMEOUT_MAX_S:g} s, or leave it out")
        return TIMEOUTS_DEFAULT
    if not serving.HasField("default_timeout"):
        return Timeouts(min(TIMEOUTS_DEFAULT.default_s, max_s), max_s)
    default_s = _seconds(serving.default_timeout)
    if not 0 < default_s <= max_s:
        text = f"default_timeout is {default_s:g} s"
        problems.of_service(service, text, f"take more than 0 and at most max_timeout ({max_s:g} s), or leave it out")
        return TIMEOUTS_DEFAULT
    return Timeouts(default_s, max_s)


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def _check_not_empty(own: list[FileDescriptor], *, found_table: bool, found_query: bool, problems: Problems) -> None:
    names = ", ".join(file.name for file in own) or "descriptor set"
    if not found_table:
        problems.of_file(names, "no message is a table", "add option (tablegate.v1.table) to the message of the row")
    if not found_query:
        problems.of_file(
            names, "no method is a query", "add option (tablegate.v1.query) to a method that reads the table"
        )


def _check_params_used(own: list[FileDescriptor], request_names: set[str], problems: Problems) -> None:
    for message in (message for file in own for message in messages_of(file)):
        if message.full_name in request_names:
            continue
        for field in message.fields:
            if option(field, options_pb2.param) is not None:
                text = "has a param option, and no query takes this message as its request"
                problems.of_message(message, text, "remove the option", field=field.name)


_HTTP_METHODS = {"get": "GET", "put": "PUT", "post": "POST", "delete": "DELETE", "patch": "PATCH"}
_WITHOUT_BODY = ("GET", "DELETE")
_LITERAL = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()+,;=@]|%[0-9A-Fa-f]{2})+")
_VARIABLE = re.compile(r"\{([^{}=]*)(?:=([^{}]*))?\}")
_VERB = re.compile(r":([^/:{}]*)$")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def http_routes(services: Iterable[ServiceDescriptor], problems: Problems) -> tuple[HttpRoute, ...]:
    """Return the routes of all annotated methods, in the order of the contracts; add what is wrong to `problems`."""
    routes: list[HttpRoute] = []
    owners: dict[tuple[str, tuple[str, ...], str], MethodDescriptor] = {}
    for method in (method for service in services for method in service.methods):
        options = method.GetOptions()
        if not options.HasExtension(annotations_pb2.http):
            continue
        if method.client_streaming:
            problems.of_method(method, "takes a stream, which HTTP rules have no form for", "remove google.api.http")
            continue
        for rule in _with_additional(options.Extensions[annotations_pb2.http], method, problems):
            route = _route(rule, _Rule(method, problems))
            if route is None:
                continue
            key = (route.http_method, route.template.segments, route.template.verb)
            owner = owners.get(key)
            if owner is not None:
                text = f"{_shown(rule)} is a route of method {owner.containing_service.name}.{owner.name} already"
                problems.of_method(method, text, "give each route a path of its own")
                continue
            owners[key] = method
            routes.append(route)
    return tuple(routes)


class _Rule:
    """A method whose rule is being read, and where problems go."""

    def __init__(self, method: MethodDescriptor, problems: Problems) -> None:
        self.method = method
        self.problems = problems

    def wrong(self, text: str, hint: str) -> None:
        """Add a problem of the rule."""
        self.problems.of_method(self.method, f"google.api.http: {text}", hint)


def _with_additional(rule: HttpRule, method: MethodDescriptor, problems: Problems) -> Iterator[HttpRule]:
    yield rule
    for additional in rule.additional_bindings:
        if additional.additional_bindings:
            text = "google.api.http: additional_bindings have additional_bindings"
            problems.of_method(method, text, "put all of them into the first rule")
        yield additional


def _shown(rule: HttpRule) -> str:
    kind = rule.WhichOneof("pattern")
    return f'{_HTTP_METHODS[kind]} "{getattr(rule, kind)}"'


def _route(rule: HttpRule, at: _Rule) -> HttpRoute | None:
    kind = rule.WhichOneof("pattern")
    if kind not in _HTTP_METHODS:
        at.wrong("has no HTTP method that is served", f"take one of {', '.join(_HTTP_METHODS)}")
        return None
    http_method = _HTTP_METHODS[kind]
    if rule.body and http_method in _WITHOUT_BODY:
        at.wrong(f"{http_method} has no body", "remove body, or take post")
        return None
    template = _template(getattr(rule, kind), at)
    body = _top_field(at.method.input_type, rule.body, "body", at) if rule.body not in ("", "*") else None
    response_body = _top_field(at.method.output_type, rule.response_body, "response_body", at)
    if template is None:
        return None
    if body is not None and any(variable.field == (body,) for variable in template.variables):
        at.wrong(f'field "{body.name}" is both body and in the path', "take it out of one of them")
    return HttpRoute(at.method, http_method, template, rule.body == "*", body, response_body)


def _top_field(message: Descriptor, name: str, what: str, at: _Rule) -> FieldDescriptor | None:
    if not name:
        return None
    field = message.fields_by_name.get(name)
    if field is None:
        at.wrong(f'{what} "{name}" is no field of message {message.name}', f"name a field of {message.name} itself")
    return field


def _template(text: str, at: _Rule) -> Template | None:
    """Return the template that `text` is; None if it is none, and then the problem is added."""
    if not text.startswith("/"):
        at.wrong(f'path "{text}" does not begin with "/"', "begin it so")
        return None
    found_verb = _VERB.search(text)
    verb = found_verb.group(1) if found_verb else ""
    if found_verb and not _LITERAL.fullmatch(verb):
        at.wrong(f'path "{text}" has no verb after its ":"', "name the verb, or leave the colon out")
        return None
    rest = text[: found_verb.start()] if found_verb else text
    segments: list[str] = []
    variables: list[Variable] = []
    while rest:
        found = _VARIABLE.match(rest, 1)
        size = found.end() if found else (rest + "/").index("/", 1)
        if not rest.startswith("/") or rest[size : size + 1] not in ("", "/"):
            at.wrong(f'path "{text}" has a variable that is no whole segment', "put it between slashes")
            return None
        parts = (found.group(2) if found.group(2) is not None else ONE).split("/") if found else [rest[1:size]]
        if not all(part in (ONE, REST) or _LITERAL.fullmatch(part) for part in parts):
            hint = "write /name, /{field}, /{field=name/*} or /{field=**}, and :verb at the end"
            at.wrong(f'path "{text}" cannot be read at "{rest[:size]}"', hint)
            return None
        if found:
            field = _path_field(found.group(1), text, at)
            if field is None:
                return None
            variables.append(Variable(field, len(segments), len(segments) + len(parts)))
        segments += parts
        rest = rest[size:]
    if REST in segments[:-1]:
        at.wrong(f'path "{text}" goes on after "**"', 'put "**" at the end, before the verb alone')
        return None
    fields = [variable.field for variable in variables]
    if len(set(fields)) != len(fields):
        at.wrong(f'path "{text}" has a field twice', "take one of them out")
        return None
    return Template(tuple(segments), verb, tuple(variables))


def _path_field(name: str, text: str, at: _Rule) -> FieldPath | None:
    message: Descriptor | None = at.method.input_type
    path: FieldPath = ()
    for part in name.split("."):
        if not _NAME.fullmatch(part):
            at.wrong(f'path "{text}" has "{name}" for a field', "name a field, with dots to those inside messages")
            return None
        assert message is not None
        field = message.fields_by_name.get(part)
        if field is None:
            at.wrong(f'path "{text}": message {message.name} has no field "{part}"', "name a field of the request")
            return None
        if field.is_repeated:
            at.wrong(f'path "{text}": field "{name}" is repeated', "take a field with one value, or a body")
            return None
        path = (*path, field)
        message = field.message_type if is_message(field) else None
        if message is None and len(path) <= name.count("."):
            at.wrong(f'path "{text}": field "{part}" has no fields of its own', f'end at "{part}"')
            return None
    if is_message(path[-1]):
        at.wrong(f'path "{text}": field "{name}" is a message', "name a field in it, or give it in a body")
        return None
    return path
