"""Requests as a command line gives them: field=value, each by the rules of REST's paths and parameters.

What has no text, such as the options of a read, is JSON, and so is a list of several values.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tablegate.gateway.cli.connecting import AskError
from tablegate.gateway.contract.http_rules import is_message
from tablegate.gateway.http.field_texts import FieldSetter
from tablegate.gateway.query.errors import InvalidField


def fill(message: Message, fields: Mapping[str, Sequence[str]]) -> None:
    """Set the fields of a request, or of a key in it; raise `AskError` that says which text is not what, and what is.

    `fields`: their texts by the names of the contract; several of one that is repeated.
    """
    descriptor: Any = message.DESCRIPTOR
    known: dict[str, FieldDescriptor] = {field.name: field for field in descriptor.fields}
    for name, texts in fields.items():
        if name not in known:
            raise AskError(f'{descriptor.name} has no field "{_shown(name)}": it has {", ".join(known)}')
        field = known[name]
        if len(texts) > 1 and not field.is_repeated:
            raise AskError(f'field "{name}": is given twice and takes one value; give it once')
        for text in texts:
            _set(message, field, text)


def _set(message: Message, field: FieldDescriptor, text: str) -> None:
    if is_message(field) or (field.is_repeated and text.startswith("[")):
        _set_json(message, field, text)
    else:
        set_text(message, field, text)


def set_text(message: Message, field: FieldDescriptor, text: str) -> None:
    """Set a field to what a text says, and one that is repeated to one more value; raise as `fill` does."""
    try:
        FieldSetter((field,)).set(message, text, field.name)
    except InvalidField as error:
        raise AskError(f'field "{field.name}": "{_shown(text)}" {error.description}') from None


def _set_json(message: Message, field: FieldDescriptor, text: str) -> None:
    from tablegate.gateway.http.json_codec import JsonCodec

    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise AskError(f'field "{field.name}": "{_shown(text)}" is not JSON; write it as in a body of REST') from None
    try:
        data = JsonCodec([]).from_json(type(message), json.dumps({field.name: value}).encode())
    except InvalidField as error:
        raise AskError(str(error)) from None
    message.MergeFromString(data)


def _shown(text: str) -> str:
    """Return a text that can be printed: bytes of a command line may be no Unicode."""
    return text.encode(errors="backslashreplace").decode()
