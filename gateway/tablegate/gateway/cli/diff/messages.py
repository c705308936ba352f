"""Two messages, compared field by field as a client meets them, and as deep as they are.

Fields are the same ones by their numbers: that is what binary clients go by. Where a name is found under another number
it is that field, renumbered; JSON and the values of changelogs go by names. What `buf breaking` has in FIELD_*, ENUM_*
and RESERVED_* is here where it can be met on the wire or in JSON; what only generated code meets, as a package of Java,
is not.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto

from tablegate.gateway.contract.columns import is_map, oneof_of, type_name

_OWN_VERSION = ("google.", "tablegate.v1.")  # the binder holds these to what this version knows


class Kind(Enum):
    """In what two fields differ."""

    ADDED = "added"
    REMOVED = "removed"
    RENAMED = "renamed"
    RENUMBERED = "renumbered"
    TYPE = "type"
    CARDINALITY = "cardinality"
    OPTIONAL = "optional"
    ONEOF = "oneof"
    DEFAULT = "default"
    ENUM = "enum"
    ENUM_NUMBER = "enum number"


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """One difference. `path`: names from the message down.

    `old`, `new`: the outermost field; `before`, `now`: the field itself. None where it is none.
    """

    path: tuple[str, ...]
    kind: Kind
    text: str
    breaks_clients: bool
    old: FieldDescriptor | None
    new: FieldDescriptor | None
    before: FieldDescriptor | None
    now: FieldDescriptor | None


def message_differences(
    old: Descriptor, new: Descriptor, *, is_request: bool = False, known: Collection[tuple[str, str]] = ()
) -> Iterator[FieldDifference]:
    """Yield in what two messages differ; `known` are pairs of full names that are compared elsewhere."""
    pair = (old.full_name, new.full_name)
    if pair in known or (pair[0] == pair[1] and pair[0].startswith(_OWN_VERSION)):
        return
    known = (*known, pair)  # a message may hold itself
    for before, now in _pairs(old, new):
        if before is None:
            assert now is not None, "one of both is there"
            yield _added(now, is_reused=_is_reserved(old, now.number))
        elif now is None:
            yield _removed(before, new)
        else:
            yield from _same_field(before, now, is_request=is_request)
            for inner in _inside(before, now, is_request=is_request, known=known):
                yield replace(inner, path=(now.name, *inner.path), old=before, new=now)


def _pairs(old: Descriptor, new: Descriptor) -> Iterator[tuple[FieldDescriptor | None, FieldDescriptor | None]]:
    """Yield fields that are the same one: of one name, else of one number; then those that one of both has."""
    by_number = {
        field.number: field
        for field in new.fields
        if field.name not in old.fields_by_name  # it is there under another number otherwise
    }
    for field in old.fields:
        same = new.fields_by_name.get(field.name)
        yield field, same if same is not None else by_number.pop(field.number, None)
    yield from ((None, field) for number, field in sorted(by_number.items()))


def _added(field: FieldDescriptor, *, is_reused: bool) -> FieldDifference:
    text = f"is new, {_described(field)}"
    if is_reused:
        text += "; its number was reserved: clients of earlier contracts know another field by it"
    return FieldDifference((field.name,), Kind.ADDED, text, is_reused or field.is_required, None, field, None, field)


def _removed(field: FieldDescriptor, message: Descriptor) -> FieldDifference:
    hint = "" if _is_reserved(message, field.number) else f"; write `reserved {field.number};` in its place"
    text = f"is gone, it was {_described(field)}{hint}"
    return FieldDifference((field.name,), Kind.REMOVED, text, True, field, None, field, None)


def _same_field(old: FieldDescriptor, new: FieldDescriptor, *, is_request: bool) -> Iterator[FieldDifference]:
    def differs(kind: Kind, text: str, *, breaks_clients: bool = True) -> FieldDifference:
        return FieldDifference((new.name,), kind, text, breaks_clients, old, new, old, new)

    if old.name != new.name:
        # Answers have the JSON name, and requests may have both.
        stays = old.json_name == new.json_name and not is_request
        text = f"is the new name of {old.name}, number {new.number}" + (
            "" if stays else ": JSON and REST have the name"
        )
        yield differs(Kind.RENAMED, text, breaks_clients=not stays)
    elif old.json_name != new.json_name:
        yield differs(Kind.RENAMED, f"is {new.json_name} in JSON, it was {old.json_name}")
    if old.number != new.number:
        yield differs(Kind.RENUMBERED, f"has number {new.number}, it had {old.number}")
    if old.is_required != new.is_required or old.is_repeated != new.is_repeated or is_map(old) != is_map(new):
        yield differs(Kind.CARDINALITY, f"is {_described(new)}, it was {_described(old)}")
    elif old.type != new.type or _is_other_message(old, new):
        yield differs(Kind.TYPE, f"is {_described(new)}, it was {_described(old)}")
    elif old.has_presence != new.has_presence:
        text = "is not optional any more: unset cannot be told from zero" if old.has_presence else "is optional now"
        # What a request without it means now is said where its conditions are compared.
        yield differs(Kind.OPTIONAL, text, breaks_clients=old.has_presence and not is_request)
    if _oneof(old) != _oneof(new):
        text = f"is in {_oneof(new) or 'no oneof'}, it was in {_oneof(old) or 'none'}"
        yield differs(Kind.ONEOF, text)
    if (
        old.type == new.type
        and old.has_default_value | new.has_default_value
        and old.default_value != new.default_value
    ):
        yield differs(Kind.DEFAULT, f"is {new.default_value!r} where unset, it was {old.default_value!r}")


def _inside(
    old: FieldDescriptor, new: FieldDescriptor, *, is_request: bool, known: Collection[tuple[str, str]]
) -> Iterator[FieldDifference]:
    """Yield in what the messages or enums that two fields hold differ."""
    if is_map(old) == is_map(new) and old.message_type is not None and new.message_type is not None:
        if not _is_own(old) or not _is_own(new):
            return
        yield from message_differences(old.message_type, new.message_type, is_request=is_request, known=known)
    if old.enum_type is not None and new.enum_type is not None:
        yield from _enum_differences(old, new, old.enum_type, new.enum_type)


def _enum_differences(
    old: FieldDescriptor, new: FieldDescriptor, before: EnumDescriptor, now: EnumDescriptor
) -> Iterator[FieldDifference]:
    def differs(value: str, kind: Kind, text: str, *, breaks_clients: bool) -> FieldDifference:
        return FieldDifference((value,), kind, text, breaks_clients, old, new, old, new)

    for name, value in before.values_by_name.items():
        same = now.values_by_name.get(name)
        if same is not None:
            if same.number != value.number:
                text = f"has number {same.number}, it had {value.number}: what is written keeps the number"
                yield differs(name, Kind.ENUM_NUMBER, text, breaks_clients=True)
            continue
        other = now.values_by_number.get(value.number)
        if other is None:
            yield differs(name, Kind.ENUM, f"is gone, it was number {value.number}", breaks_clients=True)
        elif other.name not in before.values_by_name:
            text = f"is {other.name} now, number {value.number}: JSON and REST have the name"
            yield differs(name, Kind.ENUM, text, breaks_clients=True)
    for name, value in now.values_by_name.items():
        if name not in before.values_by_name and value.number not in before.values_by_number:
            text = f"is new, number {value.number}: clients of before see a number without a name"
            yield differs(name, Kind.ENUM, text, breaks_clients=False)


def _is_reserved(message: Descriptor, number: int) -> bool:
    proto = DescriptorProto()
    message.CopyToProto(proto)
    return any(each.start <= number < each.end for each in proto.reserved_range)


def _oneof(field: FieldDescriptor) -> str:
    oneof = oneof_of(field)
    return f"oneof {oneof}" if oneof is not None else ""


def _is_other_message(old: FieldDescriptor, new: FieldDescriptor) -> bool:
    """Return whether fields hold messages that cannot be compared field by field: one at least is a given one."""
    return old.message_type is not None and not (_is_own(old) and _is_own(new)) and type_name(old) != type_name(new)


def _is_own(field: FieldDescriptor) -> bool:
    """Return whether a field holds a message of the contract's own."""
    return field.message_type is not None and not field.message_type.full_name.startswith(_OWN_VERSION)


def _described(field: FieldDescriptor) -> str:
    """Return what a field is, as a contract writes it: "repeated string", "map<string, int64>"."""
    if is_map(field):
        assert field.message_type is not None, "a map is a message"
        key, value = field.message_type.fields
        return f"map<{type_name(key)}, {type_name(value)}>"
    label = "repeated " if field.is_repeated else "required " if field.is_required else ""
    return f"{label}{type_name(field)}"
