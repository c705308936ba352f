"""HPACK, by the examples of RFC 7541 (appendix C), by what it forbids, and there and back."""

import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablegate.gateway.http.exchange import Trailer
from tablegate.gateway.http.h2 import huffman
from tablegate.gateway.http.h2.frames import Http2ConnectionError, Http2StreamError
from tablegate.gateway.http.h2.headers import TABLE_BYTES, HpackDecoder, RequestDecoder, encode_fields
from tablegate.gateway.http.h2.huffman import HpackError

Fields = list[tuple[bytes, bytes]]


def _decoded(*blocks: str) -> list[Fields]:
    decoder = HpackDecoder()
    return [decoder.decode(bytes.fromhex(block)) for block in blocks]


_FIRST: Fields = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")]
_SECOND: Fields = [*_FIRST, (b"cache-control", b"no-cache")]
_THIRD: Fields = [
    (b":method", b"GET"),
    (b":scheme", b"https"),
    (b":path", b"/index.html"),
    (b":authority", b"www.example.com"),
    (b"custom-key", b"custom-value"),
]


def test_single_fields() -> None:
    assert _decoded("400a637573746f6d2d6b65790d637573746f6d2d686561646572") == [[(b"custom-key", b"custom-header")]]
    assert _decoded("040c2f73616d706c652f70617468") == [[(b":path", b"/sample/path")]]
    assert _decoded("100870617373776f726406736563726574") == [[(b"password", b"secret")]]
    assert _decoded("82") == [[(b":method", b"GET")]]


def test_requests_without_huffman() -> None:
    assert _decoded(
        "828684410f7777772e6578616d706c652e636f6d",
        "828684be58086e6f2d6361636865",
        "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
    ) == [_FIRST, _SECOND, _THIRD]


def test_requests_with_huffman() -> None:
    assert _decoded(
        "828684418cf1e3c2e5f23a6ba0ab90f4ff",
        "828684be5886a8eb10649cbf",
        "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
    ) == [_FIRST, _SECOND, _THIRD]


