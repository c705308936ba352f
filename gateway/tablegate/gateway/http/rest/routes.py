"""Routes at work: which one a path is of, the request that path, query and body make, and the answer's JSON."""

import base64
import binascii
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Never
from urllib.parse import parse_qsl, unquote_to_bytes

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tablegate.gateway.contract.columns import is_map
from tablegate.gateway.contract.http_rules import ONE, REST, FieldPath, HttpRoute, Template, parameter_fields
from tablegate.gateway.http.exchange import MESSAGE_BYTES_MAX
from tablegate.gateway.http.json_codec import JsonCodec, compact, shown_name
from tablegate.gateway.query.call import StreamMethod, UnaryMethod
from tablegate.gateway.query.errors import InvalidField, RequestTooLarge

_SAFE_NAME = re.compile(r"[A-Za-z_][\w.]{0,127}", re.ASCII)
_ENCODED_SLASH = re.compile(rb"(%2[Ff])")

_Field = FieldDescriptor
_WHOLE = re.compile(r"-?[0-9]{1,20}")
_NUMBER = re.compile(r"-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|NaN|-?Infinity")
_FLOAT_MAX = 3.4028234663852886e38
_BOOLS: Mapping[str, bool] = {"true": True, "false": False}
_RANGES: Mapping[int, tuple[str, int, int]] = {
    _Field.CPPTYPE_INT32: ("an int32", -(2**31), 2**31 - 1),
    _Field.CPPTYPE_INT64: ("an int64", -(2**63), 2**63 - 1),
    _Field.CPPTYPE_UINT32: ("a uint32", 0, 2**32 - 1),
    _Field.CPPTYPE_UINT64: ("a uint64", 0, 2**64 - 1),
}
_FIELD_MASK = "google.protobuf.FieldMask"
_SHAPES: Mapping[str, str] = {
    "google.protobuf.Timestamp": 'a time; send one such as "2026-01-31T12:00:00Z"',
    "google.protobuf.Duration": 'a duration; send one such as "1.5s"',
    _FIELD_MASK: 'a field mask; send one such as "movieId,rating"',
}

_Parse = Callable[[str], Any]  # raises ValueError


class FieldSetter:
    """Sets one field of a request, as a path or a query parameter gives it. Its texts follow proto3's JSON."""

    __slots__ = ("_holders", "_last", "_oneofs", "_set", "_wanted", "repeated")

    def __init__(self, path: FieldPath) -> None:
        *holders, last = path
        self.repeated = last.is_repeated
        self._holders = tuple(holder.name for holder in holders)
        self._last = last.name
        self._oneofs = tuple(field.containing_oneof.name if field.containing_oneof else None for field in path)
        self._set, self._wanted = _way_to_set(last)

    def set(self, request: Any, text: str, name: str) -> None:
        """Set the field to what `text` says; raise `InvalidField` that calls the field `name`."""
        message = request
        for holder, oneof in zip(self._holders, self._oneofs, strict=False):
            _check_oneof(message, oneof, holder, name)
            message = getattr(message, holder)
        _check_oneof(message, self._oneofs[-1], self._last, name)
        try:
            self._set(message, text)
        except ValueError:
            raise InvalidField(name, f"is not {self._wanted}") from None


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


def _check_oneof(message: Any, oneof: str | None, field: str, name: str) -> None:
    if oneof is not None and message.WhichOneof(oneof) not in (None, field):
        raise InvalidField(name, f'excludes another field of oneof "{oneof}" that is given; leave one out')


def _way_to_set(field: FieldDescriptor) -> tuple[Callable[[Any, str], None], str]:
    """Return a function that sets `field` of a message or raises `ValueError`, and what then follows "is not"."""
    name = field.name
    message = field.message_type
    if message is None:
        parse, wanted = _scalar(field)
        if field.is_repeated:
            return (lambda target, text: getattr(target, name).append(parse(text))), wanted
        return (lambda target, text: setattr(target, name, parse(text))), wanted
    value = message.fields_by_name.get("value")
    if value is None:
        wanted = _SHAPES[message.full_name]

        def fill(target: Any, text: str) -> None:
            if message.full_name == _FIELD_MASK and "_" in text:
                target.paths.extend(text.split(","))  # by the contract's names, which JSON's form has no place for
            else:
                target.FromJsonString(text)

    else:
        parse, wanted = _scalar(value)

        def fill(target: Any, text: str) -> None:
            target.value = parse(text)
            target.SetInParent()

    if field.is_repeated:
        return (lambda target, text: fill(getattr(target, name).add(), text)), wanted
    return (lambda target, text: fill(getattr(target, name), text)), wanted


def _scalar(field: FieldDescriptor) -> tuple[_Parse, str]:
    if field.enum_type is not None:
        numbers = {value.name: value.number for value in field.enum_type.values}
        closed = field.enum_type.is_closed
        return _enum_parser(numbers, closed=closed), f"a {field.enum_type.name}; send one of {', '.join(numbers)}"
    if field.cpp_type in _RANGES:
        name, low, high = _RANGES[field.cpp_type]
        return _integer_parser(low, high), f"{name}; send a whole number from {low} to {high}"
    if field.cpp_type == _Field.CPPTYPE_BOOL:
        return _bool, "a bool; send true or false"
    if field.cpp_type == _Field.CPPTYPE_FLOAT:
        return _float, "a float; send a number, NaN, Infinity or -Infinity"
    if field.cpp_type == _Field.CPPTYPE_DOUBLE:
        return _double, "a double; send a number, NaN, Infinity or -Infinity"
    if field.type == _Field.TYPE_BYTES:
        return _bytes, "bytes; send them in base64"
    return str, "text"


def _integer_parser(low: int, high: int) -> _Parse:
    def parse(text: str) -> int:
        if not _WHOLE.fullmatch(text) or not low <= (number := int(text)) <= high:
            raise ValueError
        return number

    return parse


def _enum_parser(numbers: Mapping[str, int], *, closed: bool) -> _Parse:
    parse_number = _integer_parser(-(2**31), 2**31 - 1)

    def parse(text: str) -> int:
        number = numbers.get(text)
        if number is None:
            number = parse_number(text)
            if closed and number not in numbers.values():
                raise ValueError
        return int(number)

    return parse


def _bool(text: str) -> bool:
    if text not in _BOOLS:
        raise ValueError
    return _BOOLS[text]


def _double(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise ValueError
    number = float(text)
    if math.isinf(number) and not text.endswith("Infinity"):
        raise ValueError
    return number


def _float(text: str) -> float:
    number = _double(text)
    if math.isfinite(number) and abs(number) > _FLOAT_MAX:
        raise ValueError
    return number


def _bytes(text: str) -> bytes:
    """Return what either alphabet of base64 says, with padding or without."""
    plain = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except binascii.Error:
        raise ValueError from None
