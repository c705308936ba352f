import json
import re
from contextlib import suppress
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.any_pb2 import Any as PackedAny
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from tablegate.gateway.http.exchange import MESSAGE_BYTES_MAX
from tablegate.gateway.http.json_codec import DEPTH_MAX, JSON_BYTES_MAX, VALUES_MAX, MethodTypes
from tablegate.gateway.query.errors import InvalidField, QueryError, RequestTooLarge, TooManyKeys, status_of
from tests.kit.gateways_in_process.web import SERVICE, codec
from tests.kit.table.filled import catalogue_of, rating
from tests.kit.table.things import thing_routes

CODEC = codec()
SECRET = "s3cret-value"


def _types(method: str) -> MethodTypes:
    return CODEC.types(f"{SERVICE}/{method}")


def _read(method: str, text: bytes | str) -> Any:
    request_class = _types(method).request_class
    return request_class.FromString(CODEC.from_json(request_class, text.encode() if isinstance(text, str) else text))


def test_types_come_from_the_first_pool_that_has_the_method() -> None:
    types = _types("GetRating")
    assert types.request_class is catalogue_of().queries[types.path].request_class
    assert (types.server_streaming, types.side_effect_free) == (False, True)
    assert (_types("ScanRatings").server_streaming, _types("ScanRatings").side_effect_free) == (True, False)
    assert CODEC.types("/grpc.health.v1.Health/Watch").server_streaming
    for path in ("/nobody.v1.Service/Get", f"{SERVICE}/Nothing", "", "/", "x"):
        with pytest.raises(KeyError):
            CODEC.types(path)


def test_both_names_of_fields_and_both_forms_of_integers() -> None:
    for text in ('{"movieId": 7}', '{"movie_id": "7"}', '{"movieId": 7.0}', '{"movieId":7,"readOptions":null}'):
        assert _read("GetRating", text).movie_id == 7
    assert _read("ListRatings", '{"order":"ORDER_DESCENDING"}') == _read("ListRatings", '{"order":2}')
    assert _read("GetRating", '{"readOptions":{"maxWait":"1.5s"}}').read_options.max_wait.nanos == 500_000_000


def test_an_answer_is_compact_and_follows_the_mapping() -> None:
    response = _types("GetRating").response_class()
    response.rating.CopyFrom(rating(2**60, average=float("nan")))  # type: ignore[attr-defined]
    text = CODEC.to_json(type(response), response.SerializeToString())
    assert json.loads(text)["rating"] == {
        "movieId": str(2**60),
        "averageRating": "NaN",
        "ratingCount": "1",
        "updateTime": "2023-11-14T22:13:20Z",
    }
    assert b" " not in text


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("", "", "no JSON"),
        ('{"movieId":7', "", "no JSON"),
        ("[]", "", "not a GetRatingRequest"),
        ("null", "", "not a GetRatingRequest"),
        ('"x"', "", "not a GetRatingRequest"),
        ('{"movieId":NaN}', "", "NaN"),
        (b'{"movieId":"\xff"}', "", "UTF-8"),
        ('{"movieId":"x"}', "movieId", "int64"),
        ('{"movieId":1.5}', "movieId", "int64"),
        ('{"movieId":1e400}', "movieId", "int64"),
        ('{"movieId":9223372036854775808}', "movieId", "int64"),
        ('{"movieId":true}', "movieId", "int64"),
        ('{"movieId":{}}', "movieId", "int64"),
        ('{"movieId":' + "9" * 5_000 + "}", "", "too long"),
        ('{"movie_id":1,"movie_id":2}', "movie_id", "twice"),
        ('{"movie_id":1,"movieId":2}', "movieId", "both of its names"),
        ('{"read_options":{"max_wait":"1s","maxWait":"2s"}}', "read_options.maxWait", "both of its names"),
        ('{"movie":1}', "movie", "no field of GetRatingRequest"),
        (f'{{"{SECRET}":1}}', "", "lacks"),
        ('{"readOptions":7}', "readOptions", "not a ReadOptions"),
        ('{"readOptions":{"maxWait":7}}', "readOptions.maxWait", "duration"),
        ('{"readOptions":{"nothing":7}}', "readOptions.nothing", "no field of ReadOptions"),
        ('{"readOptions":{"atLeastSource":{"topics":7}}}', "readOptions.atLeastSource.topics", "list"),
        ('{"readOptions":{"atLeastSource":{"topics":[{},null]}}}', "readOptions.atLeastSource.topics[1]", "null"),
        (
            '{"readOptions":{"atLeastSource":{"topics":[{"topic":"a"},{"topic":7}]}}}',
            "readOptions.atLeastSource.topics[1].topic",
            "text",
        ),
        (
            '{"readOptions":{"atLeastSource":{"topics":[{"offsets":{"x":1}}]}}}',
            "readOptions.atLeastSource.topics[0].offsets",
            "map",
        ),
        ('{"a":' * (DEPTH_MAX + 1) + "1" + "}" * (DEPTH_MAX + 1), "", "in one another"),
        ('{"\\ud800":1}', "", "surrogate"),
        ('{"readOptions":{"atLeastSource":{"topics":[{"topic":"\\udc00"}]}}}', "", "surrogate"),
        ("[" * 1_900 + "]" * 1_900, "", "in one another"),
        ("[" + "1," * VALUES_MAX + "1]", "", "values"),
    ],
)
def test_what_does_not_fit_is_refused_at_its_field(text: str | bytes, field: str, words: str) -> None:
    with pytest.raises(InvalidField) as caught:
        _read("GetRating", text)
    assert caught.value.field == field
    assert words in caught.value.text


