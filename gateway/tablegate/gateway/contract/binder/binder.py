"""The binder turns a descriptor set into a catalogue, or reports everything that is wrong with it.

It works in one pass. Each step adds to one list of problems, so that a contract is corrected at once, and not problem
by problem:

1. `files`: build a descriptor pool; refuse options and well-known messages that are not what this version knows.
2. `tables`: bind each message with a `table` option: name, columns, key, partitioning, window, retention.
3. `results`: find the table that a method reads, by the row in its response.
4. `queries`, `fields`: bind the request and the response of each method by the kind of its query.
5. `routes`: make routes of the `google.api.http` options.

It touches no files and no network: descriptors in, catalogue out.

Decision: docs/decisions/0001-contracts-have-only-what-is-served.md
"""

from collections.abc import Mapping

from google.protobuf.descriptor import FileDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.duration_pb2 import Duration

from tablegate.gateway.contract.binder.fields import Method
from tablegate.gateway.contract.binder.files import (
    build_pool,
    check_bound_messages,
    check_options,
    merge,
    messages_of,
    option,
)
from tablegate.gateway.contract.binder.problems import ContractError, Problem, Problems
from tablegate.gateway.contract.binder.queries import KINDS, Timeouts
from tablegate.gateway.contract.binder.results import find_table
from tablegate.gateway.contract.binder.routes import http_routes
from tablegate.gateway.contract.binder.tables import bind_tables, find_rows
from tablegate.gateway.contract.catalogue import Catalogue, Query, Table
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
    rows = find_rows(message for file in own for message in messages_of(file))
    tables = bind_tables(rows, problems)
    services = _Services(tables, {row.full_name for row in rows}, problems)
    for file in own:
        for service in file.services_by_name.values():
            services.bind(service)
    _check_not_empty(own, found_table=bool(rows), found_query=services.found_query, problems=problems)
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
    )


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
