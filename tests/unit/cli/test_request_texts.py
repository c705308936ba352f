from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass

from tablegate.gateway.cli.connecting import AskError
from tablegate.gateway.cli.request_texts import fill
from tests.kit.table.things import thing_routes

[ROUTE], _ = thing_routes(GetThing='get: "/v1/things"')
THING = GetMessageClass(ROUTE.method.input_type)


def thing_of(**fields: str | list[str]) -> Any:
    thing = THING()
    fill(thing, {name: [texts] if isinstance(texts, str) else texts for name, texts in fields.items()})
    return json_format.MessageToDict(thing)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("small", "abc", '"abc" is not an int32; send a whole number from -2147483648 to 2147483647'),
        ("small", "", '"" is not an int32'),
        ("small", "2147483648", '"2147483648" is not an int32'),
        ("small_unsigned", "-1", '"-1" is not a uint32; send a whole number from 0 to 4294967295'),
        ("big", "9223372036854775808", '"9223372036854775808" is not an int64'),
        ("wide", "much", '"much" is not a double; send a number'),
        ("narrow", "1e39", '"1e39" is not a float'),
        ("is_on", "yes", '"yes" is not a bool; send true or false'),
        ("raw_data", "%%%", '"%%%" is not bytes; send them in base64'),
        ("color", "RED", '"RED" is not a Color; send one of COLOR_UNSPECIFIED'),
        ("start_time", "2026-01-31", '"2026-01-31" is not a time; send one such as "2026-01-31T12:00:00Z"'),
        ("max_wait", "5", '"5" is not a duration; send one such as "1.5s"'),
        ("name", "\udcff", r'"\udcff" is not text'),
    ],
)
def test_a_text_that_does_not_fit_its_field_is_named(name: str, text: str, sentence: str) -> None:
    with pytest.raises(AskError) as refused:
        thing_of(**{name: text})
    assert str(refused.value).startswith(f'field "{name}": {sentence}')


def test_a_text_may_begin_as_json_does() -> None:
    assert thing_of(name="[a]") == {"name": "[a]"}
    assert thing_of(name='{"a": 1}') == {"name": '{"a": 1}'}


def test_a_field_of_one_value_is_given_once() -> None:
    with pytest.raises(AskError, match='field "is_on": is given twice and takes one value; give it once'):
        thing_of(is_on=["true", "false"])