def test_a_secret_in_the_place_of_a_name_is_cut() -> None:
    secret = "AKIA_9f86d081884c7d659a2feaa0c55ad015"
    for text in (f'{{"{secret}":1}}', f'{{"readOptions":{{"{secret}":1}}}}', f'{{"{secret}":1,"{secret}":2}}'):
        with pytest.raises(InvalidField) as caught:
            _read("GetRating", text)
        assert caught.value.field.endswith("AKIA_9f86d08...")
        assert secret not in str(status_of(caught.value))


def test_long_requests_are_refused() -> None:
    with pytest.raises(RequestTooLarge):
        _read("GetRating", b" " * (JSON_BYTES_MAX + 1))
    token = "a" * (MESSAGE_BYTES_MAX + 1)
    with pytest.raises(RequestTooLarge):
        _read("ListRatings", f'{{"pageToken":"{token}"}}')


@pytest.mark.parametrize("place", [0, 1, 49, 98, 99])
def test_many_wrong_items_are_found_at_the_first(place: int) -> None:
    keys = [{"movieId": number} for number in range(place)] + [{"movieId": SECRET}] * (100 - place)
    with pytest.raises(InvalidField) as caught:
        _read("BatchGetRatings", json.dumps({"keys": keys}))
    assert caught.value.field == f"keys[{place}].movieId"


def test_a_wrong_item_is_found_without_reading_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    parse = json_format.ParseDict

    def counted(value: Any, *args: Any, **options: Any) -> Any:
        read.append(value)
        return parse(value, *args, **options)

    monkeypatch.setattr(json_format, "ParseDict", counted)
    with pytest.raises(InvalidField, match=re.escape("keys[99]")):
        _read("BatchGetRatings", b'{"keys":[' + b"{}," * 99 + b"1]}")
    assert sum(len(value["keys"]) for value in read) <= 300
    assert len(read) < 12


def test_a_list_of_too_many_keys_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(json_format, "ParseDict")
    with pytest.raises(TooManyKeys, match="501 keys are more than the 500"):
        _read("BatchGetRatings", json.dumps({"keys": [{}] * 501}))
    with pytest.raises(InvalidField, match="values; split it"):  # what 10,000 of them pack into is 84 bytes
        _read("BatchGetRatings", b'{"keys":[' + b"{}," * 9_999 + b"1]}")


_NAMES = st.sampled_from(
    ["movieId", "movie_id", "readOptions", "maxWait", "atLeastSource", "topics", "offsets", "keys", "order", "0", ""]
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([SECRET, "1", "1s", "\ud800", "é"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=12,
)


@given(_VALUES, st.sampled_from(["GetRating", "BatchGetRatings", "ListRatings", "ScanRatings"]))
def test_any_json_is_read_or_refused_without_its_values(value: Any, method: str) -> None:
    told = ""
    try:
        _read(method, json.dumps(value))
    except QueryError as error:
        told = str(status_of(error))
    assert SECRET not in told


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(text: bytes) -> None:
    with suppress(InvalidField):
        _read("GetRating", text)


def _packed(message: Any) -> PackedAny:
    packed = PackedAny()
    packed.Pack(message)
    return packed


def test_an_any_is_resolved_where_its_type_is_known() -> None:
    unknown = PackedAny(type_url="type.googleapis.com/nobody.v1.Thing", value=b"\xff\x00")
    info = error_details_pb2.ErrorInfo(reason="R", metadata={"a": "b"})
    inner = status_pb2.Status(code=5, details=[unknown, _packed(info)])
    status = status_pb2.Status(code=3, details=[_packed(info), _packed(inner)])
    shown_info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "R", "metadata": {"a": "b"}}
    shown_inner = {
        "@type": "type.googleapis.com/google.rpc.Status",
        "code": 5,
        "details": [{"@type": unknown.type_url, "value": "/wA="}, shown_info],
    }
    text = CODEC.to_json(status_pb2.Status, status.SerializeToString())
    assert json.loads(text) == {"code": 3, "details": [shown_info, shown_inner]}
    assert CODEC.unpacked(_packed(info)) == info
    assert CODEC.unpacked(unknown) is None
    assert CODEC.unpacked(PackedAny(type_url=_packed(info).type_url, value=b"\xff")) is None


THINGS, _ = thing_routes(GetThing='get: "/v1/things"')


@pytest.mark.parametrize(
    ("text", "field", "wanted"),
    [
        ('{"rawData": "%%%"}', "rawData", "bytes"),
        ('{"raw_data": "***"}', "raw_data", "bytes"),
        ('{"narrow": "1e39"}', "narrow", "a float"),
        ('{"wide": "1e400"}', "wide", "a double"),
        ('{"color": "RED"}', "color", "a Color; send one of COLOR_UNSPECIFIED, COLOR_DARK_RED"),
    ],
)
def test_a_text_that_is_no_value_of_its_field_is_refused(text: str, field: str, wanted: str) -> None:
    with pytest.raises(InvalidField, match=f'field "{field}": is not {wanted}'):
        CODEC.from_json(GetMessageClass(THINGS[0].method.input_type), text.encode())


def test_texts_of_bytes_and_numbers_are_read() -> None:
    text = b'{"rawData": "-_8", "narrow": "-Infinity", "wide": "1.5e300", "innerThing": {"bigNumber": "7"}}'
    thing_class = GetMessageClass(THINGS[0].method.input_type)
    thing: Any = thing_class.FromString(CODEC.from_json(thing_class, text))
    assert (thing.raw_data, thing.wide, thing.inner_thing.big_number) == (b"\xfb\xff", 1.5e300, 7)
