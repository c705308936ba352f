"""The pages: / says what is served and how one asks for it, /openapi.json is for programs, /docs tries its routes.

All that a page needs comes from here: a browser that may reach nothing but the gateway can show it. To others than
browsers the start page is text. It has the commands that ask each query: curl, of its REST route or of Connect's path,
and grpcurl; with the values of the document's examples, and the address that the client has asked.

Decision: docs/decisions/0009-swagger-ui-in-the-tree.md
"""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from itertools import groupby
from typing import NamedTuple
from urllib.parse import quote, urlencode

from google.protobuf.descriptor import MethodDescriptor

from tablegate.gateway.contract.catalogue import Catalogue, Query, ScanQuery, SubscribeQuery
from tablegate.gateway.contract.http_rules import ONE, REST, HttpRoute
from tablegate.gateway.http.exchange import TEXT, Exchange, ResponseHeaders
from tablegate.gateway.http.page_files import (
    GOT_BY,
    HTML,
    JSON_TYPE,
    PAGE_FIELDS,
    SCRIPT,
    STYLE,
    PageFile,
    packed,
    refuse_method,
)
from tablegate.gateway.http.rest.openapi import openapi_document, required_names
from tablegate.gateway.http.rest.openapi_schemas import Comments, example_of, example_of_field

_START_FIELDS = (*PAGE_FIELDS[:-1], (b"vary", b"accept, host"))
START = b"/"

_HOST = re.compile(r"[A-Za-z0-9.-]+(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?")
_NO_HOST = "HOST:PORT"
_JSON = "-H 'content-type: application/json'"
_EVENTS = "-N -H 'accept: text/event-stream'"


