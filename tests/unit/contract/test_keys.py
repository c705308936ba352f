import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tablegate.gateway.contract.keys import (
    INT64_MAX,
    INT64_MIN,
    InvalidKey,
    KeyColumn,
    KeyType,
    KeyValue,
    after_prefix,
    decode_key,
    encode_key,
    key_prefix,
)
from tablegate.gateway.contract.types import is_marker_key, run_key

# Time says nothing about these functions: the machine may be busy, and the table of code points is made once.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
MICROSECONDS = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
TEXTS = st.text(st.sampled_from("\x00\x01a\u00ff\uffff\U0001f600\U0010ffff"), max_size=6) | st.text(max_size=12)
RAWS = st.binary(max_size=6) | st.lists(st.sampled_from([0, 1, 0xFE, 0xFF]), max_size=6).map(bytes)
VALUES = {
    KeyType.INT64: st.integers(INT64_MIN, INT64_MAX) | st.integers(-3, 3),
    KeyType.BOOL: st.booleans(),
    KeyType.STRING: TEXTS,
    KeyType.BYTES: RAWS,
    KeyType.TIMESTAMP: MICROSECONDS,
}


@st.composite
def columns_and_rows(draw: st.DrawFn) -> tuple[list[KeyColumn], list[tuple[KeyValue, ...]]]:
    types = draw(st.lists(st.sampled_from(list(KeyType)), min_size=1, max_size=4))
    columns = [KeyColumn(f"column_{at}", type_) for at, type_ in enumerate(types)]
    row = st.tuples(*(VALUES[type_] for type_ in types))
    return columns, draw(st.lists(row, min_size=2, max_size=6))


@UNHURRIED
@given(columns_and_rows())
def test_decoding_gives_back_what_was_encoded(drawn):
    columns, rows = drawn
    for row in rows:
        assert decode_key(columns, encode_key(columns, row)) == list(row)


@UNHURRIED
@given(st.lists(st.sampled_from(list(KeyType)), min_size=1, max_size=4), st.integers(0, INT64_MAX))
def test_a_run_has_a_key_that_no_row_has(types, run):
    columns = [KeyColumn(f"column_{at}", type_) for at, type_ in enumerate(types)]
    with pytest.raises(InvalidKey):
        decode_key(columns, run_key(run))
    assert is_marker_key(run_key(run))


@UNHURRIED
@given(columns_and_rows())
def test_order_of_bytes_is_order_of_columns(drawn):
    # Python compares strings by code point, as UTF-8 bytes compare.
    columns, rows = drawn
    keys = [encode_key(columns, row) for row in rows]
    for one, one_key in zip(rows, keys, strict=True):
        for other, other_key in zip(rows, keys, strict=True):
            assert (one < other) == (one_key < other_key)
            assert (one == other) == (one_key == other_key)


@UNHURRIED
@given(columns_and_rows(), st.data())
def test_a_prefix_of_columns_is_a_prefix_of_bytes(drawn, data):
    columns, rows = drawn
    count = data.draw(st.integers(0, len(columns)))
    for row in rows:
        key = encode_key(columns, row)
        prefix = encode_key(columns, row[:count])
        assert key.startswith(prefix)
        assert key_prefix(columns[:count], key) == prefix
    # and of no key whose columns differ
    first = encode_key(columns, rows[0][:count])
    for row in rows[1:]:
        assert encode_key(columns, row).startswith(first) == (row[:count] == rows[0][:count])


@UNHURRIED
@given(TEXTS, TEXTS)
def test_a_string_without_its_end_begins_what_the_string_begins(prefix, text):
    column = [KeyColumn("name", KeyType.STRING)]
    begins = encode_key(column, [text]).startswith(encode_key(column, [prefix])[:-2])
    assert begins == text.startswith(prefix)


@UNHURRIED
@given(RAWS, RAWS)
def test_after_prefix_is_the_first_bytes_above(prefix, other):
    after = after_prefix(prefix)
    if after is None:
        assert prefix.strip(b"\xff") == b""
        assert other.startswith(prefix) or other < prefix
    else:
        assert (prefix <= other < after) == other.startswith(prefix)


@UNHURRIED
@given(st.lists(st.sampled_from(list(KeyType)), min_size=1, max_size=3), st.binary(max_size=24))
def test_bytes_are_decoded_to_what_encodes_to_them_or_refused(types, key):
    columns = [KeyColumn(f"column_{at}", type_) for at, type_ in enumerate(types)]
    try:
        values = decode_key(columns, key)
    except InvalidKey:
        return
    assert encode_key(columns, values) == key


@pytest.mark.parametrize("value", [INT64_MIN - 1, INT64_MAX + 1, 2**64 - 1])
@pytest.mark.parametrize("type_", [KeyType.INT64, KeyType.TIMESTAMP])
def test_an_integer_beyond_64_bits_is_refused_without_being_told(type_, value):
    with pytest.raises(InvalidKey, match=r'key column "id": .* outside the range') as raised:
        encode_key([KeyColumn("id", type_)], [value])
    assert str(value) not in str(raised.value)


@pytest.mark.parametrize(
    ("type_", "key", "said"),
    [
        (KeyType.INT64, b"\x80", "1 bytes left of 8"),
        (KeyType.INT64, b"\x80" + bytes(8), "1 bytes follow"),
        (KeyType.BOOL, b"\x02", "not a bool"),
        (KeyType.BOOL, b"", "not a bool"),
        (KeyType.STRING, b"abc", "end is missing"),
        (KeyType.STRING, b"abc\x00", "end is missing"),
        (KeyType.STRING, b"a\x00\x01\x00\x00", "end is missing"),
        (KeyType.STRING, b"\xff\x00\x00", "not UTF-8"),
    ],
)
def test_what_is_no_key_is_refused(type_, key, said):
    with pytest.raises(InvalidKey, match=said):
        decode_key([KeyColumn("id", type_)], key)
