"""Routes: which HTTP requests are which method. Their fields mean what google/api/http.proto says.

`binder/binder.py` makes them of the contracts' annotations; `http/rest` matches requests against them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor

FieldPath = tuple[FieldDescriptor, ...]
"""A field of a request, by way of the messages that hold it: `a.b` is (a, b)."""

ONE, REST = "*", "**"
"""Segments that match one segment of a path, or all that follow."""

TEXT_MESSAGES = frozenset(
    f"google.protobuf.{name}"
    for name in (
        *("Timestamp", "Duration", "FieldMask", "DoubleValue", "FloatValue", "Int64Value", "UInt64Value"),
        *("Int32Value", "UInt32Value", "BoolValue", "StringValue", "BytesValue"),
    )
)
"""Messages whose JSON is a text, number or bool: they fit into a path or a query parameter."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A field that is in the path: segments `start` to `end` (not included) of the template."""

    field: FieldPath
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Template:
    """A path: literals, `ONE` and `REST` (the last one only), then ":" and the verb where there is one."""

    segments: tuple[str, ...]
    verb: str
    variables: tuple[Variable, ...]


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """One kind of HTTP request that is a method.

    `whole_body`: the body is the request, without what the path has. `body`: it is this field of the request.
    `response_body`: the answer is this field of the response.
    """

    method: MethodDescriptor
    http_method: str
    template: Template
    whole_body: bool
    body: FieldDescriptor | None
    response_body: FieldDescriptor | None

    @property
    def path(self) -> str:
        """The method's own path, such as "/examples.ratings.v1.RatingsService/GetRating"."""
        return f"/{self.method.containing_service.full_name}/{self.method.name}"


def parameter_fields(route: HttpRoute) -> list[FieldPath]:
    """Return the fields that query parameters can set: those that neither path nor body have, and that fit a text.

    Messages are given by their fields; maps, repeated messages and messages inside of themselves cannot be given.
    """
    if route.whole_body:
        return []
    in_path = {variable.field for variable in route.template.variables}
    return [field for field in _leaves(route.method.input_type, ()) if field[0] != route.body and field not in in_path]


def is_message(field: FieldDescriptor) -> bool:
    """Return whether a field holds messages that have no text form."""
    return field.message_type is not None and field.message_type.full_name not in TEXT_MESSAGES


def _leaves(message: Descriptor, above: FieldPath) -> Iterator[FieldPath]:
    for field in message.fields:
        if not is_message(field):
            yield (*above, field)
        elif not field.is_repeated and _is_walked(field, above):
            assert field.message_type is not None
            yield from _leaves(field.message_type, (*above, field))


def _is_walked(field: FieldDescriptor, above: FieldPath) -> bool:
    message = field.message_type
    assert message is not None
    if message.full_name.startswith("google.protobuf."):
        return False  # Struct, Any and their like have a JSON of their own
    holders = {holder.message_type.full_name for holder in above if holder.message_type is not None}
    return message.full_name not in holders | {field.containing_type.full_name if field.containing_type else ""}
