"""Routes at work: which one a path is of, the request that path, query and body make, and the answer's JSON."""

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Never
from urllib.parse import parse_qsl, unquote_to_bytes

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tablegate.gateway.contract.columns import is_map
from tablegate.gateway.contract.http_rules import ONE, REST, FieldPath, HttpRoute, Template, parameter_fields
from tablegate.gateway.http.exchange import MESSAGE_BYTES_MAX
from tablegate.gateway.http.field_texts import FieldSetter
from tablegate.gateway.http.json_codec import JsonCodec, compact, shown_name
from tablegate.gateway.http.rpc.calls import LastMade
from tablegate.gateway.query.call import StreamMethod, UnaryMethod
from tablegate.gateway.query.errors import InvalidField, RequestTooLarge

_SAFE_NAME = re.compile(r"[A-Za-z_][\w.]{0,127}", re.ASCII)
_ENCODED_SLASH = re.compile(rb"(%2[Ff])")


class _PathValue(NamedTuple):
    """A field that the path has. `whole`: it is one segment, which may hold a slash that is percent-encoded."""

    name: str
    setter: FieldSetter
    whole: bool


class ServedRoute:
    """A route, and the method that serves it."""

    def __init__(self, route: HttpRoute, method: UnaryMethod | StreamMethod, codec: JsonCodec) -> None:
        self.path = route.path
        self.method = method
        self.template = route.template
        self._route = route
        self._codec = codec
        self._request_class = GetMessageClass(route.method.input_type)
        self._response_class = GetMessageClass(route.method.output_type)
        self._path_values = [
            _PathValue(
                name=".".join(field.name for field in variable.field),
                setter=FieldSetter(variable.field),
                whole=route.template.segments[variable.start : variable.end] == (ONE,),
            )
            for variable in route.template.variables
        ]
        self._in_path = {name for variable in route.template.variables for name in names_of(variable.field)}
        self._parameters = _parameters(route)
        self.streamed = LastMade(self.answer)  # from a message of a stream to JSON

    def request(self, values: Sequence[bytes | None], query: bytes, body: bytes) -> bytes:
        """Return the request's message; raise a `QueryError` that names the field where it is none.

        `values`: of the path's variables, as they were sent.
        """
        if self._route.whole_body:
            data = self._codec.from_json(self._request_class, body or b"{}")
            if not self._path_values and not query:
                return data
            message: Message = self._request_class.FromString(data)
        else:
            message = self._request_class()
            self._set_body(message, body)
        for (name, setter, whole), value in zip(self._path_values, values, strict=True):
            setter.set(message, _decoded(value or b"", name, whole=whole), name)
        if query:
            self._set_parameters(message, query)
        data = message.SerializeToString()
        if len(data) > MESSAGE_BYTES_MAX:
            raise RequestTooLarge(MESSAGE_BYTES_MAX)
        return data

    def answer(self, data: bytes) -> bytes:
        """Return a response as JSON; raise what `JsonCodec.to_json` does."""
        text = self._codec.to_json(self._response_class, data)
        field = self._route.response_body
        if field is None:
            return text
        empty: Any = [] if field.is_repeated and not is_map(field) else {} if field.message_type else None
        value = json.loads(text).get(field.json_name, empty)
        return compact(value)

    def _set_body(self, message: Message, body: bytes) -> None:
        field = self._route.body
        if field is None:
            if body:
                raise InvalidField("", "the request has a body, which this path does not take; send none")
            return
        if not body:
            return
        try:
            json.loads(body)  # so that it is one value, and cannot bring other fields along
        except (ValueError, RecursionError):
            raise InvalidField(field.name, "is no JSON; send it as the body") from None
        wrapped = b'{"%b":%b}' % (field.json_name.encode(), body)
        message.MergeFromString(self._codec.from_json(self._request_class, wrapped))

    def _set_parameters(self, message: Message, query: bytes) -> None:
        try:
            pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict")
        except UnicodeDecodeError:
            raise InvalidField("", "the query is not UTF-8, percent-encoded; encode it so") from None
        seen: set[FieldSetter] = set()
        for name, value in pairs:
            setter = self._parameters.get(name)
            if setter is None:
                self._refuse(name)
            if not setter.repeated:
                if setter in seen:
                    raise InvalidField(name, "is given twice and takes one value; give it once")
                seen.add(setter)
            setter.set(message, value, name)

    def _refuse(self, name: str) -> Never:
        if name in self._in_path:
            raise InvalidField(name, "is in the path already; leave the parameter out")
        shown = shown_name(name) if _SAFE_NAME.fullmatch(name) else ""
        if self._route.whole_body:
            raise InvalidField(shown, "is no query parameter here; give it in the body")
        request = self._route.method.input_type.name
        raise InvalidField(shown, f"is no field of {request} that a query parameter can give")


