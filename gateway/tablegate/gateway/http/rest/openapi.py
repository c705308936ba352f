"""The contracts as an OpenAPI 3.1 document: the routes of REST, and, of methods without one, the path of Connect."""

import itertools
import json
import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor

from tablegate.gateway.contract.catalogue import (
    BatchGetQuery,
    Catalogue,
    CountQuery,
    GetQuery,
    Query,
    RangeQuery,
    ScanQuery,
    SubscribeQuery,
)
from tablegate.gateway.contract.http_rules import ONE, REST, FieldPath, HttpRoute, Template, parameter_fields
from tablegate.gateway.http.rest.arrow import ARROW, gives_rows
from tablegate.gateway.http.rest.openapi_schemas import (
    Comments,
    Schema,
    Schemas,
    example_of,
    example_of_field,
    is_required,
)

_JSON, _LINES, _EVENTS = "application/json", "application/x-ndjson", "text/event-stream"
_VERSION = re.compile(r"v[0-9]+\w*")
ABOUT = (
    "Queries over tables that streaming jobs keep. All of them only read.\n\n"
    "`readOptions` say how fresh an answer must be, `readInfo` says how fresh it is. "
    "64-bit integers are text, times are RFC 3339, durations are seconds such as `1.5s`. "
    "Fields that are 0, false or empty are left out of answers."
)
"""What holds of all queries in JSON."""
_PROTOCOLS = "gRPC, gRPC-Web and Connect clients find the same methods on the same port."
_DETAILS: Schema = {
    "type": "array",
    "description": "The first is a `google.rpc.ErrorInfo`: its `reason` is for programs.",
    "items": {"type": "object", "properties": {"@type": {"type": "string"}}},
}
_ERROR: Schema = {
    "type": "object",
    "description": "Why there is no answer.",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "status"],
            "properties": {
                "code": {"type": "integer", "description": "The HTTP status."},
                "status": {"type": "string", "description": "The name of a google.rpc.Code."},
                "message": {"type": "string", "description": "What is wrong and what to do, for people."},
                "details": _DETAILS,
            },
        }
    },
    "examples": [
        {
            "error": {
                "code": 400,
                "status": "INVALID_ARGUMENT",
                "message": 'field "page_size": is negative; send 0 for the default, or how many rows you want',
                "details": [
                    {
                        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                        "reason": "INVALID_FIELD",
                        "domain": "tablegate",
                    }
                ],
            }
        }
    ],
}
_CONNECT_ERROR: Schema = {
    "type": "object",
    "description": "Why there is no answer, in Connect's form.",
    "required": ["code"],
    "properties": {
        "code": {"type": "string", "description": "Such as not_found."},
        "message": {"type": "string", "description": "What is wrong and what to do, for people."},
        "details": {"type": "array", "items": {"type": "object"}},
    },
}


def openapi_document(catalogue: Catalogue) -> bytes:
    """Return the document of all queries, as JSON."""
    return json.dumps(_Document(catalogue).build(), ensure_ascii=False, indent=1).encode()