_START_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Tablegate</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/start.css">
<body><main>
<h1>Tablegate</h1>
<p>These tables are served here, over gRPC, gRPC-Web, Connect and REST. <a href="docs">Try the queries</a>, or take the
<a href="openapi.json">OpenAPI document</a>.{console}</p>
{tables}
</main></body>
</html>
"""
_CONSOLE = ' <a href="console">The console</a> shows tables, partitions, rows and calls, as they move.'


class Pages:
    """Serves exchanges whose path is one of the pages. `scheme`: of the gateway's addresses.

    `has_console`: whether the console is at the same port.
    """

    def __init__(self, catalogue: Catalogue, scheme: str, *, has_console: bool = False) -> None:
        self._start = StartPage(catalogue, scheme, has_console=has_console)
        self._pages: Mapping[bytes, PageFile] = {
            b"/openapi.json": PageFile(JSON_TYPE, lambda: packed(openapi_document(catalogue))),
            b"/docs": PageFile(HTML, lambda: packed(_file("page.html"))),
            b"/docs/page.js": PageFile(SCRIPT, lambda: packed(_file("page.js"))),
            b"/docs/swagger-ui-bundle.js": PageFile(SCRIPT, lambda: _file("swagger-ui-bundle.js.gz")),
            b"/docs/start.css": PageFile(STYLE, lambda: packed(_file("start.css"))),
            b"/docs/swagger-ui.css": PageFile(STYLE, lambda: _file("swagger-ui.css.gz")),
        }

    @property
    def paths(self) -> Iterable[bytes]:
        """Return the paths of the pages."""
        return (START, *self._pages)

    def serve(self, exchange: Exchange) -> bool:
        """Serve an exchange; return whether its path was that of a page."""
        path = exchange.target.partition(b"?")[0]
        page = self._pages.get(path)
        if page is None and path != START:
            return False
        if page is not None:
            page.serve(exchange)
        elif exchange.method not in GOT_BY:
            refuse_method(exchange)
        else:
            self._respond_start(exchange)
        return True

    def _respond_start(self, exchange: Exchange) -> None:
        host = exchange.headers.get(b"host", b"")
        if b"text/html" in exchange.headers.get(b"accept", b""):
            exchange.respond(ResponseHeaders(200, ((b"content-type", HTML), *_START_FIELDS)), self._start.html(host))
        else:
            exchange.respond(ResponseHeaders(200, (TEXT, *_START_FIELDS)), self._start.text(host))


def _file(name: str) -> bytes:
    return (files("tablegate.gateway.http.rest") / "swagger_ui" / name).read_bytes()


class _Shown(NamedTuple):
    """A query. `commands`: from scheme and address to the commands that ask it."""

    table: str
    key: str
    name: str
    about: str
    commands: Callable[[str, str], Sequence[str]]


class StartPage:
    """The page of a catalogue. `scheme`: of its addresses, "http" or "https". `has_console`: as of `Pages`."""

    def __init__(self, catalogue: Catalogue, scheme: str, *, has_console: bool = False) -> None:
        self._scheme = scheme
        self._has_console = has_console
        self._shown = cache(lambda: _queries(catalogue))

    def html(self, host: bytes) -> bytes:
        """Return the page for browsers; `host` is what the client has asked."""
        address, parts = _address(host), []
        for (table, key), queries in self._by_table():
            parts.append(f"<section><h2>{escape(table)}</h2><p>key: {escape(key)}</p>")
            for query in queries:
                parts.append(f"<h3>{escape(query.name)}</h3><p>{escape(query.about)}</p>")
                parts += [f"<pre>{escape(command)}</pre>" for command in query.commands(self._scheme, address)]
            parts.append("</section>")
        page = _START_PAGE.replace("{console}", _CONSOLE if self._has_console else "")
        return page.replace("{tables}", "".join(parts)).encode()

    def text(self, host: bytes) -> bytes:
        """Return the same as text."""
        console = "; to see them: /console" if self._has_console else ""
        address = _address(host)
        lines = [f"Tablegate serves these tables. To try them in a browser: /docs{console}", ""]
        for (table, key), queries in self._by_table():
            lines.append(f"{table} (key: {key})")
            for query in queries:
                lines.append(f"  {query.name}: {query.about}" if query.about else f"  {query.name}")
                lines += [f"    {command}" for command in query.commands(self._scheme, address)]
            lines.append("")
        return "\n".join(lines).encode()

    def _by_table(self) -> list[tuple[tuple[str, str], list[_Shown]]]:
        return [(of, list(queries)) for of, queries in groupby(self._shown(), key=lambda each: (each.table, each.key))]


def _queries(catalogue: Catalogue) -> list[_Shown]:
    comments, routes = Comments(catalogue.files), {}
    for route in catalogue.routes:
        if route.http_method == "GET" or route.path not in routes:
            routes[route.path] = route
    found = []
    for path, query in catalogue.queries.items():
        method = catalogue.pool.FindMethodByName(path.removeprefix("/").replace("/", "."))
        key = ", ".join(column.name for column in query.table.key)
        about = comments.of(method.full_name)
        found.append(_Shown(query.table.name, key, method.name, about, _commands(method, query, routes.get(path))))
    return sorted(found, key=lambda each: each.table)  # queries of a table stay in their order


def _commands(method: MethodDescriptor, query: Query, route: HttpRoute | None) -> Callable[[str, str], Sequence[str]]:
    required = required_names(query)
    request = json.dumps(example_of(method.input_type, only=required))
    data, streams = shlex.quote(request), isinstance(query, (ScanQuery, SubscribeQuery))
    path = f"{method.containing_service.full_name}/{method.name}"

    def commands(scheme: str, address: str) -> Sequence[str]:
        grpcurl = f"grpcurl {'-plaintext ' if scheme == 'http' else ''}-d {data} {address} {path}"
        base = f"{scheme}://{address}"
        if route is not None and route.http_method == "GET":
            url = base + _path(route) + _query_string(route, required)
            return [f"curl {f'{_EVENTS} ' if streams else ''}{shlex.quote(url)}", grpcurl]
        if streams:
            return [grpcurl]
        where = f"/{path}" if route is None else _path(route)
        return [f"curl {_JSON} -d {data} {shlex.quote(base + where)}", grpcurl]

    return commands


def _path(route: HttpRoute) -> str:
    """Return a path of a route, with an example of each variable."""
    parts = list(route.template.segments)
    for variable in route.template.variables:
        if variable.end - variable.start == 1 and parts[variable.start] in (ONE, REST):
            parts[variable.start] = quote(str(example_of_field(variable.field[-1])), safe="")
    return "".join(f"/{part}" for part in parts) + (f":{route.template.verb}" if route.template.verb else "")


def _query_string(route: HttpRoute, required: Sequence[str]) -> str:
    """Return the fields that a request must have and a route's path has not."""
    in_path = {variable.field[0].name for variable in route.template.variables}
    fields = [route.method.input_type.fields_by_name[name] for name in required if name not in in_path]
    return f"?{urlencode([(field.json_name, example_of_field(field)) for field in fields])}" if fields else ""


def _address(host: bytes) -> str:
    """Return the address for commands, which people copy: nothing that a shell would take for more than an address."""
    text = host.decode("latin-1")
    return text if _HOST.fullmatch(text) else _NO_HOST