class Router:
    """The routes of one HTTP method."""

    def __init__(self, routes: Iterable[ServedRoute]) -> None:
        # Of several that match, the first one in this order counts: the more literal, and a verb above all.
        self._routes: dict[int, tuple[ServedRoute, int]] = {}
        patterns = []
        groups = 0
        for route in sorted(routes, key=_precedence):
            first = groups
            groups += len(route.template.variables) + 1
            self._routes[groups] = (route, first)
            patterns.append(_pattern(route.template) + b"()")  # the empty group tells which one matched
        self._match = re.compile(b"|".join(patterns), re.DOTALL).fullmatch

    def find(self, path: bytes) -> tuple[ServedRoute, Sequence[bytes | None]] | None:
        """Return the route of a path, and what its variables are, still percent-encoded; None where there is none."""
        found = self._match(path)
        if found is None:
            return None
        assert found.lastindex is not None, "each route ends with a group"
        route, first = self._routes[found.lastindex]
        return route, found.groups()[first : found.lastindex - 1]


def _precedence(route: ServedRoute) -> tuple[bool, list[int]]:
    template = route.template
    return template.verb == "", [
        (ONE, REST).index(part) + 1 if part in (ONE, REST) else 0 for part in template.segments
    ]


def _pattern(template: Template) -> bytes:
    """Return a template as a regular expression with a group for each variable."""
    starts = {variable.start for variable in template.variables}
    ends = {variable.end for variable in template.variables}
    pattern = ""
    for place, segment in enumerate(template.segments):
        opened = "(" if place in starts else ""
        closed = ")" if place + 1 in ends else ""
        if segment != REST:
            part = "[^/]+" if segment == ONE else re.escape(segment)
            pattern += f"/{opened}{part}{closed}"
        elif opened:
            pattern += "(?:/(.*))?"
        else:
            pattern += f"(?:/.*)?{closed}"
    return (pattern + (":" + re.escape(template.verb) if template.verb else "")).encode("ascii")


def _parameters(route: HttpRoute) -> Mapping[str, FieldSetter]:
    parameters = {}
    for field in parameter_fields(route):
        setter = FieldSetter(field)
        parameters.update(dict.fromkeys(names_of(field), setter))
    return parameters


def _decoded(value: bytes, name: str, *, whole: bool) -> str:
    """Return a path's value without its percent-encoding; in one of several segments an encoded slash stays so."""
    if whole:
        plain = unquote_to_bytes(value)
    else:
        parts = _ENCODED_SLASH.split(value)
        plain = b"".join(part if place % 2 else unquote_to_bytes(part) for place, part in enumerate(parts))
    try:
        return plain.decode()
    except UnicodeDecodeError:
        raise InvalidField(name, "is not UTF-8, percent-encoded; encode it so") from None


def names_of(path: FieldPath) -> Sequence[str]:
    """Return what a client may call a field: each part by its name in the contract, or in JSON."""
    return [".".join(parts) for parts in itertools.product(*({field.name, field.json_name} for field in path))]
