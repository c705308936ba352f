"""Binds the google.api.http annotations of methods to routes. The grammar is that of google/api/http.proto."""

import re
from collections.abc import Iterable, Iterator

from google.api import annotations_pb2
from google.api.http_pb2 import HttpRule
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor, ServiceDescriptor
from tablegate.gateway.contract.binder.problems import Problems
from tablegate.gateway.contract.http_rules import ONE, REST, FieldPath, HttpRoute, Template, Variable, is_message

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
