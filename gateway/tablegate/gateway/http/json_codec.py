"""Messages as JSON and back (the proto3 JSON mapping), and what the contracts say of each method.

The mapping itself is protobuf's own (what is written, `json_encoder` writes as it does); here are its limits, and
errors that name the field without repeating its value.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Never

from google.protobuf import any_pb2, json_format, wrappers_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from typing_extensions import override

from tablegate.gateway.contract.columns import is_map, messages_in
from tablegate.gateway.http.exchange import MESSAGE_BYTES_MAX
from tablegate.gateway.http.field_texts import is_text_of, wanted_of
from tablegate.gateway.http.json_encoder import JsonEncoder
from tablegate.gateway.query.errors import InvalidField, RequestTooLarge, TooManyKeys

JSON_BYTES_MAX = 4 * MESSAGE_BYTES_MAX  # a message as JSON is longer than its bytes
DEPTH_MAX = 100  # of objects and lists in one another, as in protobuf's own parsers
VALUES_MAX = 2_000  # beside the keys of a batch: an object takes 12 µs, three times that when one of them is wrong

# What protobuf's parser raises: ParseError, and here and there what it did not expect.
_REFUSED = (json_format.ParseError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
_SHOWN_CHARS_MAX = 24  # of a name of the client's: most names of fields are shorter, and most secrets longer
_WELL_KNOWN = "google.protobuf."
_LAX_TYPES = (FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE)
_LAX_WRAPPERS = {f"{_WELL_KNOWN}{name}Value" for name in ("Bytes", "Float", "Double")}
_WANTED_OF_SCALAR: Mapping[int, str] = {
    FieldDescriptor.CPPTYPE_INT32: "is not an int32; send a whole number from -2147483648 to 2147483647",
    FieldDescriptor.CPPTYPE_UINT32: "is not a uint32; send a whole number from 0 to 4294967295",
    FieldDescriptor.CPPTYPE_INT64: "is not an int64; send a whole number, as text where it is above 2^53",
    FieldDescriptor.CPPTYPE_UINT64: "is not a uint64; send a whole number of 0 or more, as text where it is above 2^53",
    FieldDescriptor.CPPTYPE_FLOAT: 'is not a float; send a number, "NaN", "Infinity" or "-Infinity"',
    FieldDescriptor.CPPTYPE_DOUBLE: 'is not a double; send a number, "NaN", "Infinity" or "-Infinity"',
    FieldDescriptor.CPPTYPE_BOOL: "is not a bool; send true or false",
    FieldDescriptor.CPPTYPE_STRING: "is not text; send a string of valid Unicode",
}
_WANTED_OF_MESSAGE: Mapping[str, str] = {
    "google.protobuf.Timestamp": 'is not a time; send text such as "2026-01-31T12:00:00Z"',
    "google.protobuf.Duration": 'is not a duration; send text such as "1.5s"',
    "google.protobuf.FieldMask": 'is not a field mask; send text such as "movieId,rating"',
    "google.protobuf.Any": 'is not an Any of a known type; send an object with "@type"',
}


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def compact(value: Any) -> bytes:
    """Return a value as JSON without spaces."""
    return _encode(value).encode()


@dataclass(frozen=True, slots=True)
class MethodTypes:
    """What the contract says of a method."""

    path: str
    request_class: type[Message]
    response_class: type[Message]
    server_streaming: bool
    side_effect_free: bool


@dataclass(frozen=True, slots=True)
class KeysLimit:
    """How many keys a request may list: a longer list is refused before any of them is read."""

    field: FieldDescriptor
    keys_max: int

    @property
    def values_max(self) -> int:
        """Return how many values the JSON of a request may have, with as many keys."""
        columns = 0 if self.field.message_type is None else len(self.field.message_type.fields)
        return VALUES_MAX + self.keys_max * (1 + columns)


class JsonCodec:
    """Turns messages into JSON and back.

    `pools`: where services and the messages inside an Any are looked up, in this order. `keys_limits`: by the full
    name of a request.
    """

    def __init__(self, pools: Sequence[DescriptorPool], keys_limits: Mapping[str, KeysLimit] | None = None) -> None:
        self._pools = tuple(pools)
        self._keys_limits = keys_limits or {}
        self._any_types: Any = _AnyTypes(self._pools)
        self._types: dict[str, MethodTypes] = {}
        self._encoder = JsonEncoder(self._special)

    def types(self, path: str) -> MethodTypes:
        """Return what the contract says of the method at `path`; raise `KeyError` where no pool has it."""
        known = self._types.get(path)
        if known is None:
            known = self._types[path] = self._look_up(path)
        return known

    def _look_up(self, path: str) -> MethodTypes:
        service, _, name = path.removeprefix("/").rpartition("/")
        for pool in self._pools:
            try:
                method: MethodDescriptor = pool.FindServiceByName(service).methods_by_name[name]
            except KeyError:
                continue
            return MethodTypes(
                path=path,
                request_class=GetMessageClass(method.input_type),
                response_class=GetMessageClass(method.output_type),
                server_streaming=bool(method.server_streaming),
                side_effect_free=method.GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS,
            )
        raise KeyError(path)

    def from_json(self, message_class: type[Message], text: bytes) -> bytes:
        """Return the bytes of the message that `text` is; raise `InvalidField` or `RequestTooLarge`."""
        descriptor: Any = message_class.DESCRIPTOR
        limit = self._keys_limits.get(descriptor.full_name)
        value = _value_of(text, VALUES_MAX if limit is None else limit.values_max)
        if limit is not None:
            _check_keys(limit, value)
        message: Message = message_class()
        try:
            json_format.ParseDict(value, message, descriptor_pool=self._any_types, max_recursion_depth=DEPTH_MAX)
        except _REFUSED:
            self._refuse(descriptor, value, "")
        if not isinstance(value, dict) and not descriptor.full_name.startswith(_WELL_KNOWN):
            self._refuse(descriptor, value, "")  # protobuf takes an empty list for a message
        if b"_" in text:
            _check_names(descriptor, value, "")
        if _has_lax_fields(descriptor):
            _check_texts(descriptor, value, "")
        data: bytes = message.SerializeToString()
        if len(data) > MESSAGE_BYTES_MAX:
            raise RequestTooLarge(MESSAGE_BYTES_MAX)
        return data

    def to_json(self, message_class: type[Message], data: bytes) -> bytes:
        """Return the JSON of a message's bytes, compact.

        An Any whose type is unknown, whose bytes are not of its type, or of which JSON cannot say what is in it, has
        its bytes as "value", in base64. Raise protobuf's `DecodeError`, or json_format's `SerializeToJsonError` where
        JSON cannot say it: for example a time in the year 10000.
        """
        message: Message = message_class.FromString(data)
        try:
            return self._encoder.encode(message)
        except Exception:  # noqa: BLE001  an Any of unknown type; whatever else it is, json_format says it in its words
            return compact(self.to_value(message))

    def _special(self, message: Message) -> Any:
        return self.to_value(message)  # of one Any: what is wrong with it changes no other one

    def to_value(self, message: Message, **style: bool) -> Any:
        """Return what the JSON of a message holds; raise as `to_json` does.

        `style`: options of `json_format.MessageToDict`.
        """
        try:
            return json_format.MessageToDict(message, descriptor_pool=self._any_types, **style)
        except Exception:
            sealed, types = self._sealed(message)
            if not types.sealed:
                raise
            return json_format.MessageToDict(sealed, descriptor_pool=types, **style)

    def _sealed(self, message: Message) -> tuple[Message, Any]:
        """Return a copy of a message in which an Any of a type has its bytes alone, where one of them has to."""
        types = _SealedTypes(self._pools)
        while True:
            sealed, known = type(message)(), len(types.sealed)
            sealed.CopyFrom(message)
            _seal(types, sealed)
            if len(types.sealed) == known:  # else one that came before may be of the type, too
                return sealed, types

    def unpacked(self, packed: any_pb2.Any) -> Message | None:
        """Return the message in an Any; None where its type is not known or its bytes are not of it."""
        try:
            descriptor = self._any_types.FindMessageTypeByName(packed.type_url.rpartition("/")[2])
            message: Message = GetMessageClass(descriptor).FromString(packed.value)
        except (KeyError, DecodeError):
            return None
        return message

    def _fits(self, message: Descriptor, value: Any) -> bool:
        try:
            json_format.ParseDict(value, GetMessageClass(message)(), descriptor_pool=self._any_types)
        except _REFUSED:
            return False
        return True

    def _refuse(self, message: Descriptor, value: Any, path: str) -> Never:
        """Raise `InvalidField` at the first field of `value` that does not fit alone."""
        if message.full_name.startswith(_WELL_KNOWN):
            raise _invalid(path, _WANTED_OF_MESSAGE.get(message.full_name, f"is no {message.full_name} in JSON"))
        if not isinstance(value, dict):
            raise _invalid(path, f"is not a {message.name}; send an object with its fields")
        by_json_name = {field.json_name: field for field in message.fields}
        for name, inner in value.items():
            field = by_json_name.get(name) or message.fields_by_name.get(name)
            if field is None:
                self._refuse_unknown(message, name, path)
            here = f"{path}.{name}" if path else name
            if not self._fits(message, {name: inner}):
                self._refuse_field(message, field, name, inner, here)
        raise _invalid(path, f"has two fields of one oneof of {message.name}; give one of them")

    def _refuse_unknown(self, message: Descriptor, name: str, path: str) -> Never:
        if not _NAME.fullmatch(name):
            raise _invalid(path, f"has a field that {message.name} lacks; look into its contract")
        name = shown_name(name)
        here = f"{path}.{name}" if path else name
        raise InvalidField(here, f"is no field of {message.name}; look into its contract")

    def _first_wrong(self, message: Descriptor, name: str, items: list[Any]) -> int:
        """Return the place of the first item that does not fit; all together are read once more, and not one by one."""
        first, end = 0, len(items)
        while end - first > 1:
            middle = (first + end) // 2
            if self._fits(message, {name: items[first:middle]}):
                first = middle
            else:
                end = middle
        return first

    def _refuse_field(self, message: Descriptor, field: FieldDescriptor, name: str, value: Any, path: str) -> Never:
        if is_map(field):
            raise InvalidField(path, "is not a map of its types; send an object")
        if field.is_repeated:
            if not isinstance(value, list):
                raise InvalidField(path, "is repeated; send a list")
            place = self._first_wrong(message, name, value)
            value, path = value[place], f"{path}[{place}]"
            if value is None:
                raise InvalidField(path, "is null; leave it out")
        if field.message_type is not None:
            self._refuse(field.message_type, value, path)
        raise InvalidField(path, _wanted(field))


class _AnyTypes:
    """Where the types inside an Any are looked up: to json_format it is a pool."""

    def __init__(self, pools: Sequence[DescriptorPool]) -> None:
        self._pools = pools

    def FindMessageTypeByName(self, name: str) -> Descriptor:  # noqa: N802  the name that json_format calls
        """Return a message's descriptor; raise `KeyError` where no pool has it."""
        for pool in self._pools:
            try:
                found: Descriptor = pool.FindMessageTypeByName(name)
            except KeyError:
                continue
            return found
        raise KeyError(name)