class _Document:
    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._comments = Comments(catalogue.files)
        self._schemas = Schemas(self._comments, {"Error": _ERROR})
        self._paths: dict[str, dict[str, Schema]] = {}
        self._operations: dict[str, int] = {}
        self._templates: dict[tuple[tuple[str, ...], str], list[str]] = {}

    def build(self) -> Schema:
        """Return the document."""
        for route in self._catalogue.routes:
            query = self._catalogue.queries.get(route.path)
            if query is not None:
                self._add_route(route, query)
        routed = {route.path for route in self._catalogue.routes}
        for path, query in self._catalogue.queries.items():
            if path not in routed and not isinstance(query, (ScanQuery, SubscribeQuery)):
                self._add_connect(path, query)
        services = self._catalogue.services
        tags = [_described({"name": _short(name)}, self._comments.of(name)) for name in services]
        versions = {part for name in services for part in name.split(".") if _VERSION.fullmatch(part)}
        return {
            "openapi": "3.1.0",
            "info": {
                "title": f"Tablegate: {', '.join(self._catalogue.tables)}",
                "version": ", ".join(sorted(versions)) or "v1",
                "description": f"{ABOUT}\n\n{_PROTOCOLS}",
            },
            "servers": [{"url": "/"}],  # whatever address the document came from
            "tags": tags,
            "paths": self._paths,
            "components": {"schemas": self._schemas.components},
        }

    def _add_route(self, route: HttpRoute, query: Query) -> None:
        shape = (route.template.segments, route.template.verb)
        # Paths that differ only in the names of their variables are one path to OpenAPI: the first names count.
        names = self._templates.setdefault(shape, _wildcard_names(route.template))
        required = required_names(query)
        operation = self._operation(route.method, query)
        fields = parameter_fields(route)
        given = {part for field in fields for part in field}
        operation["parameters"] = [
            *self._path_parameters(route.template, names),
            *(self._query_parameter(field, required, given) for field in fields),
        ]
        if route.whole_body:
            example = example_of(route.method.input_type, only=required)
            # To REST, no body is an empty message.
            operation["requestBody"] = _body(
                self._schemas.of_message(route.method.input_type), example, is_required=False
            )
        elif route.body is not None:
            operation["requestBody"] = _body(
                self._schemas.of_field(route.body), example_of_field(route.body), is_required=False
            )
        if route.response_body is None:
            schema = self._schemas.of_message(route.method.output_type)
            example = example_of(route.method.output_type)
        else:
            schema, example = self._schemas.of_field(route.response_body), example_of_field(route.response_body)
        streams = isinstance(query, (ScanQuery, SubscribeQuery))
        answer = _stream(schema, example) if streams else _answer(schema, example)
        operation["responses"] = {"200": answer}
        if gives_rows(query, route):
            answer["description"] += " The rows as one stream of Arrow, where the gateway has the extra `arrow`."
            answer["content"][ARROW.decode()] = {}  # bytes: OpenAPI 3.1 has no schema for them
        error = {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
        if isinstance(query, GetQuery) and not query.missing_is_empty:
            operation["responses"]["404"] = {"description": "No row has this key.", "content": error}
        operation["responses"]["default"] = {"description": "There is no answer, and why.", "content": error}
        self._paths.setdefault(_openapi_path(route.template, names), {})[route.http_method.lower()] = operation

    def _add_connect(self, path: str, query: Query) -> None:
        self._schemas.components["ConnectError"] = _CONNECT_ERROR
        method = self._catalogue.pool.FindMethodByName(path.removeprefix("/").replace("/", "."))
        request, response = method.input_type, method.output_type
        operation = self._operation(method, query)
        example = example_of(request, only=required_names(query))
        operation["requestBody"] = _body(self._schemas.of_message(request), example, is_required=True)
        error = {_JSON: {"schema": {"$ref": "#/components/schemas/ConnectError"}}}
        operation["responses"] = {
            "200": _answer(self._schemas.of_message(response), example_of(response)),
            "default": {"description": "There is no answer, and why.", "content": error},
        }
        self._paths[path] = {"post": operation}

    def _operation(self, method: MethodDescriptor, query: Query) -> Schema:
        service = method.containing_service
        count = self._operations[method.full_name] = self._operations.get(method.full_name, 0) + 1
        return {
            "operationId": f"{service.name}_{method.name}{count if count > 1 else ''}",
            "tags": [_short(service.full_name)],
            "summary": self._comments.of(method.full_name).rstrip(".") or method.name,
            "description": kind_text(query, missing="404"),
        }

    def _path_parameters(self, template: Template, names: list[str]) -> list[Schema]:
        parameters = []
        wildcards = [place for place, part in enumerate(template.segments) if part in (ONE, REST)]
        for place, name in zip(wildcards, names, strict=True):
            schema: Schema = {"type": "string"}
            parameter: Schema = {"name": name, "in": "path", "required": True}
            text = "With its slashes." if template.segments[place] == REST else ""
            variable = next((one for one in template.variables if one.start <= place < one.end), None)
            if variable is not None:
                field = variable.field[-1]
                text = f"{self._comments.of(field.full_name)} {text}".strip()
                if variable.end - variable.start == 1:
                    schema = _without_description(self._schemas.of_field(field))
                    if schema.get("type") != "string" or "format" in schema:
                        parameter["example"] = example_of_field(field)
            parameters.append({**_described(parameter, text), "schema": schema})
        return parameters

    def _query_parameter(self, path: FieldPath, required: Sequence[str], given: AbstractSet[FieldDescriptor]) -> Schema:
        field = path[-1]
        parameter: Schema = {"name": ".".join(part.json_name for part in path), "in": "query"}
        if field.name in required and len(path) == 1:
            parameter["required"] = True
        text = f"{self._comments.of(field.full_name)} {_oneof_text(path, given)}".strip()
        schema = _without_description(self._schemas.of_field(field))
        return {**_described(parameter, text), "schema": schema}


def kind_text(query: Query, *, missing: str) -> str:
    """Return what a query is, for people. `missing`: what a Get gives where there is no row, unless its answer says."""
    table = f"table `{query.table.name}`"
    match query:
        case GetQuery():
            given = "an empty answer" if query.missing_is_empty else missing
            return f"Get: the row of one key of {table}; {given} where there is none."
        case BatchGetQuery():
            return f"BatchGet: the rows of up to {query.max_keys} keys of {table}, in the order asked."
        case RangeQuery():
            size = f"{query.default_page_size} rows a page, or `pageSize`, at most {query.max_page_size}"
            return f"Range: rows of {table} in the order of their keys, {size}."
        case CountQuery():
            return f"Count: how many rows of {table} there are, or pass the filters."
        case ScanQuery():
            text = f"Scan: every row of {table} that passes the filters, as a stream."
        case _:
            text = f"Subscribe: the rows of {table}, then their changes, as a stream that does not end."
    lines = "JSON lines, or server-sent events for `Accept: text/event-stream`."
    return f"{text} {lines} An error after the first message is the last line, or the event `error`."


def required_names(query: Query) -> list[str]:
    """Return the fields of the request that must be given."""
    request: Any = query.request_class.DESCRIPTOR
    names = [field.name for field in request.fields if is_required(field)]
    match query:
        case BatchGetQuery():
            names.append(query.keys.name)
        case GetQuery():
            names += [param.field.name for param in query.params]
        case RangeQuery() | CountQuery():
            names += [param.field.name for param in query.prefix]
        case SubscribeQuery():
            names += [param.field.name for param in query.params if param.required]
    return list(dict.fromkeys(names))


def _wildcard_names(template: Template) -> list[str]:
    """Return a parameter's name for each segment that is not literal, in their order."""
    names: list[str] = []
    for place, part in enumerate(template.segments):
        if part not in (ONE, REST):
            continue
        variable = next((one for one in template.variables if one.start <= place < one.end), None)
        name = ".".join(field.json_name for field in variable.field) if variable is not None else "part"
        numbered = (f"{name}{number}" for number in itertools.count(2))
        names.append(name if name not in names else next(other for other in numbered if other not in names))
    return names


def _openapi_path(template: Template, names: list[str]) -> str:
    left = iter(names)
    parts = [f"{{{next(left)}}}" if part in (ONE, REST) else part for part in template.segments]
    return "".join(f"/{part}" for part in parts) + (f":{template.verb}" if template.verb else "")


def _oneof_text(path: FieldPath, given: AbstractSet[FieldDescriptor]) -> str:
    """Return which of the fields that can be given exclude the one at `path`."""
    for field in path:
        others = field.containing_oneof.fields if field.containing_oneof is not None else ()
        names = [other.json_name for other in others if other is not field and other in given]
        if names:
            return f"Not with {', '.join(names)}."
    return ""


def _body(schema: Schema, example: Any, *, is_required: bool) -> Schema:
    return {"required": is_required, "content": {_JSON: {"schema": schema, "example": example}}}


def _answer(schema: Schema, example: Any) -> Schema:
    return {"description": "The answer.", "content": {_JSON: {"schema": schema, "example": example}}}


def _stream(schema: Schema, example: Any) -> Schema:
    # OpenAPI 3.1 has no schema of a stream's items: the whole is text, and its content is messages.
    line = json.dumps(example, separators=(",", ":"))
    examples = {_LINES: f"{line}\n", _EVENTS: f"data: {line}\n\n"}
    return {
        "description": "A stream of messages: one a line, or one an event.",
        "content": {
            name: {"schema": {"type": "string", "contentMediaType": name, "contentSchema": schema}, "example": text}
            for name, text in examples.items()
        },
    }


def _described(schema: Schema, text: str) -> Schema:
    return {**schema, "description": text} if text else schema


def _without_description(schema: Schema) -> Schema:
    return {name: value for name, value in schema.items() if name != "description"}


def _short(full_name: str) -> str:
    return full_name.rpartition(".")[2]