def test_old_entries_leave_the_table() -> None:
    decoder = HpackDecoder()
    decoder.decode(b"\x3f\xe1\x01")  # a table of 256 bytes, as in C.6
    third_block = (
        "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960d5af"
        "27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007"
    )
    blocks = [
        "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3",
        "4883640effc1c0bf",
        third_block,
    ]
    first, second, third = (decoder.decode(bytes.fromhex(block)) for block in blocks)
    assert first[0] == (b":status", b"302")
    assert first[-1] == (b"location", b"https://www.example.com")
    assert second == [(b":status", b"307"), *first[1:]]
    assert third[-2:] == [
        (b"content-encoding", b"gzip"),
        (b"set-cookie", b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
    ]
    with pytest.raises(HpackError):
        decoder.decode(bytes((0x80 | 62 + 3,)))


_WRONG = {
    "index 0": "80",
    "index past the table": "be",
    "long index past the table": "ffff10",
    "name past the table": "7f0001",
    "index cut short": "ff",
    "name cut short": "4005616263",
    "no value": "400161",
    "value cut short": "4001610562",
    "length cut short": "40017f",
    "integer without end": "407fffffffffffffffffff00",
    "padding of zeros": "0085f2b24a84ff83495090",
    "padding of a byte": "0085f2b24a84ff8449509fff",
    "end of string": "0085f2b24a84ff8725a849ffffffffff",
    "end of string alone": "000184ffffffff",
    "code cut short": "00016181fe",
    "size after a field": "8221",
    "size too large": "3fe21f",
}


@pytest.mark.parametrize("block", _WRONG.values(), ids=_WRONG.keys())
def test_wrong_block(block: str) -> None:
    with pytest.raises(HpackError):
        _decoded(block)


def test_sizes_of_the_table() -> None:
    entry = Trailer(((b"a", b"b"),)).h2.replace(b"\0", b"\x40", 1)
    decoder = HpackDecoder()
    assert decoder.decode(entry + b"\xbe") == [(b"a", b"b")] * 2
    assert decoder.decode(b"\x20\x3f\xe1\x1f\x82") == [(b":method", b"GET")]
    with pytest.raises(HpackError):
        decoder.decode(b"\xbe")


def test_entry_that_does_not_fit_empties_the_table() -> None:
    decoder = HpackDecoder()
    small = Trailer(((b"a", b"b"),)).h2.replace(b"\0", b"\x40", 1)
    large = Trailer(((b"a", b"b" * TABLE_BYTES),)).h2.replace(b"\0", b"\x40", 1)
    assert decoder.decode(small + large)[1] == (b"a", b"b" * TABLE_BYTES)
    with pytest.raises(HpackError):
        decoder.decode(b"\xbe")
    assert decoder.decode(small + b"\xbe") == [(b"a", b"b")] * 2


def _huffman(text: bytes) -> bytes:
    codes = huffman.codes()
    bits = "".join(format(codes[byte][0], f"0{codes[byte][1]}b") for byte in text)
    bits += "1" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big") if bits else b""


@given(st.binary(max_size=300))
def test_huffman_there_and_back(text: bytes) -> None:
    assert huffman.decode(_huffman(text)) == text


class _Encoder:
    """Encodes fields in a chosen form each, and keeps the table that the decoder must have."""

    def __init__(self) -> None:
        self._table: Fields = []

    def encode(self, field: tuple[bytes, bytes], form: int, *, huffman: bool) -> bytes:
        if field in self._table and form == 3:
            return self._integer(62 + self._table.index(field), 7, 0x80)
        names = [name for name, _ in self._table]
        prefix, first = ((6, 0x40), (4, 0x00), (4, 0x10), (6, 0x40))[form]
        if field[0] in names:
            start = self._integer(62 + names.index(field[0]), prefix, first)
        else:
            start = bytes((first,)) + self._string(field[0], huffman=huffman)
        if first == 0x40:
            self._table.insert(0, field)
            while sum(32 + len(name) + len(value) for name, value in self._table) > TABLE_BYTES:
                self._table.pop()
        return start + self._string(field[1], huffman=huffman)

    def _string(self, text: bytes, *, huffman: bool) -> bytes:
        text = _huffman(text) if huffman else text
        return self._integer(len(text), 7, 0x80 if huffman else 0) + text

    @staticmethod
    def _integer(value: int, bits: int, first: int) -> bytes:
        limit = (1 << bits) - 1
        if value < limit:
            return bytes((first | value,))
        out = bytearray((first | limit,))
        value -= limit
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        return bytes((*out, value))


_FIELD = st.tuples(st.sampled_from([b"a", b"grpc-timeout", b"x" * 200]), st.binary(max_size=40) | st.just(b"v" * 1_500))
_BLOCK = st.lists(st.tuples(_FIELD, st.integers(0, 3), st.booleans()), max_size=8)


@given(st.lists(_BLOCK, max_size=6))
def test_blocks_there_and_back(blocks: list[list[tuple[tuple[bytes, bytes], int, bool]]]) -> None:
    encoder, decoder = _Encoder(), HpackDecoder()
    for block in blocks:
        sent = b"".join([encoder.encode(field, form, huffman=huffman) for field, form, huffman in block])
        assert decoder.decode(sent) == [field for field, _, _ in block]


@given(st.binary(max_size=60))
def test_bytes_without_sense_are_fields_or_an_error(block: bytes) -> None:
    with suppress(HpackError):
        HpackDecoder().decode(block)


@given(st.lists(st.tuples(st.sampled_from([b"etag", b"x-name"]), st.binary(max_size=300)), max_size=5))
def test_what_is_sent_can_be_read(fields: Fields) -> None:
    assert HpackDecoder().decode(Trailer(tuple(fields)).h2) == fields


@pytest.mark.tools
def test_names_that_are_remembered_are_bounded_by_their_bytes() -> None:
    decoder = RequestDecoder()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for turn in range(64):
            names = [(b"%x-%x" % (turn, number), b"") for number in range(350)]
            decoder.request(encode_fields((*_FIRST, *names)))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 128 * 1024  # with the last block, and what decoding it took


def test_the_same_block_is_another_request_once_the_table_changed() -> None:
    decoder = RequestDecoder()
    indexed = bytes.fromhex("828684be")  # GET, http, / and the newest entry of the table
    first, second = (_indexed(b":authority", host) for host in (b"first", b"second"))
    decoder.request(bytes.fromhex("828684") + first)
    assert [decoder.request(indexed)[2] for _ in range(2)] == 2 * [{b"host": b"first"}]
    decoder.skip(second)
    assert [decoder.request(indexed)[2] for _ in range(2)] == 2 * [{b"host": b"second"}]
    decoder.skip(b"\x20")  # a table of no bytes
    with pytest.raises(Http2ConnectionError):
        decoder.request(indexed)


def test_a_block_that_is_wrong_is_wrong_each_time() -> None:
    decoder = RequestDecoder()
    decoder.request(encode_fields(_FIRST))
    for _ in range(2):
        with pytest.raises(Http2StreamError):
            decoder.request(encode_fields([*_FIRST, (b"te", b"gzip")]))


def _indexed(name: bytes, value: bytes) -> bytes:
    """Return a field that goes into the table; its name is in the table of RFC 7541."""
    return bytes((0x40 | encode_fields([(name, value)])[0],)) + encode_fields([(name, value)])[1:]