class _SealedTypes(_AnyTypes):
    """The same, but for the types in `sealed`: an Any of these is a BytesValue."""

    def __init__(self, pools: Sequence[DescriptorPool]) -> None:
        super().__init__(pools)
        self.sealed: set[str] = set()

    @override
    def FindMessageTypeByName(self, name: str) -> Descriptor:
        if name in self.sealed:
            sealed: Descriptor = wrappers_pb2.BytesValue.DESCRIPTOR
            return sealed
        return super().FindMessageTypeByName(name)


def shown_name(name: str) -> str:
    """Return a name that no contract may have, as an error shows it: cut, as a client may have put a secret there."""
    return name if len(name) <= _SHOWN_CHARS_MAX else f"{name[: _SHOWN_CHARS_MAX // 2]}..."


def _invalid(path: str, text: str) -> InvalidField:
    return InvalidField(path, text if path else f"the request {text}")


def _check_names(message: Descriptor, value: Any, path: str) -> None:
    """Raise `InvalidField` where a field is given by both of its names: protobuf takes the last."""
    if not isinstance(value, dict) or message.full_name.startswith(_WELL_KNOWN):
        return
    by_json_name = {field.json_name: field for field in message.fields}
    seen: set[int] = set()
    for name, inner in value.items():
        field = by_json_name.get(name) or message.fields_by_name[name]
        here = f"{path}.{name}" if path else name
        if field.number in seen:
            raise InvalidField(here, "is given by both of its names; give it once")
        seen.add(field.number)
        if field.message_type is None or is_map(field):
            continue
        for place, item in enumerate(inner if isinstance(inner, list) else [inner]):
            _check_names(field.message_type, item, f"{here}[{place}]" if field.is_repeated else here)


