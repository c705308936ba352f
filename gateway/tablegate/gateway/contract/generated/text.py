"""Generated queries as the text of a .proto, as `buf format` would have it."""

import json
from collections.abc import Collection, Iterator, Sequence

from tablegate.gateway.contract.generated.queries import Field, Message, Method, Queries, Service

Lines = Iterator[str]


class Names:
    """How types are written in a file of a package: without it where they are in it.

    Names are looked up from the inside out. So one that begins as a part of the package, or as a message of it, needs
    a dot before it.
    """

    def __init__(self, package: str, messages: Collection[str] = ()) -> None:
        self._own = f"{package}." if package else ""
        self._hiding = {*package.split(".")[1:], *messages} - {""}

    def written(self, name: str) -> str:
        """Return how a scalar, or a message or enum of that full name, is written."""
        if "." not in name:
            return name
        if self._own and name.startswith(self._own):
            return name.removeprefix(self._own)
        return f".{name}" if name.partition(".")[0] in self._hiding else name


def lines_of(queries: Queries, names: Names) -> Lines:
    """Yield the lines of a service and its messages, with an empty one between two of these."""
    yield from _service(queries.service, names)
    for message in queries.messages:
        yield ""
        yield from _message(message, names)


def _service(service: Service, names: Names) -> Lines:
    yield f"// {service.comment}"
    yield f"service {service.name} {{"
    for number, method in enumerate(service.methods):
        if number:
            yield ""
        yield from _indented(_method(method, names))
    yield "}"


def _method(method: Method, names: Names) -> Lines:
    yield f"// {method.comment}"
    streams = "stream " if method.streams else ""
    yield f"rpc {method.name}({method.name}Request) returns ({streams}{method.name}Response) {{"
    if not method.streams:
        yield "  option idempotency_level = NO_SIDE_EFFECTS;"
    verb, path = method.http
    route = [f"{verb}: {json.dumps(path)}", *(['body: "*"'] if verb == "post" else [])]
    yield from _indented(_option(names.written("google.api.http"), route))
    yield f"  option ({names.written('tablegate.v1.query')}) = {{"
    yield f"    {method.kind}: {{{'scatter: true' if method.scatter else ''}}}"
    if method.table:
        yield f'    table: "{method.table}"'
    yield "  };"
    yield "}"


def _option(name: str, entries: Sequence[str]) -> Lines:
    if len(entries) == 1:
        yield f"option ({name}) = {{{entries[0]}}};"
        return
    yield f"option ({name}) = {{"
    yield from (f"  {entry}" for entry in entries)
    yield "};"


def _message(message: Message, names: Names) -> Lines:
    yield f"// {message.comment}"
    yield f"message {message.name} {{"
    fields = [line for number, field in message.numbered for line in _field(field, number, names)]
    if message.oneof:
        yield f"  // {message.oneof_comment}"
        yield f"  oneof {message.oneof} {{"
        yield from _indented(_indented(iter(fields)))
        yield "  }"
    else:
        yield from _indented(iter(fields))
    yield "}"


def _field(field: Field, number: int, names: Names) -> Lines:
    yield f"// {field.comment}"
    declared = f"{field.label.value}{names.written(field.type)} {field.name} = {number}"
    options = list(_field_options(field, names))
    if len(options) > 1:
        yield f"{declared} ["
        for at, option in enumerate(options, 1):
            yield f"  {option}{',' if at < len(options) else ''}"
        yield "];"
    elif options and "\n" in options[0]:
        first, *more = options[0].split("\n")
        yield f"{declared} [{first}"
        yield from more[:-1]
        yield f"{more[-1]}];"
    else:
        yield f"{declared} [{options[0]}];" if options else f"{declared};"


def _field_options(field: Field, names: Names) -> Iterator[str]:
    param = names.written("tablegate.v1.param")
    if field.required:
        yield f"({names.written('google.api.field_behavior')}) = REQUIRED"
    if field.column and field.op is not None:
        yield f'({param}) = {{\n  column: "{field.column}"\n  op: OP_{field.op.name}\n}}'
    elif field.column:
        yield f'({param}).column = "{field.column}"'
    elif field.op is not None:
        yield f"({param}).op = OP_{field.op.name}"


def _indented(lines: Lines) -> Lines:
    for line in lines:
        yield f"  {line}" if line else line
