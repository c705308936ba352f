from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass

from tablegate.gateway.contract.http_rules import parameter_fields
from tablegate.gateway.http.field_texts import FieldSetter
from tablegate.gateway.http.rest.routes import names_of
from tablegate.gateway.query.errors import InvalidField
from tests.kit.table.things import thing_routes

[ROUTE], _ = thing_routes(GetThing='get: "/v1/things"')
SETTERS = {name: FieldSetter(field) for field in parameter_fields(ROUTE) for name in names_of(field)}
THING = GetMessageClass(ROUTE.method.input_type)


def thing_of(*pairs: tuple[str, str]) -> Any:
    thing = THING()
    for name, text in pairs:
        SETTERS[name].set(thing, text, name)
    return THING.FromString(thing.SerializeToString())


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("name", "a b/ü", "a b/ü"),
        ("big", "-9223372036854775808", "-9223372036854775808"),
        ("bigUnsigned", "18446744073709551615", "18446744073709551615"),
        ("small", "2147483647", 2147483647),
        ("smallUnsigned", "4294967295", 4294967295),
        ("wide", "1.5e-3", 0.0015),
        ("wide", "-Infinity", "-Infinity"),
        ("wide", "NaN", "NaN"),
        ("narrow", "2.", 2.0),
        ("isOn", "true", True),
        ("rawData", "+/8=", "+/8="),
        ("rawData", "-_8", "+/8="),
        ("color", "COLOR_DARK_RED", "COLOR_DARK_RED"),
        ("color", "1", "COLOR_DARK_RED"),
        ("color", "7", 7),
        ("startTime", "2026-01-31T12:00:00.5Z", "2026-01-31T12:00:00.500Z"),
        ("startTime", "2026-01-31T13:00:00+01:00", "2026-01-31T12:00:00Z"),
        ("maxWait", "1.5s", "1.500s"),
        ("readMask", "isOn,rawData", "isOn,rawData"),
        ("boxedNumber", "0", "0"),
        ("boxedText", "", ""),
        ("maybe", "0", "0"),
        ("first", "false", False),
        ("third", "", ""),
    ],
)
def test_a_text_becomes_what_json_would_say(name, text, value):
    assert json_format.MessageToDict(thing_of((name, text))) == {name: value}


@pytest.mark.parametrize(
    ("name", "texts", "wanted"),
    [
        ("big", ["", "x", "1.0", "1e3", "1_000", " 1", "+1", "٣", "9223372036854775808", "9" * 5000], "an int64"),
        ("big_unsigned", ["-1", "18446744073709551616"], "a uint64"),
        ("small", ["2147483648"], "an int32"),
        ("small_unsigned", ["-1", "4294967296"], "a uint32"),
        ("wide", ["", "x", "1_0", "nan", "inf", "-NaN", "1e999", "."], "a double"),
        ("narrow", ["1e39"], "a float"),
        ("is_on", ["", "1", "True", "yes"], "a bool; send true or false"),
        ("raw_data", ["a", "a!bc", "ab==c"], "base64"),
        ("color", ["", "RED", "1.5", "2147483648"], "a Color; send one of COLOR_UNSPECIFIED, COLOR_DARK_RED"),
        (
            "start_time",
            ["", "now", "2026-01-31", "2026-13-31T12:00:00Z", "2026-01-31T12:00:00"],
            "a time; send one such as",
        ),
        ("max_wait", ["", "1", "1m", "s"], "a duration; send one such as"),
        ("boxed_number", ["", "x"], "an int64"),
    ],
)
def test_a_text_that_does_not_fit_is_refused(name, texts, wanted):
    for text in texts:
        with pytest.raises(InvalidField) as raised:
            thing_of((name, text))
        assert raised.value.field == name
        assert wanted in raised.value.text


def test_repeated_fields_take_one_more_each_time():
    pairs = [("sizes", "3"), ("colors", "1"), ("sizes", "4"), ("times", "2026-01-31T12:00:00Z"), ("colors", "0")]
    thing = thing_of(*pairs)
    assert (list(thing.sizes), list(thing.colors), len(thing.times)) == ([3, 4], [1, 0], 1)


def test_fields_inside_of_messages_by_either_name():
    thing = thing_of(("innerThing.big_number", "5"), ("inner_thing.textValue", ""))
    assert (thing.inner_thing.big_number, thing.inner_thing.HasField("text_value")) == (5, True)
    assert "innerThing.inner.bigNumber" not in SETTERS


def test_two_fields_of_a_oneof_are_refused():
    assert thing_of(("second.bigNumber", "1"), ("second.textValue", "x")).second.text_value == "x"
    for pairs in ([("first", "true"), ("third", "x")], [("first", "false"), ("second.bigNumber", "1")]):
        with pytest.raises(InvalidField, match='oneof "choice"'):
            thing_of(*pairs)