@lru_cache(maxsize=1_000)  # far more than there are messages in requests
def _has_lax_fields(message: Descriptor) -> bool:
    """Return whether a message, or one in it, has fields of which protobuf takes texts that say nothing."""
    seen: set[str] = set()
    todo = [message]
    while todo:
        here = todo.pop()
        if here.full_name in seen:
            continue
        seen.add(here.full_name)
        if any(field.type in _LAX_TYPES for field in here.fields):
            return True
        todo += [field.message_type for field in here.fields if field.message_type is not None]
    return False


def _check_texts(message: Descriptor, value: Any, path: str) -> None:
    """Raise `InvalidField` where a text says no bytes, or a number beyond those of its type.

    Protobuf leaves out what is not in base64's alphabet, and takes such a number for Infinity.
    """
    if message.full_name in _LAX_WRAPPERS:
        _check_text(message.fields_by_name["value"], value, path)
    if not isinstance(value, dict) or message.full_name.startswith(_WELL_KNOWN):
        return
    by_json_name = {field.json_name: field for field in message.fields}
    for name, inner in value.items():
        field = by_json_name.get(name) or message.fields_by_name[name]
        if is_map(field) or (field.message_type is None and field.type not in _LAX_TYPES):
            continue
        for place, item in enumerate(inner if isinstance(inner, list) else [inner]):
            here = f"{path}.{name}" if path else name
            here = f"{here}[{place}]" if field.is_repeated else here
            if field.message_type is not None:
                _check_texts(field.message_type, item, here)
            else:
                _check_text(field, item, here)


def _check_text(field: FieldDescriptor, value: Any, path: str) -> None:
    if isinstance(value, str) and not is_text_of(field, value):
        raise InvalidField(path, _wanted(field))


def _seal(types: _SealedTypes, message: Message) -> None:
    """Seal each Any inside `message` that JSON cannot say: its bytes go into a BytesValue, its type's name stays."""
    if message.DESCRIPTOR.full_name != any_pb2.Any.DESCRIPTOR.full_name:
        for inner in messages_in(message):
            _seal(types, inner)
        return
    packed: Any = message
    name = packed.type_url.rpartition("/")[2]
    if name not in types.sealed:
        try:
            inside = GetMessageClass(types.FindMessageTypeByName(name)).FromString(packed.value)
            _seal(types, inside)
            json_format.MessageToDict(inside, descriptor_pool=types)  # type: ignore[arg-type]
        except Exception:  # noqa: BLE001  whatever it is, the bytes can be said
            types.sealed.add(name)
        else:
            packed.value = inside.SerializePartialToString()
            return
    packed.value = wrappers_pb2.BytesValue(value=packed.value).SerializeToString()


def _check_keys(limit: KeysLimit, value: Any) -> None:
    """Raise `TooManyKeys` where a request lists more keys than it may."""
    if isinstance(value, dict):
        for name in (limit.field.json_name, limit.field.name):
            keys = value.get(name)
            if isinstance(keys, list) and len(keys) > limit.keys_max:
                raise TooManyKeys(len(keys), limit.keys_max)


def _value_of(text: bytes, values_max: int) -> Any:
    """Return the JSON value of `text`; raise `InvalidField` or `RequestTooLarge`."""
    if len(text) > JSON_BYTES_MAX:
        raise RequestTooLarge(JSON_BYTES_MAX)
    opened = text.count(b"{") + text.count(b"[")
    if opened + text.count(b",") > values_max:
        raise InvalidField("", f"the request has more than {values_max} values; split it")
    try:
        value = json.loads(text.decode(), object_pairs_hook=_object, parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise InvalidField("", "the request is not UTF-8; encode it so") from None
    except json.JSONDecodeError as error:
        raise InvalidField(
            "", f"the request is no JSON: {error.msg} at line {error.lineno} column {error.colno}; correct it"
        ) from None
    except ValueError:  # an integer of thousands of digits
        raise InvalidField("", "the request has a number that is too long; shorten it") from None
    except RecursionError:
        raise _too_deep() from None
    if b"\\u" in text and _has_lone_surrogate(value):
        raise InvalidField("", "the request has half of a surrogate pair; send valid Unicode")
    if opened > DEPTH_MAX and _is_deeper(value, DEPTH_MAX):
        raise _too_deep()
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise InvalidField(
            shown_name(twice) if _NAME.fullmatch(twice) else "", "a name comes twice in one object; give it once"
        )
    return made


def _no_constant(_text: str) -> Never:
    raise InvalidField("", 'the request is no JSON: NaN and Infinity are written as text, such as "NaN"; correct it')


def _too_deep() -> InvalidField:
    return InvalidField("", f"the request has more than {DEPTH_MAX} objects and lists in one another; flatten it")


def _has_lone_surrogate(value: Any) -> bool:
    """Return whether a name or text is no Unicode: protobuf breaks at such names."""
    try:
        compact(value)
    except UnicodeEncodeError:
        return True
    return False


def _is_deeper(value: Any, levels: int) -> bool:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    if inside is None:
        return False
    return levels == 0 or any(_is_deeper(inner, levels - 1) for inner in inside)


def _wanted(field: FieldDescriptor) -> str:
    if field.enum_type is not None:
        return f"is not {wanted_of(field)}"
    if field.type == FieldDescriptor.TYPE_BYTES:
        return "is not bytes; send them as text in base64"
    return _WANTED_OF_SCALAR[field.cpp_type]
